"""What an entry point keeps of itself outside the queues: facts, and for a durable input a log of steps.

A step is what one batch, or silence, adds to the stream and to its late side. As a record it is a JSON head (ids,
places of the boundaries, facts) and one Arrow stream for each side that has tuples. Later facts take the place of
earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.errors import FullError, StateError
from borealis.machine import HERE, Machine
from borealis.state.delta import WRITE, from_stream
from borealis.streams.section import NOTHING, Section, boundary_only, empty_rows, from_batch
from borealis.streams.segments import SegmentLog
from borealis.streams.snapshot import QueueSnapshot
from borealis.tuples import FIRST_TIME
from borealis.wire.messages import LogStatus

ROOM_BYTES = 1 << 16  # for what a log needs beside the tuples; a disk that has not even that is full
PUBLISHER = "publisher:"  # before its name, among the facts
MARK = "mark:"  # before the name of a publisher that leaves marks
Facts = dict[str, Any]


@dataclass
class EntryState:
    """All that an entry point knows beside its queues."""

    cursor: Cursor = field(default_factory=Cursor)
    publishers: dict[str, int] = field(default_factory=dict)  # the last batch of each
    marks: dict[str, str] = field(default_factory=dict)  # where each was in its own source, of those that say so
    steps: int = 0  # batches, and boundaries that silence wrote
    silent_s: float = 0.0  # without a batch before the last step

    def facts(self) -> Facts:
        return {
            "cursor": dict(vars(self.cursor)),
            "steps": self.steps,
            "silent_s": self.silent_s,
            **{PUBLISHER + name: number for name, number in self.publishers.items()},
            **{MARK + name: mark for name, mark in self.marks.items()},
        }

    def apply(self, facts: Mapping[str, Any]) -> None:
        if "cursor" in facts:
            self.cursor = Cursor(**facts["cursor"])
        self.steps = facts.get("steps", self.steps)
        self.silent_s = facts.get("silent_s", self.silent_s)
        self.publishers |= {k.removeprefix(PUBLISHER): n for k, n in facts.items() if k.startswith(PUBLISHER)}
        self.marks |= {k.removeprefix(MARK): mark for k, mark in facts.items() if k.startswith(MARK)}


@dataclass(frozen=True)
class EntryStep:
    """Sections that are taken together, and the facts after them."""

    sections: Sequence[Section]  # of the stream, and of its late side
    facts: Facts

    def record(self) -> tuple[dict[str, Any], list[Any]]:
        """As the head and the blobs of a record."""
        head = {
            "first": self.sections[0].first,
            "stop": self.sections[0].stop,
            "parts": [_places(s) for s in self.sections],
            "facts": self.facts | _ends(self.sections),
        }
        return head, [_tuples(s) for s in self.sections]

    @classmethod
    def of(cls, head: dict[str, Any], blobs: list[Any], schemas: Sequence[pa.Schema]) -> EntryStep:
        """From a record; the rows stay in its bytes."""
        parts = zip(head["parts"], blobs, schemas, strict=True)
        return cls([_section(part, pa.py_buffer(blob), schema) for part, blob, schema in parts], head["facts"])


def _ends(sections: Sequence[Section]) -> Facts:
    return {"next": [s.stop for s in sections], "boundary": [s.final for s in sections]}


def _places(part: Section) -> dict[str, Any]:
    return {"first": part.first, "at": part.at.tolist(), "bound": part.bound.tolist(), "standing": part.standing}


def _tuples(part: Section) -> bytes | pa.Buffer:
    """As one Arrow stream; nothing if there are none."""
    if not len(part):
        return b""
    batch = part.batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=WRITE) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _section(places: Mapping[str, Any], data: pa.Buffer, schema: pa.Schema) -> Section:
    at, bound = (np.array(places[name], np.int64) for name in ("at", "bound"))
    first, standing = places["first"], places["standing"]
    if not data.size:
        return Section(first, _no_rows(schema), NOTHING, at, bound, standing)
    return from_batch(from_stream(data).to_batches()[0], schema, first, (at, bound, standing))


@lru_cache(maxsize=64)
def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return empty_rows(schema)


@dataclass
class Logged:
    """What a log held when it was read: facts, and the sections of the stream and of its late side."""

    facts: Facts = field(default_factory=dict)
    first: list[int] = field(default_factory=lambda: [0, 0])
    standing: list[int] = field(default_factory=lambda: [FIRST_TIME, FIRST_TIME])
    sections: tuple[list[Section], list[Section]] = field(default_factory=lambda: ([], []))

    def epoch(self, which: int) -> str | None:
        """Of a queue that was there before."""
        return str(self.facts["epochs"][which]) if "epochs" in self.facts else None

    def snapshot(self, stream: str, schema: pa.Schema, readers: Sequence[str], which: int, epoch: str) -> QueueSnapshot:
        """A queue as it is to be served again, under the epoch that is given; readers say themselves from where."""
        sections, first, facts = self.sections[which], self.first[which], self.facts
        return QueueSnapshot(
            stream,
            schema,
            epoch,
            first,
            facts.get("next", self.first)[which],
            facts.get("boundary", self.standing)[which],
            0,
            dict.fromkeys(readers, (first, first, 0, 0)),
            tuple(sections),
            tuple((a, b) for a, b in facts.get("jumps", ((), ()))[which]),
        )


@dataclass(frozen=True)
class LogFailure:
    """Why the log takes nothing."""

    error: StateError
    since: float  # seconds since 1970
    needs: int  # bytes

    @property
    def full(self) -> bool:
        """Whether room is all that is missing."""
        return isinstance(self.error, FullError)


class EntryLog:
    """The steps of a durable entry point on disk; without a root, nothing is kept."""

    def __init__(
        self, root: Path | None, stream: str, schemas: Sequence[pa.Schema], node: str = "", machine: Machine = HERE
    ) -> None:
        self.root, self.node = root, node
        self._machine, self._disk = machine, machine.disk
        self.failure: LogFailure | None = None
        self._stream, self._schemas = stream, schemas  # of the stream, and of its late side
        self._segments: SegmentLog | None = None
        self._claimed: SegmentLog | None = None  # not read

    @property
    def missing(self) -> bool:
        """Whether it should be there and is not, since it could not be rewritten."""
        return self.root is not None and self._segments is None

    def claim(self) -> None:
        """Have the directory before anything is written to it: of another process it is not taken, nor deleted."""
        if self.root is not None:
            self._claimed = self._new(self.root)

    def read(self) -> Logged:
        """Everything that is there; the log is ready to be written then."""
        found = Logged()
        if self.root is None:
            return found
        self._segments = log = self._new(self.root)
        for number, (head, blobs) in enumerate(log.open()):
            if not number:  # how things stood before the oldest record
                found.first = list(head["facts"].get("next", [head["first"], 0]))
                found.standing = list(head["facts"].get("boundary", found.standing))
                continue
            for part, sections in zip(EntryStep.of(head, blobs, self._schemas).sections, found.sections, strict=True):
                if len(part) or len(part.bound):
                    sections.append(part)
        found.facts = dict(log.facts)
        return found

    def append(self, step: EntryStep, *, sync: bool = True) -> None:
        """Keep one more step; with `sync` it will survive when this returns."""
        if self.root is None:
            return
        self.try_again()
        if self.failure is not None:
            raise type(self.failure.error)(self.failure.error.message, hint=self.failure.error.hint)
        if self._segments is None:
            raise StateError(f"the log in {self.root} is not there")
        head, blobs = step.record()
        try:
            self._segments.append(head | {"first": self._segments.next_id}, blobs, sync)
        except StateError as error:
            raise self._failed(error, sum(map(len, blobs))) from error
        self.failure = None

    def rewrite(self, snapshots: Sequence[QueueSnapshot], facts: Facts) -> None:
        """Hold what the queues do, in place of all that is there. Where there is no room for it, nothing changes."""
        if self.root is None:
            return
        count = sum(section.nbytes for s in snapshots for section in s.sections)
        self._check_room(self.root, count)
        try:
            self._segments, self.failure = self._rewritten(self.root, snapshots, facts), None
        except StateError as error:
            raise self._failed(error, count) from error

    def _rewritten(self, root: Path, snapshots: Sequence[QueueSnapshot], facts: Facts) -> SegmentLog:
        self.close()
        self._segments = None
        self._disk.remove_all(root)
        log = self._new(root)
        standing = [s.sections[0].standing if s.sections else s.boundary for s in snapshots]
        ends = [boundary_only(s.first_id, s.schema, NOTHING, b) for s, b in zip(snapshots, standing, strict=True)]
        log.next_id, log.facts = ends[0].first, facts | _ends(ends)
        try:
            for _ in log.open():
                pass
            for parts in zip_longest(*(s.sections for s in snapshots)):
                behind = (boundary_only(end.stop, end.rows.schema, NOTHING, end.final) for end in ends)
                ends = [end if part is None else part for part, end in zip(parts, behind, strict=True)]
                head, blobs = EntryStep(ends, {}).record()
                log.append(head | {"first": log.next_id}, blobs, sync=False)
            jumps = {"jumps": [s.jumps for s in snapshots]} if any(s.jumps for s in snapshots) else {}
            ends = [boundary_only(s.next_id, s.schema, NOTHING, s.boundary) for s in snapshots]
            head, blobs = EntryStep(ends, jumps).record()
            log.append(head | {"first": log.next_id}, blobs)
        except BaseException:
            log.close()
            raise
        return log

    def _new(self, root: Path) -> SegmentLog:
        belongs = {"stream": self._stream, "columns": self._schemas[0].to_string()}
        return SegmentLog(root, belongs, machine=self._machine)

    def _check_room(self, root: Path, count: int) -> None:
        segments = [name for name in self._disk.names(root) if name.startswith("segment-")]
        held = sum(self._disk.size(root / name) for name in segments)
        if not self._disk.has_room(root, max(0, count - held) + ROOM_BYTES):
            error = FullError(f"cannot rewrite the log in {root}: there is no room for {count:,} bytes")
            raise self._failed(error, count)

    def _failed(self, error: StateError, count: int) -> StateError:
        """The log does not take so many bytes: remember it for the status, and say where the disk is."""
        if isinstance(error, FullError):
            where = f"the disk of {self.node} is full" if self.node else "the disk is full"
            hint = "make room there; what was not acknowledged was not taken, and is taken when it is sent again"
            error = FullError(f"{where}: {error.message}", hint=hint)
        since = self.failure.since if self.failure is not None else self._machine.clock.time()
        self.failure = LogFailure(error, since, count + ROOM_BYTES)
        return error

    def try_again(self) -> None:
        """Look whether a disk that was full has room again, or one that failed works. To be called now and then."""
        failure = self.failure
        if self.root is None or failure is None:
            return
        if failure.full:
            if self._disk.has_room(self.root, failure.needs):
                self.failure = None
        elif self._segments is not None and self._segments.unsure:  # what the queues hold is written again
            self._segments.close()
            self._segments = None
        elif self._segments is not None:
            with suppress(StateError):
                self._segments.go_on()
                self.failure = None

    def status(self) -> LogStatus | None:
        """How the log stands; None where there is none."""
        log, failure = self._segments, self.failure
        if self.root is None or (log is None and failure is None):
            return None
        return LogStatus(
            stream=self._stream,
            path=str(self.root),
            held_bytes=0 if log is None else log.held_bytes,
            free_bytes=self._disk.free_bytes(self.root),
            error=failure.error.message if failure is not None else "",
            full=failure is not None and failure.full,
            since=failure.since if failure is not None else 0.0,
        )

    def sync(self) -> None:
        """Wait until all of it survives."""
        if self._segments is not None:
            self._segments.sync()

    def trim(self, upto: int) -> None:
        """Delete what lies before a tuple."""
        if self._segments is not None:
            self._segments.trim(upto)

    def close(self) -> None:
        for log in (self._segments, self._claimed):
            if log is not None:
                log.close()
        self._claimed = None

    def erase(self) -> None:
        """Delete a log that is closed: its diagram is no more, and the next of its name is new."""
        if self.root is not None:
            self._disk.remove_all(self.root)
