"""`borealis node`: one node, in the foreground."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from borealis.cli.reaching import pairs
from borealis.emit.whereabouts import HOST, find, make_folder, read_token
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
    from borealis.node.process import NodeOptions, serve

    code = serve(
        NodeOptions(
            coordinator=to.url if to.tls else to.address,
            name=given.name,
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


def _check(given: NodeArguments) -> None:
    """What can be told without starting a JVM for it."""
    if given.master is not None and not MASTER.fullmatch(given.master):
        raise ClusterError(
            f"--master '{given.master}' is no master of Spark",
            hint="write local[2], spark://HOST:7077, yarn or k8s://HOST:PORT",
        )
    if given.name and not is_name(given.name):
        raise ClusterError(f"a node cannot be called '{given.name}'", hint=NAME_RULE)
