"""The other side of a node's server: subscribe, publish, order. Everything blocks; threads may share a Peer."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import count
from typing import Protocol, TypeVar

import pyarrow as pa

from borealis.errors import WireError
from borealis.hosts import is_flight
from borealis.machine import HERE, Machine
from borealis.message import Message
from borealis.wire.auth import OPEN, Security
from borealis.wire.flight import FLIGHT
from borealis.wire.messages import Ack, Acknowledgements, Done, Export, Ping, Pong, Publish, Subscribe
from borealis.wire.problems import calling
from borealis.wire.publication import Publication
from borealis.wire.subscription import WireSubscription
from borealis.wire.transport import Network
from borealis.wire.waiting import PeerTimings, Pushed, Talk, silent

A = TypeVar("A", bound=Message)


class Sendable(Protocol):
    """Anything that knows its bytes: a message, or what is too large for one."""

    def encode(self) -> bytes: ...


class Peer:
    """A node at an address. Nothing is sent before the first call; the next one makes a broken connection again."""

    def __init__(
        self,
        address: str,
        security: Security | None = None,
        timings: PeerTimings | None = None,
        network: Network = FLIGHT,
        machine: Machine = HERE,
    ) -> None:
        if not is_flight(address):
            raise WireError(f"'{address}' is no address of a node", hint="write grpc://host:port")
        self.address = address
        self.timings = timings or PeerTimings()
        self.machine = machine
        self._transport = network.connect(address, security or OPEN, self.timings.connect_s, self.timings.silence_s)
        self._open: weakref.WeakValueDictionary[int, WireSubscription] = weakref.WeakValueDictionary()
        self._numbers = count()  # of subscriptions
        self._talks: list[Talk] = []  # those that are free

    def ping(self) -> Pong:
        return self.say("ping", Ping(), Pong, within=self.timings.connect_s)

    def act(self, name: str, message: Sendable, answer: type[A], *, within: float | None = None) -> A:
        """Give an order and wait for its answer."""
        limit = self.timings.answer_s if within is None else within
        with calling(self.address):
            got = self._transport.action(name, message.encode(), limit)
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
            talk = Talk(self.address, *self._transport.exchange())
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
        pushed = self._get(wanted, self.timings.silence_s)
        try:
            subscription = WireSubscription(pushed, wanted)
        except WireError:
            pushed.cancel()
            raise
        self._open[next(self._numbers)] = subscription
        return subscription

    def publish(self, publish: Publish, schema: pa.Schema) -> Publication:
        self.probe()
        with calling(self.address):
            writer, receipts = self._transport.put(publish.encode(), schema)
        return Publication(self, schema, writer, receipts)

    def export(self, what: str, body: bytes = b"") -> Iterator[bytes]:
        """Bytes from the other side, in pieces."""
        self.probe()
        pushed = self._get(Export(export=what, body=body.decode()), self.timings.answer_s)
        try:
            while (chunk := pushed.read()) is not None:
                if chunk.data is None:
                    raise WireError(f"{self.address} sent words where bytes of '{what}' are expected")
                yield chunk.data.column(0)[0].as_py()
        finally:
            pushed.cancel()

    def close(self) -> None:
        """Give the connection back. Subscriptions are cancelled; publications are closed by their publishers."""
        for subscription in list(self._open.values()):
            subscription.cancel()
        self._hang_up()
        self._transport.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def probe(self) -> None:
        """Raises soon if no server answers: a stream itself has no time limit."""
        with calling(self.address):
            # not `list_actions`: if the server cancels that, Arrow pretends that this process was interrupted (Ctrl-C)
            self._transport.action("reach", b"", self.timings.connect_s)

    def _get(self, ticket: Message, silence_s: float) -> Pushed:
        with calling(self.address):
            try:
                return Pushed(self.address, self._transport.get(ticket.encode(), silence_s), silence_s)
            except TimeoutError:
                raise silent(self.address, silence_s) from None


class Peers:
    """Connections to nodes, one for each address, made when first needed. Thread-safe."""

    def __init__(self, security: Security | None = None, network: Network = FLIGHT, machine: Machine = HERE) -> None:
        self.security, self.network, self.machine = security, network, machine
        self._peers: dict[str, Peer] = {}
        self._lock = machine.threads.lock()

    def at(self, address: str) -> Peer:
        """The connection that all callers share."""
        with self._lock:
            if address not in self._peers:
                self._peers[address] = self.connect(address)
            return self._peers[address]

    def connect(self, address: str, timings: PeerTimings | None = None) -> Peer:
        """A new connection, which the caller closes."""
        return Peer(address, self.security, timings, self.network, self.machine)

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
