"""Rows that correct earlier ones: the kinds that users write, and pairs of rows that belong together.

A replacement is a pair: the row that goes and, right behind it and of the same cause, the row that comes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.errors import OutputError
from borealis.kernels.columns import to_numpy, whole
from borealis.kernels.flow import NOTHING, Flow, rank_within
from borealis.of_schema import OfSchema
from borealis.tuples import HEADER, KIND, KIND_NAMES, Int8s, Int64s, Kind

Bools = NDArray[np.bool_]
INSERTION, DELETION, UPDATE_BEFORE, UPDATE_AFTER = map(np.int8, Kind)  # an enum takes its time to give one
UNKNOWN = -1  # what stands for no kind
NO_KIND = f"no kind that is known (one of {', '.join(KIND_NAMES)})"  # what a row has that has such a one


def kinds_of(rows: pa.Table | pa.RecordBatch) -> Int8s:
    """The kinds of an input's rows, as users write them: insertions where nothing is said.

    >>> kinds_of(pa.table({"_kind": ["-D", None, "+U", "", "?"]})).tolist()
    [1, 0, 3, 0, -1]
    """
    if KIND not in rows.schema.names or rows.column(KIND).null_count == rows.num_rows:
        return np.zeros(rows.num_rows, np.int8)
    given = whole(rows.column(KIND))
    letters = _two_letters(given)
    if letters is not None:
        kinds = np.zeros(len(letters), np.int8)
        others = np.flatnonzero(letters != _PLUS_I)  # few, as a rule
        kinds[others] = _BY_LETTERS[letters[others]]
        return kinds
    found = pc.index_in(given.fill_null(""), pa.array([*KIND_NAMES, ""])).fill_null(UNKNOWN).to_numpy().astype(np.int8)
    return np.where(found == len(KIND_NAMES), INSERTION, found)


def _two_letters(given: pa.Array) -> NDArray[np.uint16] | None:
    """Texts as one number each, if all have two bytes, as every kind has."""
    if given.null_count or given.type != pa.string():
        return None
    _, offsets, data = given.buffers()
    ends = np.frombuffer(offsets, np.int32, len(given) + 1, 4 * given.offset)
    if not np.all(ends[1:] - ends[:-1] == 2):
        return None
    return np.frombuffer(data, np.uint16, len(given), int(ends[0]))


_BY_LETTERS: Int8s = np.full(1 << 16, UNKNOWN, np.int8)
_LETTERS = np.frombuffer("".join(KIND_NAMES).encode(), np.uint16)
_BY_LETTERS[_LETTERS] = range(len(KIND_NAMES))
_PLUS_I = _LETTERS[INSERTION]


def takes_back(rows: pa.Table | pa.RecordBatch) -> Bools | None:
    """Which of an input's rows take another back, and so need no time of their own; None if none does.

    >>> takes_back(pa.table({"_kind": ["-D", None, "+U"]}))
    array([ True, False, False])
    """
    if KIND not in rows.schema.names:
        return None
    kinds = kinds_of(rows)
    found: Bools = (kinds == DELETION) | (kinds == UPDATE_BEFORE)
    return found if found.any() else None


def signs(flow: Flow) -> Int8s:
    """The kinds of the rows of a flow that carries revisions."""
    kinds: Int8s = whole(flow.rows[KIND]).to_numpy()
    return kinds


def mended(flow: Flow) -> Flow:
    """A flow of which rows were taken out, or changed: a half that is alone is a deletion or an insertion, and a pair
    whose halves are equal is nothing (Borealis 3.2).
    """
    kind = signs(flow)
    if not len(kind) or not np.any(kind >= UPDATE_BEFORE):
        return flow
    first = pairs(flow, kind)
    same = first[_equal(flow, first, first + 1)]
    if np.count_nonzero(kind >= UPDATE_BEFORE) > 2 * len(first):
        alone = kind.copy()
        alone[kind == UPDATE_BEFORE] = DELETION
        alone[kind == UPDATE_AFTER] = INSERTION
        alone[first], alone[first + 1] = UPDATE_BEFORE, UPDATE_AFTER
        at = flow.rows.schema.get_field_index(KIND)
        flow = flow.with_rows(flow.rows.set_column(at, flow.rows.schema.field(at), pa.array(alone)))
    if len(same):
        flow = flow.take(np.delete(np.arange(len(flow)), np.concatenate([same, same + 1])))
    return flow


def second_halves(rows: pa.RecordBatch) -> Int64s:
    """Where the second halves of pairs stand, in rows of a stream that carries revisions; of any other nowhere."""
    return _first_halves(rows.column(KIND).to_numpy()) + 1 if _has_kinds(rows.schema) else NOTHING


def ends_halfway(rows: pa.RecordBatch) -> bool:
    """Whether the last row is the first half of a pair."""
    return _has_kinds(rows.schema) and bool((rows.column(KIND).to_numpy()[-1:] == UPDATE_BEFORE).any())


@OfSchema
def _has_kinds(schema: pa.Schema) -> bool:
    """Whether these are the columns of a stream that carries revisions."""
    return bool(schema.names[-1:] == [KIND] and schema.types[-1] == pa.int8())


def pairs(flow: Flow, kind: Int8s) -> Int64s:
    """Where the first halves of pairs stand."""
    halves = (kind[:-1] == UPDATE_BEFORE) & (kind[1:] == UPDATE_AFTER)
    return np.flatnonzero(halves & (flow.cause[:-1] == flow.cause[1:]))


def _first_halves(kind: Int8s) -> Int64s:
    found: Int64s = np.flatnonzero((kind[:-1] == UPDATE_BEFORE) & (kind[1:] == UPDATE_AFTER))
    return found


def _equal(flow: Flow, one: Int64s, other: Int64s) -> Bools:
    """Whether the rows at these places are the same in their times and all columns. The last column is looked at first:
    what is computed stands behind what it is computed for, and there most differ."""
    same = np.ones(len(one), np.bool_)
    for name in reversed([name for name in flow.rows.column_names if name != KIND]):
        keep_equal(same, flow.rows[name], one, other)
    if same.any():
        same[same] = flow.time[one[same]] == flow.time[other[same]]
    return same


def adds(kind: Int8s) -> Bools:
    """Which rows add one; the others take one back."""
    found: Bools = (kind == INSERTION) | (kind == UPDATE_AFTER)
    return found


def row_numbers(rows: pa.Table, time: Int64s) -> Int64s:
    """A number for each row: equal for rows that are the same in time and in all columns.

    >>> row_numbers(pa.table({"x": [0.0, -0.0, None, None, 0.0]}), np.array([1, 1, 1, 1, 2])).tolist()
    [0, 1, 2, 2, 3]
    """
    numbers = np.zeros(len(time), np.int64)
    if np.any(time[1:] != time[:-1]):
        _, numbers = np.unique(time, return_inverse=True)
    for column in rows.columns:
        values = identities(column)
        if not numbers.any():
            numbers = values
            continue
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


def equal_at(column: pa.Array | pa.ChunkedArray, one: Int64s, other: Int64s) -> Bools:
    """Whether a column has the same at these places, as `identities` tells it.

    >>> equal_at(pa.array([1, 2, 1]), np.array([0, 0]), np.array([1, 2])).tolist()
    [False, True]
    """
    values, kind = whole(column), column.type
    if values.null_count or not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        values = values.take(pa.array(np.concatenate([one, other])))
        one, other = np.arange(len(one)), np.arange(len(one), len(values))
        numbers = identities(values)
    else:
        numbers = to_numpy(values)
    same: Bools = numbers[one] == numbers[other]
    return same


def keep_equal(same: Bools, column: pa.Array | pa.ChunkedArray, one: Int64s, other: Int64s) -> None:
    """Of pairs of places that are the same so far, leave those that are so in this column, too."""
    if same.all():
        same &= equal_at(column, one, other)
    elif same.any():
        same[same] = equal_at(column, one[same], other[same])


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
