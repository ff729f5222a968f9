"""A topic of Kafka as a source: exactly once across restarts, whatever the order in which partitions delivered."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.connectors.addresses import TopicAddress
from borealis.connectors.dead_letters import DeadLetters, LetterTarget
from borealis.connectors.kafka.brokers import GIVE_UP, Brokers, confluent
from borealis.connectors.kafka.changes import DEBEZIUM, TopicRecords
from borealis.connectors.kafka.ledger import Base, Batch, Ledger
from borealis.connectors.kafka.reader import Start, TakenRecords, TopicReader
from borealis.connectors.source import cut
from borealis.disk import START_OVER
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf

OPTIONS = ("format", "start", "until", "bad", "give_up")
NOW = "now"
PLACES = re.compile(r"\d+:\d+(,\d+:\d+)*")


class KafkaSource:
    """Reads all partitions of a topic. With a state directory, position `n` is the same record at every start.

    1. A batch is decoded; its bad records become dead letters, synced.
    2. Which offsets it consists of is written to the ledger, synced. Only then it is handed on.
    3. A restart reads the batches behind the committed position again, by their offsets, and hands them on under the
       same positions; then it goes on behind the last one.

    So tuples are exactly once. A dead letter in a file is, too: a record that is read again is known by its place.
    """

    finite_and_ordered = False

    def __init__(
        self,
        topic: str,
        brokers: str,
        *,
        format: str = "json",
        start: Start = "earliest",
        until: str | None = None,
        bad: LetterTarget | None = None,
        settings: Mapping[str, Any] | None = None,
        give_up: str = GIVE_UP,
    ) -> None:
        """A topic as an input without an end; with `until="now"` it ends with what the topic holds at the start.

        `start` matters only the first time: `earliest`, `latest`, a datetime (by the records' own timestamps), or
        offsets as `{partition: offset}`. `bad` is where records go that cannot be read: a file of JSON lines, another
        topic by its address (kafka://...), or a function; if left out, `<input>.dead.jsonl` in the state directory.
        `settings` go to librdkafka (`security.protocol`, `sasl.*`, `ssl.*`); `${NAME}` in a value is taken from the
        environment. `give_up`: how long brokers may be away. `format` is json, csv or arrow; or debezium, changes of a
        table, for an input with a key. With other formats such an input takes tombstones as deletions.
        """
        confluent()
        TopicRecords(format, pa.schema([]))
        if until not in (None, NOW):
            raise InputError(f"until={until!r} is no end for a topic", hint="give until='now', or leave it out")
        self.topic, self.brokers = topic, Brokers(brokers, settings or {}, give_up)
        self.format, self.until = format, until
        self.start = _start(start)
        self.dead_letters = DeadLetters(bad, topic)
        self._bad = bad
        self._noun = f"topic {topic}"
        self._time: TimeOf | None = None
        self._key: tuple[str, ...] = ()
        self._home: Path | None = None
        self._reader: TopicReader | None = None
        self._ledger: Ledger | None = None
        self._stopped = False

    def begin(self, name: str, time: str | TimeOf, home: Path | None, key: Sequence[str] = ()) -> None:
        """Called by the run: the input, how a row gets its time, where to keep the ledger, and what names a row."""
        self._noun, self._time, self._stopped, self._key = f"input '{name}'", TimeOf.of(time), False, tuple(key)
        if self.format == DEBEZIUM and not key:
            raise InputError(
                f"{self._noun} has no key, by which Debezium's changes could replace and delete its rows",
                hint="name it, and how far back rows are corrected: key='id', history='1 hour'",
            )
        if home is None:
            return
        home.mkdir(parents=True, exist_ok=True)
        self._home = home / f"{name}.kafka"
        if self._bad is None:
            self.dead_letters = DeadLetters(home / f"{name}.dead.jsonl", self.topic)

    def warnings(self) -> list[str]:
        """Records that could not be read."""
        return self.dead_letters.warnings(f"of topic '{self.topic}'")

    @property
    def note(self) -> str:
        """Whether brokers are away now, and since when; empty if not."""
        mine = self._reader.presence.note if self._reader is not None else ""
        return mine or self.dead_letters.note

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on, as the ledger says, then as they arrive."""
        reader = self._reader = self.reader(schema)
        ledger = self._ledger = Ledger(None if self._home is None else self._home / "ledger")
        position = skip
        try:
            self._check(ledger, skip)
            base = ledger.base or ledger.begin(self.base(reader))
            again = [batch for batch in ledger.batches if batch.stop > skip]
            parts = [batch.parts for batch in again]
            for batch, known in zip(again, reader.read_again(parts, base.ends), strict=False):
                yield from cut(known.slice(position - batch.first), most_rows)
                position = batch.stop
            reader.begin(ledger.offsets(), base.ends)
            while not self._stopped and not reader.is_done:
                taken = reader.take(most_rows)
                if taken is not None:
                    self.bury(taken)
                    ledger.add(Batch(position, taken.parts))
                    yield from cut(taken.rows, most_rows)
                    position += taken.rows.num_rows
        except InputError:
            if not self._stopped:
                raise
        finally:
            reader.close()
            ledger.close()
            self.dead_letters.close()

    def reader(self, schema: pa.Schema) -> TopicReader:
        """A reader of the topic, at no offset yet."""
        return TopicReader(self.brokers, self.topic, self.format, schema, self._time, self._noun, self._key)

    def bury(self, taken: TakenRecords) -> None:
        """Keep the records that could not be read, before anything behind them is handed on."""
        for one in taken.bad:
            place = f"topic {self.topic}, partition {one.partition}, offset {one.offset}"
            self.dead_letters.add(place, one.value, one.reason)
        if taken.bad:
            self.dead_letters.sync()

    def committed(self, position: int) -> None:
        """Tuples before this position are in committed trains."""
        if self._ledger is not None:
            self._ledger.committed(position)

    def stop(self) -> None:
        """Read no more."""
        self._stopped = True
        if self._reader is not None:
            self._reader.presence.stop()

    def base(self, reader: TopicReader) -> Base:
        """Where to begin, the first time."""
        offsets = reader.offsets_of(self.start)
        ends = {number: reader.range(number)[1] for number in offsets} if self.until == NOW else None
        return Base(self.topic, 0, offsets, ends)

    def _check(self, ledger: Ledger, skip: int) -> None:
        """Whether the ledger knows what comes behind the committed position."""
        if ledger.base is None:
            if skip and ledger.path is not None:
                raise InputError(
                    f"{self._noun}: {ledger.path} is gone, which knows row {skip} of the topic", hint=START_OVER
                )
            return
        if ledger.base.topic != self.topic:
            raise InputError(
                f"{self._noun}: the state directory is of topic '{ledger.base.topic}', not '{self.topic}'",
                hint="give another state directory, or delete this one to start afresh",
            )
        if not ledger.base.position <= skip <= ledger.position:
            known = f"rows {ledger.base.position} to {ledger.position}"
            raise InputError(f"{self._noun}: {ledger.path} knows {known}, but row {skip} is needed", hint=START_OVER)


source = KafkaSource  # its public name: kafka.source


def source_at(url: str) -> KafkaSource:
    """A topic as an input, by its address: kafka://localhost:9092/packets?format=csv&start=latest."""
    address = TopicAddress.parse(url, OPTIONS)
    return KafkaSource(address.topic, address.brokers, settings=address.settings, **address.options)


def _start(start: Start) -> Start:
    if isinstance(start, datetime) or start in ("earliest", "latest"):
        return start
    if isinstance(start, Mapping):
        if all(type(k) is int and type(v) is int and k >= 0 and v >= 0 for k, v in start.items()):
            return dict(start)
    elif isinstance(start, str) and PLACES.fullmatch(start):
        pairs = (place.split(":") for place in start.split(","))
        return {int(partition): int(offset) for partition, offset in pairs}
    elif isinstance(start, str):
        try:
            return datetime.fromisoformat(start)
        except ValueError:
            pass
    raise InputError(
        f"start={start!r} is no place in a topic",
        hint="give earliest, latest, a time such as 2026-01-01T12:00:00Z, or offsets: {0: 17}, in a URL 0:17,1:4",
    )
