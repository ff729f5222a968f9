"""Output queues: what a stream has produced, kept until no reader needs it, and served from any id that is still held.

A queue of a protected unit (`incarnation` above 0) has a mirror at the backup, which is held: nothing is read from it
before it is released. Where a recovery cannot go on with the ids that were, they jump.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from borealis.disk import one_line
from borealis.errors import GoneError, StateError, StreamError
from borealis.machine import HERE, Machine
from borealis.streams.held import Held
from borealis.streams.id_gaps import HOP, Jumps, is_jump
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.readers import Readers, passes
from borealis.streams.section import NOTHING, Place, Section, boundary_only, joined
from borealis.streams.snapshot import QueueSnapshot
from borealis.streams.status import QueueStatus, StreamState
from borealis.streams.tentative import ForkPlace, Tail, Wants
from borealis.tuples import FIRST_TIME, LAST_TIME

OTHER_IDS = "these ids are of another stream, or of an earlier life of this one"
DISK_AGAIN_S = 1.0  # until a disk that took nothing is tried again
_NOWHERE = (-1, FIRST_TIME)  # before all places


log = logging.getLogger("borealis.streams")


class MovedError(StreamError):
    """The stream is served elsewhere from now on: go to `moved_to` and take it up where you are."""

    def __init__(self, message: str, *, hint: str = "", moved_to: str = "") -> None:
        super().__init__(message, hint=hint)
        self.moved_to = moved_to


class StandbyError(StreamError):
    """The stream is not served here unless its primary fails: go there, or come back."""


class AwayError(StreamError):
    """The stream is not at the node that was asked: it may be on its way there, or be elsewhere."""


@dataclass(frozen=True)
class QueueLimits:
    """How much a queue holds, and what happens when it is full."""

    bytes_most: int = 64 << 20  # held for readers; the append that crosses it is the last that does not wait
    full: Literal["wait", "drop"] = "wait"  # slow the writer down, or lose the oldest
    keep_bytes: int = 8 << 20  # that no reader waits for, kept for latecomers
    memory_bytes: int = 64 << 20  # of all that is held; what is more, the oldest, lies on the disk
    disk_bytes: int = 4 << 30  # held beside `bytes_most` that readers have, and need again only if they die


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
        machine: Machine = HERE,
    ) -> None:
        self.stream, self.schema = stream, schema
        self.incarnation = incarnation  # of the unit that writes it; 0: nothing protects it
        self.limits = limits or QueueLimits()
        self.epoch = epoch or machine.chance.token()
        self._held = Held(schema, (next_id, standing))
        self._readers = Readers(list(readers), next_id)
        self._limit: Place | None = None  # readers get nothing behind this place; None: it is open
        self._tail: Tail | None = None  # tentative tuples behind all of this
        self._corrected: Place | None = _NOWHERE  # here all that was tentative is; None: it is not
        self.condition: Callable[[], StreamState] = lambda: "stable"  # of the unit that writes it
        self.on_trim: Callable[[], None] = lambda: None  # called when named readers need less of it; must not wait
        self._disk, self._clock = machine.disk, machine.clock
        self._disk_again = -math.inf  # when a disk that took nothing is tried again
        self.dropped = 0  # tuples lost to a reader that was too slow (policy `drop`)
        self._closed = False
        self._moved_to: str | None = None
        lock = machine.threads.lock()
        self._more = machine.threads.condition(lock)  # something to read
        self._room = machine.threads.condition(lock)  # something was let go of

    # -- how it stands

    @property
    def next_id(self) -> int:
        return self._held.next

    @property
    def first_id(self) -> int:
        """The oldest id from which the stream can be read."""
        return self._held.first

    @property
    def boundary(self) -> int:
        """The boundary in force at the end."""
        return self._held.boundary

    @property
    def ended(self) -> bool:
        return self._held.boundary == LAST_TIME

    def status(self) -> QueueStatus:
        """All of it at one moment."""
        with self._more:
            return QueueStatus(
                stream=self.stream,
                epoch=self.epoch,
                first_id=self._held.first,
                next_id=self._held.next,
                boundary=self._held.boundary,
                held_rows=self._held.rows,
                held_bytes=self._held.bytes,
                dropped=self.dropped,
                readers=self._readers.done(),
                held=self.held,
                state=self.condition(),
                incarnation=self.incarnation,
            )

    # -- writing

    def append(self, section: Section) -> None:
        """Add what follows. Under `wait` this blocks while readers leave the queue full, until `close`."""
        section.check()
        with self._room:
            self._check_fits(section)
            if self.limits.full == "wait" and self._is_full():
                self._room.wait_for(lambda: self._closed or not self._is_full())
                self._check_fits(section)
            if not len(section) and not len(section.bound):
                return
            self._held.append(section)
            self._trim()
            if self.limits.full == "drop":
                self._drop()
            self._spill()
            self._more.notify_all()

    def has_room(self, seconds: float = 0.0) -> bool:
        """Whether an append would not wait: now, or before so many seconds have passed."""
        if self.limits.full == "drop":
            return True
        with self._room:
            self._room.wait_for(lambda: self._closed or not self._is_full(), seconds)
            self._check_open()
            return not self._is_full()

    def fork(self, name: str) -> None:
        """What follows is tentative, until `drop_fork`; what is stable goes on at the same id."""
        with self._more:
            self._tail = Tail(name, self.schema, (self._held.next, self._held.boundary))
            self._corrected = None
            self._more.notify_all()

    @property
    def tail(self) -> Tail | None:
        """The tentative end, if there is one."""
        return self._tail

    def append_tentative(self, section: Section) -> None:
        """Add to the tentative end. Never waits."""
        section.check()
        with self._more:
            if self._tail is not None:
                self._tail.append(section, self.limits.bytes_most)
                self._more.notify_all()

    def drop_fork(self) -> None:
        """All that was tentative is void; harmless if nothing was."""
        with self._more:
            self._tail = None
            self._more.notify_all()

    def recover(self) -> None:
        """What is here corrects all that was tentative: recovery is done for readers that have it."""
        with self._more:
            self._corrected = self._held.next, self._held.boundary
            self._more.notify_all()

    def jump_to(self, first: int) -> None:
        """The next tuple gets this id; a reader that wants one of those left out goes on there."""
        with self._more:
            held = self._held
            if first <= held.next:
                raise ValueError(f"stream {self.stream} cannot jump from {held.next} to {first}")
            held.jumps.add(held.next, first)
            held.skip_to(first)
            self._more.notify_all()

    def begin_at(self, place: Place) -> None:
        """Let a queue that holds nothing go on at a place: what was before it was delivered by another."""
        with self._more:
            held = self._held
            if not held.is_empty:
                raise ValueError(f"stream {self.stream} holds tuples already")
            held.first, (held.next, held.boundary) = place[0], place
            self._more.notify_all()

    def close(self, moved_to: str | None = None) -> None:
        """End all reading and writing here, at once; with an address, send readers and writers there."""
        with self._more:
            self._closed = True
            self._moved_to = moved_to or self._moved_to
            self._more.notify_all()
            self._room.notify_all()

    # -- reading

    def read(self, start: int, boundary: int, wait: float, most_bytes: int = 1 << 20) -> Section | None:
        """What follows id `start` for a reader that knows of `boundary`; None when nothing came for `wait` seconds.

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
            parts = self._held.parts(start, boundary, most_bytes)
        parts = [part.upto(end) for part in parts if part.first <= end[0]]
        if not parts:  # only a boundary before `start` is news
            return Section(start, self._held.none, NOTHING, NOTHING, NOTHING, end[1])
        parts[0] = parts[0].since(start)
        if len(parts) == 1:
            parts[0] = parts[0].cut(most_bytes)
        return joined(parts).above(boundary)

    def read_any(
        self, start: int, boundary: int, at: ForkPlace | None, wants: Wants, wait: float, most_bytes: int = 1 << 20
    ) -> Section | None:
        """Like `read`, for a reader of tentative tuples that is `at` such a place in a fork, or in none.

        When the fork that it was in is over, it hears that first; and when it has all that corrects it, that as well.
        Nothing can be tentative when the stream ends, so that comes before the end in any case.
        """
        if wants == "stable":
            return self.read(start, boundary, wait, most_bytes)
        fork, owed = (at, None) if at is not None and at[0] else (None, at)
        nothing = boundary_only(start, self.schema, NOTHING, boundary)
        with self._more:
            self._more.wait_for(lambda: self._is_any_news(start, boundary, fork, owed, wants), wait)
            self._check_open()
            tail, stable = self._tail, self._is_news(start, boundary) or self._is_wrong(start)
            if fork is not None and (tail is None or tail.fork != fork[0]):
                return replace(nothing, undo=True)
            if tail is not None and not (stable and (fork is None or wants == "both")):
                return tail.read(fork, boundary, most_bytes)
            if self._is_corrected(start, boundary, owed):
                return replace(nothing, done=True)
        section = self.read(start, boundary, 0.0, most_bytes) if stable else None
        if owed is not None and section is not None and section.ended:
            section = section.before_end()
            return section if len(section) or len(section.bound) else replace(nothing, done=True)
        return section

    def _is_any_news(
        self, start: int, boundary: int, fork: ForkPlace | None, owed: ForkPlace | None, wants: Wants
    ) -> bool:
        tail = self._tail
        if fork is not None and (tail is None or tail.fork != fork[0]):
            return True
        if self._is_corrected(start, boundary, owed) or (tail is not None and tail.has_news(fork, boundary)):
            return True
        waits = fork is not None and wants == "either"
        return self._closed or (not waits and (self._is_news(start, boundary) or self._is_wrong(start)))

    def _is_corrected(self, start: int, boundary: int, owed: ForkPlace | None) -> bool:
        """Whether a reader that is owed so has all that corrects what it had: of a fork of this queue, or elsewhere."""
        if owed is None or self._tail is not None or self._corrected is None:
            return False
        passed = boundary > owed[2] or (boundary == owed[2] and not self._is_news(start, boundary))
        return passed and (start, boundary) >= self._corrected

    def lost_between(self, start: int, first: int) -> int:
        """How many tuples there were between an id that was asked for and the one that was given; jumps are none. Of a
        jump that is forgotten only those behind it are known."""
        with self._more:
            found = self._held.jumps.tuples(start, first)
        return found if found < HOP else first % HOP

    def newest(self) -> int:
        """The id behind all that may be read now."""
        with self._more:
            return self._held.next if self._limit is None or self.standby else min(self._held.next, self._limit[0])

    def _end(self) -> Place:
        """The place up to which there is something to read."""
        last = self._held.end
        if self._limit is None:
            return last
        return min(last, self._held.upto(self._limit))

    def _is_news(self, start: int, boundary: int) -> bool:
        if self._closed:
            return True
        stop, final = self._end()
        return start < stop or (start == stop and boundary < final)

    def _is_wrong(self, start: int) -> bool:
        """Whether no reader can read from here, now or later."""
        if start > self._held.next:
            return self.incarnation == 0
        return start < self._held.first and not self._held.jumps.over(start) and not self.standby

    def _instead(self, start: int) -> int:
        """Where a reader goes on that wants what is not held; raises where that would hide something."""
        if start > self._held.next:
            unknown = f"stream {self.stream} has no tuple {start} yet: the next is {self._held.next}"
            raise GoneError(unknown, hint=OTHER_IDS)
        if self.limits.full == "drop" or is_jump(start, self._held.first):  # it hears of a jump
            return self._held.first
        raise GoneError(
            f"stream {self.stream} is held from id {self._held.first} on: {start} is gone",
            hint=f"subscribe from {self._held.first}, or from 'oldest'",
        )

    def of_another_life(self, epoch: str | None) -> GoneError:
        """For a reader whose ids are of another epoch."""
        return GoneError(
            f"stream {self.stream} is in epoch {self.epoch}, not {epoch}: ids of the one mean nothing in the other",
            hint="subscribe without an epoch, from 'oldest' or 'newest'",
        )

    # -- standing by

    @property
    def held(self) -> bool:
        """Whether readers get nothing at all, or nothing behind what was released."""
        return self._limit is not None

    @property
    def standby(self) -> bool:
        """Whether it is held, and nothing was released since."""
        return self._limit == _NOWHERE

    def hold(self, behind: Place = _NOWHERE) -> None:
        """Let readers wait; they get nothing behind this place, and what is released from now on."""
        with self._more:
            self._limit = behind if self._limit is None else max(self._limit, behind)

    def release(self, place: Place | None = None) -> None:
        """Let readers of a held queue read up to a place (id, boundary), or without one everything, also to come."""
        with self._more:
            if self._limit is not None:
                self._limit = max(self._limit, place) if place is not None else None
                self._more.notify_all()

    def wait_for_release(self, seconds: float, place: Place | None = None) -> bool:
        """Wait until a held queue may be read at all, or up to a place, at most so long; says whether it may."""
        with self._more:
            released = self._more.wait_for(lambda: self._closed or self._is_released(place), seconds)
            self._check_open()
            return released

    def _is_released(self, place: Place | None) -> bool:
        return not self.standby if place is None or self._limit is None else self._limit >= place

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
                start = known.done if known else self._held.first
            elif self._is_wrong(start):
                self._instead(start)
            if known is None:
                self._readers.come(reader, start, self._clock.now())
            elif start < known.done:
                known.done = known.received = start
                known.back += 1
            return start

    def forget(self, reader: str) -> None:
        """Keep nothing for this reader any more; harmless if there is none."""
        with self._room:
            if self._readers.forget(reader):
                self._trim()
                self._room.notify_all()

    def ack(self, reader: str, level: int, upto: int) -> None:
        """A reader has all tuples before `upto` (level 0), or needs them no more, whatever happens (level 1)."""
        with self._room:
            if upto > self._held.next and not self.incarnation:  # a backup may be behind what the primary had delivered
                seen = f"reader {reader} of stream {self.stream} acknowledged {upto}"
                raise StreamError(f"{seen}, but the next tuple is {self._held.next}", hint=OTHER_IDS)
            known = self._readers.get(reader)
            if known is None:  # it was forgotten: nothing is kept for it, and nothing shall be
                return
            lacked = self._is_lacked()
            known.received = max(known.received, upto)
            if lacked and not self._is_lacked():
                self._room.notify_all()
            if level == 1 and upto > known.done:
                low, known.done = self._low(), upto
                self._trim()
                self._room.notify_all()
                if self._low() > low and not passes(reader):
                    self.on_trim()

    def acks(self) -> dict[str, ReaderPlace]:
        """How far each named reader is."""
        with self._more:
            return self._readers.places()

    def raise_acks(self, readers: Mapping[str, ReaderPlace], told: Collection[str] | None = None) -> None:
        """Take over what readers acknowledged at another node's queue of the same stream, or that they went back there.

        Those that are gone there since are gone here, too. With `told`, it is the answer of a copy that was told of
        these: of them none comes back that is gone here since, and others are the copy's own, which may come here.
        """
        with self._room:
            self._readers.raise_to(readers, told)
            self._trim()
            self._room.notify_all()

    def pushed(self) -> int:
        """The least id that a reader may still ask for; the next id if there is no reader.

        Of a named reader that is the first it needs yet, since what it only has in memory dies with it; of a passing
        one (`~...`) the first that was not pushed to it.
        """
        with self._more:
            return self._readers.pushed(self._held.next)

    def acknowledged(self) -> int:
        """The least id that a named reader needs yet; the next id if there is none."""
        with self._more:
            return self._readers.acknowledged(self._held.next)

    def passing(self) -> int | None:
        """The first tuple that was not pushed to a passing reader; what was pushed to one that is new is under way."""
        with self._more:
            return self._readers.passing(self._clock.now())

    def wanted(self) -> int:
        """The greatest id that some reader asks for next; the oldest held if there is none."""
        with self._more:
            return self._readers.wanted(self._held.first)

    # -- moving, and being mirrored

    def snapshot(self) -> QueueSnapshot:
        """All of it at one moment, also of a closed queue; passing readers (`~...`) stay behind."""
        return self.since(_NOWHERE)

    def since(self, place: Place) -> QueueSnapshot:
        """What is behind a place (id, boundary), and how far readers are: what a mirror at that place needs."""
        with self._more:
            held = self._held
            return QueueSnapshot(
                self.stream,
                self.schema,
                self.epoch,
                held.first,
                held.next,
                held.boundary,
                self.dropped,
                self._readers.facts(),
                held.since(place),
                tuple(held.jumps),
            )

    def needed(self, first: int) -> QueueSnapshot:
        """What a mirror needs whose readers go on at a tuple, or behind it, whatever it has."""
        news = self.since((first, FIRST_TIME))
        return replace(news, first_id=max(news.first_id, min(first, news.next_id)))

    def apply(self, news: QueueSnapshot) -> None:
        """Become like the queue that these news are of: hold what it held, for the same readers. Never waits.

        What is known already is skipped, and news older than what is known change nothing. News that reach further
        back than what is held take its place. A StateError says that something is missing before them, or that they are
        of another stream; then nothing was changed.
        """
        with self._room:
            self.check_news(news)
            held = self._held
            if (news.next_id, news.boundary) < (held.next, held.boundary):
                return
            if news.sections and news.sections[0].first < held.first:
                held = self._held = Held(self.schema)
            for frontier, first in news.jumps:
                held.jumps.add(frontier, first)
            for section in news.sections:
                held.take_over(section)
            if news.next_id > held.next:  # the rest was let go of, or ids jumped
                held.skip_to(news.next_id)
            held.boundary = max(held.boundary, news.boundary)
            self.dropped = news.dropped
            self._readers.become(news.readers)
            held.trim_to(news.first_id)
            held.jumps.forget(min(held.first, self._low()))
            self._spill()
            self._more.notify_all()
            self._room.notify_all()

    def check_news(self, news: QueueSnapshot) -> None:
        """A StateError if these news cannot be applied."""
        self._check_open()
        if (news.stream, news.epoch) != (self.stream, self.epoch) or not news.schema.equals(self.schema):
            raise StateError(f"news of stream {news.stream} ({news.epoch}) for {self.stream} ({self.epoch})")
        first = news.sections[0].first if news.sections else news.next_id
        start = max(self._held.next, news.first_id)  # what the other queue let go of no reader needs
        if first > start and Jumps(news.jumps).tuples(start, first):
            raise StateError(
                f"tuples {start} to {first} of stream {self.stream} are missing",
                hint="begin again with a whole snapshot",
            )

    @classmethod
    def restore(
        cls, snapshot: QueueSnapshot, limits: QueueLimits | None = None, machine: Machine = HERE
    ) -> OutputQueue:
        """The queue as it was, with the same epoch."""
        queue = cls(snapshot.stream, snapshot.schema, limits, machine=machine)
        queue.reset_to(snapshot)
        return queue

    def reset_to(self, snapshot: QueueSnapshot) -> None:
        """Hold what the snapshot does, and nothing else, under its epoch; readers that it does not know stay."""
        with self._room:
            self._held, self.epoch = Held(self.schema), snapshot.epoch
        self.apply(snapshot)

    # -- inside, under the lock

    def _check_open(self) -> None:
        if self._moved_to:
            where = f"stream {self.stream} has moved to {self._moved_to}"
            raise MovedError(where, hint="subscribe there", moved_to=self._moved_to)
        if self._closed:
            raise StreamError(f"stream {self.stream} is closed here")

    def _check_fits(self, section: Section) -> None:
        self._check_open()
        begin, end = (section.first, section.standing), (self._held.next, self._held.boundary)
        if begin != end:
            raise ValueError(f"a section from {begin} cannot follow {end} in stream {self.stream}")
        if len(section) and self.ended:
            raise ValueError(f"stream {self.stream} has ended: no tuple can follow")
        if section.undo or section.done or not section.stable:
            raise ValueError(f"a section that is not stable among the stable ones of stream {self.stream}")
        if not section.rows.schema.equals(self.schema):
            raise ValueError(f"a section of {section.rows.schema} in stream {self.stream} of {self.schema}")

    def _low(self) -> int:
        """All readers have acknowledged the tuples before this one."""
        return self._readers.low(self._held.next)

    def _is_full(self) -> bool:
        """What readers do not have fills it soon, for it is in memory; what they have and need yet, later."""
        if self._is_lacked():
            return True
        most = self.limits.bytes_most + (self.limits.disk_bytes if self._spill() else 0)
        return 0 < self._held.needed_bytes(self._low()) >= most

    def _is_lacked(self) -> bool:
        """Whether some reader does not have as much as there may be in memory."""
        return 0 < self._held.needed_bytes(self._readers.received(self._held.next)) >= self.limits.bytes_most

    def _spill(self) -> bool:
        """Move the oldest of what is too much for memory to the disk; says whether that takes it."""
        limits, held = self.limits, self._held
        if held.in_memory < limits.memory_bytes or limits.full == "drop" or not limits.disk_bytes:
            return True
        if (now := self._clock.now()) < self._disk_again:
            return False
        try:
            held.spill(self._disk, held.in_memory - limits.memory_bytes // 2)
        except OSError as error:
            log.warning("stream %s stays in memory: %s", self.stream, one_line(error))
            self._disk_again = now + DISK_AGAIN_S
            return False
        return True

    def _trim(self) -> None:
        """Let go of what no reader needs, beyond what is kept for latecomers."""
        self._held.trim(self._low(), self.limits.keep_bytes, self.limits.bytes_most)

    def _drop(self) -> None:
        """Lose the oldest for the newest, and count for each reader what it had not acknowledged."""
        held = self._held
        first, low = held.first, self._low()
        held.drop(self.limits.bytes_most)
        if held.first > first:
            self.dropped += held.jumps.tuples(max(first, low), held.first)
            self._readers.lose(first, held.first, held.jumps)
            held.jumps.forget(min(held.first, low))
