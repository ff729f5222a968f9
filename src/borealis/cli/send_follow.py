"""`borealis send` from a topic of Kafka or a watched directory: follows it for ever, and sends each row exactly once.

1. Each batch carries a mark, the place behind it. The entry point keeps it with the number of the batch, as safe as the
   batch itself. A restart under the same name gets the last mark from there, and goes on at its place.
2. The mark of a topic has the offsets behind the batch; or, for a part of a batch that was too large for the wire, the
   records of the whole and how many rows of it have gone.
3. The mark of a directory has a position, in the midst of a file or not. A file is noted in the ledger in the state
   directory before a row of it is sent (see connectors/files/watch.py). Without a state directory each start sends all
   files that are there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
from pydantic import TypeAdapter

from borealis.cli.ending import LOOK_EVERY_S
from borealis.client.publisher import Publisher, pieces
from borealis.connectors.addresses import is_topic
from borealis.connectors.files.watch import WatchSource, watch_text
from borealis.connectors.kafka.from_topic import KafkaSource, source_at
from borealis.connectors.kafka.ledger import OffsetRange
from borealis.connectors.kafka.reader import TakenRecords
from borealis.connectors.sources import WATCH
from borealis.disk import make_directory
from borealis.errors import InputError, StreamError
from borealis.kernels.time_of import TimeOf, key_in, note_in
from borealis.state.directory_lock import DirectoryKind, DirectoryLock
from borealis.tuples import TIMESTAMP

ROWS_MOST = 16_384  # of a batch
VERSION = 1
KIND = DirectoryKind("state", "send.json", "sender", "*.files")
OTHER_NAME = "give another --publisher"


@dataclass(frozen=True)
class Mark:
    """Where a follower is."""

    def to_text(self) -> str:
        return json.dumps(vars(self), separators=(",", ":"))

    @classmethod
    def of(cls, out: Publisher, source: str) -> Self | None:
        """As the entry point has it, if there is one; an InputError if a sender from another source left it there."""
        try:
            return None if out.mark is None else TypeAdapter(cls).validate_json(out.mark)
        except ValueError as error:
            message = f"the mark of publisher '{out.name}' is of something else than a {source}"
            raise InputError(message, hint=OTHER_NAME) from error


@dataclass(frozen=True)
class TopicMark(Mark):
    """The next record of each partition, and which batch was sent only in part."""

    topic: str
    offsets: Mapping[int, int]
    parts: tuple[OffsetRange, ...] = ()  # of that batch; its records come before `offsets`
    sent: int = 0  # rows of it
    ends: Mapping[int, int] | None = None


@dataclass(frozen=True)
class DirectoryMark(Mark):
    """How many rows of a directory were sent."""

    watch: str
    position: int


def publisher_of(place: str, given: str | None, state: Path | None) -> str | None:
    """The name to follow a topic or a directory under; a directory has none without a state directory."""
    if is_topic(place):
        return given or f"kafka.{source_at(place).topic}"
    if state is None and given is not None:
        raise InputError(
            f"--publisher {given} needs to know which files were sent before", hint="add --state DIR, and keep it"
        )
    name = given or f"watch.{watch_text(place.removeprefix(WATCH)).directory.absolute().name}"
    return None if state is None else name


def time_of(schema: pa.Schema, stream: str, given: str | None) -> TimeOf:
    """How a record gets its time: one that has none would be refused with its whole batch."""
    if given is None and (noted := note_in(schema)) is not None:
        return noted
    times = [field.name for field in schema if field.type == TIMESTAMP]
    if given in times or (given is None and len(times) == 1):
        return TimeOf(given or times[0])
    hint = f"say which is its time: --time {times[0]}" if times else "only inputs can be sent to"
    raise StreamError(f"stream {stream} has {len(times)} TIMESTAMP columns: {', '.join(times) or 'none'}", hint=hint)


class TopicFollower:
    """Follows a topic for a publisher. `batches` gives what to send, each with its mark."""

    def __init__(self, url: str, out: Publisher, time: str | None) -> None:
        self.source: KafkaSource = source_at(url)
        self.source.begin(out.stream, time_of(out.schema, out.stream, time), None, key_in(out.schema))
        self._out = out
        self._known = TopicMark.of(out, "topic")
        self.resumes = self._known is not None
        if self._known is not None and self._known.topic != self.source.topic:
            raise InputError(
                f"publisher '{out.name}' of {out.stream} followed topic '{self._known.topic}' before", hint=OTHER_NAME
            )

    def batches(self, look: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, str]]:
        """What to send; `look` is called now and then, also while nothing comes."""
        reader = self.source.reader(self._out.schema)
        try:
            known = self._known or self.source.base(reader)
            start, ends = known.offsets, known.ends
            if self._known is not None and self._known.parts:
                [rows] = reader.read_again([self._known.parts], ends)
                yield from self._parts(TakenRecords(rows, self._known.parts, ()), start, ends, self._known.sent)
            reader.begin(start, ends)
            while not reader.is_done:
                look()
                taken = reader.take(ROWS_MOST)
                if taken is not None:
                    self.source.bury(taken)
                    yield from self._parts(taken, reader.offsets, ends, 0)
        finally:
            reader.close()
            self.source.dead_letters.close()

    def _parts(
        self, taken: TakenRecords, offsets: Mapping[int, int], ends: Mapping[int, int] | None, sent: int
    ) -> Iterator[tuple[pa.RecordBatch, str]]:
        """The batch in parts that the wire takes."""
        topic, total = self.source.topic, taken.rows.num_rows
        for part in pieces(taken.rows.slice(sent)):
            sent += part.num_rows
            rest = (taken.parts, sent) if sent < total else ((), 0)
            yield part, TopicMark(topic, offsets, *rest, ends).to_text()


class DirectoryFollower:
    """Follows a directory for a publisher. `batches` gives what to send, each with its mark."""

    def __init__(self, files: str, out: Publisher, time: str | None, state: Path | None) -> None:
        self.source: WatchSource = watch_text(files.removeprefix(WATCH))
        self._out = out
        self._claim: DirectoryLock | None = None
        known = None if state is None else DirectoryMark.of(out, "directory")
        self._position = 0 if known is None else known.position
        self.resumes = self._position > 0
        column = time_of(out.schema, out.stream, time)
        if state is not None:
            make_directory(state)
            belongs = {"version": VERSION, "stream": out.stream, "publisher": out.name}
            self._claim = DirectoryLock(state, KIND, belongs)
        self.source.begin(out.stream.replace("/", "."), column, state)

    def batches(self, look: Callable[[], None]) -> Iterator[tuple[pa.RecordBatch, str]]:
        """What to send; `look` is called now and then, also while nothing comes."""
        at = self._position
        try:
            for batch in self._drawn(look):
                for part in pieces(batch):
                    at += part.num_rows
                    yield part, DirectoryMark(str(self.source.directory), at).to_text()
        finally:
            self.source.stop()
            if self._claim is not None:
                self._claim.close()

    def _drawn(self, look: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """The rows of the source, read ahead by a thread: waiting for a file must not keep a signal waiting."""
        batches = (batch for batch in self.source.batches(self._out.schema, self._position, ROWS_MOST))
        with ThreadPoolExecutor(1, "borealis-watch") as reader:
            try:
                ahead = reader.submit(next, batches, None)
                while True:
                    look()
                    if not wait([ahead], LOOK_EVERY_S).done:
                        continue
                    if (batch := ahead.result()) is None:
                        return
                    ahead = reader.submit(next, batches, None)
                    yield batch
            finally:
                self.source.stop()
                reader.submit(batches.close)  # it lets go of the ledger


Follower = TopicFollower | DirectoryFollower


def follower(place: str, out: Publisher, time: str | None, state: Path | None) -> Follower:
    return TopicFollower(place, out, time) if is_topic(place) else DirectoryFollower(place, out, time, state)
