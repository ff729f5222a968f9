"""The entry point of a diagram's input on a node: publishers write to it, and it is a stream like any other from there.

What it promises to a publisher:

1. Batches are taken in the order of their numbers, each once: one that comes again is answered, not taken again.
2. A batch is taken whole or not at all; its tuples get consecutive ids, and boundaries are written among them.
3. If the input is durable, the batch is on disk before it is acknowledged, and before anybody sees it.
4. If the stream's queue is full, the answer waits until there is room.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.clock import Clock, WallClock
from borealis.diagram.spec import LATE, Input
from borealis.emit.queue import OutputQueue, QueueLimits, QueueSnapshot
from borealis.emit.segments import SegmentLog
from borealis.errors import InputError
from borealis.ingest.entry import Admitted, Cursor, EntryPoint
from borealis.section import Section, boundary_only, section
from borealis.state.delta import from_stream, to_stream
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME
from borealis.wire.messages import BatchHead, Receipt

PUBLISHER = "publisher:"  # before its name, among the facts of a log


@dataclass(frozen=True)
class Place:
    """The stream that an entry point serves: its name, its columns, and who reads it and its late side."""

    stream: str
    schema: pa.Schema
    limits: QueueLimits = field(default_factory=QueueLimits)
    readers: Sequence[str] = ()
    late_readers: Sequence[str] = ()


@dataclass
class Kept:
    """What an entry point's log holds: facts, and the sections of the stream and of its late side."""

    log: SegmentLog
    first: list[int] = field(default_factory=lambda: [0, 0])
    standing: list[int] = field(default_factory=lambda: [FIRST_TIME, FIRST_TIME])
    sections: tuple[list[Section], list[Section]] = field(default_factory=lambda: ([], []))

    @classmethod
    def read(cls, root: Path, stream: str, schema: pa.Schema) -> Kept:
        """Everything that is there; the log is ready to be written then."""
        log = SegmentLog(root, {"stream": stream, "columns": schema.to_string()})
        kept = cls(log)
        for number, (head, data) in enumerate(log.open()):
            if not number:  # how things stood before the oldest record
                kept.first = list(head["facts"].get("next", [head["first"], 0]))
                kept.standing = list(head["facts"].get("boundary", kept.standing))
                continue
            at = 0
            for part, size, sections in zip(head["parts"], head["sizes"], kept.sections, strict=True):
                section = _section(part, data[at : at + size], schema)
                at += size
                if len(section) or len(section.bound):
                    sections.append(section)
        return kept

    def cursor(self) -> Cursor:
        """How far the input had come."""
        return Cursor(**self.log.facts["cursor"]) if "cursor" in self.log.facts else Cursor()

    def publishers(self) -> dict[str, int]:
        """The last batch of each publisher."""
        return {k.removeprefix(PUBLISHER): n for k, n in self.log.facts.items() if k.startswith(PUBLISHER)}

    def snapshot(self, stream: str, schema: pa.Schema, readers: Sequence[str], which: int) -> QueueSnapshot:
        """A queue as it is to be served again; who read it says itself from where."""
        sections, first = self.sections[which], self.first[which]
        return QueueSnapshot(
            stream,
            schema,
            self.log.facts["epochs"][which] if "epochs" in self.log.facts else uuid.uuid4().hex[:16],
            first,
            sections[-1].stop if sections else first,
            sections[-1].final if sections else self.standing[which],
            0,
            dict.fromkeys(readers, (first, first, 0)),
            tuple(sections),
        )


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
    ) -> None:
        self.spec, self.queue, self.late = spec, queue, late
        self.schema = queue.schema
        self._idle_us, self._slack_us = spec.idle_us, spec.slack_us
        self._clock = clock or WallClock()
        self._log = kept.log if kept else None
        self._point = EntryPoint(spec, pace_us, kept.cursor() if kept else Cursor())
        self._publishers = kept.publishers() if kept else {}
        self._lock = threading.Lock()
        self._last_arrival = self._clock.now()

    @classmethod
    def open(
        cls, spec: Input, pace_us: int, place: Place, log: Path | None = None, clock: Clock | None = None
    ) -> Entry:
        """An entry point; with `log` its batches are kept there, and those that are there already are served again."""
        if log is None:
            queue = OutputQueue(place.stream, place.schema, place.limits, readers=place.readers)
            late = OutputQueue(place.stream + LATE, place.schema, place.limits, readers=place.late_readers)
            return cls(spec, pace_us, queue, late, clock)
        kept = Kept.read(log, place.stream, place.schema)
        queue = OutputQueue.restore(kept.snapshot(place.stream, place.schema, place.readers, 0), place.limits)
        late_name = place.stream + LATE
        late = OutputQueue.restore(kept.snapshot(late_name, place.schema, place.late_readers, 1), place.limits)
        return cls(spec, pace_us, queue, late, clock, kept)

    # -- publishers

    def known(self, publisher: str) -> Receipt:
        """How far a publisher had come; does not wait for others that wait for room."""
        return self._receipt(publisher)

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        """Take a batch, whole or not at all; once it is taken, its number is, too."""
        with self._lock:
            last = self._publishers.get(publisher, -1)
            if head.number <= last:
                return self._receipt(publisher)
            if head.number != last + 1:
                raise InputError(
                    f"publisher '{publisher}' sent batch {head.number} to {self.queue.stream} after batch {last}",
                    hint=f"send batch {last + 1}",
                )
            before = self._point.cursor
            if before.ended:
                raise InputError(f"stream {self.queue.stream} has ended", hint="deploy the diagram anew")
            while not self.queue.wait_for_room(1.0) or not self.late.wait_for_room(1.0):
                continue
            try:
                on_time, late = self._admit(batch, head)
                self._keep(publisher, head.number, on_time, late)
            except BaseException:
                self._point.cursor = before
                raise
            self._publishers[publisher] = head.number
            self._append(on_time, late)
            self._last_arrival = self._clock.now()
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
            cursor = self._point.cursor
            silent_us = int((self._clock.now() - self._last_arrival) * 1e6)
            if cursor.ended or cursor.newest == FIRST_TIME or silent_us < self._idle_us:
                return
            if not self.queue.has_room():
                return
            bound = self._point.idle(cursor.newest + silent_us - self._slack_us)
            if bound is None:
                return
            tail = boundary_only(self.queue.next_id, self.schema, np.array([bound], np.int64), self.queue.boundary)
            nothing = boundary_only(self.late.next_id, self.schema, np.empty(0, np.int64), self.late.boundary)
            try:
                self._keep(None, -1, tail, nothing)
            except BaseException:
                self._point.cursor = cursor
                raise
            self._append(tail, nothing)
        finally:
            self._lock.release()

    # -- the log

    def _keep(self, publisher: str | None, number: int, on_time: Section, late: Section) -> None:
        if self._log is None:
            return
        blobs = [to_stream(on_time.table()), to_stream(late.table())]
        facts = {
            "epochs": [self.queue.epoch, self.late.epoch],
            "next": [on_time.stop, late.stop],
            "boundary": [on_time.final, late.final],
            "cursor": asdict(self._point.cursor),
        }
        head = {
            "first": on_time.first,
            "stop": on_time.stop,
            "parts": [_facts(on_time), _facts(late)],
            "sizes": [b.size for b in blobs],
            "facts": facts | ({PUBLISHER + publisher: number} if publisher is not None else {}),
        }
        self._log.append(head, b"".join(memoryview(b) for b in blobs))

    def trim(self) -> None:
        """Delete from the log what no reader needs any more."""
        late = self.late.status()
        if self._log is not None and min(late.readers.values(), default=late.next_id) == late.next_id:
            self._log.trim(self.queue.first_id)

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()

    def erase(self) -> None:
        """Delete the log of an entry point that is closed: its diagram is no more, and the next of its name is new."""
        if self._log is not None:
            shutil.rmtree(self._log.root, ignore_errors=True)


def _facts(part: Section) -> dict[str, Any]:
    return {"first": part.first, "at": part.at.tolist(), "bound": part.bound.tolist(), "standing": part.standing}


def _section(facts: Mapping[str, Any], data: bytes, schema: pa.Schema) -> Section:
    table = from_stream(data)
    at, bound = (np.array(facts[name], np.int64) for name in ("at", "bound"))
    rows = table.drop_columns([TIME]).cast(schema)
    return section(facts["first"], rows, table[TIME].to_numpy(), at, bound, facts["standing"])
