"""`borealis run`: a diagram over files, watched, with a summary at the end."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from borealis.cli.cells import cell
from borealis.cli.ending import STOP, PipeClosedError, Stopped
from borealis.cli.opening import load, start_spark
from borealis.cli.watching import Silent, Watcher, console, summary, watcher
from borealis.connectors.files.text import JsonLines, render
from borealis.connectors.kafka.brokers import is_topic, shown
from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.sinks import DISCARD, DiscardSink, file_sink, is_directory
from borealis.connectors.sources import as_source
from borealis.diagram.cut import check_outputs
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError, BorealisWarning, OutputError

STDOUT = "-"
ROWS_SHOWN = 10  # of an output that goes nowhere


@dataclass(frozen=True)
class RunOptions:
    """How to run, as the command line has it."""

    state: Path | None = None
    buckets: int = 1
    rows_per_train: int | None = None
    headers: bool = False
    json: bool = False
    master: str | None = None


def run_command(path: Path, inputs: Sequence[str], outputs: Sequence[str], options: RunOptions) -> None:
    """Everything that can be wrong without Spark is found before Spark starts."""
    spec = load(path).validate()
    sources = {name: as_source(place) for name, place in given_inputs(spec, inputs).items()}
    places = given_outputs(spec, outputs, options.json)
    sinks = {name: _sink(place) for name, place in places.items()}
    glimpses = {} if options.json else {name: FirstRows() for name, place in places.items() if place is None}
    sinks |= glimpses
    places = {name: place and shown(place) for name, place in places.items()}
    out = console(stderr=STDOUT in places.values())
    with Silent() if options.json else watcher(console(stderr=True)) as watch:
        result = _run(spec, sources, sinks, options, watch, places)
    if options.json:
        print(json.dumps({"diagram": spec.name, "outputs": places} | result.to_json(), ensure_ascii=False))
    else:
        below = {name: f"below; all of them with --output {name}=FILE" for name in glimpses}
        out.print(summary(spec.name, result.units, places | below, "done"))
        for name, rows in glimpses.items():
            out.print(rows.shown(name))


def _run(
    spec: Spec,
    sources: Mapping[str, Any],
    sinks: Mapping[str, Any],
    options: RunOptions,
    watch: Watcher,
    places: Mapping[str, str | None],
) -> Any:
    watch.say("Spark is starting ...")
    spark = start_spark(options.master)
    from borealis.local.run import run
    from borealis.trains.intake import Admission

    admission = Admission() if options.rows_per_train is None else Admission(rows_most=options.rows_per_train)
    warnings.simplefilter("ignore", BorealisWarning)  # the summary has them
    try:
        with STOP.deferred():
            watch.say("compiling ...")
            return run(
                spec,
                sources,
                sinks,
                state=options.state,
                buckets=options.buckets,
                admission=admission,
                headers=options.headers,
                spark=spark,
                watch=watch.see,
            )
    except Stopped:
        watch.__exit__(None, None, None)
        if watch.units and not options.json:
            console(stderr=True).print(summary(spec.name, watch.units, places, "stopped"))
        raise


def given_inputs(spec: Spec, pairs: Sequence[str]) -> dict[str, str]:
    """Where each input comes from; all must be given, and no others."""
    given = _pairs("--input", pairs)
    spec.check_inputs(given, "add --input {name}=FILE")
    return given


def given_outputs(spec: Spec, pairs: Sequence[str], json_too: bool) -> dict[str, str | None]:
    """Where each output goes, in the diagram's order; None for one that is only counted."""
    given = _pairs("--output", pairs)
    known = check_outputs(spec, given)
    if json_too and STDOUT in given.values():
        raise OutputError("--json and an output on stdout exclude each other", hint="send that output to a file")
    _distinct(given)
    always = {o.name for o in spec.outputs}
    return {n: given.get(n) for n in known if n in given or n in always}


def _pairs(option: str, pairs: Sequence[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for pair in pairs:
        name, equals, place = pair.partition("=")
        if not (name and equals and place):
            raise BorealisError(f"{option} '{pair}' is not NAME=PATH", hint=f"write {option} packets=packets.parquet")
        if name in given:
            raise BorealisError(f"{option} {name} is given twice", hint="keep one of them")
        given[name] = place
    return given


def _distinct(given: Mapping[str, str]) -> None:
    seen: dict[str, str] = {}
    for name, place in given.items():
        if place == STDOUT or is_topic(place):  # both can take several
            continue
        key = str(Path(place).absolute())
        if key in seen:
            raise OutputError(f"outputs '{seen[key]}' and '{name}' go to one file, {place}", hint="give each its own")
        seen[key] = name


def _sink(place: str | None) -> Any:
    if place is None:
        return DISCARD
    if place == STDOUT:
        return StdoutSink()
    if is_topic(place):
        return sink_at(place)
    if not is_directory(place):
        file_sink(place)  # complains of a suffix nobody knows before Spark starts
    parent = Path(place).absolute().parent
    if not parent.is_dir():
        raise OutputError(f"cannot write {place}: no directory '{parent}'", hint=f"make it first: mkdir -p {parent}")
    return place


class FirstRows(DiscardSink):
    """Counts rows, and keeps the first few of this start to show."""

    def __init__(self) -> None:
        super().__init__()
        self._first: list[dict[str, Any]] = []

    def _take(self, rows: pa.Table) -> None:
        self._first += rows.slice(0, ROWS_SHOWN - len(self._first)).to_pylist() if len(self._first) < ROWS_SHOWN else []

    def shown(self, output: str) -> RenderableType:
        """As a table with the output's name above it."""
        if not self._first:
            return Text(f"{output}: no rows" if not self.rows else f"{output}: no rows since the last start")
        count = len(self._first)
        title = Text(
            f"{output}: the first {count} of {self.rows:,} rows" if self.rows > count else f"{output}: all rows"
        )
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        kinds = {field.name: field.type for field in self._schema}
        for name, kind in kinds.items():
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
            table.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
        for row in self._first:
            table.add_row(*(Text(cell(value)) for value in row.values()))
        return Group(title, table)


class StdoutSink:
    """Rows as JSON lines on stdout. A run that was resumed prints only what is new."""

    durable = False

    def __init__(self) -> None:
        self._rendering = JsonLines()
        self._rows = 0

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Refuse what JSON cannot hold."""
        self._rendering.check(schema)
        self._rows = resume or 0

    def write(self, rows: pa.Table) -> None:
        """Print them."""
        self._rows += rows.num_rows
        try:
            for piece in render(rows, self._rendering):
                sys.stdout.buffer.write(piece)
        except BrokenPipeError as error:
            raise PipeClosedError("nobody reads stdout any more") from error

    def flush(self, sync: bool) -> int:
        """The rows printed so far, those of earlier starts included."""
        try:
            sys.stdout.buffer.flush()
        except BrokenPipeError as error:
            raise PipeClosedError("nobody reads stdout any more") from error
        return self._rows

    def close(self, complete: bool) -> None:
        """Nothing is left to do."""
