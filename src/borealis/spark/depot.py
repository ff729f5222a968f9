"""A unit's files for executors on other machines: the node lends them, to read, to workers that know the unit's token.

The other side is `trains/location.py`. One depot serves all units of a process, over Arrow Flight, at the address where
Spark's driver can be reached; a unit's token ends with its run.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.flight as flight
from pyspark.sql import SparkSession

from borealis.errors import MachineError
from borealis.spark.session import is_local
from borealis.state.log import mapped
from borealis.trains import message
from borealis.trains.header import Lane, TrainHeader
from borealis.trains.location import PIECES, got_message, one_line, pieces_of, put_message
from borealis.trains.notices import NAME, put
from borealis.version import __version__
from borealis.wire.auth import OPEN, Security

TICKET_BYTES_MOST = 4096
TOKEN_BYTES = 24
CLOSE_S = 2.0  # for answers that are under way when the last unit ends
T = TypeVar("T", Lane, TrainHeader)
SETTING = "spark.borealis.depot."  # port, cert, key, ca


Turn = Callable[[dict[str, Any], list[Any]], tuple[dict[str, Any], list[Any]]]


class Depot(flight.FlightServerBase):
    """Answers "give me this file" for the units of this process. Nothing can be listed, and nothing written but what
    keeps a train waiting.
    """

    def __init__(self, host: str, port: int = 0, bind: str | None = None, security: Security = OPEN) -> None:
        self._roots: dict[str, Path] = {}
        self._lanes: dict[str, Turn] = {}  # by token
        scheme = "grpc+tls" if security.tls else "grpc+tcp"
        try:
            where = f"{scheme}://{_netloc(bind or host, port)}"
            super().__init__(where, tls_certificates=security.certificates() or None)
        except (OSError, pa.ArrowException) as error:
            raise MachineError(
                f"cannot lend files to executors at {_netloc(bind or host, port)}: {one_line(error)}",
                hint=f"is {bind or host} an address of this machine, and its port free ({SETTING}port)?",
            ) from error
        self.prefix = f"{'depots' if security.tls else 'depot'}://{_netloc(host, self.port)}"
        self.authority = (security.roots() or b"").decode()  # whose certificates executors must trust

    def lend(self, root: Path) -> Loan:
        """Let those who know the loan's token read what lies under a directory."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._roots[token] = root.resolve()
        return Loan(self, root, token)

    def take_back(self, token: str) -> int:
        """Lend a directory no more; how many are still lent."""
        self._roots.pop(token, None)
        self._lanes.pop(token, None)
        return len(self._roots)

    # -- what Flight calls

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        root, path = self._asked(ticket.ticket)
        file = (root / path).resolve()
        if not file.is_relative_to(root) or not file.is_file():
            raise flight.FlightServerError(f"there is no file {path[:200]!r}")
        data = mapped(str(file))
        pieces = pa.Table.from_batches(list(pieces_of(data)), PIECES)
        return flight.RecordBatchStream(pieces.replace_schema_metadata({"size": str(data.size)}))

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        if action.type not in ("there", "tell"):
            raise flight.FlightServerError(f"a depot does not know {action.type[:50]!r}")
        root, path = self._asked(bytes(action.body))
        if action.type == "tell":
            text = _opened(bytes(action.body)).get("text")
            if not NAME.fullmatch(path) or not isinstance(text, str | None):
                raise flight.FlightServerError("this is not a notice of version 1")
            if root.is_dir():  # else the run is over
                put(root / path, text)
        return [b"yes"]

    def do_exchange(self, context: flight.ServerCallContext, descriptor: Any, reader: Any, writer: Any) -> None:
        self._asked(descriptor.command)
        turn = self._lanes.get(_opened(descriptor.command)["token"])
        if turn is None:
            raise flight.FlightServerError("this unit has no lanes")
        put_message(writer, message.encode(*turn(*message.decode(got_message(reader)))))

    def _asked(self, ticket: bytes) -> tuple[Path, str]:
        match _opened(ticket):
            case {"v": 1, "token": str(token), "path": str(path)} if "\0" not in path:
                for known, root in list(self._roots.items()):
                    if hmac.compare_digest(known.encode(), token.encode()):
                        return root, path
                raise flight.FlightUnauthenticatedError("no unit that runs here has this token")
        raise flight.FlightServerError("this is not a ticket of version 1")


def _opened(ticket: bytes) -> Any:
    """What a ticket says; None if it is none."""
    try:
        return json.loads(ticket) if len(ticket) <= TICKET_BYTES_MOST else None
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Loan:
    """One unit's directory, lent. `close` when its run is over."""

    depot: Depot
    root: Path
    token: str

    def location(self, path: str) -> str:
        """Where executors find a file or a directory under the root."""
        return f"{self.depot.prefix}/{self.token}/{quote(path)}"

    def open_lanes(self, turn: Turn) -> Lane:
        """Let executors take turns; says what they must know to do so."""
        self.depot._lanes[self.token] = turn
        where: Lane = {"lane": f"{self.root}/lane"}
        return self._outward(where)

    def for_remote(self, train: TrainHeader) -> TrainHeader:
        """A train's header for executors elsewhere: its files are locations, and its results come through Spark."""
        header = self._outward(train)
        header["results"] = None
        return header

    def _outward(self, what: T) -> T:
        header: T = self._moved(what)
        header["version"] = __version__
        if self.depot.authority:
            header["authority"] = self.depot.authority
        return header

    def _moved(self, value: Any) -> Any:
        match value:
            case str() if value.startswith(f"{self.root}/"):
                return self.location(value.removeprefix(f"{self.root}/"))
            case dict():
                return {k: self._moved(v) for k, v in value.items()}
            case [str() | dict(), *_]:  # times and causes are long lists of numbers
                return [self._moved(v) for v in value]
        return value

    def close(self) -> None:
        with _opening:
            if self.depot.take_back(self.token):
                return
            for key in [k for k, d in _open.items() if d is self.depot]:
                if key[1]:  # a port of one's own is kept for the next unit
                    return
                del _open[key]
        # it waits for answers under way, and an executor that hangs may never take its own
        closing = threading.Thread(target=self.depot.shutdown, name="depot-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


_open: dict[tuple[str, int], Depot] = {}  # by address and port asked for: one for all units of this process
_opening = threading.Lock()


def lend(spark: SparkSession, root: Path) -> Loan | None:
    """Lend a unit's directory to the executors of a session; None where they are on this machine anyway."""
    if is_local(spark.sparkContext.master):
        return None
    host = spark.conf.get("spark.driver.host")
    bind = spark.conf.get("spark.driver.bindAddress", host)
    text = spark.conf.get(f"{SETTING}port", "0")
    if not text.isdecimal() or (port := int(text)) > 65535:
        raise MachineError(f"{SETTING}port={text} is no port", hint="a number up to 65535; 0: a free one")
    with _opening:
        if (bind, port) not in _open:
            _open[bind, port] = Depot(host, port, bind, _security(spark))
        return _open[bind, port].lend(root)


def _security(spark: SparkSession) -> Security:
    paths = [spark.conf.get(f"{SETTING}{what}", None) for what in ("cert", "key", "ca")]
    cert, key, ca = (None if path is None else Path(path) for path in paths)
    return Security(cert=cert, key=key, ca=(ca or cert) if cert else None)


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
