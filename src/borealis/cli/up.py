"""`borealis up`: a coordinator and nodes as processes of this machine, side by side, until all of them are ready.

Where a cluster of this home runs already, it starts what is missing of it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from borealis.cli import processes
from borealis.cli.cluster_file import ClusterFile, CoordinatorPart, NodePart, is_here, load_cluster_file
from borealis.cli.starting import COORDINATOR, LOOK_EVERY_S, WAIT_S, Patience, log_of, only_one, start_again, wait_ready
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.client.cluster_config import (
    Record,
    Whereabouts,
    changing_record,
    find,
    home,
    make_folder,
    read_record,
    read_token,
    record_path,
    register,
    split,
    write_record,
)
from borealis.errors import ClusterError
from borealis.hosts import free_ports, is_loopback

if TYPE_CHECKING:
    from borealis.wire.status import NodeView

COME_BACK_S = 5.0  # for nodes to notice that there is a coordinator again


@dataclass(frozen=True)
class UpOptions:
    """What to start, as the command line has it."""

    nodes: int | None = None
    config: Path | None = None
    we_are: str | None = None
    port: int | None = None
    cores_per_node: int | None = None
    data: Path | None = None
    token_file: Path | None = None
    wait_s: float = WAIT_S
    json: bool = False

    @property
    def patience(self) -> Patience:
        """How long to wait, and how loudly."""
        return Patience(self.wait_s, self.json)


@dataclass
class Plan:
    """Which parts start here, each with its arguments, and the commands for other machines."""

    cluster: ClusterFile
    data: Path
    here: dict[str, list[str]] = field(default_factory=dict)
    elsewhere: dict[str, str] = field(default_factory=dict)

    @property
    def coordinator(self) -> Whereabouts:
        """Where the coordinator is, or will be."""
        token = read_token(self.cluster.token_file) if self.cluster.token_file else None
        tls = self.cluster.tls
        ca = str(tls.ca or tls.cert) if tls else None
        return Whereabouts(self.cluster.coordinator.host, self.cluster.coordinator.port, token, ca, tls is not None)


def up_command(options: UpOptions) -> None:
    """Start, wait, tell. When a part dies while it starts, all that were started now are stopped again."""
    began = time.monotonic()
    with only_one():
        record = read_record()
        running = [part.name for part in record.parts if processes.alive(part)] if record is not None else []
        if record is not None and running:
            started, nodes = _heal(record, running, options)
            _tell_healed(record, started, running, nodes, time.monotonic() - began, options)
            return
        if record is not None:
            processes.stop(record.parts)  # what a dead part may have left behind
        the_plan = plan(options)
        _check_certificates(the_plan.cluster)
        _check_port(the_plan)
        _make_room(the_plan, options)
        ready = _start_and_wait(the_plan, options)
    _tell(the_plan, ready, time.monotonic() - began, options)


def _heal(record: Record, running: Sequence[str], options: UpOptions) -> tuple[list[str], list[NodeView]]:
    """Start what is missing of a cluster that runs: which parts that were, and all nodes of this home."""
    shall = wanted(record, options)
    missing = {name: arguments for name, arguments in shall.items() if name not in running}
    if missing:
        start_again(record, missing, options.patience)
    return list(missing), _ours(record, {*running, *shall} - {COORDINATOR})


def _ours(record: Record, names: Set[str]) -> list[NodeView]:
    """The living nodes of these names; those that ran while there was no coordinator are given time to come back."""
    from borealis.client.coordinator import CoordinatorClient

    deadline = time.monotonic() + COME_BACK_S
    with CoordinatorClient(find(record.coordinator)) as coordinator:
        while True:
            found = [node for node in coordinator.nodes() if node.node in names and node.alive]
            if len(found) == len(names) or time.monotonic() > deadline:
                return found
            time.sleep(LOOK_EVERY_S)  # for their heartbeats


def wanted(record: Record, options: UpOptions) -> dict[str, list[str]]:
    """The parts that shall run here, each with its arguments: those it was started with, where it ever was."""
    known = {part.name: part.arguments for part in record.parts if part.arguments}
    if options.config is not None:
        the_plan = plan(options)
        where = the_plan.coordinator
        _check_same(record, "--config", f"{where.host}:{where.port}", record.coordinator)
        return the_plan.here | {name: known[name] for name in the_plan.here if name in known}
    host, port, _ = split(record.coordinator)
    _check_same(record, "--port", str(options.port or port), str(port))
    if options.data is not None:
        _check_same(record, "--data", str(options.data.expanduser().absolute()), record.data)
    if options.token_file is not None:
        _check_same(record, "--token-file", str(options.token_file.expanduser().absolute()), str(record.token_file))
    if options.nodes is None:
        return known
    names = [f"node{i + 1}" for i in range(options.nodes)]
    if record.ca is not None and not known.keys() >= set(names):
        raise ClusterError(
            "nodes of a cluster with certificates are not started by their number", hint="add them to its --config"
        )
    cluster = ClusterFile(
        coordinator=CoordinatorPart(host=host, port=port),
        nodes=[NodePart(name=name, cores=options.cores_per_node or 1) for name in names],
        token_file=Path(record.token_file) if record.token_file else None,
    )
    made = {node.name: node_arguments(cluster, node, Path(record.data) / node.name) for node in cluster.nodes}
    return (
        {name: known[name] for name in (COORDINATOR,) if name in known}
        | made
        | {name: known[name] for name in names if name in known}
    )


def _check_same(record: Record, what: str, given: str, has: str) -> None:
    if given != has:
        raise ClusterError(
            f"a cluster already runs in {home()}, coordinator at {record.coordinator}, and "
            f"its {what} is {has}, not {given}",
            hint=f"leave out {what} to start what is missing of it, 'borealis down' stops it; another BOREALIS_HOME "
            "may have another cluster",
        )


def plan(options: UpOptions) -> Plan:
    """What shall run, checked as far as that is possible before anything starts."""
    cluster = _cluster(options)
    _check_token(cluster)
    data = (options.data.expanduser().absolute() if options.data else None) or home() / "data"
    made = Plan(cluster, data)
    made.elsewhere |= _commands_elsewhere(made, options.we_are)
    if is_here(cluster.coordinator.host, options.we_are):
        made.here[COORDINATOR] = coordinator_arguments(cluster, data / "catalog.sqlite")
    for node in cluster.nodes:
        if is_here(node.host, options.we_are):
            made.here[node.name] = node_arguments(cluster, node, data / node.name)
    if not made.here:
        hosts = ", ".join(cluster.hosts)
        raise ClusterError(
            f"nothing of {options.config} runs on this machine (its hosts: {hosts})",
            hint="say which of them this is: --host NAME",
        )
    return made


def _cluster(options: UpOptions) -> ClusterFile:
    if options.config is not None:
        if options.nodes is not None or options.port is not None or options.cores_per_node is not None:
            raise ClusterError("--config says it all", hint="leave out --nodes, --port and --cores-per-node")
        cluster = load_cluster_file(options.config)
    else:
        nodes = [
            NodePart(name=f"node{i + 1}", cores=options.cores_per_node or 1)
            for i in range(1 if options.nodes is None else options.nodes)
        ]
        port = free_ports(1)[0] if options.port == 0 else options.port
        part = CoordinatorPart() if port is None else CoordinatorPart(port=port)
        cluster = ClusterFile(coordinator=part, nodes=nodes)
    if options.token_file is not None:
        cluster = cluster.model_copy(update={"token_file": options.token_file.expanduser().absolute()})
    return cluster


def _check_token(cluster: ClusterFile) -> None:
    open_hosts = [host for host in cluster.hosts if not is_loopback(host)]
    if open_hosts and cluster.token_file is None:
        raise ClusterError(
            f"{', '.join(open_hosts)} can be reached from other machines, and no token protects the cluster",
            hint="make one with 'openssl rand -hex 32 > token' and add 'token_file: token', or use 127.0.0.1",
        )
    if cluster.token_file is not None:
        read_token(cluster.token_file)


def _check_certificates(cluster: ClusterFile) -> None:
    """Told before anything starts, not by each part on its own."""
    if cluster.tls is None:
        return
    from borealis.wire.auth import Security  # here: it takes a moment, and most clusters have no certificates

    security = Security(cert=cluster.tls.cert, key=cluster.tls.key, ca=cluster.tls.ca)
    security.certificates()
    security.roots()


def coordinator_arguments(cluster: ClusterFile, catalog: Path) -> list[str]:
    """`borealis coordinator ...`."""
    part = cluster.coordinator
    where = ["--host", part.host, "--port", str(part.port), "--catalog", str(part.catalog or catalog)]
    return ["coordinator", *where, *_protection(cluster)]


def node_arguments(cluster: ClusterFile, node: NodePart, data: Path) -> list[str]:
    """`borealis node ...`."""
    to = f"{cluster.coordinator.host}:{cluster.coordinator.port}"
    made = ["node", "--name", node.name, "--coordinator", to, "--host", node.host, "--port", str(node.port)]
    made += ["--master", node.master] if node.master else []
    made += ["--cores", str(node.cores)] if node.cores else []
    return [*made, "--data", str(node.data or data), *_protection(cluster)]


def _protection(cluster: ClusterFile) -> list[str]:
    made = ["--token-file", str(cluster.token_file)] if cluster.token_file else []
    if cluster.tls is not None:
        made += ["--tls-cert", str(cluster.tls.cert), "--tls-key", str(cluster.tls.key)]
        made += ["--tls-ca", str(cluster.tls.ca)] if cluster.tls.ca else []
    return made


def _commands_elsewhere(made: Plan, we_are: str | None) -> dict[str, str]:
    """What to type on the other machines."""
    cluster, place = made.cluster, Path("borealis-data")
    found = {}
    if not is_here(cluster.coordinator.host, we_are):
        found[COORDINATOR] = shlex.join(["borealis", *coordinator_arguments(cluster, place / "catalog.sqlite")])
    for node in cluster.nodes:
        if not is_here(node.host, we_are):
            found[f"{node.name} on {node.host}"] = shlex.join(
                ["borealis", *node_arguments(cluster, node, place / node.name)]
            )
    return found


def _check_port(made: Plan) -> None:
    if COORDINATOR not in made.here:
        return
    where = made.cluster.coordinator
    try:
        with socket.create_connection((where.host, where.port), timeout=1.0):
            pass
    except OSError:
        return
    raise ClusterError(
        f"port {where.port} of {where.host} is taken, perhaps by a coordinator of another home",
        hint="choose another with --port, or 0 for any that is free",
    )


def _make_room(made: Plan, options: UpOptions) -> None:
    """Without --data a cluster starts from nothing; what the last one left is thrown away now."""
    if options.data is None and made.data.exists():
        shutil.rmtree(made.data)
    make_folder(made.data, "the cluster's data", "give a folder of yours with --data")


def _start_and_wait(made: Plan, options: UpOptions) -> list[NodeView]:
    tls = made.cluster.tls
    record = Record(
        coordinator=f"{made.cluster.coordinator.host}:{made.cluster.coordinator.port}",
        token_file=str(made.cluster.token_file) if made.cluster.token_file else None,
        ca=str(tls.ca or tls.cert) if tls else None,
        data=str(made.data),
        keep_data=options.data is not None,
    )
    with changing_record():
        write_record(record)
    parts, running = [], dict[str, subprocess.Popen[bytes]]()
    try:
        for name, arguments in made.here.items():
            part, running[name] = processes.start(name, arguments, log_of(name), made.data / name)
            parts.append(part)
            register(part)  # after each, so that `down` knows all of them whatever happens to us
        return wait_ready(made.coordinator, parts, running, options.patience)
    except BaseException:
        processes.stop(parts)
        record_path().unlink(missing_ok=True)
        raise


def _tell(made: Plan, ready: Sequence[NodeView], seconds: float, options: UpOptions) -> None:
    if options.json:
        told = {
            "coordinator": made.coordinator.url,
            "nodes": [node.model_dump() for node in ready],
            "seconds": round(seconds, 3),
            "data": str(made.data),
            "elsewhere": made.elsewhere,
            "started": list(made.here),
        }
        print(json.dumps(told, ensure_ascii=False))
        return
    out = console()
    out.print(f"ready in {seconds:.1f} s: coordinator and {plural(len(ready), 'node')}", style="bold")
    out.print(_table(made.coordinator, ready))
    if options.data is None:
        out.print(f"data in {made.data} until the next 'up'; keep it with --data DIR", style="dim", soft_wrap=True)
    for what, command in made.elsewhere.items():
        out.print(f"still to start: {what}", style="bold")
        out.print(f"  {command}", markup=False, soft_wrap=True)


def _tell_healed(
    record: Record,
    started: Sequence[str],
    ran: Sequence[str],
    nodes: Sequence[NodeView],
    seconds: float,
    options: UpOptions,
) -> None:
    where = find(record.coordinator)
    if options.json:
        told = {
            "coordinator": where.url,
            "nodes": [node.model_dump() for node in nodes],
            "seconds": round(seconds, 3),
            "data": record.data,
            "elsewhere": {},
            "started": list(started),
        }
        print(json.dumps(told, ensure_ascii=False))
        return
    out = console()
    said = f"started {', '.join(started)} in {seconds:.1f} s" if started else "nothing was missing"
    out.print(f"{said}; running already: {', '.join(ran)}", style="bold", soft_wrap=True)
    out.print(_table(where, nodes))


def _table(where: Whereabouts, nodes: Sequence[NodeView]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("coordinator", where.url, Text("/docs shows its REST", style="dim"))
    for node in nodes:
        table.add_row(node.node, node.address, Text(f"{node.master}, pid {node.pid}", style="dim"))
    return table
