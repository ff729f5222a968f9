"""A topic of Kafka as a sink: exactly once, for readers that read what is committed (`isolation.level=read_committed`).

What is in a topic cannot be taken back, and a train that is run again need not come out the same: inputs may be merged
in another order. So nothing goes to the broker before its train is committed.

1. `flush` writes a train's rows to `rows-<first>-<behind>.arrow` in the state directory, whole and synced.
2. The train is committed. Files of trains that were not are deleted by the next start.
3. A thread writes the rows of committed trains to the topic: a transaction holds their records and, as the offset of a
   consumer group of the sink's own, the position behind them. Then the files are deleted.
4. A restart asks the broker for that position: files before it are there already, those behind it are written now.

Without a state directory the rows wait in memory, and a restart begins at the beginning. Without transactions the
position is sent behind the records, so that a restart may write some of them again.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.connectors.addresses import TopicAddress, flag
from borealis.connectors.kafka.brokers import GIVE_UP, Brokers, confluent, log
from borealis.connectors.kafka.writer import Rendering, TopicWriter
from borealis.connectors.placed import Position
from borealis.disk import START_OVER, disk, one_line, write_whole
from borealis.errors import BorealisError, OutputError
from borealis.machine import HERE
from borealis.state.delta import from_stream, to_stream

OPTIONS = ("format", "key", "table", "transactions", "give_up")
FLAGS = ("table", "transactions")  # that are on or off
WAITING_BYTES = 256 << 20  # of rows that are committed and not in the topic; then the run waits
ROWS_AT_ONCE = 200_000  # of one transaction, unless a single train has more


@dataclass(frozen=True)
class _Spooled:
    """Rows from one position to another, in a file or in memory."""

    first: int
    stop: int
    size: int
    place: Path | pa.Table

    def table(self, schema: pa.Schema) -> pa.Table:
        if isinstance(self.place, pa.Table):
            return self.place
        try:
            table = from_stream(self.place.read_bytes())
        except (OSError, pa.ArrowException) as error:
            raise OutputError(f"{self.place} cannot be read: {one_line(error)}", hint=START_OVER) from error
        if table.num_rows != self.stop - self.first or not table.schema.equals(schema):
            raise OutputError(f"{self.place} is damaged, or of other columns", hint=START_OVER)
        return table

    def drop(self) -> None:
        """They are in the topic, or their train was not committed."""
        if isinstance(self.place, Path):
            self.place.unlink(missing_ok=True)


class KafkaSink:
    """Writes a run's rows to a topic. `keep` says where rows wait; without it a crash loses what the topic lacks."""

    def __init__(
        self,
        topic: str,
        brokers: str,
        *,
        format: str = "json",
        key: str | Sequence[str] = (),
        table: bool = False,
        transactions: bool = True,
        settings: Mapping[str, Any] | None = None,
        give_up: str = GIVE_UP,
    ) -> None:
        """A topic as an output, written in transactions: its readers must read only what is committed.

        Without `transactions` rows are there some milliseconds sooner, for all readers; after a crash some may come
        twice. `key` names the column whose values are the records' keys, and so choose the partition; of several, the
        keys are objects. `format` is json (an object a row), csv (a line a row, no header) or arrow (one stream for
        many rows). `settings` and `give_up` as for `kafka.source`.

        With `table` the topic is what stands of the output, for topics that are compacted: a row is a record under its
        key, and one that goes is a tombstone. The key must tell rows apart: of two with the same, the last one counts.
        """
        confluent()
        Rendering(format, (), pa.schema([pa.field("any", pa.int64())]))
        key = (key,) if isinstance(key, str) else tuple(key)
        if table and not key:
            raise OutputError(
                f"topic {topic} is to be a table, and has no key by which rows are replaced and deleted",
                hint="name the columns that tell its rows apart: key='id', in an address key=id,day",
            )
        self.topic, self.brokers = topic, Brokers(brokers, settings or {}, give_up)
        self.format, self.key, self.table, self.transactions = format, key, table, transactions
        self.durable = False
        self._home: Path | None = None
        self._schema: pa.Schema = pa.schema([])
        self._rendering: Rendering | None = None
        self._writer: TopicWriter | None = None
        self._pump: threading.Thread | None = None
        self._written: list[pa.Table] = []
        self._position = 0
        self._flushed: deque[_Spooled] = deque()  # their train is not committed yet
        self._ready: deque[_Spooled] = deque()
        self._waiting = 0  # bytes that are ready
        self._closing = False
        self.failure: BorealisError | None = None  # why no more rows get to the topic
        self._changed = threading.Condition()

    def writer(self, name: str) -> TopicWriter:
        """A writer to the topic, under a name."""
        noun = f"topic {self.topic}"
        return TopicWriter(self.brokers, self.topic, name, noun, transactions=self.transactions)

    def rendering(self, schema: pa.Schema) -> Rendering:
        """How rows of these columns become its records."""
        return Rendering(self.format, self.key, schema, self.table)

    def keep(self, home: Path | None) -> KafkaSink:
        """Called by the run, before `open`: a directory for rows that are not in the topic yet."""
        self._home, self.durable = home, home is not None
        return self

    # -- as a sink

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Learn how far the topic is; a second time, after an error, only forget what was not committed."""
        self._written = []
        if self._writer is not None:
            self._position = resume or 0
            while self._flushed and self._flushed[-1].stop > self._position:
                self._flushed.pop().drop()
            return
        self._schema, self._rendering = schema, self.rendering(schema)
        self._position, self._flushed = resume or 0, deque()
        found = self._look_up() if self._home is not None else []
        writer = self.writer(self._name())
        try:
            known = writer.open()
            self._check(found, known, resume or 0)
        except BorealisError:
            writer.close()
            raise
        self._writer, self._closing, self.failure = writer, False, None
        self._pump = threading.Thread(target=self._publish_on, name=f"kafka-{self.topic}", daemon=True)
        self._pump.start()

    def write(self, rows: pa.Table) -> None:
        """Take the rows; waits while too much is not in the topic."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting <= WAITING_BYTES or self.failure is not None)
        self._raise()
        if rows.num_rows:
            self._written.append(rows if rows.schema == self._schema else rows.cast(self._schema))

    def flush(self, sync: bool) -> int:
        """The rows survive; the topic gets them when they are committed."""
        self._raise()
        if self._written:
            table = pa.concat_tables(self._written)
            first, self._position = self._position, self._position + table.num_rows
            place: Path | pa.Table = table
            if self._home is not None:
                place = self._home / f"rows-{first}-{self._position}.arrow"
                with self._disk("write"):
                    write_whole(place, to_stream(table))
            self._written = []
            self._flushed.append(_Spooled(first, self._position, table.nbytes, place))
        return self._position

    def committed(self, position: int) -> None:
        """Rows before this position can no longer be taken back: to the topic with them."""
        with self._changed:
            while self._flushed and self._flushed[0].stop <= position:
                rows = self._flushed.popleft()
                self._ready.append(rows)
                self._waiting += rows.size
            self._changed.notify_all()

    def close(self, complete: bool) -> None:
        """Have everything that is committed in the topic; after an error it may wait for the next start."""
        writer, pump = self._writer, self._pump
        if writer is None or pump is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if not complete:
            writer.presence.stop()
        pump.join()
        writer.close()
        self._writer = self._pump = None
        if complete:
            self._raise()

    @property
    def note(self) -> str:
        """Whether brokers are away now, and since when; empty if not."""
        writer = self._writer
        return writer.presence.note if writer is not None else ""

    # -- what waits

    def _name(self) -> str:
        """Under which the broker knows this sink: the same for the life of a state directory."""
        made = f"borealis-{self.topic}-{HERE.chance.token(16)}"
        if self._home is None:
            return made
        path = self._home / "name"
        with self._disk("write"):
            if not path.exists():
                write_whole(path, made.encode())
            return path.read_text()

    def _look_up(self) -> list[_Spooled]:
        assert self._home is not None
        with self._disk("read"):
            self._home.mkdir(parents=True, exist_ok=True)
            for left_over in self._home.glob("*.tmp"):
                left_over.unlink()
            found = [(re.fullmatch(r"rows-(\d+)-(\d+)\.arrow", p.name), p) for p in self._home.iterdir()]
            rows = [_Spooled(int(m[1]), int(m[2]), p.stat().st_size, p) for m, p in found if m]
        return sorted(rows, key=lambda one: one.first)

    def _check(self, found: list[_Spooled], known: Position | None, committed: int) -> None:
        """Which of the files the topic still lacks."""
        for rows in [r for r in found if r.stop > committed]:
            rows.drop()
        found = [r for r in found if r.stop <= committed]
        if known is None and found and found[0].first > 0:
            raise OutputError(
                f"topic {self.topic}: the broker has forgotten how far this run had come (offsets.retention.minutes)",
                hint=f"see whether the topic has the rows of {found[0].place}: if so, delete that file; start again",
            )
        upto = known.upto if known is not None else 0
        for rows in [r for r in found if r.stop <= upto]:
            rows.drop()
        found = [r for r in found if r.stop > upto]
        at = upto if known is not None or found else committed
        for rows in found:
            if rows.first != at:
                break
            at = rows.stop
        if at != committed:
            raise OutputError(
                f"topic {self.topic} has {upto} rows of this run, {committed} were committed, "
                f"and {self._home} does not hold the difference",
                hint=START_OVER,
            )
        self._ready = deque(found)
        self._waiting = sum(r.size for r in found)

    def _raise(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _disk(self, verb: str) -> Any:
        return disk(f"rows for topic {self.topic} in {self._home}", verb, "start again")

    # -- the thread that writes to the topic

    def _publish_on(self) -> None:
        try:
            while batch := self._next():
                self._publish(batch)
            return
        except BorealisError as error:
            failure = error
        except Exception as error:
            failure = OutputError(f"topic {self.topic}: {one_line(error)}", hint="look into the log")
        log.warning("%s", failure)
        with self._changed:
            self.failure = failure
            self._changed.notify_all()

    def _next(self) -> list[_Spooled]:
        """What goes into the next transaction; waits for it. Nothing: it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._closing)
            taken: list[_Spooled] = []
            for rows in self._ready:
                if taken and rows.stop - taken[0].first > ROWS_AT_ONCE:
                    break
                taken.append(rows)
            return taken

    def _publish(self, batch: list[_Spooled]) -> None:
        assert self._writer is not None
        assert self._rendering is not None
        table = pa.concat_tables([rows.table(self._schema) for rows in batch])
        values, keys = self._rendering.records(table)
        self._writer.publish(values, keys, Position(batch[-1].stop))
        with self._changed:
            for rows in batch:
                self._ready.popleft()
                self._waiting -= rows.size
            self._changed.notify_all()
        for rows in batch:
            rows.drop()


sink = KafkaSink  # its public name: kafka.sink


def sink_at(url: str) -> KafkaSink:
    """A topic as an output, by its address: kafka://localhost:9092/per-source?key=src."""
    address = TopicAddress.parse(url, OPTIONS)
    options: dict[str, Any] = dict(address.options)
    for name in FLAGS:
        if name in options:
            options[name] = flag(f"topic {address.topic}", name, options[name])
    if "key" in options:
        options["key"] = [name.strip() for name in options["key"].split(",")]
    return KafkaSink(address.topic, address.brokers, settings=address.settings, **options)
