"""`borealis node` and `borealis coordinator`: one process of a cluster, in the foreground."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from borealis.cli.options import (
    AllowFaults,
    Coordinator,
    Host,
    Master,
    PoolSize,
    SecurityOptions,
    StorageUri,
    arguments,
    pairs,
)
from borealis.cli.processes import join
from borealis.client.cluster_config import TOKEN, find, home, make_folder, read_token
from borealis.errors import ClusterError
from borealis.hosts import is_flight, is_loopback

MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")


def node(
    coordinator: Coordinator = None,
    name: Annotated[str | None, Option(help="Its name; from host and process if left out.")] = None,
    master: Master = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="For other nodes and clients; 0: a free one.")] = 0,
    announce: Annotated[
        str | None, Option(metavar="HOST:PORT", help="Where others reach it, if that is not where it listens.")
    ] = None,
    http_port: Annotated[int, Option(min=0, max=65535, help="For metrics; 0: a free one.")] = 0,
    data: Annotated[Path | None, Option(metavar="DIR", help="Where durable inputs keep their logs.")] = None,
    cores: Annotated[int | None, Option(min=1, help="Spark tasks at a time, where no master is given.")] = None,
    conf: Annotated[list[str] | None, Option(metavar="KEY=VALUE", help="A setting for Spark.")] = None,
    storage: StorageUri = None,
    pool: PoolSize = None,
    allow_faults: AllowFaults = False,
    *,
    protection: SecurityOptions,
) -> None:
    from borealis.wire.auth import host_of
    from borealis.wire.messages import NAME_RULE, is_name

    if master is not None and not MASTER.fullmatch(master):
        raise ClusterError(
            f"--master '{master}' is no master of Spark",
            hint="write local[2], spark://HOST:7077, yarn or k8s://HOST:PORT",
        )
    if name and not is_name(name):
        raise ClusterError(f"a node cannot be called '{name}'", hint=NAME_RULE)
    if announce is not None and not is_flight(f"grpc://{announce}"):
        raise ClusterError(f"--announce '{announce}' is no address", hint="write HOST:PORT, as others reach this node")
    to = find(coordinator, read_token(protection.token_file), protection.tls_ca)
    reached = host_of(announce) if announce else host
    if is_loopback(reached) and not is_loopback(to.host):
        raise ClusterError(
            f"the coordinator is at {to.host}, which cannot reach a node at {reached}",
            hint="give the address at which others reach this machine: --host NAME, or --announce NAME:PORT",
        )
    security = protection.security(to.token)
    settings = pairs("--conf", conf, "spark.executor.memory=2g")
    if master and cores and master.startswith("local"):
        raise ClusterError("--master local[...] says how many cores already", hint="leave out --cores, or --master")
    if data is not None:
        make_folder(data, "the node's data", "give a folder of yours with --data")
    name = name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
    at = to.url if to.tls else to.address
    common: dict[str, Any] = {"host": host, "port": port, "announce": announce, "http_port": http_port}
    common |= {"master": master, "cores": cores, "data": data, "pool": pool, "allow_faults": allow_faults or None}
    common |= {"storage": storage}
    join(to.host, to.port, name, arguments("node", name=name, coordinator=at, **common, conf=conf, **vars(protection)))
    from borealis.node.process import NodeOptions, serve

    raise typer.Exit(serve(NodeOptions(coordinator=at, name=name, security=security, settings=settings, **common)))


def coordinator(
    host: Host = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Where it listens.")] = 7470,
    catalog: Annotated[Path | None, Option(metavar="FILE", help="What shall run, in SQLite.")] = None,
    storage: StorageUri = None,
    *,
    protection: SecurityOptions,
) -> None:
    security = protection.security(os.environ.get(TOKEN) or None)
    catalog = catalog or home() / "catalog.sqlite"
    typed = arguments("coordinator", host=host, port=port, catalog=catalog, storage=storage, **vars(protection))
    join(host, port, "coordinator", typed)
    from borealis.coordinator.process import Options, run
    from borealis.gateway.stream_api import gateway

    run(Options(catalog, host, port, security, parts=[gateway], storage=storage))
