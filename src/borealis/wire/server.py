"""The Flight server of a node: serves streams from output queues, takes batches for entry points, passes on orders.

Each call has a thread of its own (gRPC makes them as needed), so a subscription may wait. Nothing is buffered here: a
subscriber that does not read blocks its thread in gRPC's flow control, and the queue decides what that means.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import flight

from borealis.errors import MachineError, StreamError, WireError
from borealis.hosts import is_flight
from borealis.streams.queue import MovedError, OutputQueue, StandbyError
from borealis.streams.section import NOTHING, Section, empty_rows, wire_schema
from borealis.wire.auth import OPEN, Security, TokenCheck, host_of, require_security
from borealis.wire.messages import (
    Ack,
    Acknowledgements,
    BatchHead,
    Done,
    Export,
    Publish,
    Receipt,
    SectionHead,
    StreamFacts,
    Subscribe,
)
from borealis.wire.problems import ReplacedError, arriving, log, refusal

FACTS = b"borealis"  # key of StreamFacts in a subscription's schema
HEARTBEAT_S = 1.0  # an idle subscriber hears something so often
HOLD_S = 1.0  # so long a subscriber waits at a backup for it to take over
TICK_S = 0.25  # so soon a subscription notices that its reader is gone, or the server closing
SECTION_BYTES_MOST = 1 << 20  # of one push: small sections are joined up to it, large ones cut
BATCH_BYTES_MOST = 64 << 20  # of one published batch
MESSAGE_BYTES_MOST = 8 << 20  # of an order
PARCEL_BYTES_MOST = 1 << 30  # of what primaries send to their backups: whole states, at times
PARCELS = ("guard", "mirror")
NAME_BYTES_MOST = 64  # of an order
PIECE_BYTES_MOST = 1 << 20  # of an export
PIECES = pa.schema([pa.field("data", pa.binary(), nullable=False)])
GRACE_S = 2.0  # for calls under way when the server closes
FLUSH_S = 0.5  # for what calls that have ended left to gRPC; publishers that are silent make it wait as long
STUCK_S = 5.0  # after that, and then it is left alone
CUT_S = 0.05  # between two looks whether somebody is connected still
GIVE_BACK_S = 0.5  # after a message was refused for its size, when nothing holds it any more


class Entry(Protocol):
    """An entry point, as the wire sees it."""

    schema: pa.Schema

    def take(self, publisher: str, head: BatchHead, batch: pa.RecordBatch) -> Receipt:
        """Take a batch over; waits while there is no room. A number it has already is harmless."""

    def known(self, publisher: str) -> Receipt:
        """What it has of a publisher."""


class Host(Protocol):
    """Whoever has the streams that a Flight server serves."""

    def queue(self, stream: str) -> OutputQueue:
        """The queue of a stream; StreamError if there is none."""

    def entry(self, stream: str) -> Entry:
        """The entry point of a stream; StreamError if it is not here."""

    def act(self, action: str, body: bytes) -> bytes:
        """Carry out an order."""

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        """Bytes for another node."""

    def deposed(self, stream: str, incarnation: int) -> None:
        """Somebody has read this stream from a higher incarnation than is here."""


class WireServer:
    """Serves a host at an address. Close the host's queues first: an entry point that waits for room is not woken here.

    With port 0 the system chooses one; `address` is known after `start`.
    """

    def __init__(self, host: Host, location: str = "grpc://127.0.0.1:0", security: Security | None = None) -> None:
        require_security([location], security)
        self._host, self._location, self._security = host, location, security or OPEN
        self._flight: _Flight | None = None

    def start(self) -> WireServer:
        """Open the address; calls are answered from now on."""
        if not is_flight(self._location):
            raise WireError(f"cannot serve at '{self._location}'", hint="write grpc://host:port")
        scheme, _, rest = self._location.partition("://")
        if scheme == "grpc+tls" and not self._security.tls:
            raise WireError(f"{self._location} needs a certificate and its key", hint="or write grpc://")
        place = f"grpc+tls://{rest}" if self._security.tls else f"grpc://{rest}"
        middleware = {"token": TokenCheck(self._security.token)} if self._security.token else {}
        calls = _Calls()
        try:
            self._flight = _Flight(
                self._host,
                calls,
                place,
                tls_certificates=self._security.certificates() or None,
                middleware=middleware | {"calls": _Door(calls)},
            )
        except (pa.ArrowException, OSError) as error:
            hint = "is the port taken, the host name one of this machine, the certificate one with its key?"
            raise MachineError(f"cannot serve at {place} ({error})", hint=hint) from None
        return self

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._running().port)

    @property
    def address(self) -> str:
        """Where others find it, if the host is one they can see."""
        host = host_of(self._location)
        scheme = "grpc+tls" if self._security.tls else "grpc"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    def close(self) -> None:
        """End all calls: those that can end are given a moment, then connections are cut. May be called twice."""
        if self._flight is None:
            return
        server, self._flight = self._flight, None
        busy = server.calls.close(GRACE_S)
        if busy:
            log.info("closing with %d calls under way", busy)
        ending = self._shut(server)
        ending.join(0.0 if busy else FLUSH_S)
        until = time.monotonic() + STUCK_S
        while ending.is_alive() and time.monotonic() < until:
            _cut_connections(server.port)
            ending.join(CUT_S)
        if ending.is_alive():
            log.warning("the Flight server does not end: a call is still inside the node")

    def abort(self) -> None:
        """End as if the process were killed: then nobody is connected any more, nor can be, and nobody hears why."""
        if self._flight is None:
            return
        server, self._flight = self._flight, None
        port = server.port
        self._shut(server)
        while _is_open(host_of(self._location), port):  # who hurries comes back before the door is shut
            _cut_connections(port)
        _cut_connections(port)

    def _shut(self, server: _Flight) -> threading.Thread:
        ending = threading.Thread(target=server.shutdown, name="wire-close", daemon=True)
        ending.start()
        return ending

    def _running(self) -> _Flight:
        if self._flight is None:
            raise WireError("this server does not run", hint="call start() first")
        return self._flight

    def __enter__(self) -> WireServer:
        return self if self._flight else self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Calls:
    """The calls under way that the server itself can end, and whether it is time."""

    def __init__(self) -> None:
        self.closing = False
        self._busy = 0
        self._changed = threading.Condition()

    def enter(self) -> None:
        """One more."""
        with self._changed:
            self._busy += 1

    def leave(self) -> None:
        """One less."""
        with self._changed:
            self._busy -= 1
            self._changed.notify_all()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """For as long as it takes."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def check(self) -> None:
        """Raises when it is time to end."""
        if self.closing:
            raise WireError("the node is closing", hint="come back later, or ask the coordinator who serves this now")

    def close(self, seconds: float) -> int:
        """Let nobody in, and wait for those inside; returns how many are left."""
        with self._changed:
            self.closing = True
            self._changed.wait_for(lambda: not self._busy, seconds)
            return self._busy


class _Door(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call in when the server closes."""

    def __init__(self, calls: _Calls) -> None:
        super().__init__()
        self._calls = calls

    def start_call(self, info: Any, headers: Any) -> None:
        """Raises when it is too late."""
        try:
            self._calls.check()
        except WireError as error:
            raise refusal(error, "a call") from None


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's calls, checked and passed on; everything that goes wrong is answered as a Problem."""

    def __init__(self, host: Host, calls: _Calls, *args: Any, **options: Any) -> None:
        self.host, self.calls = host, calls
        self.turns: dict[tuple[str, str], object] = {}  # by stream and named reader: whose subscription counts
        super().__init__(*args, **options)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """A subscription or an export."""
        with _answering("a ticket"):
            if _is_export(ticket.ticket):
                wanted = Export.decode(ticket.ticket)
                return flight.GeneratorStream(PIECES, self._pieces(wanted))
            feed = _Feed(self, context, Subscribe.decode(ticket.ticket))
            return flight.GeneratorStream(feed.schema, feed)

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """A publication: a receipt at once, then one for each batch."""
        doing = "a publication"
        with _answering(doing):
            with arriving(doing):
                publish = Publish.decode(descriptor.command or b"")
            entry = self.host.entry(publish.stream)
            with arriving(doing):
                _check_columns(publish.stream, reader.schema, entry.schema)
            receipt = entry.known(publish.publisher)
            while True:
                with arriving(doing):
                    writer.write(receipt.encode())
                    try:
                        chunk = reader.read_chunk()
                    except StopIteration:
                        return
                    head, batch = _published(publish.stream, chunk, entry.schema)
                self.calls.check()
                with self.calls.busy():
                    receipt = entry.take(publish.publisher, head, batch)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        """An order."""
        with _answering("an action"), self.calls.busy():
            with arriving("an action"):
                name, body = action.type, action.body
            return [self._act(name, body)]

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        """A conversation: orders one after the other, each answered before the next; half the price of actions."""
        doing = "a conversation"
        with _answering(doing):
            while True:
                with arriving(doing):
                    try:
                        name, body = _said(reader.read_chunk())
                    except StopIteration:
                        return
                self.calls.check()
                with self.calls.busy():
                    answer = self._act(name, body)
                with arriving(doing):
                    writer.write_metadata(answer)

    def _act(self, name: str, body: pa.Buffer) -> bytes:
        """What the wire itself knows, or an order for the host."""
        _check_size("an order", body.size, PARCEL_BYTES_MOST if name in PARCELS else MESSAGE_BYTES_MOST)
        if name not in ("ack", "reach"):
            return self.host.act(name, body.to_pybytes())
        if name == "ack":
            self._acknowledge(Acknowledgements.decode(body).acks)
        return Done().encode()

    def _acknowledge(self, acks: Sequence[Ack]) -> None:
        """All of them; raises the first refusal behind the last."""
        refused: StreamError | None = None
        for ack in acks:
            try:
                self.host.queue(ack.stream).ack(ack.reader, ack.level, ack.upto)
            except StreamError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """Those that the wire itself knows; a node knows more."""
        return [
            ("ack", "a reader has tuples, or needs them no more"),
            ("ping", "are you there?"),
            ("reach", "does anything answer?"),
        ]

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> None:
        """Refused."""
        raise _not_served("ListFlights")

    def get_flight_info(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> None:
        """Refused."""
        raise _not_served("GetFlightInfo")

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> None:
        """Refused."""
        raise _not_served("GetSchema")

    def _pieces(self, wanted: Export) -> Iterator[pa.RecordBatch]:
        with _answering(f"export of {wanted.export}"):
            for data in self.host.export(wanted.export, wanted.body.encode()):
                self.calls.check()
                for at in range(0, len(data), PIECE_BYTES_MOST):
                    yield pa.record_batch([pa.array([data[at : at + PIECE_BYTES_MOST]], pa.binary())], schema=PIECES)


class _Feed:
    """One subscription: what the queue has for it, batch after batch, as Flight asks for them.

    The reader is registered when this is made and taken back when it goes, even if Flight never asks. At a backup it
    is made when the backup takes over, or refused after a while: who subscribes hears nothing until then.
    """

    def __init__(self, server: _Flight, context: flight.ServerCallContext, wanted: Subscribe) -> None:
        self._server, self._context, self._wanted = server, context, wanted
        queue = self._queue = server.host.queue(wanted.stream)
        self._check_incarnation()
        if wanted.epoch is not None and wanted.epoch != queue.epoch:
            if queue.standby:
                raise self._on_standby()
            raise queue.of_another_life(wanted.epoch)
        if wanted.reader is not None and wanted.reader.startswith("~"):
            raise StreamError(f"'{wanted.reader}' cannot name a reader", hint="names with ~ are for those without one")
        self._passing = wanted.reader is None
        self._reader = wanted.reader or f"~{uuid.uuid4().hex[:16]}"
        start = queue.next_id if wanted.start == "newest" else None if wanted.start == "oldest" else wanted.start
        self._next = queue.register(self._reader, start)
        self._boundary = wanted.boundary
        self._quiet_ticks = 0
        self._done = False
        self._key = (wanted.stream, self._reader)
        self._turn = server.turns[self._key] = object()  # whoever had this name before ends
        self._entered = True
        server.calls.enter()
        self._nothing = empty_rows(queue.schema)
        self._held_since: float | None = None
        while queue.standby and not self._is_over():
            queue.wait_for_release(TICK_S)
        self._check_incarnation()
        facts = StreamFacts(
            stream=wanted.stream, epoch=queue.epoch, first=self._next, incarnation=self._queue.incarnation
        )
        self.schema = wire_schema(queue.schema).with_metadata({FACTS: facts.encode()})

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> tuple[pa.RecordBatch, bytes]:
        with _answering(f"a subscription to {self._wanted.stream}"):
            if self._passing:
                self._queue.ack(self._reader, 1, self._next)  # gRPC has taken what was pushed before
            while not self._is_over():
                section = self._queue.read(self._next, self._boundary, TICK_S, SECTION_BYTES_MOST)
                if section is None:
                    self._quiet_ticks += 1
                    if self._quiet_ticks * TICK_S >= HEARTBEAT_S:
                        return self._push(Section(self._next, self._nothing, NOTHING, NOTHING, NOTHING, self._boundary))
                    continue
                return self._push(self._before_stop(section))
            raise StopIteration

    def _before_stop(self, section: Section) -> Section:
        stop = self._wanted.stop
        if stop is not None and stop < section.first:  # ids jumped over it
            return Section(section.first, self._nothing, NOTHING, NOTHING, NOTHING, section.standing)
        return section if stop is None else section.until(stop)

    def _check_incarnation(self) -> None:
        """Serve nobody who knows of a later incarnation: this one was deposed, and may not have heard of it."""
        queue, known = self._queue, self._wanted.incarnation
        if self._wanted.epoch != queue.epoch:  # what it knows is of another life of the stream
            return
        if not 0 < queue.incarnation < known or queue.standby:
            return
        deposed = getattr(self._server.host, "deposed", None)
        if deposed is not None:
            deposed(queue.stream, known)
        raise MovedError(
            f"stream {queue.stream} is served by incarnation {known} of its unit, not by {queue.incarnation} here",
            hint="ask the coordinator who serves it now",
        )

    def _check_held(self) -> None:
        """Keep nobody waiting for long at a backup."""
        if not self._queue.standby:
            self._held_since = None
            return
        now = time.monotonic()
        self._held_since = now if self._held_since is None else self._held_since
        if now - self._held_since >= HOLD_S:
            raise self._on_standby()

    def _on_standby(self) -> StandbyError:
        hint = "its primary serves it: ask the coordinator who that is"
        return StandbyError(f"stream {self._wanted.stream} is on standby here", hint=hint)

    def _is_over(self) -> bool:
        self._server.calls.check()
        self._check_held()
        if self._server.turns.get(self._key) is not self._turn:
            raise ReplacedError(f"another subscription to {self._wanted.stream} took over reader '{self._reader}'")
        stop = self._wanted.stop
        return self._done or (stop is not None and self._next >= stop) or bool(self._context.is_cancelled())

    def _push(self, section: Section) -> tuple[pa.RecordBatch, bytes]:
        skipped, self._quiet_ticks = section.first - self._next, 0
        lost = self._queue.lost_between(self._next, section.first) if skipped else 0
        self._next, self._boundary, self._done = section.stop, section.final, section.ended
        time_of = pa.py_buffer(np.ascontiguousarray(section.time, np.int64))  # `pa.array` would load pandas for this
        columns = [*section.rows.columns, pa.Array.from_buffers(pa.int64(), len(section), [None, time_of])]
        head = SectionHead(
            first=section.first,
            standing=section.standing,
            at=section.at.tolist(),
            bound=section.bound.tolist(),
            lost=lost,
            jump=lost < skipped,
        )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema), head.encode()

    def __del__(self) -> None:
        if not hasattr(self, "_entered"):  # it was refused
            return
        if self._server.turns.get(self._key) is self._turn:
            del self._server.turns[self._key]
        if self._passing:
            self._queue.forget(self._reader)
        self._server.calls.leave()


def _not_served(call: str) -> flight.FlightError:
    hint = "DoGet subscribes, DoPut publishes, DoAction and DoExchange give orders; the coordinator knows the streams"
    return refusal(WireError(f"{call} is not served here", hint=hint), call)


@contextmanager
def _answering(doing: str) -> Iterator[None]:
    """Errors inside become answers."""
    try:
        yield
    except (StopIteration, GeneratorExit):
        raise
    except Exception as error:
        raise refusal(error, doing) from None


def _said(chunk: flight.FlightStreamChunk) -> tuple[str, pa.Buffer]:
    """The name of an order in a conversation, and its body."""
    words = chunk.app_metadata
    end = -1 if words is None else bytes(words[:NAME_BYTES_MOST]).find(b"\n")
    if end < 0:
        raise WireError("words that are no order", hint="write its name, a line's end, and its body")
    return bytes(words[:end]).decode(), words.slice(end + 1)


def _is_export(ticket: bytes) -> bool:
    try:
        given = json.loads(ticket)
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and "export" in given


def _check_columns(stream: str, given: pa.Schema, wanted: pa.Schema) -> None:
    """Names and types in order; whether nulls are allowed is seen in each batch."""
    if given.names != wanted.names or given.types != wanted.types:
        raise StreamError(
            f"stream {stream} has columns ({columns(wanted)}), not ({columns(given)})",
            hint="send all of them, in this order and of these types",
        )


def columns(schema: pa.Schema) -> str:
    """Names and types, for people."""
    return ", ".join(f"{f.name} {f.type}" for f in schema)


def _published(stream: str, chunk: Any, schema: pa.Schema) -> tuple[BatchHead, pa.RecordBatch]:
    """A published batch that can be worked with: of bounded size, whole inside, and without forbidden nulls."""
    if chunk.app_metadata is None:
        raise WireError("a published batch without a BatchHead", hint="put one into its app_metadata")
    head, batch = BatchHead.decode(chunk.app_metadata), chunk.data
    rows = 0 if batch is None else batch.num_rows
    if head.parts and (sum(head.parts) != rows or head.first < 0):
        raise WireError(f"a batch of {rows} rows as {len(head.parts)} parts of {sum(head.parts)}, up to {head.number}")
    if batch is None:
        return head, empty_rows(schema)
    batch.validate(full=True)  # offsets from the wire may point anywhere: before anything follows them
    _check_size("a batch", batch.nbytes, BATCH_BYTES_MOST)
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise StreamError(f"nulls in column '{field.name}' of {stream}, which has none", hint="send values")
    return head, pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _check_size(what: str, size: int, most: int) -> None:
    """gRPC has taken a message in before anybody can refuse it; at least its memory is given back."""
    if size > most:
        timer = threading.Timer(GIVE_BACK_S, _give_back)
        timer.daemon = True
        timer.start()
        raise WireError(f"{what} of {size:,} bytes", hint=f"cut it: {most:,} at most")


def _give_back() -> None:
    """Return free pages to the system: a large message came in thousands of pieces, and the allocator keeps those."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _is_open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), 1.0):
            return True
    except OSError:
        return False


def _cut_connections(port: int) -> None:
    """Break what is connected to this port: Flight cannot end a call that waits for its peer to read or write."""
    for name in os.listdir("/dev/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:
            continue
        try:
            other = socket.socket(fileno=copy)
        except OSError:  # a file, a pipe
            os.close(copy)
            continue
        with other:
            try:
                if other.family in (socket.AF_INET, socket.AF_INET6) and other.getsockname()[1] == port:
                    other.getpeername()  # raises for the one that listens
                    other.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue
