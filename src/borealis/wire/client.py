"""The other side of a node's Flight server: subscribe, publish, order. Everything blocks; threads may share a Peer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from typing import Protocol, TypeVar

import pyarrow as pa
from pyarrow import flight

from borealis.errors import WireError
from borealis.hosts import is_flight
from borealis.message import Message
from borealis.wire.auth import OPEN, Security
from borealis.wire.messages import Ack, Acknowledgements, Done, Export, Ping, Pong, Publish, Subscribe
from borealis.wire.problems import calling
from borealis.wire.publication import Publication
from borealis.wire.subscription import WireSubscription
from borealis.wire.waiting import PeerTimings, Pushed, Talk, first_answer

A = TypeVar("A", bound=Message)

WINDOW_BYTES = 4 << 20  # so much may be under way to a subscriber that does not read
FRAME_BYTES = 1 << 20  # large ones save work; gRPC's own choice is 16 KB
NEVER_MS = 24 * 3600 * 1000  # gRPC's own pings are not wanted: servers take them for an attack


class Sendable(Protocol):
    """Anything that knows its bytes: a message, or what is too large for one."""

    def encode(self) -> bytes: ...


class Peer:
    """A node at an address. Nothing is sent before the first call; the next one makes a broken connection again."""

    def __init__(self, address: str, security: Security | None = None, timings: PeerTimings | None = None) -> None:
        if not is_flight(address):
            raise WireError(f"'{address}' is no address of a node", hint="write grpc://host:port")
        self.address = address
        self.timings = timings or PeerTimings()
        self._security = security or OPEN
        options = [
            ("grpc.enable_http_proxy", 0),  # nodes talk to one another, whatever the environment says of the web
            ("grpc.min_reconnect_backoff_ms", int(self.timings.connect_s * 1000)),  # of one attempt to connect
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.max_frame_size", FRAME_BYTES),
            ("grpc.keepalive_time_ms", NEVER_MS),  # set at all, it makes the system give up on unanswered packets
            ("grpc.keepalive_timeout_ms", int(self.timings.silence_s * 1000)),
        ]
        tls = {"tls_root_certs": self._security.roots()} if address.startswith("grpc+tls://") else {}
        self._client = flight.FlightClient(address, generic_options=options, **tls)
        self._open: weakref.WeakSet[WireSubscription] = weakref.WeakSet()
        self._talks: list[Talk] = []  # those that are free

    def ping(self) -> Pong:
        return self.say("ping", Ping(), Pong, within=self.timings.connect_s)

    def act(self, name: str, message: Sendable, answer: type[A], *, within: float | None = None) -> A:
        """Give an order and wait for its answer."""
        limit = self.timings.answer_s if within is None else within
        with calling(self.address):
            answers = self._client.do_action(flight.Action(name, message.encode()), self._options(limit))
            got = [answer.body.to_pybytes() for answer in answers]
        if len(got) != 1:
            raise WireError(f"{self.address} answered '{name}' with {len(got)} messages", hint="one is expected")
        return answer.decode(got[0])

    def say(self, name: str, message: Sendable, answer: type[A], *, within: float | None = None) -> A:
        """Give an order that is given often, and may arrive twice: over a line that stays, for half the price."""
        body, limit = message.encode(), self.timings.answer_s if within is None else within
        talk = self._free()
        if talk is not None:
            try:
                return answer.decode(self._ask(talk, name, body, limit))
            except WireError:
                if talk.late:
                    raise
                self._hang_up()  # the node has restarted, perhaps: the lines are old
        with calling(self.address):
            descriptor = flight.FlightDescriptor.for_command(b"talk")
            talk = Talk(self.address, *self._client.do_exchange(descriptor, self._options()))
        return answer.decode(self._ask(talk, name, body, limit))

    def _free(self) -> Talk | None:
        """A line that no other thread uses."""
        try:
            return self._talks.pop()
        except IndexError:
            return None

    def _ask(self, talk: Talk, name: str, body: bytes, within: float) -> bytes:
        got = talk.ask(name, body, within)
        self._talks.append(talk)
        return got

    def _hang_up(self) -> None:
        while (talk := self._free()) is not None:
            talk.cancel()

    def ack(self, *acks: Ack, within: float | None = None) -> None:
        """Acknowledge what readers have. Raises the first refusal; the others are done all the same."""
        self.say("ack", Acknowledgements(acks=list(acks)), Done, within=within)

    def subscribe(self, wanted: Subscribe) -> WireSubscription:
        self.probe()
        subscription = WireSubscription(self._get(wanted, self.timings.silence_s), wanted)
        self._open.add(subscription)
        return subscription

    def publish(self, publish: Publish, schema: pa.Schema) -> Publication:
        self.probe()
        with calling(self.address):
            descriptor = flight.FlightDescriptor.for_command(publish.encode())
            writer, receipts = self._client.do_put(descriptor, schema, self._options())
        return Publication(self, schema, writer, receipts)

    def export(self, what: str, body: bytes = b"") -> Iterator[bytes]:
        """Bytes from the other side, in pieces."""
        self.probe()
        pushed = self._get(Export(export=what, body=body.decode()), self.timings.answer_s)
        try:
            while (chunk := pushed.read()) is not None:
                yield chunk.data.column(0)[0].as_py()
        finally:
            pushed.cancel()

    def close(self) -> None:
        """Give the connection back. Subscriptions are cancelled; publications are closed by their publishers."""
        for subscription in list(self._open):
            subscription.cancel()
        self._hang_up()
        self._client.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def probe(self) -> None:
        """Raises soon if no server answers: a stream itself has no time limit."""
        with calling(self.address):
            # not `list_actions`: if the server cancels that, Arrow pretends that this process was interrupted (Ctrl-C)
            list(self._client.do_action(flight.Action("reach", b""), self._options(self.timings.connect_s)))

    def _get(self, ticket: Message, silence_s: float) -> Pushed:
        wanted = flight.Ticket(ticket.encode())
        with calling(self.address):
            reader = first_answer(self.address, lambda: self._client.do_get(wanted, self._options()), silence_s)
            return Pushed(self.address, reader, silence_s)

    def _options(self, within: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=within, headers=self._security.headers())


class Peers:
    """Connections to nodes, one for each address, made when first needed. Thread-safe."""

    def __init__(self, security: Security | None = None) -> None:
        self._security = security
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()

    def at(self, address: str) -> Peer:
        """The connection that all callers share."""
        with self._lock:
            if address not in self._peers:
                self._peers[address] = Peer(address, self._security)
            return self._peers[address]

    def connect(self, address: str) -> Peer:
        """A new connection, which the caller closes."""
        return Peer(address, self._security)

    def act(self, address: str, name: str, message: Sendable, answer: type[A], *, within: float | None = None) -> A:
        """Give an order over the shared connection. One that breaks is replaced by the next call."""
        peer = self.at(address)
        try:
            return peer.act(name, message, answer, within=within)
        except WireError:
            with self._lock:
                if self._peers.get(address) is peer:
                    del self._peers[address]
            raise

    def close(self) -> None:
        with self._lock:
            for peer in self._peers.values():
                peer.close()
            self._peers.clear()
