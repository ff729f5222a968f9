"""A topic as a sink, with a real broker: every committed row once, for readers of what is committed."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from benchmarks.kafka_broker import Broker

from borealis import kafka
from borealis.connectors.kafka.brokers import Brokers
from borealis.connectors.kafka.to_topic import KafkaSink, sink_at
from borealis.connectors.kafka.writer import TopicWriter
from borealis.connectors.placed import Position
from borealis.errors import BorealisError, InputError, OutputError
from kafka_login import login

SCHEMA = pa.schema([("src", pa.string()), ("n", pa.int64())])
WAIT_S = 30.0


def table(first: int, count: int) -> pa.Table:
    return pa.table(
        {"src": [f"s{i % 5}" for i in range(first, first + count)], "n": range(first, first + count)}, SCHEMA
    )


def made(broker: Broker, partitions: int = 1) -> str:
    return broker.topic(f"t-{uuid4().hex[:8]}", partitions)


def sink(broker: Broker, topic: str, home: Path | None, **options: object) -> KafkaSink:
    return kafka.sink(topic, broker.address, give_up="20 seconds", **options).keep(home)  # type: ignore[arg-type]


def numbers(broker: Broker, topic: str) -> list[int]:
    return [json.loads(value or b"")["n"] for _, _, _, value in broker.get(topic)]


def abandon(one: KafkaSink) -> None:
    """As a dead process would: no thread writes any more, and nothing is tidied up."""
    with one._changed:
        one._ready.clear()
    one.close(complete=False)


def eventually(happens: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def test_rows_become_records_with_keys(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker, 3)
    one = sink(broker, topic, tmp_path / "out", key="src")
    one.open(SCHEMA, None)
    one.write(table(0, 20))
    one.committed(one.flush(True))
    one.close(True)
    found = broker.get(topic)
    assert sorted(json.loads(value or b"")["n"] for *_, value in found) == list(range(20))
    partition_of: dict[bytes | None, set[int]] = {}
    for partition, _, key, value in found:
        assert json.loads(value or b"")["src"].encode() == key
        partition_of.setdefault(key, set()).add(partition)
    assert all(len(partitions) == 1 for partitions in partition_of.values())


def test_csv_and_arrow(broker: Broker, tmp_path: Path) -> None:
    for format_ in ("csv", "arrow"):
        topic = made(broker)
        one = sink(broker, topic, tmp_path / format_, format=format_)
        one.open(SCHEMA, None)
        one.write(pa.table({"src": ["a\nb", None], "n": [1, 2]}, SCHEMA))
        one.committed(one.flush(True))
        one.close(True)
        values = [value or b"" for *_, value in broker.get(topic)]
        if format_ == "csv":
            assert values == [b'"a\nb",1', b",2"]
        else:
            assert [pa.ipc.open_stream(v).read_all().to_pylist() for v in values] == [
                [{"src": "a\nb", "n": 1}, {"src": None, "n": 2}]
            ]


def test_many_rows_of_arrow_are_cut_into_records_that_brokers_take(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    one = sink(broker, topic, tmp_path / "out", format="arrow")
    one.open(SCHEMA, None)
    one.write(table(0, 200_000))
    one.committed(one.flush(True))
    one.close(True)
    parts = [pa.ipc.open_stream(value).read_all() for *_, value in broker.get(topic)]
    assert len(parts) > 1
    assert pa.concat_tables(parts)["n"].to_pylist() == list(range(200_000))


def test_nothing_is_in_the_topic_before_it_is_committed(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    one = sink(broker, topic, tmp_path / "out")
    one.open(SCHEMA, None)
    one.write(table(0, 10))
    assert one.flush(True) == 10
    one.write(table(10, 10))
    assert one.flush(True) == 20
    one.committed(10)
    eventually(lambda: numbers(broker, topic) == list(range(10)))
    one.open(SCHEMA, 10)  # as after an error: the second train is not committed
    one.close(False)
    assert numbers(broker, topic) == list(range(10))
    again = sink(broker, topic, tmp_path / "out")
    again.open(SCHEMA, 10)
    again.write(table(10, 5))
    again.committed(again.flush(True))
    again.close(True)
    assert numbers(broker, topic) == list(range(15))


def test_without_a_state_directory_rows_arrive_all_the_same(broker: Broker) -> None:
    topic = made(broker)
    one = sink(broker, topic, None)
    assert not one.durable
    one.open(SCHEMA, None)
    for first in range(0, 30, 10):
        one.write(table(first, 10))
        one.committed(one.flush(False))
    one.close(True)
    assert numbers(broker, topic) == list(range(30))


def test_a_train_without_rows(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    one = sink(broker, topic, tmp_path / "out")
    one.open(SCHEMA, None)
    one.write(table(0, 0))
    one.committed(one.flush(True))
    one.close(True)
    assert numbers(broker, topic) == []


@pytest.mark.parametrize("seed", range(3))
def test_any_crash_leaves_every_committed_row_once(broker: Broker, tmp_path: Path, seed: int) -> None:
    """Killed after a file, after a commit, after a transaction; a train that is run again comes out differently."""
    chance, topic = random.Random(seed), made(broker)
    committed: list[int] = []
    names = iter(range(10**9))
    for _ in range(6):
        one = sink(broker, topic, tmp_path / "out")
        one.open(SCHEMA, len(committed) or None)
        for _ in range(chance.randrange(4)):
            values = [next(names) for _ in range(chance.randrange(1, 50))]
            one.write(pa.table({"src": ["x"] * len(values), "n": values}, SCHEMA))
            position = one.flush(True)
            if chance.random() < 0.3:
                break  # dead before the commit
            committed += values
            assert position == len(committed)
            if chance.random() < 0.3:
                break  # dead before the sink is told
            one.committed(position)
            if chance.random() < 0.5:
                eventually(lambda one=one: not one._ready)  # type: ignore[misc]
        abandon(one)
    last = sink(broker, topic, tmp_path / "out")
    last.open(SCHEMA, len(committed) or None)
    last.close(True)
    assert numbers(broker, topic) == committed


def test_a_crash_between_the_transaction_and_tidying_up(broker: Broker, tmp_path: Path) -> None:
    topic, home = made(broker), tmp_path / "out"
    one = sink(broker, topic, home)
    one.open(SCHEMA, None)
    one.write(table(0, 10))
    one.flush(True)
    [kept] = home.glob("rows-*")
    copy = kept.read_bytes()
    one.committed(10)
    one.close(True)
    assert not list(home.glob("rows-*"))
    kept.write_bytes(copy)
    again = sink(broker, topic, home)
    again.open(SCHEMA, 10)
    again.close(True)
    assert numbers(broker, topic) == list(range(10))


def test_a_state_directory_that_does_not_fit_the_topic(broker: Broker, tmp_path: Path) -> None:
    topic, home = made(broker), tmp_path / "out"
    one = sink(broker, topic, home)
    one.open(SCHEMA, None)
    one.write(table(0, 10))
    one.committed(one.flush(True))
    one.close(True)
    for committed in (5, 20):
        with pytest.raises(OutputError, match=f"has 10 rows of this run, {committed} were committed"):
            sink(broker, topic, home).open(SCHEMA, committed)


def test_a_position_that_the_broker_has_forgotten(broker: Broker, tmp_path: Path) -> None:
    topic, home = made(broker), tmp_path / "out"
    one = sink(broker, topic, home)
    one.open(SCHEMA, None)
    one.write(table(0, 10))
    one.committed(one.flush(True))
    one.close(True)
    (home / "name").write_text(f"another-{topic}")  # as if the group had expired
    again = sink(broker, topic, home)
    again.open(SCHEMA, 10)  # everything was in the topic: nothing is unclear
    again.write(table(10, 10))
    again.flush(True)
    abandon(again)
    with pytest.raises(OutputError, match="the broker has forgotten"):
        sink(broker, topic, home).open(SCHEMA, 20)


def test_a_second_writer_of_the_same_name_puts_the_first_one_out(broker: Broker) -> None:
    topic = made(broker)
    one = TopicWriter(Brokers(broker.address), topic, topic, "one")
    two = TopicWriter(Brokers(broker.address), topic, topic, "two")
    assert one.open() is None
    one.publish([b"a"], None, Position(1, "x"))
    assert two.open() == Position(1, "x")
    two.publish([b"b"], None, Position(2, "x"))
    with pytest.raises(OutputError, match="another writer writes"):
        one.publish([b"c"], None, Position(2, "y"))
    one.close()
    two.close()
    assert [value for *_, value in broker.get(topic)] == [b"a", b"b"]


def test_without_transactions_rows_may_come_twice_and_none_is_missing(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, home, there = made(broker), tmp_path / "out", threading.Event()
    one = sink(broker, topic, home, transactions=False)
    one.open(SCHEMA, None)
    one.write(table(0, 10))
    one.committed(one.flush(True))
    eventually(lambda: not one._ready)
    assert numbers(broker, topic) == list(range(10))

    def die(self: TopicWriter, send: Callable[[], object]) -> None:
        there.set()
        self._stopped.wait(WAIT_S)
        self._check_stopped()

    monkeypatch.setattr(TopicWriter, "_within_bounds", die)  # the broker has the rows, not the position behind them
    one.write(table(10, 5))
    one.committed(one.flush(True))
    assert there.wait(WAIT_S)
    abandon(one)
    monkeypatch.undo()
    again = sink(broker, topic, home)  # in transactions from now on
    again.open(SCHEMA, 15)
    again.write(table(15, 5))
    again.committed(again.flush(True))
    again.close(True)
    assert numbers(broker, topic) == [*range(15), *range(10, 20)]


def test_a_topic_that_is_not_there_and_wrong_options(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    with pytest.raises(OutputError, match=rf"there is no topic '{topic}x'.*did you mean '{topic}'"):
        sink(broker, f"{topic}x", tmp_path / "x").open(SCHEMA, None)
    with pytest.raises(OutputError, match=r"no column 'scr' for the key.*did you mean 'src'"):
        sink(broker, topic, tmp_path / "y", key="scr").open(SCHEMA, None)
    with pytest.raises(OutputError, match="no record format 'xml'"):
        sink(broker, topic, tmp_path / "z", format="xml")
    with pytest.raises(InputError, match="transactions=maybe is neither true nor false"):
        sink_at(f"kafka://{broker.address}/{topic}?transactions=maybe")
    assert not sink_at(f"kafka://{broker.address}/{topic}?transactions=false").transactions
    with pytest.raises(OutputError, match="the setting 'acsk' is unknown"):
        sink(broker, topic, tmp_path / "v", settings={"acsk": "all"}).open(SCHEMA, None)


def test_a_record_that_is_too_large_stops_the_run_with_a_word(broker: Broker, tmp_path: Path) -> None:
    topic = made(broker)
    one = sink(broker, topic, tmp_path / "out")
    one.open(SCHEMA, None)
    one.write(pa.table({"src": ["x" * 2_000_000], "n": [1]}, SCHEMA))
    one.committed(one.flush(True))
    with pytest.raises(OutputError, match="refuses a record"):
        one.close(True)
    assert one.failure is not None


def test_a_broker_that_goes_away_and_comes_back(own_broker: Broker, tmp_path: Path) -> None:
    """One outage, seen by sinks that write, one that has nothing to write, one that gives up, and two that open."""
    topics = {name: made(own_broker) for name in ("once", "plain", "idle", "gives up", "opens")}
    sinks = {name: away(own_broker, topics[name], tmp_path / name) for name in ("once", "plain")}
    hasty = away(own_broker, topics["gives up"], tmp_path / "gives up", "1 second")
    idle = TopicWriter(Brokers(own_broker.address, give_up="1 minute"), topics["idle"], "a", "topic idle")
    idle.open()
    idle.publish([b'{"n": 0}'], None, Position(1))
    for one in sinks.values():
        commit(one, 0, 10)
        eventually(lambda one=one: not one._ready)  # type: ignore[misc]
    own_broker.kill()
    for one in (*sinks.values(), hasty):
        commit(one, 10, 10)
    for one in sinks.values():
        eventually(lambda one=one: "no broker at" in one.note)  # type: ignore[misc]
    eventually(lambda: hasty.failure is not None)
    with pytest.raises(BorealisError, match="no broker at"):
        hasty.write(table(20, 1))
    hasty.open(SCHEMA, 10)
    hasty.close(False)
    with pytest.raises(OutputError, match="no broker at"):
        away(own_broker, topics["opens"], tmp_path / "never", "1 second")
    late = kafka.sink(topics["opens"], own_broker.address, give_up="2 minutes").keep(tmp_path / "late")
    opened = threading.Thread(target=late.open, args=(SCHEMA, None), daemon=True)
    opened.start()
    own_broker.start()
    opened.join(WAIT_S)
    assert not opened.is_alive()
    commit(late, 0, 3)
    late.close(True)
    last = threading.Thread(target=idle.publish, args=([b'{"n": 1}'], None, Position(2)), daemon=True)
    last.start()
    last.join(WAIT_S)
    assert not last.is_alive()
    idle.close()
    for one in sinks.values():
        one.close(True)
        assert one.note == ""
    again = kafka.sink(topics["gives up"], own_broker.address).keep(tmp_path / "gives up")
    again.open(SCHEMA, 10)
    again.close(True)
    found = {name: numbers(own_broker, topic) for name, topic in topics.items()}
    twenty = list(range(20))
    assert found == {"once": twenty, "plain": twenty, "idle": [0, 1], "gives up": twenty[10:], "opens": [0, 1, 2]}


def away(broker: Broker, topic: str, home: Path, give_up: str = "2 minutes") -> KafkaSink:
    """A sink that is open, in transactions unless its home is called otherwise."""
    one = kafka.sink(topic, broker.address, transactions=home.name != "plain", give_up=give_up).keep(home)
    one.open(SCHEMA, None)
    return one


def commit(one: KafkaSink, first: int, count: int) -> None:
    """Rows that can no longer be taken back."""
    one.write(table(first, count))
    one.committed(one.flush(True))


def test_a_login_that_is_refused(broker: Broker, tmp_path: Path) -> None:
    settings = login(broker, "PLAIN")
    topic = made(broker)
    wrong = kafka.sink(topic, f"127.0.0.1:{broker.login}", settings=settings | {"sasl.password": "geheim"})
    with pytest.raises(OutputError, match=rf"cannot log in at 127.0.0.1:{broker.login} \(.*[Ii]nvalid") as caught:
        wrong.keep(tmp_path / "out").open(SCHEMA, None)
    assert "geheim" not in str(caught.value)
    assert "geheim" not in repr(vars(wrong))


def test_a_broker_that_nobody_vouches_for(broker: Broker, tmp_path: Path) -> None:
    settings = {name: value for name, value in login(broker, "PLAIN", tls=True).items() if name != "ssl.ca.location"}
    there = kafka.sink(made(broker), f"127.0.0.1:{broker.secure}", settings=settings)
    with pytest.raises(OutputError, match=rf"cannot log in at 127.0.0.1:{broker.secure} \(.*certificate verify failed"):
        there.keep(tmp_path / "out").open(SCHEMA, None)
