"""`borealis up`: a coordinator and nodes as processes of this machine, side by side, until all of them are ready."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from borealis.cli import processes
from borealis.cli.cluster_file import (
    ClusterFile,
    CoordinatorPart,
    NodePart,
    is_here,
    load_cluster_file,
)
from borealis.cli.watching import console
from borealis.cli.words import plural
from borealis.emit.whereabouts import (
    Part,
    Record,
    Whereabouts,
    home,
    make_folder,
    read_record,
    read_token,
    write_record,
)
from borealis.errors import BorealisError, ClusterError, MachineError, WireError
from borealis.hosts import free_ports, is_loopback

if TYPE_CHECKING:
    from borealis.emit.coordinator import Coordinator

LOOK_EVERY_S = 0.1  # at processes and coordinator while they start
COORDINATOR = "coordinator"
UNAUTHORIZED = 401  # HTTP


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
    wait_s: float = 180.0
    json: bool = False


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
    """Start, wait, tell. When a part dies while it starts, all of them are stopped again."""
    began = time.monotonic()
    with _only_one():
        _refuse_if_running()
        the_plan = plan(options)
        _check_certificates(the_plan.cluster)
        _check_port(the_plan)
        _make_room(the_plan, options)
        ready = _start_and_wait(the_plan, options)
    _tell(the_plan, ready, time.monotonic() - began, options)


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


@contextlib.contextmanager
def _only_one() -> Iterator[None]:
    """Two `up` of one home at the same time would start two clusters and remember one."""
    make_folder(home(), "the cluster's home", "set BOREALIS_HOME to a folder of yours")
    with (home() / "up.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ClusterError(f"another 'borealis up' is starting a cluster in {home()}", hint="wait for it") from None
        yield


def _refuse_if_running() -> None:
    record = read_record()
    if record is None:
        return
    running = [part.name for part in record.parts if processes.alive(part)]
    if running:
        whole = len(running) == len(record.parts)
        what = "a cluster already runs" if whole else f"a part of a cluster still runs ({', '.join(running)})"
        raise ClusterError(
            f"{what} in {home()}, coordinator at {record.coordinator}",
            hint="'borealis status' shows it, 'borealis down' stops it; another BOREALIS_HOME may have another cluster",
        )
    processes.stop(record.parts)  # what a dead part may have left behind


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


def _start_and_wait(made: Plan, options: UpOptions) -> list[dict[str, Any]]:
    tls = made.cluster.tls
    record = Record(
        coordinator=f"{made.cluster.coordinator.host}:{made.cluster.coordinator.port}",
        token_file=str(made.cluster.token_file) if made.cluster.token_file else None,
        ca=str(tls.ca or tls.cert) if tls else None,
        data=str(made.data),
        keep_data=options.data is not None,
    )
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, arguments in made.here.items():
            log = home() / "logs" / f"{name}.log"
            part, running[name] = processes.start(name, arguments, log, made.data / name)
            record = record.model_copy(update={"parts": [*record.parts, part]})
            write_record(record)  # after each, so that `down` knows all of them whatever happens to us
        return _wait(made, record, running, options)
    except BaseException:
        processes.stop(record.parts)
        (home() / "cluster.json").unlink(missing_ok=True)
        raise


def _wait(
    made: Plan, record: Record, running: dict[str, subprocess.Popen[bytes]], options: UpOptions
) -> list[dict[str, Any]]:
    from borealis.emit.coordinator import Coordinator  # here, while the parts are starting: it takes a moment, too

    deadline = time.monotonic() + options.wait_s
    with _show(options.json) as show, Coordinator(made.coordinator) as coordinator:
        while True:
            for part in record.parts:
                if running[part.name].poll() is not None:
                    raise _died(part, running[part.name].returncode, options.json)
            nodes = _nodes(coordinator)
            doing = {name: _doing(name, nodes) for name in made.here}
            show(doing)
            failed = [name for name, what in doing.items() if what == "Spark failed"]
            if failed:
                part = next(p for p in record.parts if p.name == failed[0])
                raise _died(part, None, options.json)
            if nodes is not None and all(what == "ready" for what in doing.values()):
                return [node for node in nodes if node.get("node") in made.here]
            if time.monotonic() > deadline:
                late = ", ".join(f"{name} ({what})" for name, what in doing.items() if what != "ready")
                raise ClusterError(f"not ready within {options.wait_s:.0f} s: {late}", hint=f"see {home() / 'logs'}")
            time.sleep(LOOK_EVERY_S)  # for processes to tell the coordinator, which tells us only when asked


def _nodes(coordinator: Coordinator) -> list[dict[str, Any]] | None:
    """The nodes that have reported; None while the coordinator does not answer."""
    try:
        return coordinator.nodes()
    except WireError as error:
        if getattr(error, "status", None) == UNAUTHORIZED:
            raise
        return None


def _doing(name: str, nodes: list[dict[str, Any]] | None) -> str:
    if name == COORDINATOR:
        return "starting" if nodes is None else "ready"
    found = next((node for node in nodes or () if node.get("node") == name), None)
    if found is None or not found.get("alive", True):
        return "starting"
    return {"starting": "starting Spark", "failed": "Spark failed"}.get(
        str(found.get("spark")), str(found.get("spark"))
    )


def _died(part: Part, code: int | None, quiet: bool) -> BorealisError:
    lines = processes.last_lines(part.log)
    if lines and not quiet:
        err = console(stderr=True)
        err.print(f"{part.name} said at last:", style="bold")
        for line in lines:
            err.print(f"  {line}", markup=False, soft_wrap=True, style="dim")
    told = next((line for line in reversed(lines) if line.startswith("error: ")), "").removeprefix("error: ")
    said, _, hint = told.partition(" Hint: ")
    ended = "could not start Spark" if code is None else f"ended while starting (exit code {code})"
    message = f"{part.name} {ended}" + (f": {said.rstrip('.')}" if said else "")
    return MachineError(message, hint=f"{hint}; its log is {part.log}" if hint else f"its log is {part.log}")


class _Lines:
    """What each part is doing, a line when that changes."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._began = time.monotonic()

    def __call__(self, doing: dict[str, str]) -> None:
        err = console(stderr=True)
        for name, what in doing.items():
            if self._last.get(name) != what:
                err.print(f"{time.monotonic() - self._began:5.1f} s  {name}: {what}", markup=False)
        self._last = dict(doing)


class _Live:
    """What each part is doing, in place."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = time.monotonic()

    def __call__(self, doing: dict[str, str]) -> None:
        table = Table.grid(padding=(0, 2))
        for name, what in doing.items():
            table.add_row(name, Text(what, style="green" if what == "ready" else "yellow"))
        table.add_row("", Text(f"{time.monotonic() - self._began:.0f} s", style="dim"))
        self._live.update(table, refresh=True)


@contextlib.contextmanager
def _show(quiet: bool) -> Iterator[Any]:
    err = console(stderr=True)
    if quiet:
        yield lambda _: None
    elif err.is_terminal:
        with Live(console=err, auto_refresh=False, transient=True) as live:
            yield _Live(live)
    else:
        yield _Lines()


def _tell(made: Plan, ready: Sequence[dict[str, Any]], seconds: float, options: UpOptions) -> None:
    if options.json:
        told = {
            "coordinator": made.coordinator.url,
            "nodes": list(ready),
            "seconds": round(seconds, 3),
            "data": str(made.data),
            "elsewhere": made.elsewhere,
        }
        print(json.dumps(told, ensure_ascii=False))
        return
    out = console()
    out.print(f"ready in {seconds:.1f} s: coordinator and {plural(len(ready), 'node')}", style="bold")
    table = Table.grid(padding=(0, 2))
    table.add_row("coordinator", made.coordinator.url, Text("/docs shows its REST", style="dim"))
    for node in ready:
        table.add_row(
            str(node["node"]), str(node["address"]), Text(f"{node['master']}, pid {node['pid']}", style="dim")
        )
    out.print(table)
    if options.data is None:
        out.print(f"data in {made.data} until the next 'up'; keep it with --data DIR", style="dim", soft_wrap=True)
    for what, command in made.elsewhere.items():
        out.print(f"still to start: {what}", style="bold")
        out.print(f"  {command}", markup=False, soft_wrap=True)
