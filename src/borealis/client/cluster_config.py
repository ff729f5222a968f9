"""Where the coordinator is: as given, in the environment, in the home's `cluster.json`, or at the usual place."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from borealis.errors import BorealisError, ClusterError, MachineError
from borealis.hosts import LOOPBACK, is_loopback
from borealis.message import first_mistake

if TYPE_CHECKING:
    from borealis.wire.auth import Security

HOME, COORDINATOR, TOKEN, CA = "BOREALIS_HOME", "BOREALIS_COORDINATOR", "BOREALIS_TOKEN", "BOREALIS_CA"
HOST, PORT = LOOPBACK, 7470
PORT_MOST = 65_535


class ClusterProcess(BaseModel):
    """One process of a cluster: started by `up` or `restart`, or by hand from the same home."""

    model_config = ConfigDict(extra="forbid")

    name: str
    pid: int = Field(gt=1)
    started: str  # tells it from another process that gets the same pid later
    log: str  # empty: it runs in a terminal, and what it says is there
    arguments: list[str] = []  # of `borealis`


class ClusterRecord(BaseModel):
    """`cluster.json`: what runs on this machine, so that every command finds it and `down` can stop it."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    coordinator: str  # host:port
    token_file: str | None = None
    ca: str | None = None  # set when the coordinator speaks TLS
    data: str
    keep_data: bool = False  # the user named the place, so what is in it stays
    parts: list[ClusterProcess] = []


@dataclass(frozen=True)
class Whereabouts:
    host: str
    port: int
    token: str | None = None
    ca: str | None = None
    tls: bool = False

    @classmethod
    def of(cls, address: str, security: Security | None) -> Whereabouts:
        """From what a node is started with."""
        host, port, tls = split(address)
        if security is None:
            return cls(host, port, tls=tls)
        return cls(host, port, security.token, str(security.ca) if security.ca else None, tls or security.tls)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.address}"


def home() -> Path:
    """The folder of this user's cluster: its record, logs and data."""
    return Path(os.environ.get(HOME) or Path.home() / ".borealis").expanduser().absolute()


def record_path() -> Path:
    return home() / "cluster.json"


def make_folder(path: Path, what: str, hint: str) -> None:
    """Make a folder, and be sure now that it can be written to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # rights alone do not tell, for a disk may be mounted to read only
            pass
    except OSError as error:
        raise MachineError(f"cannot keep {what} in '{path}': {error.strerror}", hint=hint) from None


def read_text(path: Path, what: str, hint: str) -> str:
    """The text of a file; a MachineError says why there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise MachineError(f"cannot read {what}: {why}", hint=hint) from error


def read_record() -> ClusterRecord | None:
    """The record of the cluster that runs here, or what is left of it; None if there is none."""
    path, hint = record_path(), "mend or remove it" if home().is_dir() else f"set {HOME} to a folder of yours"
    try:
        return ClusterRecord.model_validate_json(read_text(path, str(path), hint))
    except MachineError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except ValidationError as error:
        where, what, _ = first_mistake(error, "the file")
        raise ClusterError(
            f"{path} is no record of a cluster: {where}: {what}",
            hint="if no cluster runs, remove the file; else stop it by the pids in the file",
        ) from None


def write_record(record: ClusterRecord) -> None:
    """Keep the record; a reader sees the old or the new one, never half of one."""
    path = record_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    fresh.write_text(json.dumps(record.model_dump(), indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)


@contextmanager
def changing_record() -> Iterator[None]:
    """No other process changes the record meanwhile; it is read and written within."""
    import fcntl  # here: those who only look for a cluster may be on a system without it

    home().mkdir(parents=True, exist_ok=True)
    with (home() / "cluster.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def register(part: ClusterProcess, joins: Callable[[ClusterRecord], bool] = lambda _: True) -> None:
    """A part was started: it belongs to the cluster of this home, in the place of one of its name that has ended."""
    with changing_record():
        record = read_record()
        if record is not None and joins(record):
            parts = {one.name: one for one in record.parts} | {part.name: part}
            write_record(record.model_copy(update={"parts": list(parts.values())}))


def find(address: str | None = None, token: str | None = None, ca: str | Path | None = None) -> Whereabouts:
    """The coordinator to speak to. A token or certificate of `cluster.json` goes to its own coordinator only."""
    address = address or os.environ.get(COORDINATOR) or None
    record = read_record() if address is None or token is None else None
    if address is None:
        address = record.coordinator if record else f"{HOST}:{PORT}"
    host, port, tls = split(address)
    token = token or os.environ.get(TOKEN) or None
    given_ca = str(ca) if ca else os.environ.get(CA) or None
    if record is not None and split(record.coordinator)[:2] == (host, port):
        token = token or read_token(record.token_file)
        given_ca = given_ca or record.ca
    return Whereabouts(host, port, token, given_ca, tls or given_ca is not None)


def how_to_start(where: Whereabouts) -> str:
    """What to do when no coordinator answers there: it was never started, has died, or is on another machine."""
    try:
        record = read_record()
    except BorealisError:
        record = None  # a command that looks for a cluster complains of it, not one that names its cluster
    if record is not None and split(record.coordinator)[:2] == (where.host, where.port):
        part = next((part for part in record.parts if part.name == "coordinator"), None)
        if part is not None:
            where_log = f", its log is {part.log}" if part.log else ""
            again = f"borealis restart {part.name}"
            return f"it has ended{where_log}; what runs on the nodes goes on. To start it again: {again}"
    if is_loopback(where.host):
        return "start one with 'borealis up'"
    return "check the address; on that machine 'borealis up --config' or 'borealis coordinator' starts one"


def split(address: str) -> tuple[str, int, bool]:
    """Host, port, and whether TLS is asked for.

    >>> split("localhost:7470"), split("https://[::1]:80"), split("somewhere")
    (('localhost', 7470, False), ('::1', 80, True), ('somewhere', 7470, False))
    """
    scheme, separator, rest = address.strip().rpartition("://")
    host, colon, port = rest.rstrip("/").rpartition(":")
    if not colon or rest.rstrip("/").endswith("]"):
        host, port = rest.rstrip("/"), str(PORT)
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host.startswith("[") and host.endswith("]")
    good_host = bare != "" and "/" not in bare and (bracketed or ":" not in bare)
    good_port = port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MOST
    if (separator and scheme not in ("http", "https")) or not good_host or not good_port:
        raise ClusterError(f"'{address}' is no address of a coordinator", hint=f"write HOST:PORT, as {HOST}:{PORT}")
    return bare, int(port), scheme == "https"


def read_token(path: str | Path | None) -> str | None:
    """The token in a file, its one line; None where there is no file."""
    if path is None:
        return None
    token = read_text(Path(path).expanduser(), f"the token file '{path}'", "check the path and its rights").strip()
    if not token or any(c.isspace() or not c.isprintable() for c in token):
        raise ClusterError(
            f"the token file '{path}' holds no token", hint="make one: openssl rand -hex 32 > FILE; chmod 600 FILE"
        )
    return token
