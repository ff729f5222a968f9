"""The Flight server of a node: serves streams from output queues, takes batches for entry points, passes on orders.

Each call has a thread of its own (gRPC makes them as needed), so a subscription may wait. Nothing is buffered here: a
subscriber that does not read blocks its thread in gRPC's flow control, and the queue decides what that means.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import flight

from borealis.errors import MachineError, StreamError, WireError
from borealis.hosts import is_flight
from borealis.streams.section import empty_rows
from borealis.wire.auth import OPEN, Security, host_of, require_security
from borealis.wire.calls import Calls, Door, StreamHost, answering, cut_connections
from borealis.wire.feed import FeedTimings, ServedFeed
from borealis.wire.messages import Ack, Acknowledgements, BatchHead, Done, Export, Publish, Subscribe
from borealis.wire.problems import arriving, log, refusal

BATCH_BYTES_MOST = 64 << 20  # of one published batch
MESSAGE_BYTES_MOST = 8 << 20  # of an order
PARCEL_BYTES_MOST = 1 << 30  # of what primaries send to their backups: whole states, at times
NAME_BYTES_MOST = 64  # of an order
PIECE_BYTES_MOST = 1 << 20  # of an export
PIECES = pa.schema([pa.field("data", pa.binary(), nullable=False)])
GRACE_S = 2.0  # for calls under way when the server closes
FLUSH_S = 0.5  # for what calls that have ended left to gRPC; publishers that are silent make it wait as long
STUCK_S = 5.0  # after that, and then it is left alone
CUT_S = 0.05  # between two looks whether a client is connected still
GIVE_BACK_S = 0.5  # after a message was refused for its size, when nothing holds it any more


class WireServer:
    """Serves a host at an address. Close the host's queues first: an entry point that waits for room is not woken here.

    With port 0 the system chooses one; `address` is known after `start`.
    """

    def __init__(
        self,
        host: StreamHost,
        location: str = "grpc://127.0.0.1:0",
        security: Security | None = None,
        timings: FeedTimings | None = None,
    ) -> None:
        require_security([location], security)
        self._host, self._location, self._security = host, location, security or OPEN
        self._timings = timings or FeedTimings()
        self._flight: _Flight | None = None

    def start(self) -> WireServer:
        """Open the address; calls are answered from now on."""
        if not is_flight(self._location):
            raise WireError(f"cannot serve at '{self._location}'", hint="write grpc://host:port")
        scheme, _, rest = self._location.partition("://")
        if scheme == "grpc+tls" and not self._security.tls:
            raise WireError(f"{self._location} needs a certificate and its key", hint="or write grpc://")
        place = f"grpc+tls://{rest}" if self._security.tls else f"grpc://{rest}"
        calls = Calls()
        try:
            self._flight = _Flight(
                self._host,
                calls,
                self._timings,
                place,
                tls_certificates=self._security.certificates() or None,
                middleware={"door": Door(calls, self._security.token)},
            )
        except (pa.ArrowException, OSError) as error:
            hint = "is the port taken, the host name one of this machine, the certificate one with its key?"
            raise MachineError(f"cannot serve at {place} ({error})", hint=hint) from None
        return self

    @property
    def port(self) -> int:
        if self._flight is None:
            raise WireError("this server does not run", hint="call start() first")
        return int(self._flight.port)

    @property
    def address(self) -> str:
        """Where clients find it, if they can see the host."""
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
        ending = threading.Thread(target=server.shutdown, name="wire-close", daemon=True)
        ending.start()
        ending.join(0.0 if busy else FLUSH_S)
        until = time.monotonic() + STUCK_S
        while ending.is_alive() and time.monotonic() < until:
            cut_connections(server.port)
            ending.join(CUT_S)
        if ending.is_alive():
            log.warning("the Flight server does not end: a call is still inside the node")

    def __enter__(self) -> WireServer:
        return self if self._flight else self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's calls, checked and passed on; everything that goes wrong is answered as a Problem."""

    def __init__(self, host: StreamHost, calls: Calls, timings: FeedTimings, *args: Any, **options: Any) -> None:
        self.host, self.calls, self._timings = host, calls, timings
        self.turns: dict[tuple[str, str], object] = {}  # by stream and named reader: whose subscription counts
        super().__init__(*args, **options)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        """A subscription or an export."""
        with answering("a ticket"):
            if _is_export(ticket.ticket):
                return flight.GeneratorStream(PIECES, self._pieces(Export.decode(ticket.ticket)))
            wanted = Subscribe.decode(ticket.ticket)
            feed = ServedFeed(self.host, self.calls, self.turns, self._timings, context.is_cancelled, wanted)
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
        with answering(doing):
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
        with answering("an action"), self.calls.busy():
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
        with answering(doing):
            while True:
                with arriving(doing):
                    try:
                        name, body = _order(reader.read_chunk())
                    except StopIteration:
                        return
                self.calls.check()
                with self.calls.busy():
                    answer = self._act(name, body)
                with arriving(doing):
                    writer.write_metadata(answer)

    def _act(self, name: str, body: pa.Buffer) -> bytes:
        """What the wire itself knows, or an order for the host."""
        _check_size("an order", body.size, PARCEL_BYTES_MOST if name == "guard" else MESSAGE_BYTES_MOST)
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

    def _not_served(self, context: flight.ServerCallContext, asked: object) -> None:
        hint = "DoGet subscribes, DoPut publishes, DoAction and DoExchange give orders; the coordinator knows streams"
        raise refusal(WireError("ListFlights, GetFlightInfo and GetSchema are not served here", hint=hint), "a call")

    list_flights = get_flight_info = get_schema = _not_served

    def _pieces(self, wanted: Export) -> Iterator[pa.RecordBatch]:
        with answering(f"export of {wanted.export}"):
            for data in self.host.export(wanted.export, wanted.body.encode()):
                for at in range(0, len(data), PIECE_BYTES_MOST):
                    self.calls.check()
                    yield pa.record_batch([pa.array([data[at : at + PIECE_BYTES_MOST]], pa.binary())], schema=PIECES)


def _order(chunk: flight.FlightStreamChunk) -> tuple[str, pa.Buffer]:
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
    """gRPC has taken a message in before it can be refused; at least its memory is given back."""
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
