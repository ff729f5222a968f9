"""Rows that correct earlier ones: the kinds that users write, and pairs of rows that belong together.

A replacement is a pair: the row that goes and, right behind it and of the same cause, the row that comes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.errors import OutputError
from borealis.kernels.columns import whole
from borealis.kernels.flow import Flow, rank_within
from borealis.kernels.groups import Groups
from borealis.tuples import HEADER, KIND, KIND_NAMES, Int8s, Int64s, Kind

UNKNOWN = -1  # what stands for no kind


def kinds_of(rows: pa.Table | pa.RecordBatch) -> Int8s:
    """The kinds of an input's rows, as users write them: insertions where nothing is said.

    >>> kinds_of(pa.table({"_kind": ["-D", None, "+U", "", "?"]})).tolist()
    [1, 0, 3, 0, -1]
    """
    if KIND not in rows.schema.names or rows.column(KIND).null_count == rows.num_rows:
        return np.zeros(rows.num_rows, np.int8)
    given = whole(rows.column(KIND)).fill_null("")
    found = pc.index_in(given, pa.array([*KIND_NAMES, ""])).fill_null(UNKNOWN).to_numpy().astype(np.int8)
    kinds: Int8s = np.where(found == len(KIND_NAMES), np.int8(Kind.INSERTION), found)
    return kinds


def signs(flow: Flow) -> Int8s:
    """The kinds of the rows of a flow that carries revisions."""
    kinds: Int8s = whole(flow.rows[KIND]).to_numpy()
    return kinds


def mended(flow: Flow) -> Flow:
    """A flow of which rows were taken out, or changed: a half that is alone is a deletion or an insertion, and a pair
    whose halves are equal is nothing (Borealis 3.2).
    """
    kind = signs(flow)
    if not len(kind) or not np.any(kind >= Kind.UPDATE_BEFORE):
        return flow
    first = pairs(flow, kind)
    alone = kind.copy()
    alone[kind == Kind.UPDATE_BEFORE] = Kind.DELETION
    alone[kind == Kind.UPDATE_AFTER] = Kind.INSERTION
    alone[first], alone[first + 1] = Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER
    same = first[_equal(flow, first, first + 1)]
    if np.any(alone != kind):
        at = flow.rows.schema.get_field_index(KIND)
        flow = flow.with_rows(flow.rows.set_column(at, flow.rows.schema.field(at), pa.array(alone)))
    if len(same):
        flow = flow.take(np.delete(np.arange(len(flow)), np.concatenate([same, same + 1])))
    return flow


def pairs(flow: Flow, kind: Int8s) -> Int64s:
    """Where the first halves of pairs stand."""
    halves = (kind[:-1] == Kind.UPDATE_BEFORE) & (kind[1:] == Kind.UPDATE_AFTER)
    first: Int64s = np.flatnonzero(halves & (flow.cause[:-1] == flow.cause[1:]))
    return first


def _equal(flow: Flow, one: Int64s, other: Int64s) -> NDArray[np.bool_]:
    """Whether the rows at these places are the same in their times and all columns."""
    same: NDArray[np.bool_] = flow.time[one] == flow.time[other]
    for name in flow.rows.column_names:
        if name != KIND and same.any():
            same &= equal_values(*(whole(flow.rows[name].take(pa.array(some))) for some in (one, other)))
    return same


def equal_values(one: pa.Array, other: pa.Array) -> NDArray[np.bool_]:
    """Whether values are the same: nulls are, NaNs are, and zero is not minus zero."""
    kind = one.type
    if pa.types.is_floating(kind):
        width = {16: np.uint16, 32: np.uint32, 64: np.uint64}[kind.bit_width]
        bits = [v.fill_null(0).to_numpy(zero_copy_only=False).view(width) for v in (one, other)]
        nulls = [v.is_null().to_numpy(zero_copy_only=False) for v in (one, other)]
        nans = [pc.is_nan(v).fill_null(False).to_numpy(zero_copy_only=False) for v in (one, other)]
        same: NDArray[np.bool_] = ((bits[0] == bits[1]) | (nans[0] & nans[1])) & (nulls[0] == nulls[1])
        return same
    if pa.types.is_nested(kind):
        pairs_of = zip(one.to_pylist(), other.to_pylist(), strict=True)
        return np.array([repr(a) == repr(b) for a, b in pairs_of], np.bool_)
    both = pc.equal(one, other).fill_null(False).to_numpy(zero_copy_only=False)
    neither = (one.is_null().to_numpy(zero_copy_only=False)) & (other.is_null().to_numpy(zero_copy_only=False))
    found: NDArray[np.bool_] = both | neither
    return found


def standing(changes: pa.Table) -> pa.Table:
    """What stands after all changes: the rows without what was taken back, in the order in which they came.

    >>> standing(pa.table({"_kind": ["+I", "+I", "-U", "+U", "-D"], "n": [1, 2, 1, 3, 2]})).to_pydict()
    {'n': [3]}
    """
    rows = changes.drop_columns([name for name in HEADER if name in changes.column_names])
    if KIND not in changes.column_names or not len(rows):
        return rows
    adds = np.isin(kinds_of(changes), (Kind.INSERTION, Kind.UPDATE_AFTER))
    columns = [_comparable(whole(column)) for column in rows.columns]
    which, _ = Groups([column.type for column in columns]).encode(columns, len(rows))
    left = np.bincount(which, np.where(adds, 1, -1)).astype(np.int64)
    if np.any(left < 0):
        at = int(np.flatnonzero(left[which] < 0)[0])
        raise OutputError(f"a change takes back a row that is not there: {rows.slice(at, 1).to_pylist()[0]}")
    came = np.flatnonzero(adds)
    order = came[np.argsort(which[came], kind="stable")]
    kept = order[rank_within(which[order]) < left[which[order]]]
    return rows.take(pa.array(np.sort(kept)))


def _comparable(column: pa.Array) -> pa.Array:
    nested = pa.types.is_nested(column.type)
    return pa.array([None if v is None else repr(v) for v in column.to_pylist()]) if nested else column
