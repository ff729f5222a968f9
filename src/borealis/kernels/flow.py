"""What travels along one arrow during one train: rows in order, and the boundaries between them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.of_schema import OfSchema
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s

NOTHING: Int64s = np.empty(0, np.int64)
HEAD = (CAUSE, SUB, TIME)  # the first columns of rows that a kernel holds


@dataclass(frozen=True)
class Bounds:
    """The boundaries on an arrow. `standing` held before the train; each later one has a cause of its own.

    Rows of a cause come before the boundary of the same cause.
    """

    standing: int = FIRST_TIME
    cause: Int64s = field(default_factory=lambda: NOTHING)
    time: Int64s = field(default_factory=lambda: NOTHING)  # strictly rising, each above `standing`

    @property
    def final(self) -> int:
        """The boundary that stands after the train."""
        return int(self.time[-1]) if len(self.time) else self.standing

    def at(self, cause: Int64s) -> Int64s:
        """The boundary in force when rows of these causes come. Where they rise, as in a flow, that is one copy."""
        every = behind_one(self.standing, self.time)
        if np.any(cause[1:] < cause[:-1]):
            return every[np.searchsorted(self.cause, cause, "left")]
        start = np.searchsorted(cause, self.cause, "right")
        return between(every, start, len(cause))

    def behind(self, us: int) -> Bounds:
        """The same so much earlier; the end of a stream stays where it is."""
        standing, *time = (behind(one, us) for one in (self.standing, *self.time.tolist()))
        later = np.array(time, np.int64)
        rises = later > behind_one(standing, later[:-1]) if len(later) else np.empty(0, np.bool_)
        return Bounds(standing, self.cause[rises], later[rises])


@dataclass(frozen=True)
class Flow:
    """Rows sorted by (cause, sub), unique in it. The arrays have one entry per row.

    On arrows that carry revisions the last column of the rows is their `Kind`: without it, all are insertions.
    """

    rows: pa.Table
    time: Int64s
    cause: Int64s
    sub: Int64s
    bounds: Bounds

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def on_time(self) -> bool:
        """Whether no row lies behind the boundary at it."""
        start = behind_one(0, self.cause.searchsorted(self.bounds.cause, "right"))
        filled = start < np.append(start[1:], len(self))
        if not filled.any():
            return True
        least = np.minimum.reduceat(self.time, start[filled])
        return bool(np.all(least >= behind_one(self.bounds.standing, self.bounds.time)[filled]))

    def take(self, index: Int64s) -> Flow:
        """The rows at these places, in this order; the caller keeps (cause, sub) sorted."""
        return self.at(index, self.rows.take(pa.array(index)))

    def at(self, index: Int64s, rows: pa.Table) -> Flow:
        """The same with rows that were taken already."""
        return Flow(rows, self.time[index], self.cause[index], self.sub[index], self.bounds)

    def with_rows(self, rows: pa.Table) -> Flow:
        """The same tuples with other columns."""
        return replace(self, rows=rows)

    def held(self, schema: pa.Schema) -> pa.Table:
        """The rows as a kernel holds them, with this `held_schema`."""
        head = [pa.array(self.cause), pa.array(self.sub), pa.array(self.time)]
        return pa.Table.from_arrays([*head, *self.rows.select(schema.names[len(HEAD) :]).columns], schema=schema)


def held_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(name, pa.int64()) for name in HEAD] + list(schema))


_empty = OfSchema(lambda schema: schema.empty_table())


def empty_flow(schema: pa.Schema, bounds: Bounds) -> Flow:
    return Flow(_empty(schema), NOTHING, NOTHING, NOTHING, bounds)


def behind_one(first: int, values: Int64s) -> Int64s:
    """These values, and one before them."""
    found = np.empty(len(values) + 1, np.int64)
    found[0], found[1:] = first, values
    return found


def behind(boundary: int, by: int) -> int:
    """So far behind a boundary, not before the beginning of time; of a stream that has ended nothing is behind."""
    return boundary if boundary == LAST_TIME else max(boundary, FIRST_TIME + by) - by


def merge_bounds(inputs: list[Bounds]) -> Bounds:
    """The boundaries of a box with several inputs: the least of theirs, at the cause that raised it."""
    standing = min(b.standing for b in inputs)
    if len(inputs) == 1:
        return inputs[0]
    if not any(len(b.cause) for b in inputs):
        return Bounds(standing)
    cause = np.concatenate([b.cause for b in inputs])
    which = np.concatenate([np.full(len(b.cause), i) for i, b in enumerate(inputs)])
    time = np.concatenate([b.time for b in inputs])
    order = np.argsort(cause, kind="stable")
    cause, which, time = cause[order], which[order], time[order]
    least = np.full(len(cause), LAST_TIME)
    for i, b in enumerate(inputs):
        seen = np.where(which == i, time, b.standing)
        least = np.minimum(least, np.maximum.accumulate(seen))
    # several inputs may have a boundary of the same cause: what counts is the least after all of them
    last_of_cause = np.append(cause[1:] != cause[:-1], True)
    cause, least = cause[last_of_cause], least[last_of_cause]
    rose = least > np.maximum.accumulate(np.concatenate(([standing], least[:-1])))
    return Bounds(standing, cause[rose], least[rose])


def between(values: Int64s, at: Int64s, many: int) -> Int64s:
    """For each of so many rows one value: the first for those before `at[0]`, the next from there on.

    >>> between(np.array([5, 6, 7]), np.array([1, 3]), 4).tolist()
    [5, 6, 6, 7]
    """
    return np.repeat(values, np.diff(at, prepend=0, append=many))


def rank_within(cause: Int64s) -> Int64s:
    """0, 1, 2 ... within each run of equal causes.

    >>> rank_within(np.array([3, 3, 7, 8, 8, 8])).tolist()
    [0, 1, 0, 0, 1, 2]
    """
    n, new = len(cause), differs(cause)
    if new.all():
        return np.zeros(n, np.int64)
    starts = np.flatnonzero(new)
    if 2 * len(starts) < n:
        return np.arange(n) - np.repeat(starts, np.diff(np.append(starts, n)))
    rank = np.zeros(n, np.int64)
    again = np.flatnonzero(~new)
    starts = np.flatnonzero(differs(again - np.arange(len(again))))
    rank[again] = again + 1 - np.repeat(again[starts], np.diff(np.append(starts, len(again))))
    return rank


def differs(values: Int64s) -> NDArray[np.bool_]:
    """Whether each is another than the one before it; the first is."""
    found = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=found[1:])
    return found
