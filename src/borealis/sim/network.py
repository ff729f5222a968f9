"""The network of a simulation: calls between processes that take time, wait behind a cut, break, and keep their order.

What is sent within one call arrives in order, and nothing more is promised. Across a cut nothing arrives: what was sent
waits, as TCP would send it again, and comes when the cut heals, also where its sender has given up by then. A process
that is gone refuses connections, and its open calls break; a paused one takes connections, and says nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import flight

from borealis.sim.kernel import Kernel, Process
from borealis.wire.auth import Security
from borealis.wire.transport import Chunk, QuietLine, Reader, Receipts, Transport, Writer

WINDOW = 16  # chunks that may be under way to a reader that does not read
FOR_EVER_S = 1e9
LOOK_S = 1.0  # between looks of a writer that waits for room whether the call is over
END, CANCELLED = object(), object()  # nothing follows; nothing is wanted any more
RESET, REFUSED = "connection reset", "connection refused"


@dataclass(frozen=True)
class Delays:
    """How long a message is under way, in seconds."""

    least_s: float = 0.000_2
    usual_s: float = 0.000_8  # above that, on average
    late: float = 0.01  # part of them that take longer
    late_s: float = 0.03  # so much, at most


class Answering(Protocol):
    """What answers calls: a node's `wire.service.Service`, or a coordinator's front."""

    def act(self, name: str, body: bytes) -> bytes: ...

    def get(self, ticket: bytes, is_cancelled: Callable[[], bool]) -> tuple[pa.Schema, Any]: ...

    def put(
        self, command: bytes, schema: pa.Schema, read: Callable[[], Chunk | None], write: Callable[[bytes], None]
    ) -> None: ...


Serve = Callable[[Answering, "Call"], None]


class Wires:
    """All connections of a simulation: which process listens where, which ways are cut, what is under way."""

    def __init__(self, kernel: Kernel, delays: Delays | None = None) -> None:
        self.kernel, self.delays = kernel, delays or Delays()
        self._chance = kernel.chance("network")
        self._servers: dict[str, tuple[Process, Answering]] = {}  # by address
        self._cut: set[tuple[str, str]] = set()  # from which machine to which nothing arrives
        self._held: list[_Pipe] = []  # whose messages wait behind a cut
        self._calls: dict[Call, None] = {}  # that are open

    def of(self, process: Process, machine: str) -> SimNetwork:
        """The network as a process of a machine sees it."""
        return SimNetwork(self, process, machine)

    def listen(self, address: str, process: Process, served: Answering) -> None:
        self._servers[address] = (process, served)

    def server(self, address: str) -> tuple[Process, Answering] | None:
        found = self._servers.get(address)
        return None if found is None or found[0].dead else found

    def died(self, process: Process) -> None:
        """A process was killed: its system says so on all its connections, as far as that arrives."""
        for call in list(self._calls):
            if process is call.server:
                call.down.send(_unavailable(RESET))
            elif process is call.client:
                call.up.send(CANCELLED)
                self.forget(call)

    # -- faults

    def cut(self, some: Iterable[str], others: Iterable[str], both: bool = True) -> None:
        """Nothing arrives at `others` that comes from `some`; if `both`, nor the other way."""
        others = list(others)
        for a in some:
            for b in others:
                if a != b:
                    self._cut |= {(a, b), (b, a)} if both else {(a, b)}

    def heal(self) -> None:
        """All ways are open again: what waited comes."""
        self._cut.clear()
        held, self._held = self._held, []
        for pipe in held:
            pipe.flush()

    def break_some(self, part: float) -> int:
        """Break a part of the open calls in the middle; says how many."""
        some = [call for call in self._calls if self._chance.random() < part]
        for call in some:
            call.down.send(_unavailable(RESET))
            call.up.send(CANCELLED)
        return len(some)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    # -- for calls

    def open(self, call: Call) -> None:
        self._calls[call] = None

    def forget(self, call: Call) -> None:
        self._calls.pop(call, None)

    def hold(self, pipe: _Pipe) -> None:
        self._held.append(pipe)

    def delay(self) -> float:
        delays, chance = self.delays, self._chance
        wait = delays.least_s + chance.expovariate(1.0) * delays.usual_s
        return wait + chance.random() * delays.late_s if chance.random() < delays.late else wait


class _Pipe:
    """One direction of a call."""

    __slots__ = ("_at", "_call", "_came", "_flying", "_from", "_items", "_room", "_stuck", "_to", "wires")

    def __init__(self, call: Call, source: str, target: str) -> None:
        self._call, self.wires, self._from, self._to = call, call.wires, source, target
        self._items: deque[Any] = deque()  # that have arrived
        self._flying: deque[Any] = deque()
        self._stuck: deque[Any] = deque()  # behind a cut
        self._at = 0.0  # when the last one arrives
        self._came: Any = None  # events of the reader and of the writer, as soon as there is one
        self._room: Any = None

    def read_by(self, process: Process) -> None:
        self._came = process.machine.threads.event()

    def written_by(self, process: Process) -> None:
        self._room = process.machine.threads.event()

    def send(self, item: Any) -> None:
        self._flying.append(item)
        self._fly()

    def _fly(self) -> None:
        kernel = self.wires.kernel
        self._at = max(self._at, kernel.now + self.wires.delay())
        kernel.at(self._at - kernel.now, self._arrive)

    def _arrive(self) -> None:
        if not self._flying:
            return
        item = self._flying.popleft()
        if self._stuck or self.wires.is_cut(self._from, self._to):
            if not self._stuck:
                self.wires.hold(self)
            self._stuck.append(item)
        elif (mine := self._call.heard(self, item)) is not None:
            self._items.append(mine)
            if self._came is not None:
                self._came.set()

    def flush(self) -> None:
        """What waited behind a cut goes on its way, before what was sent since."""
        count = len(self._stuck)
        self._flying.extendleft(reversed(self._stuck))
        self._stuck.clear()
        for _ in range(count):
            self._fly()

    def take(self, process: Process, within: float) -> Any:
        """The next item; None behind the last. TimeoutError if none comes for so long."""
        clock = process.machine.clock
        until = clock.now() + within
        while not self._items:
            self._came.clear()
            if not self._came.wait(max(0.0, until - clock.now())) and not self._items:
                raise TimeoutError("nothing came")
        item = self._items[0]
        if item is END:
            return None
        if isinstance(item, BaseException):
            raise item
        self._items.popleft()
        if self._room is not None:
            self._room.set()
        return item

    def wait_room(self) -> None:
        """Wait until the reader has read some of what was sent."""
        while len(self._items) + len(self._flying) + len(self._stuck) >= WINDOW and not self._call.over:
            self._room.clear()
            self._room.wait(LOOK_S)


class Call:
    """A call of one process to an address: words up and words down."""

    def __init__(self, network: SimNetwork, address: str, serve: Serve) -> None:
        self.wires, self.client = network.wires, network.process
        self.server: Process | None = None  # as soon as the call has arrived
        self.over = False  # the server need not go on: the call was cancelled, or broke
        there = machine_of(address)
        self.up, self.down = _Pipe(self, network.machine, there), _Pipe(self, there, network.machine)
        self.up.written_by(self.client)
        self.down.read_by(self.client)
        self._address, self._serve = address, serve
        self.wires.open(self)
        self.up.send(serve)

    def heard(self, pipe: _Pipe, item: Any) -> Any:
        """Something arrives: what of it is for the reader; None if nothing is."""
        if pipe is self.up:
            if item is self._serve:
                self._begin()
                return None
            if item is CANCELLED:
                self.over = True
                return _unavailable(RESET) if self.server is not None else None
            return item if self.server is not None and not self.server.dead else None
        return None if self.client.dead else item

    def _begin(self) -> None:
        found = self.wires.server(self._address)
        if found is None:
            self.down.send(_unavailable(REFUSED))
            return
        self.server, served = found
        self.up.read_by(self.server)
        self.down.written_by(self.server)
        if self._serve is _line:  # the system takes a connection, whatever its process does
            self.down.send(b"")
        else:
            self.server.start("call", lambda: self._answer(served))

    def _answer(self, served: Answering) -> None:
        """In a thread of the server."""
        try:
            self._serve(served, self)
            self.down.send(END)
        except (flight.FlightError, OSError) as error:
            self.down.send(error)
        self.over = True

    def cancel(self) -> None:
        """The client is done with it."""
        if not self.over:
            self.up.send(CANCELLED)
        self.wires.forget(self)


def _unavailable(why: str) -> flight.FlightUnavailableError:
    return flight.FlightUnavailableError(why)


# -- servers


def _actor(name: str, body: bytes) -> Serve:
    return lambda served, call: call.down.send(served.act(name, body))


def _line(_: Answering, __: Call) -> None:
    """Nothing is said: no thread serves it."""


def _converse(served: Answering, call: Call) -> None:
    assert call.server is not None
    while (chunk := call.up.take(call.server, FOR_EVER_S)) is not None:
        name, _, body = chunk.app_metadata.partition(b"\n")
        call.down.send(Chunk(None, served.act(name.decode(), body)))


def _streamer(ticket: bytes) -> Serve:
    def stream(served: Answering, call: Call) -> None:
        schema, items = served.get(ticket, lambda: call.over)
        call.down.send(schema)
        try:
            for item in items:
                call.down.wait_room()
                if call.over:
                    return
                call.down.send(Chunk(*item) if isinstance(item, tuple) else Chunk(item, None))
        finally:
            items.close()

    return stream


def _taker(command: bytes, schema: pa.Schema) -> Serve:
    def take(served: Answering, call: Call) -> None:
        server = call.server
        assert server is not None
        served.put(command, schema, lambda: call.up.take(server, FOR_EVER_S), call.down.send)

    return take


# -- clients


class SimNetwork:
    """The network as one process sees it."""

    def __init__(self, wires: Wires, process: Process, machine: str) -> None:
        self.wires, self.process, self.machine = wires, process, machine

    def connect(self, address: str, security: Security, connect_s: float, silence_s: float) -> Transport:
        return SimTransport(self, address, connect_s)

    def line(self, address: str, within: float) -> QuietLine:
        call = SimTransport(self, address, within).call(_line)
        try:
            call.down.take(self.process, within)
        except flight.FlightUnavailableError:
            call.cancel()
            raise ConnectionRefusedError(REFUSED) from None
        except TimeoutError:
            call.cancel()
            raise
        return _Line(self.process, call)


def machine_of(address: str) -> str:
    """The name of the machine in an address.

    >>> machine_of(address_of("node1"))
    'node1'
    """
    return address.partition("://")[2].rpartition(":")[0]


def address_of(machine: str) -> str:
    return f"grpc://{machine}:1"


class _Line:
    """Breaks when the process on the other side is gone."""

    def __init__(self, process: Process, call: Call) -> None:
        self._process, self._call = process, call

    def wait(self, seconds: float) -> bool:
        try:
            self._call.down.take(self._process, seconds)
        except TimeoutError:
            return False
        except flight.FlightError:
            pass
        return True

    def close(self) -> None:
        self._call.cancel()


class SimTransport:
    """A connection to one node."""

    def __init__(self, network: SimNetwork, address: str, connect_s: float) -> None:
        self._network, self._address, self._connect_s = network, address, connect_s

    def call(self, serve: Serve) -> Call:
        self._network.process.check()
        return Call(self._network, self._address, serve)

    def action(self, name: str, body: bytes, within: float | None) -> list[bytes]:
        call = self.call(_actor(name, body))
        try:
            return [call.down.take(call.client, self._connect_s if within is None else within)]
        except TimeoutError as error:
            raise flight.FlightTimedOutError(str(error)) from None
        finally:
            call.cancel()

    def exchange(self) -> tuple[Writer, Reader]:
        call = self.call(_converse)
        return _CallWriter(call), _CallReader(call, None)

    def get(self, ticket: bytes, within: float) -> Reader:
        call = self.call(_streamer(ticket))
        try:
            return _CallReader(call, call.down.take(call.client, within))
        except BaseException:
            call.cancel()
            raise

    def put(self, command: bytes, schema: pa.Schema) -> tuple[Writer, Receipts]:
        call = self.call(_taker(command, schema))
        return _CallWriter(call), _CallReceipts(call)

    def close(self) -> None:
        """Calls are ended by those who opened them."""


class _CallReader:
    def __init__(self, call: Call, schema: pa.Schema | None) -> None:
        self._call, self.schema = call, schema

    def read(self, within: float) -> Chunk | None:
        try:
            chunk: Chunk | None = self._call.down.take(self._call.client, within)
            return chunk
        except TimeoutError:
            self._call.cancel()
            raise

    def cancel(self) -> None:
        self._call.cancel()
        self._call.down.send(flight.FlightCancelledError("cancelled"))


class _CallWriter:
    def __init__(self, call: Call) -> None:
        self._call = call

    def write_with_metadata(self, batch: pa.RecordBatch, words: bytes) -> None:
        self._send(Chunk(batch, words))

    def write_metadata(self, words: bytes) -> None:
        self._send(Chunk(None, words))

    def _send(self, chunk: Chunk) -> None:
        self._call.client.check()
        self._call.up.wait_room()
        self._call.up.send(chunk)

    def done_writing(self) -> None:
        self._call.up.send(END)

    def close(self) -> None:
        self._call.cancel()


class _CallReceipts:
    def __init__(self, call: Call) -> None:
        self._call = call

    def read(self) -> pa.Buffer | None:
        data = self._call.down.take(self._call.client, FOR_EVER_S)
        return None if data is None else pa.py_buffer(data)
