"""The entry point of a diagram's input on a node: publishers write to it, and it is a stream like any other from there.

What it promises to a publisher:

1. Batches are taken in the order of their numbers, each once: one that comes again is answered, not taken again. Of
   several that come as one, only those are taken that are not there yet.
2. A batch is taken whole or not at all; its tuples get consecutive ids, and boundaries are written among them.
3. If the input is durable, a batch is on disk before it is acknowledged, and before a reader sees it. If the entry
   point is protected, its backup has it by then, too: queues are held until the backup has answered.
4. If the stream's queue is full, the answer waits until there is room.

To its guard it is a unit without boxes: steps take the place of trains. On standby it takes nothing but what the
primary sends, until it is started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from borealis.diagram.spec import LATE, Input
from borealis.entry.admission import Admitted, EntryPoint
from borealis.entry.log import EntryLog, EntryState, EntryStep, Facts, Logged
from borealis.errors import BorealisError, InputError, StateError, StreamError
from borealis.kernels.time_of import TimeOf
from borealis.machine import HERE, Machine
from borealis.streams.queue import MovedError, OutputQueue, QueueLimits, StandbyError
from borealis.streams.section import NOTHING, Place, Section, boundary_only, joined, section
from borealis.streams.snapshot import QueueSnapshot
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME
from borealis.wire.messages import BatchHead, Receipt

Snapshots = Mapping[str, QueueSnapshot]  # by arrow


@dataclass(frozen=True)
class EntryTimings:
    """How an entry point waits for its backup, in seconds."""

    refusal_s: float = 5.0  # a batch that is taken waits so long for one that takes nothing, before its publisher hears
    answer_s: float = 0.1  # between looks whether one that does not answer is to be waited for


@dataclass(frozen=True)
class StreamConfig:
    """The stream that an entry point serves: its name, its columns, and the readers of it and its late side."""

    stream: str
    schema: pa.Schema
    limits: QueueLimits = field(default_factory=QueueLimits)
    readers: Sequence[str] = ()
    late_readers: Sequence[str] = ()
    epoch: str | None = None  # None: that of the log, or a new one
    node: str = ""  # where it is, for the user who has to make room on its disk

    @property
    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """The stream's and its late side's: what is late came, and takes nothing back."""
        return self.schema, pa.schema([field for field in self.schema if field.name != KIND])

    def queues(self, logged: Logged, machine: Machine) -> tuple[OutputQueue, OutputQueue]:
        """The stream's and its late side's, with what the log has held."""
        on_time = self._queue(logged, 0, "", self.readers, machine)
        return on_time, self._queue(logged, 1, LATE, self.late_readers, machine)

    def _queue(self, logged: Logged, which: int, suffix: str, readers: Sequence[str], machine: Machine) -> OutputQueue:
        name, epoch = self.stream + suffix, self.epoch + suffix if self.epoch else logged.epoch(which)
        schema = self.schemas[which]
        queue = OutputQueue(name, schema, self.limits, readers=readers, epoch=epoch, machine=machine)
        if logged.facts:
            queue.reset_to(logged.snapshot(name, schema, readers, which, queue.epoch))
        return queue


class Entry:
    """Takes batches from publishers, gives their tuples ids, times and boundaries, and serves them. Thread-safe.

    With `log` its batches are kept there, and those that are there already are served again. On `standby` nothing can
    be read from it or written to it before it is started.
    """

    def __init__(
        self,
        spec: Input,
        pace_us: int,
        place: StreamConfig,
        log: Path | None = None,
        time: TimeOf | None = None,
        *,
        standby: bool = False,
        machine: Machine = HERE,
    ) -> None:
        self.spec, self.schema, self.standby = spec, place.schema, standby
        self.log = EntryLog(log, place.stream, place.schemas, place.node, machine)
        logged = Logged()
        if standby:  # what an earlier life left there may be damaged, and is not needed
            self.log.claim()
        else:
            logged = self.log.read()
        self.queue, self.late = place.queues(logged, machine)
        self.queues = {spec.name: self.queue, spec.name + LATE: self.late}
        self.state = EntryState()
        self.state.apply(logged.facts)
        self.on_step: Callable[[Facts], None] | None = None  # called with what a step changed, under the lock
        self.flush: Callable[[], None] = lambda: None  # sends what its backup lacks
        self.refusal: BorealisError | None = None  # why its backup takes nothing
        self.timings = EntryTimings()
        self.lock = machine.threads.rlock()  # held while a step is taken
        self._idle_us, self._slack_us = spec.idle_us, spec.slack_us
        self._clock = machine.clock
        self._point = EntryPoint(spec, pace_us, self.state.cursor, time)
        self._last_arrival = self._clock.now()
        self._waiting = 0  # publishers, for room
        self._loaded = False  # from a primary
        self._lasting = False  # on standby, too: what comes survives a power cut before it is answered
        self._closed = False
        self._moved_to: str | None = None  # deposed: the address that serves it now; may be empty
        self._met: set[str] | None = None  # publishers since ids jumped; None: they never did

    @property
    def time(self) -> TimeOf:
        return self._point.time

    # -- publishers

    def known(self, publisher: str) -> Receipt:
        """How far a publisher had come; does not wait for others that wait for room."""
        with self.lock:
            self._check_serves()
            receipt, upto = self._receipt(publisher), self._ends()
            receipt = receipt.model_copy(update={"mark": self.state.marks.get(publisher)})
        self._await_backup(upto, 0.0)
        return receipt

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        """Take a batch, whole or not at all; once it is taken, its number is, too."""
        try:
            receipt, upto = self._in_turn(publisher, head, batch)
            self._await_backup(upto, self.timings.refusal_s)
            return receipt
        except StreamError:
            self._check_serves()  # it may have stepped down meanwhile
            raise

    def _in_turn(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> tuple[Receipt, list[Place]]:
        while True:
            with self.lock:
                self._check_serves()
                last = self.state.publishers.get(publisher, -1)
                if head.number <= last:
                    return self._receipt(publisher), self._ends()
                self._check_turn(publisher, head, last)
                if self.refusal is not None:
                    raise self.refusal
                if self._has_room(0):
                    return self._take(publisher, head, batch.slice(head.rows_until(last))), self._ends()
                self._waiting += 1
            try:
                self._has_room(1.0)
            finally:
                with self.lock:
                    self._waiting -= 1

    def _await_backup(self, upto: Sequence[Place], refusal_s: float) -> None:
        """Wait until the backup, if there is one, has all before these places; an error if it takes nothing so long."""
        until, places = self._clock.now() + refusal_s, list(zip(self.queues.values(), upto, strict=True))
        while not all(queue.wait_for_release(0, place) for queue, place in places):
            self.flush()
            released = [queue.wait_for_release(self.timings.answer_s, place) for queue, place in places]
            if not all(released) and self.refusal is not None and self._clock.now() >= until:
                raise self.refusal

    def _check_serves(self) -> None:
        if self._moved_to is not None:
            where = f"stream {self.queue.stream} is served by another node now"
            raise MovedError(where, hint="publish there", moved_to=self._moved_to)
        if self.standby:
            raise StandbyError(f"stream {self.queue.stream} is on standby here", hint="publish to the other node")

    def _check_turn(self, publisher: str, head: BatchHead, last: int) -> None:
        unknown = self._met is not None and publisher not in self._met
        if head.first > last + 1 and not unknown:
            raise InputError(
                f"publisher '{publisher}' sent batch {head.first} to {self.queue.stream} after batch {last}",
                hint=f"send batch {last + 1}",
            )
        if self.state.cursor.ended:
            raise InputError(
                f"stream {self.queue.stream} has ended",
                hint="deploy the diagram again: borealis deploy --replace DIAGRAM.yaml, from empty streams",
            )

    def _has_room(self, seconds: float) -> bool:
        return self.queue.has_room(seconds) and self.late.has_room(seconds)

    def _take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        try:
            on_time, late = self._admit(batch, head)
            marks = {} if head.mark is None else {publisher: head.mark}
            self._commit(on_time, late, {publisher: head.number}, marks, 0.0)
        finally:
            self._point.cursor = self.state.cursor
        self._last_arrival = self._clock.now()
        if self._met is not None:
            self._met.add(publisher)
        return self._receipt(publisher)

    def _receipt(self, publisher: str) -> Receipt:
        number = self.state.publishers.get(publisher, -1)
        return Receipt(number=number, next_id=self.queue.next_id, late=self.state.cursor.late)

    def _ends(self) -> list[Place]:
        return [(queue.next_id, queue.boundary) for queue in self.queues.values()]

    def _admit(self, batch: pa.RecordBatch, head: BatchHead) -> tuple[Section, Section]:
        self._point.refused = None
        admitted = self._point.admit(batch)
        if self._point.refused is not None:
            raise self._point.refused
        on_time = self._on_time(admitted)
        late = self.late.schema.empty_table()
        if admitted.late.any():
            late = admitted.rows.select(late.column_names).filter(pa.array(admitted.late))
        late_time = admitted.time[admitted.late]
        tail: list[int] = []
        if head.heartbeat is not None and (bound := self._point.idle(head.heartbeat)) is not None:
            tail.append(bound)
        ends = np.empty(0, np.int64)
        if head.end:
            self._point.end()
            tail.append(LAST_TIME)
            ends = np.array([LAST_TIME])
        if tail:
            on_time = joined(
                [on_time, boundary_only(on_time.stop, self.schema, np.array(tail, np.int64), on_time.final)]
            )
        first = self.late.next_id
        late_at = np.full(len(ends), first + len(late_time), np.int64)
        return on_time, section(first, late, late_time, late_at, ends, self.late.boundary)

    def _on_time(self, admitted: Admitted) -> Section:
        first = self.queue.next_id
        rows, time = admitted.rows, admitted.time
        at, bound = admitted.at, admitted.bound
        if admitted.late.any():
            good = ~admitted.late
            at = np.concatenate(([0], np.cumsum(good)))[at]
            rows, time = rows.filter(pa.array(good)), time[good]
        return section(first, rows, time, (first + at).astype(np.int64), bound, self.queue.boundary)

    def _commit(
        self, on_time: Section, late: Section, publishers: dict[str, int], marks: dict[str, str], silent_s: float
    ) -> None:
        """Take a step: into the log, then into the queues, then to the backup. If the log refuses, it was none."""
        then = EntryState(self._point.cursor, publishers, marks, self.state.steps + 1, silent_s)
        facts = {"epochs": [queue.epoch for queue in self.queues.values()], **then.facts()}
        if self.log.missing:
            self._rewrite()
        self.log.append(EntryStep((on_time, late), facts))
        self.state.apply(facts)
        for queue, part in ((self.queue, on_time), (self.late, late)):
            if len(part) or len(part.bound):
                queue.append(part)
        if self.on_step is not None:
            self.on_step(facts)

    # -- silence

    def tick(self) -> None:
        """Write a boundary if nothing came for as long as the input's `idle` says. To be called now and then."""
        if self._idle_us is None or not self.lock.acquire(blocking=False):  # a publisher has it: not idle
            return
        try:
            if not self.standby and self._moved_to is None and not self._waiting:
                self._be_idle(self._idle_us)
        finally:
            self.lock.release()

    def _be_idle(self, idle_us: int) -> None:
        cursor = self.state.cursor
        silent_us = int((self._clock.now() - self._last_arrival) * 1e6)
        if cursor.ended or cursor.newest == FIRST_TIME or silent_us < idle_us:
            return
        if not self.queue.has_room() or self.log.failure is not None or self.refusal is not None:
            return
        bound = self._point.idle(cursor.newest + silent_us - self._slack_us)
        if bound is None:
            return
        tail = boundary_only(self.queue.next_id, self.schema, np.array([bound], np.int64), self.queue.boundary)
        nothing = boundary_only(self.late.next_id, self.late.schema, NOTHING, self.late.boundary)
        try:
            self._commit(tail, nothing, {}, {}, silent_us / 1e6)
        finally:
            self._point.cursor = self.state.cursor

    # -- standing by

    def load(self, state: Facts, snapshots: Snapshots) -> None:
        """While standing by: hold what the primary holds, and nothing else."""
        with self.lock:
            self._check_open()
            self.log.rewrite(list(snapshots.values()), state)
            for name, snapshot in snapshots.items():
                self.queues[name].reset_to(snapshot)
            self.state, self._loaded = EntryState(), True
            self.state.apply(state)

    def extend(self, state: Facts, snapshots: Snapshots) -> None:
        """While standing by: what is new at the primary, which has a log of its own: that of a backup is not synced."""
        with self.lock:
            self._check_open()
            for name, snapshot in snapshots.items():
                self.queues[name].check_news(snapshot)
            parts = [self._news(self.queues[name], snapshot) for name, snapshot in snapshots.items()]
            if state.get("steps", 0) > self.state.steps:
                self.log.append(EntryStep(parts, state), sync=self._lasting)
            for name, snapshot in snapshots.items():
                self.queues[name].apply(snapshot)
            self.state.apply(state)

    def make_durable(self) -> None:
        """While standing by: make the log survive a power cut, all of it now, and at once what comes from now on.

        A backup does so before it claims the place of its primary, whose log is not looked for once that is granted.
        """
        with self.lock:
            self._check_open()
            self._lasting = True
            with suppress(StateError):  # what cannot be synced is written again
                if not self.log.missing:
                    return self.log.sync()
            if self._loaded:
                self._rewrite()

    def _news(self, queue: OutputQueue, snapshot: QueueSnapshot) -> Section:
        """What of a snapshot the queue has not got, as one."""
        at = (queue.next_id, queue.boundary)
        new = [part.since(at[0]).above(at[1]) for part in snapshot.sections if (part.stop, part.final) > at]
        return joined(new) if new else boundary_only(snapshot.next_id, queue.schema, NOTHING, snapshot.boundary)

    def start(self) -> None:
        """Serve the stream from now on. Ids, numbers and boundaries go on where the primary's last message ended.

        If none had come, the queues have jumped, and each publisher begins at the number that it has come to.
        """
        with self.lock:
            if self.standby and not self._loaded:
                self._met, boundary = set(), self.queue.boundary
                self.state.cursor = replace(self.state.cursor, boundary=boundary, ended=boundary == LAST_TIME)
            with suppress(StateError):  # which is remembered: nothing is taken before it is written
                if self.log.missing or (self.standby and not self._loaded):
                    self._rewrite()
                self.log.sync()
            self._point.cursor = self.state.cursor
            self._last_arrival = self._clock.now() - self.state.silent_s  # there was no entry point to publish to since
            self.standby = False

    def _rewrite(self) -> None:
        self.log.rewrite([queue.snapshot() for queue in self.queues.values()], self.state.facts())

    def step_down(self, moved_to: str) -> None:
        """Another node serves the stream now, at this address if it is known: publishers and readers are sent there."""
        self._moved_to = moved_to  # without the lock: its holder may wait for the disk
        for queue in self.queues.values():
            queue.close(moved_to or None)

    # -- the log

    def close(self) -> None:
        """Let go of the log; it is not written any more."""
        with self.lock:
            self._closed = True
            self.log.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StateError(f"stream {self.queue.stream} is closed here")

    def trim(self) -> None:
        """Delete from the log what no reader needs any more."""
        late = self.late.status()
        if min(late.readers.values(), default=late.next_id) >= late.next_id:
            with self.lock if self.standby else nullcontext():  # the log of a standby may be rewritten meanwhile
                self.log.trim(self.queue.first_id)
