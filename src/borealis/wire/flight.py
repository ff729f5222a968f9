"""Connections by Arrow Flight. gRPC waits forever for a machine that is gone: here each wait has its end."""

from __future__ import annotations

import select
import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import flight

from borealis.clock import WALL
from borealis.threads import SystemThreads, Task
from borealis.wire.auth import Security
from borealis.wire.problems import BROKEN
from borealis.wire.transport import Chunk, QuietLine, Reader, Receipts, Transport, Writer

WINDOW_BYTES = 4 << 20  # so much may be under way to a subscriber that does not read
FRAME_BYTES = 1 << 20  # large ones save work; gRPC's own choice is 16 KB
NEVER_MS = 24 * 3600 * 1000  # gRPC's own pings are not wanted: servers take them for an attack
WATCH_S = 0.1  # so often calls that wait are looked at
GREETING_BYTES = 4096  # of a server to a new connection; more is read in parts

THREADS = SystemThreads()


class FlightNetwork:
    """The network of this machine."""

    def __init__(self) -> None:
        self._watch = _Watch()

    def connect(self, address: str, security: Security, connect_s: float, silence_s: float) -> Transport:
        return _Connection(self._watch, address, security, connect_s, silence_s)

    def line(self, address: str, within: float) -> QuietLine:
        place = urlsplit(address)
        return _Line(socket.create_connection((place.hostname or "", place.port or 0), within))


class _Connection:
    def __init__(self, watch: _Watch, address: str, security: Security, connect_s: float, silence_s: float) -> None:
        options = [
            ("grpc.enable_http_proxy", 0),  # nodes talk to one another, whatever the environment says of the web
            ("grpc.min_reconnect_backoff_ms", int(connect_s * 1000)),  # of one attempt to connect
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
            ("grpc.http2.max_frame_size", FRAME_BYTES),
            ("grpc.keepalive_time_ms", NEVER_MS),  # set at all, it makes the system give up on unanswered packets
            ("grpc.keepalive_timeout_ms", int(silence_s * 1000)),
        ]
        tls = {"tls_root_certs": security.roots()} if address.startswith("grpc+tls://") else {}
        self._watch, self._headers = watch, security.headers()
        self._client = flight.FlightClient(address, generic_options=options, **tls)

    def action(self, name: str, body: bytes, within: float | None) -> list[bytes]:
        answers = self._client.do_action(flight.Action(name, body), self._options(within))
        return [answer.body.to_pybytes() for answer in answers]

    def exchange(self) -> tuple[Writer, Reader]:
        descriptor = flight.FlightDescriptor.for_command(b"talk")
        made = _Conversation(self._watch, *self._client.do_exchange(descriptor, self._options()))
        return made, made

    def get(self, ticket: bytes, within: float) -> Reader:
        wanted = flight.Ticket(ticket)
        return _Call(self._watch, _first_answer(lambda: self._client.do_get(wanted, self._options()), within))

    def put(self, command: bytes, schema: pa.Schema) -> tuple[Writer, Receipts]:
        descriptor = flight.FlightDescriptor.for_command(command)
        writer, receipts = self._client.do_put(descriptor, schema, self._options())
        return writer, receipts

    def close(self) -> None:
        self._client.close()

    def _options(self, within: float | None = None) -> flight.FlightCallOptions:
        return flight.FlightCallOptions(timeout=within, headers=self._headers)


def _first_answer(ask: Callable[[], flight.FlightStreamReader], within: float) -> flight.FlightStreamReader:
    """The stream that was asked for. Flight waits for its first word without limit, even from a frozen machine."""
    is_late = False

    def asked() -> flight.FlightStreamReader | None:
        try:
            reader = ask()
        except BROKEN:
            if is_late:
                return None
            raise
        if is_late:
            reader.cancel()
        return reader

    try:
        return THREADS.start("wire-asked", asked).result(within)
    except TimeoutError:
        is_late = True
        raise


class _Call:
    """A call in which this process waits for the server, each time until a deadline."""

    def __init__(self, watch: _Watch, reader: flight.FlightStreamReader) -> None:
        self._reader = reader
        self._late = False
        self._until: float | None = None
        watch.add(self)

    @property
    def schema(self) -> pa.Schema:
        return self._reader.schema

    def read(self, within: float) -> Chunk | None:
        self._until = WALL.now() + within
        try:
            return self._next()
        except StopIteration:
            return None
        except BROKEN as error:
            if self._late:
                raise TimeoutError(f"no answer within {within:g} s") from error
            raise
        finally:
            self._until = None

    def _next(self) -> Chunk:
        chunk = self._reader.read_chunk()
        return Chunk(chunk.data, chunk.app_metadata)

    def cancel(self) -> None:
        self._reader.cancel()

    def check(self, now: float) -> None:
        """End it if the answer is late."""
        until = self._until
        if until is not None and now > until:
            self._late = True
            self._reader.cancel()


class _Conversation(_Call):
    """Words and answers by turns. Words are sent with the `read` of their answer, so that one deadline holds for both:
    a frozen machine does not even take them."""

    def __init__(
        self, watch: _Watch, writer: flight.FlightStreamWriter, reader: flight.MetadataRecordBatchReader
    ) -> None:
        super().__init__(watch, reader)
        self._writer = writer
        self._words: bytes | None = None

    def write_with_metadata(self, batch: pa.RecordBatch, words: bytes) -> None:
        raise NotImplementedError("a conversation is of words")

    def write_metadata(self, words: bytes) -> None:
        self._words = words

    def done_writing(self) -> None:
        self._writer.done_writing()

    def close(self) -> None:
        self._writer.close()

    def _next(self) -> Chunk:
        words, self._words = self._words, None
        if words is not None:
            self._writer.write_metadata(words)
        return super()._next()


class _Watch:
    """Ends the calls of this process that are late."""

    def __init__(self) -> None:
        self._lock = THREADS.lock()
        self._watched: weakref.WeakSet[_Call] = weakref.WeakSet()
        self._looking: Task[None] | None = None

    def add(self, call: _Call) -> None:
        with self._lock:
            self._watched.add(call)
            if self._looking is None or not self._looking.is_alive():
                self._looking = THREADS.start("wire-watch", self._look)

    def _look(self) -> None:
        while True:
            WALL.sleep(WATCH_S)
            with self._lock:
                watched = list(self._watched)
                if not watched:
                    self._looking = None
                    return
            for call in watched:
                call.check(WALL.now())
            del watched, call


class _Line:
    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected

    def wait(self, seconds: float) -> bool:
        until = WALL.now() + seconds
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        while (left := until - WALL.now()) > 0:
            if waiting.poll(left * 1000) and not self._is_open():
                return True
        return False

    def close(self) -> None:
        self._socket.close()

    def _is_open(self) -> bool:
        """Whether what came on the line is a greeting, not its end."""
        with suppress(OSError):
            return bool(self._socket.recv(GREETING_BYTES))
        return False


FLIGHT = FlightNetwork()
