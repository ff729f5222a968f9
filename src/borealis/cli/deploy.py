"""`borealis deploy`: a diagram goes to the cluster, which cuts it, places its units and runs them."""

from __future__ import annotations

import json
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from borealis.cli.opening import load
from borealis.cli.options import ClusterOptions
from borealis.cli.protection import promise, unprotected_lines
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.diagram.deployment import DeployOptions
from borealis.wire.status import ClusterStatus


def deploy_command(path: Path, options: DeployOptions, cluster: ClusterOptions, as_json: bool) -> None:
    """Everything that can be wrong with the file is told before the cluster is asked."""
    spec = load(path).spec
    replace = options.get("replace", False)
    with cluster.client() as client:
        if as_json:
            print(json.dumps(client.deploy(spec, **options).model_dump()))
            return
        was = replace and any(d.diagram == spec.name for d in client.status().diagrams)
        with console(stderr=True).status(f"deploying {spec.name} ..."):
            deployed = client.deploy(spec, **options)
        status = client.status()
    show(spec.name, status)
    for warning in deployed.warnings:
        console().print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)
    if was:
        console().print(f"it replaces the diagram that ran as {spec.name}: its state and streams began from empty")


def show(name: str, status: ClusterStatus) -> None:
    """Where everything went, and what to type next."""
    out = console()
    units = [unit for unit in status.units if unit.diagram == name]
    out.print(f"[bold]{name}[/bold]: {plural(len(units), 'unit')}")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    guarded = any(unit.protection for unit in units)
    for title in ("unit", "node", *(("backup", "protection") if guarded else ()), "boxes", "reads", "gives"):
        table.add_column(title, overflow="fold")
    for unit in units:
        arrows = [[stream.partition("/")[2] for stream in streams] for streams in (unit.reads, unit.gives)]
        row = [unit.unit, unit.node, *(promise(unit.protection) if guarded else ())]
        table.add_row(*row, *(", ".join(names) for names in (unit.boxes, *arrows)))
    out.print(table)
    for line in unprotected_lines(one for one in status.unprotected if one.diagram == name):
        out.print(line)
    # what streams of other diagrams are called without their diagram's name
    taken = {stream.arrow for stream in status.streams if stream.diagram != name}
    taken |= {output for diagram in status.diagrams if diagram.diagram != name for output in diagram.outputs}
    for diagram in (one for one in status.diagrams if one.diagram == name):
        for entry, node in diagram.entries.items():
            full = f"{name}/{entry}" if entry in taken else entry
            out.print(f"input {entry} on {node}: borealis send {full} FILE", style="dim")
        for output in diagram.outputs:
            full = f"{name}/{output}" if output in taken else output
            out.print(f"output {output}: borealis tail {full}", style="dim")
