"""A queue at one moment, or what is new in it since another: as an object, and as bytes for another node or a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.errors import StateError
from borealis.of_schema import OfSchema
from borealis.state import frame
from borealis.state.delta import WRITE
from borealis.streams.id_gaps import Interval, Jumps
from borealis.streams.section import Section, from_batch, joined, wire_schema
from borealis.tuples import TIME, Int64s

MARK, BEFORE = b"BQS6", b"BQS5"  # in which boundaries were an Arrow stream, too
PIECE_BYTES = 1 << 20
_FACTS = ("stream", "epoch", "first_id", "next_id", "boundary", "dropped", "readers", "jumps")


@dataclass(frozen=True)
class QueueSnapshot:
    """A queue at one moment: what it held (or, as an increment, what of that is new), and how far its readers were.

    As bytes: a frame with an Arrow stream, one batch of tuples per section, and the boundaries as plain numbers, of
    each section where they are and then what they say. Small sections go together: a queue of many that took a moment
    each would keep its node's other threads waiting.
    """

    stream: str
    schema: pa.Schema
    epoch: str
    first_id: int
    next_id: int
    boundary: int
    dropped: int
    readers: Mapping[str, tuple[int, int, int, int]] = field(default_factory=dict)  # level 0, level 1, lost, went back
    sections: tuple[Section, ...] = ()
    jumps: tuple[Interval, ...] = ()  # ids that were left out

    def to_bytes(self) -> bytes:
        """All of it, for another node or for a disk."""
        if not self.sections:
            head = {name: getattr(self, name) for name in _FACTS} | {"sections": []}
            return frame.pack(MARK, head, _no_sections(self.schema))
        sections, tuples, schema = _in_pieces(self.sections), pa.BufferOutputStream(), wire_schema(self.schema)
        with pa.ipc.new_stream(tuples, schema, options=WRITE) as rows:
            for s in sections:
                rows.write_batch(s.batch(schema))
        boundaries = np.concatenate([numbers for s in sections for numbers in (s.at, s.bound)])
        each = [{"first": s.first, "standing": s.standing, "boundaries": len(s.at)} for s in sections]
        head = {name: getattr(self, name) for name in _FACTS} | {"sections": each}
        return frame.pack(MARK, head, [tuples.getvalue(), boundaries.astype("<i8", copy=False).tobytes()])

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer) -> QueueSnapshot:
        """The queue in these bytes, checked; a StateError if they are something else or damaged."""
        try:
            is_before = bytes(memoryview(data)[: len(BEFORE)]) == BEFORE
            head, (rows, bounds) = frame.unpack(BEFORE if is_before else MARK, data)
            user, tuples = _read(rows) if head["sections"] else _read_once(rows.to_pybytes())
            boundaries = _boundaries_before(head, bounds) if is_before else np.frombuffer(bounds, "<i8")
            facts = {name: head[name] for name in _FACTS}
            facts["jumps"] = tuple((int(a), int(b)) for a, b in head["jumps"])
            readers = head["readers"].items()
            facts["readers"] = {name: (int(a), int(b), int(lost), int(back)) for name, (a, b, lost, back) in readers}
            sections = _sections(head, user, tuples, boundaries)
            _check_row(sections, head["next_id"], Jumps(facts["jumps"]))
            return cls(schema=user, sections=tuple(sections), **facts)
        except (ValueError, KeyError, TypeError, pa.ArrowException, OSError) as error:
            what = " ".join(str(error).split())
            raise StateError(f"these bytes are not a queue of this version, or damaged: {what}") from error


def _in_pieces(sections: Sequence[Section]) -> list[Section]:
    """The same tuples and boundaries, in as few sections as may be, none much larger than a piece."""
    runs, size = list[list[Section]](), 0
    for one in sections:
        if runs and size + one.nbytes <= PIECE_BYTES and runs[-1][-1].is_continued_by(one):
            runs[-1].append(one)
            size += one.nbytes
        else:
            runs.append([one])
            size = one.nbytes
    return [joined(run) for run in runs]


def _stream(schema: pa.Schema) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    return sink.getvalue()


@OfSchema
def _no_sections(schema: pa.Schema) -> tuple[pa.Buffer, bytes]:
    """As most increments are."""
    return _stream(wire_schema(schema)), b""


def _read(data: bytes | pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The columns of the stream's rows, and all batches."""
    with pa.ipc.open_stream(data) as reader:
        return pa.schema([field for field in reader.schema if field.name != TIME], reader.schema.metadata), list(reader)


_read_once = lru_cache(256)(_read)  # of what has no sections: the same again and again


def _boundaries_before(head: dict[str, Any], data: pa.Buffer) -> Int64s:
    """Those in storage from before; each section is told how many are its own."""
    found = [np.empty(0, np.int64)]
    for each, batch in zip(head["sections"], _read(data)[1], strict=True):
        each["boundaries"] = len(batch)
        found += (batch.column("at").to_numpy(), batch.column("bound").to_numpy())
    return np.concatenate(found)


def _sections(head: dict[str, Any], user: pa.Schema, tuples: list[pa.RecordBatch], boundaries: Int64s) -> list[Section]:
    found, start = [], 0
    for rows, each in zip(tuples, head["sections"], strict=True):
        middle = start + int(each["boundaries"])
        stop = middle + int(each["boundaries"])
        at = (boundaries[start:middle], boundaries[middle:stop], each["standing"])
        one = from_batch(rows, user, int(each["first"]), at)
        one.check()
        found.append(one)
        start = stop
    if start != len(boundaries):
        raise ValueError(f"{len(boundaries)} numbers of boundaries instead of {start}")
    return found


def _check_row(sections: list[Section], next_id: int, jumps: Jumps) -> None:
    """Each follows the one before it, and the queue's end the last, but for ids that were left out."""
    for at, one in enumerate(sections, 1):
        first = sections[at].first if at < len(sections) else next_id
        if first < one.stop or jumps.tuples(one.stop, first):
            raise ValueError(f"tuples up to {one.stop}, then {first}")
