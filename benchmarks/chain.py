"""A chain of three nodes beside one node, on the same diagram: `python benchmarks/chain.py [--json]`.

All ways are in one cluster of real processes, `borealis up --nodes 4`: the diagram as a single unit on node4, and cut
into three units on node1 to node3. They are measured by turns, so that a noisy minute hits all.

Where there are fewer cores than a chain can use, one node alone has more of them to itself than a node of the chain. So
there is a third way: the single unit three times over, on node1 to node3, all three at work at once. Its rate per node
is what one node does with the cores that a node of the chain has.

Latency: a second of stream time every 400 ms, which closes the window of the second before; from the call that
publishes it to the moment the client has that window's results. Throughput: rows as fast as the entry point takes them,
over the time from the first to the moment the client sees the boundary behind the last.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import borealis
from borealis.client.client import Client

from .measuring import Say, cpu_seconds, cpu_times

QUERIES = ("latency", "throughput")
ASKED_TRAINS = 4.0  # p50 of the chain, in trains' time
ASKED_RATIO = 0.8  # of one node's throughput
KEYS = 1_000
BATCH_ROWS = 50_000
PACE_S = 0.4  # between seconds of the stream: longer than they take, or it is queueing that is measured
PLACES = {
    "one": {"some": "node4"},
    "chain": {"some": "node1", "scale": "node2", "per_key": "node3"},
    "among1": {"some": "node1"},
    "among2": {"some": "node2"},
    "among3": {"some": "node3"},
}
DIAGRAM = """\
borealis: 1
name: {name}
inputs:
  rows: {{columns: 'ts TIMESTAMP, k INT, v INT', time: ts}}
boxes:
  some: {{filter: {{from: rows, predicate: v >= 10}}}}
  scale: {{map: {{from: some, exprs: {{k: k, v: v * 2}}}}}}
  per_key:
    aggregate: {{from: scale, by: [k], size: 1 second, slide: 1 second, exprs: {{n: count(*), s: sum(v)}}}}
outputs:
  per_key: per_key
"""


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names queries; `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False


@contextmanager
def cluster(say: Say) -> Iterator[Client]:
    """Four nodes with one core each, stopped again whatever happens."""
    with tempfile.TemporaryDirectory(prefix="borealis-chain-") as home:
        environment = os.environ | {"BOREALIS_HOME": home}
        command = [sys.executable, "-m", "borealis.cli"]
        say("starting four nodes ...")
        up = subprocess.run(
            [*command, "up", "--nodes", "4", "--port", "0", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            if up.returncode:
                raise RuntimeError(up.stderr.strip())
            record = json.loads((Path(home) / "cluster.json").read_text())
            with borealis.connect(record["coordinator"]) as client:
                yield client
        finally:
            subprocess.run([*command, "down"], env=environment, capture_output=True, check=False)


class Way:
    """One way to run the diagram, and a client that reads its results."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        spec = DIAGRAM.format(name=name)
        path = Path(tempfile.mkstemp(suffix=".yaml")[1])
        path.write_text(spec)
        client.deploy(path, cut=("scale", "per_key") if name == "chain" else (), place=PLACES[name])
        path.unlink()
        self.publisher = client.publisher(f"{name}/rows")
        self.now_us = 1_700_000_000_000_000  # of the stream
        self.boundary = 0
        self.arrivals: list[float] = []  # ms
        self.closed: dict[int, int] = {}  # end of a window to when the rows that close it were published, in ns
        self._changed = threading.Condition()
        threading.Thread(target=self._read, name=f"read-{name}", daemon=True).start()

    def _read(self) -> None:
        for section in self.client.subscribe(f"{self.name}/per_key", start="oldest").sections():
            now = time.perf_counter_ns()
            ends = section.rows.column("window_end").cast(pa.int64()).unique().to_pylist()
            with self._changed:
                self.arrivals += [(now - self.closed[end]) / 1e6 for end in ends if end in self.closed]
                self.boundary = section.final
                self._changed.notify_all()

    def rows(self, count: int, span_us: int, rng: np.random.Generator) -> pa.RecordBatch:
        """The next rows of the stream, over so much of its time."""
        ts = self.now_us + np.arange(count) * span_us // count
        self.closed[self.now_us] = time.perf_counter_ns()
        self.now_us += span_us
        return pa.record_batch(
            {
                "ts": pa.array(ts, pa.timestamp("us", "UTC")),
                "k": pa.array(rng.integers(0, KEYS, count), pa.int32()),
                "v": pa.array(rng.integers(0, 100, count), pa.int32()),
            }
        )

    def wait(self, boundary: int, seconds: float) -> None:
        """Until the client has seen a boundary of the results."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.boundary >= boundary, seconds):
                raise TimeoutError(f"{self.name}: no boundary {boundary} within {seconds} s (at {self.boundary})")

    def train_ms(self) -> list[float]:
        """The median time of each unit's last trains."""
        return [unit.train_ms for unit in self.client.status().units if unit.diagram == self.name]


def latency(way: Way, seconds: float, rng: np.random.Generator) -> dict[str, Any]:
    """A second of the stream every 400 ms: each closes the window of the one before it, so each gives results."""
    way.arrivals.clear()
    until, due = time.perf_counter() + seconds, time.perf_counter()
    while time.perf_counter() < until:
        way.publisher.send(way.rows(1_000, 1_000_000, rng))
        due += PACE_S
        time.sleep(max(0.0, due - time.perf_counter()))  # the pace of the load
    way.wait((way.now_us - 1_000_000) // 1_000_000 * 1_000_000, 60)
    took = sorted(way.arrivals)
    trains = way.train_ms()
    return {
        "p50_ms": round(took[len(took) // 2], 1),
        "p99_ms": round(took[int(len(took) * 0.99)], 1),
        "train_ms": [round(t, 1) for t in trains],
    }


def throughput(way: Way, rows: int, rng: np.random.Generator) -> tuple[float, float]:
    """Rows per second, end to end, and how many cores the way's nodes used meanwhile."""
    status = way.client.status()
    nodes = {unit.node for unit in status.units if unit.diagram == way.name}
    pids = [node.pid for node in status.nodes if node.node in nodes]
    batches = [way.rows(BATCH_ROWS, 500_000, rng) for _ in range(rows // BATCH_ROWS)]
    batches.append(way.rows(1, 2_000_000, rng))  # closes the last window
    start, before = time.perf_counter(), cpu_times(pids)
    for batch in batches:
        way.publisher.send(batch)
    way.wait((way.now_us - 2_000_000) // 1_000_000 * 1_000_000, 300)
    took = time.perf_counter() - start
    return rows / took, cpu_seconds(before, cpu_times(pids)) / took


def among(ways: list[Way], rows: int, rng: np.random.Generator) -> float:
    """Rows per second of one node while others do the same beside it: the mean of all."""
    rates: list[float] = []
    threads = [
        threading.Thread(target=lambda way=way: rates.append(throughput(way, rows // 3, rng)[0]), daemon=True)
        for way in ways
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    if len(rates) < len(ways):
        raise TimeoutError("not all of the nodes that work side by side came to an end")
    return statistics.mean(rates)


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """All figures."""
    wanted = options.only or QUERIES
    rng = np.random.default_rng(7)
    seconds, rows = (3.0, 500_000) if options.quick else (15.0, 4_000_000)
    cores = len(os.sched_getaffinity(0))
    figures: list[dict[str, Any]] = []
    with cluster(say) as client:
        say("deploying and warming up ...")
        every = {name: Way(client, name) for name in PLACES}
        ways, beside = [every["one"], every["chain"]], [every[f"among{i}"] for i in (1, 2, 3)]
        for way in every.values():
            throughput(way, 500_000, rng)
            latency(way, 2.0, rng)
        if "latency" in wanted:
            found: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ways}
            for number in range(options.runs):
                for way in ways:
                    found[way.name].append(latency(way, seconds, rng))
                    say(f"latency, run {number + 1}, {way.name}: {found[way.name][-1]}")
            for way in ways:
                p50 = statistics.median(f["p50_ms"] for f in found[way.name])
                train = statistics.median(t for f in found[way.name] for t in f["train_ms"])
                figures.append(
                    {
                        "query": "latency",
                        "way": way.name,
                        "nodes": 3 if way.name == "chain" else 1,
                        "p50_ms": p50,
                        "p99_ms": statistics.median(f["p99_ms"] for f in found[way.name]),
                        "train_ms": round(train, 1),
                        "trains": round(p50 / train, 2),
                        "asked_trains_most": ASKED_TRAINS if way.name == "chain" else None,
                        "met": p50 <= ASKED_TRAINS * train if way.name == "chain" else None,
                        "cores": cores,
                        "runs": options.runs,
                    }
                )
        if "throughput" in wanted:
            rates: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
            shared: list[float] = []
            for number in range(options.runs):
                for way in ways:
                    rate, used = throughput(way, rows, rng)
                    rates[way.name].append((rate, used))
                    say(f"throughput, run {number + 1}, {way.name}: {rate:,.0f} rows/s on {used:.2f} cores")
                shared.append(among(beside, rows, rng))
                say(f"throughput, run {number + 1}, one node of three side by side: {shared[-1]:,.0f} rows/s")
            equal = statistics.median(shared)
            one = statistics.median(rate for rate, _ in rates["one"])
            for way in ways:
                rate, used = (statistics.median(values) for values in zip(*rates[way.name], strict=True))
                figures.append(
                    {
                        "query": "throughput",
                        "way": way.name,
                        "nodes": 3 if way.name == "chain" else 1,
                        "rows_per_s": round(rate),
                        "ratio_to_one_node": round(rate / one, 3),
                        "one_node_of_three_rows_per_s": round(equal) if way.name == "chain" else None,
                        "ratio_at_equal_cores": round(rate / equal, 3) if way.name == "chain" else None,
                        "asked_ratio_least": ASKED_RATIO if way.name == "chain" else None,
                        "met": rate >= ASKED_RATIO * one if way.name == "chain" else None,
                        "met_at_equal_cores": rate >= ASKED_RATIO * equal if way.name == "chain" else None,
                        "cores": cores,
                        "cores_used": round(used, 2),
                        "rows_per_core_s": round(rate / used),
                        "runs": options.runs,
                    }
                )
    return figures
