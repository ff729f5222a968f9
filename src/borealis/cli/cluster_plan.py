"""What shall run of a cluster: which parts on this machine, each with its arguments, and what to type on the others."""

from __future__ import annotations

import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from borealis.cli.cluster_file import ClusterFile, CoordinatorPart, NodePart, is_here, load_cluster_file
from borealis.cli.options import arguments
from borealis.cli.starting import COORDINATOR
from borealis.cli.up import UpOptions
from borealis.client.cluster_config import PORT, ClusterRecord, Whereabouts, home, read_token, split
from borealis.errors import ClusterError
from borealis.hosts import free_ports, is_loopback
from borealis.storage import placed

ELSEWHERE = Path("borealis-data")  # of what is started on other machines


@dataclass(frozen=True)
class Plan:
    """Which parts start here, each with its arguments, and the commands for other machines."""

    cluster: ClusterFile
    data: Path
    here: dict[str, list[str]]
    elsewhere: dict[str, str]

    @property
    def coordinator(self) -> Whereabouts:
        """Where the coordinator is, or will be."""
        at, tls, token = self.cluster.coordinator, self.cluster.tls, read_token(self.cluster.token_file)
        return Whereabouts(at.host, at.port, token, str(tls.ca or tls.cert) if tls else None, tls is not None)


def plan(options: UpOptions) -> Plan:
    """What shall run, checked as far as that is possible without a look at the machine."""
    cluster = _cluster(options)
    known = dict.fromkeys([*cluster.hosts, *cluster.reached])
    open_hosts = [host for host in known if not is_loopback(host)]
    if open_hosts and cluster.token_file is None:
        raise ClusterError(
            f"{', '.join(open_hosts)} can be reached from other machines, and no token protects the cluster",
            hint="make one with 'openssl rand -hex 32 > token' and add 'token_file: token', or use 127.0.0.1",
        )
    read_token(cluster.token_file)
    data = options.data.expanduser().absolute() if options.data else home() / "data"
    hosts = {COORDINATOR: cluster.coordinator.host} | {node.name: node.host for node in cluster.nodes}
    ours = [name for name, host in hosts.items() if is_here(host, options.host)]
    if not ours:
        raise ClusterError(
            f"nothing of {options.config} runs on this machine (its hosts: {', '.join(cluster.hosts)})",
            hint="say which of them this is: --host NAME",
        )
    here = {name: typed for name, typed in part_arguments(cluster, data).items() if name in ours}
    elsewhere = {
        name if name == COORDINATOR else f"{name} on {hosts[name]}": shlex.join(["borealis", *typed])
        for name, typed in part_arguments(cluster, ELSEWHERE).items()
        if name not in ours
    }
    return Plan(cluster, data, here, elsewhere)


def checked(made: Plan) -> Plan:
    """Checked before anything starts, not by each part on its own: certificates can be read, a port is free."""
    if (tls := made.cluster.tls) is not None:
        from borealis.wire.auth import Security  # here: it takes a moment, and most clusters have no certificates

        security = Security(cert=tls.cert, key=tls.key, ca=tls.ca)
        security.certificates()
        security.roots()
    where = made.cluster.coordinator
    if COORDINATOR in made.here:
        with suppress(OSError), socket.create_connection((where.host, where.port), timeout=1.0):
            raise ClusterError(
                f"port {where.port} of {where.host} is taken, perhaps by a coordinator of another home",
                hint="choose another with --port, or 0 for any that is free",
            )
    return made


def wanted(record: ClusterRecord, options: UpOptions) -> dict[str, list[str]]:
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
    token_file = Path(record.token_file) if record.token_file else None
    cluster = _numbered(options, coordinator=CoordinatorPart(host=host, port=port), token_file=token_file)
    names = [node.name for node in cluster.nodes]
    if record.ca is not None and not known.keys() >= set(names):
        raise ClusterError(
            "nodes of a cluster with certificates are not started by their number", hint="add them to its --config"
        )
    made = part_arguments(cluster, Path(record.data)) | known
    return {name: made[name] for name in (COORDINATOR, *names) if name != COORDINATOR or name in known}


def _check_same(record: ClusterRecord, what: str, given: str, has: str) -> None:
    if given != has:
        raise ClusterError(
            f"a cluster already runs in {home()}, coordinator at {record.coordinator}, and "
            f"its {what} is {has}, not {given}",
            hint=f"leave out {what} to start what is missing of it, 'borealis down' stops it; another BOREALIS_HOME "
            "may have another cluster",
        )


def _cluster(options: UpOptions) -> ClusterFile:
    if options.config is not None:
        if options.nodes is not None or options.port is not None or options.cores_per_node is not None:
            raise ClusterError("--config says it all", hint="leave out --nodes, --port and --cores-per-node")
        cluster = load_cluster_file(options.config)
    else:
        port = free_ports(1)[0] if options.port == 0 else options.port
        cluster = _numbered(options, coordinator=CoordinatorPart(port=PORT if port is None else port))
    if options.token_file is not None:
        cluster = cluster.model_copy(update={"token_file": options.token_file.expanduser().absolute()})
    if options.storage is not None:
        cluster = cluster.model_copy(update={"storage": options.storage})
    if cluster.storage is not None:
        cluster = cluster.model_copy(update={"storage": placed(cluster.storage)})
    if options.pool is not None:
        cluster = cluster.model_copy(update={"pool": options.pool})
    if options.allow_faults:
        cluster = cluster.model_copy(update={"allow_faults": True})
    return cluster


def _numbered(options: UpOptions, **rest: Any) -> ClusterFile:
    nodes = [NodePart(name=f"node{i + 1}", cores=options.cores_per_node or 1) for i in range(options.nodes or 1)]
    return ClusterFile(nodes=nodes, **rest)


def part_arguments(cluster: ClusterFile, data: Path) -> dict[str, list[str]]:
    """`borealis coordinator ...` and `borealis node ...`, whose own places for data may be left out."""
    at, tls = cluster.coordinator, cluster.tls
    guard: dict[str, Any] = {"token_file": cluster.token_file}
    guard |= {"tls_cert": tls.cert, "tls_key": tls.key, "tls_ca": tls.ca} if tls else {}
    catalog = str(at.catalog or data / "catalog.sqlite")
    made = {
        COORDINATOR: arguments(
            "coordinator", host=at.host, port=at.port, catalog=catalog, storage=cluster.storage, **guard
        )
    }
    for node in cluster.nodes:
        made[node.name] = arguments(
            "node",
            name=node.name,
            coordinator=f"{at.host}:{at.port}",
            host=node.host,
            port=node.port,
            announce=node.announce,
            master=node.master or None,
            cores=node.cores,
            data=str(node.data or data / node.name),
            storage=cluster.storage,
            pool=cluster.pool,
            allow_faults=cluster.allow_faults or None,
            **guard,
        )
    return made
