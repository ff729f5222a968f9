"""A running diagram's streams as source and sink of PySpark jobs: in this process, and in another one that is killed.

Failures print the seed; `BOREALIS_CHAOS_SEED=n` replays its choices.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import borealis
from borealis import Diagram
from borealis.emit.queue import OutputQueue
from borealis.node.node import Node
from borealis.node.process import Coordinator
from borealis.tuples import TIMESTAMP
from borealis.wire.server import WireServer

ROWS = 3000
KILLS = 3
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))
START_S_MOST = 180  # a slow machine that starts Spark
TOO_SLOW = "Python worker failed to connect back"  # Spark gives its Python ten seconds to start
PAGE = Path(__file__).parents[2] / "docs" / "pyspark.md"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Cluster:
    """A coordinator in a process of its own, and a node in this one."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        catalog = str(home / "catalog.sqlite")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "borealis.coordinator", catalog, "0"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"http://(\S+)", self.process.stdout.readline())
        assert found is not None
        self.coordinator = found[1]
        self.node = Node("node1")
        self.server = WireServer(self.node).start()
        self.node.address, self.node.http = self.server.address, "http://127.0.0.1:1"
        self.node.spark_is(spark)
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()
        self.client = borealis.connect(self.coordinator)
        eventually(lambda: len(self.client.nodes()) == 1)

    def _beat(self) -> None:
        coordinator = Coordinator(self.coordinator, None)
        while not self._closed.is_set():
            coordinator.heartbeat(self.node.status().encode())
            self._closed.wait(1.0)

    def queue(self, stream: str) -> OutputQueue:
        return self.node.queues[stream]

    def rows(self, stream: str) -> list[dict[str, object]]:
        """All that a stream holds, in order."""
        queue, found = self.queue(stream), []
        at, boundary = queue.first_id, -(2**63)
        while (section := queue.read(at, boundary, 0)) is not None:
            found += section.rows.to_pylist()
            at, boundary = section.stop, section.final
        return found

    def close(self) -> None:
        self._closed.set()
        self.client.close()
        self.process.terminate()
        self.node.close()
        self.server.close()
        self.process.wait()


@pytest.fixture(scope="module")
def cluster(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    one = Cluster(spark, tmp_path_factory.mktemp("cluster"))
    yield one
    one.close()


def eventually(happens: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_page_on_pyspark_runs(
    cluster: Cluster, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block after block, as a reader would type it, and twice: the second time its checkpoint is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOREALIS_COORDINATOR", cluster.coordinator)
    monkeypatch.setitem(spark.sparkContext.environment, "BOREALIS_COORDINATOR", cluster.coordinator)
    deploy, job, look = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(deploy, "docs/pyspark.md, block 1", "exec"), names)
    eventually(lambda: cluster.queue("traffic/aggregate_1").next_id == 10)
    for code in (job, job, look):
        exec(compile(code, "docs/pyspark.md", "exec"), names)
    alarms = cluster.rows("traffic/alarms")
    assert [(r["src"], r["n"]) for r in alarms] == [("a", 6), ("a", 7), ("a", 7), ("a", 6), ("a", 7)]
    assert cluster.queue("traffic/aggregate_1").acked("alarms", 1) == 10


class Job:
    """The user's job, in processes of its own."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.home, self.starts = cluster, home, 0

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        program = Path(__file__).with_name("pyspark_job.py")
        with open(self.home / f"said-{self.starts}.txt", "wb") as said:
            return subprocess.Popen(
                [sys.executable, str(program), self.cluster.coordinator, str(self.home)],
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # with its JVM and Python workers in one group
            )

    def said(self) -> str:
        return (self.home / f"said-{self.starts}.txt").read_text()

    def run(self, until: Callable[[], bool] | None = None, delay_s: float = 0.0) -> None:
        """Until it ends, or something is so: then it is killed, a little later."""
        process, deadline = self.start(), time.monotonic() + START_S_MOST
        try:
            while until is None or not until():
                if process.poll() == 0 and until is None:
                    return
                if process.poll() is not None:
                    assert TOO_SLOW in self.said(), self.said()
                    process = self.start()
                assert time.monotonic() < deadline, self.said()
                time.sleep(0.002)
            time.sleep(delay_s)  # at any moment of a micro-batch
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_a_killed_job_goes_on_where_it_was(cluster: Cluster, spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    d = Diagram("numbers")
    d.input("all", "ts TIMESTAMP, n BIGINT").filter("n % 10 <> 3").output("kept")
    d.input("copied", "id BIGINT, ts TIMESTAMP, n BIGINT").output("copies")
    cluster.client.deploy(d)
    n = np.arange(ROWS)
    cluster.client.publish("all", pa.record_batch({"ts": pa.array(n * 1000, TIMESTAMP), "n": pa.array(n)}))
    wanted = list(enumerate(i for i in range(ROWS) if i % 10 != 3))
    source, copied = cluster.queue("numbers/filter_1"), cluster.queue("numbers/copied")
    eventually(lambda: source.next_id == len(wanted))
    job = Job(cluster, tmp_path)
    for kill in range(KILLS):
        enough = copied.next_id + chance.randint(1, 450)
        job.run(lambda enough=enough: copied.next_id >= enough, delay_s=chance.uniform(0, 0.4))
        print(f"seed {SEED}, kill {kill}: {copied.next_id} copied, acknowledged up to {source.acked('copier', 1)}")
        assert source.acked("copier", 1) <= copied.next_id < len(wanted)
    job.run()

    assert [(r["id"], r["n"]) for r in cluster.rows("numbers/copied")] == wanted, f"seed {SEED}"
    assert cluster.queue("numbers/copied.late").next_id == 0
    filed = spark.read.parquet(str(tmp_path / "filed")).select("_id", "n").collect()
    assert sorted(tuple(r) for r in filed) == wanted, f"seed {SEED}"
    assert source.acked("copier", 1) == source.acked("archive", 1) == len(wanted)
