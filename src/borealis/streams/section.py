"""What travels on a stream: consecutive tuples, and the boundaries among them.

Tuple ids count data tuples only. A boundary has no id of its own: it stands before the tuple with id `at`. A reader
that has read up to id n asks for what follows *from n*, gets the boundaries at n once more, and drops those that are
not above the one it has. So a stream can be taken up anywhere, and no reader sees two boundaries melt into one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.of_schema import OfSchema
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME, Int64s, kinds_apart, with_header

NOTHING: Int64s = np.empty(0, np.int64)
Place = tuple[int, int]  # in a stream: the id of the next tuple, and the boundary in force


@dataclass(frozen=True)
class Section:
    """Tuples `first` to `stop` (exclusive) of a stream, in order, and the boundaries with `first <= at <= stop`.

    On streams that carry revisions the last column is the tuples' `Kind`: without it, all are insertions. A section is
    stable, or tentative as a whole: then its ids are those of a fork, from where the stable ones stopped. One with
    `undo` has no tuples: it says that all tentative ones are void, and that stable ones go on at `first`. One with
    `done` has none either: behind an undo, it says that all that was void has come as it is right.
    """

    first: int
    rows: pa.RecordBatch  # the user's columns
    time: Int64s  # `_time` of each tuple
    at: Int64s  # for each boundary the id of the tuple it stands before, not falling
    bound: Int64s  # the times of the boundaries, rising, each above `standing`
    standing: int = FIRST_TIME  # the boundary in force before all of this
    fork: str = ""  # by whose name it is tentative; empty: it is stable
    undo: bool = False
    done: bool = False  # recovery is
    on_disk: bool = False  # its rows are, and take memory only while they are read

    def __len__(self) -> int:
        return len(self.time)

    @property
    def stop(self) -> int:
        """The id behind the last tuple."""
        return self.first + len(self.time)

    @property
    def stable(self) -> bool:
        return not self.fork

    @property
    def final(self) -> int:
        """The boundary in force after all of this."""
        return int(self.bound[-1]) if len(self.bound) else self.standing

    @property
    def ended(self) -> bool:
        return self.final == LAST_TIME

    @cached_property  # Arrow takes its time to count
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return int(self.rows.nbytes) + 8 * len(self.time) + 16 * len(self.at) + 64

    def batch(self, schema: pa.Schema | None = None) -> pa.RecordBatch:
        """The tuples with the columns of `wire_schema`: their own, then their times."""
        columns = [*self.rows.columns, _column(pa.int64(), self.time, np.int64)]
        return pa.RecordBatch.from_arrays(columns, schema=schema or wire_schema(self.rows.schema))

    def table(self) -> pa.Table:
        return pa.Table.from_batches([self.batch()])

    def with_header(self) -> pa.Table:
        """The tuples with their headers in front, as users see them."""
        rows, kind = kinds_apart(pa.table(self.rows))
        return with_header(rows, self.first, self.time, kind, self.stable)

    def since(self, start: int) -> Section:
        """The tuples from `start` on, with the boundaries at `start` and later."""
        if start <= self.first:
            return self
        if start > self.stop:
            raise ValueError(f"nothing of tuples {self.first} to {self.stop} is behind {start}")
        gone = int(np.searchsorted(self.at, start, "left"))
        standing = int(self.bound[gone - 1]) if gone else self.standing
        rest = self._tuples(start - self.first, len(self))
        return replace(
            rest, first=start, at=self.at[gone:], bound=self.bound[gone:], standing=standing, undo=False, done=False
        )

    def until(self, stop: int) -> Section:
        """The tuples before `stop`, with the boundaries before `stop`; those at `stop` go with what follows."""
        if stop > self.stop:
            return self
        if stop < self.first:
            raise ValueError(f"nothing of tuples {self.first} to {self.stop} is before {stop}")
        return self.begin(stop, int(np.searchsorted(self.at, stop, "left")))

    def begin(self, stop: int, boundaries: int) -> Section:
        """The tuples before `stop`, and so many boundaries."""
        return replace(self._tuples(0, stop - self.first), at=self.at[:boundaries], bound=self.bound[:boundaries])

    def above(self, boundary: int) -> Section:
        """The same for a reader that knows of `boundary` already: lower boundaries are gone."""
        if boundary <= self.standing:
            return self
        gone = int(np.searchsorted(self.bound, boundary, "right"))
        return self.bounded(self.at[gone:], self.bound[gone:], boundary)

    def bounded(self, at: Int64s, bound: Int64s, standing: int) -> Section:
        """The same tuples among other boundaries."""
        return replace(self, at=at, bound=bound, standing=standing)

    def bounded_since(self, boundary: int) -> Section:
        """The same for a reader that knows of an earlier boundary only: the one in force comes before all of it."""
        if boundary >= self.standing:
            return self
        return self.bounded(np.insert(self.at, 0, self.first), np.insert(self.bound, 0, self.standing), boundary)

    def bare(self) -> Section:
        """Where it begins, without tuples or boundaries."""
        return boundary_only(self.first, self.rows.schema, NOTHING, self.standing)

    def is_continued_by(self, other: Section) -> bool:
        """Whether both can be one: nothing is between them, and what holds for the one holds for the other."""
        return other.first == self.stop and other.fork == self.fork and not (other.undo or other.done)

    def before_end(self) -> Section:
        """Without the boundary that ends the stream, its last."""
        return self.bounded(self.at[:-1], self.bound[:-1], self.standing)

    def cut(self, most_bytes: int) -> Section:
        """Its beginning, about so large; one tuple at least."""
        one = self
        while len(one) > 1 and (size := one.nbytes) > most_bytes:
            one = one.until(one.first + min(len(one) - 1, max(1, len(one) * most_bytes // size)))
        return one

    def upto(self, place: Place) -> Section:
        """What is not behind a place: tuples before its id, boundaries up to it and, at its id, up to its own.

        The section must not begin behind that id.
        """
        stop, bound = place
        if (self.stop, self.final) <= place:
            return self
        before, at_stop = (int(np.searchsorted(self.at, stop, side)) for side in ("left", "right"))
        return self.begin(stop, before + int(np.searchsorted(self.bound[before:at_stop], bound, "right")))

    def check(self) -> None:
        """A ValueError if it is no section at all."""
        if self.rows.num_rows != len(self.time):
            raise ValueError(f"a section with {self.rows.num_rows} rows and {len(self.time)} times")
        at, bound = self.at, self.bound
        if len(at) != len(bound):
            raise ValueError(f"a section with {len(bound)} boundaries at {len(at)} ids")
        if not len(at):
            return
        if at[0] < self.first or at[-1] > self.stop or (len(at) > 1 and (at[1:] < at[:-1]).any()):
            raise ValueError(f"boundaries out of place: {at} in tuples {self.first} to {self.stop}")
        if bound[0] <= self.standing or (len(bound) > 1 and (bound[1:] <= bound[:-1]).any()):
            raise ValueError(f"boundaries do not rise: {bound} after {self.standing}")

    def _tuples(self, start: int, stop: int) -> Section:
        return replace(self, rows=self.rows.slice(start, stop - start), time=self.time[start:stop])


def section(
    first: int, rows: pa.Table | pa.RecordBatch, time: Int64s, at: Int64s, bound: Int64s, standing: int = FIRST_TIME
) -> Section:
    """A section from rows in whatever form they are."""
    if isinstance(rows, pa.Table):
        rows = _one_batch(rows.to_batches(), rows.schema)
    return Section(first, rows, time, at, bound, standing)


def from_batch(batch: pa.RecordBatch, schema: pa.Schema, first: int, bounds: tuple[Int64s, Int64s, int]) -> Section:
    """A section from `Section.batch`; `schema` has the columns before the times, `bounds` what stands where."""
    rows = pa.RecordBatch.from_arrays(batch.columns[: len(schema)], schema=schema)
    return Section(first, rows, _numbers(batch.columns[len(schema)], np.int64), *bounds)


def _column(kind: pa.DataType, numbers: NDArray[Any], plain: type[np.generic]) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(numbers, plain))
    return pa.Array.from_buffers(kind, len(numbers), [None, data])  # `pa.array` would load pandas for this


def _numbers(column: pa.Array, kind: type[np.generic]) -> NDArray[Any]:
    """The numbers of a column without nulls, where they are; Arrow's own `to_numpy` would load pandas for this."""
    data, size = column.buffers()[1], np.dtype(kind).itemsize
    return np.empty(0, kind) if data is None else np.frombuffer(data, kind, len(column), column.offset * size)


@OfSchema
def empty_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([], f.type) for f in schema], schema=schema)


def boundary_only(first: int, schema: pa.Schema, bound: Int64s, standing: int) -> Section:
    """Boundaries before tuple `first`, and no tuples."""
    return Section(first, empty_rows(schema), NOTHING, np.full(len(bound), first, np.int64), bound, standing)


def joined(parts: list[Section]) -> Section:
    """Sections that follow one another, as one."""
    if len(parts) == 1:
        return parts[0]
    if not all(early.is_continued_by(late) for early, late in pairwise(parts)):
        raise ValueError(f"sections that do not follow one another: {[(p.first, p.stop) for p in parts]}")
    return replace(
        parts[0],
        rows=_one_batch([p.rows for p in parts if len(p)], parts[0].rows.schema),
        time=np.concatenate([p.time for p in parts]),
        at=np.concatenate([p.at for p in parts]),
        bound=np.concatenate([p.bound for p in parts]),
        on_disk=False,
    )


def _one_batch(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) > 1:
        return pa.concat_batches(batches)
    return batches[0] if batches else empty_rows(schema)


@OfSchema
def wire_schema(schema: pa.Schema) -> pa.Schema:
    """The columns of a stream as they travel: the tuples' own, and behind them their times."""
    return schema.append(pa.field(TIME, pa.int64(), nullable=False))
