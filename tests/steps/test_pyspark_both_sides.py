"""A running diagram's streams as source and sink of PySpark jobs: in this process, and in another one that is killed.

Kills are for `BOREALIS_CHAOS=full`: 12 of them. Failures print the seed; `BOREALIS_CHAOS_SEED=n` replays its choices.
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
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import borealis
import coordinator_process
from borealis import Diagram
from borealis.client.cluster_config import find
from borealis.client.coordinator import CoordinatorClient
from borealis.entry.point import Entry
from borealis.errors import InputError
from borealis.node.node import Node
from borealis.streams.queue import OutputQueue
from borealis.tuples import TIMESTAMP
from borealis.wire.messages import BatchHead, Receipt
from borealis.wire.server import WireServer
from programs import kill_session

KILLS = 12
ROWS = 500 * (KILLS + 1)
SEED = int(os.environ.get("BOREALIS_CHAOS_SEED", "20240501"))
START_S_MOST = 180  # a slow machine that starts Spark
IN_MICRO_BATCH = 150
TOO_SLOW = "Python worker failed to connect back"  # Spark gives its Python ten seconds to start
PAGE = Path(__file__).parents[2] / "docs" / "pyspark.md"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Cluster:
    """A coordinator in a process of its own, and a node in this one."""

    def __init__(self, spark: SparkSession, home: Path) -> None:
        catalog = str(home / "catalog.sqlite")
        self.process = subprocess.Popen(
            [sys.executable, coordinator_process.__file__, catalog, "0"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = re.search(r"http://(\S+)", self.process.stdout.readline())
        assert found is not None
        self.coordinator = found[1]
        self.node = Node("node1")
        self.server = WireServer(self.node).start()
        self.node.address, self.node.http = self.server.address, "http://127.0.0.1:1"
        self.node.session.started(spark)
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()
        self.client = borealis.connect(self.coordinator)
        eventually(lambda: len(self.client.nodes()) == 1)

    def _beat(self) -> None:
        with CoordinatorClient(find(self.coordinator)) as coordinator:
            while not self._closed.is_set():
                coordinator.ask("POST", "/v1/nodes", content=self.node.status().encode())
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
    monkeypatch.setenv("BOREALIS_COORDINATOR", cluster.coordinator)
    monkeypatch.setitem(spark.sparkContext.environment, "BOREALIS_COORDINATOR", cluster.coordinator)
    text = PAGE.read_text().replace('"alarms-checkpoint"', repr(str(tmp_path / "checkpoint")))
    deploy, job, look = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(deploy, "docs/pyspark.md, block 1", "exec"), names)
    eventually(lambda: cluster.queue("traffic/aggregate_1").next_id == 10)
    for code in (job, job, look):
        exec(compile(code, "docs/pyspark.md", "exec"), names)
    alarms = cluster.rows("traffic/alarms")
    assert [(r["src"], r["n"]) for r in alarms] == [("a", 6), ("a", 7), ("a", 7), ("a", 6), ("a", 7)]
    assert cluster.queue("traffic/aggregate_1").acks()["alarms"][1] == 10


class Job:
    """The user's job, in processes of its own. The entry point that it writes to, which this is as well, kills it."""

    def __init__(self, cluster: Cluster, home: Path, entry: Entry) -> None:
        self.cluster, self.home, self.entry = cluster, home, entry
        self.starts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.aim("never", 0)

    def aim(self, moment: str, after: int, delay_s: float = 0.0) -> None:
        """When to kill: at the first such moment after so many batches."""
        self.moment, self.left, self.delay_s, self.dead = moment, after, delay_s, False

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        if self.dead:
            raise InputError("nobody is there to send this")  # it was on its way already
        receipt = self.entry.take(publisher, head, batch)
        self.left -= 1
        is_last = publisher.count(".") == 1  # parts before it have a name of their own
        if self.left < 0 and self.moment == ("the last part is in" if is_last else "a part is in"):
            self.dead = True
            self.kill()
        elif self.left == 0 and self.moment == "any":
            threading.Timer(self.delay_s, self.kill).start()
        return receipt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.entry, name)

    def start(self) -> None:
        self.starts += 1
        program = Path(__file__).with_name("pyspark_job.py")
        with open(self.home / f"said-{self.starts}.txt", "wb") as said:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(program),
                    self.cluster.coordinator,
                    str(self.home / "checkpoint"),
                    str(IN_MICRO_BATCH),
                ],
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # to be killed with its JVM and Python workers
            )

    def kill(self) -> None:
        assert self.process is not None
        kill_session(self.process.pid)

    def run(self) -> int:
        """Until it ends, one way or another."""
        self.start()
        while True:
            assert self.process is not None
            try:
                code = self.process.wait(START_S_MOST)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            said = (self.home / f"said-{self.starts}.txt").read_text()
            if code != 1 or TOO_SLOW not in said:
                assert code in (0, -signal.SIGKILL), said
                return code
            self.start()


@pytest.mark.skipif(
    os.environ.get("BOREALIS_CHAOS") != "full",
    reason="takes minutes: set BOREALIS_CHAOS=full; examples/07 has a job that goes on, and is not killed",
)
def test_a_killed_job_goes_on_where_it_was(cluster: Cluster, tmp_path: Path) -> None:
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
    running: Any = cluster.node.entries["numbers", "in-copied"]
    running.entry = job = Job(cluster, tmp_path, running.entry)
    for kill in range(KILLS):
        moment = ("a part is in", "the last part is in", "any")[kill % 3]
        job.aim(moment, chance.randint(0, 6), chance.uniform(0, 0.5))
        assert job.run() == -signal.SIGKILL
        acked = source.acks()["copier"][1]
        print(f"seed {SEED}, kill {kill}, {moment}: {copied.next_id} are in, {acked} acknowledged")
        assert acked <= copied.next_id < len(wanted)
        assert moment == "any" or acked < copied.next_id
        assert (copied.next_id % IN_MICRO_BATCH != 0) == (moment == "a part is in") or moment == "any"
    job.aim("never", 0)
    assert job.run() == 0

    assert [(r["id"], r["n"]) for r in cluster.rows("numbers/copied")] == wanted, f"seed {SEED}"
    assert cluster.queue("numbers/copied.late").next_id == 0
    assert source.acks()["copier"][1] == len(wanted)
