"""`kill -9` between the database's commit and the engine's: no row is missing from the table, none is there twice."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmarks.postgres_server import binaries

from postgres import Embedded, Server, server
from programs import kill_session, load

START_S_MOST = 120  # a slow machine that starts Spark
PROGRAM = Path(__file__).with_name("sql_writer.py")
FULL = os.environ.get("BOREALIS_CHAOS") == "full"
KINDS = ["sqlite", "postgresql"] if FULL else ["postgresql" if binaries() else "sqlite"]  # a law has both


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    return load(PROGRAM)


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Embedded | Server]:
    if request.param == "sqlite":
        yield Embedded(tmp_path / "written.db")
    else:
        with server() as one:
            yield one


def start(home: Path, database: Embedded | Server, *more: str) -> subprocess.Popen[bytes]:
    with open(home / "said.txt", "ab") as said:
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), str(home), database.url, *more],
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # to be killed with its JVM and Python workers
        )


def kill_in_commit(home: Path, database: Embedded | Server, number: int) -> None:
    process = start(home, database, str(number))
    try:
        until = time.monotonic() + START_S_MOST
        while not (home / "halted").exists():
            assert process.poll() is None, (home / "said.txt").read_text()
            assert time.monotonic() < until, (home / "said.txt").read_text()
            time.sleep(0.01)
    finally:
        kill_session(process.pid)
        process.wait()
    (home / "halted").unlink()


def rows(database: Embedded | Server) -> list[Any]:
    return [n for (n,) in database.run("SELECT n FROM written ORDER BY n")]


def test_a_kill_between_the_two_commits(writer: ModuleType, database: Embedded | Server, tmp_path: Path) -> None:
    """The first train's, of which the state directory knows nothing yet, or a later one's."""
    database.run(writer.TABLE.format(time="TEXT" if isinstance(database, Embedded) else "TIMESTAMPTZ"))
    writer.write_input(tmp_path)
    wanted = [n for n in range(writer.ROWS) if n % 50 != 7]
    for number in [1, 3] if FULL else [3]:
        kill_in_commit(tmp_path, database, number)
        assert rows(database) == [n for n in wanted if n < number * writer.ROWS_MOST]  # and nowhere else
    process = start(tmp_path, database)
    assert process.wait(10 * START_S_MOST) == 0, (tmp_path / "said.txt").read_text()
    assert rows(database) == wanted
    found = {name: pq.read_table(path) for name, path in writer.outputs(tmp_path).items()}
    assert found["kept"]["n"].to_pylist() == wanted
    assert found["bad"]["n"].to_pylist() == [n for n in range(writer.ROWS) if n % 50 == 7]
    assert all("check" in why.lower() for why in found["bad"]["reason"].to_pylist())
