"""Units in storage: `borealis bench storage [--only throughput,restore,restart] [--quick]`.

After CEC's experiments: items by chance among 100,000, an average over every ten of one item, so that some 90,000
windows are open at any time.

throughput: rows/s through an entry point and that unit on another node, in storage and with no protection, by turns
(figure 5). restore: the node with the unit is killed, and the other goes on from storage; from the order until streams
are open, for logs of different extent (figures 6 and 7) and bases that are written at different paces (8 and 9).
restart: the whole cluster is stopped while it holds much state, and started again; from the last node's being ready to
the first new result.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis import Diagram

from .measuring import Lines, Say, part_by_part, terminable
from .recovery_cluster import Cluster, cluster, down_and_up

QUERIES = ("throughput", "restore", "restart")
KEYS = 100_000
BATCH = 50_000
RATIO = 0.9  # of the rows/s without
RESTORE_MS = 1_500.0
FIRST_S = 5.0
EXTENTS = (1.0, 2.0, 8.0)
PERIODS = ("25 ms", "100 ms", "250 ms")
PATIENCE_S = 240.0
SHOWN = (
    *("query", "ha", "extent", "base_period", "rows", "state_bytes", "log_bytes", "rows_per_s", "ratio", "restore_ms"),
    *("first_s", "target", "met"),
)
YAML = """\
borealis: 1
name: {name}
inputs:
  items: {{columns: 'ts TIMESTAMP, item BIGINT, price BIGINT', time: ts}}
boxes:
  average: {{aggregate: {{from: items, by: [item], count: 10, exprs: {{mean: avg(price)}}}}}}
outputs:
  averages: average
"""


@dataclass(frozen=True)
class Options:
    """What to measure; `quick` shows that it works."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False


@contextmanager
def _stored(nodes: int, say: Say) -> Iterator[tuple[Cluster, Path]]:
    """A cluster, and the directory that it keeps its units in."""
    temporary = tempfile.TemporaryDirectory(prefix="borealis-stored-", ignore_cleanup_errors=True)
    with temporary as root, cluster(say, nodes, storage=root) as running:
        yield running, Path(root)


class Items:
    """Rows by chance, a thousand to a millisecond of their own time."""

    def __init__(self, keys: int) -> None:
        self._rng, self._keys, self._sent = np.random.default_rng(7), keys, 0

    def batch(self, rows: int = BATCH) -> pa.RecordBatch:
        at = 1_700_000_000_000_000 + np.arange(self._sent, self._sent + rows)
        self._sent += rows
        columns = {
            "ts": pa.array(at, pa.timestamp("us", "UTC")),
            "item": pa.array(self._rng.integers(0, self._keys, rows)),
            "price": pa.array(self._rng.integers(1, 1000, rows)),
        }
        return pa.RecordBatch.from_pydict(columns)


class Scene:
    """The diagram, deployed: rows come in on node2, windows are on node1."""

    def __init__(self, running: Cluster, name: str, keys: int = KEYS, **how: Any) -> None:
        self.running, self.name, self.items, self.rows = running, name, Items(keys), 0
        place = {"items": "node2", "average": "node1"}
        running.client.deploy(Diagram.from_yaml(YAML.format(name=name)), place=place, **how)

    def send(self, rows: int) -> float:
        """So many, and wait until the unit has read them; how many seconds that took."""
        batches = [self.items.batch() for _ in range(rows // BATCH)]
        publisher = self.running.client.publisher(f"{self.name}/items")
        began = time.monotonic()
        for batch in batches:
            publisher.send(batch)
        publisher.close(PATIENCE_S)
        self.rows += len(batches) * BATCH
        self.running.wait_for(lambda _: self._read() >= self.rows - 1, f"{self.rows:,} rows to be read", PATIENCE_S)
        return time.monotonic() - began

    def _read(self) -> int:
        return self.running.unit(self.name, "average").rows_in

    def end(self) -> None:
        self.running.client.undeploy(self.name)


def run(options: Options, say: Say) -> Lines:
    """All figures; an interrupt ends the measuring, and what was measured is told."""
    parts = {
        "throughput": lambda: throughput(options, say),
        "restore": lambda: restore(options, say),
        "restart": lambda: restart(options, say),
    }
    with terminable():
        return part_by_part(
            {name: part for name, part in parts.items() if not options.only or name in options.only}, say
        )


def throughput(options: Options, say: Say) -> Lines:
    """Figure 5."""
    rows, runs = (500_000, 1) if options.quick else (3_000_000, options.runs)
    found: dict[str, list[float]] = {"none": [], "storage": []}
    with _stored(2, say) as (running, _):
        running.wait_warm()
        for number in range(runs):
            for ha, rates in found.items():
                scene = Scene(running, f"t{number}{ha}", ha=ha)
                scene.send(BATCH * 4)  # so that all is warm
                rates.append(rows / scene.send(rows))
                say(f"{ha}: {rates[-1]:,.0f} rows/s")
                scene.end()
    ratios = [one / ground for one, ground in zip(found["storage"], found["none"], strict=True)]
    ratio = round(statistics.median(ratios), 3)
    lines = [
        {"query": "throughput", "ha": ha, "rows": rows, "rows_per_s": round(statistics.median(rates)), "runs": runs}
        for ha, rates in found.items()
    ]
    return [lines[0], lines[1] | {"ratio": ratio, "target": f">= {RATIO}", "met": ratio >= RATIO}]


def restore(options: Options, say: Say) -> Lines:
    """Figures 6 to 9."""
    cases: list[dict[str, Any]] = [{"extent": one} for one in EXTENTS] + [{"base_period": one} for one in PERIODS]
    cases, runs = (cases[1:2], 1) if options.quick else (cases, options.runs)
    rows, lines = (600_000 if options.quick else 2_000_000), []
    with _stored(2, say) as (running, root):
        for case in cases:
            took = []
            for number in range(runs):
                running.wait_warm()
                scene = Scene(running, f"r{len(lines)}x{number}", ha="storage", **case)
                rate = rows / scene.send(rows)
                state, before = (
                    running.unit(scene.name, "average").state_bytes,
                    running.protection(scene.name, "average"),
                )
                log = sum(file.stat().st_size for file in (root / "units" / scene.name / "u1").rglob("*.bin"))
                running.kill("node1")
                took.append(running.takeover(scene.name, "average", before.incarnation).takeover_ms)
                say(f"{case}: restored in {took[-1]:,.0f} ms, from {log:,} bytes of log; {rate:,.0f} rows/s before")
                scene.end()
                running.mend()
            ms = round(statistics.median(took), 1)
            facts = {"query": "restore", "ha": "storage", "rows": rows, "state_bytes": state, "log_bytes": log}
            facts |= {"rows_per_s": round(rate), "restore_ms": ms, "runs": runs} | case
            lines.append(facts | {"target": f"<= {RESTORE_MS:,.0f} ms", "met": ms <= RESTORE_MS})
    return lines


def restart(options: Options, say: Say) -> Lines:
    """A cluster that goes on where it was."""
    keys = 200_000 if options.quick else 10_000_000
    with _stored(3, say) as (running, root):
        running.wait_warm()
        scene = Scene(running, "big", keys=keys, ha="storage")
        scene.send(2 * keys // BATCH * BATCH)
        running.wait_protected(scene.name)
        state = running.unit(scene.name, "average").state_bytes
        log = sum(file.stat().st_size for file in root.rglob("*.bin"))
        seen = running.client.subscribe(f"{scene.name}/averages", "newest")
        say(f"stopping all with {state:,} bytes of state; {log:,} bytes in storage")
        ready = down_and_up(running, 3, str(root))
        publisher = running.client.publisher(f"{scene.name}/items")
        first = None
        while first is None and time.monotonic() < ready + PATIENCE_S:
            publisher.send(scene.items.batch(1000))
            first = time.monotonic() if seen.read(0.2) is not None else None
        publisher.abandon()
        seconds = round((first or float("inf")) - ready, 2)
        scene.end()
    figures = {"query": "restart", "ha": "storage", "rows": 2 * keys, "state_bytes": state, "log_bytes": log}
    return [figures | {"first_s": seconds, "target": f"<= {FIRST_S:g} s", "met": seconds <= FIRST_S, "runs": 1}]
