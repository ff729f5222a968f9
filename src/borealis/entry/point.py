"""The entry point of a diagram's input on a node: publishers write to it, and it is a stream like any other from there.

What it promises to a publisher:

1. Batches are taken in the order of their numbers, each once: one that comes again is answered, not taken again. Of
   several that come as one, only those are taken that are not there yet.
2. A batch is taken whole or not at all; its tuples get consecutive ids, and boundaries are written among them.
3. If it has a peer (see mirror.py), the batch is there before it is acknowledged, and before anybody sees it; if the
   input is durable, it is on disk, too.
4. If the stream's queue is full, the answer waits until there is room.

On standby an entry point is such a peer: it takes nothing but what the other one gives it, until it is opened.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from borealis.clock import Clock, WallClock
from borealis.diagram.spec import LATE, Input
from borealis.entry.admission import Admitted, Cursor, EntryPoint
from borealis.entry.follower import Follower
from borealis.entry.log import Facts, Kept, Step, cursor_in, facts_of, marks_in, publishers_in
from borealis.entry.mirror import Mirror, Mirrored, Send, Sides, Whole
from borealis.errors import FullError, InputError, StateError, StreamError
from borealis.kernels.time_of import TimeOf
from borealis.state.disk import free_bytes, has_room
from borealis.streams.id_gaps import JUMP
from borealis.streams.queue import MovedError, OutputQueue, QueueLimits, StandbyError
from borealis.streams.section import Section, boundary_only, section
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.messages import BatchHead, LogStatus, Receipt

ROOM_BYTES = 1 << 16  # a disk that has not even that is full


@dataclass(frozen=True)
class StreamConfig:
    """The stream that an entry point serves: its name, its columns, and who reads it and its late side."""

    stream: str
    schema: pa.Schema
    limits: QueueLimits = field(default_factory=QueueLimits)
    readers: Sequence[str] = ()
    late_readers: Sequence[str] = ()
    epoch: str | None = None  # None: that of the log, or a new one
    incarnation: int = 0  # 0: it has no peer
    node: str = ""  # where it is, for whoever has to make room on its disk

    def queues(self, kept: Kept | None) -> tuple[OutputQueue, OutputQueue]:
        """The stream's and its late side's, with what the log has kept."""
        return self._queue(kept, 0, "", self.readers), self._queue(kept, 1, LATE, self.late_readers)

    def _queue(self, kept: Kept | None, which: int, suffix: str, readers: Sequence[str]) -> OutputQueue:
        name, epoch = self.stream + suffix, self.epoch and self.epoch + suffix
        queue = OutputQueue(name, self.schema, self.limits, readers=readers, epoch=epoch, incarnation=self.incarnation)
        if kept is not None:
            queue.reset_to(kept.snapshot(name, self.schema, readers, which, epoch))
        return queue


@dataclass(frozen=True)
class Trouble:
    """Why the log takes nothing."""

    error: StateError
    since: float  # seconds since 1970
    needs: int  # bytes

    @property
    def full(self) -> bool:
        """Whether room is all that is missing."""
        return isinstance(self.error, FullError)


class Entry:
    """Takes batches from publishers, gives their tuples ids, times and boundaries, and serves them. Thread-safe."""

    def __init__(
        self,
        spec: Input,
        pace_us: int,
        queue: OutputQueue,
        late: OutputQueue,
        clock: Clock | None = None,
        kept: Kept | None = None,
        time: TimeOf | None = None,
        node: str = "",
    ) -> None:
        self.spec, self.queue, self.late = spec, queue, late
        self.node = node
        self.trouble: Trouble | None = None
        self.schema = queue.schema
        self.stale = Mirrored()  # to a peer, or from the one whose peer this is
        self._idle_us, self._slack_us = spec.idle_us, spec.slack_us
        self._clock = clock or WallClock()
        self._log = kept.log if kept else None
        facts = kept.log.facts if kept else {}
        self._point = EntryPoint(spec, pace_us, cursor_in(facts), time)
        self._publishers, self._marks = publishers_in(facts), marks_in(facts)
        self._lock = threading.Lock()
        self._last_arrival = self._clock.now()
        self._waiting = 0  # publishers, for room
        self._mirror: Mirror | None = None
        self._standby: Follower | None = None
        self._moved_to: str | None = None  # deposed: who serves it now; may be empty
        self._met: set[str] | None = None  # publishers since ids jumped; None: they never did

    @classmethod
    def open(
        cls,
        spec: Input,
        pace_us: int,
        place: StreamConfig,
        log: Path | None = None,
        clock: Clock | None = None,
        time: TimeOf | None = None,
    ) -> Entry:
        """An entry point; with `log` its batches are kept there, and those that are there already are served again."""
        kept = Kept.read(log, place.stream, place.schema) if log is not None else None
        return cls(spec, pace_us, *place.queues(kept), clock, kept, time, place.node)

    @classmethod
    def standby(
        cls,
        spec: Input,
        pace_us: int,
        place: StreamConfig,
        log: Path | None = None,
        clock: Clock | None = None,
        time: TimeOf | None = None,
    ) -> Entry:
        """The peer of an entry point: nobody can read from it or write to it before it is opened."""
        entry = cls.open(spec, pace_us, place, log, clock, time)
        known = (entry._point.cursor, entry._publishers, entry._marks)
        entry._standby = Follower((entry.queue, entry.late), entry._log, *known, entry.stale)
        return entry

    @property
    def time(self) -> TimeOf:
        """How its tuples get their times."""
        return self._point.time

    # -- publishers

    def known(self, publisher: str) -> Receipt:
        """How far a publisher had come; does not wait for others that wait for room."""
        self._check_serves()
        return self._receipt(publisher).model_copy(update={"mark": self._marks.get(publisher)})

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        """Take a batch, whole or not at all; once it is taken, its number is, too."""
        try:
            return self._in_turn(publisher, head, batch)
        except StreamError:
            self._check_serves()  # it may have stepped down meanwhile
            raise

    def _in_turn(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        while True:
            with self._lock:
                self._check_serves()
                last = self._publishers.get(publisher, -1)
                if head.number <= last:
                    return self._receipt(publisher)
                self._check_turn(publisher, head, last)
                if self._wait_for_room(0):
                    return self._take(publisher, head, batch.slice(head.rows_until(last)))
                self._waiting += 1
            try:
                self._wait_for_room(1.0)
            finally:
                with self._lock:
                    self._waiting -= 1

    def _check_serves(self) -> None:
        if self._moved_to is not None:
            where = f"stream {self.queue.stream} is served by another node now"
            raise MovedError(where, hint="publish there", moved_to=self._moved_to)
        if self._standby is not None:
            raise StandbyError(f"stream {self.queue.stream} is on standby here", hint="publish to the other node")

    def _check_turn(self, publisher: str, head: BatchHead, last: int) -> None:
        unknown = self._met is not None and publisher not in self._met
        if head.first > last + 1 and not unknown:
            raise InputError(
                f"publisher '{publisher}' sent batch {head.first} to {self.queue.stream} after batch {last}",
                hint=f"send batch {last + 1}",
            )
        if self._point.cursor.ended:
            raise InputError(
                f"stream {self.queue.stream} has ended",
                hint="deploy the diagram again: borealis deploy --replace DIAGRAM.yaml, from empty streams",
            )

    def _wait_for_room(self, seconds: float) -> bool:
        return self.queue.wait_for_room(seconds) and self.late.wait_for_room(seconds)

    def _take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        before = self._point.cursor
        try:
            on_time, late = self._admit(batch, head)
            self._last_arrival = self._clock.now()
            marks = {} if head.mark is None else {publisher: head.mark}
            self._keep(self._facts(self._point.cursor, {publisher: head.number}, marks), on_time, late, before)
        except BaseException:
            self._point.cursor = before
            raise
        self._publishers[publisher] = head.number
        self._marks |= marks
        if self._met is not None:
            self._met.add(publisher)
        self._append(on_time, late)
        return self._receipt(publisher)

    def _receipt(self, publisher: str) -> Receipt:
        number = self._publishers.get(publisher, -1)
        return Receipt(number=number, next_id=self.queue.next_id, late=self._point.cursor.late)

    def _admit(self, batch: pa.RecordBatch, head: BatchHead) -> tuple[Section, Section]:
        self._point.refused = None
        admitted = self._point.admit(batch)
        if self._point.refused is not None:
            raise self._point.refused
        on_time = self._on_time(admitted)
        late = admitted.rows.filter(pa.array(admitted.late)) if admitted.late.any() else self.schema.empty_table()
        late_time = admitted.time[admitted.late]
        tail: list[int] = []
        if head.heartbeat is not None and (bound := self._point.idle(head.heartbeat)) is not None:
            tail.append(bound)
        ends = np.empty(0, np.int64)
        if head.end:
            self._point.end()
            tail.append(LAST_TIME)
            ends = np.array([LAST_TIME])
        at = np.concatenate([on_time.at, np.full(len(tail), on_time.stop)]).astype(np.int64)
        bound_times = np.concatenate([on_time.bound, np.array(tail, np.int64)])
        on_time = Section(on_time.first, on_time.rows, on_time.time, at, bound_times, on_time.standing)
        first = self.late.next_id
        late_at = np.full(len(ends), first + len(late_time), np.int64)
        return on_time, section(first, late, late_time, late_at, ends, self.late.boundary)

    def _on_time(self, admitted: Admitted) -> Section:
        first = self.queue.next_id
        rows, time = admitted.rows, admitted.time
        places = np.flatnonzero(admitted.bound > FIRST_TIME)
        bound, at = admitted.bound[places], places
        if admitted.late.any():
            good = ~admitted.late
            at = np.concatenate(([0], np.cumsum(good)))[places]
            rows, time = rows.filter(pa.array(good)), time[good]
        return section(first, rows, time, (first + at).astype(np.int64), bound, self.queue.boundary)

    def _append(self, on_time: Section, late: Section) -> None:
        for queue, part in ((self.queue, on_time), (self.late, late)):
            if len(part) or len(part.bound):
                queue.append(part)

    # -- silence

    def tick(self) -> None:
        """Write a boundary if nothing came for as long as the input's `idle` says. To be called now and then."""
        if self._idle_us is None or not self._lock.acquire(blocking=False):  # someone publishes: not idle
            return
        try:
            if self._standby is None and self._moved_to is None and not self._waiting:
                self._be_idle(self._idle_us)
        finally:
            self._lock.release()

    def _be_idle(self, idle_us: int) -> None:
        cursor = self._point.cursor
        silent_us = int((self._clock.now() - self._last_arrival) * 1e6)
        if cursor.ended or cursor.newest == FIRST_TIME or silent_us < idle_us:
            return
        if not self.queue.has_room() or self.trouble is not None:
            return
        bound = self._point.idle(cursor.newest + silent_us - self._slack_us)
        if bound is None:
            return
        tail = boundary_only(self.queue.next_id, self.schema, np.array([bound], np.int64), self.queue.boundary)
        nothing = boundary_only(self.late.next_id, self.schema, np.empty(0, np.int64), self.late.boundary)
        try:
            self._keep(self._facts(self._point.cursor, {}), tail, nothing, cursor)
        except BaseException:
            self._point.cursor = cursor
            raise
        self._append(tail, nothing)

    # -- the peer of this one

    def set_mirror(self, send: Send | None) -> None:
        """Give everything there is to this peer, and from now on every step; with None, go on alone.

        `send` gets records for `apply` and raises a BorealisError if the peer does not take one. The batch is not
        taken then, and the publisher gets the error. When the peer has taken over, that is a MovedError: step down.
        """
        with self._lock:
            if send is None:
                self._mirror = None
                return
            mirror = Mirror(send, self.stale)
            mirror.begin(self._whole(self._point.cursor), self._sides())
            self._mirror = mirror

    def step_down(self, moved_to: str) -> None:
        """Another node serves the stream now, at this address if it is known: everybody is sent there."""
        self._moved_to = moved_to  # without the lock: whoever has it may wait for a peer or for room
        for queue in (self.queue, self.late):
            queue.close(moved_to or None)

    def _sides(self) -> Sides:
        return Sides.of(self.queue, self.late, self._clock.now() - self._last_arrival)

    def _whole(self, cursor: Cursor) -> Whole:
        return Whole((self.queue.snapshot(), self.late.snapshot()), self._facts(cursor, self._publishers, self._marks))

    # -- being a peer

    @property
    def loaded(self) -> bool:
        """Whether this is no standby, or one that has got everything."""
        return self._standby is None or self._standby.loaded

    @property
    def discarded(self) -> int:
        """Records that came damaged, or did not follow."""
        return self.stale.discarded

    def apply(self, data: bytes | pa.Buffer) -> None:
        """Take a record of the one whose peer this is.

        A StateError refuses one that is damaged or does not follow: nothing has changed then, and a whole one is
        needed. A MovedError refuses whatever comes from a deposed one.
        """
        with self._lock:
            if self._standby is None:
                where = f"stream {self.queue.stream} is served here as incarnation {self.queue.incarnation}"
                raise MovedError(where, hint="step down")
            try:
                self._standby.apply(data)
                self.trouble = None
            except FullError as error:
                raise self._troubled(error, len(data)) from error
            finally:
                self._log = self._standby.log

    def open_up(self, incarnation: int, jump: bool = False, above: int = 0) -> None:
        """Serve the stream from now on. Ids, numbers and boundaries go on where the other one's records ended.

        With `jump` nothing had been mirrored: ids go on beyond all that may have been given before (`above`, if someone
        knows of one), and each publisher begins at the number that it has come to.
        """
        with self._lock:
            standby, stream = self._standby, self.queue.stream
            if standby is None or incarnation < self.queue.incarnation:
                state = f"it is {self.queue.incarnation} and {'on standby' if standby else 'open'} here"
                raise StateError(f"stream {stream} cannot become incarnation {incarnation}: {state}")
            if jump:
                standby.jump(max(above, (incarnation - 1) * JUMP - 1))
                self._met = set()
            elif not standby.loaded:
                raise StateError(f"nothing of stream {stream} has come from the other node yet")
            self._point.cursor, self._publishers, self._marks = standby.cursor, standby.publishers, standby.marks
            self._last_arrival = self._clock.now() - standby.silent  # nobody could publish since
            standby.open(incarnation)
            self._standby = None

    # -- the log

    def _epochs(self) -> list[str]:
        return [self.queue.epoch, self.late.epoch]

    def _facts(self, cursor: Cursor, publishers: dict[str, int], marks: dict[str, str] | None = None) -> Facts:
        return facts_of(self._epochs(), cursor, publishers, marks)

    def _keep(self, facts: Facts, on_time: Section, late: Section, before: Cursor) -> None:
        """Give a step to the peer, then to the log."""
        if self._log is None and self._mirror is None:
            return
        step = Step(on_time, late, facts)
        self.find_room()
        if self.trouble is not None and self.trouble.full:
            raise FullError(self.trouble.error.message, hint=self.trouble.error.hint)  # before the peer has it in vain
        if self._mirror is not None:
            self._mirror.give(step, self._sides(), lambda: self._whole(before))
        if self._log is not None:
            head, blobs = step.record
            try:
                self._log.append(head, blobs)
            except BaseException as error:
                if self._mirror is not None:
                    self._mirror.invalidate()
                if isinstance(error, StateError):
                    raise self._troubled(error, sum(map(len, blobs))) from error
                raise
            self.trouble = None

    def _troubled(self, error: StateError, count: int) -> StateError:
        """The log does not take so many bytes: remember it for whoever looks, and say where the disk is."""
        told = error
        if isinstance(error, FullError):
            where = f"the disk of {self.node} is full" if self.node else "the disk is full"
            hint = "make room there; what was not acknowledged was not taken, and is taken when it is sent again"
            told = FullError(f"{where}: {error.message}", hint=hint)
        since = self.trouble.since if self.trouble is not None else time.time()
        self.trouble = Trouble(told, since, count + ROOM_BYTES)
        return told

    def find_room(self) -> None:
        """Look whether a disk that was full has room again. To be called now and then."""
        trouble, log = self.trouble, self._log
        if trouble is not None and log is not None and trouble.full and has_room(log.root, trouble.needs):
            self.trouble = None

    def log_status(self) -> LogStatus | None:
        """How the log stands; None where there is none."""
        log, trouble = self._log, self.trouble
        if log is None:
            return None
        return LogStatus(
            stream=self.queue.stream,
            path=str(log.root),
            held_bytes=log.held_bytes,
            free_bytes=free_bytes(log.root),
            error=trouble.error.message if trouble is not None else "",
            full=trouble is not None and trouble.full,
            since=trouble.since if trouble is not None else 0.0,
        )

    def trim(self) -> None:
        """Delete from the log what no reader needs any more."""
        late, log = self.late.status(), self._log
        if log is None or min(late.readers.values(), default=late.next_id) < late.next_id:
            return
        if self._standby is None:
            log.trim(self.queue.first_id)
            return
        with self._lock:
            if self._log is log:  # or it was written anew just now
                log.trim(self.queue.first_id)

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()

    def erase(self) -> None:
        """Delete the log of an entry point that is closed: its diagram is no more, and the next of its name is new."""
        if self._log is not None:
            shutil.rmtree(self._log.root, ignore_errors=True)
