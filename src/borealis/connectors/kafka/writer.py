"""Writing to a topic in transactions, each with the position behind it, of which a broker has both or none; or without
them, sooner: then it may have records twice, because it did not get the position behind them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.clock import WALL
from borealis.connectors.files.text import CsvLines, JsonLines, TextFormat, plain, render
from borealis.connectors.kafka.brokers import Brokers, Presence, away, confluent
from borealis.connectors.placed import Position
from borealis.connectors.records import FORMATS
from borealis.errors import OutputError, did_you_mean
from borealis.kernels.kinds import adds, kinds_of, row_numbers
from borealis.state.delta import to_stream
from borealis.tuples import HEADER, KIND, Int8s, halves

REFUSALS_MOST = 5  # of a transaction, by brokers that are there
ARROW_BYTES_MOST = 512 << 10  # of one record: brokers take a megabyte by default
QUEUED_MOST = 1_000_000  # messages in the library's own queue


class Rendering:
    """How rows become records. With `table` the topic is a table: a record is the row under its key, or takes it away.

    One column is a key by its text, several are an object. So is, in a table, what would be read as something else.
    """

    def __init__(self, format_: str, key: Sequence[str], schema: pa.Schema, table: bool = False) -> None:
        if format_ not in FORMATS:
            hint = did_you_mean(format_, FORMATS)
            raise OutputError(f"no record format '{format_}' (has: {', '.join(FORMATS)})", hint=hint)
        names = [name for name in schema.names if name != KIND or not table]
        for name in key:
            if name not in names:
                hint = did_you_mean(name, names)
                raise OutputError(f"no column '{name}' for the key (has: {', '.join(names)})", hint=hint)
        if format_ == "arrow" and key:
            raise OutputError("records of Arrow hold many rows and have no key", hint="leave out key, or write json")
        self._format, self._key, self._table = format_, list(key), table
        if format_ != "arrow":
            (JsonLines() if format_ == "json" else CsvLines()).check(schema)

    def records(self, rows: pa.Table) -> tuple[list[bytes | None], list[bytes | None] | None]:
        """Values, none of a row that goes from a table, and keys if there are any."""
        if not self._table:
            return self._values(rows), self._keys(rows) if self._key else None
        kind = kinds_of(rows)
        rows = rows.select([name for name in rows.column_names if name != KIND])
        values, keys = self._values(rows), self._keys(rows)
        return (values, keys) if adds(kind).all() else _changes(rows, kind, values, keys)

    def _keys(self, rows: pa.Table) -> list[bytes | None]:
        columns = rows.select(self._key)
        if len(self._key) > 1:
            return _lines(columns, JsonLines())
        texts: list[bytes | None] = plain(columns[0].combine_chunks()).cast(pa.binary()).to_pylist()
        if self._table and any(text is None or text.startswith((b"{", b'"')) for text in texts):
            objects = _lines(columns, JsonLines())
            return [
                whole if text is None or text.startswith((b"{", b'"')) else text
                for text, whole in zip(texts, objects, strict=True)
            ]
        return texts

    def _values(self, rows: pa.Table) -> list[bytes | None]:
        if self._format == "arrow":
            return [to_stream(part).to_pybytes() for part in halves(rows, ARROW_BYTES_MOST)]
        if self._format == "json":
            return [value for piece in render(rows, JsonLines()) for value in bytes(piece).split(b"\n")[:-1]]
        return _lines(rows, CsvLines())


def _lines(rows: pa.Table, form: TextFormat) -> list[bytes | None]:
    """Each row by itself, which may have line breaks in it."""
    batches = rows.combine_chunks().to_batches()
    return [line[:-1] for batch in batches for line in form.lines(batch).cast(pa.binary()).to_pylist()]


def _changes(
    rows: pa.Table, kind: Int8s, values: list[bytes | None], keys: list[bytes | None]
) -> tuple[list[bytes | None], list[bytes | None]]:
    """What changes make of a table, as records: the rows that came, and no value under the keys of those that went.

    What came and went again is neither, and a key is no longer that of a row that went if another row has got it.
    """
    users = rows.drop_columns([name for name in HEADER if name in rows.column_names])
    which, signs = row_numbers(users, np.zeros(len(rows), np.int64)), np.where(adds(kind), 1, -1)
    total = np.bincount(which, signs)[which]
    places = np.flatnonzero(signs * total > 0).tolist()
    come = {keys[i] for i in places if signs[i] > 0}
    found = [i for i in places if signs[i] > 0 or keys[i] not in come]
    return [values[i] if signs[i] > 0 else None for i in found], [keys[i] for i in found]


class TopicWriter:
    """Writes under a name; a second writer of the same name puts the first one out. For one thread.

    `open` ends what an earlier life of this name has left unfinished, and learns how far it had come. `publish` is one
    transaction: the records, and the position behind them. If it is not known whether the broker had committed it, the
    position is asked for, and the records are written again only if they are not there.

    Without transactions the position is sent when the broker has the records, and no other writer is put out.
    """

    def __init__(self, brokers: Brokers, topic: str, name: str, noun: str, *, transactions: bool = True) -> None:
        self.topic, self.name, self.what, self.transactions = topic, name, noun, transactions
        self._kafka = confluent()
        self._timings = brokers.timings
        self.presence = Presence(noun, brokers, OutputError)
        self._producer: Any = None
        self._group: Any = None
        self._last: Position | None = None
        self._met = float("-inf")  # when a broker last committed something
        self._unsure = False  # the producer may be in any state: make another before the next transaction

    # -- coming and going

    def open(self) -> Position | None:
        """Wait for a broker; what an earlier life had committed, or None."""
        self._make()
        self.presence.topic(self.topic, self._list_topics)
        if self.transactions:
            self._call(lambda: self._producer.init_transactions(self._timings.ask_s))
        self._last, self._unsure = self._position(), False
        return self._last

    def _make(self) -> None:
        silent_ms = self._timings.silent_ms
        name: dict[str, Any] = {"transactional_id": self.name}
        once = name if self.transactions else {"message_timeout_ms": silent_ms}
        self._producer = self.presence.client(
            "Producer",
            self._heard,
            **once,
            enable_idempotence=True,
            socket_timeout_ms=silent_ms,
            linger_ms=0,  # a commit waits for all of them
            retry_backoff_ms=self._timings.retry_ms,
            queue_buffering_max_messages=QUEUED_MOST,
        )
        if self._group is None:
            group = {"group_id": self.name, "enable_auto_commit": False, "isolation_level": "read_committed"}
            self._group = self.presence.client("Consumer", self._heard, **group)

    def _position(self) -> Position | None:
        place = self._kafka.TopicPartition(self.topic, 0)
        (found,) = self._call(lambda: self._group.committed([place], timeout=self._timings.ask_s))
        if found.error is not None:
            raise OutputError(f"{self.what}: {found.error.str()}", hint="check the access rights to consumer groups")
        return Position(found.offset, found.metadata or "") if found.offset >= 0 else None

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
        self._producer = None

    # -- transactions

    def publish(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, position: Position) -> None:
        """Write records and the position behind them. When this returns, the broker has both."""
        refusals = 0
        while True:
            if WALL.now() > self._met + self._timings.met_s:  # a transaction would wait in silence
                self._list_topics(self.topic)
            self._listen()
            if self._unsure and self._open_again(position):
                return
            try:
                (self._transaction if self.transactions else self._plainly)(values, keys, position)
                self._last, self._met = position, WALL.now()
                return
            except self._kafka.KafkaException as error:
                code, self._unsure = error.args[0], True
                self._explain(code)
                refusals += not self._is_away(code)
            if refusals == REFUSALS_MOST:
                raise OutputError(
                    f"{self.what}: the broker refused rows {refusals} times ({code.str()})",
                    hint="look into the broker's log",
                )
            self.presence.pause()

    def _open_again(self, position: Position) -> bool:
        """After anything went wrong: another producer, which ends what this one began. Whether all is there already."""
        before = self._last
        found = self.open()
        if found not in (before, position):
            raise OutputError(
                f"{self.what}: another writer writes to topic '{self.topic}' as '{self.name}'",
                hint="stop one of the two, or give one of them another name",
            )
        return found == position

    def _transaction(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, position: Position
    ) -> None:
        producer, group, offset = self._producer, self._group, self._offset(position)
        producer.begin_transaction()
        self._produce(values, keys)
        self._within_bounds(
            lambda: producer.send_offsets_to_transaction(
                [offset], group.consumer_group_metadata(), self._timings.offsets_s
            )
        )
        producer.commit_transaction(self._timings.commit_s)

    def _plainly(self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None, position: Position) -> None:
        failed: list[Any] = []

        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                failed.append(error)

        self._produce(values, keys, delivered)
        while self._producer.flush(self._timings.pause_s):  # for as long as the library itself allows
            self.presence.check()
        if failed:
            raise self._kafka.KafkaException(failed[0])
        group, offset = self._group, self._offset(position)
        self._within_bounds(lambda: group.commit(offsets=[offset], asynchronous=False))

    def _offset(self, position: Position) -> Any:
        return self._kafka.TopicPartition(self.topic, 0, position.upto, position.note)

    def _within_bounds(self, send_position: Callable[[], object]) -> None:
        """In a thread that is left behind if it hangs: the library forgets the time limit (librdkafka, issue 5456) and,
        if its coordinator has died meanwhile, itself (5511). The next producer puts this one out.
        """
        failed: list[Exception] = []

        def send() -> None:
            try:
                send_position()
            except Exception as error:
                failed.append(error)

        sending = threading.Thread(target=send, name=f"position-{self.topic}", daemon=True)
        sending.start()
        until = WALL.now() + self._timings.offsets_s + self._timings.pause_s
        while sending.is_alive() and WALL.now() < until:
            sending.join(self._timings.pause_s)
            self.presence.check()
        if failed:
            raise failed[0]
        if sending.is_alive():
            code = self._kafka.KafkaError
            raise self._kafka.KafkaException(code(code._TIMED_OUT, "the position was not taken in time"))

    def _produce(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        delivered: Callable[..., None] | None = None,
    ) -> None:
        topic, produce = self.topic, self._producer.produce
        for i, value in enumerate(values):
            key = None if keys is None else keys[i]
            while True:
                try:
                    produce(topic, value, key, on_delivery=delivered)
                    break
                except BufferError:
                    self._producer.poll(self._timings.room_s)
                    self.presence.check()

    def _call(self, question: Callable[[], Any]) -> Any:
        return self.presence.ask(question, self._unanswered)

    def _unanswered(self, code: Any) -> None:
        if self._is_away(code):
            self._unsure = True
            self._listen()
            self.presence.lost(code.str())

    def _list_topics(self, *name: str) -> Any:
        return self._call(lambda: self._group.list_topics(*name, timeout=self._timings.ask_s))

    def _is_away(self, code: Any) -> bool:
        return code.code() in away(self._kafka)

    def _explain(self, code: Any) -> None:
        """Raise what no second attempt can mend."""
        codes = self._kafka.KafkaError
        if code.code() in (codes.MSG_SIZE_TOO_LARGE, codes.INVALID_RECORD, codes.RECORD_LIST_TOO_LARGE):
            raise OutputError(
                f"{self.what}: topic '{self.topic}' refuses a record ({code.str()})",
                hint="raise max.message.bytes of the topic and settings={'message.max.bytes': ...}",
            )
        if code.code() in (codes.TOPIC_AUTHORIZATION_FAILED, codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED):
            raise OutputError(f"{self.what}: {code.str()}", hint="check the access rights: topic, transactions, group")

    def _listen(self) -> None:
        """Have the library say what it knows of its connections: it does so only when asked for news."""
        try:
            self._producer.poll(0)
        except self._kafka.KafkaException:  # it can do nothing any more; why, the next one will learn
            self._unsure = True
        self._group.poll(0)

    def _heard(self, error: Any) -> None:
        if self.presence.heard(error):
            self._unsure = True  # a producer whose coordinator was away may wait for it for ever
