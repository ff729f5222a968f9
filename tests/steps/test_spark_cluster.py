"""A real Spark cluster on this machine: executors that share no files with the node, killed in the midst of trains."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from borealis import run

SPARK_HOME = Path(pyspark.__file__).parent
START_S_MOST = 120  # a slow machine that starts a JVM
KILLS = 20 if os.environ.get("BOREALIS_CHAOS") == "full" else 2  # per diagram
JOB_S_MOST = 400 + 60 * KILLS


@pytest.fixture(scope="module")
def job() -> ModuleType:
    """The module `cluster_job.py`, which also runs as a program."""
    spec = importlib.util.spec_from_file_location("cluster_job", Path(__file__).with_name("cluster_job.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def own_shm() -> list[str]:
    """Words before a command that give it a /dev/shm of its own, empty; none where this machine does not allow it."""
    inside = ["sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh"]
    for way in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if shutil.which("unshare") and not subprocess.run([*way, *inside, "true"], capture_output=True).returncode:
            return [*way, *inside]
    return []


@dataclass
class Cluster:
    """A master and two workers with one core each, all on loopback; ended with all their children."""

    home: Path
    apart: list[str] = field(default_factory=own_shm)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> str:
        master = self._launch("master", "org.apache.spark.deploy.master.Master", [])
        url = _said(master, r"Starting Spark master at (spark://\S+)")
        limits = ["--cores", "1", "--memory", "600m"]
        logs = [
            self._launch(f"worker{n}", "org.apache.spark.deploy.worker.Worker", [*limits, url], self.apart)
            for n in range(2)
        ]
        for log in logs:
            _said(log, r"Successfully registered with master (\S+)")
        return url

    def _launch(self, name: str, kind: str, more: list[str], before: list[str] | None = None) -> Path:
        home = self.home / name
        home.mkdir()
        env = os.environ | {
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), kind, "--host", "127.0.0.1", "--port", "0"]
        log = home / "said.txt"
        with open(log, "wb") as said:
            self.processes.append(
                subprocess.Popen(
                    [*(before or []), *command, "--webui-port", "0", *more],
                    env=env,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
        return log

    @property
    def workers(self) -> list[int]:
        return [p.pid for p in self.processes[1:]]

    def stop(self) -> None:
        for process in self.processes:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all that came of it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def _said(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + START_S_MOST
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text()):
            return found[1]
        time.sleep(0.05)
    raise AssertionError(log.read_text())


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
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, cwd=home)
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
