"""Output queues: what a stream has produced, kept until nobody needs it, and served from any id that is still held.

A reader's place in a stream is a pair: the id of the next tuple, and the boundary it knows of. Sections are held in the
order of the places behind them, so finding what follows a place is one bisection. Boundaries at the oldest held id stay
when the tuples before it go: whoever takes the stream up there gets all of them.

A queue of a protected unit (`incarnation` above 0) has a mirror at the backup, which is held: nothing is read from it
before it is released. Where a recovery cannot go on with the ids that were, they jump.
"""

from __future__ import annotations

import threading
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from borealis.errors import GoneError, StateError, StreamError, did_you_mean
from borealis.streams.id_gaps import Jumps
from borealis.streams.pieces import check_inside, cut, upto
from borealis.streams.section import NOTHING, Section, empty_rows, joined
from borealis.streams.snapshot import QueueSnapshot
from borealis.streams.status import QueueStatus
from borealis.tuples import FIRST_TIME, LAST_TIME, Int64s

HELD_BYTES = 1024  # what holding a section costs beside its values: Python's and Arrow's objects
COLUMN_BYTES = 256  # the same for each column
BOUNDARIES_MOST = 1 << 16  # without a tuple between them; older ones melt, so that an idle stream stays small
_SMALL_BYTES = 64 << 10
_SHED_LEAST = 1024  # entries of gone sections before the lists are cut
_NOWHERE = (-1, FIRST_TIME)  # before all places
_GONE = Section(0, empty_rows(pa.schema([])), NOTHING, NOTHING, NOTHING)


class MovedError(StreamError):
    """The stream is served elsewhere from now on: go to `moved_to` and take it up where you are."""

    def __init__(self, message: str, *, hint: str = "", moved_to: str = "") -> None:
        super().__init__(message, hint=hint)
        self.moved_to = moved_to


class StandbyError(StreamError):
    """The stream is not served here unless its primary fails: go there, or come back."""


@dataclass(frozen=True)
class QueueLimits:
    """How much a queue holds, and what happens when it is full."""

    bytes_most: int = 64 << 20  # held for readers; the append that crosses it is the last that does not wait
    full: Literal["wait", "drop"] = "wait"  # slow the writer down, or lose the oldest
    keep_bytes: int = 8 << 20  # that nobody waits for, kept for latecomers


@dataclass
class _Reader:
    """A reader's acknowledgements, and how many tuples were dropped before it had them."""

    received: int  # level 0
    done: int  # level 1
    lost: int = 0


class OutputQueue:
    """A stream's tuples until every reader has acknowledged them. Thread-safe; one thread appends.

    A reader that never acknowledges stops the writer (`wait`) or loses tuples (`drop`): forget those that are gone.
    """

    def __init__(
        self,
        stream: str,
        schema: pa.Schema,
        limits: QueueLimits | None = None,
        *,
        readers: Iterable[str] = (),
        epoch: str | None = None,
        next_id: int = 0,
        standing: int = FIRST_TIME,
        incarnation: int = 0,
    ) -> None:
        self.stream, self.schema = stream, schema
        self.incarnation = incarnation  # of the unit that writes it; 0: nothing protects it
        self.limits = limits or QueueLimits()
        self.epoch = epoch or uuid.uuid4().hex[:16]
        self._first = self._next = next_id
        self._boundary = standing
        self._readers = {name: _Reader(next_id, next_id) for name in readers}
        self._mirrored = set(self._readers)  # those that an increment may take away
        self._jumps = Jumps()
        self._limit: tuple[int, int] | None = None  # readers get nothing behind this place; None: it is open
        self._dropped = 0
        self._none = empty_rows(schema)
        self._overhead = HELD_BYTES + COLUMN_BYTES * len(schema)
        self._closed = False
        self._moved_to: str | None = None
        # What is held, oldest first, behind `_head` entries that are gone. For each section: the place behind it, and
        # the bytes of all sections ever held up to and with it; `_base` are those before the first that is held.
        self._held: list[Section] = []
        self._places: list[tuple[int, int]] = []
        self._ends: list[int] = []
        self._head = 0
        self._base = 0
        lock = threading.Lock()
        self._more = threading.Condition(lock)  # something to read
        self._room = threading.Condition(lock)  # something was let go of

    # -- how it stands

    @property
    def next_id(self) -> int:
        """The id of the next tuple to be appended."""
        return self._next

    @property
    def first_id(self) -> int:
        """The oldest id from which the stream can be read."""
        return self._first

    @property
    def boundary(self) -> int:
        """The boundary in force at the end."""
        return self._boundary

    @property
    def dropped(self) -> int:
        """Tuples lost to a reader that was too slow (policy `drop`)."""
        return self._dropped

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self._boundary == LAST_TIME

    @property
    def held_bytes(self) -> int:
        """About how much memory the held sections take."""
        with self._more:
            return self._total() - self._base

    def status(self) -> QueueStatus:
        """All of it at one moment."""
        with self._more:
            return QueueStatus(
                stream=self.stream,
                epoch=self.epoch,
                first_id=self._first,
                next_id=self._next,
                boundary=self._boundary,
                held_rows=self._jumps.tuples(self._first, self._next),
                held_bytes=self._total() - self._base,
                dropped=self._dropped,
                readers={name: reader.done for name, reader in self._readers.items()},
                held=self.held,
                incarnation=self.incarnation,
            )

    # -- writing

    def append(self, section: Section) -> None:
        """Add what follows. Under `wait` this blocks while readers leave the queue full, until `close`."""
        check_inside(section)
        with self._room:
            self._check_fits(section)
            if self.limits.full == "wait" and self._is_full():
                self._room.wait_for(lambda: self._closed or not self._is_full())
                self._check_fits(section)
            if not len(section) and not len(section.bound):
                return
            self._push(section)
            self._next, self._boundary = section.stop, section.final
            if not len(section):
                self._merge_boundaries()
            self._trim()
            if self.limits.full == "drop":
                self._drop()
            self._more.notify_all()

    def has_room(self) -> bool:
        """Whether an append would not wait now."""
        with self._room:
            return self.limits.full == "drop" or not self._is_full()

    def wait_for_room(self, seconds: float) -> bool:
        """Wait until an append would not wait, at most so long; says whether it would not."""
        if self.limits.full == "drop":
            return True
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._is_full(), seconds)
            self._check_open()
            return not self._is_full()

    def jump_to(self, first: int) -> None:
        """The next tuple gets this id; a reader that wants one of those left out goes on there."""
        with self._more:
            if first <= self._next:
                raise ValueError(f"stream {self.stream} cannot jump from {self._next} to {first}")
            self._jumps.add(self._next, first)
            self._next = first
            if self._head == len(self._held):
                self._first = first
            self._more.notify_all()

    def begin_at(self, place: tuple[int, int]) -> None:
        """Let a queue that holds nothing go on at a place: what was before it was delivered by another."""
        with self._more:
            if self._head < len(self._held):
                raise ValueError(f"stream {self.stream} holds tuples already")
            self._first = self._next = place[0]
            self._boundary = place[1]
            self._more.notify_all()

    def close(self, moved_to: str | None = None) -> None:
        """End all reading and writing here, at once; with an address, tell everybody to go there."""
        with self._more:
            self._closed = True
            self._moved_to = moved_to or self._moved_to
            self._more.notify_all()
            self._room.notify_all()

    # -- reading

    def read(self, start: int, boundary: int, wait: float, most_bytes: int = 1 << 20) -> Section | None:
        """What follows id `start` for someone who knows of `boundary`; None when nothing came for `wait` seconds.

        Small sections are joined and large ones cut to about `most_bytes`. The section begins behind `start` where
        tuples were dropped or ids jumped: `lost_between` tells which.
        """
        with self._more:
            self._more.wait_for(lambda: self._is_news(start, boundary) or self._is_wrong(start), wait)
            self._check_open()
            if self._is_wrong(start):
                start = self._instead(start)
            if not self._is_news(start, boundary):
                return None
            end = self._end()
            parts = self._parts(start, boundary, most_bytes)
        parts = [upto(part, end) for part in parts if part.first <= end[0]]
        if not parts:  # only a boundary before `start` is news
            return Section(start, self._none, NOTHING, NOTHING, NOTHING, end[1])
        parts[0] = parts[0].since(start)
        if len(parts) == 1:
            parts[0] = cut(parts[0], most_bytes)
        return joined(parts).above(boundary)

    def lost_between(self, start: int, first: int) -> int:
        """How many tuples there were between an id that was asked for and the one that was given; jumps are none."""
        with self._more:
            return self._jumps.tuples(start, first)

    def _end(self) -> tuple[int, int]:
        """The place up to which there is something to read."""
        last = (self._jumps.back(self._next), self._boundary)
        if self._head < len(self._places):
            last = self._places[-1]
        if self._limit is None:
            return last
        over = self._jumps.over(self._limit[0])
        return min(last, (over[0], self._limit[1]) if over else self._limit)

    def _is_news(self, start: int, boundary: int) -> bool:
        if self._closed:
            return True
        stop, final = self._end()
        return start < stop or (start == stop and boundary < final)

    def _is_wrong(self, start: int) -> bool:
        """Whether nobody can read from here, now or later."""
        if start > self._next:
            return self.incarnation == 0
        return start < self._first and not self._jumps.over(start) and not self.standby

    def _instead(self, start: int) -> int:
        """Where to go on for someone who wants what is not held; raises where that would hide something."""
        if start > self._next:
            raise self._unknown(start)
        if self.limits.full == "drop":
            return self._first
        raise GoneError(
            f"stream {self.stream} is held from id {self._first} on: {start} is gone",
            hint=f"subscribe from {self._first}, or from 'oldest'",
        )

    def of_another_life(self, epoch: str | None) -> GoneError:
        """For someone whose ids are of another epoch."""
        return GoneError(
            f"stream {self.stream} is in epoch {self.epoch}, not {epoch}: ids of the one mean nothing in the other",
            hint="subscribe without an epoch, from 'oldest' or 'newest'",
        )

    def _unknown(self, start: int) -> GoneError:
        return GoneError(
            f"stream {self.stream} has no tuple {start} yet: the next is {self._next}",
            hint="these ids are of another stream, or of an earlier life of this one",
        )

    def _parts(self, start: int, boundary: int, most_bytes: int) -> list[Section]:
        """The sections behind a place, as many as fit; the first of them may begin before it and be too large."""
        at = bisect_right(self._places, (start, boundary), self._head)
        if at == len(self._held):
            return []
        here = self._held[at]
        size = self._ends[at] - self._before(at)
        if start > here.first:  # about what is left of it
            size = size * (here.stop - start) // len(here)
        end = bisect_right(self._ends, self._ends[at] + max(0, most_bytes - size), at + 1)
        for i in range(at + 1, end):
            if self._held[i].first != self._held[i - 1].stop:  # ids jumped
                return self._held[at:i]
        return self._held[at:end]

    # -- standing by

    @property
    def held(self) -> bool:
        """Whether readers get nothing at all, or nothing behind what was released."""
        return self._limit is not None

    @property
    def standby(self) -> bool:
        """Whether it is held, and nothing was released since."""
        return self._limit == _NOWHERE

    @property
    def released(self) -> tuple[int, int]:
        """The place up to which readers may read; of an open queue its end."""
        limit = self._limit
        return (self._next, self._boundary) if limit is None else limit

    def hold(self) -> None:
        """Let readers wait; they get nothing behind what is released from now on."""
        with self._more:
            self._limit = self._limit or _NOWHERE

    def release(self, place: tuple[int, int] | None = None) -> None:
        """Let readers of a held queue read up to a place (id, boundary), or without one everything, also to come."""
        with self._more:
            if self._limit is not None:
                self._limit = max(self._limit, place) if place is not None else None
                self._more.notify_all()

    def wait_for_release(self, seconds: float) -> bool:
        """Wait until something of a held queue may be read, at most so long; says whether it may."""
        with self._more:
            self._more.wait_for(lambda: self._closed or not self.standby, seconds)
            self._check_open()
            return not self.standby

    # -- readers

    def register(self, reader: str, start: int | None = None) -> int:
        """Keep for this reader what it has not acknowledged; returns where it is to read from.

        Without `start`: where its acknowledgements stand, or at the oldest tuple if it is new. A known reader that goes
        back to an earlier `start` needs everything from there on again.
        """
        with self._more:
            self._check_open()
            known = self._readers.get(reader)
            if start is None:
                start = known.done if known else self._first
            elif self._is_wrong(start):
                self._instead(start)
            if known is None:
                self._readers[reader] = _Reader(start, start)
            elif start < known.done:
                known.done = known.received = start
            return start

    def forget(self, reader: str) -> None:
        """Keep nothing for this reader any more; harmless if there is none."""
        with self._room:
            if self._readers.pop(reader, None) is not None:
                self._trim()
                self._room.notify_all()

    def ack(self, reader: str, level: int, upto: int) -> None:
        """A reader has all tuples before `upto` (level 0), or needs them no more, whatever happens (level 1)."""
        with self._room:
            if upto > self._next and not self.incarnation:  # a backup may be behind what the primary had delivered
                raise StreamError(
                    f"reader {reader} of stream {self.stream} acknowledged {upto}, but the next tuple is {self._next}",
                    hint="these ids are of another stream, or of an earlier life of this one",
                )
            known = self._readers.get(reader)
            if known is None:  # it was forgotten: nothing is kept for it, and nothing shall be
                return
            known.received = max(known.received, upto)
            if level == 1 and upto > known.done:
                known.done = upto
                self._trim()
                self._room.notify_all()

    def acked(self, reader: str, level: int) -> int:
        """The id up to which a reader has acknowledged."""
        known = self._known(reader)
        return known.done if level == 1 else known.received

    def lost_before(self, reader: str) -> int:
        """How many tuples were dropped before this reader had acknowledged them, since it is known."""
        return self._known(reader).lost

    def acks(self) -> dict[str, tuple[int, int]]:
        """How far each named reader is: received, done."""
        with self._more:
            return {n: (r.received, r.done) for n, r in self._readers.items() if not n.startswith("~")}

    def raise_acks(self, readers: Mapping[str, tuple[int, int]]) -> None:
        """Take over what readers acknowledged at another node's queue of the same stream: received, done."""
        with self._room:
            for name, (received, done) in readers.items():
                known = self._readers.setdefault(name, _Reader(received, done))
                known.received, known.done = max(known.received, received), max(known.done, done)
            self._trim()
            self._room.notify_all()

    def pushed(self) -> int:
        """The least id that somebody may still ask for; the next id if there is nobody.

        Of a named reader that is the first it needs yet, since what it only has in memory dies with it; of a passing
        one (`~...`) the first that was not pushed to it.
        """
        with self._more:
            ids = (r.received if name.startswith("~") else r.done for name, r in self._readers.items())
            return min(ids, default=self._next)

    def wanted(self) -> int:
        """The greatest id that some reader asks for next; the oldest held if there is none."""
        with self._more:
            return max((reader.received for reader in self._readers.values()), default=self._first)

    def _known(self, reader: str) -> _Reader:
        with self._more:
            if reader in self._readers:
                return self._readers[reader]
            raise StreamError(f"stream {self.stream} has no reader {reader}", hint=did_you_mean(reader, self._readers))

    # -- moving, and being mirrored

    def snapshot(self) -> QueueSnapshot:
        """All of it at one moment, also of a closed queue; passing readers (`~...`) stay behind."""
        with self._more:
            return self._snapshot(tuple(self._held[self._head :]))

    def since(self, place: tuple[int, int]) -> QueueSnapshot:
        """What is behind a place (id, boundary), and how far readers are: what a mirror at that place needs."""
        with self._more:
            sections = self._held[bisect_right(self._places, place, self._head) :]
            if sections:
                sections[0] = sections[0].since(place[0]).above(place[1])
            return self._snapshot(tuple(sections))

    def _snapshot(self, sections: tuple[Section, ...]) -> QueueSnapshot:
        return QueueSnapshot(
            self.stream,
            self.schema,
            self.epoch,
            self._first,
            self._next,
            self._boundary,
            self._dropped,
            {n: (r.received, r.done, r.lost) for n, r in self._readers.items() if not n.startswith("~")},
            sections,
            tuple(self._jumps),
        )

    def absorb(self, news: QueueSnapshot) -> None:
        """Become like the queue that these news are of: hold what it held, for the same readers. Never waits.

        What is known already is skipped, and news older than what is known change nothing. A StateError says that
        something is missing before them, or that they are of another stream; then nothing was changed.
        """
        with self._room:
            self._check_mirrors(news)
            if (news.next_id, news.boundary) < (self._next, self._boundary):
                return
            for frontier, first in news.jumps:
                self._jumps.add(frontier, first)
            for section in news.sections:
                self._take_over(section)
            if news.next_id > self._next:  # the rest was let go of, or ids jumped
                self._skip_to(news.next_id)
            self._boundary = max(self._boundary, news.boundary)
            self._dropped = news.dropped
            gone = self._mirrored - set(news.readers)
            self._readers = {n: r for n, r in self._readers.items() if n not in gone}
            self._readers |= {name: _Reader(*facts) for name, facts in news.readers.items()}
            self._mirrored = set(news.readers)
            self._trim_to(news.first_id)
            self._more.notify_all()
            self._room.notify_all()

    def _check_mirrors(self, news: QueueSnapshot) -> None:
        self._check_open()
        if (news.stream, news.epoch) != (self.stream, self.epoch) or not news.schema.equals(self.schema):
            raise StateError(f"news of stream {news.stream} ({news.epoch}) for {self.stream} ({self.epoch})")
        first = news.sections[0].first if news.sections else news.next_id
        start = max(self._next, news.first_id)  # what it let go of nobody needs
        if first > start and Jumps(news.jumps).tuples(start, first):
            raise StateError(
                f"tuples {start} to {first} of stream {self.stream} are missing",
                hint="begin again with a whole snapshot",
            )

    def _take_over(self, section: Section) -> None:
        if (section.stop, section.final) <= (self._next, self._boundary):
            return
        if section.first > self._next:
            self._skip_to(section.first)
        section = section.since(self._next).above(self._boundary)
        self._push(section)
        self._next, self._boundary = section.stop, section.final
        if not len(section):
            self._merge_boundaries()

    def _skip_to(self, first: int) -> None:
        """Go on at a later id: of what is in between there is nothing that anybody needs."""
        if self._jumps.tuples(self._next, first):
            self._held, self._places, self._ends, self._head, self._base = [], [], [], 0, 0
            self._first = first
        elif self._head == len(self._held):
            self._first = first
        self._next = first

    @classmethod
    def restore(cls, snapshot: QueueSnapshot, limits: QueueLimits | None = None) -> OutputQueue:
        """The queue as it was, with the same epoch."""
        queue = cls(
            snapshot.stream,
            snapshot.schema,
            limits,
            epoch=snapshot.epoch,
            next_id=snapshot.next_id,
            standing=snapshot.boundary,
        )
        queue._first, queue._dropped = snapshot.first_id, snapshot.dropped
        queue._jumps = Jumps(snapshot.jumps)
        queue._readers = {name: _Reader(*facts) for name, facts in snapshot.readers.items()}
        for section in snapshot.sections:
            queue._push(section)
            if not len(section):
                queue._merge_boundaries()
        return queue

    # -- inside, under the lock

    def _check_open(self) -> None:
        if self._moved_to:
            where = f"stream {self.stream} has moved to {self._moved_to}"
            raise MovedError(where, hint="subscribe there", moved_to=self._moved_to)
        if self._closed:
            raise StreamError(f"stream {self.stream} is closed here")

    def _check_fits(self, section: Section) -> None:
        self._check_open()
        if section.first != self._next or section.standing != self._boundary:
            raise ValueError(
                f"a section from ({section.first}, {section.standing}) cannot follow "
                f"({self._next}, {self._boundary}) in stream {self.stream}"
            )
        if len(section) and self.ended:
            raise ValueError(f"stream {self.stream} has ended: no tuple can follow")
        if not section.rows.schema.equals(self.schema):
            raise ValueError(f"a section of {section.rows.schema} in stream {self.stream} of {self.schema}")

    def _total(self) -> int:
        ends = self._ends
        return ends[-1] if ends else self._base

    def _before(self, at: int) -> int:
        """The bytes of all sections before one."""
        return self._base if at <= self._head else self._ends[at - 1]

    def _low(self) -> int:
        """All tuples before this one are acknowledged by everybody."""
        if not self._readers:
            return self._next
        return min(reader.done for reader in self._readers.values())

    def _needed(self) -> int:
        """Where the sections begin that some reader has not acknowledged to the end."""
        return bisect_right(self._places, (self._low(), LAST_TIME), self._head)

    def _is_full(self) -> bool:
        needed = self._needed()
        return needed < len(self._held) and self._total() - self._before(needed) >= self.limits.bytes_most

    def _push(self, section: Section) -> None:
        end = self._total() + self._cost(section)
        self._held.append(section)
        self._places.append((section.stop, section.final))
        self._ends.append(end)

    def _cost(self, section: Section) -> int:
        """About how much memory it takes to hold a section. Arrow counts slices slowly: not done for small ones."""
        values = section.rows.get_total_buffer_size()
        if values > _SMALL_BYTES:
            values = section.rows.nbytes
        return int(values) + 8 * len(section.time) + 16 * len(section.at) + self._overhead

    def _pop(self) -> Section:
        self._places.pop()
        self._ends.pop()
        return self._held.pop()

    def _merge_boundaries(self) -> None:
        """Join boundaries without tuples between them, two of a size at a time: many heartbeats are few sections."""
        held = self._held
        while (
            len(held) - self._head >= 2
            and not len(held[-2])
            and held[-2].first == held[-1].first
            and len(held[-2].bound) <= len(held[-1].bound)
        ):
            late = self._pop()
            early = self._pop()
            bound, standing = np.concatenate([early.bound, late.bound]), early.standing
            if len(bound) > BOUNDARIES_MOST:
                melted = len(bound) - BOUNDARIES_MOST // 2
                bound, standing = bound[melted:].copy(), int(bound[melted - 1])
            at = np.full(len(bound), late.first, np.int64)
            self._push(Section(late.first, late.rows, NOTHING, at, bound, standing))

    def _trim(self) -> None:
        """Let go of what nobody needs, beyond what is kept for latecomers."""
        while True:
            needed = self._needed()
            spare = self._before(needed) - self._base
            excess = max(spare - self.limits.keep_bytes, self._total() - self._base - self.limits.bytes_most)
            if excess <= 0 or not self._let_go(excess, needed):
                return

    def _drop(self) -> None:
        """Lose the oldest for the newest; the newest tuples themselves always have room."""
        first, low = self._first, self._low()
        while (excess := self._total() - self._base - self.limits.bytes_most) > 0:
            if not self._let_go(excess, bisect_left(self._places, (self._next, FIRST_TIME), self._head)):
                break
        if self._first > first:
            self._dropped += self._jumps.tuples(max(first, low), self._first)
            for reader in self._readers.values():
                reader.lost += self._jumps.tuples(max(first, reader.done), self._first)
            self._jumps.forget(min(self._first, self._low()))

    def _let_go(self, excess: int, most: int) -> bool:
        """Forget so many bytes of the oldest sections, whole ones, all before `most`; says whether a tuple went.

        The boundaries at the new edge stay, in front of the section behind it.
        """
        if most <= self._head or self._places[most - 1][0] == self._first:  # boundaries alone cannot go
            return False
        by_bytes = bisect_left(self._ends, self._base + excess, self._head, most - 1)
        edge = max(self._places[by_bytes][0], self._first + 1)
        # up to the section with the last tuple to go
        self._shed(bisect_left(self._places, (edge, FIRST_TIME), self._head))
        return True

    def _trim_to(self, first: int) -> None:
        """Let go of the sections that are before an id as a whole."""
        behind = bisect_right(self._places, (first, FIRST_TIME), self._head)
        if behind < len(self._places) and self._places[behind][0] == first:
            behind += 1
        if behind > self._head and self._places[behind - 1][0] > self._first:
            self._shed(bisect_left(self._places, (self._places[behind - 1][0], FIRST_TIME), self._head))
        if self._head == len(self._held):
            self._first = max(self._first, self._next)

    def _shed(self, last: int) -> None:
        """Forget all sections up to this one, but for the boundaries at its end."""
        edge = self._places[last][0]
        tail = self._held[last].since(edge)
        self._first, self._base = edge, self._ends[last]
        self._held[self._head : last + 1] = [_GONE] * (last + 1 - self._head)
        self._head = last + 1
        if len(tail.bound):
            self._keep_boundaries(tail.bound, tail.standing)
        if self._head > _SHED_LEAST and 2 * self._head > len(self._held):
            del self._held[: self._head], self._places[: self._head], self._ends[: self._head]
            self._head = 0
        self._jumps.forget(min(self._first, self._low()))

    def _keep_boundaries(self, bound: Int64s, standing: int) -> None:
        """Put boundaries in front of the first section that is held; alone if there is none, or ids jumped there."""
        at = np.full(len(bound), self._first, np.int64)
        old = self._held[self._head] if self._head < len(self._held) else None
        if old is None or old.first != self._first:
            self._head -= 1  # where the section was that they are of
            alone = self._held[self._head] = Section(self._first, self._none, NOTHING, at, bound, standing)
            self._base -= self._cost(alone)
            return
        self._base -= at.nbytes + bound.nbytes
        at, bound = np.concatenate([at, old.at]), np.concatenate([bound, old.bound])
        self._held[self._head] = Section(old.first, old.rows, old.time, at, bound, standing)
