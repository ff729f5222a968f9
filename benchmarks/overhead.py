"""What protection costs while all is well: `borealis bench overhead [--quick] [--plot out.png]`.

One cluster of three nodes: entry points on node1, the unit on node2, its backup on node3. Every group of protected runs
stands between two runs without protection, and is compared with the mean of both, because the machine's pace changes.

CPU is user and system time of the nodes' processes with their JVMs and Python workers. Network is what primary and
backup say to one another, as the guards count it, and the input once more where the backup runs in parallel; it is
compared with the bytes of the input, as Hwang does: active standby is about 100 %. Acknowledgements and pings are not
in it (some dozen bytes each). What entry points send to their peers is told apart: `entry_overhead_pct`.

- approaches: repeatable, convergent-capable and arbitrary diagrams, each approach, M from 25 to 1,000 ms
- window: the state's size varied (Hwang table 3.7); slide: its rate of change varied (table 3.8); each ends with a kill
- q2: Q2 of the engine benchmark under passive standby with M = 500 ms, by turns with none
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import overhead_cases as cases
from .measuring import Say, terminable
from .overhead_cases import NONE, Case
from .overhead_measure import Measured, measure
from .overhead_plot import plot
from .recovery_cluster import Cluster, cluster, refuse_unknown
from .recovery_packets import Packets, packets
from .recovery_plot import refuse_without_matplotlib

QUERIES = ("approaches", "window", "slide", "q2")
APPROACHES = tuple(name for name in cases.GUARANTEES if name != NONE)
ROWS_PER_S = 1_000
SHOWN: tuple[str, ...] = ("experiment", "approach", "diagram", "interval_ms", "size_ms", "slide_ms", "cpu_overhead_pct")
SHOWN += ("network_overhead_pct", "bytes_per_s", "kept_rows", "reprocess_ms", "met")  # in the table; JSON has all
ASKED_Q2_PCT = 15.0
DEPLOY_S, KILL_S = 8, 30  # about

Groups = list[list[Case]]


@dataclass(frozen=True)
class Options:
    """What to measure; `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3  # pairs for q2
    quick: bool = False
    approach: tuple[str, ...] = ()
    diagram: tuple[str, ...] = ()
    plot: str | None = None

    @property
    def seconds(self) -> float:
        """How long each run is measured."""
        return 8.0 if self.quick else 12.0


def groups(options: Options) -> Groups:
    """All that shall be run."""
    wanted = options.approach or APPROACHES
    diagrams = options.diagram or tuple(cases.CLASSES)
    quick = options.quick
    made: dict[str, Groups] = {
        "approaches": cases.approaches(diagrams, wanted, (25, 500) if quick else cases.INTERVALS_MS),
        "window": cases.windows(wanted, cases.SIZES_MS[::2] if quick else cases.SIZES_MS),
        "slide": cases.slides(wanted, cases.SLIDES_MS[::2] if quick else cases.SLIDES_MS),
        "q2": cases.q2(1 if quick else options.runs) if "passive" in wanted else [],
    }
    return [group for name in options.only or QUERIES for group in made[name] if group]


def about_minutes(todo: Groups, seconds: float) -> int:
    """So that nobody waits without knowing for how long."""
    runs = [one for group in todo for one in (group[0].bare(), *group)]
    return max(1, round(sum(DEPLOY_S + one.warm_s + seconds + KILL_S * one.kill for one in runs) / 60))


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """All figures."""
    _check(options)
    todo = groups(options)
    say(f"about {about_minutes(todo, options.seconds)} minutes")
    began, data = time.monotonic(), packets().faster(ROWS_PER_S)
    with terminable(), cluster(say) as running:
        say("warming up ...")
        measure(running, todo[0][0].bare(), data, 5.0)
        lines = _all(running, todo, data, options.seconds, say)
    lines += q2_lines(lines)
    say(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    if options.plot:
        plot(lines, options.plot)
    return lines


def _all(running: Cluster, todo: Groups, data: Packets, seconds: float, say: Say) -> list[dict[str, Any]]:
    """Group by group; the run without protection behind one is that before the next, if they have the same diagram."""
    lines: list[dict[str, Any]] = []
    last: tuple[Case, Measured] | None = None
    for group in todo:
        bare = group[0].bare()
        before = last[1] if last is not None and last[0] == bare else _told(running, bare, data, seconds, say)
        if last is None or last[0] != bare:
            lines.append(line(bare, before, before, data.where_from))
        found = [(case, _told(running, case, data, seconds, say)) for case in group]
        after = _told(running, bare, data, seconds, say)
        lines.append(line(bare, after, after, data.where_from))
        lines += [line(case, one, between(before, after), data.where_from) for case, one in found]
        last = (bare, after)
    return lines


def _told(running: Cluster, case: Case, data: Packets, seconds: float, say: Say) -> Measured:
    found = measure(running, case, data, seconds)
    every = "" if case.interval_ms is None else f" {case.interval_ms} ms"
    window = f" {case.size_ms}/{case.slide_ms} ms" if case.diagram == "aggregate" else ""
    say(
        f"{case.experiment}: {case.diagram}{window}, {case.approach}{every}: {found.cpu:.3f} cores, "
        f"{found.extra_bytes / 1000:,.1f} kB/s beside an input of {found.in_bytes / 1000:,.1f} kB/s"
    )
    return found


def between(before: Measured, after: Measured) -> Measured:
    """The mean of two runs."""
    mean = {name: (getattr(before, name) + getattr(after, name)) / 2 for name in ("cpu", "in_bytes", "out_bytes")}
    return Measured(**(before.__dict__ | mean))


def line(case: Case, found: Measured, bare: Measured, where_from: str) -> dict[str, Any]:
    """One object of the result."""
    return {
        "experiment": case.experiment,
        "approach": case.approach,
        "guarantee": case.guarantee,
        "diagram": case.diagram,
        "class": cases.CLASSES.get(case.diagram, "convergent-capable"),
        "interval_ms": case.interval_ms,
        "size_ms": case.size_ms if case.diagram in ("aggregate", "q2") else None,
        "slide_ms": case.slide_ms if case.diagram in ("aggregate", "q2") else None,
        "cpu_overhead_pct": _pct(found.cpu - bare.cpu, bare.cpu),
        "network_overhead_pct": _pct(found.extra_bytes, found.in_bytes),
        "entry_overhead_pct": _pct(found.entry_bytes, found.in_bytes),
        "cpu_cores": round(found.cpu, 3),
        "bytes_per_s": round(found.extra_bytes),
        "messages_per_s": round(found.guard_messages, 2),
        "input_bytes_per_s": round(found.in_bytes),
        "output_bytes_per_s": round(found.out_bytes),
        "rows_per_s": round(found.rows),
        "train_ms": round(found.train_ms, 1),
        "state_bytes": found.state_bytes,
        "kept_rows": found.kept_rows,
        "recovery_ms": round(found.recovery_ms, 1),
        "reprocess_ms": found.reprocess_ms,
        "data": "made" if case.diagram == "q2" else where_from,
    }


def q2_lines(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict on Q2: the median of the pairs."""
    pairs = [one["cpu_overhead_pct"] for one in lines if one["experiment"] == "q2" and one["approach"] != NONE]
    if not pairs:
        return []
    first = next(one for one in lines if one["experiment"] == "q2" and one["approach"] != NONE)
    cost = statistics.median(pairs)
    said = {"experiment": "q2, median", "cpu_overhead_pct": round(cost, 1), "pairs_pct": pairs}
    return [first | said | {"asked_pct_most": ASKED_Q2_PCT, "met": cost <= ASKED_Q2_PCT}]


def _pct(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _check(options: Options) -> None:
    refuse_unknown("approach", options.approach, APPROACHES)
    refuse_unknown("diagram", options.diagram, tuple(cases.CLASSES))
    if options.plot:
        refuse_without_matplotlib()
