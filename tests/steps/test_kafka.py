"""Topic to topic through a run, as a user has it: from Python, from the command line, from the page of the manual."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from benchmarks.kafka_broker import PASSWORD, Broker, connector
from pyspark.sql import SparkSession

from borealis import Diagram, kafka, run, window
from borealis.cli.ending import run_app
from borealis.errors import BorealisError
from kafka_login import login

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"
COLUMNS = "ts TIMESTAMP, src STRING, bytes INT"


def diagram() -> Diagram:
    d = Diagram("traffic")
    packets = d.input("packets", COLUMNS)
    packets.aggregate(by="src", over=window("10 seconds"), n="count(*)", total="sum(bytes)").output("per_source")
    return d


def packets(count: int) -> list[dict[str, Any]]:
    return [
        {"ts": f"2026-01-01T12:{i // 60:02}:{i % 60:02}Z", "src": "abc"[i % 3], "bytes": i % 1500} for i in range(count)
    ]


def put(broker: Broker, topic: str, rows: list[dict[str, Any]], partitions: int) -> None:
    for p in range(partitions):
        broker.put(topic, [json.dumps(row).encode() for row in rows[p::partitions]], p)


def objects(broker: Broker, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value or b"") for *_, value in broker.get(topic)]


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["window_end"], row["src"])


@pytest.fixture
def topics(broker: Broker) -> tuple[str, str]:
    name = uuid4().hex[:8]
    return broker.topic(f"packets-{name}", 2), broker.topic(f"per-source-{name}", 1)


def test_topic_to_topic(broker: Broker, topics: tuple[str, str], tmp_path: Path, spark: SparkSession) -> None:
    come, go = topics
    rows = packets(600)
    put(broker, come, rows, 2)
    broker.put(come, [b"oops", b'{"ts": "never", "src": "a", "bytes": 1}', None], 0)
    source = kafka.source(come, broker.address, until="now")
    sink = kafka.sink(go, broker.address, key="src")
    done = run(diagram(), {"packets": source}, {"per_source": sink}, state=tmp_path / "state", spark=spark)
    truth = run(diagram(), {"packets": rows}, spark=spark).rows("per_source")
    found = objects(broker, go)
    shown = [row | {"window_start": str(row["window_start"]), "window_end": str(row["window_end"])} for row in truth]
    assert len(found) == len(truth) == 180
    assert [(row["src"], row["n"], row["total"]) for row in sorted(found, key=key)] == [
        (row["src"], row["n"], row["total"]) for row in sorted(shown, key=key)
    ]
    said = done.to_json()
    assert said["dead_letters"] == {"packets": 3}
    assert said["late"] == {"packets": 0}
    assert any("3 records" in warning for warning in said["warnings"])
    letters = (tmp_path / "state" / "packets.dead.jsonl").read_text().splitlines()
    assert len(letters) == 3
    assert {record[2] for record in broker.get(go)} == {b"a", b"b", b"c"}
    again = run(
        diagram(),
        {"packets": kafka.source(come, broker.address, until="now")},
        {"per_source": kafka.sink(go, broker.address, key="src")},
        state=tmp_path / "state",
        spark=spark,
    )
    assert again.to_json()["rows_in"] == 0
    assert objects(broker, go) == found


def test_from_the_command_line(
    broker: Broker,
    topics: tuple[str, str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    come, go = topics
    put(broker, come, packets(100), 2)
    Path("traffic.yaml").write_text(diagram().to_yaml())
    urls = [f"packets=kafka://{broker.address}/{come}?until=now", f"per_source=kafka://{broker.address}/{go}?key=src"]
    arguments = ["run", "traffic.yaml", "--input", urls[0], "--output", urls[1], "--state", "state"]
    assert run_app([*arguments, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["rows_in"] == 100
    assert told["outputs"] == {"per_source": f"kafka://{broker.address}/{go}"}
    assert sum(row["n"] for row in objects(broker, go)) == 100


def quotes() -> Diagram:
    d = Diagram("quotes")
    rows = d.input("quotes", "ts TIMESTAMP, id INT, price INT", key="id", history="1 hour", slack="1 hour")
    rows.filter("price < 100").output("cheap")
    rows.aggregate(over=window("10 seconds"), n="count(*)", highest="max(price)").output("highest")
    return d


def captured(op: str, id_: int, before: int | None, after: int | None) -> bytes:
    """A change of a row as Debezium gives it."""
    row = {"ts": f"2026-01-01T12:00:{id_:02}Z", "id": id_}
    images = {"before": before and row | {"price": before}, "after": after and row | {"price": after}}
    return json.dumps({"schema": {}, "payload": {"op": op, "source": {}, **images}}).encode()


def test_changes_of_a_table_to_a_topic_that_is_one(
    broker: Broker,
    topics: tuple[str, str],
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Debezium's topic in; a compacted topic and one with kinds out."""
    monkeypatch.chdir(tmp_path)
    come, kinds = topics
    table = broker.topic(f"table-{uuid4().hex[:8]}", 2, cleanup_policy="compact")
    changes: list[tuple[int, bytes | None]] = [(i, captured("c", i, None, 10 * i)) for i in range(1, 13)]
    changes += [(3, captured("u", 3, 30, 35)), (4, captured("u", 4, 40, 400)), (5, captured("d", 5, 50, None))]
    changes += [(5, None), (6, captured("d", 6, None, None)), (7, captured("t", 7, None, None))]
    broker.put(come, [value for _, value in changes], keys=[json.dumps({"id": i}).encode() for i, _ in changes])
    Path("quotes.yaml").write_text(quotes().to_yaml())
    at = f"kafka://{broker.address}"
    places = [f"cheap={at}/{table}?key=id&table=true", f"highest={at}/{kinds}"]
    arguments = ["run", "quotes.yaml", "--input", f"quotes={at}/{come}?until=now&format=debezium", "--state", "state"]
    assert run_app([*arguments, "--output", places[0], "--output", places[1], "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert (said["rows_in"], said["dead_letters"]) == (16, {"quotes": 1})
    stands = {i: 10 * i for i in (1, 2, 3, 7, 8, 9)} | {3: 35}
    assert {i: row["price"] for i, row in kept(broker, table).items()} == stands
    highest = [(row["_kind"], row["n"], row["highest"]) for row in objects(broker, kinds)]
    assert highest == [("+I", 7, 400), ("+I", 3, 120)], "windows that were corrected before they were given"


def kept(broker: Broker, topic: str) -> dict[int, dict[str, Any]]:
    """What a compacted topic comes to."""
    last = {key: value for _, _, key, value in broker.get(topic)}
    return {int(key or b""): json.loads(value) for key, value in last.items() if value is not None}


def test_what_is_wrong_is_told(broker: Broker, topics: tuple[str, str], spark: SparkSession) -> None:
    come, _ = topics
    with pytest.raises(BorealisError, match="there is no topic"):
        run(diagram(), {"packets": kafka.source("nowhere", broker.address)}, spark=spark)
    with pytest.raises(BorealisError, match="there is no topic"):
        run(diagram(), {"packets": []}, {"per_source": kafka.sink("nowhere", broker.address)}, spark=spark)
    with pytest.raises(BorealisError, match=r"no broker at 127\.0\.0\.1:1 "):
        run(diagram(), {"packets": kafka.source(come, "127.0.0.1:1", give_up="1 second")}, spark=spark)


@pytest.mark.parametrize(("mechanism", "tls"), [("PLAIN", False), ("SCRAM-SHA-256", True)])
def test_a_broker_that_wants_a_login(
    broker: Broker,
    topics: tuple[str, str],
    mechanism: str,
    tls: bool,
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings = login(broker, mechanism, tls) | {"sasl.password": "${KAFKA_PASSWORD}"}
    monkeypatch.chdir(tmp_path)
    come, go = topics
    put(broker, come, packets(100), 2)
    Path("traffic.yaml").write_text(diagram().to_yaml())
    at = f"kafka://127.0.0.1:{broker.secure if tls else broker.login}"
    query = "&".join(f"{name}={value}" for name, value in settings.items())
    urls = [f"packets={at}/{come}?until=now&{query}", f"per_source={at}/{go}?key=src&{query}"]
    command = ["run", "traffic.yaml", "--input", urls[0], "--output", urls[1], "--state", "state"]

    monkeypatch.setenv("KAFKA_PASSWORD", "geheim")
    assert run_app(command) == 2
    said = capfd.readouterr()
    assert "cannot log in at 127.0.0.1" in said.err
    assert "geheim" not in said.out + said.err

    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    assert run_app([*command, "--json"]) == 0
    said = capfd.readouterr()
    assert json.loads(said.out)["rows_in"] == 100
    assert sum(row["n"] for row in objects(broker, go)) == 100
    assert PASSWORD not in said.out + said.err
    kept = [path for path in Path("state").rglob("*") if path.is_file()]
    assert kept
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]


def test_sparks_own_connector(broker: Broker, topics: tuple[str, str], tmp_path: Path) -> None:
    jars = connector()
    if not jars:
        pytest.skip("Spark's Kafka connector is not there: python benchmarks/kafka_broker.py fetch")
    put(broker, topics[0], packets(300), 2)
    broker.put(topics[0], [b"oops"], 0)
    job = Path(__file__).with_name("kafka_connector_job.py")
    where = [broker.address, topics[0], str(tmp_path / "out.jsonl"), str(tmp_path / "state"), jars]
    done = subprocess.run([sys.executable, str(job), *where], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    counts = [json.loads(line)["n"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sum(counts) == 300


def test_the_page_runs(broker: Broker, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = uuid4().hex[:8]
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    topics = {topic: f"{topic}-{name}" for code in blocks for topic in re.findall(r'"([\w-]+)", brokers', code)}
    for topic in topics.values():
        broker.topic(topic, 2)
    put(broker, topics["packets"], packets(60), 2)
    broker.put(topics["quotes"], [captured("c", 1, None, 10), captured("u", 1, 10, 12)], 0)
    names: dict[str, object] = {}
    for number, code in enumerate(blocks, 1):
        here = code.replace("localhost:9092", broker.address)
        for topic, made in topics.items():
            here = here.replace(f'"{topic}", brokers', f'"{made}", brokers')
        exec(compile(here, f"docs/kafka.md, block {number}", "exec"), names)
    assert sum(row["n"] for row in objects(broker, topics["per-source"])) == 60
    assert [(key, json.loads(value or b"")["highest"]) for *_, key, value in broker.get(topics["highest"])] == [
        (b"2026-01-01T12:00:00.000000Z", 12)
    ]
