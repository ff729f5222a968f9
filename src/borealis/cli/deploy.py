"""`borealis deploy`: a diagram goes to the cluster, which cuts it, places its units and runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from borealis.cli.opening import load
from borealis.cli.options import ClusterOptions
from borealis.cli.protection import promise, unprotected_lines
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.diagram.deployment import DeployOptions


def deploy_command(path: Path, options: DeployOptions, cluster: ClusterOptions, as_json: bool) -> None:
    """Everything that can be wrong with the file is told before the cluster is asked."""
    spec = load(path).spec
    replace = options.get("replace", False)
    with cluster.client() as client:
        if as_json:
            print(json.dumps(client.deploy(spec, **options)))
            return
        was = replace and any(d.get("diagram") == spec.name for d in client.status().get("diagrams", ()))
        with console(stderr=True).status(f"deploying {spec.name} ..."):
            deployed = client.deploy(spec, **options)
        status = client.status()
    show(spec.name, status)
    for warning in deployed.get("warnings", ()):
        console().print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if was:
        console().print(f"it replaces the diagram that ran as {spec.name}: its state and streams began from empty")


def show(name: str, status: dict[str, Any]) -> None:
    """Where everything went, and what to type next."""
    out = console()
    units = [unit for unit in status.get("units", ()) if unit.get("diagram") == name]
    diagram: dict[str, Any] = next((d for d in status.get("diagrams", ()) if d.get("diagram") == name), {})
    out.print(f"[bold]{name}[/bold]: {plural(len(units), 'unit')}")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    guarded = any(unit.get("protection") for unit in units)
    for title in ("unit", "node", *(("backup", "protection") if guarded else ()), "boxes", "reads", "gives"):
        table.add_column(title, overflow="fold")
    for unit in units:
        arrows = [[s.partition("/")[2] for s in unit.get(key, ())] for key in ("reads", "gives")]
        boxes = ", ".join(unit.get("boxes", ()))
        row = [str(unit["unit"]), str(unit["node"]), *(promise(unit.get("protection")) if guarded else ())]
        table.add_row(*row, boxes, *(", ".join(names) for names in arrows))
    out.print(table)
    for line in unprotected_lines([one for one in status.get("unprotected", ()) if one.get("diagram") == name]):
        out.print(line)
    taken = {called for d in status.get("diagrams", ()) if d is not diagram for called in _names(d, status)}
    for entry, node in diagram.get("entries", {}).items():
        full = f"{name}/{entry}" if entry in taken else entry
        out.print(f"input {entry} on {node}: borealis send {full} FILE", style="dim")
    for output in diagram.get("outputs", {}):
        full = f"{name}/{output}" if output in taken else output
        out.print(f"output {output}: borealis tail {full}", style="dim")


def _names(diagram: dict[str, Any], status: dict[str, Any]) -> list[str]:
    """What streams of a diagram are called without its name."""
    streams = [s for s in status.get("streams", ()) if s.get("diagram") == diagram.get("diagram")]
    return [*diagram.get("outputs", {}), *(str(stream.get("arrow")) for stream in streams)]
