"""`borealis ls` and `borealis describe`: which streams there are, and all that is known of one."""

from __future__ import annotations

import json
from typing import Any

from rich.table import Table
from rich.text import Text

from borealis.cli.options import ClusterOptions
from borealis.cli.tables import FittingTable
from borealis.cli.watching import console
from borealis.cli.words import size

Facts = dict[str, Any]


def ls_command(cluster: ClusterOptions, as_json: bool) -> None:
    """A line for each stream that can be read."""
    with cluster.client() as client:
        streams = client.streams()
    if as_json:
        print(json.dumps(streams, ensure_ascii=False))
        return
    if not streams:
        print("no streams: deploy a diagram first (borealis deploy DIAGRAM)")
        return
    table = FittingTable(("stream", "kind", "columns", "node", "backup"), ("tuples",), ["backup", "columns", "node"])
    for one in streams:
        served = Text(str(one["node"]), style="" if one["alive"] else "red")
        tuples = f"{one['next_id']:,}" if "next_id" in one else "-"
        table.add_row(one["stream"], kind_of(one), one["columns"], served, one["backup"] or "-", tuples)
    console().print(table)


def describe_command(stream: str, cluster: ClusterOptions, as_json: bool) -> None:
    """All of one stream, by its full or short name."""
    with cluster.client() as client:
        full = client.locate(stream).stream
        found = next((one for one in client.streams() if one["stream"] == full), {"stream": full})
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    lines = Table.grid(padding=(0, 2))
    for what, value in described(found):
        lines.add_row(Text(what, style="dim"), Text(value))
    console().print(Text(full, style="bold"), lines, sep="\n")


def described(one: Facts) -> list[tuple[str, str]]:
    """A stream in words.

    >>> described({"stream": "d/a", "entry": True, "columns": "n INT", "node": "n1", "alive": True, "backup": None})
    [('kind', 'input'), ('columns', 'n INT'), ('served by', 'n1')]
    """
    lines = [("kind", kind_of(one)), ("columns", str(one.get("columns", "")))]
    if one.get("outputs"):
        lines.append(("output", ", ".join(one["outputs"])))
    away = "" if one.get("alive") else " (away)"
    backup = f", backup {one['backup']}" if one.get("backup") else ""
    lines.append(("served by", f"{one.get('node')}{away}{backup}"))
    if "next_id" not in one:
        return lines
    held = f"{one['held_rows']:,} tuples from id {one['first_id']:,}, {size(one['held_bytes'])}"
    lines += [("tuples", f"{one['next_id']:,}, {one['rows_per_s']:,.1f} per s"), ("held", held)]
    lines += [(word, f"{one[word]:,}") for word in ("late", "dropped") if one.get(word)]
    lines.append(("state", "ended" if one.get("ended") else "open"))
    for reader, at in sorted(one.get("readers", {}).items()):
        lines.append(("reader", f"{reader}, {max(0, one['next_id'] - at):,} behind"))
    return lines


def kind_of(one: Facts) -> str:
    """What a stream is of its diagram."""
    return "input" if one.get("entry") else "output" if one.get("outputs") else "box"
