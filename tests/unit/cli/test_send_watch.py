"""`send watch:DIR` as a user types it, against a real Flight server in this process: each row once, despite kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from town import STREAM, WAIT_S, Place, eventually

from borealis.cli.ending import run_app
from borealis.tuples import FIRST_TIME

SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
COMMAND = [sys.executable, "-m", "borealis.cli", "send", "packets"]


@pytest.fixture
def schema() -> pa.Schema:
    return SCHEMA


@pytest.fixture(autouse=True)
def incoming(place: Place) -> None:
    """The folder that is watched."""
    Path("incoming").mkdir()


def write(name: str, first: int, stop: int, *more: str) -> None:
    lines = [json.dumps({"ts": "2026-01-01T00:00:00Z", "n": n}) for n in range(first, stop)]
    Path("incoming", f".{name}").write_text("\n".join([*lines, *more]) + "\n")
    os.rename(Path("incoming", f".{name}"), Path("incoming", name))


def taken(place: Place) -> list[int]:
    queue = place.queues[STREAM]
    found: list[int] = []
    while len(found) < queue.next_id:
        section = queue.read(len(found), FIRST_TIME, WAIT_S)
        assert section is not None
        found += section.rows["n"].to_pylist()
    return found


def test_files_that_come_are_sent_once_whoever_is_killed(place: Place) -> None:
    queue = place.queues[STREAM]
    write("a.jsonl", 0, 40_000)  # some batches
    arguments = [*COMMAND, "watch:incoming/", "--state", "state", "--rate", "20000", "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as sending:
        eventually(lambda: queue.next_id > 0)
        write("b.jsonl", 40_000, 40_400, "{half")
        sending.kill()
        sending.wait(WAIT_S)
    assert 0 < queue.next_id < 40_000
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as sending:
        eventually(lambda: queue.next_id >= 40_400)
        write("c.jsonl", 40_400, 40_450)
        eventually(lambda: queue.next_id >= 40_450)
        sending.terminate()
        out, _ = sending.communicate(timeout=WAIT_S)
        assert sending.returncode == 143
    assert taken(place) == list(range(40_450))
    told = json.loads(out)
    assert told["publisher"] == "watch.incoming"
    assert told["dead_letters"] == 1
    assert "{half" in Path("state", "traffic.packets.dead.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["watch:incomin/"], "did you mean 'incoming'?"),
        (["watch:incoming/", "--publisher", "ada"], "add --state DIR"),
        (["watch:incoming/", "--end"], "has no end"),
        (["rows.csv", "--state", "state"], "--state is for a directory that is watched"),
        (["watch:incoming/", "--state", "state", "--time", "n"], "has 1 TIMESTAMP columns: ts"),
    ],
)
def test_what_it_refuses(capfd: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    Path("rows.csv").write_text("ts,n\n")
    assert run_app(["send", "packets", *arguments]) == 2
    assert says in capfd.readouterr().err


def test_a_mark_of_somebody_else_and_a_state_of_another_stream(capfd: pytest.CaptureFixture[str], place: Place) -> None:
    entry = place.entries[STREAM]
    entry.last["watch.incoming"], entry.marks["watch.incoming"] = 3, '{"topic": "packets"}'
    assert run_app(["send", "packets", "watch:incoming/", "--state", "state"]) == 2
    assert "something else than a directory" in capfd.readouterr().err
    Path("state").mkdir(exist_ok=True)
    Path("state", "send.json").write_text(json.dumps({"version": 1, "stream": "traffic/other", "publisher": "ada"}))
    assert run_app(["send", "packets", "watch:incoming/", "--state", "state", "--publisher", "ada"]) == 2
    assert "is of another stream" in capfd.readouterr().err
