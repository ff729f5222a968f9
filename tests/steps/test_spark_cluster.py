"""A real Spark cluster on this machine: executors that share no files with the node, killed in the midst of trains."""

from __future__ import annotations

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
from pyspark.sql import SparkSession

from borealis import run
from programs import load
from standalone import Cluster, end

KILLS = 20 if os.environ.get("BOREALIS_CHAOS") == "full" else 2  # per diagram
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


def rows_of(table: Any) -> list[str]:
    """Rows in an order of their own, to compare what has no order."""
    return sorted(map(repr, table.select(sorted(table.column_names)).to_pylist()))


@pytest.mark.timeout(JOB_S_MOST + 400)  # five JVMs, and executors that start again, on a machine that may be busy
def test_executors_elsewhere_die_and_nothing_is_lost_or_repeated(
    job: ModuleType, cluster: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    home, truth = tmp_path / "job", tmp_path / "truth"
    home.mkdir()
    truth.mkdir()
    job.write_inputs(home, KILLS)
    report = run_job(job, cluster, home)

    for name in ("plain", "levels"):
        kills = report[name]["kills"]
        assert len(kills) == KILLS, "the run ended before executors could be killed: give it more rows"
        assert any(k["halted_in_stage"] is not None for k in kills)  # a train was on it, and could not end without it
        assert all(k["processes"] > 1 for k in kills)
        if cluster.apart:
            assert report[name]["seen"]
            assert not any(report[name]["seen"])

    for name, make in job.DIAGRAMS.items():
        run(make(), job.inputs(home, name), job.outputs(truth, name), spark=spark, buckets=job.BUCKETS)
        frames = {i: spark.read.parquet(path) for i, path in job.inputs(home, name).items()}
        oracle = make().batch(spark, frames)
        for output, path in job.outputs(home, name).items():
            found = pq.read_table(path)
            assert found.num_rows > 10
            assert found.equals(pq.read_table(job.outputs(truth, name)[output])), f"{name}: {output}"
            assert rows_of(found) == rows_of(oracle[output].toArrow().cast(found.schema)), f"{name}: {output}"
