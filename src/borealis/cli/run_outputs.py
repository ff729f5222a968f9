"""Where the outputs of `borealis run` go: files and topics, stdout, or nowhere but for a look at the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from rich.console import Group, RenderableType
from rich.text import Text

from borealis.cli.cells import cell, print_json
from borealis.cli.options import pairs
from borealis.cli.screen import table
from borealis.connectors.addresses import is_topic
from borealis.connectors.files.directory import is_directory
from borealis.connectors.files.sink import file_sink
from borealis.connectors.files.text import JsonLines
from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.python.sink import DiscardSink
from borealis.connectors.sinks import DISCARD
from borealis.diagram.cut import check_outputs
from borealis.diagram.spec import Spec
from borealis.errors import OutputError

STDOUT = "-"
ROWS_SHOWN = 10  # of an output that goes nowhere


def given_outputs(spec: Spec, texts: Sequence[str] | None, json_too: bool) -> dict[str, str | None]:
    """Where each output goes, in the diagram's order; None for one that is only counted."""
    given = pairs("--output", texts, "packets=packets.parquet", "PATH")
    known = check_outputs(spec, given)
    if json_too and STDOUT in given.values():
        raise OutputError("--json and an output on stdout exclude each other", hint="send that output to a file")
    seen: dict[str, str] = {}
    for name, place in given.items():
        if place == STDOUT or is_topic(place):  # both can take several
            continue
        key = str(Path(place).absolute())
        if key in seen:
            raise OutputError(f"outputs '{seen[key]}' and '{name}' go to one file, {place}", hint="give each its own")
        seen[key] = name
    always = {o.name for o in spec.outputs}
    return {n: given.get(n) for n in known if n in given or n in always}


def sink_of(place: str | None) -> Any:
    """Refuses a place that cannot be written to before Spark starts."""
    if place is None:
        return DISCARD
    if place == STDOUT:
        return StdoutSink()
    if is_topic(place):
        return sink_at(place)
    if not is_directory(place):
        file_sink(place)  # complains of an unknown suffix
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
        shown = table()
        for field in self._schema:
            is_number = any(is_so(field.type) for is_so in (pt.is_integer, pt.is_floating, pt.is_decimal))
            shown.add_column(Text(field.name), justify="right" if is_number else "left", overflow="fold")
        for row in self._first:
            shown.add_row(*(Text(cell(value)) for value in row.values()))
        return Group(title, shown)


class StdoutSink(DiscardSink):
    """Rows as JSON lines on stdout. A run that was resumed prints only what is new."""

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        JsonLines().check(schema)
        super().open(schema, resume)

    def _take(self, rows: pa.Table) -> None:
        print_json(rows)
