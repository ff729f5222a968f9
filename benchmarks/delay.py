"""Bounded delay: `borealis bench delay [--only buckets,bounds,policies,chains,state,switching] [--quick]
[--plot out.png]`.

buckets: the DPC paper's table 3, what it costs to read several streams by time. Three streams of 1,000 rows a second
each meet in a union on one of two real nodes. A row carries the time of its birth, and a result's age is counted from
there. Buckets of 10 to 500 ms stand beside the same streams read as they arrive; nothing is protected by more than
`amnesia`, so that nothing else waits. Two lines more are of an active standby that is `precise`: as they arrive, where
the output of a train waits until the backup knows in which order it was merged, and by time, where it does not.

The others cut a node off from one of three streams, as the paper does (`delay_failures.py`): figure 9 (bounds of
different length, a failure of 5 s), figure 10 (six policies, failures of 2 to 60 s), figure 11 (chains of nodes), and
figure 12 (how long it takes to correct all, by the size of state and by the rows that are read again). switching: how
long a reader of one of two copies gets nothing when that dies or is cut off (`delay_switching.py`).

The cases take turns; a figure is the median of the runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from borealis import Diagram

from . import delay_failures as failures
from .delay_failures import Failure
from .delay_switching import PAUSE_MS_MOST, Scene, Switch
from .latency_feed import COLUMNS, FILTER, Phase
from .latency_nodes import feed_and_read
from .measuring import Lines, Say, part_by_part, terminable
from .recovery_cluster import Cluster, cluster
from .recovery_plot import axes, refuse_without_matplotlib

QUERIES = ("buckets", "bounds", "policies", "chains", "state", "switching")
ALPHA = 0.9  # of the bound: so long a stream is waited for
CHAIN_OVER_MS = 500.0  # beyond alpha X, in a chain of any length that delays nothing
FLAT = 1.2  # reconciliation with a large state, in times of that with one group
READ_AGAIN = 100_000  # rows a second
POLICIES = [(one, other) for one in ("process", "delay") for other in ("process", "delay", "suspend")]
IN_TIME = [(one, other) for one, other in POLICIES if other != "suspend"]  # whatever the failure's length
INPUTS = ("a", "b", "c")
RATE = 1_000  # of each
BUCKETS_MS = (10, 50, 100, 200, 500)
MOST_OVER_MS = 15.0  # what a bucket may add beside its own length
FIGURES = (  # in every line, if only as nothing
    *("figure", "policy", "x_ms", "failure_s", "nodes", "state_rows", "delay_new_ms_max", "tentative"),
    *("reconcile_ms", "stable_equal"),
)
SHOWN = (
    *("figure", "policy", "ha", "bucket_ms", "p50_ms", "added_ms", "x_ms", "failure_s", "rows_per_s", "nodes"),
    *("state_rows", "delay_new_ms_max", "tentative", "reconcile_ms", "pause_ms", "usual_ms", "stable_equal"),
    *("target", "met"),
)
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
        parts = {
            "buckets": lambda: buckets(options, say),
            "bounds": lambda: bounds(options, say),
            "policies": lambda: policies(options, say),
            "chains": lambda: chains(options, say),
            "state": lambda: state(options, say),
            "switching": lambda: switching(options, say),
        }
        lines = part_by_part(
            {name: part for name, part in parts.items() if not options.only or name in options.only}, say
        )
    lines = [dict.fromkeys(FIGURES) | one for one in lines]
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


def bounds(options: Options, say: Say) -> Lines:
    """Figure 9: a failure of 5 s, and bounds from half a second to six; new rows are delayed, or not."""
    waits = (2000,) if options.quick else (500, 1000, 2000, 3000, 4000, 5000, 6000)
    cases = [Failure(wait / ALPHA, policy, policy) for wait in waits for policy in ("process", "delay")]
    return _failures("bounds", "figure 9", cases, options, say, lambda case: case.x_ms)


def policies(options: Options, say: Say) -> Lines:
    """Figure 10: what is done with new rows during the failure and while it is corrected."""
    lasts, some = ((4,), POLICIES[::2]) if options.quick else ((2, 5, 10, 30, 60), POLICIES)
    cases = [Failure(3000, *one, seconds, 4_500) for seconds in lasts for one in some]
    return _failures("policies", "figure 10", cases, options, say, lambda case: case.x_ms, IN_TIME)


def chains(options: Options, say: Say) -> Lines:
    """Figure 11: units in a row, each on a node of its own."""
    lengths, seconds, kinds = ((2,), 4, ("process",)) if options.quick else ((1, 2, 3, 4), 15, ("process", "delay"))
    cases = [Failure(3000, one, one, seconds, nodes=nodes) for nodes in lengths for one in kinds]

    def most(case: Failure) -> float:
        return ALPHA * case.x_ms + CHAIN_OVER_MS if case.during_failure == "process" else case.nodes * case.x_ms

    return _failures("chains", "figure 11", cases, options, say, most)


def state(options: Options, say: Say) -> Lines:
    """Figure 12: how long it takes until all is right, by what is held, and by what is read again."""
    sizes = (1, 100_000) if options.quick else (1, 10_000, 100_000, 1_000_000)
    rates = (15_000,) if options.quick else (3_000, 15_000, 30_000, 60_000)
    held = [Failure(3000, state_rows=size, rate=1_000) for size in sizes]
    read = [Failure(3000, rate=rate) for rate in rates]
    lines = _failures("state", "figure 12", held, options, say, None)
    ground = lines[0]["reconcile_ms"]
    for one in lines[1:]:
        ratio = one["reconcile_ms"] / ground
        one |= {"ratio": round(ratio, 2), "target": f"at most {FLAT} of that with one group held", "met": ratio <= FLAT}
    again = _failures("state", "figure 12", read, options, say, None)
    for one in again:
        one["read_again_per_s"] = round(one["rows_per_s"] * one["failure_s"] / one["reconcile_ms"] * 1000)
    most = again[-1]["read_again_per_s"]
    again[-1] |= {"target": f"{READ_AGAIN:,} rows/s read again", "met": most >= READ_AGAIN}
    return lines + again


def switching(options: Options, say: Say) -> Lines:
    """Between two copies of a unit; an active standby beside replicas."""
    times, lines = 1 if options.quick else options.runs, Lines()
    with cluster(say, nodes=4, faults=True) as running:
        running.wait_warm()
        for ha, whats in (("active", ("kill",)), ("replicas", ("kill", "cut"))):
            scene, found = Scene(running, ha), dict[Switch, Lines]()
            for _ in range(times):
                for what in whats:
                    one = scene.fail(what)
                    found.setdefault(Switch(ha, what), []).append(one)
                    say(f"{ha}, {what}: {one['pause_ms']:.0f} ms without a row (usually {one['usual_ms']:.0f})")
            right = scene.end()
            for case, some in found.items():
                pause = _median(some, "pause_ms")
                line = {"query": "switching", "figure": "switching", "policy": case.what, "ha": ha, "nodes": 4}
                line |= {"pause_ms": pause, "usual_ms": _median(some, "usual_ms"), "stable_equal": right, "runs": times}
                if case == Switch("replicas", "kill"):
                    met = right and pause <= PAUSE_MS_MOST
                    line |= {"target": f"at most {PAUSE_MS_MOST:.0f} ms without a row, p50", "met": met}
                lines.append(line)
    return lines


def _failures(
    query: str,
    figure: str,
    cases: Sequence[Failure],
    options: Options,
    say: Say,
    most: Callable[[Failure], float] | None,
    promised: Sequence[tuple[str, str]] = POLICIES,
) -> Lines:
    """A line for each; what is stable must be right in each, and new rows in time where that is promised."""
    runs, found = 1 if options.quick else options.runs, dict[Failure, Lines]()
    with cluster(say, nodes=max(case.nodes for case in cases) + 1, faults=True) as running:
        running.wait_warm()
        for number in range(runs):
            for case in cases:
                one = failures.measure(running, case, f"f{number}")
                found.setdefault(case, []).append(one)
                figures = f"new rows within {one['delay_new_ms_max']:,.0f} ms, {one['tentative']:,} tentative ones"
                what = f"{case.policy}, X {case.x_ms:,.0f} ms, {case.seconds:g} s, {case.nodes} node(s)"
                say(f"{figure}: {what}: {figures}, corrected in {one['reconcile_ms']:,.0f} ms")
    lines = []
    for case, some in found.items():
        middle = {name: _median(some, name) for name in ("delay_new_ms_max", "tentative", "reconcile_ms")}
        line = {"query": query, "figure": figure} | some[0] | middle
        line |= {"stable_equal": all(one["stable_equal"] for one in some), "runs": len(some)}
        if most is not None and (case.during_failure, case.during_stabilization) in promised:
            limit = most(case)
            kept = middle["delay_new_ms_max"] <= limit and line["stable_equal"]
            line |= {"target": f"new rows within {limit:,.0f} ms", "met": bool(kept)}
        lines.append(line)
    return lines


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
    """What a bucket adds, against its size; how old new rows were, against the length of the failure or the chain."""
    figure, ((left, middle, right),) = axes(16.0, 4.0, panels=3)
    mine = [(one["bucket_ms"], one["added_ms"]) for one in lines if one["query"] == "buckets" and "target" in one]
    if mine:
        left.plot(*zip(*mine, strict=True), "o-", label="p50, by time")
        left.plot([0, max(BUCKETS_MS)], [MOST_OVER_MS, max(BUCKETS_MS) + MOST_OVER_MS], "k--", label="at most")
        left.legend()
    left.set_xlabel("bucket, ms")
    left.set_ylabel("added latency, ms")
    for part, across, panel in (("policies", "failure_s", middle), ("chains", "nodes", right)):
        some = [one for one in lines if one["query"] == part]
        for policy in dict.fromkeys(one["policy"] for one in some):
            points = [(one[across], one["delay_new_ms_max"]) for one in some if one["policy"] == policy]
            panel.plot(*zip(*points, strict=True), "o-", label=policy)
        panel.set_xlabel({"failure_s": "failure, s", "nodes": "nodes in a row"}[across])
        panel.set_ylabel("new rows within, ms")
        if some:
            panel.legend()
    figure.savefig(to, dpi=150)
