"""What a queue holds of its stream: sections, from the oldest id that is held to the next one to come.

A reader's place in a stream is a pair: the id of the next tuple, and the boundary it knows of. Sections are held in the
order of the places behind them, so finding what follows a place is one bisection. Boundaries at the oldest held id stay
when the tuples before it go: a reader that takes the stream up there gets all of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import pyarrow as pa

from borealis.disk import Disk
from borealis.streams.id_gaps import Jumps
from borealis.streams.section import NOTHING, Place, Section, empty_rows
from borealis.streams.spill import PIECE_BYTES, spilled
from borealis.tuples import FIRST_TIME, LAST_TIME, Int64s

HELD_BYTES = 1024  # what holding a section costs beside its values: Python's and Arrow's objects
COLUMN_BYTES = 256  # the same for each column
BOUNDARIES_MOST = 1 << 16  # without a tuple between them; older ones melt, so that an idle stream stays small
_SMALL_BYTES = 64 << 10
_SHED_LEAST = 1024  # entries of gone sections before the lists are cut
_GONE = Section(0, empty_rows(pa.schema([])), NOTHING, NOTHING, NOTHING)


class Held:
    """The sections of a queue, whose lock is held around all of it."""

    def __init__(self, schema: pa.Schema, place: Place = (0, FIRST_TIME)) -> None:
        self.first = place[0]  # the oldest id from which the stream can be read
        self.next, self.boundary = place  # where it goes on
        self.jumps = Jumps()
        self.none = empty_rows(schema)
        self.overhead = HELD_BYTES + COLUMN_BYTES * len(schema)
        self._clear()

    def _clear(self) -> None:
        # What is held, oldest first, behind `_head` entries that are gone. For each section: the place behind it, and
        # the bytes of all sections ever held up to and with it; `_base` are those before the first that is held.
        self.sections: list[Section] = []
        self.places: list[Place] = []
        self.ends: list[int] = []
        self._head = self._base = 0
        self._on_disk = 0  # the sections before this one are

    @property
    def is_empty(self) -> bool:
        return self._head == len(self.sections)

    @property
    def bytes(self) -> int:
        """About how much memory the sections take."""
        return self._total() - self._base

    @property
    def in_memory(self) -> int:
        """About how much of it the sections take that are not on disk."""
        return self._total() - self._before(self._first_in_memory)

    @property
    def rows(self) -> int:
        return self.jumps.tuples(self.first, self.next)

    @property
    def end(self) -> Place:
        """The place up to which there is something to read."""
        return (self.jumps.back(self.next), self.boundary) if self.is_empty else self.places[-1]

    def upto(self, limit: Place) -> Place:
        """The last place that is not behind a limit: where ids were left out, that is before or among them."""
        over = self.jumps.over(limit[0])
        if over is None:
            return limit
        at = bisect_right(self.places, limit, self._head)
        if at < len(self.sections) and self.sections[at].first <= limit[0]:  # boundaries, between two jumps
            return limit
        before = self.places[at - 1] if at > self._head else (over[0], limit[1])
        return before if before[0] > over[0] else (over[0], limit[1])

    def behind(self, boundary: int) -> Place:
        """The place of the first section that begins behind a boundary or goes beyond it, or the end."""
        at = bisect_left(self.places, boundary, self._head, key=lambda place: place[1])
        if at < len(self.places) and self.sections[at].standing < boundary == self.places[at][1]:
            at += 1
        if at == len(self.places):
            return self.next, self.boundary
        first = self.sections[at]
        return first.first, max(first.standing, boundary)

    def parts(self, start: int, boundary: int, most_bytes: int) -> list[Section]:
        """The sections behind a place, as many as fit; the first of them may begin before it and be too large."""
        at = bisect_right(self.places, (start, boundary), self._head)
        if at == len(self.sections):
            return []
        here = self.sections[at]
        size = self.ends[at] - self._before(at)
        if start > here.first:  # about what is left of it
            size = size * (here.stop - start) // len(here)
        end = bisect_right(self.ends, self.ends[at] + max(0, most_bytes - size), at + 1)
        for i in range(at + 1, end):
            if not self.sections[i - 1].is_continued_by(self.sections[i]):  # ids jumped, or what holds of them changes
                return self.sections[at:i]
        return self.sections[at:end]

    def since(self, place: Place) -> tuple[Section, ...]:
        sections = self.sections[bisect_right(self.places, place, self._head) :]
        if sections:
            sections[0] = sections[0].since(place[0]).above(place[1])
        return tuple(sections)

    def needed_bytes(self, low: int) -> int:
        """Of the sections with tuples from this id on."""
        needed = self._needed(low)
        return 0 if needed == len(self.sections) else self._total() - self._before(needed)

    # -- growing

    def append(self, section: Section) -> None:
        self._push(section)
        self.next, self.boundary = section.stop, section.final
        if not len(section):
            self._merge_boundaries()

    def take_over(self, section: Section) -> None:
        """Hold what of a section is new, also where it does not follow."""
        if (section.stop, section.final) <= (self.next, self.boundary):
            return
        if section.first > self.next:
            self.skip_to(section.first)
        self.append(section.since(self.next).above(self.boundary))

    def skip_to(self, first: int) -> None:
        """Go on at a later id: no reader needs what is in between."""
        if self.jumps.tuples(self.next, first):
            self._clear()
        if self.is_empty:
            self.first = first
        self.next = first

    def cost(self, section: Section) -> int:
        """About how much memory it takes to hold a section. Arrow counts slices slowly: not done for small ones."""
        values = section.rows.get_total_buffer_size()
        if values > _SMALL_BYTES:
            values = section.rows.nbytes
        return int(values) + 8 * len(section.time) + 16 * len(section.at) + self.overhead

    def _push(self, section: Section) -> None:
        end = self._total() + self.cost(section)
        self.sections.append(section)
        self.places.append((section.stop, section.final))
        self.ends.append(end)

    def spill(self, disk: Disk, least: int) -> None:
        """Move the oldest sections that are in memory to the disk, so many bytes at least; after an OSError, fewer.

        Small ones become one.
        """
        while least > 0 and (at := self._first_in_memory) < len(self.sections):
            end = at + 1
            while end < len(self.sections) and self.ends[end - 1] - self._before(at) < PIECE_BYTES:
                early, late = self.sections[end - 1 : end + 1]
                if not (early.is_continued_by(late) and early.final == late.standing):
                    break
                end += 1
            one, before = spilled(self.sections[at:end], disk), self._before(at)
            size, moved = self.cost(one), self.ends[end - 1] - before
            later = [upto + size - moved for upto in self.ends[end:]]
            self.sections[at:end], self.places[at:end] = [one], [self.places[end - 1]]
            self.ends[at:] = [before + size, *later]
            self._on_disk = at + 1
            least -= moved

    @property
    def _first_in_memory(self) -> int:
        return max(self._on_disk, self._head)

    def _pop(self) -> Section:
        self.places.pop()
        self.ends.pop()
        self._on_disk = min(self._on_disk, len(self.places))
        return self.sections.pop()

    def _merge_boundaries(self) -> None:
        """Join boundaries without tuples between them, two of a size at a time: many heartbeats are few sections."""
        held = self.sections
        while (
            len(held) - self._head >= 2
            and not len(held[-2])
            and held[-2].is_continued_by(held[-1])
            and len(held[-2].bound) <= len(held[-1].bound)
        ):
            late = self._pop()
            early = self._pop()
            bound, standing = np.concatenate([early.bound, late.bound]), early.standing
            if len(bound) > BOUNDARIES_MOST:
                melted = len(bound) - BOUNDARIES_MOST // 2
                bound, standing = bound[melted:].copy(), int(bound[melted - 1])
            at = np.full(len(bound), late.first, np.int64)
            self._push(early.bounded(at, bound, standing))

    # -- retention

    def trim(self, low: int, keep_bytes: int, bytes_most: int) -> None:
        """Let go of what is before an id, beyond what is kept for latecomers."""
        while True:
            needed = self._needed(low)
            spare = self._before(needed) - self._base
            excess = max(spare - keep_bytes, self.bytes - bytes_most)
            if excess <= 0 or not self._let_go(excess, needed):
                return self.jumps.forget(min(self.first, low))

    def drop(self, bytes_most: int) -> None:
        """Lose the oldest for the newest; the newest tuples themselves always have room."""
        while (excess := self.bytes - bytes_most) > 0:
            if not self._let_go(excess, bisect_left(self.places, (self.next, FIRST_TIME), self._head)):
                return

    def trim_to(self, first: int) -> None:
        """Let go of the sections that are before an id as a whole."""
        behind = bisect_right(self.places, (first, FIRST_TIME), self._head)
        if behind < len(self.places) and self.places[behind][0] == first:
            behind += 1
        if behind > self._head and self.places[behind - 1][0] > self.first:
            self._shed(bisect_left(self.places, (self.places[behind - 1][0], FIRST_TIME), self._head))
        if self.is_empty:
            self.first = max(self.first, self.next)

    def _total(self) -> int:
        return self.ends[-1] if self.ends else self._base

    def _before(self, at: int) -> int:
        """The bytes of all sections before one."""
        return self._base if at <= self._head else self.ends[at - 1]

    def _needed(self, low: int) -> int:
        """Where the sections begin that have tuples from an id on."""
        return bisect_right(self.places, (low, LAST_TIME), self._head)

    def _let_go(self, excess: int, most: int) -> bool:
        """Forget so many bytes of the oldest sections, whole ones, all before `most`; says whether a tuple went.

        The boundaries at the new edge stay, in front of the section behind it.
        """
        if most <= self._head or self.places[most - 1][0] == self.first:  # boundaries alone cannot go
            return False
        by_bytes = bisect_left(self.ends, self._base + excess, self._head, most - 1)
        edge = max(self.places[by_bytes][0], self.first + 1)
        # up to the section with the last tuple to go
        self._shed(bisect_left(self.places, (edge, FIRST_TIME), self._head))
        return True

    def _shed(self, last: int) -> None:
        """Forget all sections up to this one, but for the boundaries at its end."""
        edge = self.places[last][0]
        tail = self.sections[last].since(edge)
        self.first, self._base = edge, self.ends[last]
        self.sections[self._head : last + 1] = [_GONE] * (last + 1 - self._head)
        self._head = last + 1
        if len(tail.bound):
            self._keep_boundaries(tail.bound, tail.standing)
        if self._head > _SHED_LEAST and 2 * self._head > len(self.sections):
            del self.sections[: self._head], self.places[: self._head], self.ends[: self._head]
            self._on_disk = max(0, self._on_disk - self._head)
            self._head = 0

    def _keep_boundaries(self, bound: Int64s, standing: int) -> None:
        """Put boundaries in front of the first section that is held; alone if there is none, or ids jumped there."""
        at = np.full(len(bound), self.first, np.int64)
        old = None if self.is_empty else self.sections[self._head]
        if old is None or old.first != self.first:
            self._head -= 1  # where the section was that they are of
            alone = self.sections[self._head] = Section(self.first, self.none, NOTHING, at, bound, standing)
            self._base -= self.cost(alone)
            return
        self._base -= at.nbytes + bound.nbytes
        at, bound = np.concatenate([at, old.at]), np.concatenate([bound, old.bound])
        self.sections[self._head] = old.bounded(at, bound, standing)
