"""`borealis sample` makes files to try things with, those of the demo and of the first page; `cat` looks into files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from borealis.cli.options import JsonLines
from borealis.cli.words import span
from borealis.errors import OutputError

if TYPE_CHECKING:
    from borealis.connectors.sink import Sink

DIAGRAMS = (".yaml", ".yml")


def sample(
    path: Annotated[
        list[Path],
        Argument(metavar="PATH...", help="packets.parquet (or .csv, .jsonl, .arrow); traffic.yaml for a diagram."),
    ],
    seconds: Annotated[float, Option(min=1, max=36_000, help="How long the packets were sent: 500 a second.")] = 60,
) -> None:
    from borealis.cli.traffic import SOURCES, packets, traffic
    from borealis.connectors.files.sink import file_sink

    sinks: dict[Path, Sink] = {}
    for one in path:
        if one.exists():
            raise OutputError(f"there is a file '{one}' already", hint="use that one, or give another name")
        if not one.parent.is_dir():
            raise OutputError(f"there is no folder '{one.parent}'", hint=f"mkdir -p {one.parent}")
        if one.suffix not in DIAGRAMS:
            sinks[one] = file_sink(one)
    for one in path:
        if one not in sinks:
            diagram = traffic()
            diagram.save(one)
            print(f"{one}: the diagram {diagram.name}, from packets to per_source")
            continue
        table, sink = packets(seconds), sinks[one]
        sink.open(table.schema, None)
        sink.write(table)
        sink.close(complete=True)
        print(f"{one}: {table.num_rows:,} packets of {SOURCES} sources in {span(seconds * 1e6)}")


def cat(
    path: Annotated[
        list[str], Argument(metavar="PATH...", help="Files, or folders of them: Parquet, CSV, JSON lines, Arrow.")
    ],
    limit: Annotated[int | None, Option(min=1, help="So many rows; all if left out.")] = None,
    tail: Annotated[bool, Option("--tail", help="The last rows: 10, or as --limit says.")] = False,
    json: JsonLines = False,
    schema: Annotated[bool, Option("--schema", help="Only columns and counts.")] = False,
) -> int:
    from borealis.cli.cat import CatOptions, cat_command

    return cat_command(path, CatOptions(limit, tail, json, schema))
