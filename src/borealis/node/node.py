"""A node: units, entry points and output queues in one process, behind one Flight server.

It carries out orders (a coordinator's, or a test's), and goes on with all that it runs when no more orders come.
"""

from __future__ import annotations

import base64
import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from borealis.entry.point import Entry
from borealis.errors import BorealisError, ClusterError, StateError, StreamError, WireError, did_you_mean
from borealis.kernels.time_of import noted
from borealis.machine import HERE, Machine
from borealis.message import Message
from borealis.node.building import Builder
from borealis.node.care import Care, CareTimings
from borealis.node.feeds import AckSender, Routes
from borealis.node.guards import Claiming, Guards
from borealis.node.pool import POOL, Make, QueryPool
from borealis.node.running import Running, RunningEntry, RunningUnit, UnitKey
from borealis.node.served import Served
from borealis.node.session import Session, spec_of
from borealis.node.stored import Stored, UnitHistory
from borealis.spark.lane_query import LaneQuery
from borealis.storage import Storage
from borealis.streams.queue import OutputQueue, QueueLimits, StandbyError
from borealis.streams.status import QueueStatus
from borealis.threads import Task
from borealis.trains.handover import Handover
from borealis.version import __version__
from borealis.wire.auth import Security
from borealis.wire.client import Peer, Peers
from borealis.wire.endpoints import Location
from borealis.wire.messages import (
    ENTRY,
    Ack,
    Checked,
    CheckOrder,
    CutOff,
    DiagramName,
    Done,
    Forget,
    Guard,
    Moved,
    NodeStatus,
    Ping,
    Pong,
    Protect,
    Reading,
    Reroute,
    SchemaIs,
    SchemaOf,
    UnitName,
    UnitOrder,
    UnitStatus,
    called,
)

MOVED_TRIES = 3  # to tell a node that a unit has left it

log = logging.getLogger("borealis.node")


class Node:
    """Serves streams and runs units; `wire.server.WireServer` is its way in."""

    def __init__(
        self,
        name: str,
        *,
        data: Path | None = None,
        security: Security | None = None,
        ask: Callable[[str], Location | None] = lambda _: None,
        claim: Claiming = lambda _: None,
        master: str = "",
        cores: int = 0,
        pool: int = POOL,
        query: Make = LaneQuery,
        care: CareTimings | None = None,
        peers: Peers | None = None,
        session: Session | None = None,
        limits: QueueLimits | None = None,
        allow_faults: bool = False,
        storage: Storage | None = None,
        machine: Machine = HERE,
    ) -> None:
        self.allow_faults, self.storage = allow_faults, storage
        self.name, self.data, self.master, self.machine = name, data, master, machine
        self.cores = cores or os.cpu_count() or 1
        self.incarnation = machine.chance.token()
        self.address = self.http = ""
        self.started = machine.clock.time()
        self.stop_asked = machine.threads.event()
        self.news = machine.threads.event()  # something that the coordinator shall hear before the next second
        self.served = Served(name)
        self.queues = self.served.queues
        self.units: dict[UnitKey, RunningUnit] = {}
        self.entries: dict[UnitKey, RunningEntry] = {}
        self._starting: set[UnitKey] = set()
        self._ending: list[Task[None]] = []
        self.session = session or Session(name, machine)
        self.peers = peers or Peers(security, machine=machine)
        self.routes = Routes(self.queues.get, ask, machine, here=lambda: self.address)
        self.acks = AckSender(self.routes, self.peers, machine=machine)
        self.pool = QueryPool(self.session, query, pool, machine)
        parts = (self.session, self.routes, self.peers, self.acks, self.pool, limits or QueueLimits(), machine)
        self._builder = Builder(name, data, *parts)
        self.guards = Guards(self, claim)
        self.warm = False
        self.ordering = machine.threads.rlock()  # one order at a time
        self._timings = care or CareTimings()
        self._care = Care(self, self._builder, self._timings)

    @property
    def has_units(self) -> bool:
        """Whether it runs any, or is about to."""
        return bool(self.units) or any(not unit.startswith(ENTRY) for _, unit in self._starting)

    # -- what the Flight server asks

    def queue(self, stream: str) -> OutputQueue:
        """The queue of a stream that is served here, or stands by here."""
        return self.served.queue(stream)

    def entry(self, stream: str) -> Entry:
        """The entry point of a stream, if that is here."""
        found = self._entry(stream)
        if found is None or found.standby:
            if stream in self.queues:
                raise StreamError(
                    f"stream {stream} is computed: no client can publish to it", hint="publish to an input"
                )
            known = [entry.entry.queue.stream for entry in self.entries.values() if not entry.standby]
            raise StreamError(f"node {self.name} is not the entry point of {stream}", hint=did_you_mean(stream, known))
        return found.entry

    def _entry(self, stream: str) -> RunningEntry | None:
        diagram, _, name = stream.partition("/")
        return self.entries.get((diagram, ENTRY + name))

    def act(self, action: str, body: bytes) -> bytes:
        """Carry out an order, or answer a question."""
        if action == "guard":  # no message of JSON alone
            return self.guards.receive(body).encode()
        order = ACTIONS.get(action)
        if order is None:
            hint = did_you_mean(action, ACTIONS) or f"there are: {', '.join(ACTIONS)}"
            raise WireError(f"no action '{action}'", hint=hint)
        kind, carry_out = order
        answer: Message = carry_out(self, kind.decode(body or b"{}"))
        return answer.encode()

    def export(self, what: str, body: bytes) -> Iterator[bytes]:
        """A unit's state for the node that takes it over."""
        if what != "unit":
            raise WireError(f"nothing to export as '{what}'", hint="there is: unit")
        return iter([self._freeze(UnitName.decode(body)).to_bytes()])

    # -- questions

    def ping(self, _: Ping) -> Pong:
        return Pong(node=self.name, incarnation=self.incarnation, version=__version__)

    def status(self, _: Ping | None = None) -> NodeStatus:
        entries = list(self.entries.values())
        return NodeStatus(
            node=self.name,
            incarnation=self.incarnation,
            version=__version__,
            address=self.address,
            http=self.http,
            pid=os.getpid(),
            host=socket.gethostname(),
            master=self.master,
            spark=self.session.state,
            warm=self.warm,
            cores=self.cores,
            units=[self._unit_status(unit) for unit in list(self.units.values())],
            queues=[self._queue_status(q) for q in list(self.queues.values())],
            entries=[self._unit_status(entry) for entry in entries],
            logs=[status for entry in entries if (status := entry.entry.log.status()) is not None],
            started=self.started,
            pool=self.pool.status(),
        )

    def _unit_status(self, unit: RunningUnit | RunningEntry) -> UnitStatus:
        guard = self.guards.primaries.get(unit.key) or self.guards.standbys.get(unit.key)
        return unit.status().model_copy(update={"guard": guard.status() if guard is not None else None})

    def deposed(self, stream: str, incarnation: int) -> None:
        """A reader has seen a higher incarnation of a stream that is served here."""
        self.guards.deposed(stream, incarnation)

    def _queue_status(self, queue: OutputQueue) -> QueueStatus:
        status, found = queue.status(), self._entry(queue.stream)
        return status if found is None else status.model_copy(update={"late": found.entry.late.next_id})

    def schema(self, ask: SchemaOf) -> SchemaIs:
        """The columns of a stream; those of an input with notes of how its tuples get their times, and of its key."""
        schema, found = self.queue(ask.stream).schema, self._entry(ask.stream)
        if found is not None:
            schema = noted(schema, found.entry.time, found.entry.spec.key)
        return SchemaIs(arrow=base64.b64encode(schema.serialize().to_pybytes()).decode())

    def stream(self, ask: SchemaOf) -> QueueStatus:
        """How one stream stands; where it only stands by, a StandbyError."""
        queue = self.queue(ask.stream)
        if queue.standby:
            raise StandbyError(f"stream {ask.stream} is on standby here", hint="ask the node that serves it")
        return self._queue_status(queue)

    def check(self, order: CheckOrder) -> Checked:
        """Whether a diagram's types are right, as Spark sees them, and it could run."""
        return Checked(columns=self.session.check(spec_of(order.yaml)))

    # -- orders

    def _look_again(self, stream: str) -> None:
        for unit in list(self.units.values()):
            for feed in unit.feeds.values():
                if feed.stream == stream:
                    feed.look_again()

    def start_unit(self, order: UnitOrder) -> Done:
        """Run a unit or an entry point: from nothing, or from where the node `take_over` has frozen it.

        Other orders are carried out meanwhile: two nodes that take over units from each other must not wait for each
        other.
        """
        key = (order.diagram, order.unit)
        with self.ordering:
            here = self.running(key)
            if here is not None and key not in self._starting and here.is_ordered_by(order):
                return Done()
            if here is not None or key in self._starting:
                raise ClusterError(f"{called(*key)} is on {self.name}", hint="drop it first")
            self._starting.add(key)
        try:
            self._start(order)
        except BaseException:
            self._take_down(key, order.take_over)
            raise
        finally:
            self._starting.discard(key)
        return Done()

    def _start(self, order: UnitOrder) -> None:
        for stream, address in order.feeds.items():
            self.routes.put(stream, address)
        for stream, address in order.fallbacks.items():
            self.routes.put_others(stream, address, stream in order.replicated, order.copies.get(stream, ()))
        guard = order.guard
        if guard is None or guard.approach != "storage":
            return self._begin(self._built(order))
        begun, stored = self.machine.clock.time(), Stored(self._storage_for(order), order)
        moved = None if order.take_over is None else self._built(order)  # its source stands still from here on
        try:
            history = stored.open(follow=moved is None)
            if moved is not None:
                self._begin(moved, stored)
            elif history is not None:
                self._restore(order, guard, stored, history, begun)
            elif guard.incarnation > 1:
                what = f"{called(order.diagram, order.unit)} ran before, and there is nothing of it in {self.storage}"
                raise StateError(what, hint="bring that back; or deploy the diagram again, with --replace")
            else:
                self._begin(self._built(order), stored)
        except BaseException:
            stored.close()
            raise

    def _built(self, order: UnitOrder) -> RunningUnit | RunningEntry:
        return self._builder.unit(order) if order.boxes else self._builder.entry(order)

    def _storage_for(self, order: UnitOrder) -> Storage:
        if self.storage is None:
            what = f"{called(order.diagram, order.unit)} is to be kept in storage, and node {self.name} has none"
            raise ClusterError(what, hint="start the cluster with one: borealis up --storage DIR")
        return self.storage

    def _restore(self, order: UnitOrder, guard: Guard, stored: Stored, history: UnitHistory, begun: float) -> None:
        """Be the backup that heard all that is in storage, and take over."""
        heir = guard.model_copy(update={"role": "backup", "incarnation": guard.incarnation - 1})
        unit = self._built(order.model_copy(update={"guard": heir}))
        self._stand_by(unit, heir, warm=False)
        self.guards.restore(unit, guard, stored, history, begun)

    def _begin(self, unit: RunningUnit | RunningEntry, stored: Stored | None = None) -> None:
        order, guard = unit.order, unit.order.guard
        if guard is not None and guard.role != "primary":
            self._stand_by(unit, guard)
            return
        if guard is not None:
            for queue in unit.queues.values():
                queue.incarnation = guard.incarnation
            if order.take_over is None and guard.incarnation > 1:  # before its backup learns where it begins
                unit.begin_again(may_lose=guard.guarantee == "gap")
            self.guards.start_primary(unit, guard, stored)
        with self.ordering:
            self._put(unit)
            self._serve(unit)
        unit.launch()  # there are no trains before the run starts
        if order.take_over is not None:
            self._close_source(order, self.peers.at(order.take_over))
        # from here on this is the only one: whatever happens, it stays
        with self.ordering:
            unit.started = True
            if self.running(unit.key) is unit and not unit.ended:
                unit.run.start()

    def _close_source(self, order: UnitOrder, source: Peer) -> None:
        """Tell the node that had a unit that it is here now; raises if that node still has it."""
        moved = Moved(diagram=order.diagram, unit=order.unit, address=self.address)
        for left in reversed(range(MOVED_TRIES)):
            try:
                source.act("moved", moved, Done)
                return
            except WireError:  # it may have been carried out, although no answer came
                status = source.act("status", Ping(), NodeStatus)
                there = [u for u in status.units if (u.diagram, u.unit) == (order.diagram, order.unit)]
                if not there:
                    return
                if there[0].state != "frozen" or not left:
                    raise

    def _put(self, unit: RunningUnit | RunningEntry) -> None:
        if isinstance(unit, RunningEntry):
            self.entries[unit.key] = unit
        else:
            self.units[unit.key] = unit

    def running(self, key: UnitKey) -> RunningUnit | RunningEntry | None:
        return self.units.get(key) or self.entries.get(key)

    def _stand_by(self, unit: RunningUnit | RunningEntry, guard: Guard, *, warm: bool = True) -> None:
        unit.standby = True
        for queue in unit.queues.values():  # before they can be found: readers that come here early shall wait
            queue.incarnation = guard.incarnation
            queue.hold()
        with self.ordering:
            self._put(unit)
            self.served.standby_queues |= {queue.stream: queue for queue in unit.queues.values()}
        if isinstance(unit, RunningUnit) and unit.image:
            self.pool.add(unit)
        unit.launch()
        self.guards.start_standby(unit, guard)
        if warm and isinstance(unit, RunningUnit):
            self._care.warm(unit)

    def opened(self, unit: RunningUnit | RunningEntry) -> None:
        """A unit that stood by runs: its streams are served here from now on."""
        with self.ordering:
            unit.standby = False
            self._serve(unit)

    def _serve(self, unit: RunningUnit | RunningEntry) -> None:
        """Its streams are served here from now on: units here that read them need not go elsewhere."""
        guard = unit.order.guard
        for queue in unit.queues.values():
            self.served.put(queue)
            self.routes.put(queue.stream, self.address, guard.incarnation if guard else 0)
            self._look_again(queue.stream)

    def _take_down(self, key: UnitKey, source: str | None) -> None:
        """Undo a start that failed; the unit goes on where it was."""
        with self.ordering:
            self._remove(key, moved_to=source)
        if source is not None:
            name = UnitName(diagram=key[0], unit=key[1])
            try:
                self.peers.at(source).act("thaw", name, Done)
            except BorealisError as error:
                log.warning("cannot thaw unit %s at %s: %s", key, source, error)

    def _unit(self, name: UnitName) -> RunningUnit:
        unit = self.units.get((name.diagram, name.unit))
        if unit is None:
            raise ClusterError(f"no unit {name.unit} of {name.diagram} on {self.name}")
        return unit

    def _freeze(self, name: UnitName) -> Handover:
        with self.ordering:
            unit = self._unit(name)
            if unit.frozen_since is not None:
                raise ClusterError(f"unit {name.unit} of {name.diagram} is on its way elsewhere already")
            if unit.standby:
                raise ClusterError(f"unit {name.unit} of {name.diagram} only stands by on {self.name}")
            if (failure := unit.look()) is not None:
                raise failure
            handover = unit.run.freeze(self._timings.freeze_s)
            unit.frozen_since = self.machine.clock.now()
            handover.header["epochs"] = {arrow: feed.epoch for arrow, feed in unit.feeds.items() if feed.seen}
            primary = self.guards.primaries.get((name.diagram, name.unit))
            handover.header["retained"] = primary.retained() if primary is not None else []
            return handover

    def thaw(self, name: UnitName) -> Done:
        with self.ordering:
            unit = self._unit(name)
            if unit.frozen_since is not None:
                unit.frozen_since = None
                unit.run.thaw()
            return Done()

    def moved(self, moved: Moved) -> Done:
        """A frozen unit goes on elsewhere: readers of its streams are sent there."""
        with self.ordering:
            unit = self._unit(moved)
            if unit.frozen_since is None:
                raise ClusterError(f"unit {moved.unit} of {moved.diagram} is not frozen", hint="move it again")
            for queue in unit.queues.values():
                self.routes.put(queue.stream, moved.address)
            self._remove((moved.diagram, moved.unit), moved_to=moved.address)
            return Done()

    def drop(self, name: UnitName) -> Done:
        """Stop a unit for good; harmless if it is not here."""
        with self.ordering:
            self._remove((name.diagram, name.unit))
            return Done()

    def drop_unit(self, unit: Running, moved_to: str | None = None) -> None:
        """Stop this unit, if it is still here; readers of its streams are sent elsewhere."""
        with self.ordering:
            if self.running(unit.key) is unit:
                self._remove(unit.key, moved_to)

    def undeploy(self, name: DiagramName) -> Done:
        with self.ordering:
            for key in [k for k in (*self.units, *self.entries) if k[0] == name.diagram]:
                guard = self.guards.primaries.get(key)
                unit = self._remove(key)
                if guard is not None and guard.stored is not None:
                    guard.stored.erase()
                if isinstance(unit, RunningEntry):
                    unit.entry.log.erase()
            self.routes.forget(name.diagram)
            return Done()

    def reroute(self, order: Reroute) -> Done:
        known, before = self.routes.incarnation(order.stream), self.routes.address(order.stream)
        self.routes.put(order.stream, order.address, order.incarnation)
        if order.incarnation > known and order.address != before:
            self._look_again(order.stream)
        return Done()

    def cut(self, order: CutOff) -> Done:
        """Cut its units off from a stream, or let them read it again; only where that was allowed."""
        if not self.allow_faults:
            raise ClusterError(f"node {self.name} does not let itself be cut off", hint="start it with --allow-faults")
        reads = {feed.stream for unit in self.units.values() for feed in unit.feeds.values()}
        if order.cut and order.stream not in reads:
            hint = did_you_mean(order.stream, reads) or f"it reads: {', '.join(sorted(reads)) or 'none'}"
            raise StreamError(f"no unit on node {self.name} reads stream {order.stream}", hint=hint)
        self.routes.cut(order.stream, order.cut)
        self._look_again(order.stream)
        return Done()

    def stop(self, _: Ping) -> Done:
        """End this process, in good order."""
        self.stop_asked.set()
        return Done()

    def _remove(self, key: UnitKey, moved_to: str | None = None) -> Running | None:
        unit = self.units.pop(key, None) or self.entries.pop(key, None)
        self.guards.drop(key)
        self.pool.drop(key)
        if unit is None:
            return None
        for feed in unit.feeds.values():  # first: under its name another may read elsewhere
            feed.stop()
        for queue in unit.queues.values():
            self.served.withdraw(queue, moved_to)
        if isinstance(unit, RunningEntry):
            unit.end()
            return unit
        # Spark takes its time to stop a query: other orders do not wait for that
        ending = self.machine.threads.start("end-unit", unit.end)
        self._ending = [*(one for one in self._ending if one.is_alive()), ending]
        return unit

    # -- the end

    def close(self) -> None:
        """Finish the trains that are under way, then stop everything."""
        self._care.stop()
        self.guards.close()
        with self.ordering:
            for key, unit in list(self.units.items()):
                try:
                    if unit.look() is None and unit.frozen_since is None and not unit.standby:
                        unit.run.freeze(self._timings.freeze_s)
                except BorealisError as error:
                    log.warning("unit %s of %s: %s", key[1], key[0], error)
                self._remove(key)
            for key in list(self.entries):
                self._remove(key)
        self.pool.close()
        for ending in self._ending:
            ending.join(self._timings.freeze_s)
        self.acks.stop()
        self.peers.close()
        self.session.state = "stopped"


ACTIONS: dict[str, tuple[type[Message], Callable[[Node, Any], Message]]] = {
    "ping": (Ping, Node.ping),
    "status": (Ping, Node.status),
    "schema": (SchemaOf, Node.schema),
    "stream": (SchemaOf, Node.stream),
    "forget": (Forget, lambda node, order: node.served.forget(order)),
    "unread": (Forget, lambda node, order: node.served.unread(order)),
    "reading": (Reading, lambda node, order: node.served.reading(order)),
    "keep": (Ack, lambda node, order: node.served.keep(order)),
    "protect": (Protect, lambda node, order: node.guards.protect(order)),
    "check": (CheckOrder, Node.check),
    "start": (UnitOrder, Node.start_unit),
    "thaw": (UnitName, Node.thaw),
    "moved": (Moved, Node.moved),
    "drop": (UnitName, Node.drop),
    "undeploy": (DiagramName, Node.undeploy),
    "reroute": (Reroute, Node.reroute),
    "cut": (CutOff, Node.cut),
    "stop": (Ping, Node.stop),
}
