"""`borealis ls`, `describe` and `forget`: which streams there are, all that is known of one, and who reads it."""

from __future__ import annotations

from json import dumps
from typing import Annotated

from rich.text import Text
from typer import Argument

from borealis.cli.options import ClusterOptions, Json, StreamName
from borealis.cli.screen import FittingTable, answer, console, grid, size
from borealis.errors import StreamError
from borealis.wire.status import StreamView


def ls(cluster: ClusterOptions, json: Json = False) -> None:
    with cluster.client() as client:
        streams = client.streams()
    if json:
        print(dumps([one.model_dump() for one in streams], ensure_ascii=False))
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


def describe(stream: StreamName, cluster: ClusterOptions, json: Json = False) -> None:
    with cluster.client() as client:
        full = client.locate(stream).stream
        found = next((one for one in client.streams() if one.stream == full), None)
    if found is None:
        raise StreamError(f"stream '{full}' has just gone", hint="'borealis ls' shows what there is")
    if json:
        print(dumps(found.model_dump(), ensure_ascii=False))
        return
    lines = grid((Text(what, style="dim"), Text(value)) for what, value in described(found))
    console().print(Text(full, style="bold"), lines, sep="\n")


def forget(
    stream: Annotated[str, Argument(help="The stream: per_source, or traffic/per_source.")],
    reader: Annotated[str, Argument(help="Its reader that will not come back.")],
    cluster: ClusterOptions,
    json: Json = False,
) -> None:
    with cluster.client() as client:
        client.forget(stream, reader)
    answer(json, {"stream": stream, "forgotten": reader}, f"{stream} keeps nothing for {reader} now")


def described(one: StreamView) -> list[tuple[str, str]]:
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
    return "input" if one.entry else "output" if one.outputs else "box"
