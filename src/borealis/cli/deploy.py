"""`borealis deploy`: a diagram goes to the cluster, which cuts it, places its units and runs them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from borealis.cli.opening import load
from borealis.cli.reaching import Reach, pairs
from borealis.cli.watching import console
from borealis.cli.words import plural


def deploy_command(
    path: Path,
    places: Sequence[str],
    cuts: Sequence[str],
    units: int | None,
    buckets: int,
    reach: Reach,
    as_json: bool,
) -> None:
    """Everything that can be wrong with the file is told before the cluster is asked."""
    spec = load(path).spec
    wanted = pairs("--place", places, "per_source=node2")
    with reach.client() as client:
        if as_json:
            print(json.dumps(client.deploy(spec, cut=cuts, place=wanted, units=units, buckets=buckets)))
            return
        with console(stderr=True).status(f"deploying {spec.name} ..."):
            client.deploy(spec, cut=cuts, place=wanted, units=units, buckets=buckets)
        status = client.status()
    show(spec.name, status)


def show(name: str, status: dict[str, Any]) -> None:
    """Where everything went, and what to type next."""
    out = console()
    units = [unit for unit in status.get("units", ()) if unit.get("diagram") == name]
    diagram: dict[str, Any] = next((d for d in status.get("diagrams", ()) if d.get("diagram") == name), {})
    out.print(f"[bold]{name}[/bold]: {plural(len(units), 'unit')}")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("unit", "node", "boxes", "reads", "gives"):
        table.add_column(title, overflow="fold")
    for unit in units:
        arrows = [[s.partition("/")[2] for s in unit.get(key, ())] for key in ("reads", "gives")]
        boxes = ", ".join(unit.get("boxes", ()))
        table.add_row(str(unit["unit"]), str(unit["node"]), boxes, *(", ".join(names) for names in arrows))
    out.print(table)
    for entry, node in diagram.get("entries", {}).items():
        out.print(f"input {entry} on {node}: borealis send {entry} FILE", style="dim")
    for output in diagram.get("outputs", {}):
        out.print(f"output {output}: borealis tail {output}", style="dim")
