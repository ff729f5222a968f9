"""`borealis bench`: run an experiment of the `benchmarks` folder and show what it measured."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from rich.table import Table
from typer import Argument, Option

from borealis.cli.options import Json, Names
from borealis.cli.screen import Screen, console
from borealis.cli.screen import table as new_table
from borealis.errors import BorealisError, did_you_mean

CELL_CHARS_MOST = 40  # of a text in the table
COLUMNS_MOST = 12  # that a terminal has room for
TITLES_ACROSS_MOST = 8  # columns whose titles stand in one line
INSTALLED = "borealis.benchmarks"  # where a wheel has them


def bench(
    experiment: Annotated[
        str,
        Argument(
            help="engine, revisions, latency, delay, wire, chain, start, recovery, overhead, checkpoints, storage,"
            " protected, cluster, pool or io"
        ),
    ] = "engine",
    json: Json = False,
    only: Annotated[Names, Option(metavar="QUERY", help="Only these: q1,q3 (or repeated).")] = None,
    runs: Annotated[int, Option(min=1, help="Runs of each, of which the median counts.")] = 3,
    quick: Annotated[bool, Option("--quick", help="Less data: a smoke test, not a figure.")] = False,
    kills: Annotated[int | None, Option(min=1, help="recovery: kills of each; 5 if left out.")] = None,
    approach: Annotated[Names, Option(metavar="NAME", help="recovery, overhead: only these: passive,active.")] = None,
    diagram: Annotated[Names, Option(metavar="NAME", help="recovery, overhead: only these: aggregate,union.")] = None,
    interval: Annotated[
        str | None, Option(metavar="TIME", help="recovery: between checkpoints, or trimming messages.")
    ] = None,
    rate: Annotated[list[int] | None, Option(min=100, help="latency: rows a second, only these (repeated).")] = None,
    plot: Annotated[
        str | None,
        Option(metavar="FILE", help="latency, delay, recovery, overhead, checkpoints, revisions, cluster: a plot."),
    ] = None,
) -> None:
    """\b
    engine    one node: rows per second and time of a train
    revisions what it costs that results can be corrected
    latency   the age of results at 100 to 100,000 rows/s, beside Spark's micro-batches and its real-time mode
    delay     failures of an input, bounded delay, replicas; what it costs to read several streams by time
    wire      one stream from process to process
    chain     three nodes in a row beside one
    start     how long 'borealis up --nodes 3' takes
    recovery  how long readers hear nothing when a node is killed
    overhead  what protection costs while all is well
    checkpoints when to checkpoint, and what that costs; in simulated clusters
    storage   units in storage: throughput, restoring, a cluster that is started again
    protected three protected diagrams side by side for twelve minutes, with a kill in the middle
    cluster   3 to 20 simulated servers: where backups are, and what is checkpointed when
    pool      what started queries cost that wait for a takeover, and how fast one is
    io        from Kafka to Kafka, and into PostgreSQL
    """
    module = find(experiment)
    asked = {"kills": kills, "approach": names(approach), "diagram": names(diagram), "interval": interval}
    special = {name: value for name, value in (asked | {"rate": tuple(rate or ()), "plot": plot}).items() if value}
    for name in special:
        if name not in getattr(module.Options, "__dataclass_fields__", {}):
            raise BorealisError(f"benchmark '{experiment}' has no --{name}", hint="leave it out")
    queries = names(only)
    known = list(getattr(module, "QUERIES", queries))
    for name in queries:
        if name not in known:
            hint = did_you_mean(name, known) or f"it has: {', '.join(known)}"
            raise BorealisError(f"benchmark '{experiment}' has no query '{name}'", hint=hint)
    options = module.Options(only=queries, runs=runs, quick=quick, **special)
    figures: list[dict[str, Any]] = module.run(options, Screen().say)  # stdout has figures only
    done = [one for one in figures if "error" not in one]
    if json:
        print(dumps(figures, ensure_ascii=False, indent=2))
    else:
        out = console()
        for one in tables(done, getattr(module, "SHOWN", ())) if done else ():
            out.print(one)
        for line in notes(done):
            out.print(line, style="dim", markup=False, soft_wrap=True)
    failed = [one for one in figures if "error" in one]
    if failed:
        why = "; ".join(f"{one['query']}: {str(one['error']).strip().splitlines()[-1]}" for one in failed)
        raise BorealisError(f"{len(failed)} of the parts failed: {why}", hint="the figures of the others are above")


def names(given: Sequence[str] | None) -> tuple[str, ...]:
    """Names from options that may have several each.

    >>> names(["q1,q2", "q3"])
    ('q1', 'q2', 'q3')
    """
    return tuple(name.strip() for one in given or () for name in one.split(",") if name.strip())


def find(experiment: str) -> ModuleType:
    """The module of an experiment, from the wheel or from the repository this package stands in."""
    known = known_experiments()
    if experiment not in known:
        near = did_you_mean(experiment, known) or (f"there are: {', '.join(known)}" if known else "")
        hint = near or "run it in a clone of the repository, or install the wheel"
        raise BorealisError(f"no benchmark '{experiment}'", hint=hint)
    package, root = known[experiment]
    if root is not None and str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(f"{package}.{experiment}")


def known_experiments() -> dict[str, tuple[str, Path | None]]:
    """Each experiment's package, and the folder that has to be on the path for it."""
    here = Path(__file__).resolve().parents[1]
    places = [(here.parents[1] / "benchmarks", "benchmarks", here.parents[1]), (here / "benchmarks", INSTALLED, None)]
    found: dict[str, tuple[str, Path | None]] = {}
    for folder, package, root in places:
        for file in sorted(folder.glob("*.py")):
            text = file.read_text(encoding="utf-8")
            if "\ndef run(" in text and "\nclass Options" in text:  # others lend a hand, and are none themselves
                found[file.stem] = (package, root)
    return found


def tables(figures: Sequence[dict[str, Any]], shown: Sequence[str] = ()) -> list[Table]:
    """The figures in one table, or, where that would be too wide, in one for each query with its own columns."""
    if len(_columns(figures, shown)) <= COLUMNS_MOST:
        return [table(figures, shown)]
    apart: dict[Any, list[dict[str, Any]]] = {}
    for one in figures:
        apart.setdefault(next(iter(one.values()), None), []).append(one)
    return [table(group, _filled(group, _columns(group, shown))) for group in apart.values()]


def _columns(figures: Sequence[dict[str, Any]], shown: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(name for one in figures for name, v in one.items() if not isinstance(v, list | dict)))
    names = [name for name in shown if name in names] or names
    return [name for name in names if name not in _long(figures)]


def _filled(figures: Sequence[dict[str, Any]], names: Sequence[str]) -> list[str]:
    return [name for name in names if any(one.get(name) is not None for one in figures)]


def table(figures: Sequence[dict[str, Any]], shown: Sequence[str] = ()) -> Table:
    """The figures, a column for each that any of them has, or only for those that shall be shown; no long texts."""
    made = new_table()
    names = _columns(figures, shown)
    for name in names:
        numbers = any(isinstance(one.get(name), int | float) for one in figures)
        title = name.replace("_", "\n" if len(names) > TITLES_ACROSS_MOST else " ")
        made.add_column(title, justify="right" if numbers else "left", vertical="bottom", no_wrap=numbers)
    for one in figures:
        made.add_row(*(_cell(one.get(name)) for name in names))
    return made


def notes(figures: Sequence[dict[str, Any]]) -> list[str]:
    """The long texts, each once, behind the name that stands first in its line of the table."""
    long = _long(figures)
    texts = [(next(iter(one.values()), ""), one.get(name)) for one in figures for name in long]
    return list(dict.fromkeys(f"{what}: {text}" for what, text in texts if text))


def _long(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Columns that would leave no room for the others."""
    longs = (n for one in figures for n, v in one.items() if isinstance(v, str) and len(v) > CELL_CHARS_MOST)
    return list(dict.fromkeys(longs))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
