"""The commands that are a question to the coordinator: what runs, and what shall."""

from __future__ import annotations

import time
from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option

from borealis.cli.options import ClusterOptions, Json, StreamName, Yaml, pairs
from borealis.cli.watching import console
from borealis.cli.words import span

if TYPE_CHECKING:
    from borealis.diagram.deployment import DeployOptions

Names = list[str] | None


@dataclass(frozen=True)
class DeployFlags:
    """How a diagram shall run on the cluster; see `Deployment`, which checks it."""

    place: Annotated[Names, Option(metavar="NAME=NODE", help="Put an input, a box or an output on this node.")] = None
    cut: Annotated[Names, Option(metavar="BOX", help="Begin a new unit at this box.")] = None
    units: Annotated[int | None, Option(min=1, help="Cut each connected part into about so many units.")] = None
    buckets: Annotated[int, Option(min=1, max=1024, help="How many parts of the keys are computed side by side.")] = 1
    ha: Annotated[
        str | None,
        Option(
            metavar="APPROACH",
            help="Protect all units: amnesia, passive, active, upstream-backup; none. As the file says if left out.",
        ),
    ] = None
    guarantee: Annotated[
        str | None, Option(metavar="WHAT", help="What readers see after a failure: gap, no-loss, precise.")
    ] = None
    interval: Annotated[
        str | None, Option(metavar="TIME", help="Between checkpoints, or trimming messages: '500 ms'.")
    ] = None
    ping: Annotated[str | None, Option(metavar="TIME", help="Between two pings of a primary: '100 ms'.")] = None
    misses: Annotated[int | None, Option(min=1, help="Missed pings in a row until it is held to be dead.")] = None
    without_backup: Annotated[
        str | None, Option(metavar="refuse|degrade", help="What to do if no node is left for a backup.")
    ] = None
    backup: Annotated[Names, Option(metavar="UNIT=NODE", help="Put the backup of a unit on this node.")] = None
    replace: Annotated[
        bool, Option("--replace", help="End what runs under its name first; its state and streams are gone then.")
    ] = False


def deploy(diagram: Yaml, flags: DeployFlags, cluster: ClusterOptions, json: Json = False) -> None:
    from borealis.cli.deploy import deploy_command

    place, backup = pairs("--place", flags.place, "per_source=node2"), pairs("--backup", flags.backup, "u2=node3")
    options = vars(flags) | {"cut": flags.cut or [], "place": place, "backup": backup}
    deploy_command(diagram, cast("DeployOptions", options), cluster, json)


def undeploy(
    name: Annotated[str, Argument(help="The diagram's name.")], cluster: ClusterOptions, json: Json = False
) -> None:
    with cluster.client() as client:
        client.undeploy(name)
    print(dumps({"undeployed": name}) if json else f"undeployed {name}")


def ls(cluster: ClusterOptions, json: Json = False) -> None:
    from borealis.cli.streams import ls_command

    ls_command(cluster, json)


def describe(stream: StreamName, cluster: ClusterOptions, json: Json = False) -> None:
    from borealis.cli.streams import describe_command

    describe_command(stream, cluster, json)


def forget(
    stream: Annotated[str, Argument(help="The stream: per_source, or traffic/per_source.")],
    reader: Annotated[str, Argument(help="Its reader that will not come back.")],
    cluster: ClusterOptions,
    json: Json = False,
) -> None:
    with cluster.client() as client:
        client.forget(stream, reader)
    told = {"stream": stream, "forgotten": reader}
    print(dumps(told) if json else f"{stream} keeps nothing for {reader} now")


def forget_node(
    node: Annotated[str, Argument(help="The node, which is dead.")], cluster: ClusterOptions, json: Json = False
) -> None:
    with cluster.client() as client:
        client.forget_node(node)
    print(dumps({"node": node}) if json else f"node {node} is forgotten")


def status(
    watch: Annotated[bool, Option("--watch", "-w", help="Again every second, until stopped.")] = False,
    *,
    cluster: ClusterOptions,
    json: Json = False,
) -> None:
    from borealis.cli.status import status_command

    status_command(watch, cluster, json)


def move(
    unit: Annotated[str, Argument(help="The unit: u2, or traffic/u2.")],
    node: Annotated[str, Argument(help="Where it shall run.")],
    diagram: Annotated[str | None, Option(metavar="NAME", help="Of which diagram, if several run.")] = None,
    *,
    cluster: ClusterOptions,
    json: Json = False,
) -> None:
    before, slash, after = unit.partition("/")
    if slash:
        diagram, unit = before, after
    began = time.monotonic()
    with cluster.client() as client:
        if json:
            answer = client.move(unit, node, diagram=diagram)
            print(dumps(answer.model_dump() | {"seconds": round(time.monotonic() - began, 3)}))
            return
        with console(stderr=True).status(f"moving {unit} to {node} ..."):
            client.move(unit, node, diagram=diagram)
    print(f"{unit} runs on {node} now; moved in {span((time.monotonic() - began) * 1e6)}")
