"""An entry point: where tuples get their ids, times and boundaries, once and for all.

Everything downstream (lateness, window closing, eviction) depends on where boundaries stand among the tuples, so they
are a function of the tuples alone: before the tuple that lifts `newest time - slack` over the next multiple of the
input's pace stands a boundary with that multiple. Only idleness looks at a clock, and what it writes is part of the
stream like any other boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from borealis.diagram.durations import about
from borealis.diagram.spec import Input
from borealis.errors import InputError
from borealis.kernels.flow import NOTHING, behind_one, between
from borealis.kernels.kinds import NO_KIND, UNKNOWN, adds, kinds_of
from borealis.kernels.time_of import TimeOf
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME, Int8s, Int64s, Kind

FEW = 16  # rows for each boundary that may be among them: with fewer, all rows are looked at


@dataclass(frozen=True)
class Cursor:
    """How far an input has come: what a restart needs to go on at the same tuple with the same boundaries."""

    position: int = 0  # tuples taken from the source
    newest: int = FIRST_TIME  # the largest time seen
    boundary: int = FIRST_TIME
    late: int = 0
    lateness: int = 0  # the largest distance of a late tuple behind the boundary, microseconds
    ended: bool = False

    @property
    def reached(self) -> int:
        """The largest time of a tuple or boundary so far."""
        return max(self.newest, self.boundary if self.boundary < LAST_TIME else FIRST_TIME)


@dataclass(frozen=True)
class Admitted:
    """A batch with its times; just before the row `at[k]` stands the boundary `bound[k]`."""

    start: Cursor  # before the first row
    rows: pa.Table
    time: Int64s
    newest: Int64s  # the largest time up to and including each row
    at: Int64s
    bound: Int64s
    late: np.ndarray[tuple[int], np.dtype[np.bool_]]

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return int(self.rows.nbytes)

    def whole(self, count: int) -> int:
        """So many rows: each stands for itself."""
        return count

    @cached_property
    def row_events(self) -> Int64s:
        """Which event each row is: before it stands its boundary if there is one."""
        return np.arange(len(self)) + between(np.arange(len(self.at) + 1), self.at, len(self))

    @property
    def bound_events(self) -> tuple[Int64s, Int64s]:
        """Which events are boundaries, and their times."""
        return self.at + np.arange(len(self.at)), self.bound

    @cached_property
    def reached(self) -> Int64s:
        """How far the input has come with each event; with a boundary as far as with the row behind it."""
        return np.repeat(self.newest, np.diff(self.row_events, prepend=-1))

    def part_at(self, event: int) -> tuple[Admitted, Admitted]:
        """The rows of the first events, and the rest."""
        return self.split(int(np.searchsorted(self.row_events, event)))

    def ends_with_row(self, event: int) -> bool:
        """Whether the first so many events end with a row; a boundary is not cut off the row behind it."""
        return event == 0 or event - 1 in self.row_events

    def tail(self) -> tuple[int, ...]:
        """The boundaries behind the last row: none is known before the next row comes."""
        return ()

    def cursor(self, stop: int) -> Cursor:
        """How far the input has come after the first `stop` rows."""
        if not stop:
            return self.start
        late = np.flatnonzero(self.late[:stop])
        stands = self.standing(late)
        behind = int((stands.view(np.uint64) - self.time[late].view(np.uint64)).max()) if len(late) else 0
        return Cursor(
            self.start.position + stop,
            int(self.newest[stop - 1]),
            int(self.standing(np.array([stop - 1]))[0]),
            self.start.late + len(late),
            max(self.start.lateness, min(behind, LAST_TIME)),
        )

    def standing(self, rows: Int64s) -> Int64s:
        """The boundaries that stand when these rows come."""
        return behind_one(self.start.boundary, self.bound)[np.searchsorted(self.at, rows, side="right")]

    def split(self, stop: int) -> tuple[Admitted, Admitted]:
        """The first `stop` rows, and the rest."""
        near, at, bound = int(np.searchsorted(self.at, stop)), self.at, self.bound
        head = self.rows.slice(0, stop), self.time[:stop], self.newest[:stop], at[:near], bound[:near]
        tail = self.rows.slice(stop), self.time[stop:], self.newest[stop:], at[near:] - stop, bound[near:]
        return Admitted(self.start, *head, self.late[:stop]), Admitted(self.cursor(stop), *tail, self.late[stop:])


class EntryPoint:
    """Admits batches of one input in order. Not thread-safe: one thread admits.

    `time` says how a row gets its time; it must be given where the input's time is an expression.
    """

    def __init__(self, spec: Input, pace_us: int, cursor: Cursor, time: TimeOf | None = None) -> None:
        self.spec, self.pace, self.cursor = spec, pace_us, cursor
        self.time = time or TimeOf(spec.time)
        self._slack_us = spec.slack_us
        self.refused: InputError | None = None  # what is wrong with the row behind the last one admitted

    def admit(self, batch: pa.Table | pa.RecordBatch) -> Admitted:
        """Give a batch its times and boundaries. Only the rows before one that is `refused` are admitted."""
        cursor, spec, rows = self.cursor, self.spec, pa.table(batch)
        kind = kinds_of(rows) if spec.key else None
        time, newest, fault = self._times(rows, kind)
        if fault is not None:
            self.refused = InputError(
                f"input '{spec.name}': row {cursor.position + len(time) + 1} has {fault}",
                hint="drop or repair such rows before they enter",
            )
            rows = rows.slice(0, len(time))
        n = len(time)
        if not n:
            return Admitted(cursor, rows, NOTHING, NOTHING, NOTHING, NOTHING, np.empty(0, np.bool_))
        if newest[0] < cursor.newest:
            newest = np.maximum(newest, cursor.newest)
        at, bound = self._rises(newest)
        late = np.zeros(n, np.bool_)
        if spec.late != "revise":
            late = time < between(behind_one(cursor.boundary, bound), at, n)
        if kind is not None:  # what corrects a row is not late, however old that is
            late &= kind[:n] == Kind.INSERTION
        admitted = Admitted(cursor, rows, time, newest, at, bound, late)
        if spec.late == "fail" and late.any():
            first = int(np.flatnonzero(late)[0])
            behind = about(int(admitted.standing(np.array([first]))[0]) - int(time[first]))
            self.refused = InputError(
                f"input '{spec.name}': row {cursor.position + first + 1} is late by {behind}",
                hint="raise slack, or set late: keep to have late tuples set aside",
            )
            admitted, _ = admitted.split(first)
        self.cursor = admitted.cursor(len(admitted))
        return admitted

    def _times(self, rows: pa.Table, kind: Int8s | None) -> tuple[Int64s, Int64s, str | None]:
        """The times of the rows before the first that has none, or no kind, the newest up to each, and what that one
        has instead.

        A row that takes another back need not have a time: it comes at the newest time so far.
        """
        unknown = np.flatnonzero(kind == UNKNOWN) if kind is not None else np.empty(0, np.int64)
        if len(unknown):
            rows = rows.slice(0, int(unknown[0]))
        time, fault = self.time.until_fault(rows)
        newest = np.maximum.accumulate(time)
        if kind is not None and len(back := np.flatnonzero(~adds(kind[: len(time)]))):
            time[back] = np.maximum(newest[back], self.cursor.newest)
        if fault is not None:
            return time, newest, f"no time ({fault})"
        return time, newest, NO_KIND if len(unknown) else None

    @property
    def time_column(self) -> str:
        """Where a train's workers find the time of a tuple: in a column of the user's, or in one that is added."""
        return TIME if self.time.expr is not None or self.spec.key else self.spec.time

    def _rises(self, newest: Int64s) -> tuple[Int64s, Int64s]:
        """Before which rows a boundary stands, and which."""
        standing = self.cursor.boundary
        first, last = self._held(newest[[0, -1]]).tolist()
        if last <= standing:
            return NOTHING, NOTHING
        low = max(first, standing)
        if last // self.pace - low // self.pace > len(newest) // FEW:
            held = self._held(newest)
            at = np.flatnonzero(held[1:] > np.maximum(held[:-1], standing)) + 1
        else:  # each multiple is looked for
            multiples = np.arange(low // self.pace + 1, last // self.pace + 1) * self.pace
            at = np.unique(np.searchsorted(newest, multiples + self._slack_us))
        if first > standing:
            at = np.append(0, at)
        return at, self._held(newest[at])

    def _held(self, newest: Int64s) -> Int64s:
        """The multiples of the pace at or before `newest - slack`; where there is no such time, FIRST_TIME."""
        first = FIRST_TIME + -FIRST_TIME % self.pace + self._slack_us
        if first > LAST_TIME:
            return np.full(len(newest), FIRST_TIME)
        held = np.maximum(newest, first) - self._slack_us
        return np.where(newest < first, FIRST_TIME, held - np.mod(held, self.pace))

    def idle(self, boundary: int) -> int | None:
        """Write a boundary although nothing arrived; returns it rounded to the pace, or None when it would not rise."""
        rounded = boundary - boundary % self.pace
        if self.cursor.ended or rounded <= self.cursor.boundary:
            return None
        self.cursor = replace(self.cursor, boundary=rounded)
        return rounded

    def end(self) -> None:
        """Nothing comes any more: the boundary goes to the end of time."""
        self.cursor = replace(self.cursor, boundary=LAST_TIME, ended=True)
