"""Orders and their answers, exports, and addresses where nobody is."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
import pytest
from hosting import SCHEMA, Facts, Order, TinyHost, next_section
from pyarrow import flight

from aborting import abort
from borealis.errors import BorealisError, ClusterError, MachineError, StreamError, WireError
from borealis.hosts import free_ports
from borealis.streams.queue import MovedError
from borealis.wire.client import Peer
from borealis.wire.messages import Ack, Ping, Pong, Problem, Publish, Subscribe
from borealis.wire.problems import KINDS, MESSAGE_BYTES_MOST, ReplacedError, clip, error_of, problem_of
from borealis.wire.server import WireServer
from borealis.wire.service import PIECE_BYTES_MOST
from borealis.wire.waiting import PeerTimings


def test_an_order_is_answered(peer: Peer) -> None:
    assert peer.ping() == Pong(node="tiny", incarnation="1", version="0")
    order = Order(stream="d/ä", rows=3)
    assert peer.act("echo", order, Order) == order


def test_an_answer_that_is_another_is_refused(peer: Peer) -> None:
    with pytest.raises(WireError, match="bad Pong"):
        peer.act("echo", Order(), Pong)


def test_an_unknown_order_is_refused_by_the_host(peer: Peer) -> None:
    with pytest.raises(WireError, match=r"no action 'dance'\. Hint: ping"):
        peer.act("dance", Ping(), Pong)


def test_a_mistake_of_the_host_is_told_and_survived(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ClusterError, match="failed inside the node: ZeroDivisionError: a mistake of the host"):
        peer.act("crash", Ping(), Pong)
    assert any(record.exc_info for record in caplog.records)  # with its traceback
    assert peer.ping()


def test_an_order_that_takes_too_long(host: TinyHost, peer: Peer) -> None:
    slow = threading.Event()

    def wait(action: str, body: bytes) -> bytes:
        slow.wait()
        return body

    host.act = wait  # type: ignore[method-assign]
    with pytest.raises(WireError, match="did not answer in time"):
        peer.act("echo", Ping(), Ping, within=0.3)
    slow.set()


# -- conversations


def test_a_conversation_has_many_orders(peer: Peer) -> None:
    for number in range(20):
        assert peer.say("echo", Order(rows=number), Order).rows == number
    assert len(peer._talks) == 1
    threads = [threading.Thread(target=peer.say, args=("echo", Order(rows=i), Order)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 <= len(peer._talks) <= 8


def test_a_refusal_in_a_conversation_is_the_hosts_and_the_next_order_goes(peer: Peer) -> None:
    peer.say("echo", Order(), Order)
    with pytest.raises(WireError, match=r"no action 'dance'"):
        peer.say("dance", Ping(), Pong)
    with pytest.raises(StreamError, match="no stream"):
        peer.ack(Ack(stream="d/none", reader="r", level=1, upto=0))
    assert peer.ping()


def test_acknowledgements_that_go_together_do_not_hinder_one_another(host: TinyHost, peer: Peer) -> None:
    queue = host.queue("d/a")
    queue.append(next_section(queue, 5))
    queue.register("r", 0)
    one, other = (Ack(stream=stream, reader="r", level=1, upto=3) for stream in ("d/none", "d/a"))
    with pytest.raises(StreamError):
        peer.ack(one, other)
    assert queue.status().readers["r"] == 3


def test_an_answer_in_a_conversation_that_is_late(host: TinyHost, peer: Peer) -> None:
    slow, act = threading.Event(), host.act
    host.act = lambda action, body: slow.wait() and act(action, body)  # type: ignore[method-assign,return-value,assignment]
    for _ in range(2):
        with pytest.raises(WireError, match=r"did not answer 'echo' within 0\.3 s"):
            peer.say("echo", Order(), Order, within=0.3)
    slow.set()
    host.act = act  # type: ignore[method-assign]
    assert peer.say("echo", Order(rows=1), Order).rows == 1


def test_a_conversation_goes_on_with_the_next_server(host: TinyHost, capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    address = f"grpc://127.0.0.1:{port}"
    with Peer(address, timings=PeerTimings(connect_s=2.0)) as peer:
        with WireServer(host, address):
            assert peer.say("echo", Order(rows=1), Order).rows == 1
        with pytest.raises(WireError):
            peer.say("echo", Order(rows=2), Order)
        with WireServer(host, address):
            until = time.monotonic() + 30
            while True:
                try:
                    assert peer.say("echo", Order(rows=3), Order).rows == 3
                    break
                except WireError:
                    assert time.monotonic() < until
    assert "Close() failed" not in capfd.readouterr().err


def test_a_server_that_is_cut_off_answers_nobody_who_comes_back(
    host: TinyHost, peer: Peer, server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    flight_server = server._flight
    assert flight_server is not None
    shut, again = flight_server.shutdown, threading.Event()
    monkeypatch.setattr(flight_server, "shutdown", lambda: again.wait(5) and shut())  # the door stays open a while
    peer.say("echo", Order(), Order)
    cut = threading.Thread(target=abort, args=(server,), daemon=True)
    cut.start()
    while not again.is_set():
        with suppress(WireError):
            peer.say("echo", Order(), Order)
            again.set()  # on another line, which is there when the door shuts
    cut.join(30)
    with pytest.raises(WireError):
        peer.say("echo", Order(), Order)


def test_words_that_are_no_order(server: WireServer) -> None:
    for words in (b"echo", b"x" * 100 + b"\n"):
        writer, reader = flight.FlightClient(server.address).do_exchange(flight.FlightDescriptor.for_command(b"talk"))
        writer.write_metadata(words)
        with pytest.raises((flight.FlightError, pa.ArrowException), match="no order"):
            reader.read_chunk()


# -- exports


@pytest.mark.parametrize("sizes", [[0], [1, 0, 2], [PIECE_BYTES_MOST + 1], [3 * PIECE_BYTES_MOST, 5]])
def test_an_export_arrives_byte_for_byte_in_pieces(peer: Peer, sizes: list[int]) -> None:
    pieces = list(peer.export("bytes", json.dumps(sizes).encode()))
    assert b"".join(pieces) == b"".join(bytes([i]) * n for i, n in enumerate(sizes))
    assert all(0 < len(p) <= PIECE_BYTES_MOST for p in pieces)


def test_an_empty_export_is_empty(peer: Peer) -> None:
    assert list(peer.export("nothing")) == []


def test_an_export_that_is_not_there(peer: Peer) -> None:
    with pytest.raises(StreamError, match="nothing to export as 'gold'"):
        list(peer.export("gold"))


def test_an_export_that_breaks_in_the_middle_says_so(peer: Peer) -> None:
    got = []
    with pytest.raises(StreamError, match="broke in the middle"):
        got.extend(peer.export("bytes", b"[10, 10, -1]"))


def test_an_export_nobody_wants_any_more_ends(server: WireServer, peer: Peer) -> None:
    pieces = peer.export("bytes", json.dumps([PIECE_BYTES_MOST] * 1000).encode())
    assert len(next(pieces)) == PIECE_BYTES_MOST
    pieces.close()
    server.close()
    with pytest.raises(WireError):
        peer.ping()


# -- errors


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_errors_arrive_as_what_they_are(host: TinyHost, peer: Peer, kind: str) -> None:
    def fail(action: str, body: bytes) -> bytes:
        raise KINDS[kind]("it happened: ü", hint="do this")

    host.act = fail  # type: ignore[method-assign]
    with pytest.raises(BorealisError) as told:
        peer.ping()
    assert type(told.value) is KINDS[kind]
    assert (told.value.message, told.value.hint) == ("it happened: ü", "do this")


def test_a_moved_error_keeps_its_address() -> None:
    there = error_of(Problem.decode(problem_of(MovedError("gone", moved_to="grpc://b:1")).encode()))
    assert isinstance(there, MovedError)
    assert there.moved_to == "grpc://b:1"


def test_an_error_of_a_kind_nobody_knows_is_still_an_error() -> None:
    assert type(error_of(Problem(kind="FutureError", message="m"))) is BorealisError

    class OwnError(ReplacedError):
        """Not known elsewhere: the nearest that is."""

    assert problem_of(OwnError("m")).kind == "ReplacedError"


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f600", "\n"])
def test_a_very_long_error_arrives_cut(host: TinyHost, peer: Peer, letter: str) -> None:
    def fail(action: str, body: bytes) -> bytes:
        raise StreamError("so: " + letter * 100_000, hint=letter * 100_000)

    host.act = fail  # type: ignore[method-assign]
    with pytest.raises(StreamError, match=r"^so: ") as told:
        peer.ping()
    assert len(told.value.message.encode()) <= MESSAGE_BYTES_MOST


def test_clip_never_breaks_a_letter() -> None:
    assert [clip("aüü", most) for most in (5, 4)] == ["aüü", "a..."]


# -- addresses


def test_nobody_there(server: WireServer) -> None:
    (port,) = free_ports(1)
    with Peer(f"grpc://127.0.0.1:{port}") as peer, pytest.raises(WireError, match="cannot be reached"):
        peer.ping()


@pytest.fixture
def mute() -> Iterator[str]:
    """Takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        yield f"grpc://127.0.0.1:{one.getsockname()[1]}"


def test_somebody_who_says_nothing(mute: str) -> None:
    with Peer(mute, timings=PeerTimings(connect_s=0.2, answer_s=0.2)) as peer:
        for call in (
            peer.ping,
            lambda: peer.subscribe(Subscribe(stream="d/a")),
            lambda: peer.publish(Publish(stream="d/a", publisher="me"), SCHEMA),
            lambda: list(peer.export("bytes")),
        ):
            with pytest.raises(WireError, match=r"did not answer in time|cannot be reached"):
                call()


@pytest.mark.parametrize("address", ["", "nonsense", "http://127.0.0.1:80", "grpc://", "grpc://host"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(WireError, match="is no address of a node"):
        Peer(address)


def test_a_port_that_is_taken(host: TinyHost, server: WireServer, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MachineError, match=f"cannot serve at grpc://127.0.0.1:{server.port}"):
        WireServer(host, f"grpc://127.0.0.1:{server.port}").start()


@pytest.mark.parametrize("location", ["", "grpc://127.0.0.1", "http://127.0.0.1:1", "grpc+tls://127.0.0.1:0"])
def test_where_nobody_can_serve(host: TinyHost, location: str) -> None:
    with pytest.raises(BorealisError):
        WireServer(host, location).start()


def test_a_server_that_does_not_run_has_no_address(host: TinyHost) -> None:
    server = WireServer(host)
    server.close()
    with pytest.raises(WireError, match="does not run"):
        server.address  # noqa: B018


def test_a_connection_is_made_anew_after_a_restart(host: TinyHost) -> None:
    first = WireServer(host).start()
    address = first.address
    with Peer(address) as peer:
        assert peer.ping()
        first.close()
        with pytest.raises(WireError):
            peer.ping()
        with WireServer(host, address):
            until = time.monotonic() + 30
            while True:
                try:
                    assert peer.ping().node == "tiny"
                    break
                except WireError:
                    assert time.monotonic() < until


def test_other_flight_calls_are_refused(server: WireServer) -> None:
    client = flight.FlightClient(server.address)
    descriptor = flight.FlightDescriptor.for_path("d/a")
    for call in (
        lambda: list(client.list_flights()),
        lambda: client.get_flight_info(descriptor),
        lambda: client.get_schema(descriptor),
    ):
        with pytest.raises((flight.FlightError, pa.ArrowException), match="not served here"):
            call()
    assert [a.type for a in client.list_actions()] == ["ack", "ping", "reach"]


def test_facts_are_facts(peer: Peer) -> None:
    assert peer.act("facts", Order(), Facts).threads > 1


class Deaf(flight.FlightServerBase):
    """Lets a conversation in, and reads nothing of it."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        super().__init__("grpc://127.0.0.1:0")

    def do_exchange(self, context: object, descriptor: object, reader: object, writer: object) -> None:
        self.ending.wait(30)


def test_an_order_that_is_not_taken_is_late_as_well() -> None:
    class Large:
        def encode(self) -> bytes:
            return bytes(32 << 20)

    server = Deaf()
    with Peer(f"grpc://127.0.0.1:{server.port}") as peer:
        begun = time.monotonic()
        with pytest.raises(WireError, match=r"did not answer 'echo' within 0\.4 s"):
            peer.say("echo", Large(), Order, within=0.4)
        assert time.monotonic() - begun < 5
    server.ending.set()
    server.shutdown()
