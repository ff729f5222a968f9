"""`borealis up`: a coordinator and nodes as processes of this machine, side by side, until all of them are ready.

Where a cluster of this home runs already, it starts what is missing of it. When a part dies while it starts, all that
were started now are stopped again.
"""

from __future__ import annotations

import shutil
from collections.abc import Set
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text
from typer import Option

from borealis.cli import processes
from borealis.cli.options import AllowFaults, Json, PoolSize, StorageUri
from borealis.cli.screen import console, grid, plural
from borealis.cli.starting import ASK_EVERY_S, COORDINATOR, only_one, start_again, start_parts
from borealis.client.cluster_config import (
    ClusterRecord,
    Whereabouts,
    changing_record,
    find,
    make_folder,
    read_record,
    record_path,
    write_record,
)
from borealis.clock import WALL

if TYPE_CHECKING:
    from borealis.cli.cluster_plan import Plan
    from borealis.wire.status import NodeView

COME_BACK_S = 5.0  # for nodes to notice that there is a coordinator again
Nodes = list["NodeView"]


@dataclass(frozen=True)
class UpOptions:
    nodes: Annotated[int | None, Option(min=1, max=64, help="How many nodes; one if left out.")] = None
    config: Annotated[
        Path | None, Option(metavar="FILE", help="A cluster.yaml: what of it is on this machine is started.")
    ] = None
    host: Annotated[str | None, Option(metavar="NAME", help="Which host of the file this machine is.")] = None
    port: Annotated[
        int | None, Option(min=0, max=65535, help="The coordinator's; 7470 if left out, 0 for a free one.")
    ] = None
    cores_per_node: Annotated[int | None, Option(min=1, help="Spark tasks at a time on each node.")] = None
    data: Annotated[
        Path | None, Option(metavar="DIR", help="Keep catalog and logs of durable inputs here, for a later 'up'.")
    ] = None
    token_file: Annotated[
        Path | None, Option(metavar="FILE", help="Protect the cluster with the token in this file.")
    ] = None
    storage: StorageUri = None
    pool: PoolSize = None
    allow_faults: AllowFaults = False
    wait: Annotated[float, Option(min=1, help="Seconds until all must be ready.")] = 180
    json: Json = False


def up(options: UpOptions) -> None:
    from borealis.cli.cluster_plan import checked, plan, wanted

    began = WALL.now()
    with only_one():
        record = read_record()
        running = [part.name for part in record.parts if processes.alive(part)] if record is not None else []
        if record is not None and running:
            shall = wanted(record, options)
            missing = {name: arguments for name, arguments in shall.items() if name not in running}
            if missing:
                start_again(record, missing, options.wait, options.json)
            where, data, started, elsewhere = find(record.coordinator), record.data, list(missing), dict[str, str]()
            nodes = _ours(where, {*running, *shall} - {COORDINATOR})
        else:
            if record is not None:
                processes.stop(record.parts)  # what a dead part may have left behind
            made = checked(plan(options))
            where, data, started, elsewhere = made.coordinator, str(made.data), list(made.here), made.elsewhere
            nodes = _start(made, options)
    seconds = WALL.now() - began
    if options.json:
        facts: dict[str, object] = {"coordinator": where.url, "nodes": [node.model_dump() for node in nodes]}
        facts |= {"seconds": round(seconds, 3), "data": data, "elsewhere": elsewhere, "started": started}
        print(dumps(facts, ensure_ascii=False))
        return
    out = console()
    if running:
        news = f"started {', '.join(started)} in {seconds:.1f} s" if started else "nothing was missing"
        out.print(f"{news}; running already: {', '.join(running)}", style="bold", soft_wrap=True)
    else:
        out.print(f"ready in {seconds:.1f} s: coordinator and {plural(len(nodes), 'node')}", style="bold")
    parts = [("coordinator", where.url, "/docs shows its REST")]
    parts += [(node.node, node.address, f"{node.master}, pid {node.pid}") for node in nodes]
    out.print(grid((name, at, Text(more, style="dim")) for name, at, more in parts))
    if not running and options.data is None:
        out.print(f"data in {data} until the next 'up'; keep it with --data DIR", style="dim", soft_wrap=True)
    for what, command in elsewhere.items():
        out.print(f"still to start: {what}", style="bold")
        out.print(f"  {command}", markup=False, soft_wrap=True)


def _ours(where: Whereabouts, names: Set[str]) -> Nodes:
    """The living nodes of these names; those that ran while there was no coordinator are given time to come back."""
    from borealis.client.coordinator import CoordinatorRequests

    deadline = WALL.now() + COME_BACK_S
    with CoordinatorRequests(where) as coordinator:
        while True:
            found = [node for node in coordinator.nodes() if node.node in names and node.alive]
            if len(found) == len(names) or WALL.now() > deadline:
                return found
            WALL.sleep(ASK_EVERY_S)  # for their heartbeats


def _start(made: Plan, options: UpOptions) -> Nodes:
    """Without --data a cluster starts from nothing; what the last one left is thrown away now."""
    if options.data is None and made.data.exists():
        shutil.rmtree(made.data)
    make_folder(made.data, "the cluster's data", "give a folder of yours with --data")
    where, token_file = made.coordinator, made.cluster.token_file
    record = ClusterRecord(
        coordinator=f"{where.host}:{where.port}",
        token_file=str(token_file) if token_file else None,
        ca=where.ca,
        data=str(made.data),
        keep_data=options.data is not None,
    )
    with changing_record():
        write_record(record)
    try:
        return start_parts(where, made.here, made.data, options.wait, options.json)
    except BaseException:
        record_path().unlink(missing_ok=True)
        raise
