"""How old a result is when it arrives: `borealis bench latency [--only kafka,windowed] [--rate 1000] [--plot out.png]`.

Rows carry the time of their birth, and come at 100 to 100,000 a second, a hundredth of a second's worth at once. Two
queries: stateless (filter, map; the age of a row's result), and windowed (filter, map, and a count by key over tumbling
windows of 100 ms; the age of a window's result is counted from the birth of the row that lets it close).

- callback: from a Python source to a Python function; Borealis and plain Structured Streaming in micro-batches
- kafka: from topic to topic; the same two, and Spark's real-time mode; ours in transactions and, as Spark's, without.
  Beside them a loop of a few lines that copies records and computes nothing: no engine in Python can be faster
- nodes: from a publisher to a client over a chain of one, two and three nodes

An engine starts once for each query, warms up, and is measured at one rate after the other; the engines take turns. A
figure is the median of the runs. Where an engine falls behind (its last result is not there five seconds after the last
row, or rows could not be offered in time), higher rates are not tried. What fails has a line with its `error`, and
costs no other figures; what an engine refuses has a line `not_possible`.

Real-time mode has no append mode, so it gives no window's final count. In its place: `real-time, updates`, a running
count after every row, whose age is that of the row. Its ratio to our final counts is told for want of anything nearer.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import latency_callback, latency_kafka, latency_nodes
from .io_kafka import running_broker
from .latency_feed import Phase
from .latency_jobs import NotPossibleError
from .latency_plot import plot
from .measuring import Say, terminable
from .recovery_cluster import cluster
from .recovery_plot import refuse_without_matplotlib

PATHS = ("callback", "kafka", "nodes")
KINDS = ("stateless", "windowed")
QUERIES = (*PATHS, *KINDS)  # for `--only`
OURS, ONCE_OR_MORE, COPY, MICRO, SOCKET, REAL, UPDATES = (
    "borealis",
    "borealis, at least once",
    "copying, no engine",
    "micro-batch",
    "micro-batch, socket",
    "real-time",
    "real-time, updates",
)
RATES = (100, 1_000, 10_000, 100_000)
QUICK_RATES = (100, 1_000, 10_000)
SHOWN: tuple[str, ...] = ("query", "path", "engine", "nodes", "rows_per_s", "p50_ms", "p99_ms", "max_ms")
SHOWN += ("cpu_s_per_s", "kept_up", "ratio_to_micro_batch", "ratio_to_real_time")  # in the table; JSON has all
MEDIANS = ("p50_ms", "p90_ms", "p99_ms", "max_ms", "cpu_s_per_s", "offered_per_s", "received_per_s")
START_S, PAUSE_S = 25, 3  # about: of an engine, and between two rates
NODES_S = 60  # about, until three are warm

Line = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names paths and queries; `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False
    plot: str | None = None
    rate: tuple[int, ...] = ()

    @property
    def times(self) -> int:
        """How many runs."""
        return 1 if self.quick else self.runs

    @property
    def paths(self) -> tuple[str, ...]:
        """Which; all if none is named."""
        return tuple(one for one in PATHS if one in self.only) or PATHS

    @property
    def kinds(self) -> tuple[str, ...]:
        """Which queries; all if none is named."""
        return tuple(one for one in KINDS if one in self.only) or KINDS

    @property
    def phases(self) -> list[Phase]:
        """The warm-up, and each rate."""
        if self.quick:
            return [Phase(1_000, 0, 8), *(Phase(rate, 2, 4) for rate in self.rate or QUICK_RATES)]
        return [Phase(1_000, 0, 15), *(Phase(rate, 3, 10) for rate in self.rate or RATES)]


@dataclass(frozen=True)
class Case:
    """One engine, one query, one way in and out."""

    query: str
    path: str
    engine: str
    nodes: int = 0

    def names(self) -> Line:
        """What each of its lines begins with."""
        return {"query": self.query, "path": self.path, "engine": self.engine, "nodes": self.nodes or None}


Go = Callable[[Case, list[Line]], None]  # measures a case once, and adds its figures as it goes


@dataclass
class Ledger:
    """The figures of all runs, and what went wrong."""

    say: Say
    figures: dict[tuple[Case, int], list[Line]] = field(default_factory=dict)
    errors: dict[Case, list[str]] = field(default_factory=dict)
    refused: dict[Case, str] = field(default_factory=dict)

    def enter(self, case: Case, go: Go) -> None:
        """Measure a case once. What it measured before it failed is kept."""
        if case in self.refused:
            return
        found: list[Line] = []
        what = f"{case.path}, {case.query}, {case.engine}" + (f", {case.nodes} node(s)" if case.nodes else "")
        try:
            go(case, found)
        except NotPossibleError as why:
            self.refused[case] = str(why)
            self.say(f"{what}: not possible: {why}")
        except Exception as error:
            self.fail(case, f"{type(error).__name__}: {error}")
        finally:
            self._keep(case, what, found)

    def _keep(self, case: Case, what: str, found: Sequence[Line]) -> None:
        for one in found:
            self.figures.setdefault((case, one["rows_per_s"]), []).append(one)
            ages = ", ".join(f"{name} {_shown(one[f'{name}_ms'])}" for name in ("p50", "p99", "max"))
            behind = "" if one["kept_up"] else ", falls behind"
            self.say(f"{what}, {one['rows_per_s']:,} rows/s: {ages} ms, {one['cpu_s_per_s']:.2f} cores{behind}")

    def fail(self, case: Case, why: str) -> None:
        """Mark what could not be measured."""
        self.errors.setdefault(case, []).append(why)
        self.say(f"{case.path}, {case.query}, {case.engine} failed: {why}")

    def interrupt(self, todo: Sequence[Case]) -> None:
        """Mark all that is not measured."""
        there = {case for case, _ in self.figures} | self.refused.keys() | self.errors.keys()
        for case in todo:
            if case not in there:
                self.errors[case] = ["interrupted before it was measured"]

    def lines(self) -> list[Line]:
        """A line for each figure, then for what an engine refused, then for what failed."""
        made = [case.names() | summary(runs) for (case, _), runs in self.figures.items()]
        made = with_ratios(made)
        made += [case.names() | {"not_possible": why} for case, why in self.refused.items()]
        return made + [case.names() | {"error": one} for case, some in self.errors.items() for one in some]


def summary(runs: Sequence[Line]) -> Line:
    """Each figure's median over the runs; an engine kept up if it did so each time."""
    found: Line = {"rows_per_s": runs[0]["rows_per_s"]}
    for name in MEDIANS:
        values = [one[name] for one in runs if one[name] is not None]
        found[name] = round(statistics.median(values), 3) if values else None
    found |= {"kept_up": all(one["kept_up"] for one in runs), "results": sum(one["results"] for one in runs)}
    return found | {"runs": len(runs), "p50_ms_runs": [one["p50_ms"] for one in runs]}


def with_ratios(lines: Sequence[Line]) -> list[Line]:
    """Ours to the best of the others of the same path, query and rate, by their medians: under 1 is younger."""
    p50 = {(one["path"], one["query"], one["engine"], one["rows_per_s"]): one["p50_ms"] for one in lines}

    def ratio(one: Line, *engines: str) -> float | None:
        found = [p50.get((one["path"], one["query"], engine, one["rows_per_s"])) for engine in engines]
        theirs = min(filter(None, found), default=None)
        ours = one["engine"] in (OURS, ONCE_OR_MORE)
        return round(one["p50_ms"] / theirs, 3) if theirs and one["p50_ms"] and ours else None

    return [
        one | {"ratio_to_micro_batch": ratio(one, MICRO, SOCKET), "ratio_to_real_time": ratio(one, REAL, UPDATES)}
        for one in lines
    ]


def cases(options: Options) -> list[Case]:
    """All that shall be measured in one run, engines of the same thing next to each other."""
    engines = {"callback": (OURS, MICRO, SOCKET), "kafka": (OURS, ONCE_OR_MORE, MICRO, REAL)}
    made: list[Case] = []
    for path in options.paths:
        for query in options.kinds:
            if path == "nodes":
                made += [Case(query, path, OURS, nodes) for nodes in (1, 2, 3)]
            else:
                more = {("kafka", "windowed"): UPDATES, ("kafka", "stateless"): COPY}.get((path, query))
                made += [Case(query, path, engine) for engine in (*engines[path], more) if engine is not None]
    return made


def about_minutes(options: Options) -> int:
    """So that nobody waits without knowing for how long."""
    each = START_S + sum(phase.whole_us / 1e6 + PAUSE_S for phase in options.phases)
    seconds = len(cases(options)) * options.times * each + (NODES_S if "nodes" in options.paths else 0)
    return max(1, round(seconds / 60))


def run(options: Options, say: Say) -> list[Line]:
    """All figures; an interrupt ends the measuring, and what was measured is told."""
    if options.plot:
        refuse_without_matplotlib()
    say(f"about {about_minutes(options)} minutes")
    began, ledger = time.monotonic(), Ledger(say)
    with terminable(), _home() as home:
        for path in options.paths:
            mine = [case for case in cases(options) if case.path == path]
            try:
                with WAYS[path](options, home, say) as go:
                    for _ in range(options.times):
                        for case in mine:
                            ledger.enter(case, go)
            except Exception as error:  # the broker or the cluster itself
                for case in mine:
                    ledger.fail(case, f"{type(error).__name__}: {error}")
            except (KeyboardInterrupt, SystemExit):
                ledger.interrupt(cases(options))
                break
    lines = ledger.lines()
    say(f"took {(time.monotonic() - began) / 60:.1f} minutes")
    if options.plot:
        plot(lines, options.plot)
    return lines


# -- ways


@contextmanager
def _callback(options: Options, home: Path, say: Say) -> Iterator[Go]:
    def go(case: Case, found: list[Line]) -> None:
        with _folder(home) as mine:
            latency_callback.measure(mine, case.engine, case.query, options.phases, found)

    yield go


@contextmanager
def _kafka(options: Options, home: Path, say: Say) -> Iterator[Go]:
    with running_broker() as broker:

        def go(case: Case, found: list[Line]) -> None:
            with _folder(home) as mine:
                latency_kafka.measure(broker, mine, case.engine, case.query, options.phases, found)

        yield go


@contextmanager
def _nodes(options: Options, home: Path, say: Say) -> Iterator[Go]:
    with cluster(say) as running:
        running.wait_warm()

        def go(case: Case, found: list[Line]) -> None:
            latency_nodes.measure(running, case.nodes, case.query, options.phases, found)

        yield go


WAYS: Mapping[str, Callable[..., Any]] = {"callback": _callback, "kafka": _kafka, "nodes": _nodes}


@contextmanager
def _home() -> Iterator[Path]:
    """A folder in memory where there is one, and no folder afterwards."""
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="borealis-latency-", dir=shm, ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextmanager
def _folder(home: Path) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(dir=home))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _shown(age: float | None) -> str:
    return "-" if age is None else f"{age:.1f}"
