"""`borealis deploy`, `undeploy` and `move`: what shall run on the cluster, which cuts diagrams, and where."""

from __future__ import annotations

from dataclasses import dataclass
from json import dumps
from typing import TYPE_CHECKING, Annotated, cast

from typer import Argument, Option

from borealis.cli.opening import load
from borealis.cli.options import ClusterOptions, Json, Names, Yaml, pairs
from borealis.cli.screen import answer, console, plural, span, table, working
from borealis.cli.status import promise, unprotected_lines
from borealis.clock import WALL

if TYPE_CHECKING:
    from borealis.diagram.deployment import DeployOptions
    from borealis.wire.status import ClusterStatus


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
            help="Protect all units: amnesia, passive, active, replicas, upstream-backup, storage; none."
            " Else as the file says.",
        ),
    ] = None
    guarantee: Annotated[
        str | None, Option(metavar="WHAT", help="What readers see after a failure: gap, no-loss, precise.")
    ] = None
    interval: Annotated[
        str | None, Option(metavar="TIME", help="Between checkpoints, or trimming messages: '500 ms'.")
    ] = None
    checkpoint: Annotated[
        str | None,
        Option(
            metavar="interval|sweeping|min-max",
            help="With --ha passive: by the clock, as readers let go of output, or in idle moments.",
        ),
    ] = None
    replay: Annotated[
        int | None, Option(min=1, metavar="ROWS", help="A checkpoint after so many rows at the latest.")
    ] = None
    extent: Annotated[
        float | None, Option(metavar="N", help="With --ha storage: how long a log may be, in bases; 2.")
    ] = None
    base_work: Annotated[
        str | None, Option(metavar="TIME", help="With --ha storage: of each period for writing a base; '20 ms'.")
    ] = None
    base_period: Annotated[str | None, Option(metavar="TIME", help="With --ha storage: that period; '100 ms'.")] = None
    ping: Annotated[str | None, Option(metavar="TIME", help="Between two pings of a primary: '100 ms'.")] = None
    misses: Annotated[int | None, Option(min=1, help="Missed pings in a row until it is held to be dead.")] = None
    without_backup: Annotated[
        str | None, Option(metavar="refuse|degrade", help="What to do if no node is left for a backup.")
    ] = None
    merge: Annotated[
        str | None, Option(metavar="arrival|time", help="How several streams become one; by time, copies need no word.")
    ] = None
    bucket: Annotated[
        str | None, Option(metavar="TIME", help="With --merge time: what waits for all streams at a time: '100 ms'.")
    ] = None
    delay: Annotated[
        str | None,
        Option(metavar="TIME", help="Answer within this time, tentatively if something is missing: '3 s'."),
    ] = None
    delay_of: Annotated[
        str | None, Option(metavar="unit|path", help="Whose --delay that is: each unit's, or that of a whole path.")
    ] = None
    during_failure: Annotated[
        str | None, Option(metavar="process|delay", help="Meanwhile, answer at once or as late as --delay allows.")
    ] = None
    during_stabilization: Annotated[
        str | None,
        Option(metavar="process|delay|suspend", help="The same, or not at all, while the right answers are made."),
    ] = None
    reconcile: Annotated[
        str | None, Option(metavar="local|partner", help="Where: beside the fork, or in one replica after the other.")
    ] = None
    keep: Annotated[
        str | None, Option(metavar="SIZE", help="Of each input for the right answers, on disk; with --delay: '2 GB'.")
    ] = None
    keep_time: Annotated[
        str | None, Option(metavar="TIME", help="The same, for so long: '10 minutes'; if left out, as long as it fits.")
    ] = None
    when_full: Annotated[
        str | None,
        Option(metavar="wait|drop-oldest", help="Then wait; or, with amnesia, give up the oldest, which is a gap."),
    ] = None
    replicas: Annotated[
        int | None, Option(metavar="N", help="With --ha replicas: how many copies, each on a node of its own; 2.")
    ] = None
    backups: Annotated[
        int | None, Option(metavar="N", help="With --ha passive: how many, each on a node of its own: 1 to 3; 1.")
    ] = None
    backup: Annotated[Names, Option(metavar="UNIT=NODE", help="Put the backup of a unit on this node.")] = None
    pin: Annotated[
        bool, Option("--pin", help="Units stay where they are put; else they move when nodes come, go, or are busier.")
    ] = False
    replace: Annotated[
        bool, Option("--replace", help="End what runs under its name first; its state and streams are gone then.")
    ] = False


def deploy(diagram: Yaml, flags: DeployFlags, cluster: ClusterOptions, json: Json = False) -> None:
    place, backup = pairs("--place", flags.place, "per_source=node2"), pairs("--backup", flags.backup, "u2=node3")
    options = cast("DeployOptions", vars(flags) | {"cut": flags.cut or [], "place": place, "backup": backup})
    spec = load(diagram).spec  # what is wrong with the file is known before the cluster is asked
    with cluster.client() as client:
        was = flags.replace and not json and any(d.diagram == spec.name for d in client.status().diagrams)
        with working(f"deploying {spec.name} ...", quiet=json):
            deployed = client.deploy(spec, **options)
        if json:
            print(dumps(deployed.model_dump()))
            return
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
    guarded = any(unit.protection for unit in units)
    shown = table("unit", "node", *(("backup", "protection") if guarded else ()), "boxes", "reads", "gives")
    for unit in units:
        arrows = [[stream.partition("/")[2] for stream in streams] for streams in (unit.reads, unit.gives)]
        row = [unit.unit, unit.node, *(promise(unit.protection) if guarded else ())]
        shown.add_row(*row, *(", ".join(names) for names in (unit.boxes, *arrows)))
    out.print(shown)
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


def undeploy(
    name: Annotated[str, Argument(help="The diagram's name.")], cluster: ClusterOptions, json: Json = False
) -> None:
    with cluster.client() as client:
        client.undeploy(name)
    answer(json, {"undeployed": name}, f"undeployed {name}")


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
    began = WALL.now()
    with cluster.client() as client, working(f"moving {unit} to {node} ...", quiet=json):
        ordered = client.move(unit, node, diagram=diagram)
    seconds = WALL.now() - began
    facts = ordered.model_dump() | {"seconds": round(seconds, 3)}
    answer(json, facts, f"{unit} runs on {node} now; moved in {span(seconds * 1e6)}")
