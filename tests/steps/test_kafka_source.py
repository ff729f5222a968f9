"""A topic as a source, with a real broker: the same tuples under the same positions, whatever happens in between."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from benchmarks.kafka_broker import Broker

from borealis import kafka
from borealis.connectors.kafka import reader as reading
from borealis.connectors.kafka.brokers import KafkaTimings
from borealis.connectors.kafka.from_topic import KafkaSource
from borealis.connectors.kafka.ledger import Base, Batch, Ledger, OffsetRange
from borealis.errors import InputError
from borealis.tuples import KIND
from kafka_login import login

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
WAIT_S = 30.0  # for what must happen
Row = tuple[int, int]


def record(second: float, n: int) -> bytes:
    at = datetime.fromtimestamp(second, UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"ts": at, "n": n}).encode()


def made(broker: Broker, partitions: int = 1, **config: str) -> str:
    return broker.topic(f"t-{uuid4().hex[:8]}", partitions, **config)


def source(broker: Broker, topic: str, home: Path | None = None, **options: Any) -> KafkaSource:
    one = kafka.source(topic, broker.address, **({"until": "now", "give_up": "20 seconds"} | options))
    one.begin("in", "ts", home)
    return one


def rows(batch: pa.RecordBatch) -> list[Row]:
    return list(
        zip((batch["ts"].cast(pa.int64()).to_numpy() // 1_000_000).tolist(), batch["n"].to_pylist(), strict=True)
    )


def read(one: KafkaSource, skip: int = 0, most_rows: int = 7) -> list[Row]:
    return [row for batch in one.batches(SCHEMA, skip, most_rows) for row in rows(batch)]


def numbers(found: list[Row]) -> list[int]:
    return [n for _, n in found]


def fill(broker: Broker, topic: str, partitions: int, first: int, count: int) -> None:
    """Row i at second i, in the partitions by turns; each partition is in order."""
    for p in range(partitions):
        broker.put(topic, [record(i, i) for i in range(first, first + count) if i % partitions == p], p)


# -- order and positions


def test_partitions_that_are_each_in_order_come_out_in_order(broker: Broker) -> None:
    topic = made(broker, 3)
    fill(broker, topic, 3, 0, 900)
    assert numbers(read(source(broker, topic))) == list(range(900))


def test_a_backlog_is_merged_by_time_even_if_one_partition_is_much_longer(broker: Broker) -> None:
    topic = made(broker, 2)
    broker.put(topic, [record(i / 100, i) for i in range(60_000)], 0)
    broker.put(topic, [record(i, 1_000_000 + i) for i in range(600)], 1)
    found = [t for t, _ in read(source(broker, topic), most_rows=10_000)]
    assert len(found) == 60_600
    assert found == sorted(found)


def test_any_position_gives_the_same_rows_as_before(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker, 3)
    fill(broker, topic, 3, 0, 200)
    truth = read(source(broker, topic, tmp_path))
    assert len(truth) == 200
    for skip in (0, 1, 7, 100, 199, 200):
        assert read(source(broker, topic, tmp_path), skip) == truth[skip:]


def test_what_was_handed_on_comes_again_in_the_same_order_though_more_has_arrived(
    broker: Broker, tmp_path: Path
) -> None:
    """Partitions deliver one after the other, and a restart could see them in any order."""
    topic = made(broker, 2)
    broker.put(topic, [record(i, i) for i in range(50, 100)], 0)
    first = source(broker, topic, tmp_path, until=None)
    batches = first.batches(SCHEMA, 0, 1000)
    before = rows(next(batches))
    broker.put(topic, [record(i, i) for i in range(50)], 1)
    before += rows(next(batches))
    batches.close()
    broker.put(topic, [record(i, i) for i in range(100, 110)], 1)
    assert sorted(numbers(before)) == list(range(100))
    for skip in (0, 10, 60):
        again = source(broker, topic, tmp_path, until=None)
        found: list[Row] = []
        for batch in again.batches(SCHEMA, skip, 1000):
            found += rows(batch)
            if len(found) == 110 - skip:
                again.stop()
        assert found[: 100 - skip] == before[skip:]
        assert numbers(found[100 - skip :]) == list(range(100, 110))


def test_deletions_come_again_in_the_same_order(broker: Broker, tmp_path: Path) -> None:
    """They have no time by which partitions could be merged, and what came before them is not always read again."""
    topic = made(broker, 2)
    for p in range(2):
        for first in range(p, 60, 20):
            some = range(first, first + 20, 2)
            broker.put(topic, [record(i, i) for i in some], p, [str(i).encode() for i in some])
            broker.put(topic, [None] * 5, p, [str(i).encode() for i in some[:5]])
    schema = SCHEMA.append(pa.field(KIND, pa.string()))

    def read(skip: int) -> list[tuple[int, str | None]]:
        one = kafka.source(topic, broker.address, until="now")
        one.begin("in", "ts", tmp_path, ["n"])
        batches = one.batches(schema, skip, 7)
        return [(row["n"], row[KIND]) for batch in batches for row in batch.to_pylist()]

    truth = read(0)
    assert len(truth) == 90
    assert sum(kind == "-D" for _, kind in truth) == 30
    for n, kind in truth:
        assert kind is None or truth.index((n, None)) < truth.index((n, kind))
    for skip in (1, 7, 20, 33, 48, 61, 89):
        assert read(skip) == truth[skip:]


def test_records_of_arrow_are_never_split_in_the_ledger(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker, 2)
    for p in range(2):
        for first in range(0, 40, 10):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, SCHEMA) as writer:
                some = [{"ts": datetime.fromtimestamp(i, UTC), "n": 100 * p + i} for i in range(first, first + 10)]
                writer.write_table(pa.Table.from_pylist(some, SCHEMA))
            broker.put(topic, [sink.getvalue().to_pybytes()], p)
    truth = read(source(broker, topic, tmp_path, format="arrow"), most_rows=4)
    assert len(set(truth)) == 80
    for skip in (3, 10, 15, 41):
        assert read(source(broker, topic, tmp_path, format="arrow"), skip, 4) == truth[skip:]


def test_records_of_aborted_transactions_are_not_read(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    writer = Producer({"bootstrap.servers": broker.address, "transactional.id": topic})
    writer.init_transactions(WAIT_S)
    for number, end in enumerate([writer.commit_transaction, writer.abort_transaction, writer.commit_transaction]):
        writer.begin_transaction()
        for i in range(5):
            writer.produce(topic, record(i, 10 * number + i))
        writer.flush()
        end(WAIT_S)
    truth = [*range(5), *range(20, 25)]
    assert numbers(read(source(broker, topic, tmp_path))) == truth
    assert numbers(read(source(broker, topic, tmp_path), 7)) == truth[7:]


def noted(home: Path, base: Base, *batches: Batch) -> None:
    """What a run leaves behind that is killed before it commits anything."""
    ledger = Ledger(home / "in.kafka" / "ledger")
    ledger.begin(base)
    for batch in batches:
        ledger.add(batch)
    ledger.close()


@pytest.mark.parametrize(
    "parts",
    [
        [OffsetRange(0, 0, 100, 100), OffsetRange(1, 0, 100, 100)],
        [OffsetRange(1, 0, 1, 1), OffsetRange(0, 0, 100, 100), OffsetRange(1, 1, 100, 99)],
    ],
    ids=["one after the other", "by turns"],
)
def test_a_batch_that_is_larger_than_what_is_read_ahead_comes_again(
    parts: list[OffsetRange], broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PARTITION_BYTES", 200)  # a row has 16
    monkeypatch.setattr(reading, "TAKE_MOST", 4)
    monkeypatch.setattr(reading, "PIECE", 3)
    topic = made(broker, 2)
    for p in range(2):
        broker.put(topic, [record(i, 1000 * p + i) for i in range(110)], p)
    firsts = [sum(part.rows for part in parts[:i]) for i in range(len(parts))]
    batches = [Batch(first, (part,)) for first, part in zip(firsts, parts, strict=True)]
    noted(tmp_path, Base(topic, 0, {0: 0, 1: 0}, {0: 110, 1: 110}), *batches)
    one = source(broker, topic, tmp_path)
    give_up = threading.Timer(WAIT_S, one.stop)
    give_up.start()
    try:
        found = numbers(read(one, most_rows=1000))
    finally:
        give_up.cancel()
    assert found[:200] == [1000 * part.partition + i for part in parts for i in range(part.first, part.next)]
    assert sorted(found[200:]) == [*range(100, 110), *range(1100, 1110)]


# -- where to begin and to end


def test_where_to_begin(broker: Broker) -> None:
    topic = made(broker)
    broker.put(topic, [record(i, i) for i in range(10)])
    time.sleep(0.01)  # records' own timestamps are in milliseconds
    between = datetime.now(UTC)
    time.sleep(0.01)
    broker.put(topic, [record(i, i) for i in range(10, 15)])
    assert numbers(read(source(broker, topic, start="latest"))) == []
    assert numbers(read(source(broker, topic, start={0: 7}))) == list(range(7, 15))
    assert numbers(read(source(broker, topic, start=between))) == list(range(10, 15))
    assert numbers(read(source(broker, topic, start=between.isoformat()))) == list(range(10, 15))
    with pytest.raises(InputError, match="has no partition 3"):
        read(source(broker, topic, start={3: 0}))


def test_the_beginning_is_remembered(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [record(0, 0)])
    first = source(broker, topic, tmp_path, start="latest", until=None)
    batches = first.batches(SCHEMA, 0, 10)
    first.stop()
    assert list(batches) == []
    broker.put(topic, [record(1, 1)])
    again = source(broker, topic, tmp_path, start="latest", until=None)
    [batch] = _until(again, 1)
    assert rows(batch) == [(1, 1)]


def test_what_is_written_behind_the_end_is_in_no_batch(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [record(i, i) for i in range(15)])
    noted(tmp_path, Base(topic, 0, {0: 0}, {0: 10}))  # at the start there were ten
    assert numbers(read(source(broker, topic, tmp_path), most_rows=100)) == list(range(10))
    assert Ledger(tmp_path / "in.kafka" / "ledger").offsets() == {0: 10}
    assert numbers(read(source(broker, topic, tmp_path), most_rows=100)) == list(range(10))


def test_a_ledger_that_goes_beyond_the_end_is_read_up_to_the_end(broker: Broker, tmp_path: Path) -> None:
    """Earlier versions wrote such ledgers."""
    topic = made(broker)
    broker.put(topic, [record(i, i) for i in range(20)])
    noted(
        tmp_path,
        Base(topic, 0, {0: 0}, {0: 10}),
        Batch(0, (OffsetRange(0, 0, 4, 4),)),
        Batch(4, (OffsetRange(0, 4, 15, 6),)),
    )
    for skip in (0, 2, 6, 10):
        assert numbers(read(source(broker, topic, tmp_path), skip)) == list(range(skip, 10))


def _until(one: KafkaSource, count: int) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    for batch in one.batches(SCHEMA, 0, 1000):
        found.append(batch)
        if sum(b.num_rows for b in found) >= count:
            one.stop()
    return found


# -- what cannot be


def test_a_topic_that_is_not_there(broker: Broker) -> None:
    topic = made(broker)
    with pytest.raises(InputError, match=rf"there is no topic '{topic}x'.*did you mean '{topic}'"):
        read(source(broker, f"{topic}x"))


def test_records_that_the_broker_has_deleted(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [record(i, i) for i in range(20)])
    batches = source(broker, topic, tmp_path).batches(SCHEMA, 0, 5)
    next(batches)
    batches.close()
    admin = AdminClient({"bootstrap.servers": broker.address})
    for done in admin.delete_records([TopicPartition(topic, 0, 12)]).values():
        done.result(WAIT_S)
    with pytest.raises(InputError, match=r"no longer has offset 0 of partition 0 \(its oldest is 12\)"):
        read(source(broker, topic, tmp_path), 2)
    assert numbers(read(source(broker, topic))) == list(range(12, 20))


def test_a_topic_that_was_made_anew(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [record(i, i) for i in range(20)])
    read(source(broker, topic, tmp_path))
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    _eventually(lambda: topic not in admin.list_topics(timeout=30).topics)
    broker.topic(topic)
    _eventually(lambda: _end(broker, topic) == 0)  # the broker says so before it is so
    with pytest.raises(InputError, match="ends at offset 0 of partition 0, before 20"):
        read(source(broker, topic, tmp_path), 20)


def test_a_topic_that_ends_in_the_midst_of_what_must_be_read_again(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [record(i, i) for i in range(6)])
    noted(tmp_path, Base(topic, 0, {0: 0}, None), Batch(0, (OffsetRange(0, 0, 10, 10),)))
    with pytest.raises(InputError, match="ends at offset 6 of partition 0, before 10"):
        read(source(broker, topic, tmp_path, until=None))


# -- dead letters


def test_dead_letters_are_kept_once(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    values: list[bytes | None] = [record(i, i) for i in range(10)]
    values[3], values[7], values[9] = b"{oops", None, b"\xff\xfe"
    broker.put(topic, values)
    one = source(broker, topic, tmp_path)
    assert numbers(read(one)) == [0, 1, 2, 4, 5, 6, 8]
    assert one.dead_letters.count == 3
    assert "3 records" in one.warnings()[0]
    again = source(broker, topic, tmp_path)
    assert numbers(read(again, 2)) == [2, 4, 5, 6, 8]
    assert again.dead_letters.count == 3
    letters = [json.loads(line) for line in (tmp_path / "in.dead.jsonl").read_text().splitlines()]
    assert [letter["place"] for letter in letters] == [f"topic {topic}, partition 0, offset {i}" for i in (3, 7, 9)]
    assert letters[0]["raw"] == "{oops"
    assert letters[2]["base64"] is True
    assert "not JSON" in letters[0]["reason"]
    assert letters[0]["at"]


def test_dead_letters_may_go_to_a_function(broker: Broker) -> None:
    topic, letters = made(broker), list[dict[str, Any]]()
    broker.put(topic, [b"oops", record(1, 1)])
    assert numbers(read(source(broker, topic, bad=letters.append))) == [1]
    assert letters[0]["raw"] == "oops"


def test_dead_letters_may_go_to_a_topic(broker: Broker) -> None:
    """All of them are there before what stands behind them is handed on."""
    topic, dead = made(broker), made(broker)
    broker.put(topic, [b"oops", record(1, 1), b"\xff"])
    one = source(broker, topic, bad=f"kafka://{broker.address}/{dead}")
    batches = one.batches(SCHEMA, 0, 7)
    assert numbers(rows(next(batches))) == [1]
    kept = [(key, json.loads(value or b"")) for *_, key, value in broker.get(dead)]
    assert [(letter["raw"], letter["place"][-1]) for _, letter in kept] == [("oops", "0"), ("/w==", "2")]
    assert kept[0][0] == f"{one.dead_letters.source}: topic {topic}, partition 0, offset 0".encode()
    assert f"see kafka://{broker.address}/{dead}" in one.warnings()[0]
    assert list(batches) == []


def test_dead_letters_for_a_topic_that_is_away(broker: Broker) -> None:
    topic = made(broker)
    broker.put(topic, [b"oops"])
    one = source(broker, topic, bad="kafka://127.0.0.1:1/dead?give_up=2 seconds")
    with ThreadPoolExecutor(1) as other:
        reading = other.submit(read, one)
        _eventually(lambda: "dead letters for kafka://127.0.0.1:1/dead: no broker at 127.0.0.1:1 for" in one.note)
        with pytest.raises(InputError, match=r"no broker at 127.0.0.1:1 for 2 seconds, tried "):
            reading.result(WAIT_S)


def test_dead_letters_for_brokers_that_refuse_the_login(broker: Broker) -> None:
    topic = made(broker)
    broker.put(topic, [b"oops"])
    wrong = "&".join(f"{name}={value}" for name, value in (login(broker, "PLAIN") | {"sasl.password": "x"}).items())
    one = source(broker, topic, bad=f"kafka://127.0.0.1:{broker.login}/{topic}?{wrong}")
    with pytest.raises(InputError, match=r"dead letters for .* cannot log in at"):
        read(one)


def test_nothing_but_bad_records(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [b"oops"] * 30)
    one = source(broker, topic, tmp_path)
    assert read(one) == []
    assert one.dead_letters.count == 30
    assert read(source(broker, topic, tmp_path)) == []


# -- brokers and partitions that come and go


def test_new_partitions_are_found(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    broker.put(topic, [record(1, 1)])
    one = source(broker, topic, tmp_path, until=None)
    one.brokers = replace(one.brokers, timings=KafkaTimings(new_partitions_s=0.2))
    batches = one.batches(SCHEMA, 0, 10)
    before = rows(next(batches))
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_partitions([NewPartitions(topic, 2)])[topic].result(WAIT_S)
    _eventually(lambda: len(admin.list_topics(topic, timeout=30).topics[topic].partitions) == 2)
    broker.put(topic, [record(2, 2)], 1)
    before += rows(next(batches))
    one.stop()
    batches.close()
    assert before == [(1, 1), (2, 2)]
    again = source(broker, topic, tmp_path, until=None)
    assert [row for batch in _until(again, 2) for row in rows(batch)] == before


def test_a_broker_that_goes_away_and_comes_back(own_broker: Broker, tmp_path: Path) -> None:
    topic = made(own_broker)
    own_broker.put(topic, [record(i, i) for i in range(10)])
    one = source(own_broker, topic, tmp_path / "state", until=None, give_up="2 minutes")
    found: list[Row] = []

    def more() -> Iterator[int]:
        for batch in one.batches(SCHEMA, 0, 1000):
            found.extend(rows(batch))
            yield len(found)

    stream = more()
    assert next(stream) == 10
    own_broker.kill()
    reader = threading.Thread(target=lambda: [None for seen in stream if seen == 20 and one.stop() is None])
    reader.start()
    _eventually(lambda: "no broker at" in one.note)
    own_broker.launch()
    own_broker.wait()
    own_broker.put(topic, [record(i, i) for i in range(10, 20)])
    reader.join(WAIT_S)
    assert not reader.is_alive()
    assert numbers(found) == list(range(20))
    assert one.note == ""


def test_a_broker_that_stays_away_is_given_up(own_broker: Broker) -> None:
    topic = made(own_broker)
    own_broker.put(topic, [record(1, 1)])
    batches = source(own_broker, topic, until=None, give_up="1 second").batches(SCHEMA, 0, 10)
    assert rows(next(batches)) == [(1, 1)]
    own_broker.kill()
    with pytest.raises(InputError, match=r"no broker at .* for 1 second"):
        next(batches)


def _end(broker: Broker, topic: str) -> int | None:
    """Behind the newest record of partition 0; None if the broker cannot tell now."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "look"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    except KafkaException:
        return None
    finally:
        consumer.close()


def _eventually(happens: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
