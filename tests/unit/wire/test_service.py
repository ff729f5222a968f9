"""What a node answers, without Flight: called directly, and by a peer over a network of this thread's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hosting import SCHEMA, Order, TinyHost, next_section, rows
from pyarrow import flight

from borealis.clock import ManualClock
from borealis.errors import BorealisError, StreamError, WireError
from borealis.machine import Machine
from borealis.streams.queue import OutputQueue
from borealis.wire.auth import Security
from borealis.wire.client import Peer, Peers
from borealis.wire.feed import FeedTimings
from borealis.wire.messages import Ack, Acknowledgements, BatchHead, Export, Publish, Receipt, Subscribe
from borealis.wire.problems import error_from
from borealis.wire.service import Service
from borealis.wire.transport import Chunk, QuietLine, Reader, Receipts, Transport, Writer
from borealis.wire.waiting import PeerTimings


class Counted:
    """Chance that is none."""

    def __init__(self) -> None:
        self._drawn = 0

    def token(self, length: int = 16) -> str:
        self._drawn += 1
        return f"{self._drawn:0{length}x}"


@pytest.fixture
def machine() -> Machine:
    return Machine(clock=ManualClock(), chance=Counted())


@pytest.fixture
def service(host: TinyHost, machine: Machine) -> Service:
    return Service(host, FeedTimings(tick_s=0.01, hold_s=0.0), machine)


def refused(do: Callable[[], object]) -> BorealisError:
    """What the caller of this call would raise."""
    with pytest.raises(flight.FlightServerError) as caught:
        do()
    return error_from(caught.value, "here")


def subscribed(service: Service, **wanted: Any) -> Any:
    return service.get(Subscribe(stream="d/a", **wanted).encode(), lambda: False)[1]


# -- called directly


def test_a_subscription_is_taken_back_when_it_is_closed(service: Service, queue: OutputQueue) -> None:
    queue.append(next_section(queue, 5))
    feed = subscribed(service)
    assert list(queue.status().readers) == [f"~{1:016x}"]
    assert next(feed)[0].num_rows == 5
    feed.close()
    feed.close()
    assert not queue.status().readers
    assert not service.turns
    assert service.calls.close(0) == 0


def test_a_subscription_that_is_refused_leaves_nothing_behind(service: Service, queue: OutputQueue) -> None:
    queue.hold()
    seen = refused(lambda: subscribed(service))  # kept, so that nothing is freed by chance
    assert "on standby" in str(seen)
    assert (dict(queue.status().readers), service.turns, service.calls.close(0)) == ({}, {}, 0)


def test_an_export_ends_when_it_is_closed(service: Service) -> None:
    schema, pieces = service.get(Export(export="bytes", body="[3, 2]").encode(), lambda: False)
    batch = next(pieces)
    assert isinstance(batch, pa.RecordBatch)
    assert (schema.names, batch.column(0).to_pylist()) == (["data"], [b"\0\0\0"])
    pieces.close()
    assert list(pieces) == []


def test_a_publication_is_answered_batch_by_batch(service: Service, queue: OutputQueue) -> None:
    heads = [BatchHead(number=n).encode() for n in range(2)]
    given = iter([Chunk(rows(2 * n, 2), pa.py_buffer(head)) for n, head in enumerate(heads)])
    answers: list[bytes] = []
    service.put(Publish(stream="d/a", publisher="me").encode(), SCHEMA, lambda: next(given, None), answers.append)
    assert [Receipt.decode(answer).number for answer in answers] == [-1, 0, 1]
    assert queue.next_id == 4


@pytest.mark.parametrize("wrap", [bytes, pa.py_buffer])
def test_orders_are_answered_until_the_node_closes(service: Service, queue: OutputQueue, wrap: Any) -> None:
    queue.append(next_section(queue, 5))
    queue.register("r", 0)
    acks = Acknowledgements(acks=[Ack(stream="d/a", reader="r", level=1, upto=3)])
    service.act("ack", wrap(acks.encode()))
    assert queue.status().readers["r"] == 3
    assert service.act("echo", wrap(b"hello")) == b"hello"
    service.calls.close(0)
    assert "the node is closing" in str(refused(lambda: service.act("echo", wrap(b""))))


def test_a_conversation_ends_with_the_last_word_or_the_first_that_is_none(service: Service) -> None:
    answers: list[bytes] = []
    given = iter([b"echo\none", b"echo\ntwo\n"])
    service.converse(lambda: _words(next(given, None)), answers.append)
    assert answers == [b"one", b"two\n"]
    assert "no order" in str(refused(lambda: service.converse(lambda: _words(b"echo"), answers.append)))


def _words(words: bytes | None) -> Chunk | None:
    return None if words is None else Chunk(None, pa.py_buffer(words))


# -- by a peer


class Near:
    """A connection that calls the service in the caller's thread; with `late` set, no answer comes in time."""

    def __init__(self, service: Service) -> None:
        self.service, self.late, self.closed = service, False, False

    def action(self, name: str, body: bytes, within: float | None) -> list[bytes]:
        if self.late:
            raise TimeoutError(f"{within:g} s")
        return [self.service.act(name, body)]

    def exchange(self) -> tuple[Writer, Reader]:
        made = _Turns(self)
        return made, made

    def get(self, ticket: bytes, within: float) -> Reader:
        if self.late:
            raise TimeoutError
        return _Incoming(self, *self.service.get(ticket, lambda: False))

    def put(self, command: bytes, schema: pa.Schema) -> tuple[Writer, Receipts]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


class _Turns:
    schema = pa.schema([])

    def __init__(self, near: Near) -> None:
        self._near, self._words = near, b""

    def write_with_metadata(self, batch: pa.RecordBatch, words: bytes) -> None: ...

    def write_metadata(self, words: bytes) -> None:
        self._words = words

    def done_writing(self) -> None: ...

    def close(self) -> None:
        raise flight.FlightCancelledError("cancelled")

    def read(self, within: float) -> Chunk | None:
        if self._near.late:
            raise TimeoutError
        name, _, body = self._words.partition(b"\n")
        return _words(self._near.service.act(name.decode(), body))

    def cancel(self) -> None: ...


class _Incoming:
    def __init__(self, near: Near, schema: pa.Schema, outgoing: Iterator[Any]) -> None:
        self.schema, self._near, self._outgoing = schema, near, outgoing
        self.cancelled = False

    def read(self, within: float) -> Chunk | None:
        if self._near.late:
            raise TimeoutError
        if self.cancelled:
            raise flight.FlightCancelledError("cancelled")
        match next(self._outgoing, None):
            case None:
                return None
            case (batch, words):
                return Chunk(batch, pa.py_buffer(words))
            case batch:
                return Chunk(batch, None)

    def cancel(self) -> None:
        self.cancelled = True


class NearNetwork:
    def __init__(self, service: Service) -> None:
        self.service, self.made = service, list[Near]()

    def connect(self, address: str, security: Security, connect_s: float, silence_s: float) -> Transport:
        self.made.append(Near(self.service))
        return self.made[-1]

    def line(self, address: str, within: float) -> QuietLine:
        raise ConnectionRefusedError


@pytest.fixture
def network(service: Service) -> NearNetwork:
    return NearNetwork(service)


@pytest.fixture
def near(network: NearNetwork, machine: Machine) -> Peer:
    return Peer("grpc://near:1", None, PeerTimings(connect_s=1, answer_s=2, silence_s=3), network, machine)


def test_a_peer_needs_no_flight(near: Peer, network: NearNetwork, queue: OutputQueue) -> None:
    queue.append(next_section(queue, 5))
    assert near.ping().node == "tiny"
    assert near.act("echo", Order(rows=3), Order).rows == 3
    assert b"".join(near.export("bytes", b"[2, 1]")) == b"\0\0\1"
    with near.subscribe(Subscribe(stream="d/a", stop=5)) as subscription:
        assert [len(section) for section in subscription] == [5]
    with pytest.raises(StreamError, match="no stream 'd/b'"):
        near.subscribe(Subscribe(stream="d/b"))
    near.close()
    assert network.made[0].closed


def test_late_answers_are_called_so(near: Peer, network: NearNetwork, queue: OutputQueue) -> None:
    queue.append(next_section(queue, 5))
    near.ping()
    pushed = iter(near.subscribe(Subscribe(stream="d/a")))
    pieces = near.export("bytes", b"[1, 1]")
    assert (len(next(pushed)), next(pieces)) == (5, b"\0")
    network.made[0].late = True
    late = "grpc://near:1 did not answer"
    for call, said in (
        (near.ping, f"{late} 'ping' within 1 s"),
        (lambda: near.act("echo", Order(), Order), rf"{late} in time \(2 s\)"),
        (lambda: next(pushed), "silent for 3 s"),
        (lambda: next(pieces), "silent for 2 s"),
        (near.probe, rf"{late} in time \(1 s\)"),
    ):
        with pytest.raises(WireError, match=said):
            call()


def test_a_late_answer_is_not_asked_for_twice(
    near: Peer, network: NearNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.ping()
    network.made[0].late = True
    monkeypatch.setattr(Near, "exchange", lambda _: pytest.fail("another conversation"))
    with pytest.raises(WireError, match="did not answer 'ping'"):
        near.ping()


def test_peers_pass_on_what_they_stand_on(network: NearNetwork, machine: Machine) -> None:
    security = Security(token="t")
    peers = Peers(security, network, machine)
    assert (peers.security, peers.network, peers.machine) == (security, network, machine)
    assert peers.at("grpc://near:1") is peers.at("grpc://near:1")
    assert peers.connect("grpc://near:1").machine is machine
    assert len(network.made) == 2
    peers.close()
    assert [one.closed for one in network.made] == [True, False]
