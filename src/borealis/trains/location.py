"""Where a worker finds a train's files: on this machine, or with a node that is elsewhere.

A *location* is a path on this machine or `depot://host:port/token/path`, a file that a node lends (`spark/depot.py`).
`read` takes both: the one is mapped into memory, the other fetched. Only trains that leave the machine ever name the
second kind, so a worker beside its node opens files and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from borealis.errors import MachineError, WireError
from borealis.state.log import mapped
from borealis.trains import message
from borealis.trains.header import Lane, TrainHeader
from borealis.version import __version__

PIECE_BYTES = 4 << 20  # of a file or a message, in one message of Flight's
PIECES = pa.schema([pa.field("piece", pa.binary(), nullable=False)])
SCHEMES = {"depot": "grpc+tcp", "depots": "grpc+tls"}
FETCH = flight.FlightCallOptions(timeout=600.0)  # a state of gigabytes; who hangs longer is given up by Spark
ANSWER = flight.FlightCallOptions(timeout=5.0)  # yes or no
TURN = flight.FlightCallOptions(timeout=30.0)  # a node answers within seconds, unless it has to wait for others

_clients: dict[str, flight.FlightClient] = {}
_authorities: dict[str, bytes] = {}  # by address: whose certificates to trust


def read(location: str | pa.Buffer) -> pa.Buffer:
    """The bytes at a location, all of them; those that came along are there already."""
    if isinstance(location, pa.Buffer):
        return location
    return _fetched(DepotAddress.parse(location)) if is_remote(location) else mapped(location)


def is_there(location: str) -> bool:
    """Whether a unit still has its files: no longer, once its run is over or its node is gone."""
    if not is_remote(location):
        return Path(location).exists()
    try:
        return ask("there", location) == [b"yes"]
    except flight.FlightError:
        return False


def ask(what: str, location: str, **more: Any) -> list[bytes]:
    """What a depot answers to a small question about one of its files."""
    at = DepotAddress.parse(location)
    answers = _client(at).do_action(flight.Action(what, at.ticket(**more)), ANSWER)
    return [bytes(answer.body) for answer in answers]


def exchange(location: str, head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[pa.Buffer]]:
    """What a node answers to a message of any size. A node that takes its time is asked the same again."""
    at, whole = DepotAddress.parse(location), message.encode(head, buffers)
    while True:
        try:
            writer, reader = _client(at).do_exchange(flight.FlightDescriptor.for_command(at.ticket()), TURN)
            with writer:
                put_message(writer, whole)
                writer.done_writing()
                return message.decode(got_message(reader))
        except flight.FlightTimedOutError:
            continue
        except flight.FlightError as error:
            where = at.where.partition("://")[2]
            raise WireError(f"the node of this unit at {where} does not answer: {one_line(error)}") from error


def put_message(writer: Any, whole: bytes) -> None:
    """Send a message in pieces."""
    writer.begin(PIECES)
    for piece in pieces_of(pa.py_buffer(whole)):
        writer.write_batch(piece)


def got_message(reader: Any) -> bytes:
    return b"".join(map(bytes, _pieces(reader)))


def pieces_of(data: pa.Buffer) -> Iterator[pa.RecordBatch]:
    """Bytes in pieces, which are views of them."""
    for at in range(0, data.size, PIECE_BYTES):
        size = min(PIECE_BYTES, data.size - at)
        ends = pa.array([0, size], pa.int32()).buffers()[1]
        piece = pa.Array.from_buffers(pa.binary(), 1, [None, ends, data.slice(at, size)])
        yield pa.record_batch([piece], schema=PIECES)


def _pieces(reader: Any) -> Iterator[pa.Buffer]:
    return (chunk.data.column(0)[0].as_buffer() for chunk in reader)


def joined(size: int, pieces: Iterable[pa.Buffer]) -> pa.Buffer:
    """Pieces of so many bytes as one piece of memory, aligned as Arrow likes it."""
    whole = pa.allocate_buffer(size)
    with pa.FixedSizeBufferWriter(whole) as file:
        for piece in pieces:
            file.write(piece)
        if file.tell() != size:
            raise WireError(f"{file.tell()} bytes came, not {size}")
    return whole


def is_remote(location: str) -> bool:
    return location.startswith(("depot://", "depots://"))


def check_version(train: TrainHeader | Lane) -> None:
    """Before a train from elsewhere is run: be of its node's version, and know whose certificate the node shows."""
    theirs = train.get("version", __version__)
    if theirs != __version__:
        raise MachineError(
            f"this executor has Borealis {__version__}, its node {theirs}",
            hint="install the same version for the Python of every executor",
        )
    if authority := train.get("authority"):
        where = DepotAddress.parse(str(train.get("lane") or train.get("program"))).where
        if _authorities.get(where) != authority.encode():
            _authorities[where] = authority.encode()
            _hang_up(where)


@dataclass(frozen=True)
class DepotAddress:
    """A location on another machine, taken apart. The token is for the node alone: no message names it."""

    where: str  # scheme://host:port, as Flight has it
    token: str
    path: str

    @staticmethod
    def parse(location: str) -> DepotAddress:
        parts = urlsplit(location)
        _, token, path = parts.path.split("/", 2)
        return DepotAddress(f"{SCHEMES[parts.scheme]}://{parts.netloc}", token, unquote(path))

    def ticket(self, **more: Any) -> bytes:
        return json.dumps({"v": 1, "token": self.token, "path": self.path} | more).encode()


def _fetched(at: DepotAddress) -> pa.Buffer:
    try:
        try:
            return _get(at)
        except flight.FlightUnavailableError:  # a line that lay idle may be cut: once more, over a new one
            _hang_up(at.where)
            return _get(at)
    except flight.FlightUnavailableError as error:
        raise WireError(
            f"cannot reach the node of this unit at {at.where.partition('://')[2]} to read {at.path}",
            hint="executors need a way to the node's driver host and depot port: see docs/clusters.md",
        ) from error
    except flight.FlightError as error:
        raise WireError(f"cannot read {at.path} from the node of this unit: {one_line(error)}") from error


def _get(at: DepotAddress) -> pa.Buffer:
    reader = _client(at).do_get(flight.Ticket(at.ticket()), FETCH)
    return joined(int(reader.schema.metadata[b"size"]), _pieces(reader))


def _client(at: DepotAddress) -> flight.FlightClient:
    if at.where not in _clients:
        trust = {"tls_root_certs": _authorities[at.where]} if at.where in _authorities else {}
        direct = [("grpc.enable_http_proxy", 0)]  # executors' machines may have one, for the world outside
        _clients[at.where] = flight.FlightClient(at.where, generic_options=direct, **trust)
    return _clients[at.where]


def _hang_up(where: str) -> None:
    if (client := _clients.pop(where, None)) is not None:
        client.close()


def one_line(error: BaseException) -> str:
    """What Flight says, without the machinery's own words behind it."""
    return " ".join(str(error).split(". Detail:")[0].split(". gRPC client debug context")[0].split())
