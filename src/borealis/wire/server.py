"""The Flight server of a node: serves streams from output queues, takes batches for entry points, passes on orders.

Each call has a thread of its own (gRPC makes them as needed), so a subscription may wait. Nothing is buffered here: a
subscriber that does not read blocks its thread in gRPC's flow control, and the queue decides what that means.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyarrow import flight

from borealis.errors import MachineError, WireError
from borealis.hosts import is_flight
from borealis.machine import HERE, Machine
from borealis.wire.auth import OPEN, Security, host_of, require_security
from borealis.wire.calls import Answering, Door, StreamHost, cut_connections
from borealis.wire.feed import FeedTimings
from borealis.wire.problems import arriving, log, refusal
from borealis.wire.service import Service
from borealis.wire.transport import Chunk


@dataclass(frozen=True)
class ClosingTimings:
    """What a server that closes waits for, in seconds."""

    grace_s: float = 2.0  # for calls that are under way
    flush_s: float = 0.5  # for what calls that have ended left to gRPC; silent publishers make it wait as long
    stuck_s: float = 5.0  # after that, and then it is left alone
    cut_s: float = 0.05  # between two looks whether a client is connected still


CLOSING = ClosingTimings()


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
        machine: Machine = HERE,
    ) -> None:
        require_security([location], security)
        self._host, self._location, self._security = host, location, security or OPEN
        self._timings, self._machine = timings, machine
        self._flight: _Flight | None = None

    def start(self) -> WireServer:
        """Open the address; calls are answered from now on."""
        if not is_flight(self._location):
            raise WireError(f"cannot serve at '{self._location}'", hint="write grpc://host:port")
        scheme, _, rest = self._location.partition("://")
        if scheme == "grpc+tls" and not self._security.tls:
            raise WireError(f"{self._location} needs a certificate and its key", hint="or write grpc://")
        place = f"grpc+tls://{rest}" if self._security.tls else f"grpc://{rest}"
        service = Service(self._host, self._timings, self._machine)
        try:
            self._flight = _Flight(
                service,
                place,
                tls_certificates=self._security.certificates() or None,
                middleware={"door": Door(service.calls, self._security.token)},
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
        busy = server.service.calls.close(CLOSING.grace_s)
        if busy:
            log.info("closing with %d calls under way", busy)
        ending, clock = self._machine.threads.start("wire-close", server.shutdown), self._machine.clock
        ending.join(0.0 if busy else CLOSING.flush_s)
        until = clock.now() + CLOSING.stuck_s
        while ending.is_alive() and clock.now() < until:
            cut_connections(server.port)
            ending.join(CLOSING.cut_s)
        if ending.is_alive():
            log.warning("the Flight server does not end: a call is still inside the node")

    def __enter__(self) -> WireServer:
        return self if self._flight else self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Flight(flight.FlightServerBase):  # type: ignore[misc]
    """Flight's calls, passed on."""

    def __init__(self, service: Service, *args: Any, **options: Any) -> None:
        self.service = service
        super().__init__(*args, **options)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        schema, outgoing = self.service.get(ticket.ticket, context.is_cancelled)
        return flight.GeneratorStream(schema, outgoing)  # which lets go of it when the call ends, and so closes it

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        doing = "a publication"
        with Answering(doing), arriving(doing):
            command, schema = descriptor.command or b"", reader.schema
        self.service.put(command, schema, partial(_next, reader), writer.write)

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        doing = "an action"
        with Answering(doing), arriving(doing):
            name, body = action.type, action.body
        return [self.service.act(name, body)]

    def do_exchange(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.MetadataRecordBatchWriter,
    ) -> None:
        self.service.converse(partial(_next, reader), writer.write_metadata)

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


def _next(reader: flight.MetadataRecordBatchReader) -> Chunk | None:
    try:
        chunk = reader.read_chunk()
    except StopIteration:
        return None
    return Chunk(chunk.data, chunk.app_metadata)
