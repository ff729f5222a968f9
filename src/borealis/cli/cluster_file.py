"""`cluster.yaml`: which processes a cluster has and on which machines, checked before anything starts.

    coordinator: {host: 10.0.0.1, port: 7470, catalog: catalog.sqlite}
    token_file: token
    tls: {cert: node.pem, key: node.key, ca: ca.pem}
    nodes:
      - {name: node1, host: 10.0.0.1, master: "local[2]", data: /var/lib/borealis/node1}
      - {name: node2, host: 10.0.0.2, port: 7481, cores: 2}

Paths are taken from the folder of the file. Everything but the nodes may be left out.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from borealis.client.cluster_config import HOST, PORT, PORT_MOST, read_text
from borealis.diagram.notation import PlainLoader
from borealis.errors import ClusterError, did_you_mean
from borealis.hosts import is_flight, is_loopback
from borealis.wire.messages import NAME_RULE, Name

NODES = "write 'nodes: [{name: node1}]': there is one at least, and each has a name"
EVERYWHERE = ("0.0.0.0", "::", "")


def _anchored(path: Path, info: ValidationInfo) -> Path:
    return path if info.context is None else info.context / path.expanduser()


FilePath = Annotated[Path, AfterValidator(_anchored)]


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CoordinatorPart(_Checked):
    host: str = HOST
    port: int = Field(default=PORT, ge=1, le=PORT_MOST)
    catalog: FilePath | None = None  # None: with the data of `up`


class NodePart(_Checked):
    name: Name
    host: str = HOST
    port: int = Field(default=0, ge=0, le=PORT_MOST)  # 0: any that is free
    announce: str | None = None  # host:port at which others reach it; None: where it listens
    master: str | None = None
    cores: int | None = Field(default=None, ge=1, le=1024)
    data: FilePath | None = None

    @property
    def reached(self) -> str:
        """The host at which others reach it."""
        return urlsplit(f"//{self.announce}").hostname or "" if self.announce else self.host


class TlsPart(_Checked):
    """Certificates, as PEM files."""

    cert: FilePath
    key: FilePath
    ca: FilePath | None = None


class ClusterFile(_Checked):
    coordinator: CoordinatorPart = CoordinatorPart()
    token_file: FilePath | None = None
    tls: TlsPart | None = None
    nodes: list[NodePart] = Field(min_length=1)
    storage: str | None = None  # a URI: where units and catalog are kept
    pool: int | None = Field(default=None, ge=0, le=64)  # started queries each node keeps for units it may take over
    allow_faults: bool = False  # `borealis cut` may cut its nodes off from streams

    @property
    def hosts(self) -> list[str]:
        """That are listened at."""
        return list(dict.fromkeys([self.coordinator.host, *(node.host for node in self.nodes)]))

    @property
    def reached(self) -> list[str]:
        """Those that other parts are told."""
        return list(dict.fromkeys([self.coordinator.host, *(node.reached for node in self.nodes)]))


def load_cluster_file(path: Path) -> ClusterFile:
    """The file, checked: an error names the place of what is wrong."""
    try:
        raw = yaml.load(read_text(path, f"'{path}'", "check the path"), Loader=PlainLoader)
    except yaml.YAMLError as error:
        raise ClusterError(f"{path} is no YAML: {' '.join(str(error).split())}", hint="mend it there") from None
    if not isinstance(raw, dict):
        raise ClusterError(f"{path} describes no cluster", hint="it needs at least 'nodes:' and a list under it")
    try:
        made = ClusterFile.model_validate(raw, context=path.absolute().parent)
        mistake = next(_contradictions(made), None)
    except ValidationError as error:
        mistake = _mistake(error)
    if mistake is not None:
        raise ClusterError(f"{path}: {mistake[0]}", hint=mistake[1])
    return made


def is_here(host: str, we_are: str | None = None) -> bool:
    """Whether a host is this machine: loopback, the name the user gave us, or an address that is ours."""
    if is_loopback(host):
        return True
    if we_are is not None:
        return host == we_are
    if host in (socket.gethostname(), socket.getfqdn()):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_binds(family, place) for family, _, _, _, place in found)


def _binds(family: int, place: Any) -> bool:
    """Only an address of this machine can be bound."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind(place)
    except OSError:
        return False
    return True


def _contradictions(made: ClusterFile) -> Iterator[tuple[str, str]]:
    """What is wrong with the whole, each with a hint."""
    names = [node.name for node in made.nodes]
    for name in names:
        if names.count(name) > 1:
            yield f"two nodes are called '{name}'", "give each its own name"
        if name == "coordinator":
            yield "a node cannot be called 'coordinator'", "call it node1"
    for host in made.hosts:
        if host in EVERYWHERE:
            yield f"'{host}' is an address that cannot be called", "write one that the other machines can reach"
    for node in made.nodes:
        if node.announce is not None and not is_flight(f"grpc://{node.announce}"):
            yield f"'{node.announce}', which '{node.name}' shall announce, is no address", "write HOST:PORT"
    inner = [host for host in made.reached if is_loopback(host)]
    if inner and len(inner) < len(made.reached):
        what = f"'{inner[0]}' can be reached from its own machine only, and other hosts are named, too"
        yield what, "write addresses that all machines of the cluster can reach"
    places = [(n.host, n.port) for n in made.nodes if n.port] + [(made.coordinator.host, made.coordinator.port)]
    for place in places:
        if places.count(place) > 1:
            yield f"{place[0]}:{place[1]} is given twice", "give each its own port"


def _mistake(error: ValidationError) -> tuple[str, str]:
    """What is wrong with the first part that is, with a hint."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    got = f"(got {str(first.get('input'))[:60]})"
    if first["type"] == "extra_forbidden":
        known = _keys(first["loc"][:-1])
        hint = did_you_mean(str(first["loc"][-1]), known) or f"keys there are {', '.join(known)}"
        return f"unknown key '{where}'", hint
    if first["type"] == "missing":
        return f"'{where}' is missing", "a certificate and its key go together" if first["loc"][0] == "tls" else NODES
    if first["type"] in ("list_type", "too_short"):
        return f"'{where}' is no list of nodes {got}", NODES
    if first["type"] == "model_type":
        return f"'{where}' has no keys {got}", f"keys there are {', '.join(_keys(first['loc']))}"
    if first["type"] == "string_pattern_mismatch":
        return f"'{where}' cannot be a name {got}", NAME_RULE
    return f"'{where}': {first['msg']} {got}", "mend it there"


def _keys(place: Iterable[Any]) -> list[str]:
    top = next(iter(place), None)
    model: dict[Any, type[BaseModel]] = {"coordinator": CoordinatorPart, "tls": TlsPart, "nodes": NodePart}
    return list(model.get(top, ClusterFile).model_fields)
