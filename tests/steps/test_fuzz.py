"""Malformed input at every endpoint of a node's Flight server, by random choice from a seed.

Whatever comes, the server answers with an error or closes the connection; it stays alive, its running streams do not
notice, and its memory does not grow. A failure prints the seed; `BOREALIS_FUZZ_SEED=n` replays its choices, and
`BOREALIS_FUZZ=full` makes twenty times as many.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "wire"))

from hosting import SCHEMA, Facts, Order, rows

from borealis.errors import BorealisError
from borealis.wire.auth import Security
from borealis.wire.client import Peer
from borealis.wire.messages import Ack, Acknowledgements, BatchHead, Export, Problem, Publish, Subscribe
from borealis.wire.waiting import PeerTimings

HOST = Path(__file__).parents[1] / "unit" / "wire" / "hosting.py"
SEED = int(os.environ.get("BOREALIS_FUZZ_SEED", "20261115"))
TIMES = 20 if os.environ.get("BOREALIS_FUZZ") == "full" else 1
ANSWER_S_MOST = 10.0  # on a busy machine
GROWTH_BYTES_MOST = 48 << 20  # caches, arenas of new threads
CALLS = (
    "Handshake",
    "ListFlights",
    "GetFlightInfo",
    "PollFlightInfo",
    "GetSchema",
    "DoGet",
    "DoPut",
    "DoExchange",
    "DoAction",
    "ListActions",
    "NoSuchCall",
)


# -- the victim, and a stream that must not notice


class Victim:
    """A host in a process of its own, with a stream that grows slowly and a subscriber that checks every tuple."""

    def __init__(self, token: str | None) -> None:
        streams = {"d/steady": {}, "d/fuzz": {"bytes_most": 8 << 20, "keep_bytes": 1 << 20, "full": "drop"}}
        given = json.dumps({"streams": streams, "token": token})
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, str(HOST), given], stdin=pipe, stdout=pipe, stderr=pipe)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().decode().strip()
        assert self.address, self.process.communicate()[1]
        self.port = int(urlsplit(self.address).port or 0)
        self.security = Security(token=token)
        self.peer = Peer(self.address, self.security, PeerTimings(connect_s=ANSWER_S_MOST, answer_s=ANSWER_S_MOST))
        self.seen, self.stopped, self.failed = 0, threading.Event(), ""
        self.subscription = self.peer.subscribe(Subscribe(stream="d/steady"))
        self.threads = [threading.Thread(target=t, daemon=True) for t in (self._read, self._publish)]
        for thread in self.threads:
            thread.start()

    def _read(self) -> None:
        try:
            for section in self.subscription:
                assert section.first == self.seen
                assert section.rows.column("x").to_pylist() == list(range(section.first, section.stop))
                self.seen = section.stop
            assert self.stopped.is_set(), "the steady stream ended"
        except (BorealisError, AssertionError) as error:
            self.failed = f"the steady reader was disturbed: {error}"

    def _publish(self) -> None:
        try:
            with self.peer.publish(Publish(stream="d/steady", publisher="calm"), SCHEMA) as publication:
                number = 0
                while not self.stopped.wait(0.01):
                    publication.send(rows(5 * number, 5), BatchHead(number=number))
                    publication.wait(number, within=ANSWER_S_MOST)
                    number += 1
            self.sent = 5 * number
        except BorealisError as error:
            self.failed = self.failed or f"the steady publisher was disturbed: {error}"

    def facts(self) -> Facts:
        return self.peer.act("facts", Order(), Facts)

    def check(self, doing: str) -> None:
        """Alive, and undisturbed."""
        assert self.process.poll() is None, f"{doing}: the server died ({self.process.returncode})"
        assert not self.failed, f"{doing}: {self.failed}"
        assert self.peer.ping().node == "tiny"

    def finish(self) -> str:
        """Everything that was sent on the steady stream has arrived; returns what the server complained of."""
        self.stopped.set()
        self.threads[1].join(ANSWER_S_MOST)
        assert not self.failed, self.failed
        until = time.monotonic() + ANSWER_S_MOST
        while self.seen < self.sent:
            assert time.monotonic() < until
            time.sleep(0.01)
        self.peer.close()
        self.threads[0].join(ANSWER_S_MOST)
        assert not self.failed, self.failed
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode == 0
        return said.decode("utf-8", "replace")


@pytest.fixture(params=[None, "right"], ids=["open", "token"])
def victim(request: pytest.FixtureRequest) -> Iterator[Victim]:
    one = Victim(request.param)
    yield one
    one.stopped.set()
    if one.process.poll() is None:
        one.process.kill()
    with suppress(ValueError):
        one.process.communicate()


@pytest.fixture
def chance() -> random.Random:
    print(f"BOREALIS_FUZZ_SEED={SEED}")
    return random.Random(SEED)


def noise(chance: random.Random, most: int = 2000) -> bytes:
    return chance.randbytes(chance.choice([0, 1, 4, 9, chance.randrange(most)]))


def bent(chance: random.Random, data: bytes) -> bytes:
    """The same with something wrong: bytes changed, cut out, doubled, or put in."""
    if not data:
        return noise(chance, 50)
    made = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5, 30])):
        at = chance.randrange(len(made)) if made else 0
        match chance.randrange(6):
            case 0 | 1:
                made[at : at + 1] = bytes([chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])])
            case 2:
                made[at : at + 4] = struct.pack("<i", chance.choice([-1, 0, 1 << 30, -(1 << 31), chance.randrange(99)]))
            case 3:
                del made[at : at + chance.randrange(1, 20)]
            case 4:
                made[at:at] = made[at : at + chance.randrange(40)]
            case _:
                made[at:at] = noise(chance, 20)
    return bytes(made)


# -- sockets: bytes that are no HTTP/2, and HTTP/2 that is no gRPC

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def header(name: str, value: str) -> bytes:
    """A header field as it is, without tables."""
    return b"\0" + b"".join(_number(len(t)) + t for t in (name.encode(), value.encode()))


def _number(n: int) -> bytes:
    if n < 127:
        return bytes([n])
    out, n = bytearray([127]), n - 127
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    out.append(n)
    return bytes(out)


def request(call: str, token: str | None, more: tuple[tuple[str, str], ...] = ()) -> bytes:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", f"/arrow.flight.protocol.FlightService/{call}")]
    fields += [(":authority", "127.0.0.1"), ("content-type", "application/grpc"), ("te", "trailers")]
    fields += [("authorization", f"Bearer {token}")] if token else []
    return b"".join(header(n, v) for n, v in [*fields, *more])


def message(body: bytes) -> bytes:
    """A gRPC message."""
    return b"\0" + struct.pack(">I", len(body)) + body


def field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(n: int) -> bytes:
    out = bytearray()
    while n >= 128:
        out.append(n % 128 + 128)
        n //= 128
    out.append(n)
    return bytes(out)


def exchange(port: int, data: bytes, *, half_close: bool = True) -> str:
    """Send this on a new connection and say how it ended; it must end soon."""
    until = time.monotonic() + ANSWER_S_MOST
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S_MOST) as one:
        try:
            one.sendall(data)
            if half_close:
                one.shutdown(socket.SHUT_WR)
            got = b""
            while time.monotonic() < until:
                one.settimeout(max(0.01, until - time.monotonic()))
                piece = one.recv(1 << 16)
                if not piece:
                    return "closed"
                got += piece
                if (how := answered(got)) is not None:
                    return how
        except (ConnectionError, BrokenPipeError):
            return "reset"
        except TimeoutError:
            pass
    return "nothing"


def answered(got: bytes) -> str | None:
    """Whether these frames hold the end of stream 1, or of the connection."""
    while len(got) >= 9:
        size, kind, flags = int.from_bytes(got[:3], "big"), got[3], got[4]
        stream = int.from_bytes(got[5:9], "big") & 0x7FFFFFFF
        if kind == GOAWAY:
            return "goaway"
        if stream == 1 and (kind == RST or (kind in (HEADERS, DATA) and flags & END_STREAM)):
            return "answered"
        got = got[9 + size :]
    return None


def random_bytes(chance: random.Random, token: str | None) -> bytes:
    """Nothing that makes sense."""
    return chance.choice([b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n", PREFACE[:9]]) + noise(chance)


def random_frames(chance: random.Random, token: str | None) -> bytes:
    """HTTP/2 with frames of all kinds in no order."""
    made = PREFACE + (frame(SETTINGS, 0, 0) if chance.random() < 0.8 else b"")
    for _ in range(chance.randrange(1, 12)):
        stream = chance.choice([0, 1, 1, 2, 3, 5, 0x7FFFFFFF])
        made += frame(chance.randrange(12), chance.randrange(256), stream, noise(chance, 300))
    if chance.random() < 0.3:
        made += struct.pack(">IBI", 0xFFFFFF00 | chance.randrange(10), 0, 1)[:9] + noise(chance)  # 16 MB announced
    return made


def random_call(chance: random.Random, token: str | None) -> bytes:
    """A well-formed call of some method with a body that is not."""
    call = chance.choice(CALLS)
    bodies = valid_messages(chance, call)
    body = b"".join(message(bent(chance, b) if chance.random() < 0.6 else b) for b in bodies)
    match chance.randrange(8):
        case 0:
            body = noise(chance)
        case 1:
            body = bent(chance, body)
        case 2:
            body = b"\0" + struct.pack(">I", chance.choice([1 << 31, 0xFFFFFFFF, 1 << 26])) + noise(chance)  # announced
        case 3:
            body = b"\1" + body[1:]  # "compressed"
        case _:
            pass
    more = (
        (chance.choice(["x-a", "grpc-timeout", "grpc-encoding", "authorization"]), chance.choice(["", "1n", "zz"])),
    )
    head = request(call, token, more if chance.random() < 0.2 else ())
    made = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, head)
    for at in range(0, len(body), 16_000):
        made += frame(DATA, 0, 1, body[at : at + 16_000])
    return made + frame(DATA, END_STREAM, 1)


def valid_messages(chance: random.Random, call: str) -> list[bytes]:
    """What a call takes: protobuf made by hand, so that every byte of it can be bent."""
    stream = chance.choice(["d/fuzz", "d/fuzz", "d/steady", "d/none"])
    subscribe = Subscribe(
        stream=stream, start=chance.choice(["oldest", "newest", 0, 7]), stop=chance.choice([0, 1, 50])
    )
    descriptor = b"\x08\x02" + field(2, Publish(stream="d/fuzz", publisher="wild").encode())
    match call:
        case "DoGet":
            ticket = chance.choice([subscribe.encode(), Export(export="bytes", body="[5, 3000000]").encode()])
            return [field(1, ticket)]
        case "DoAction":
            ack = Acknowledgements(acks=[Ack(stream=stream, reader="wild", level=1, upto=0)]).encode()
            name = chance.choice([b"ack", b"ping", b"echo", b"facts", b"\xff\xfe", b""])
            return [field(1, name) + field(2, chance.choice([ack, Order(rows=3).encode(), noise(chance)]))]
        case "DoPut" | "DoExchange":
            batch = rows(0, chance.choice([0, 1, 40]), width=chance.choice([0, 3, 200]))
            schema, data = SCHEMA.serialize().to_pybytes(), batch.serialize().to_pybytes()
            size = 8 + struct.unpack("<I", data[4:8])[0]
            head = BatchHead(number=chance.choice([0, 1, 5])).encode()
            first = field(1, descriptor) + field(2, schema[8:])
            body = field(2, data[8:size]) + field(3, head) + field(1000, data[size:])
            return [first, *[body] * chance.randrange(4)]
        case "Handshake":
            return [b"\x08\x01" + field(2, noise(chance, 50))]
        case "ListFlights":
            return [field(1, noise(chance, 50))]
        case _:
            return [descriptor]


@pytest.mark.timeout(240)
def test_whatever_comes_by_socket_is_answered_or_cut_off(victim: Victim, chance: random.Random) -> None:
    token = victim.security.token
    ways: list[tuple[Callable[..., bytes], int]] = [(random_bytes, 120), (random_frames, 120), (random_call, 500)]
    for way, times in ways:  # once to warm up, with fewer
        for _ in range(times // 10):
            exchange(victim.port, way(chance, token))
    before = victim.facts()
    for way, times in ways:
        ends: dict[str, int] = {}
        for number in range(times * TIMES):
            data = way(chance, token if chance.random() < 0.9 else "wrong")
            how = exchange(victim.port, data)
            ends[how] = ends.get(how, 0) + 1
            assert how != "nothing", f"{way.__name__} {number}: no answer to {data[:200]!r}"
            if number % 50 == 0:
                victim.check(f"{way.__name__} {number}")
        print(way.__name__, ends)
    open_ones = [socket.create_connection(("127.0.0.1", victim.port)) for _ in range(50)]  # who never say anything
    victim.check("mute connections")
    for one in open_ones:
        one.close()
    victim.check("the end")
    after = victim.facts()
    assert after.rss_bytes - before.rss_bytes < GROWTH_BYTES_MOST
    assert after.threads <= before.threads + 40
    assert victim.finish() == ""


# -- Flight: calls that are well-formed, and wrong


def wrong_calls(
    chance: random.Random, client: flight.FlightClient, options: flight.FlightCallOptions
) -> Callable[[], object]:
    """One call that has to fail."""
    subscribe = {"v": 1, "stream": "d/fuzz", "start": "oldest", "stop": 0}
    wrong_field = chance.choice(
        [
            {"v": 2},
            {"v": "1"},
            {"v": None},
            {"stream": "no/such"},
            {"stream": "no slash"},
            {"stream": "../../etc/passwd"},
            {"stream": 7},
            {"stream": "x/" * 500},
            {"start": -1},
            {"start": 2**63},
            {"start": 1e300},
            {"start": "tomorrow"},
            {"start": 10**12},
            {"stop": -5},
            {"boundary": 2**64},
            {"epoch": "of-yore"},
            {"epoch": "e" * 100_000},
            {"reader": "~sneaky"},
            {"reader": "a b"},
            {"reader": "r" * 300},
            {"extra": 1},
            {"export": "bytes"},
        ]
    )
    ticket = json.dumps(subscribe | wrong_field).encode()
    head = chance.choice(
        [b"", b"{}", b"[]", b"null", b'{"v":2,"number":0}', b'{"v":1,"number":-1}', b"\xff", b"[" * 100_000]
    )
    schema = chance.choice(
        [
            pa.schema([]),
            pa.schema([("x", pa.string()), ("s", pa.int64())]),
            pa.schema([("x", pa.int64()), ("s", pa.list_(pa.list_(pa.string())))]),
            pa.schema([(f"c{i}", pa.float16()) for i in range(500)]),
            pa.schema([("x", pa.int64()), ("s", pa.dictionary(pa.int8(), pa.string()))]),
        ]
    )
    good = flight.FlightDescriptor.for_command(Publish(stream="d/fuzz", publisher="wild").encode())
    odd = chance.choice(
        [
            flight.FlightDescriptor.for_path("d", "fuzz"),
            flight.FlightDescriptor.for_command(b""),
            flight.FlightDescriptor.for_command(ticket),
            flight.FlightDescriptor.for_command(noise(chance)),
        ]
    )
    action = chance.choice(["ack", "ping/../ack", "append", "nothing", "", "x" * 5000, "é"])

    def put(descriptor: flight.FlightDescriptor, batch: pa.RecordBatch, metadata: bytes) -> None:
        writer, _ = client.do_put(descriptor, batch.schema, options)
        try:
            writer.write_with_metadata(batch, metadata)
        finally:
            writer.close()

    def exchanged() -> None:
        writer, reader = client.do_exchange(odd, options)
        try:
            writer.write_metadata(
                chance.choice([b"ack", b"nothing\n{}", b"ack\n" + noise(chance), b"x" * 500, b"\xff\n"])
            )
            reader.read_chunk()
        finally:
            writer.close()

    def empty(columns: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in columns], schema=columns)

    offsets = struct.pack("<iii", 0, chance.choice([-1, 4, 1 << 30, -(1 << 31)]), 3)
    torn = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])
    return chance.choice(
        [
            lambda: client.do_get(flight.Ticket(ticket), options).read_all(),
            lambda: client.do_get(flight.Ticket(noise(chance)), options).read_all(),
            lambda: client.do_get(flight.Ticket(b'{"v":1,"export":"bytes","body":"[1,2"}'), options).read_all(),
            lambda: list(client.do_action(flight.Action(action, noise(chance)), options)),
            lambda: put(odd, rows(0, 1), b'{"v":1,"number":0}'),
            lambda: put(good, empty(schema), b'{"v":1,"number":0}'),
            lambda: put(good, rows(0, 3), head),
            lambda: put(good, rows(0, 3), b'{"v":1,"number":999999}'),
            lambda: put(
                good, pa.RecordBatch.from_arrays([pa.array([1, 2]), torn], schema=SCHEMA), b'{"v":1,"number":0}'
            ),
            lambda: list(client.list_flights(options=options)),
            lambda: client.get_flight_info(odd, options),
            lambda: client.get_schema(odd, options),
            exchanged,
        ]
    )


@pytest.mark.timeout(240)
def test_wrong_calls_get_clear_answers(victim: Victim, chance: random.Random) -> None:
    options = flight.FlightCallOptions(timeout=ANSWER_S_MOST, headers=victim.security.headers())
    before = victim.facts()
    told = 0
    with flight.FlightClient(victim.address) as client:
        for number in range(400 * TIMES):
            call = wrong_calls(chance, client, options)
            with pytest.raises((flight.FlightError, pa.ArrowException)) as refused:
                call()
            assert not isinstance(refused.value, flight.FlightTimedOutError | flight.FlightUnavailableError)
            extra = getattr(refused.value, "extra_info", b"")
            if extra:
                told += 1
                assert Problem.decode(extra).message
            if number % 50 == 0:
                victim.check(f"wrong call {number}")
    assert told > 300 * TIMES
    victim.check("the end")
    after = victim.facts()
    assert after.rss_bytes - before.rss_bytes < GROWTH_BYTES_MOST
    fuzz = next(q for q in after.queues if q.stream == "d/fuzz")
    assert fuzz.next_id == 0
    assert victim.finish() == ""


@pytest.mark.timeout(240)
def test_batches_too_large_leave_nothing_behind(victim: Victim) -> None:
    options = flight.FlightCallOptions(timeout=60, headers=victim.security.headers())
    descriptor = flight.FlightDescriptor.for_command(Publish(stream="d/fuzz", publisher="wild").encode())
    large = rows(0, 68, width=1 << 20)

    def put() -> None:
        writer, _ = client.do_put(descriptor, SCHEMA, options)
        try:
            writer.write_with_metadata(large, BatchHead(number=0).encode())
        finally:
            writer.close()

    before = victim.facts().rss_bytes
    with flight.FlightClient(victim.address) as client:
        for number in range(6):
            with pytest.raises(flight.FlightServerError, match="a batch of 71"):
                put()
            with pytest.raises(flight.FlightServerError, match="an order of 71"):
                list(client.do_action(flight.Action("echo", bytes(68 << 20)), options))
            victim.check(f"large batch {number}")
    until = time.monotonic() + ANSWER_S_MOST
    while (grown := victim.facts().rss_bytes - before) > GROWTH_BYTES_MOST:
        assert time.monotonic() < until, f"{grown:,} bytes are kept"
        time.sleep(0.1)
    assert victim.finish() == ""


@pytest.mark.timeout(120)
def test_clients_that_break_off_in_the_middle(victim: Victim, chance: random.Random) -> None:
    """Calls that begin well and then are gone, as with a pulled plug."""
    token = victim.security.token
    before = victim.facts()
    for number in range(60 * TIMES):
        call = chance.choice(["DoGet", "DoPut", "DoAction"])
        body = b"".join(message(m) for m in valid_messages(chance, call))
        made = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, END_HEADERS, 1, request(call, token))
        made += frame(DATA, 0, 1, body)
        with socket.create_connection(("127.0.0.1", victim.port)) as one:
            one.sendall(made[: chance.randrange(len(PREFACE), len(made) + 1)])
            if chance.random() < 0.5:
                one.settimeout(0.05)
                with suppress(TimeoutError, ConnectionError):
                    one.recv(1000)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, no goodbye
        if number % 20 == 0:
            victim.check(f"broken off {number}")
    until = time.monotonic() + ANSWER_S_MOST
    while any(r.startswith("~") for q in victim.facts().queues if q.stream == "d/fuzz" for r in q.readers):
        assert time.monotonic() < until, "readers that are gone are still kept for"
        time.sleep(0.05)
    assert victim.facts().rss_bytes - before.rss_bytes < GROWTH_BYTES_MOST
    assert victim.finish() == ""
