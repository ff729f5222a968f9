"""What travels on a stream: consecutive tuples, and the boundaries among them.

Tuple ids count data tuples only. A boundary has no id of its own: it stands before the tuple with id `at`. Whoever has
read up to id n asks for what follows *from n*, gets the boundaries at n once more, and drops those that are not above
the one it has. So a stream can be taken up anywhere, and nobody sees two boundaries melt into one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import pyarrow as pa

from borealis.tuples import FIRST_TIME, LAST_TIME, TIME, Int64s

NOTHING: Int64s = np.empty(0, np.int64)


@dataclass(frozen=True)
class Section:
    """Tuples `first` to `stop` (exclusive) of a stream, in order, and the boundaries with `first <= at <= stop`."""

    first: int
    rows: pa.RecordBatch  # the user's columns
    time: Int64s  # `_time` of each tuple
    at: Int64s  # for each boundary the id of the tuple it stands before, not falling
    bound: Int64s  # the times of the boundaries, rising, each above `standing`
    standing: int = FIRST_TIME  # the boundary in force before all of this

    def __len__(self) -> int:
        return len(self.time)

    @property
    def stop(self) -> int:
        """The id behind the last tuple."""
        return self.first + len(self.time)

    @property
    def final(self) -> int:
        """The boundary in force after all of this."""
        return int(self.bound[-1]) if len(self.bound) else self.standing

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.final == LAST_TIME

    @cached_property  # Arrow takes its time to count
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return int(self.rows.nbytes) + 8 * len(self.time) + 16 * len(self.at) + 64

    def table(self) -> pa.Table:
        """The tuples with the columns of `wire_schema`: the user's, then their times."""
        return pa.table(self.rows).append_column(TIME, pa.array(self.time))

    def since(self, start: int) -> Section:
        """The tuples from `start` on, with the boundaries at `start` and later."""
        if start <= self.first:
            return self
        if start > self.stop:
            raise ValueError(f"nothing of tuples {self.first} to {self.stop} is behind {start}")
        skip = start - self.first
        kept = int(np.searchsorted(self.at, start, "left"))
        standing = int(self.bound[kept - 1]) if kept else self.standing
        return Section(start, self.rows.slice(skip), self.time[skip:], self.at[kept:], self.bound[kept:], standing)

    def until(self, stop: int) -> Section:
        """The tuples before `stop`, with the boundaries before `stop`; those at `stop` go with what follows."""
        if stop > self.stop:
            return self
        if stop < self.first:
            raise ValueError(f"nothing of tuples {self.first} to {self.stop} is before {stop}")
        n = stop - self.first
        kept = int(np.searchsorted(self.at, stop, "left"))
        return Section(
            self.first, self.rows.slice(0, n), self.time[:n], self.at[:kept], self.bound[:kept], self.standing
        )

    def above(self, boundary: int) -> Section:
        """The same for someone who knows of `boundary` already: lower boundaries are gone."""
        if boundary <= self.standing:
            return self
        kept = int(np.searchsorted(self.bound, boundary, "right"))
        return Section(self.first, self.rows, self.time, self.at[kept:], self.bound[kept:], boundary)


def section(
    first: int, rows: pa.Table | pa.RecordBatch, time: Int64s, at: Int64s, bound: Int64s, standing: int = FIRST_TIME
) -> Section:
    """A section from rows in whatever form they are."""
    if isinstance(rows, pa.Table):
        rows = _one_batch(rows.to_batches(), rows.schema)
    return Section(first, rows, time, at, bound, standing)


def empty_rows(schema: pa.Schema) -> pa.RecordBatch:
    """No rows of these columns."""
    return pa.record_batch([pa.array([], f.type) for f in schema], schema=schema)


def boundary_only(first: int, schema: pa.Schema, bound: Int64s, standing: int) -> Section:
    """Boundaries before tuple `first`, and no tuples."""
    return Section(first, empty_rows(schema), NOTHING, np.full(len(bound), first, np.int64), bound, standing)


def joined(parts: list[Section]) -> Section:
    """Sections that follow one another, as one."""
    if len(parts) == 1:
        return parts[0]
    if any(late.first != early.stop for early, late in pairwise(parts)):
        raise ValueError(f"sections that do not follow one another: {[(p.first, p.stop) for p in parts]}")
    return Section(
        parts[0].first,
        _one_batch([p.rows for p in parts if len(p)], parts[0].rows.schema),
        np.concatenate([p.time for p in parts]),
        np.concatenate([p.at for p in parts]),
        np.concatenate([p.bound for p in parts]),
        parts[0].standing,
    )


def _one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) > 1:
        return pa.concat_batches(batches)
    return batches[0] if batches else empty_rows(schema)


def wire_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a stream as they travel: the user's, then `_time`."""
    return schema.append(pa.field(TIME, pa.int64(), nullable=False))
