"""`borealis send` from a topic of Kafka: follows it for ever, and is exactly once whoever is killed.

1. Each batch carries a mark: the offsets behind it, or, for a part of a batch that was too large for the wire, the
   records of the whole and how many rows of it have gone.
2. The entry point keeps the mark with the number of the batch, as safe as the batch itself.
3. A restart under the same name is told the last mark, and goes on there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pydantic import TypeAdapter

from borealis.client.publisher import Publisher, pieces
from borealis.connectors.kafka.from_topic import KafkaSource, source_at
from borealis.connectors.kafka.ledger import OffsetRange
from borealis.connectors.kafka.reader import TakenRecords, TopicReader
from borealis.errors import InputError, StreamError
from borealis.kernels.time_of import TimeOf, note_in
from borealis.tuples import TIMESTAMP

ROWS_MOST = 16_384  # of a batch


@dataclass(frozen=True)
class Mark:
    """Where a follower is in its topic: the next record of each partition, and which batch was sent only in part."""

    topic: str
    offsets: Mapping[int, int]
    parts: tuple[OffsetRange, ...] = ()  # of that batch; its records come before `offsets`
    sent: int = 0  # rows of it
    ends: Mapping[int, int] | None = None

    def to_text(self) -> str:
        """For the entry point."""
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, publisher: str) -> Mark:
        """As the entry point has it; an InputError if somebody else left it there."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValueError as error:
            raise InputError(
                f"the mark of publisher '{publisher}' is of something else than a topic",
                hint="give another --publisher",
            ) from error


def publisher_of(url: str) -> str:
    """The name under which a topic is followed, unless another one is given."""
    return f"kafka.{source_at(url).topic}"


def time_of(schema: pa.Schema, stream: str, given: str | None) -> TimeOf:
    """How a record gets its time: one that has none would be refused with its whole batch."""
    if given is None and (noted := note_in(schema)) is not None:
        return noted
    times = [field.name for field in schema if field.type == TIMESTAMP]
    if given is not None and given in times:
        return TimeOf(given)
    if given is None and len(times) == 1:
        return TimeOf(str(times[0]))
    hint = f"say which is its time: --time {times[0]}" if times else "only inputs can be sent to"
    raise StreamError(f"stream {stream} has {len(times)} TIMESTAMP columns: {', '.join(times) or 'none'}", hint=hint)


class TopicFollower:
    """Follows a topic for a publisher. `batches` gives what to send, each with its mark."""

    def __init__(self, url: str, out: Publisher, time: str | None) -> None:
        self.source: KafkaSource = source_at(url)
        self.source.begin(out.stream, time_of(out.schema, out.stream, time), None)
        self._out = out
        self._known = None if out.mark is None else Mark.from_text(out.mark, out.name)
        if self._known is not None and self._known.topic != self.source.topic:
            raise InputError(
                f"publisher '{out.name}' of {out.stream} followed topic '{self._known.topic}' before",
                hint="give another --publisher",
            )

    @property
    def resumes(self) -> bool:
        """Whether this goes on where an earlier one was."""
        return self._known is not None

    def batches(self, heard: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, str]]:
        """What to send; `heard` is called now and then, also while nothing comes."""
        reader = self.source.reader(self._out.schema)
        try:
            start, ends = self._begin(reader)
            if self._known is not None and self._known.parts:
                [rows] = reader.read_again([self._known.parts], ends)
                yield from self._parts(TakenRecords(rows, self._known.parts, ()), start, ends, self._known.sent)
            reader.begin(start, ends)
            while not reader.is_done:
                heard()
                taken = reader.take(ROWS_MOST)
                if taken is not None:
                    self.source.bury(taken)
                    yield from self._parts(taken, reader.offsets, ends, 0)
        finally:
            reader.close()
            self.source.dead_letters.close()

    def _begin(self, reader: TopicReader) -> tuple[Mapping[int, int], Mapping[int, int] | None]:
        if self._known is not None:
            return self._known.offsets, self._known.ends
        base = self.source.base(reader)
        return base.offsets, base.ends

    def _parts(
        self, taken: TakenRecords, offsets: Mapping[int, int], ends: Mapping[int, int] | None, sent: int
    ) -> Iterator[tuple[pa.RecordBatch, str]]:
        """The batch in parts that the wire takes."""
        total = taken.rows.num_rows
        for part in pieces(taken.rows.slice(sent)):
            sent += part.num_rows
            whole = Mark(self.source.topic, offsets, ends=ends)
            some = Mark(self.source.topic, offsets, taken.parts, sent, ends)
            yield part, (whole if sent == total else some).to_text()
