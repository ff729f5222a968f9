"""What a coordinator is tested with: nodes that carry out orders and report what is on them, without Spark.

They are the coordinator's environment. They keep the promises of real nodes (orders are harmless when repeated, a unit
that is taken over is dropped at its source, queues are real ones), and can be made to fail.
"""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from borealis import Diagram, __version__, window
from borealis.clock import ManualClock
from borealis.coordinator.catalog import Catalog
from borealis.coordinator.cluster import Cluster
from borealis.diagram import passes
from borealis.diagram.cut import piece_of
from borealis.diagram.spec import LATE, Spec
from borealis.errors import BorealisError, ClusterError, StreamError, WireError
from borealis.machine import Machine
from borealis.streams.queue import OutputQueue
from borealis.streams.section import Section
from borealis.threads import SystemThreads, Task
from borealis.wire import messages as m
from borealis.wire.problems import error_of, problem_of

M = TypeVar("M", bound=m.Message)
T = TypeVar("T")
PACKETS = pa.schema([("ts", pa.timestamp("us", "UTC")), ("src", pa.string()), ("bytes", pa.int32())])
NONE = np.empty(0, np.int64)


def traffic(name: str = "traffic") -> str:
    """One input, three boxes in a row, one output."""
    d = Diagram(name)
    packets = d.input("packets", "ts TIMESTAMP, src STRING, bytes INT", slack="1 second")
    big = packets.filter("bytes > 10", name="big").map({"ts": "ts", "src": "src", "n": "bytes"}, name="slim")
    big.aggregate(by="src", over=window("2 seconds"), name="agg", n="count(*)").output("per_source")
    return d.to_yaml()


def two_sides() -> str:
    """Two inputs that are joined, and the late tuples of one."""
    d = Diagram("sides")
    left = d.input("left", "ts TIMESTAMP, k INT")
    right = d.input("right", "ts TIMESTAMP, k INT")
    left.filter("k > 0", name="some").join(right, on="left.k = right.k", within="1 second", name="both").output("pairs")
    left.late.output("too_late")
    return d.to_yaml()


class StandInEntry:
    """An entry point without times and boundaries."""

    def __init__(self, queue: OutputQueue) -> None:
        self.queue, self.schema = queue, queue.schema
        self.publishers: dict[str, int] = {}
        self.heads: list[m.BatchHead] = []  # of what was taken

    def known(self, publisher: str) -> m.Receipt:
        """How far a publisher is."""
        return m.Receipt(number=self.publishers.get(publisher, -1), next_id=self.queue.next_id)

    def take(self, publisher: str, head: m.BatchHead, batch: pa.RecordBatch) -> m.Receipt:
        """Each number once."""
        if head.number > self.publishers.get(publisher, -1):
            if batch.num_rows:
                give(self.queue, batch)
            self.publishers[publisher] = head.number
            self.heads.append(head)
        return self.known(publisher)


def packets(count: int) -> pa.RecordBatch:
    """Rows of the input, each with other bytes."""
    rows = [{"ts": 1_000_000 * i, "src": "a", "bytes": i} for i in range(count)]
    return pa.RecordBatch.from_pylist(rows, schema=PACKETS)


def give(queue: OutputQueue, batch: pa.RecordBatch, bound: int | None = None) -> None:
    """Append rows to a queue, with a boundary behind them."""
    first, rows = queue.next_id, batch.num_rows
    at = NONE if bound is None else np.array([first + rows], np.int64)
    bounds = NONE if bound is None else np.array([bound], np.int64)
    queue.append(Section(first, batch, np.arange(rows, dtype=np.int64), at, bounds, queue.boundary))


@dataclass
class StandInNode:
    """One node: a Host for the wire, or to be called directly."""

    name: str
    address: str
    incarnation: str = "1"
    spark: Any = "ready"
    units: dict[tuple[str, str], m.UnitOrder] = field(default_factory=dict)
    points: dict[tuple[str, str], m.UnitOrder] = field(default_factory=dict)  # entry points
    states: dict[tuple[str, str], str] = field(default_factory=dict)
    entries: dict[str, StandInEntry] = field(default_factory=dict)
    guards: dict[tuple[str, str], m.Guard] = field(default_factory=dict)  # of units
    queues: dict[str, OutputQueue] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)
    orders: list[str] = field(default_factory=list)  # in the order they came, as "start traffic.u1"
    fail: dict[str, BorealisError] = field(default_factory=dict)  # by action: refused with this, nothing done
    lose: dict[str, BorealisError] = field(default_factory=dict)  # by action: done, but the answer is this
    before: dict[str, Callable[[], None]] = field(default_factory=dict)  # by action: called first
    peers: Callable[[str], StandInNode] | None = None
    stopped: bool = False
    heard: list[int] = field(default_factory=list)  # incarnations that depose one of its units

    def status(self) -> m.NodeStatus:
        """Its heartbeat."""
        units = [
            m.UnitStatus(
                diagram=d,
                unit=u,
                state=self.states[d, u],  # type: ignore[arg-type]
                boxes=order.boxes,
                guard=_guard_status(self.guards.get((d, u))),
            )
            for (d, u), order in {**self.points, **self.units}.items()
        ]
        return m.NodeStatus(
            node=self.name,
            incarnation=self.incarnation,
            version=__version__,
            address=self.address,
            http="http://127.0.0.1:1",
            pid=4242,
            host="here",
            master="local[1]",
            spark=self.spark,
            cores=1,
            units=[unit for unit in units if unit.boxes],
            queues=[queue.status() for queue in self.queues.values()],
            entries=[unit for unit in units if not unit.boxes],
        )

    # -- Host

    def queue(self, stream: str) -> OutputQueue:
        """A stream that is served here."""
        if stream not in self.queues:
            raise StreamError(f"node {self.name} serves no stream {stream}")
        return self.queues[stream]

    def entry(self, stream: str) -> StandInEntry:
        """An entry point that is here."""
        if stream not in self.entries:
            raise StreamError(f"node {self.name} is not the entry point of {stream}")
        return self.entries[stream]

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        """Nothing."""
        raise WireError("nothing to export")

    def deposed(self, stream: str, incarnation: int) -> None:
        """Noted."""
        self.heard.append(incarnation)

    def act(self, action: str, body: bytes) -> bytes:
        """Carry out an order."""
        kind, do = ACTIONS[action]
        message = kind.decode(body)
        if action not in ("ping", "status", "schema"):
            self.orders.append(f"{action} {_what(message)}".strip())
        if isinstance(message, m.UnitOrder) and not message.boxes:
            action = "entry"
        if action in self.before:
            self.before[action]()
        if action in self.fail:
            raise self.fail[action]
        answer = do(self, message)
        if action in self.lose:
            raise self.lose[action]
        return bytes(answer.encode())

    # -- actions

    def _ping(self, _: m.Ping) -> m.Pong:
        return m.Pong(node=self.name, incarnation=self.incarnation, version=__version__)

    def _status(self, _: m.Ping) -> m.NodeStatus:
        return self.status()

    def _check(self, order: m.CheckOrder) -> m.Checked:
        spec = passes.checked(Spec.from_yaml(order.yaml))
        return m.Checked(columns={arrow: ", ".join(spec.columns(arrow)) for arrow in spec.arrows()})

    def _start(self, order: m.UnitOrder) -> m.Done:
        key = (order.diagram, order.unit)
        if key in self.units or key in self.points:
            return m.Done()
        queues = {}
        if order.take_over is not None:
            assert self.peers is not None
            queues = self.peers(order.take_over).hand_over(key, self.address)
        held = self.units if order.boxes else self.points
        held[key], self.states[key] = order, "running"
        if order.guard is not None:
            self.guards[key] = order.guard
            if order.guard.role != "primary":
                self.states[key] = "standby"
                return m.Done()
        self._open(order, queues)
        return m.Done()

    def _open(self, order: m.UnitOrder, queues: Mapping[str, OutputQueue]) -> None:
        name = order.unit.removeprefix(m.ENTRY)
        gives: tuple[str, ...] = (name, name + LATE)
        if order.boxes:
            gives = piece_of(passes.checked(Spec.from_yaml(order.yaml)), order.unit, order.boxes).gives
        for arrow in gives:
            stream = f"{order.diagram}/{arrow}"
            made = OutputQueue(stream, PACKETS, readers=order.readers.get(arrow, ()))
            self.queues[stream] = queues.get(stream, made)
            if arrow == name:
                self.entries[stream] = StandInEntry(self.queues[stream])
        self.routes.update(order.feeds)

    def hand_over(self, key: tuple[str, str], to: str) -> dict[str, OutputQueue]:
        """Give a unit away."""
        if key not in self.units:
            raise ClusterError(f"no unit {key} on {self.name}")
        order = self.units.pop(key)
        piece = piece_of(passes.checked(Spec.from_yaml(order.yaml)), order.unit, order.boxes)
        given = {}
        for stream in (f"{order.diagram}/{arrow}" for arrow in piece.gives):
            queue = self.queues.pop(stream)
            given[stream] = OutputQueue.restore(queue.snapshot())
            queue.close(to)
        return given

    def _thaw(self, name: m.UnitName) -> m.Done:
        if (name.diagram, name.unit) not in self.units:
            raise ClusterError(f"no unit {name.unit} of {name.diagram} on {self.name}")
        self.states[name.diagram, name.unit] = "running"
        return m.Done()

    def _drop(self, name: m.UnitName) -> m.Done:
        for held in (self.units, self.points):
            held.pop((name.diagram, name.unit), None)
        self.guards.pop((name.diagram, name.unit), None)
        self.entries.pop(f"{name.diagram}/{name.unit.removeprefix(m.ENTRY)}", None)
        return m.Done()

    def _protect(self, order: m.Protect) -> m.Done:
        key = (order.diagram, order.unit)
        if (guard := self.guards.get(key)) is not None:
            facts = {"partner": order.partner, "partner_node": order.partner_node, "standing": order.standing}
            facts |= {"role": order.role, "incarnation": order.incarnation, "further": order.further}
            self.guards[key] = guard.model_copy(update=facts)
            self.states[key] = "running" if order.role == "primary" else "standby"
        return m.Done()

    def _undeploy(self, name: m.DiagramName) -> m.Done:
        for held in (self.units, self.points, self.guards):
            for key in [key for key in held if key[0] == name.diagram]:
                del held[key]  # type: ignore[attr-defined]
        for stream in [s for s in self.queues if s.startswith(f"{name.diagram}/")]:
            self.queues.pop(stream).close()
            self.entries.pop(stream, None)
        return m.Done()

    def _reroute(self, order: m.Reroute) -> m.Done:
        self.routes[order.stream] = order.address
        return m.Done()

    def _stop(self, _: m.Ping) -> m.Done:
        self.stopped = True
        return m.Done()

    def _schema(self, of: m.SchemaOf) -> m.SchemaIs:
        schema = self.queue(of.stream).schema
        return m.SchemaIs(arrow=base64.b64encode(schema.serialize().to_pybytes()).decode())


ACTIONS: dict[str, tuple[type[m.Message], Callable[[StandInNode, Any], m.Message]]] = {
    "ping": (m.Ping, StandInNode._ping),
    "status": (m.Ping, StandInNode._status),
    "schema": (m.SchemaOf, StandInNode._schema),
    "check": (m.CheckOrder, StandInNode._check),
    "start": (m.UnitOrder, StandInNode._start),
    "thaw": (m.UnitName, StandInNode._thaw),
    "drop": (m.UnitName, StandInNode._drop),
    "protect": (m.Protect, StandInNode._protect),
    "undeploy": (m.DiagramName, StandInNode._undeploy),
    "reroute": (m.Reroute, StandInNode._reroute),
    "stop": (m.Ping, StandInNode._stop),
}


def _guard_status(guard: m.Guard | None) -> m.GuardStatus | None:
    if guard is None:
        return None
    state: Any = "protected" if guard.role == "primary" else "watching"
    return m.GuardStatus(
        approach=guard.approach,
        guarantee=guard.guarantee,
        role=guard.role,
        incarnation=guard.incarnation,
        standing=guard.standing,
        partner=guard.partner_node,
        further=sorted(guard.further.nodes) if guard.role == "primary" else [],
        numbers={n: guard.further.numbers[n] for n in guard.further.nodes} if guard.role == "primary" else {},
        state=state,
        stale_ms=120.0,
        recovery_ms=340.0,
    )


def _what(message: m.Message) -> str:
    match message:
        case m.Protect():
            further = f" and {', '.join(message.further.nodes)}" if message.further.nodes else ""
            as_what = "" if message.role == "primary" else f" as {message.role}"
            return f"{message.diagram}.{message.unit}{as_what} by {message.partner_node or 'none'}{further}"
        case m.UnitOrder(guard=m.Guard(role="backup")):
            return f"{message.diagram}.{message.unit} standby"
        case m.UnitOrder(guard=m.Guard(role="copy")):
            return f"{message.diagram}.{message.unit} copy"
        case m.UnitOrder() | m.UnitName():
            return f"{message.diagram}.{message.unit}"
        case m.Reroute():
            return message.stream
        case m.DiagramName():
            return message.diagram
        case _:
            return ""


class Yard:
    """All nodes, reached without a wire; one that is `down` cannot be reached."""

    def __init__(self, names: int | list[str] = 3) -> None:
        made = [f"node{i}" for i in range(1, names + 1)] if isinstance(names, int) else names
        self._ports = itertools.count(1)
        self.nodes: dict[str, StandInNode] = {}
        self.down: set[str] = set()  # names
        self._guard = threading.Lock()
        for name in made:
            self.add(name)

    def add(self, name: str, incarnation: str = "1") -> StandInNode:
        """A new node, or a new process of an old one: at a new address, with nothing on it."""
        address = f"grpc://127.0.0.1:{next(self._ports)}"
        node = self.nodes[name] = StandInNode(name, address, incarnation, peers=self._at)
        return node

    def __getitem__(self, name: str) -> StandInNode:
        return self.nodes[name]

    def _at(self, address: str) -> StandInNode:
        for node in self.nodes.values():
            if node.address == address and node.name not in self.down:
                return node
        raise WireError(f"{address} cannot be reached", hint="is it running, and is this it?")

    # -- as wire.client.Peers

    def act(self, address: str, action: str, message: m.Message, answer: type[M], *, within: float | None = None) -> M:
        """As over the wire: everything is encoded, errors included."""
        node = self._at(address)
        try:
            return answer.decode(node.act(action, message.encode()))
        except BorealisError as error:
            raise error_of(problem_of(error)) from None

    def connect(self, address: str) -> Any:
        """Only over a real wire."""
        raise NotImplementedError

    at = connect

    def close(self) -> None:
        """Nothing to close."""


class AtOnce(SystemThreads):
    """Threads that are done when they are started."""

    def start(self, name: str, work: Callable[[], T]) -> Task[T]:
        task = super().start(name, work)
        task.join()
        return task


class Town:
    """A yard, a catalog on disk, a coordinator's cluster, and a clock that moves by hand. All is done at once."""

    def __init__(self, path: Any, yard: Yard | None = None) -> None:
        self.yard = yard or Yard()
        self.clock = ManualClock()
        self.catalog = Catalog(path)
        self.cluster = Cluster(self.catalog, self.yard, machine=Machine(self.clock, AtOnce()))  # type: ignore[arg-type]

    def beat(self, *names: str, seconds: float = 1.0) -> None:
        """Time passes, and these nodes (all that are not down) send a heartbeat."""
        self.clock.advance(seconds)
        for name in names or [n for n in self.yard.nodes if n not in self.yard.down]:
            self.cluster.heard(self.yard[name].status())

    def restart(self) -> Town:
        """The coordinator's process ends, and another begins on the same catalog."""
        self.catalog.close()
        return Town(self.catalog.path, self.yard)
