"""What the cluster test runs as a program: diagrams on executors that are processes of their own, some of them killed.

`python cluster_job.py <master> <home> <kills> <pid of a Spark worker>...` reads the inputs that `write_inputs` has put
into home, and writes each diagram's outputs and a `report.json` there.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from borealis import Diagram, window
from borealis.trains.progress import Progress
from standalone import executors

EVERY = 6  # trains between kills
WIDE_ROWS, WIDE_MOST, WIDE_BYTES = 700, 600, 16 << 10  # a train with results and a delta of megabytes
ROWS_MOST = 60  # in a train
BUCKETS = 2
SLACK = "300 ms"
STUCK_S = 0.5  # many times what a train takes
WAIT_S = 60.0
LIMITS = {"spark.executor.memory": "512m", "spark.driver.memory": "768m"}


def plain() -> Diagram:
    """Filter, aggregate and join, all of them kernels: in two buckets, one level."""
    d = Diagram("plain")
    left = d.input("left", "ts TIMESTAMP, k INT, v INT, s STRING", slack=SLACK)
    right = d.input("right", "ts TIMESTAMP, k INT, w INT", slack=SLACK)
    kept = left.filter("k <> 3")
    kept.aggregate(by="k", over=window("2 seconds", "500 ms"), n="count(*)", v="sum(v)", top="max(s)").output("sums")
    kept.join(right, on="left.k = right.k", within="200 ms").output("pairs")
    return d


def levels() -> Diagram:
    """Boxes that only Catalyst can run between stateful ones, and a key that changes: several levels and shuffles."""
    d = Diagram("levels")
    left = d.input("left", "ts TIMESTAMP, k INT, v INT, s STRING", slack=SLACK)
    right = d.input("right", "ts TIMESTAMP, k INT, w INT", slack=SLACK)
    loud = left.map(k="k", v="v", loud="sha2(s, 256)", minute="date_trunc('MINUTE', ts)")
    per = loud.aggregate(by=["loud", "minute"], over=window("2 seconds"), n="count(*)", v="sum(v)")
    per.aggregate(by="n", over=window("4 seconds"), groups="count(*)", most="max(v)").output("sizes")
    loud.join(right, on="left.k = right.k", within="100 ms").filter("loud LIKE '%a%'").output("pairs")
    return d


def wide() -> Diagram:
    """Results and state that are too large for one row through the JVM."""
    d = Diagram("wide")
    rows = d.input("wide", "ts TIMESTAMP, k INT, s STRING")
    rows.filter("k >= 0").output("all")
    rows.aggregate(by="k", over=window("1 hour"), s="max(s)").output("longest")
    return d


def billed() -> Diagram:
    """SQL boxes; only those who run them know where the database is."""
    d = Diagram("billed")
    left = d.input("left", "ts TIMESTAMP, k INT, v INT, s STRING", slack=SLACK)
    ask = "SELECT name FROM names WHERE k = :k"
    named = left.sql_read(ask, gives="name STRING", database=DATABASE, stable=True)
    bills = named.sql_write("INSERT INTO bills (name, v) VALUES (:name, :v)", database=DATABASE)
    bills.output("good")
    bills.bad.output("bad")
    return d


DATABASE = "bills"
DIAGRAMS = {"plain": plain, "levels": levels, "wide": wide}
ALL = DIAGRAMS | {"billed": billed}


def write_inputs(home: Path, kills: int) -> None:
    """Two files, out of order within the slack, with rows for a few trains more than the kills take; and a wide one."""
    chance, rows = np.random.default_rng(7), (kills + 2) * EVERY * ROWS_MOST // 2
    for name in ("left", "right"):
        times = np.arange(rows) * 20_000 - chance.integers(0, 10, rows) * 30_000
        columns: dict[str, Any] = {
            "ts": pa.array(times, pa.timestamp("us", "UTC")),
            "k": pa.array(chance.integers(0, 6, rows), pa.int32()),
            "v" if name == "left" else "w": pa.array(chance.integers(0, 99, rows), pa.int32()),
        }
        if name == "left":
            columns["s"] = pa.array([None if i % 7 == 0 else f"ü{i % 13}" for i in range(rows)])
        pq.write_table(pa.table(columns), home / f"{name}.parquet")

    long = [secrets.token_hex(WIDE_BYTES // 2) for _ in range(WIDE_ROWS)]
    columns = {"ts": pa.array(range(WIDE_ROWS), pa.timestamp("us", "UTC")), "k": pa.array(range(WIDE_ROWS), pa.int32())}
    pq.write_table(pa.table(columns | {"s": long}), home / "wide.parquet")


def inputs(home: Path, name: str) -> dict[str, str]:
    return {i.name: str(home / f"{i.name}.parquet") for i in ALL[name]().validate().inputs}


def outputs(home: Path, name: str) -> dict[str, str]:
    return {o.name: str(home / f"{name}.{o.name}.parquet") for o in ALL[name]().validate().outputs}


def _runs_python(executor: psutil.Process) -> bool:
    try:
        return any("pyspark.daemon" in child.cmdline() for child in executor.children())
    except psutil.NoSuchProcess:
        return False


class Killer:
    """Kills executors with `kill -9`, with their Python workers: by turns in the midst of a train, and at once."""

    def __init__(self, spark: Any, workers: list[int], kills: int, *, halts_first: bool) -> None:
        self.spark, self.workers, self.halts_first = spark, workers, halts_first
        self.left, self.chance = kills, random.Random(11)
        self.done: list[dict[str, Any]] = []
        self.seen: list[bool] = []  # whether an executor had the node's files before its eyes

    def watch(self, progress: list[Progress]) -> None:
        """For `run`: kill after every so many trains."""
        trains = progress[0].trains
        if not self.left or trains < EVERY * (len(self.done) + 1):
            return
        alive = [e for e in executors(self.workers) if _runs_python(e)]  # any other has run nothing so far
        if not alive:
            return
        scratch = next(Path("/dev/shm").glob(f"borealis-{os.getpid()}-*"), None)
        if scratch is not None:  # as these executors see the file system
            self.seen += [Path(f"/proc/{e.pid}/root{scratch}").exists() for e in alive]
        victim = self.chance.choice(alive)
        halts = (len(self.done) % 2 == 0) == self.halts_first
        halted = self._halt(victim, lambda: progress[0].trains) if halts else None
        family = [victim, *victim.children(recursive=True)]
        for process in family:
            process.kill()
        self.left -= 1
        self.done.append({"at_train": trains, "halted_in_stage": halted, "processes": len(family)})

    def _halt(self, victim: psutil.Process, trains: Callable[[], int]) -> int:
        """Stop a process where it is, and wait until a train that needs it stands still: which stage of it."""
        victim.suspend()
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            before = trains(), self._busy()
            time.sleep(STUCK_S)  # nothing can tell that nothing happens, but that it does not
            after = trains(), self._busy()
            if before == after and after[1]:
                return after[1][0]
        raise AssertionError("no train came to the executor that was halted")

    def _busy(self) -> list[int]:
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(s) for s in tracker.getActiveStageIds()]
        return [s.stageId for s in stages if s is not None and s.numActiveTasks]


def main(master: str, home: Path, kills: int, workers: list[int]) -> None:
    from borealis import run
    from borealis.spark.session import session
    from borealis.trains.intake import Admission

    begun = time.monotonic()
    spark = session(master, LIMITS)
    report: dict[str, Any] = {"session_s": time.monotonic() - begun}
    for name, make in ALL.items():
        killer = Killer(spark, workers, kills if name in DIAGRAMS else 1, halts_first=name != "levels")
        begun = time.monotonic()
        result = run(
            make(),
            inputs(home, name),
            outputs(home, name),
            buckets=BUCKETS,
            spark=spark,
            admission=Admission(rows_most=WIDE_MOST if name == "wide" else ROWS_MOST),
            watch=killer.watch,
        )
        report[name] = result.to_json() | {"kills": killer.done, "seen": killer.seen}
        report[name]["wall_s"] = time.monotonic() - begun
    (home / "report.json").write_text(json.dumps(report))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), [int(pid) for pid in sys.argv[4:]])
