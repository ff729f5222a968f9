"""Reading a topic: all its partitions at once, merged by time while there is a backlog, as they arrive otherwise.

A partition that has not been read to its end holds the others back at its newest time, so that a backlog of partitions
that are each in order gives tuples in order, and none of them late. At the end of a partition nothing is waited for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.clock import WALL
from borealis.connectors.kafka.brokers import Brokers, Presence, away, confluent
from borealis.connectors.kafka.changes import TopicRecords
from borealis.connectors.kafka.ledger import OffsetRange
from borealis.connectors.kafka.partitions import PARTITION_BYTES, BadRecord, Partition, PartitionChunk, cut, merged
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf
from borealis.tuples import Int64s

TAKE_MOST = 50_000  # records at a time
PIECE = 10_000  # of them that are objects at the same time
MANY = 5_000  # records that are worth another thread
FETCH_BYTES = 4 << 20  # of a partition at a time
GROUP = "borealis"  # the library asks for one; nothing is ever committed under it

Start = str | datetime | Mapping[int, int]


@dataclass(frozen=True)
class TakenRecords:
    """Rows that go on together, and the records they came from."""

    rows: pa.RecordBatch
    parts: tuple[OffsetRange, ...]
    bad: tuple[BadRecord, ...]


@dataclass(frozen=True)
class _Fetched:
    """Records of any partitions, as the library gave them."""

    partition: Int64s
    offset: Int64s
    values: list[bytes | None]
    keys: list[bytes | None]  # if they are wanted


@dataclass(frozen=True)
class _DecodedRecords:
    """Records of one partition that came together, as rows."""

    partition: int
    stop: int  # behind the last record
    rows: pa.RecordBatch
    offset: Int64s  # of each row
    bad: list[BadRecord]


class TopicReader:
    """Reads a topic from given offsets on. For one thread; `presence.stop` may come from another."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        format_: str,
        schema: pa.Schema,
        time: TimeOf | None,
        noun: str,
        key: Sequence[str] = (),
    ) -> None:
        self.topic, self.what = topic, noun
        self._kafka = confluent()
        self._schema, self._time = schema, time
        self._records = TopicRecords(format_, schema, time, key)
        self.presence = Presence(noun, brokers, InputError)
        self._timings = brokers.timings
        self._partitions: dict[int, Partition] = {}
        self._held_since: float | None = None
        self._other = ThreadPoolExecutor(1, f"decode {topic}")
        self._decoding: Future[list[_DecodedRecords | Any]] | None = None
        self._next_probe = self._next_look = 0.0
        self._suspect = False  # all connections are down, as far as the library said
        self._consumer = self.presence.client(
            "Consumer",
            self._heard,
            group_id=GROUP,
            enable_auto_commit=False,
            auto_offset_reset="error",
            enable_partition_eof=True,
            isolation_level="read_committed",
            fetch_wait_max_ms=100,
            fetch_queue_backoff_ms=brokers.timings.full_ms,
            max_partition_fetch_bytes=FETCH_BYTES,
        )

    # -- questions to the brokers

    def _list_topics(self, *name: str) -> Any:
        return self._ask(lambda: self._consumer.list_topics(*name, timeout=self._timings.ask_s))

    def range(self, partition: int) -> tuple[int, int]:
        """The oldest offset that a partition holds, and the one behind its newest record."""
        place = self._kafka.TopicPartition(self.topic, partition)
        low, high = self._ask(lambda: self._consumer.get_watermark_offsets(place, timeout=self._timings.ask_s))
        return int(low), int(high)

    def offsets_of(self, start: Start) -> dict[int, int]:
        """Where to begin in each partition."""
        numbers = sorted(self.presence.topic(self.topic, self._list_topics).partitions)
        if isinstance(start, Mapping):
            for number in start:
                if number not in numbers:
                    raise InputError(
                        f"{self.what}: topic '{self.topic}' has no partition {number}",
                        hint=f"it has {len(numbers)}, from 0 on",
                    )
            return {n: start[n] if n in start else self.range(n)[0] for n in numbers}
        if not isinstance(start, datetime):
            return {n: self.range(n)[start == "latest"] for n in numbers}
        at = start if start.tzinfo else start.replace(tzinfo=UTC)
        wanted = [self._kafka.TopicPartition(self.topic, n, int(at.timestamp() * 1000)) for n in numbers]
        found = self._ask(lambda: self._consumer.offsets_for_times(wanted, timeout=self._timings.ask_s))
        return {p.partition: p.offset if p.offset >= 0 else self.range(p.partition)[1] for p in found}

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return self.presence.ask(question, self._unanswered)
        except self._kafka.KafkaException as error:
            why = error.args[0].str()
            raise InputError(f"{self.what}: {why}", hint="check the settings and access rights") from None

    def _unanswered(self, code: Any) -> None:
        if not self._partitions:  # the library says why only to who takes records, and there are none yet
            self._consumer.poll(0)
        self.presence.lost(code.str())

    def _heard(self, error: Any) -> None:
        """What the library says of its connections."""
        if self.presence.heard(error) and error.code() == self._kafka.KafkaError._ALL_BROKERS_DOWN:
            self._next_probe = 0.0
            self._suspect = True

    # -- reading

    def begin(self, offsets: Mapping[int, int], ends: Mapping[int, int] | None = None) -> None:
        """Read on from these offsets, up to those ends. What the topic does not hold any more is an error."""
        for number, offset in offsets.items():
            self._check_holds(number, offset)
        self._decoding = None  # whatever it is, it is not of these offsets, or it is read again
        self._partitions = {n: Partition(n, at, at, ends.get(n, 0) if ends else None) for n, at in offsets.items()}
        open_ = [p for p in self._partitions.values() if not p.done()]
        self._consumer.assign([self._kafka.TopicPartition(self.topic, p.number, p.next) for p in open_])
        self._next_look = WALL.now() + self._timings.new_partitions_s

    def _check_holds(self, number: int, offset: int) -> None:
        low, high = self.range(number)
        if offset < low:
            raise InputError(
                f"{self.what}: topic '{self.topic}' no longer has offset {offset} of partition {number} "
                f"(its oldest is {low}): the broker deleted records that were not read",
                hint="keep records longer (retention.ms), and delete the state directory to start at what is left",
            )
        if offset > high:
            raise InputError(
                f"{self.what}: topic '{self.topic}' ends at offset {high} of partition {number}, before {offset}",
                hint="it was made again, or this is another cluster: delete the state directory to start afresh",
            )

    @property
    def offsets(self) -> dict[int, int]:
        """The first record of each partition that was not handed on."""
        return {number: one.next for number, one in self._partitions.items()}

    @property
    def is_done(self) -> bool:
        """Whether all was handed on, up to the ends."""
        return all(p.done() and not p.rows and not p.bad for p in self._partitions.values())

    def take(self, most_rows: int) -> TakenRecords | None:
        """What can go on now, waiting a little for it; None if there is nothing yet."""
        ready = self._held_since is None and any(p.rows for p in self._partitions.values())
        self._poll(0.0 if ready else self._timings.record_s)
        behind = [p for p in self._partitions.values() if p.is_behind]
        if self._is_held([p for p in behind if not p.rows]):
            return None
        limit = min((p.watermark for p in behind if p.rows), default=None) if self._time is not None else None
        counts = {p.number: p.up_to(limit) for p in self._partitions.values()}
        if sum(counts.values()) > most_rows:
            counts = cut(self._partitions, counts, most_rows)
        return self._hand_on(counts)

    def _is_held(self, empty: Sequence[Partition]) -> bool:
        """Whether to wait for partitions that have more, as far as is known; not for ever."""
        now = WALL.now()
        if not empty or self._time is None or len(self._partitions) == 1:
            self._held_since = None
            return False
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since < self._timings.hold_s:
            return True
        for one in empty:
            one.given_up = True
        return False

    def _hand_on(self, counts: Mapping[int, int]) -> TakenRecords | None:
        parts: list[OffsetRange] = []
        chunks: list[list[PartitionChunk]] = []
        bad: list[BadRecord] = []
        for number, count in counts.items():
            one = self._partitions[number]
            mine = one.take(count)
            next_ = one.first_waiting()
            before = len(bad)
            while one.bad and one.bad[0].offset < next_:
                bad.append(one.bad.popleft())
            if mine or len(bad) > before:  # else there are only marks of transactions, which go with the next record
                parts.append(OffsetRange(number, one.next, next_, sum(len(c.offset) for c in mine)))
                chunks.append(mine)
                one.next = next_
            self._resume(one)
        if not parts:
            return None
        return TakenRecords(merged(chunks, self._schema), tuple(parts), tuple(bad))

    def read_again(
        self, batches: Sequence[Sequence[OffsetRange]], ends: Mapping[int, int] | None
    ) -> Iterator[pa.RecordBatch]:
        """The records of these batches, which followed each other, in the order in which they were handed on.

        `ends` are those that the batches were read with: earlier versions noted parts that go beyond them.
        """
        known = ends or {}
        batches = [[p._replace(next=min(p.next, known.get(p.partition, p.next))) for p in parts] for parts in batches]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for part in (part for parts in batches for part in parts):
            first.setdefault(part.partition, part.first)
            last[part.partition] = part.next
        self.begin(first, last)
        for number, end in last.items():
            self._check_holds(number, end)
        for parts in batches:
            for part in parts:  # a batch has so many rows at most, but any number of bytes
                one = self._partitions[part.partition]
                one.wanted = part.next
                self._resume(one)
            while any(self._partitions[p.partition].stop < p.next for p in parts):
                self._poll(self._timings.record_s)
                self.presence.check()
            yield merged([self._take_again(part) for part in parts], self._schema)

    def _take_again(self, part: OffsetRange) -> list[PartitionChunk]:
        one = self._partitions[part.partition]
        mine = one.take(one.before(part.next))
        if sum(len(c.offset) for c in mine) != part.rows:
            raise InputError(
                f"{self.what}: topic '{self.topic}' has other records than before in partition {part.partition}, "
                f"offsets {part.first} to {part.next}",
                hint="was it compacted? Then a run cannot go on from its state: delete the state directory",
            )
        self._resume(one)
        return mine

    def _resume(self, one: Partition) -> None:
        if one.paused and (one.size < PARTITION_BYTES // 2 or one.stop < one.wanted):
            one.paused = False
            self._consumer.resume([self._kafka.TopicPartition(self.topic, one.number)])

    def _poll(self, wait_s: float) -> None:
        """Take what has arrived; waits a little if that is nothing.

        Many records are decoded by another thread while this one fetches the next; what is added is in their order.
        """
        fetched, events = self._fetch(0.0 if self._decoding else wait_s)
        before, self._decoding = self._decoding, None
        if sum(len(one.values) for one in fetched) >= MANY:
            self._decoding = self._other.submit(self._decoded, fetched, events)
        if before is not None:
            self._settle(before.result())
        if fetched and self._decoding is None:
            self._settle(self._decoded(fetched, events))
        if fetched and not self._suspect:
            self.presence.found()
        else:
            self._probe()
        self._look_for_partitions()

    def _settle(self, arrived: Sequence[_DecodedRecords | Any]) -> None:
        """Add records, and heed what the library said between them."""
        for one in arrived:
            if isinstance(one, _DecodedRecords):
                self._suspect = False
                self._add(one)
            else:
                self._event(one)

    def _event(self, message: Any) -> None:
        error, codes = message.error(), self._kafka.KafkaError
        one = self._partitions.get(message.partition())
        if error.code() == codes._PARTITION_EOF and one is not None:
            one.read_to(message.offset())
            one.at_end = one.stop <= message.offset()  # else more came behind that end
            return
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE) and one is not None:
            self._check_holds(one.number, one.stop)
            self._consumer.seek(self._kafka.TopicPartition(self.topic, one.number, one.stop))
            return
        if not error.retriable() and error.code() not in away(self._kafka):
            raise InputError(f"{self.what}: {error.str()}", hint="check the topic, the settings and the access rights")
        self._suspect = True

    def _fetch(self, wait_s: float) -> tuple[list[_Fetched], list[Any]]:
        """Records, and what the library says between them.

        The library makes an object of each record, and Python's garbage collector would go through them all, again and
        again: that took longer than all the rest. So it waits meanwhile, and the objects go at once. Nothing is done
        here for each record that the library's own code can do.
        """
        kind = self._kafka.Message
        found: list[_Fetched] = []
        events: list[Any] = []
        count = 0
        with _uncollected():
            while count < TAKE_MOST:
                messages = self._consumer.consume(PIECE, 0) if count else self._consumer.consume(1, wait_s)
                if not messages:
                    break
                count += len(messages)
                if others := [i for i, error in enumerate(map(kind.error, messages)) if error is not None]:
                    events += [messages[i] for i in others]
                    messages = [one for one in messages if one.error() is None]
                numbers, offsets = (np.array(list(map(of, messages)), np.int64) for of in (kind.partition, kind.offset))
                keys = list(map(kind.key, messages)) if self._records.reads_keys else []
                found.append(_Fetched(numbers, offsets, list(map(kind.value, messages)), keys))
        return found, events

    def _decoded(self, fetched: Sequence[_Fetched], events: Sequence[Any]) -> list[_DecodedRecords | Any]:
        """Records by partition, decoded, then what the library said between them. Changes nothing here."""
        found: list[_DecodedRecords | Any] = []
        for number in np.unique(np.concatenate([one.partition for one in fetched])).tolist():
            mine = [np.flatnonzero(one.partition == number) for one in fetched]
            values = _chosen([one.values for one in fetched], mine)
            keys = _chosen([one.keys for one in fetched], mine) if self._records.reads_keys else []
            offsets = np.concatenate([one.offset[at] for one, at in zip(fetched, mine, strict=True)])
            made = self._records.decode(values, keys)
            bad = [BadRecord(number, int(offsets[i]), values[i] or b"", reason) for i, reason in made.bad]
            found.append(_DecodedRecords(number, int(offsets[-1]) + 1, made.rows, offsets[made.record], bad))
        return [*found, *events]

    def _add(self, arrived: _DecodedRecords) -> None:
        one = self._partitions.get(arrived.partition)
        if one is None or one.done():
            return
        first, end = one.stop, arrived.stop if one.end is None else one.end
        one.at_end = one.given_up = False
        one.bad.extend(bad for bad in arrived.bad if first <= bad.offset < end)
        # what is before `first` was handed out before a partition was paused
        start, stop = np.searchsorted(arrived.offset, [first, end]).tolist()
        if stop > start:
            rows, offset = arrived.rows.slice(start, stop - start), arrived.offset[start:stop]
            time = np.zeros(rows.num_rows, np.int64) if self._time is None else self._time.micros(rows)
            watermark = np.maximum(np.maximum.accumulate(time), one.watermark)
            one.add(PartitionChunk(rows, offset, time, watermark))
        one.read_to(arrived.stop)
        if one.may_pause():
            one.paused = True
            self._consumer.pause([self._kafka.TopicPartition(self.topic, one.number)])

    def _probe(self) -> None:
        """Nothing came: does a broker answer?"""
        now = WALL.now()
        if not (self._suspect or self.presence.lost_since is not None) or now < self._next_probe:
            return
        self._next_probe = now + self._timings.probe_s
        try:
            self._consumer.list_topics(self.topic, timeout=self._timings.probe_s)
            self._suspect = False
            self.presence.found()
        except self._kafka.KafkaException as error:
            self.presence.lost(error.args[0].str())

    def _look_for_partitions(self) -> None:
        """A topic may get more partitions; they are read from their first record on."""
        now = WALL.now()
        if now < self._next_look or any(p.end is not None for p in self._partitions.values()):
            return
        self._next_look = now + self._timings.new_partitions_s
        try:
            found = self._consumer.list_topics(self.topic, timeout=self._timings.ask_s)
        except self._kafka.KafkaException:
            return
        for number in sorted(set(found.topics[self.topic].partitions) - set(self._partitions)):
            self._partitions[number] = Partition(number, 0, 0)
            self._consumer.incremental_assign([self._kafka.TopicPartition(self.topic, number, 0)])

    def close(self) -> None:
        self._other.shutdown(cancel_futures=True)
        self._consumer.close()


def _chosen(lists: Sequence[list[bytes | None]], places: Sequence[Int64s]) -> list[bytes | None]:
    """What stands at these places of each list, end to end."""
    found: list[bytes | None] = []
    for some, at in zip(lists, places, strict=True):
        found += some if len(at) == len(some) else [some[i] for i in at.tolist()]
    return found


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, if it is on; for a moment only, since it is so for all threads."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
