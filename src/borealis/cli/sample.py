"""`borealis sample`: files to try things with, those of the demo and of the first page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from borealis.cli.demo import SOURCES, packets, traffic
from borealis.cli.words import span
from borealis.connectors.sinks import Sink, file_sink
from borealis.errors import OutputError

DIAGRAMS = (".yaml", ".yml")


def sample_command(paths: Sequence[Path], seconds: float) -> None:
    """Packets, or for a name that ends in .yaml the diagram that computes over them."""
    sinks: dict[Path, Sink] = {}
    for path in paths:
        if path.exists():
            raise OutputError(f"there is a file '{path}' already", hint="use that one, or give another name")
        if not path.parent.is_dir():
            raise OutputError(f"there is no folder '{path.parent}'", hint=f"mkdir -p {path.parent}")
        if path.suffix not in DIAGRAMS:
            sinks[path] = file_sink(path)
    for path in paths:
        if path not in sinks:
            diagram = traffic()
            diagram.save(path)
            print(f"{path}: the diagram {diagram.name}, from packets to per_source")
            continue
        table, sink = packets(seconds), sinks[path]
        sink.open(table.schema, None)
        sink.write(table)
        sink.close(complete=True)
        print(f"{path}: {table.num_rows:,} packets of {SOURCES} sources in {span(seconds * 1e6)}")
