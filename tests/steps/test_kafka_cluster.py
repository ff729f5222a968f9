"""`send` and `tail --to` with topics: a real broker, a real entry point and a real Flight server, and real kills."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from benchmarks.kafka_broker import Broker

from borealis.cli.ending import run_app
from borealis.diagram.spec import Input
from borealis.entry.point import Entry
from borealis.entry.point import StreamConfig as Stream
from borealis.kernels.time_of import TimeOf, noted
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import NOTHING, Section
from borealis.tuples import FIRST_TIME, KIND

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from town import STREAM, Place, Town, finish

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
WAIT_S = 60.0
SECOND = 1_000_000


def record(n: int) -> bytes:
    return json.dumps({"ts": f"2026-01-01T00:{n // 60 % 60:02}:{n % 60:02}Z", "n": n}).encode()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A node that serves one input, and the coordinator that knows it."""
    town, made = Town(), Place()
    spec = Input(name="packets", columns="ts TIMESTAMP, n BIGINT", time="ts")
    entry = Entry(spec, SECOND, Stream(STREAM, SCHEMA, QueueLimits(), ["d.u1"]))
    made.entries[STREAM], made.queues[STREAM] = entry, entry.queue
    town.places[STREAM] = (made, True)
    monkeypatch.setenv("BOREALIS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("BOREALIS_COORDINATOR", f"127.0.0.1:{town.port}")
    monkeypatch.delenv("BOREALIS_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    yield made
    made.entries.clear()
    made.close()
    with suppress(OSError):
        town.stop()


def taken(queue: OutputQueue) -> list[int]:
    at, boundary, found = queue.first_id, FIRST_TIME, []
    while (part := queue.read(at, boundary, 0)) is not None:
        found += part.rows.column("n").to_pylist()
        at, boundary = part.stop, part.final
    return found


def eventually(happens: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not happens():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def command(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "borealis.cli", *arguments], stdout=subprocess.PIPE)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_a_topic_is_sent_once_whoever_is_killed(
    broker: Broker, place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(f"t-{uuid4().hex[:8]}", 2)
    url, queue = f"kafka://{broker.address}/{topic}", place.queues[STREAM]
    for i in range(3):
        follower = command("send", "packets", url)
        for p in range(2):
            broker.put(topic, [record(n) for n in range(i * 1000, i * 1000 + 1000) if n % 2 == p], p)
        eventually(lambda i=i: queue.next_id > i * 1000 + 100)  # type: ignore[misc]
        kill(follower)
    broker.put(topic, [b"oops"], 0)
    assert run_app(["send", "packets", url + "?bad=bad.jsonl", "--end", "--json"]) == 2  # it has no end
    capfd.readouterr()
    last = command("send", "packets", f"{url}?bad=bad.jsonl", "--json")
    eventually(lambda: queue.next_id == 3000 and Path("bad.jsonl").exists())
    last.send_signal(signal.SIGINT)
    out, _ = last.communicate(timeout=WAIT_S)
    told = json.loads(out)
    assert (told["not_acknowledged"], told["dead_letters"], told["publisher"]) == (0, 1, f"kafka.{topic}")
    assert sorted(taken(queue) + taken(place.entries[STREAM].late)) == list(range(3000))  # type: ignore[attr-defined]


def test_tombstones_are_sent_as_deletions(broker: Broker, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    """What the key is, the input's node notes at its columns."""
    spec = Input(name="packets", columns="ts TIMESTAMP, n BIGINT", time="ts", key=("n",), history="1 hour")
    schema = noted(SCHEMA.append(pa.field(KIND, pa.string())), TimeOf("ts"), spec.key)
    entry = Entry(spec, SECOND, Stream(STREAM, schema, QueueLimits(), ["d.u1"]))
    place.entries[STREAM], place.queues[STREAM] = entry, entry.queue
    topic = broker.topic(f"t-{uuid4().hex[:8]}")
    broker.put(topic, [record(7), None, None], keys=[b"7", b"7", b"seven"])
    assert run_app(["send", "packets", f"kafka://{broker.address}/{topic}?until=now", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["dead_letters"] == 1
    part = entry.queue.read(0, FIRST_TIME, 0)
    assert part is not None
    assert [(row["n"], row[KIND]) for row in part.rows.to_pylist()] == [(7, None), (7, "-D")]


def test_a_batch_that_is_too_large_for_the_wire_goes_on_in_its_midst(
    broker: Broker, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(f"t-{uuid4().hex[:8]}", 1)
    broker.put(topic, [record(n) for n in range(1000)])
    from borealis.cli.send_follow import TopicFollower
    from borealis.client import publisher as publishing
    from borealis.client.client import connect

    monkeypatch.setattr(publishing, "BATCH_BYTES", 2000)
    url = f"kafka://{broker.address}/{topic}?until=now"
    sent = 0
    for stop_after in (3, 1, 10**9):
        with connect() as client:
            out = client.publisher("packets", "p")
            for number, (batch, mark) in enumerate(TopicFollower(url, out, None).batches(lambda: None)):
                if number == stop_after:
                    break
                out.send_batch(batch, mark)
                sent += 1
            out.close(WAIT_S)
    assert sent > 10
    assert taken(place.queues[STREAM]) == list(range(1000))


def test_a_mark_that_goes_beyond_the_end_is_followed_up_to_the_end(broker: Broker, place: Place) -> None:
    """Earlier versions wrote such marks."""
    topic = broker.topic(f"t-{uuid4().hex[:8]}", 1)
    broker.put(topic, [record(n) for n in range(20)])
    from borealis.cli.send_follow import TopicMark
    from borealis.client.client import connect
    from borealis.connectors.kafka.ledger import OffsetRange

    rows = [{"ts": datetime(2026, 1, 1, 0, 0, n, tzinfo=UTC), "n": n} for n in range(3)]
    with connect() as client:
        out = client.publisher("packets", "p")
        mark = TopicMark(topic, {0: 15}, (OffsetRange(0, 0, 15, 10),), len(rows), {0: 10})
        out.send_batch(pa.RecordBatch.from_pylist(rows, SCHEMA), mark.to_text())
        out.close(WAIT_S)
    assert run_app(["send", "packets", f"kafka://{broker.address}/{topic}?until=now", "--publisher", "p"]) == 0
    assert taken(place.queues[STREAM]) == list(range(10))


def test_a_mark_of_another_topic_is_refused(broker: Broker, place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    topics = [broker.topic(f"t-{uuid4().hex[:8]}") for _ in range(2)]
    broker.put(topics[0], [record(1)])
    urls = [f"kafka://{broker.address}/{topic}?until=now" for topic in topics]
    assert run_app(["send", "packets", urls[0], "--publisher", "p"]) == 0
    assert run_app(["send", "packets", urls[1], "--publisher", "p"]) == 2
    assert f"followed topic '{topics[0]}' before" in capfd.readouterr().err


def test_a_stream_is_forwarded_once_whoever_is_killed(
    broker: Broker, place: Place, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = broker.topic(f"t-{uuid4().hex[:8]}")
    source = broker.topic(f"s-{uuid4().hex[:8]}")
    queue, to = place.queues[STREAM], f"kafka://{broker.address}/{topic}?key=n"

    def arrived() -> list[int]:
        return [json.loads(value or b"")["n"] for *_, value in broker.get(topic)]

    for i in range(3):
        forwarding = command("tail", "packets", "--to", to)
        broker.put(source, [record(n) for n in range(i * 500, i * 500 + 500)])
        assert run_app(["send", "packets", f"kafka://{broker.address}/{source}?until=now", "--publisher", f"p{i}"]) == 0
        eventually(lambda i=i: len(arrived()) > i * 500)  # type: ignore[misc]
        kill(forwarding)
    finish(queue)
    assert run_app(["tail", "packets", "--to", to]) == 0
    assert arrived() == taken(queue)
    assert run_app(["tail", "packets", "--to", to]) == 0
    assert arrived() == taken(queue)
    other = broker.topic(f"o-{uuid4().hex[:8]}")
    capfd.readouterr()
    there = f"kafka://{broker.address}/{other}"
    assert run_app(["tail", "packets", "--to", there, "--headers", "--limit", "3", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"stream": STREAM, "to": there, "reader": f"kafka.{other}", "rows": 3}
    assert err == ""
    heads = [json.loads(value or b"") for *_, value in broker.get(other)]
    assert [(head["_id"], head["_kind"]) for head in heads] == [(0, "+I"), (1, "+I"), (2, "+I")]


def test_tentative_rows_go_to_a_topic_of_their_own_and_every_partition_hears_the_undo(
    broker: Broker, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    stable, guesses = broker.topic(f"t-{uuid4().hex[:8]}"), broker.topic(f"g-{uuid4().hex[:8]}", 2)
    to, beside = (f"kafka://{broker.address}/{topic}?key=n" for topic in (stable, guesses))
    forward = ["tail", "packets", "--to", to, "--tentative-to", beside, "--headers"]
    queue = place.queues[STREAM]
    done = set[int]()

    def give(first: int, stop: int, fork: str = "") -> None:
        at = np.arange(first, stop)
        rows = pa.record_batch([pa.array(at, SCHEMA.field("ts").type), at], schema=SCHEMA)
        (queue.append_tentative if fork else queue.append)(Section(first, rows, at, NOTHING, NOTHING, fork=fork))

    def certain() -> list[int]:
        return [json.loads(value or b"")["_id"] for *_, value in broker.get(stable)]

    def standing() -> list[list[int]]:
        """What each partition's consumer still takes for tentative."""
        found: list[list[int]] = [[], []]
        done.clear()
        for one in broker.messages(guesses):
            headers = dict(one.headers())
            if "done" in headers:
                assert (one.key(), one.value(), headers["next_id"]) == (None, None, b"30")
                done.add(one.partition())
                continue
            if "undo" in headers:
                assert (one.key(), one.value(), headers["undo"]) == (None, None, b"true")
                found[one.partition()] = []
                continue
            row = json.loads(one.value())
            assert (headers["tentative"], row["_stable"], one.key()) == (b"true", False, str(row["n"]).encode())
            assert headers["fork"] == (b"f" if row["n"] < 30 else b"g")
            found[one.partition()].append(row["n"])
        return found

    give(0, 5)
    forwarding = command(*forward)
    eventually(lambda: len(certain()) == 5)
    queue.fork("f")
    give(5, 25, "f")
    eventually(lambda: sum(map(len, standing())) == 20)
    assert all(standing()), "both partitions have some"
    assert len(certain()) == 5
    give(5, 30)
    queue.drop_fork()
    queue.recover()
    eventually(lambda: len(certain()) == 30)
    assert standing() == [[], []], "the undo is there before the right rows are"
    eventually(lambda: standing() == [[], []] and done == {0, 1})
    undos = [one for one in broker.messages(guesses) if dict(one.headers()).get("next_id") == b"5"]
    assert {one.partition() for one in undos} == {0, 1}
    queue.fork("g")
    give(30, 40, "g")
    eventually(lambda: sum(map(len, standing())) == 10)
    kill(forwarding)
    queue.drop_fork()
    give(30, 33)
    finish(queue)
    capfd.readouterr()
    assert run_app([*forward, "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["rows"] == 3
    assert standing() == [[], []], "what a life that was killed left is void, too"
    assert certain() == list(range(33))
    assert run_app([*forward[:5], f"{beside}&table=true"]) == 2
    assert "cannot be a table of tentative rows" in capfd.readouterr().err
    assert run_app([*forward[:5], f"kafka://{broker.address}/nothing"]) == 2
    assert "tentative topic nothing: there is no topic 'nothing'" in capfd.readouterr().err


def test_a_stream_that_has_begun_anew_is_not_forwarded_under_the_old_ids(
    broker: Broker, place: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = broker.topic(f"t-{uuid4().hex[:8]}")
    source = broker.topic(f"s-{uuid4().hex[:8]}")
    broker.put(source, [record(n) for n in range(10)])
    to, url = f"kafka://{broker.address}/{topic}", f"kafka://{broker.address}/{source}?until=now"
    assert run_app(["send", "packets", url]) == 0
    assert run_app(["tail", "packets", "--to", to, "--limit", "5"]) == 0
    spec = Input(name="packets", columns="ts TIMESTAMP, n BIGINT", time="ts")
    anew = Entry(spec, SECOND, Stream(STREAM, SCHEMA, QueueLimits(), ["d.u1"]))
    place.entries[STREAM], place.queues[STREAM] = anew, anew.queue
    assert run_app(["send", "packets", url]) == 0
    assert run_app(["tail", "packets", "--to", to]) == 2
    assert "in another epoch" in capfd.readouterr().err
    assert len(broker.get(topic)) == 5
