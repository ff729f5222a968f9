"""From a watched directory to a directory of Parquet files, as users run it, and as Spark reads it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from borealis import Diagram, directory, run, watch

pytestmark = pytest.mark.spark

WAIT_S = 200  # a slow machine that starts Spark


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("incoming").mkdir()
    return tmp_path


def diagram() -> Diagram:
    d = Diagram("small")
    d.input("packets", "ts TIMESTAMP, src STRING, bytes INT").filter("bytes >= 0").output("big")
    return d


def write(name: str, first: int, stop: int, *more: str) -> None:
    lines = [f"2026-01-01T12:00:00Z,a,{n}" for n in range(first, stop)]
    Path("incoming", f".{name}").write_text("\n".join(["ts,src,bytes", *lines, *more]) + "\n")
    os.rename(Path("incoming", f".{name}"), Path("incoming", name))


def eventually(what: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + WAIT_S
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def test_spark_reads_what_a_run_writes(spark: Any, folder: Path) -> None:
    write("a.csv", 0, 40, "2026-01-01T12:00:00Z,a,many")
    write("b.csv", 40, 100)
    Path("incoming/_END").touch()
    source = watch("incoming", until="_END", poll="10 ms", settle="10 ms")
    result = run(diagram(), {"packets": source}, {"big": directory("out/", rows=30)}, spark=spark)
    said = result.to_json()
    assert said["rows_in"] == 100
    assert said["dead_letters"] == {"packets": 1}
    assert "1 record in incoming could not be read" in said["warnings"][0]
    read = spark.read.parquet(str(folder / "out"))  # the JVM sits elsewhere
    assert sorted(row.bytes for row in read.collect()) == list(range(100))
    assert len(os.listdir("out")) >= 4


def test_the_command_line_follows_a_directory_until_it_is_stopped(folder: Path) -> None:
    diagram().save(folder / "small.yaml")
    write("a.csv", 0, 40, "2026-01-01T12:00:00Z,a,many")
    arguments = ["run", "small.yaml", "-i", "packets=watch:incoming/*.csv", "-o", "big=out/", "--state", "state"]
    command = [sys.executable, "-m", "borealis.cli", *arguments]

    def committed() -> int:
        """Bytes of commits on disk."""
        return sum(p.stat().st_size for p in Path("state/u1").glob("log-*.bin"))

    one = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    eventually(lambda: committed() > 200, one)
    one.send_signal(signal.SIGTERM)
    _, err = one.communicate(timeout=WAIT_S)
    assert one.returncode == 143, err
    assert "small: stopped" in err
    assert "1 record in incoming could not be read: see state/packets.dead.jsonl" in " ".join(err.split())
    assert "Traceback" not in err
    shown = subprocess.run(
        [sys.executable, "-m", "borealis.cli", "cat", "out", "--json"], capture_output=True, text=True, check=True
    )
    assert [json.loads(line)["bytes"] for line in shown.stdout.splitlines()] == list(range(40))
