"""A stream from another unit: its tuples have ids, times and boundaries already, given once by an entry point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.kernels.kinds import ends_halfway, second_halves
from borealis.streams.id_gaps import is_jump
from borealis.streams.section import Place, Section, joined
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME, Int64s


@dataclass(frozen=True)
class StreamInput:
    """An input of a unit that is a stream: its name in the unit."""

    name: str
    idle_us: int | None = None  # only entry points write boundaries
    slack_us: int = 0


@runtime_checkable
class SectionSource(Protocol):
    """Where the sections of a stream come from; they follow one another without a gap."""

    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        """The stream from a tuple id on, for a reader that knows of `boundary`; ends when the stream does."""
        ...


@dataclass(frozen=True)
class Relayed:
    """A section on its way into trains; what `entry.Admitted` is for rows from a source."""

    start: Cursor  # before the first row
    section: Section
    leaps: bool = False  # ids were left out, or tuples lost, right before it
    jumps: bool = False  # ids were left out there, in a recovery: it begins a train

    @property
    def rows(self) -> pa.Table:
        """The user's columns, and the times behind them."""
        return self.section.table()

    @property
    def late(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """None is: late ones are set aside at the entry point."""
        return np.zeros(len(self.section), np.bool_)

    @property
    def nbytes(self) -> int:
        return self.section.nbytes

    def __len__(self) -> int:
        return len(self.section)

    @cached_property
    def seconds(self) -> Int64s:
        """Where the second halves of pairs stand: each goes into the train of the first, as one event."""
        return second_halves(self.section.rows)

    def instead_of(self, gone: Relayed) -> Relayed:
        """The same, where what was right before it is left out: as if the stream had lost its tuples."""
        start, section = gone.start, self.section.bounded_since(gone.start.boundary)
        leaps, jumps = (a or b or len(gone) > 0 for a, b in ((self.leaps, gone.leaps), (self.jumps, gone.jumps)))
        return Relayed(replace(start, position=section.first), section, leaps, jumps)

    def goes_on(self, other: Relayed) -> bool:
        """Whether both can be one: nothing is between them."""
        early, late = other.section, self.section
        return not (self.leaps or self.jumps) and early.is_continued_by(late) and early.final == late.standing

    def whole(self, count: int) -> int:
        """So many rows, or one more, so that no pair is cut."""
        return count + 1 if count in self.seconds else count

    def cursor(self, stop: int) -> Cursor:
        """How far the stream has come after the first `stop` rows, before any boundary behind them."""
        upto = int(np.searchsorted(self.section.at, self.section.first + stop, "left"))
        boundary = int(self.section.bound[upto - 1]) if upto else self.start.boundary
        newest = max(self.start.newest, int(self.section.time[:stop].max())) if stop else self.start.newest
        return replace(self.start, position=self.section.first + stop, newest=newest, boundary=boundary)

    def split(self, stop: int) -> tuple[Relayed, Relayed]:
        """The first `stop` rows, and the rest."""
        at = self.section.first + stop
        head = Relayed(self.start, self.section.until(at), self.leaps, self.jumps)
        return head, Relayed(self.cursor(stop), self.section.since(at))

    def part(self, position: int, boundary: int) -> tuple[Relayed | None, Relayed | None]:
        """What is before a place, and what is behind it; None where that is nothing."""
        section = self.section
        if (section.stop, section.final) <= (position, boundary):
            return self, None
        if position < section.first or (position == section.first and boundary <= section.standing):
            return None, self
        head = section.until(position)
        at = section.at == position
        mine = at & (section.bound <= boundary)
        head = replace(head, at=np.append(head.at, section.at[mine]), bound=np.append(head.bound, section.bound[mine]))
        start = replace(self.cursor(len(head)), boundary=head.final)
        early = Relayed(self.start, head, self.leaps, self.jumps)
        return early, Relayed(start, section.since(position).above(head.final))

    @cached_property
    def row_events(self) -> Int64s:
        """Which event each row is: before it stand its boundaries, and a pair is one."""
        inside = self.section.at[self.section.at < self.section.stop] - self.section.first
        counted: Int64s = 1 + np.bincount(inside, minlength=len(self))
        counted[self.seconds] -= 1
        return np.cumsum(counted) - 1

    @property
    def bound_events(self) -> tuple[Int64s, Int64s]:
        """Which events are boundaries among the rows, and their times; those behind the last row are its tail."""
        inside = self.section.at < self.section.stop
        row = self.section.at[inside] - self.section.first
        behind = np.searchsorted(row, row, "right") - np.arange(len(row))  # this one and those after it at the row
        return self.row_events[row] - behind, self.section.bound[inside]

    @cached_property
    def reached(self) -> Int64s:
        """How far the stream has come with each event, those of the tail among them; its end takes it no further."""
        rows = int(self.row_events[-1]) + 1 if len(self) else 0
        at, bound = self.bound_events
        tail = np.array(self.tail(), np.int64)
        found = np.full(rows + len(tail), FIRST_TIME)
        np.maximum.at(found, self.row_events, self.section.time)
        found[at], found[rows:] = bound, np.where(tail == LAST_TIME, FIRST_TIME, tail)
        return np.maximum(np.maximum.accumulate(found), self.start.reached)

    def events_until(self, place: Place) -> int:
        """How many events are not behind a place."""
        (position, boundary), section = place, self.section
        if position > section.stop:
            return len(self.reached)
        if position < section.first:
            return 0
        rows = position - section.first
        before = int(self.row_events[rows - 1]) + 1 if rows else 0
        return before + int(((section.at == position) & (section.bound <= boundary)).sum())

    def part_at(self, event: int) -> tuple[Relayed, Relayed]:
        """The first events, and the rest; there must be some of each."""
        rows = int(np.searchsorted(self.row_events, event))
        bounds = event - len(np.unique(self.row_events[:rows]))
        boundary = int(self.section.bound[bounds - 1]) if bounds else self.section.standing
        early, late = self.part(self.section.first + rows, boundary)
        assert early is not None
        assert late is not None
        return early, late

    def ends_with_row(self, event: int) -> bool:
        """A boundary stands for itself: it may end anywhere."""
        return True

    def tail(self) -> tuple[int, ...]:
        """The boundaries behind the last row."""
        return tuple(self.section.bound[self.section.at >= self.section.stop].tolist())


class Relay:
    """Takes the sections of one stream in order. Not thread-safe: one thread admits."""

    refused = None
    time_column = TIME

    def __init__(self, spec: StreamInput, cursor: Cursor, gives_up: bool = False) -> None:
        self.spec, self.cursor = spec, cursor
        self._gives_up = gives_up  # what is missing was given up where the unit was before: that is a gap as well
        self._leapt = self._jumped = False  # before what comes next: nothing stood behind it so far
        self.half: Section | None = None  # the first half of a pair whose second has not come yet

    def admit(self, section: Section) -> Relayed:
        """The section as it goes into trains; boundaries that are known are dropped.

        It may begin behind the next tuple: a stream that says `full: drop` has lost what lies between, and counts it.
        """
        section = self._with_half(section)
        if section.first < self.cursor.position:
            raise ValueError(f"stream '{self.spec.name}': tuple {section.first} came after {self.cursor.position - 1}")
        section = section.above(self.cursor.boundary).bounded_since(self.cursor.boundary)
        missing = section.first > self.cursor.position
        given_up = missing and self._gives_up and self.cursor.position > 0
        leaps = self._leapt or missing
        jumps = self._jumped or given_up or is_jump(self.cursor.position, section.first)
        admitted = Relayed(replace(self.cursor, position=section.first), section, leaps, jumps)
        empty = not len(section) and not len(section.bound)
        self._leapt, self._jumped = empty and leaps, empty and jumps
        ended = section.final == LAST_TIME
        newest = max(self.cursor.newest, int(section.time.max())) if len(section) else self.cursor.newest
        self.cursor = replace(self.cursor, position=section.stop, boundary=section.final, newest=newest, ended=ended)
        return admitted

    def _with_half(self, section: Section) -> Section:
        """The section without a half at its end, and with the one that was kept. Ids that jump begin behind it: what it
        was half of comes again there, or is lost.
        """
        half, self.half = self.half, None
        if half is not None and half.is_continued_by(section):
            section = joined([half, section])
        if len(section) and ends_halfway(section.rows):
            self.half = section.since(section.stop - 1)
            section = section.until(section.stop - 1)
        return section

    @property
    def halves(self) -> int:
        """How many tuples came that are not admitted yet: one at most."""
        return 0 if self.half is None else len(self.half)

    def idle(self, boundary: int) -> int | None:
        """A stream's boundaries come with it."""
        return None

    def end(self) -> None:
        """Nothing to be done: the stream itself said so."""
