"""The entry point of a diagram's input on a node: publishers write to it, and it is a stream like any other from there.

What it promises to a publisher:

1. Batches are taken in the order of their numbers, each once: one that comes again is answered, not taken again.
2. A batch is taken whole or not at all; its tuples get consecutive ids, and boundaries are written among them.
3. If the input is durable, the batch is on disk before it is acknowledged, and before anybody sees it.
4. If the stream's queue is full, the answer waits until there is room.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.clock import Clock, WallClock
from borealis.diagram.spec import Input
from borealis.emit.queue import OutputQueue
from typing import Any as SegmentLog
from borealis.errors import InputError, StateError
from borealis.ingest.entry import Admitted, Cursor, EntryPoint
from borealis.section import Section, boundary_only, empty_rows, section
from borealis.state.delta import from_stream, to_stream
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME
from borealis.wire.messages import BatchHead, Receipt


class Entry:
    """Takes batches from publishers, gives their tuples ids, times and boundaries, and serves them. Thread-safe."""

    def __init__(
        self, spec: Input, pace_us: int, queue: OutputQueue, late: OutputQueue, clock: Clock | None = None
    ) -> None:
        self.spec, self.queue, self.late = spec, queue, late
        self.schema = queue.schema
        self._clock = clock or WallClock()
        self._point = EntryPoint(spec, pace_us, Cursor())
        self._publishers: dict[str, int] = {}
        self._lock = threading.Lock()
        self._last_arrival = self._clock.now()
        self._log: SegmentLog | None = None

    # -- publishers

    def known(self, publisher: str) -> Receipt:
        """How far a publisher had come."""
        with self._lock:
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
        if self.spec.idle_us is None:
            return
        with self._lock:
            cursor = self._point.cursor
            silent_us = int((self._clock.now() - self._last_arrival) * 1e6)
            if cursor.ended or cursor.newest == FIRST_TIME or silent_us < self.spec.idle_us:
                return
            bound = self._point.idle(cursor.newest + silent_us - self.spec.slack_us)
            if bound is None or not self.queue.has_room():
                return
            tail = boundary_only(self.queue.next_id, self.schema, np.array([bound], np.int64), self.queue.boundary)
            nothing = boundary_only(self.late.next_id, self.schema, np.empty(0, np.int64), self.late.boundary)
            self._keep(None, -1, tail, nothing)
            self._append(tail, nothing)

    # -- the log

    def _keep(self, publisher: str | None, number: int, on_time: Section, late: Section) -> None:
        if self._log is None:
            return
        blobs = [to_stream(_with_time(on_time)), to_stream(_with_time(late))]
        head = {
            "first": on_time.first,
            "stop": on_time.stop,
            "parts": [_facts(on_time), _facts(late)],
            "sizes": [b.size for b in blobs],
            "publisher": publisher,
            "number": number,
            "cursor": asdict(self._point.cursor),
        }
        self._log.append(head, b"".join(memoryview(b) for b in blobs))

    def _recover(self, root: Path) -> None:
        belongs = {"stream": self.queue.stream, "columns": self.schema.to_string()}
        self._log = SegmentLog(root, belongs, state=self._state)
        for head, data in self._log.open():
            self._replay(head, data)

    def _state(self) -> dict[str, Any]:
        """What a new segment begins with, so that older ones can go."""
        return {
            "epoch": self.queue.epoch,
            "publishers": dict(self._publishers),
            "cursor": asdict(self._point.cursor),
            "next": [self.queue.next_id, self.late.next_id],
            "boundary": [self.queue.boundary, self.late.boundary],
        }

    def _replay(self, head: Mapping[str, Any], data: bytes) -> None:
        raise NotImplementedError

    def trim(self) -> None:
        """Delete from the log what no reader needs any more."""
        if self._log is not None:
            self._log.trim(self.queue.first_id)

    def close(self) -> None:
        """Let go of the log."""
        if self._log is not None:
            self._log.close()


def _facts(part: Section) -> dict[str, Any]:
    return {"first": part.first, "at": part.at.tolist(), "bound": part.bound.tolist(), "standing": part.standing}


def _with_time(part: Section) -> pa.Table:
    return pa.table(part.rows).append_column(TIME, pa.array(part.time))
