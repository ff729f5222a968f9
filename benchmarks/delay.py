"""Bounded delay: `borealis bench delay [--only buckets] [--quick] [--plot out.png]`.

buckets: the DPC paper's table 3, what it costs to read several streams by time. Three streams of 1,000 rows a second
each meet in a union on one of two real nodes. A row carries the time of its birth, and a result's age is counted from
there. Buckets of 10 to 500 ms stand beside the same streams read as they arrive; nothing is protected by more than
`amnesia`, so that nothing else waits. Two lines more are of an active standby that is `precise`: as they arrive, where
the output of a train waits until the backup knows in which order it was merged, and by time, where it does not.

The cases take turns; a figure is the median of the runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from borealis import Diagram

from .latency_feed import COLUMNS, FILTER, Phase
from .latency_nodes import feed_and_read
from .measuring import Lines, Say, part_by_part, terminable
from .recovery_cluster import Cluster, cluster
from .recovery_plot import axes, refuse_without_matplotlib

QUERIES = ("buckets",)
INPUTS = ("a", "b", "c")
RATE = 1_000  # of each
BUCKETS_MS = (10, 50, 100, 200, 500)
MOST_OVER_MS = 15.0  # what a bucket may add beside its own length
SHOWN = ("figure", "policy", "ha", "bucket_ms", "p50_ms", "p99_ms", "added_ms", "target", "met", "cpu_s_per_s")
DIAGRAM = """\
borealis: 1
name: {name}
inputs:
  a: {{columns: '{columns}', time: ts, idle: 1 second}}
  b: {{columns: '{columns}', time: ts, idle: 1 second}}
  c: {{columns: '{columns}', time: ts, idle: 1 second}}
boxes:
  all: {{union: {{from: [a, b, c]}}}}
  kept: {{filter: {{from: all, predicate: {keep}}}}}
outputs:
  out: kept
"""


@dataclass(frozen=True)
class Options:
    """What to measure; `quick` shows that it works."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False
    plot: str | None = None


@dataclass(frozen=True)
class Case:
    """How the streams are read."""

    policy: str
    bucket_ms: int | None = None
    ha: str = "amnesia"

    @property
    def name(self) -> str:
        """As a diagram may be called."""
        return f"{self.ha}_{self.policy}{self.bucket_ms or ''}"

    @property
    def protection(self) -> dict[str, Any]:
        """As `deploy` has it."""
        bucket = {} if self.bucket_ms is None else {"bucket": f"{self.bucket_ms} ms"}
        return {"ha": self.ha, "merge": self.policy} | bucket


GROUND = Case("arrival")
PRECISE = (Case("arrival", ha="active"), Case("time", 10, "active"))


def cases(options: Options) -> list[Case]:
    """The ground first."""
    buckets = BUCKETS_MS[::2] if options.quick else BUCKETS_MS
    return [GROUND, *(Case("time", size) for size in buckets), *PRECISE]


def run(options: Options, say: Say) -> Lines:
    """All figures; an interrupt ends the measuring, and what was measured is told."""
    if options.plot:
        refuse_without_matplotlib()
    began = time.monotonic()
    with terminable():
        lines = part_by_part({"buckets": lambda: buckets(options, say)}, say)
    say(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    if options.plot:
        plot([one for one in lines if "error" not in one], options.plot)
    return lines


def buckets(options: Options, say: Say) -> Lines:
    """Table 3."""
    seconds, runs = (3, 1) if options.quick else (10, options.runs)
    phases = [Phase(RATE, 0, 2), Phase(RATE, 1, seconds, 1)]  # the last bucket is left by what does not count
    found: dict[Case, Lines] = {case: [] for case in cases(options)}
    with cluster(say, nodes=2) as running:
        running.wait_warm()
        for number in range(runs):
            for case in found:
                one = measure(running, case, phases)
                found[case].append(one)
                say(f"run {number + 1}: {case.name}: p50 {one['p50_ms']} ms, p99 {one['p99_ms']} ms")
    ground = _median(found[GROUND], "p50_ms")
    return [_line(case, found[case], ground) for case in found]


def measure(running: Cluster, case: Case, phases: Sequence[Phase]) -> dict[str, Any]:
    """One case, from its deployment to its end."""
    lines: Lines = []
    diagram = Diagram.from_yaml(DIAGRAM.format(name=case.name, columns=COLUMNS, keep=FILTER))
    running.client.deploy(diagram, place={"all": "node1"}, **case.protection)
    feed_and_read(running, case.name, INPUTS, False, phases, lines)
    return lines[0]


def _median(lines: Lines, name: str) -> float:
    return round(statistics.median(one[name] for one in lines), 2)


def _line(case: Case, lines: Lines, ground: float) -> dict[str, Any]:
    p50 = _median(lines, "p50_ms")
    line = {
        "query": "buckets",
        "figure": "table 3",
        "policy": case.policy,
        "ha": case.ha,
        "nodes": 2,
        "bucket_ms": case.bucket_ms,
        "p50_ms": p50,
        "p99_ms": _median(lines, "p99_ms"),
        "added_ms": round(p50 - ground, 2),
        "cpu_s_per_s": _median(lines, "cpu_s_per_s"),
        "kept_up": all(one["kept_up"] for one in lines),
        "tentative": 0,
        "runs": len(lines),
    }
    if case.bucket_ms is None or case.ha != GROUND.ha:
        return line
    most = case.bucket_ms + MOST_OVER_MS
    return line | {"target": f"added p50 <= {most:g} ms", "met": bool(line["added_ms"] <= most)}


def plot(lines: Lines, to: str) -> None:
    """What a bucket adds, against its size; the diagonal is the bucket itself."""
    figure, ((left,),) = axes(6.4, 4.0, panels=1)
    mine = [(one["bucket_ms"], one["added_ms"]) for one in lines if "target" in one]
    left.plot(*zip(*mine, strict=True), "o-", label="p50, by time")
    left.plot([0, max(BUCKETS_MS)], [MOST_OVER_MS, max(BUCKETS_MS) + MOST_OVER_MS], "k--", label="at most")
    left.set_xlabel("bucket, ms")
    left.set_ylabel("added latency, ms")
    left.legend()
    figure.savefig(to, dpi=150)
