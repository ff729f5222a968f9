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
from borealis.tuples import HEADER, KIND, KIND_NAMES, Int8s, Int64s, Kind

Bools = NDArray[np.bool_]
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


def second_halves(rows: pa.RecordBatch) -> Int64s:
    """Where the second halves of pairs stand, in rows of a stream that carries revisions; of any other nowhere."""
    return _first_halves(_kinds_on_a_stream(rows)) + 1


def ends_halfway(rows: pa.RecordBatch) -> bool:
    """Whether the last row is the first half of a pair."""
    return bool(np.any(_kinds_on_a_stream(rows)[-1:] == Kind.UPDATE_BEFORE))


def _kinds_on_a_stream(rows: pa.RecordBatch) -> Int8s:
    named = rows.schema.names[-1:] == [KIND] and rows.schema.types[-1] == pa.int8()
    kinds: Int8s = rows.column(KIND).to_numpy() if named else np.empty(0, np.int8)
    return kinds


def pairs(flow: Flow, kind: Int8s) -> Int64s:
    """Where the first halves of pairs stand."""
    first = _first_halves(kind)
    of_one_cause: Int64s = first[flow.cause[first] == flow.cause[first + 1]]
    return of_one_cause


def _first_halves(kind: Int8s) -> Int64s:
    found: Int64s = np.flatnonzero((kind[:-1] == Kind.UPDATE_BEFORE) & (kind[1:] == Kind.UPDATE_AFTER))
    return found


def _equal(flow: Flow, one: Int64s, other: Int64s) -> Bools:
    """Whether the rows at these places are the same in their times and all columns."""
    both = np.concatenate([one, other])
    numbers = row_numbers(flow.rows.drop_columns([KIND]).take(pa.array(both)), flow.time[both])
    same: Bools = numbers[: len(one)] == numbers[len(one) :]
    return same


def adds(kind: Int8s) -> Bools:
    """Which rows add one; the others take one back."""
    found: Bools = (kind == Kind.INSERTION) | (kind == Kind.UPDATE_AFTER)
    return found


def row_numbers(rows: pa.Table, time: Int64s) -> Int64s:
    """A number for each row: equal for rows that are the same in time and in all columns.

    >>> row_numbers(pa.table({"x": [0.0, -0.0, None, None, 0.0]}), np.array([1, 1, 1, 1, 2])).tolist()
    [0, 1, 2, 2, 3]
    """
    _, numbers = np.unique(time, return_inverse=True)
    for column in rows.columns:
        values = identities(column)
        _, numbers = np.unique(numbers * (int(values.max(initial=0)) + 1) + values, return_inverse=True)
    return numbers.astype(np.int64, copy=False)


def identities(column: pa.Array | pa.ChunkedArray) -> Int64s:
    """A number for each value, the same for the same: nulls are, NaNs are, the two zeros are not.

    >>> identities(pa.array([0.0, -0.0, None, float("nan"), None])).tolist()
    [0, 1, 2, 3, 2]
    """
    values = whole(column)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), values)
    if pa.types.is_nested(values.type):
        values = pa.array([repr(value) for value in values.to_pylist()], pa.string())
    numbers: Int64s = values.dictionary_encode(null_encoding="encode").indices.to_numpy().astype(np.int64)
    return numbers


def standing(changes: pa.Table) -> pa.Table:
    """What stands after all changes: the rows without what was taken back, in the order in which they came.

    >>> standing(pa.table({"_kind": ["+I", "+I", "-U", "+U", "-D"], "n": [1, 2, 1, 3, 2]})).to_pydict()
    {'n': [3]}
    """
    rows = changes.drop_columns([name for name in HEADER if name in changes.column_names])
    if KIND not in changes.column_names or not len(rows):
        return rows
    come = adds(kinds_of(changes))
    which = row_numbers(rows, np.zeros(len(rows), np.int64))
    left = np.bincount(which, np.where(come, 1, -1)).astype(np.int64)
    if np.any(left < 0):
        at = int(np.flatnonzero(left[which] < 0)[0])
        raise OutputError(f"a change takes back a row that is not there: {rows.slice(at, 1).to_pylist()[0]}")
    came = np.flatnonzero(come)
    order = came[np.argsort(which[came], kind="stable")]
    kept = order[rank_within(which[order]) < left[which[order]]]
    return rows.take(pa.array(np.sort(kept)))
