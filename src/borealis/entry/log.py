"""What an entry point keeps of itself outside the queues: steps, on disk or on their way to its peer, and facts.

A step is what one batch, or silence, adds to the stream and to its late side. As a record it is a JSON head (ids,
places of the boundaries, facts) and one Arrow stream for each side that has tuples. Later facts take the place of
earlier ones.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.state.delta import from_stream
from borealis.streams.section import NOTHING, Section, boundary_only, empty_rows, from_batch
from borealis.streams.segments import SegmentLog
from borealis.streams.snapshot import QueueSnapshot
from borealis.tuples import FIRST_TIME

PUBLISHER = "publisher:"  # before its name, among the facts
MARK = "mark:"  # before the name of a publisher that leaves marks
Facts = dict[str, Any]


def facts_of(
    epochs: Sequence[str], cursor: Cursor, publishers: Mapping[str, int], marks: Mapping[str, str] | None = None
) -> Facts:
    """What holds for both sides of a stream; a step adds where they end."""
    return {
        "epochs": list(epochs),
        "cursor": dict(vars(cursor)),
        **{PUBLISHER + name: number for name, number in publishers.items()},
        **{MARK + name: mark for name, mark in (marks or {}).items()},
    }


def cursor_in(facts: Mapping[str, Any]) -> Cursor:
    """How far the input had come."""
    return Cursor(**facts["cursor"]) if "cursor" in facts else Cursor()


def publishers_in(facts: Mapping[str, Any]) -> dict[str, int]:
    """The last batch of each publisher."""
    return {k.removeprefix(PUBLISHER): n for k, n in facts.items() if k.startswith(PUBLISHER)}


def marks_in(facts: Mapping[str, Any]) -> dict[str, str]:
    """Where each publisher was in its own source, of those that say so."""
    return {k.removeprefix(MARK): mark for k, mark in facts.items() if k.startswith(MARK)}


@dataclass(frozen=True)
class Step:
    """Sections of a stream and of its late side that are taken together, and the facts after them."""

    on_time: Section
    late: Section
    facts: Facts
    came: tuple[dict[str, Any], list[Any]] | None = field(default=None, repr=False, compare=False)  # as this record

    @property
    def sections(self) -> tuple[Section, Section]:
        """Both sides."""
        return self.on_time, self.late

    @cached_property  # for the peer and for the log
    def record(self) -> tuple[dict[str, Any], list[Any]]:
        """As the head and the blobs of a record."""
        if self.came is not None:
            return self.came
        head = {
            "first": self.on_time.first,
            "stop": self.on_time.stop,
            "parts": [_places(s) for s in self.sections],
            "facts": self.facts | _ends(self.sections),
        }
        return head, [_tuples(s) for s in self.sections]

    @classmethod
    def of(cls, head: dict[str, Any], blobs: list[Any], schema: pa.Schema) -> Step:
        """From a record; the rows stay in its bytes."""
        parts = zip(head["parts"], blobs, strict=True)
        on_time, late = (_section(part, pa.py_buffer(blob), schema) for part, blob in parts)
        return cls(on_time, late, head["facts"], (head, blobs))


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
    with pa.ipc.new_stream(sink, batch.schema) as writer:
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
class Kept:
    """What an entry point's log holds: facts, and the sections of the stream and of its late side."""

    log: SegmentLog
    first: list[int] = field(default_factory=lambda: [0, 0])
    standing: list[int] = field(default_factory=lambda: [FIRST_TIME, FIRST_TIME])
    sections: tuple[list[Section], list[Section]] = field(default_factory=lambda: ([], []))

    @classmethod
    def read(cls, root: Path, stream: str, schema: pa.Schema) -> Kept:
        """Everything that is there; the log is ready to be written then."""
        log = _log(root, stream, schema)
        kept = cls(log)
        for number, (head, blobs) in enumerate(log.open()):
            if not number:  # how things stood before the oldest record
                kept.first = list(head["facts"].get("next", [head["first"], 0]))
                kept.standing = list(head["facts"].get("boundary", kept.standing))
                continue
            for part, sections in zip(Step.of(head, blobs, schema).sections, kept.sections, strict=True):
                if len(part) or len(part.bound):
                    sections.append(part)
        return kept

    def snapshot(
        self, stream: str, schema: pa.Schema, readers: Sequence[str], which: int, epoch: str | None = None
    ) -> QueueSnapshot:
        """A queue as it is to be served again, under the epoch that is given; who read it says itself from where."""
        sections, first, facts = self.sections[which], self.first[which], self.log.facts
        return QueueSnapshot(
            stream,
            schema,
            epoch or (facts["epochs"][which] if "epochs" in facts else uuid.uuid4().hex[:16]),
            first,
            facts["next"][which] if "next" in facts else first,
            facts["boundary"][which] if "boundary" in facts else self.standing[which],
            0,
            dict.fromkeys(readers, (first, first, 0)),
            tuple(sections),
            tuple((a, b) for a, b in facts["jumps"][which]) if "jumps" in facts else (),
        )


def note_ends(log: SegmentLog, ends: Sequence[tuple[int, int]], facts: Facts, schema: pa.Schema) -> None:
    """Where both sides end: the ids of the next tuples, which may be far behind the last ones, and the boundaries."""
    on_time, late = (boundary_only(next_id, schema, NOTHING, boundary) for next_id, boundary in ends)
    head, blobs = Step(on_time, late, facts).record
    log.append(head | {"first": log.next_id}, blobs)


def written_anew(
    root: Path, stream: str, schema: pa.Schema, snapshots: Sequence[QueueSnapshot], facts: Facts
) -> SegmentLog:
    """A log that holds what the queues do, in place of whatever was there; the old one must be closed."""
    shutil.rmtree(root, ignore_errors=True)
    log = _log(root, stream, schema)
    ends = [boundary_only(s.first_id, schema, NOTHING, _standing(s)) for s in snapshots]
    log.next_id, log.facts = ends[0].first, facts | _ends(ends)
    try:
        for _ in log.open():
            pass
        for parts in zip_longest(*(s.sections for s in snapshots)):
            ends = [_none_behind(end) if part is None else part for part, end in zip(parts, ends, strict=True)]
            head, blobs = Step(ends[0], ends[1], {}).record
            log.append(head | {"first": log.next_id}, blobs, sync=False)
        jumps = {"jumps": [s.jumps for s in snapshots]} if any(s.jumps for s in snapshots) else {}
        note_ends(log, [(s.next_id, s.boundary) for s in snapshots], jumps, schema)
    except BaseException:
        log.close()
        raise
    return log


def _standing(snapshot: QueueSnapshot) -> int:
    return snapshot.sections[0].standing if snapshot.sections else snapshot.boundary


def _none_behind(end: Section) -> Section:
    return boundary_only(end.stop, end.rows.schema, NOTHING, end.final)


def _log(root: Path, stream: str, schema: pa.Schema) -> SegmentLog:
    return SegmentLog(root, {"stream": stream, "columns": schema.to_string()})
