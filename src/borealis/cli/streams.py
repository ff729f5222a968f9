"""`borealis ls` and `borealis describe`: which streams there are, and all that is known of one."""

from __future__ import annotations

import json

from rich.table import Table
from rich.text import Text

from borealis.cli.options import ClusterOptions
from borealis.cli.tables import FittingTable
from borealis.cli.watching import console
from borealis.cli.words import size
from borealis.errors import StreamError
from borealis.wire.status import StreamView


def ls_command(cluster: ClusterOptions, as_json: bool) -> None:
    """A line for each stream that can be read."""
    with cluster.client() as client:
        streams = client.streams()
    if as_json:
        print(json.dumps([one.model_dump() for one in streams], ensure_ascii=False))
        return
    if not streams:
        print("no streams: deploy a diagram first (borealis deploy DIAGRAM)")
        return
    table = FittingTable(("stream", "kind", "columns", "node", "backup"), ("tuples",), ["backup", "columns", "node"])
    for one in streams:
        served = Text(one.node, style="" if one.alive else "red")
        tuples = f"{one.next_id:,}" if one.measured else "-"
        table.add_row(one.stream, kind_of(one), one.columns, served, one.backup or "-", tuples)
    console().print(table)


def describe_command(stream: str, cluster: ClusterOptions, as_json: bool) -> None:
    """All of one stream, by its full or short name."""
    with cluster.client() as client:
        full = client.locate(stream).stream
        found = next((one for one in client.streams() if one.stream == full), None)
    if found is None:
        raise StreamError(f"stream '{full}' has just gone", hint="'borealis ls' shows what there is")
    if as_json:
        print(json.dumps(found.model_dump(), ensure_ascii=False))
        return
    lines = Table.grid(padding=(0, 2))
    for what, value in described(found):
        lines.add_row(Text(what, style="dim"), Text(value))
    console().print(Text(full, style="bold"), lines, sep="\n")


def described(one: StreamView) -> list[tuple[str, str]]:
    """A stream in words."""
    lines = [("kind", kind_of(one)), ("columns", one.columns)]
    if one.outputs:
        lines.append(("output", ", ".join(one.outputs)))
    away = "" if one.alive else " (away)"
    backup = f", backup {one.backup}" if one.backup else ""
    lines.append(("served by", f"{one.node}{away}{backup}"))
    if not one.measured:
        return lines
    held = f"{one.held_rows:,} tuples from id {one.first_id:,}, {size(one.held_bytes)}"
    lines += [("tuples", f"{one.next_id:,}, {one.rows_per_s:,.1f} per s"), ("held", held)]
    lines += [(word, f"{count:,}") for word, count in (("late", one.late), ("dropped", one.dropped)) if count]
    lines.append(("state", "ended" if one.ended else "open"))
    for reader, at in sorted(one.readers.items()):
        lines.append(("reader", f"{reader}, {max(0, one.next_id - at):,} behind"))
    return lines


def kind_of(one: StreamView) -> str:
    """What a stream is of its diagram."""
    return "input" if one.entry else "output" if one.outputs else "box"
