"""`borealis node`: one node, in the foreground."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from borealis.cli import processes
from borealis.cli.reaching import pairs
from borealis.client.cluster_config import (
    HOST,
    Part,
    Whereabouts,
    changing_record,
    find,
    make_folder,
    read_record,
    read_token,
    split,
    with_part,
    write_record,
)
from borealis.errors import ClusterError
from borealis.hosts import is_loopback
from borealis.wire.auth import Security
from borealis.wire.messages import NAME_RULE, is_name


@dataclass(frozen=True)
class Protection:
    """Token and certificates, as the command line has them."""

    token_file: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None

    def security(self, token: str | None = None) -> Security:
        """Read from their files."""
        if (self.cert is None) != (self.key is None):
            raise ClusterError("--tls-cert and --tls-key go together", hint="give both")
        given = read_token(self.token_file) if self.token_file else token
        return Security(token=given, cert=self.cert, key=self.key, ca=self.ca or self.cert)

    def arguments(self) -> list[str]:
        """The same for another command line, wherever that is typed."""
        named = {"--token-file": self.token_file, "--tls-cert": self.cert, "--tls-key": self.key, "--tls-ca": self.ca}
        return [part for name, path in named.items() if path is not None for part in (name, str(path.absolute()))]


@dataclass(frozen=True)
class NodeArguments:
    """The rest, as the command line has it."""

    name: str | None = None
    coordinator: str | None = None
    master: str | None = None
    host: str = HOST
    port: int = 0
    http_port: int = 0
    data: Path | None = None
    cores: int | None = None
    settings: Sequence[str] = ()


MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")


def node_command(given: NodeArguments, protection: Protection) -> None:
    """Run until it is told to stop."""
    _check(given)
    to = find(given.coordinator, read_token(protection.token_file) if protection.token_file else None, protection.ca)
    if is_loopback(given.host) and not is_loopback(to.host):
        raise ClusterError(
            f"the coordinator is at {to.host}, and from there nobody reaches a node at {given.host}",
            hint="give the address at which others reach this machine: --host NAME",
        )
    security = protection.security(to.token)
    settings = pairs("--conf", given.settings, "spark.executor.memory=2g")
    if given.master and given.cores and given.master.startswith("local"):
        raise ClusterError("--master local[...] says how many cores already", hint="leave out --cores, or --master")
    if given.data is not None:
        make_folder(given.data, "the node's data", "give a folder of yours with --data")
    name = given.name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
    join(to.host, to.port, processes.this_one(name, arguments_of(given, protection, name, to)))
    from borealis.node.process import NodeOptions, serve

    code = serve(
        NodeOptions(
            coordinator=to.url if to.tls else to.address,
            name=name,
            master=given.master,
            host=given.host,
            port=given.port,
            http_port=given.http_port,
            data=given.data,
            cores=given.cores,
            security=security,
            settings=settings,
        )
    )
    raise typer.Exit(code)


def arguments_of(given: NodeArguments, protection: Protection, name: str, to: Whereabouts) -> list[str]:
    """`borealis node ...` that starts it again, wherever that is typed."""
    made = ["node", "--name", name, "--coordinator", to.url if to.tls else to.address, "--host", given.host]
    made += ["--port", str(given.port), "--http-port", str(given.http_port)]
    made += ["--master", given.master] if given.master else []
    made += ["--cores", str(given.cores)] if given.cores else []
    made += ["--data", str(given.data.absolute())] if given.data else []
    made += [part for setting in given.settings for part in ("--conf", setting)]
    return [*made, *protection.arguments()]


def join(host: str, port: int, part: Part) -> None:
    """Where this home's cluster is the one this process belongs to, have `down` and `restart` know of it.

    What `up` and `restart` start they note themselves; and a living part keeps its name.
    """
    with changing_record():
        record = read_record()
        if record is None or split(record.coordinator)[:2] != (host, port):
            return
        known = [one for one in record.parts if one.pid == part.pid or (one.name == part.name and processes.alive(one))]
        if not known:
            write_record(with_part(record, part))


def _check(given: NodeArguments) -> None:
    """What can be told without starting a JVM for it."""
    if given.master is not None and not MASTER.fullmatch(given.master):
        raise ClusterError(
            f"--master '{given.master}' is no master of Spark",
            hint="write local[2], spark://HOST:7077, yarn or k8s://HOST:PORT",
        )
    if given.name and not is_name(given.name):
        raise ClusterError(f"a node cannot be called '{given.name}'", hint=NAME_RULE)
