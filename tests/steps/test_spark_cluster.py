"""A real Spark cluster on this machine: executors that share no files with the node, killed in the midst of trains."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmarks.postgres_server import binaries
from pyspark.sql import SparkSession

from borealis import run
from postgres import Embedded, Server, server
from programs import load
from standalone import Cluster, end

KILLS = 20  # per diagram
pytestmark = pytest.mark.skipif(
    os.environ.get("BOREALIS_CHAOS") != "full",
    reason="takes minutes: set BOREALIS_CHAOS=full; tests/cluster/test_spark_master.py kills one executor",
)
JOB_S_MOST = 400 + 60 * KILLS


@pytest.fixture(scope="module")
def job() -> ModuleType:
    """The module `cluster_job.py`, which also runs as a program."""
    return load(Path(__file__).with_name("cluster_job.py"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    one = Cluster(tmp_path)
    try:
        yield one
    finally:
        one.stop()


def run_job(job: ModuleType, cluster: Cluster, home: Path) -> dict[str, Any]:
    """The job's report."""
    url = cluster.start()
    command = [sys.executable, job.__file__ or "", url, str(home), str(KILLS), *map(str, cluster.workers)]
    with open(home / "said.txt", "wb") as said:
        env = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}  # where `standalone` is
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, cwd=home, env=env)
        try:
            assert process.wait(JOB_S_MOST) == 0, (home / "said.txt").read_text()
        finally:
            end(process)
    report: dict[str, Any] = json.loads((home / "report.json").read_text())
    return report


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Embedded | Server]:
    """Known to the processes that are started from now on: Spark's workers tell their executors."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(server()) if binaries() else Embedded(tmp_path / "bills.db")
        one.run(
            "CREATE TABLE names (k INT, name TEXT)",
            "INSERT INTO names VALUES (1, 'Ada'), (2, 'Bob'), (4, 'Cyd')",
            f"CREATE TABLE bills (name TEXT, v INT CHECK (v <> 13){', at SERIAL' if isinstance(one, Server) else ''})",
        )
        monkeypatch.setenv("BOREALIS_DATABASE_BILLS", one.url)
        yield one


@pytest.mark.timeout(JOB_S_MOST + 400)  # five JVMs, and executors that start again, on a machine that may be busy
def test_executors_elsewhere_die_and_nothing_is_lost_or_repeated(
    job: ModuleType, cluster: Cluster, database: Embedded | Server, spark: SparkSession, tmp_path: Path
) -> None:
    home, truth = tmp_path / "job", tmp_path / "truth"
    home.mkdir()
    truth.mkdir()
    job.write_inputs(home, KILLS)
    report = run_job(job, cluster, home)

    for name in ("plain", "levels"):
        kills = report[name]["kills"]
        assert len(kills) == KILLS, "the run ended before executors could be killed: give it more rows"
        assert all(k["processes"] > 1 for k in kills)
        if cluster.apart:
            assert report[name]["seen"]
            assert not any(report[name]["seen"])

    halted = {name: [k["halted_in_stage"] for k in report[name]["kills"]] for name in job.ALL}
    assert set(halted["plain"]) - {None}  # a train was on it, and could not end without it
    assert None in halted["levels"]

    names = {1: "Ada", 2: "Bob", 4: "Cyd"}
    left = pq.read_table(home / "left.parquet").to_pylist()
    bills = [(names[row["k"]], row["v"]) for row in left if row["k"] in names]
    order = "rowid" if isinstance(database, Embedded) else "at"
    good, bad = (pq.read_table(path).to_pylist() for path in job.outputs(home, "billed").values())
    written = database.run(f"SELECT name, v FROM bills ORDER BY {order}")
    assert set(halted["billed"]) - {None}
    assert sorted(written) == sorted((n, v) for n, v in bills if v != 13)
    assert written == [(n, v) for n, v in bills if v != 13]
    assert [(row["name"], row["v"]) for row in good] == [(n, v) for n, v in bills if v != 13]
    assert [(row["name"], row["v"]) for row in bad] == [(n, v) for n, v in bills if v == 13] != []

    for name, make in job.DIAGRAMS.items():
        run(make(), job.inputs(home, name), job.outputs(truth, name), spark=spark, buckets=job.BUCKETS)
        for output, path in job.outputs(home, name).items():
            found = pq.read_table(path)
            assert found.num_rows > 10
            assert found.equals(pq.read_table(job.outputs(truth, name)[output])), f"{name}: {output}"
