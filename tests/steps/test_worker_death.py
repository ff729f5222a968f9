"""A Python worker killed in the midst of a run: Spark tries its task again, and nobody can tell."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from borealis import Diagram, run, window
from borealis.trains.intake import Admission
from borealis.trains.progress import Progress

START = datetime(2024, 1, 1, tzinfo=UTC)
ROWS = [(START + timedelta(milliseconds=40 * i), i % 7, float(i)) for i in range(6_000)]


def diagram() -> Diagram:
    d = Diagram("retried")
    s = d.input("rows", "ts TIMESTAMP, k INT, v DOUBLE", time="ts")
    s.aggregate(by="k", over=window("2 seconds", "1 second"), n="count(*)", v="sum(v)").output("sums")
    return d


@pytest.mark.parametrize("buckets", [1, 2])
def test_killed_workers_change_nothing(spark: SparkSession, buckets: int) -> None:
    undisturbed = run(diagram(), {"rows": ROWS}, spark=spark, buckets=buckets)["sums"]
    killed: list[int] = []
    at_trains: list[int] = []

    def watch(progress: list[Progress]) -> None:
        """Three times, each after a commit: a task that dies three times in a row ends the run."""
        if len(at_trains) < 3 and progress[0].trains >= 5 + max(at_trains, default=0):
            at_trains.append(progress[0].trains)
            killed.extend(_kill_workers())

    small = Admission(rows_most=150)
    disturbed = run(diagram(), {"rows": ROWS}, spark=spark, buckets=buckets, admission=small, watch=watch)["sums"]
    assert killed, "no worker was found to kill"
    assert disturbed.equals(undisturbed)


def _kill_workers() -> list[int]:
    """SIGKILL every Python worker that this process's own JVM has forked."""
    killed = []
    for process in psutil.Process().children(recursive=True):
        try:
            line, parent = process.cmdline(), process.parent()
            is_worker = "pyspark.daemon" in line and parent is not None and "pyspark.daemon" in parent.cmdline()
            if is_worker and line[-1] == "pyspark.worker":
                os.kill(process.pid, signal.SIGKILL)
                killed.append(process.pid)
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
    return killed


def test_a_failing_train_leaves_no_trace(spark: SparkSession) -> None:
    """The rows before a division by zero are committed, those of its train are not, and the error is one sentence."""
    from borealis.errors import TrainError

    d = Diagram("divides")
    s = d.input("rows", "ts TIMESTAMP, k INT", time="ts")
    s.map(x="10 / k").output("out")
    rows = [(START + timedelta(seconds=i), 0 if i == 25 else 1) for i in range(40)]
    seen: list[dict[str, object]] = []
    with pytest.raises(TrainError, match="division by zero"):
        run(d, {"rows": rows}, {"out": seen}, spark=spark, admission=Admission(rows_most=10))
    assert len(seen) == 20


def test_results_come_while_a_live_input_is_open(spark: SparkSession) -> None:
    """A window's result reaches the callback before the input ends."""
    arrived = threading.Event()

    def live() -> Iterator[tuple[datetime, int]]:
        for i in range(5):
            yield START + timedelta(seconds=i), i
        assert arrived.wait(120), "no result although the boundary had passed"
        yield START + timedelta(seconds=9), 9

    def seen(batch: pa.RecordBatch) -> None:
        arrived.set()

    d = Diagram("live")
    s = d.input("rows", "ts TIMESTAMP, k INT", time="ts")
    s.aggregate(over=window("1 second"), n="count(*)").output("out")
    result = run(d, {"rows": live}, {"out": seen}, spark=spark)
    assert result.units[0].rows_out["out"] == 6
