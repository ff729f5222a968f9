"""What it costs that results can be corrected: `borealis bench revisions`.

Jobs run in processes of their own, by turns, over the same rows on tmpfs, and are measured as `engine` measures them.

- `q2`, `q3`: the queries as they are, without a key or a history.
- `history`: Q2 whose input has a key and an hour of history, beside the same query without them over the same files: no
  corrections in the stream, one in a hundred rows, one in ten.
- `one`: how long the kernels take for a single replacement, behind one thousand to one million rows of history.
- `late`: one row in twenty comes nearly an hour late. Ours corrects its results; Structured Streaming waits an hour;
  Pathway, where it is installed, gives and takes back.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .engine import DEFAULTS, FILE_ROWS, Bench, Measure, cores, home_in_memory, measure, median_of, steady
from .measuring import Lines, Say, part_by_part, terminable
from .recovery_plot import refuse_without_matplotlib

PATHWAY_JOB = Path(__file__).with_name("pathway_job.py")
PATHWAY_PYTHON = "BOREALIS_BENCH_PATHWAY"  # a Python that has Pathway, if this one has not
PATHWAY_S_MOST = 300.0
LATE_WINDOW_S = 60.0  # of the windows in `late`: a boundary passes them one by one
RATIOS = ("ratio", "ratio_to_history", "target", "met")
SHOWN = ("query", "case", "rows_per_second", "train_ms_p50", "ms", "behind_s", *RATIOS, "runs")


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names queries; `quick` shows that all of it works, and no more."""

    only: tuple[str, ...] = ()
    runs: int = 3
    quick: bool = False
    plot: str | None = None


@dataclass(frozen=True)
class Size:
    """How much of everything; the first `warm` trains of each run are not counted."""

    files: int = 24
    warm: int = 8  # corrections reach six files back
    one_rows: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    late_files: int = 24
    late_rows: int = 100_000  # of a file
    late_native_files: int = 24
    late_warm: int = 10  # an hour of three has passed
    late_hours: float = 3.0


QUICK = Size(
    files=9, warm=3, one_rows=(1_000, 10_000), late_files=9, late_rows=20_000, late_native_files=9, late_warm=4
)


@dataclass(frozen=True)
class Case:
    """A way to run Q2: what it adds up, how many of its rows correct others, and whether they may."""

    name: str
    total: str
    share: float
    history: str | None
    least: float | None = None  # of the rate of the case that it is compared with
    beside: str | None = None
    replays: bool = False  # the aggregate keeps no rows (`history_at`)


PLAIN, PLAIN_EXACT, HISTORY_EXACT = "plain, sum(v)", "plain, sum(n)", "history, sum(n)"
CASES = (
    Case(PLAIN, "v", 0.0, None),
    Case("history, sum(v)", "v", 0.0, "1 hour", 0.8, PLAIN),
    Case("history_at, sum(v)", "v", 0.0, "1 hour", 0.8, PLAIN, replays=True),
    Case(PLAIN_EXACT, "n", 0.0, None),
    Case(HISTORY_EXACT, "n", 0.0, "1 hour", 0.8, PLAIN_EXACT),
    Case("1 % corrections, sum(n)", "n", 0.01, "1 hour", 0.6, PLAIN_EXACT),
    Case("10 % corrections, sum(n)", "n", 0.1, "1 hour", 0.3, PLAIN_EXACT),
)


def line(query: str, case: str, found: Measure | None = None, **more: Any) -> dict[str, Any]:
    """A line of the result."""
    rate = None if found is None else round(found.rows_per_second)
    p50 = None if found is None else round(found.p50, 1)
    return {"query": query, "case": case, "rows_per_second": rate, "train_ms_p50": p50, "cores": cores()} | more


def judged(ratio: float, least: float) -> dict[str, Any]:
    return {"ratio": round(ratio, 3), "target": f"at least {least:g}", "met": ratio >= least}


# -- throughput


def plain(query: str, bench: Bench, size: Size) -> Lines:
    """A query without a key or a history, as `bench engine` runs it."""
    if query == "q2":
        inputs = [bench.files("in", size.files, FILE_ROWS, 100)]
    else:
        inputs = [bench.files(f"join-{side}", size.files, FILE_ROWS // 2, 50, stream=side) for side in (1, 2)]

    def one() -> Measure:
        return measure(steady(bench.job("ours.throughput", query=query, inputs=inputs, rows_most=FILE_ROWS), size.warm))

    runs = [found for _ in range(bench.options.runs) for found in bench.told(query, "plain", one)]
    return [line(query, "plain", median_of(runs), runs=len(runs), note="compare with the same of another commit")]


def history(bench: Bench, size: Size) -> Lines:
    """Q2 with a history, and with corrections; what is compared runs by turns."""

    def one(case: Case) -> Measure:
        source = made(bench, f"keyed-{case.share}", size.files, FILE_ROWS, share=case.share)
        given = {"inputs": [source], "rows_most": FILE_ROWS, "total": case.total, "history": case.history}
        given |= {"replays": case.replays}
        return measure(steady(bench.job("revised.throughput", **given), size.warm))

    found: dict[str, list[Measure]] = {case.name: [] for case in CASES}
    for _ in range(bench.options.runs):
        for case in CASES:
            found[case.name] += bench.told("history", case.name, partial(one, case))
    lines = []
    for case in CASES:
        if runs := found[case.name]:
            lines.append(line("history", case.name, median_of(runs), runs=len(runs)))
            if case.beside and found[case.beside] and case.least is not None:
                lines[-1] |= judged(_ratio(runs, found[case.beside]), case.least)
            if case.share and found[HISTORY_EXACT]:
                lines[-1] |= {"ratio_to_history": round(_ratio(runs, found[HISTORY_EXACT]), 3)}
    note = "the rate of corrected streams counts all their rows; a correction changes up to ten windows"
    return [one | {"note": note} for one in lines]


def _ratio(runs: Sequence[Measure], others: Sequence[Measure]) -> float:
    """Of the rates of two cases: the median of turns, in each of which the machine was as busy for both."""
    pairs = zip(runs, others, strict=False)
    return statistics.median(mine.rows_per_second / other.rows_per_second for mine, other in pairs)


def made(bench: Bench, name: str, files: int, rows: int, **more: float) -> str:
    """A directory of input files; made once."""
    path = bench.home / name
    if not path.exists():
        bench.say(f"making {files} files of {rows:,} rows ({name})")
        bench.job("revised.make", to=str(path), files=files, rows=rows, **more)
    return str(path)


# -- one correction


def one(bench: Bench, size: Size) -> Lines:
    """A single replacement behind more and more rows."""
    lines = []
    for function in ("sum", "max"):
        times = {}
        for rows in size.one_rows:
            runs = [bench.job("revised.one", rows=rows, function=function)["ms"] for _ in range(bench.options.runs)]
            times[rows] = statistics.median(runs)
            bench.say(f"one      {function} behind {rows:,} rows: {times[rows]:.3f} ms")
            case = f"count and {function}, {rows:,} rows of history"
            lines.append(line("one", case, ms=round(times[rows], 3), history_rows=rows, function=function))
            lines[-1] |= {"runs": len(runs), "ratio": round(times[rows] / times[size.one_rows[0]], 2)}
        lines[-1] |= {"target": "at most 2 times that of the least history", "met": lines[-1]["ratio"] <= 2.0}
    return lines


# -- late rows


def late(bench: Bench, size: Size) -> Lines:
    """Results at once and corrected later, or an hour later."""
    name = "late"
    source = made(bench, name, size.late_files, size.late_rows, hours=size.late_hours)
    native = bench.first(source, size.late_native_files)
    jobs: dict[str, Callable[[], Any]] = {
        "borealis, late=revise": lambda: bench.job("revised.late", inputs=[source], rows_most=size.late_rows),
        "Structured Streaming, 1 hour": lambda: bench.job("revised_native.late", inputs=[native], flavour=DEFAULTS),
    }
    found: dict[str, list[Measure]] = {case: [] for case in jobs}
    behind: dict[str, list[float]] = {case: [] for case in jobs}

    def run(case: str) -> Measure:
        answer = jobs[case]()
        if answer["refused"]:
            raise RuntimeError(f"{answer['refused']} rows were refused")
        behind[case].append(answer["behind_s"])
        return measure(steady(answer["batches"], size.late_warm))

    for _ in range(bench.options.runs):
        for case in jobs:
            found[case] += bench.told("late", case, partial(run, case))
    lines = [
        line("late", case, median_of(runs), behind_s=round(statistics.median(behind[case]), 1), runs=len(runs))
        for case, runs in found.items()
        if runs
    ]
    if all(found.values()):
        ours, theirs = (median_of(runs).rows_per_second for runs in found.values())
        lines[0] |= {"ratio": round(ours / theirs, 2), "target": "first results at once: within a window's length"}
        lines[0] |= {"met": lines[0]["behind_s"] <= LATE_WINDOW_S}
    note = "one row in twenty is 55 minutes late; behind_s: stream time between the newest row and the results given"
    return [*(one | {"note": note} for one in lines), *pathway(bench, source)]


def pathway(bench: Bench, source: str) -> Lines:
    """The same query in Pathway, whose results are given at once and taken back, too."""
    case = "Pathway"
    python = os.environ.get(PATHWAY_PYTHON) or (sys.executable if importlib.util.find_spec("pathway") else None)
    if python is None:
        note = f"not run: Pathway is not installed here; {PATHWAY_PYTHON} names a Python that has it"
        return [line("late", case, note=note)]
    rates: list[float] = []
    for _ in range(bench.options.runs):
        command = [python, str(PATHWAY_JOB), source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATHWAY_S_MOST, check=False)
        if done.returncode:
            return [line("late", case, note=f"not run: {done.stderr.strip().splitlines()[-1:]}")]
        told = json.loads(done.stdout.strip().splitlines()[-1])
        rates.append(told["rows"] / told["seconds"])
        bench.say(f"late     Pathway {rates[-1] / 1e6:.3f} M rows/s, {told['changes']:,} changes")
    note = (
        "from Python rows in memory, whole run with its start; a result is given when a row changes it: no window waits"
    )
    return [line("late", case, note=note, runs=len(rates)) | {"rows_per_second": round(statistics.median(rates))}]


QUERIES: dict[str, Callable[[Bench, Size], Lines]] = {
    "q2": partial(plain, "q2"),
    "q3": partial(plain, "q3"),
    "history": history,
    "one": one,
    "late": late,
}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Measure, telling `say` how it goes. Takes minutes; leaves nothing behind, also when interrupted."""
    if options.plot:
        refuse_without_matplotlib()
    size = QUICK if options.quick else Size()
    with terminable(), home_in_memory() as home:
        bench = Bench(home, options, size, say)
        wanted = {name: query for name, query in QUERIES.items() if not options.only or name in options.only}
        parts = {name: partial(bench.part, lambda b, q=query: q(b, size)) for name, query in wanted.items()}
        lines = part_by_part(parts, say)
    if options.plot:
        plot(lines, options.plot)
    return lines


def plot(lines: Sequence[dict[str, Any]], to: str) -> None:
    """Imported when it is wanted: matplotlib is slow to load."""
    from .revisions_plot import plot as draw

    draw([one for one in lines if "error" not in one], to)
