"""The queries as diagrams, run as a user runs them, and watched from outside."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import workload
from batches import Batch

from borealis import Diagram, replay, rows, run, window
from borealis.spark.session import session
from borealis.trains import unit as node_unit
from borealis.trains.intake import Admission
from borealis.trains.progress import Progress

COLUMNS = "k INT, v DOUBLE, ts TIMESTAMP"
OUT = {"out": "discard:"}
SAMPLE_S = 0.25
MINUTE_US = 60_000_000


def q1(name: str) -> Diagram:
    """Filter and map."""
    d = Diagram(name)
    d.input("in", COLUMNS).filter("v > 0.5").map(k="k", w="v * 2", ts="ts").output("out")
    return d


def q2(name: str) -> Diagram:
    """Count and sum per key over sliding windows."""
    d = Diagram(name)
    over = window("10 seconds", "1 second")
    d.input("in", COLUMNS).aggregate(by="k", over=over, n="count(*)", total="sum(v)").output("out")
    return d


def q3(name: str) -> Diagram:
    """Join on the key, less than 10 ms apart."""
    d = Diagram(name)
    left, right = d.input("left_in", COLUMNS), d.input("right_in", COLUMNS)
    left.join(right, on="left.k = right.k", within="10 ms").output("out")
    return d


QUERIES = {"q1": q1, "q2": q2, "q3": q3}


class Trace:
    """Every commit of a run with one unit: when it was, how many rows the train had, how long it took."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        note = Progress.note

        def noted(progress: Progress, rows_in: int, ms: float, *others: Any) -> None:
            note(progress, rows_in, ms, *others)
            start, number = time.time() * 1000 - ms, len(self.batches)
            parts = {"triggerExecution": ms}
            self.batches.append(Batch(number=number, start_ms=start, took_ms=ms, rows=rows_in, parts=parts))

        Progress.note = noted  # type: ignore[method-assign]


def throughput(query: str, inputs: list[str], home: str, master: str, rows_most: int) -> list[Batch]:
    """Files replayed as fast as it goes, in trains of at most so many rows."""
    _scratch_in(home)
    diagram, trace = QUERIES[query](query), Trace()
    given = {i.name: replay(path) for i, path in zip(diagram.spec.inputs, inputs, strict=True)}
    run(diagram, given, OUT, spark=session(master=master), admission=Admission(rows_most=rows_most))
    return trace.batches


def live(rows_per_s: int, seconds: float, cold: int, home: str, master: str) -> list[Batch]:
    """Q2 over a generator that gives its rows in real time; a train's time begins when it is handed out.

    Ends so many seconds after the first `cold` trains.
    """
    _scratch_in(home)
    stop, trace, until = threading.Event(), Trace(), float("inf")

    def watch(_: list[Progress]) -> None:
        nonlocal until
        if len(trace.batches) >= cold:
            until = min(until, time.monotonic() + seconds)
        if time.monotonic() > until:
            stop.set()

    source = rows(lambda: workload.live(rows_per_s, stop))
    run(q2("live"), {"in": source}, OUT, spark=session(master=master), watch=watch)
    return trace.batches


def _scratch_in(home: str) -> None:
    """Keep what the run needs for itself where the benchmark can measure it, and take it away if the run is killed."""
    Path(home).mkdir(parents=True)
    vars(node_unit)["scratch"] = lambda prefix: Path(tempfile.mkdtemp(prefix=prefix, dir=home))


def hour(minutes: int, rows_per_ms: int, home: str, master: str) -> dict[str, Any]:
    """Q2 over rows made on the fly, and how much memory the driver holds as stream time goes by."""
    count = workload.FILE_ROWS

    def made() -> Iterator[pa.RecordBatch]:
        for i in range(-(-minutes * 60_000 * rows_per_ms // count)):
            yield workload.rows_at(i * count, count, rows_per_ms)

    _scratch_in(home)
    spark = session(master=master)
    memory = Memory(Path(home))
    done = run(q2("hour"), {"in": rows(made)}, OUT, spark=spark, watch=memory)
    unit = done.units[0]
    return {"samples": memory.samples, "rows": unit.rows_in, "seconds": unit.seconds, "train_ms": list(unit.train_ms)}


class Memory:
    """Samples of what the driver holds: this process, its JVM, and its files in memory; the workers for information."""

    def __init__(self, home: Path) -> None:
        self.samples: list[dict[str, float]] = []
        self._home = home
        self._here = psutil.Process()
        self._jvm = next(p for p in self._here.children(recursive=True) if p.name() == "java")
        self._next = 0.0

    def __call__(self, units: list[Progress]) -> None:
        """Called by the run every few hundredths of a second."""
        now = time.monotonic()
        cursors = units[0].cursors
        if now < self._next or not cursors or cursors["in"].ended:
            return
        self._next = now + SAMPLE_S
        self.samples.append(
            {
                "minute": (cursors["in"].boundary - workload.EPOCH_US) / MINUTE_US,
                "python": self._here.memory_info().rss,
                "jvm": self._jvm.memory_info().rss,
                "scratch": self._scratch(),
                "workers": self._workers(),
            }
        )

    def _workers(self) -> int:
        total = 0
        for process in self._jvm.children(recursive=True):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
        return total

    def _scratch(self) -> int:
        total = 0
        for path in self._home.rglob("*"):
            try:
                total += path.stat().st_size
            except FileNotFoundError:
                continue  # trains come and go
        if not total:
            raise RuntimeError(f"the run keeps nothing under {self._home}: where does it keep its trains?")
        return total
