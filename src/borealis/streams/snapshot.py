"""A queue at one moment, or what is new in it since another: as an object, and as bytes for another node or a disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from borealis.errors import StateError
from borealis.of_schema import OfSchema
from borealis.state import frame
from borealis.state.delta import WRITE
from borealis.streams.id_gaps import Interval, Jumps
from borealis.streams.section import Section, from_batch, joined, wire_schema
from borealis.tuples import TIME

MARK = b"BQS5"
PIECE_BYTES = 1 << 20
_FACTS = ("stream", "epoch", "first_id", "next_id", "boundary", "dropped", "readers", "jumps")
_BOUNDARIES = pa.schema([pa.field("at", pa.int64(), nullable=False), pa.field("bound", pa.int64(), nullable=False)])


@dataclass(frozen=True)
class QueueSnapshot:
    """A queue at one moment: what it held (or, as an increment, what of that is new), and how far its readers were.

    As bytes: a frame with two Arrow streams, one batch of tuples per section, and one of boundaries per section. Small
    sections go together: a queue of many that took a moment each would keep its node's other threads waiting.
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
        sections, (tuples, boundaries) = _in_pieces(self.sections), (pa.BufferOutputStream(), pa.BufferOutputStream())
        schema = wire_schema(self.schema)
        with (
            pa.ipc.new_stream(tuples, schema, options=WRITE) as rows,
            pa.ipc.new_stream(boundaries, _BOUNDARIES, options=WRITE) as bounds,
        ):
            for s in sections:
                rows.write_batch(s.batch(schema))
                pair = [pa.array(s.at, pa.int64()), pa.array(s.bound, pa.int64())]
                bounds.write_batch(pa.RecordBatch.from_arrays(pair, schema=_BOUNDARIES))
        each = [{"first": s.first, "standing": s.standing} for s in sections]
        head = {name: getattr(self, name) for name in _FACTS} | {"sections": each}
        return frame.pack(MARK, head, [tuples.getvalue(), boundaries.getvalue()])

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer) -> QueueSnapshot:
        """The queue in these bytes, checked; a StateError if they are something else or damaged."""
        try:
            head, blobs = frame.unpack(MARK, data)
            if head["sections"]:
                (user, tuples), (_, boundaries) = map(_read, blobs)
            else:
                rows, bounds = blobs
                (user, tuples), (_, boundaries) = _read_once(rows.to_pybytes()), _read_once(bounds.to_pybytes())
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
def _no_sections(schema: pa.Schema) -> tuple[pa.Buffer, pa.Buffer]:
    """As most increments are."""
    return _stream(wire_schema(schema)), _stream(_BOUNDARIES)


def _read(data: bytes | pa.Buffer) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The columns of the stream's rows, and all batches."""
    with pa.ipc.open_stream(data) as reader:
        return pa.schema([field for field in reader.schema if field.name != TIME], reader.schema.metadata), list(reader)


_read_once = lru_cache(256)(_read)  # of what has no sections: the same again and again


def _sections(
    head: dict[str, Any], user: pa.Schema, tuples: list[pa.RecordBatch], boundaries: list[pa.RecordBatch]
) -> list[Section]:
    found = []
    for rows, bounds, each in zip(tuples, boundaries, head["sections"], strict=True):
        at = (bounds.column("at").to_numpy(), bounds.column("bound").to_numpy(), each["standing"])
        one = from_batch(rows, user, int(each["first"]), at)
        one.check()
        found.append(one)
    return found


def _check_row(sections: list[Section], next_id: int, jumps: Jumps) -> None:
    """Each follows the one before it, and the queue's end the last, but for ids that were left out."""
    for at, one in enumerate(sections, 1):
        first = sections[at].first if at < len(sections) else next_id
        if first < one.stop or jumps.tuples(one.stop, first):
            raise ValueError(f"tuples up to {one.stop}, then {first}")
