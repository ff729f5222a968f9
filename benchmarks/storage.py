"""Units in storage: `borealis bench storage [--only throughput,restore,restart] [--quick]`.

After CEC's experiments: items by chance among 100,000, an average over every ten of one item, so that some 90,000
windows are open at any time.

throughput: rows/s through an entry point and that unit on another node, in storage and with no protection, by turns
(figure 5). restore: the node with the unit is killed, and the other goes on from storage, for logs of different extent
(figures 6 and 7) and bases that are written at different paces (8 and 9). `open_ms` goes from the order until the log
is read and streams are open, `restore_ms` until the first result that nobody had yet, for which the state is in a
worker; `first_s` from the kill until a client has that, `again` of it in rows that were read once more. restart: the
whole cluster, of one node and of three, is stopped while units on all of its nodes hold much state, and started again;
from the last node's being ready until clients of all units have a new result, which only old state can give.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis import Diagram
from borealis.client.subscriber import Subscription

from .measuring import Lines, Say, part_by_part, terminable
from .recovery_cluster import Cluster, cluster, down_and_up

QUERIES = ("throughput", "restore", "restart")
KEYS = 100_000
PLACED = ("items", "average")  # on a node each
BATCH = 50_000
ABIT = 1_000  # rows: boundaries are so far from each other
ROWS = 12_000_000  # for so long that the second between two heartbeats, which say what was read, matters little
RATIO = 0.9  # of the rows/s without
RESTORE_MS = 1_500.0
FIRST_S = 5.0
PART = 10_000  # rows with notes, in a batch
OLD = 200  # items that are complete with nine rows more
EXTENTS = (1.0, 2.0, 8.0)
PERIODS = ("25 ms", "100 ms", "250 ms")
PATIENCE_S = 240.0
SHOWN = (
    *("query", "ha", "nodes", "extent", "base_period", "rows", "state_bytes", "log_bytes"),
    *("rows_per_s", "ratio", "open_ms", "restore_ms", "down_s", "up_s", "first_s", "target", "met"),
)
YAML = """\
borealis: 1
name: {name}
inputs:
  items: {{columns: 'ts TIMESTAMP, item BIGINT, price BIGINT', time: ts, every: 1 ms}}
boxes:
  average: {{aggregate: {{from: items, by: [item], count: 10, exprs: {{mean: avg(price)}}}}}}
outputs:
  averages: average
"""
NOTED = YAML.replace("price BIGINT", "price BIGINT, note STRING").replace("avg(price)", "avg(price), note: first(note)")
NOTE_BYTES = 1_000


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
    """Rows a thousand to a millisecond of their own time: of items by chance, or of those that are given."""

    def __init__(self, keys: int) -> None:
        self._rng, self._keys, self._sent = np.random.default_rng(7), keys, 0

    def batch(self, rows: int = BATCH) -> pa.RecordBatch:
        return self.of(self._rng.integers(0, self._keys, rows))

    def bits(self) -> Iterator[pa.RecordBatch]:
        """A few rows at a time, for ever."""
        while True:
            yield self.batch(ABIT)

    def completing(self, old: int) -> Iterator[pa.RecordBatch]:
        """What lacks in windows with one row each, and so on."""
        while True:
            yield self.of(np.repeat(np.arange(old), 9), 1)

    def of(self, items: NDArray[np.int64], notes: int = 0) -> pa.RecordBatch:
        """A row of each of these items, with a note of so many bytes."""
        rows = len(items)
        at = 1_700_000_000_000_000 + np.arange(self._sent, self._sent + rows)
        self._sent += rows
        columns = {
            "ts": pa.array(at, pa.timestamp("us", "UTC")),
            "item": pa.array(items),
            "price": pa.array(self._rng.integers(1, 1000, rows)),
        }
        return pa.RecordBatch.from_pydict(columns | ({"note": pa.repeat("n" * notes, rows)} if notes else {}))


class Scene:
    """The diagram, deployed: rows come in on one node, windows are on another."""

    def __init__(
        self, running: Cluster, name: str, nodes: tuple[str, str] = ("node2", "node1"), text: str = YAML, **how: Any
    ) -> None:
        self.running, self.name, self.items, self.rows = running, name, Items(KEYS), 0
        running.client.deploy(
            Diagram.from_yaml(text.format(name=name)), place=dict(zip(PLACED, nodes, strict=True)), **how
        )

    def send(self, rows: int) -> float:
        """So many, and wait until the unit has read them; how many seconds that took."""
        return self.send_all([self.items.batch() for _ in range(rows // BATCH)])

    def send_all(self, batches: Iterable[pa.RecordBatch]) -> float:
        began = time.monotonic()
        with self.running.client.publisher(f"{self.name}/items") as publisher:
            for batch in batches:
                publisher.send(batch)
                self.rows += len(batch)
        self.running.wait_for(lambda _: self._read() >= self.rows - 1, f"{self.rows:,} rows to be read", PATIENCE_S)
        return time.monotonic() - began

    def first_new(self, seen: Subscription, batches: Iterator[pa.RecordBatch]) -> float:
        """Send these batches until there is a result that nobody had; when it came, by the monotonic clock."""
        until = time.monotonic() + PATIENCE_S
        publisher = self.running.client.publisher(f"{self.name}/items")
        try:
            while time.monotonic() < until:
                publisher.send(next(batches))
                if seen.read(0.1) is not None:
                    return time.monotonic()
        finally:
            publisher.abandon()
        raise TimeoutError(f"no new result of {self.name} for {PATIENCE_S:.0f} s")

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
    rows, runs = (500_000, 1) if options.quick else (ROWS, options.runs)
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
                seen = running.client.subscribe(f"{scene.name}/averages", "newest")
                killed = running.kill("node1")
                first_s = scene.first_new(seen, scene.items.bits()) - killed
                story = running.takeover(scene.name, "average", before.incarnation)
                took.append((story.takeover_ms, story.takeover_ms + story.reprocess_ms, first_s))
                open_ms, ms, _ = took[-1]
                say(f"{case}: open in {open_ms:,.0f} ms, restored in {ms:,.0f} ms, {first_s:.1f} s after the kill")
                say(f"  from {log:,} bytes of log; {rate:,.0f} rows/s before")
                seen.stop()
                scene.end()
                running.mend()
            open_ms, ms, first_s = (round(statistics.median(one), 1) for one in zip(*took, strict=True))
            facts = {"query": "restore", "ha": "storage", "rows": rows, "state_bytes": state, "log_bytes": log}
            facts |= {"rows_per_s": round(rate), "open_ms": open_ms, "restore_ms": ms, "first_s": first_s} | case
            lines.append(facts | {"runs": runs, "target": f"<= {RESTORE_MS:,.0f} ms", "met": ms <= RESTORE_MS})
    return lines


def restart(options: Options, say: Say) -> Lines:
    """Clusters that go on where they were: all nodes on this machine, and one that has it to itself, as each node of a
    real cluster has, with as much state on each."""
    return [_restart(options, say, nodes) for nodes in (("node1",), ("node1", "node2", "node3"))]


def _restart(options: Options, say: Say, nodes: tuple[str, ...]) -> dict[str, Any]:
    keys = 20_000 if options.quick else 350_000
    with _stored(len(nodes), say) as (running, root):
        running.wait_warm()
        scenes = []
        for number, node in enumerate(nodes):
            entry = nodes[number - 1]
            scenes.append(scene := Scene(running, f"big{number}", (entry, node), NOTED, ha="storage"))
            parts = np.array_split(np.arange(keys), max(1, keys // PART))
            took = scene.send_all(scene.items.of(part, NOTE_BYTES) for part in parts)
            say(f"{scene.name}: {keys:,} windows open after {took:.0f} s")
            running.wait_protected(scene.name)
        state = sum(running.unit(scene.name, "average").state_bytes for scene in scenes)
        log = sum(file.stat().st_size for file in root.rglob("*.bin"))
        say(f"stopping all with {state:,} bytes of state; {log:,} bytes in storage")
        down_s, up_s, ready = down_and_up(running, len(nodes), str(root))
        say(f"down in {down_s:.1f} s, up in {up_s:.1f} s")
        firsts = []
        for scene in scenes:  # each waits for the ones before it: the last figure is that of all
            seen = running.client.subscribe(f"{scene.name}/averages", "newest")
            firsts.append(scene.first_new(seen, scene.items.completing(OLD)) - ready)
            say(f"{scene.name}: a new result after {firsts[-1]:.1f} s")
            seen.stop()
        for scene in scenes:
            scene.end()
    figures: dict[str, Any] = {"query": "restart", "ha": "storage", "nodes": len(nodes), "rows": keys * len(nodes)}
    figures |= {
        "state_bytes": state,
        "log_bytes": log,
        "down_s": round(down_s, 1),
        "up_s": round(up_s, 1),
        "first_s": round(max(firsts), 2),
    }
    return figures | {"target": f"<= {FIRST_S:g} s", "met": max(firsts) <= FIRST_S, "runs": 1}
