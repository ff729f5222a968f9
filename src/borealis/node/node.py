"""A node: units, entry points and output queues in one process, behind one Flight server.

It does what it is told by actions (a coordinator's, or a test's) and keeps running whatever it runs when nobody tells
it anything any more.
"""

from __future__ import annotations

import base64
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from borealis.compile.analyze import analyze, input_schema, time_of
from borealis.compile.lowering import to_arrow
from borealis.compile.types import nullable
from borealis.compile.unit import compile_piece
from borealis.diagram import passes
from borealis.diagram.cut import Piece, piece_of
from borealis.diagram.spec import LATE, Spec, Unit
from borealis.entry.point import Entry, Place
from borealis.errors import BorealisError, ClusterError, StreamError, WireError, did_you_mean
from borealis.kernels.time_of import noted
from borealis.message import Message
from borealis.node.entry_guard import EntryGuard
from borealis.node.feeds import Acks, Peers, Routes, StreamFeed
from borealis.node.guards import Claiming, Guards
from borealis.node.running import RunningUnit
from borealis.spark.plan import check_plan
from borealis.spark.query import Query
from borealis.streams.queue import OutputQueue, QueueLimits, StandbyError
from borealis.streams.status import QueueStatus
from borealis.trains.commit_point import CommitPoint
from borealis.trains.handover import Handover
from borealis.trains.relay import Feed
from borealis.trains.unit import UnitOptions, UnitRun
from borealis.version import __version__
from borealis.wire.auth import Security
from borealis.wire.endpoints import Location
from borealis.wire.messages import (
    Ack,
    Checked,
    CheckOrder,
    DiagramName,
    Done,
    EntryName,
    EntryOrder,
    Forget,
    Moved,
    NodeStatus,
    Ping,
    Pong,
    Protect,
    Reroute,
    SchemaIs,
    SchemaOf,
    UnitName,
    UnitOrder,
    UnitStatus,
)

READY_S = 120.0  # how long an order waits for Spark
FREEZE_S = 30.0  # how long a unit may take to finish its train, and how long it stays frozen without news
PIECE_BYTES = 1 << 20  # of an export
MOVED_TRIES = 3  # to tell a node that a unit has left it
WARM_REHEARSALS = 2  # before a standby is said to stand by
WARM_S = 20.0  # but no longer than that
TICK_S = 0.05
SELDOM = 20  # ticks between looks at what is dear to look at: queries, logs
SCHEMAS_MOST = 16  # diagrams whose types are remembered

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
        query: type[Query] = Query,
    ) -> None:
        self.name, self.data, self.master = name, data, master
        self._query = query  # what runs a unit's trains
        self.cores = cores or os.cpu_count() or 1
        self.incarnation = uuid.uuid4().hex[:16]
        self.address = self.http = ""
        self.started = time.time()
        self.stop_asked = threading.Event()
        self.queues: dict[str, OutputQueue] = {}
        self.entries: dict[str, Entry] = {}
        self.units: dict[tuple[str, str], RunningUnit] = {}
        self._starting: set[tuple[str, str]] = set()
        self._ending: list[threading.Thread] = []
        self.peers = Peers(security)
        self.routes = Routes(self.queues.get, ask)
        self.acks = Acks(self.routes, self.peers)
        self.kept: dict[str, OutputQueue] = {}  # of units that stand by
        self.guards = Guards(self, security, claim)
        self._schemas: dict[str, dict[str, Any]] = {}  # by a diagram's fingerprint
        self._spark: Any = None
        self._spark_state: Any = "starting"
        self.warm = False
        self._ready = threading.Event()
        self.ordering = threading.RLock()  # one order at a time
        self._stopped = threading.Event()
        threading.Thread(target=self._tick_forever, name="node-tick", daemon=True).start()

    # -- Spark

    def spark_is(self, spark: Any) -> None:
        """The session is there: orders can be carried out."""
        self._spark, self._spark_state = spark, "ready"
        self._ready.set()

    def spark_failed(self) -> None:
        """There will be no session."""
        self._spark_state = "failed"
        self._ready.set()

    def _session(self) -> Any:
        if not self._ready.wait(READY_S) or self._spark is None:
            raise ClusterError(f"Spark did not start on {self.name}", hint="its log says why")
        return self._spark

    # -- what the Flight server asks

    def queue(self, stream: str) -> OutputQueue:
        """The queue of a stream that is served here."""
        queue = self.queues.get(stream) or self.kept.get(stream)
        if queue is None:
            hint = (
                did_you_mean(stream, self.queues) or "it may be on its way here: see 'borealis status', and try again"
            )
            raise StreamError(f"node {self.name} serves no stream {stream}", hint=hint)
        return queue

    def entry(self, stream: str) -> Entry:
        """The entry point of a stream, if that is here."""
        entry = self.entries.get(stream)
        if entry is None:
            if stream in self.queues:
                raise StreamError(f"stream {stream} is computed, nobody can publish to it", hint="publish to an input")
            raise StreamError(
                f"node {self.name} is not the entry point of {stream}", hint=did_you_mean(stream, self.entries)
            )
        return entry

    def act(self, action: str, body: bytes) -> bytes:
        """Carry out an order, or answer a question."""
        if action == "guard":  # no message of JSON alone
            return self.guards.receive(body).encode()
        if action == "mirror":
            return self.guards.mirror(body).encode()
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
        data = self._freeze(UnitName.decode(body)).to_bytes()
        return (data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))

    # -- questions

    def ping(self, _: Ping) -> Pong:
        """That this node is there."""
        return Pong(node=self.name, incarnation=self.incarnation, version=__version__)

    def status(self, _: Ping | None = None) -> NodeStatus:
        """All there is to say."""
        return NodeStatus(
            node=self.name,
            incarnation=self.incarnation,
            version=__version__,
            address=self.address,
            http=self.http,
            pid=os.getpid(),
            host=socket.gethostname(),
            master=self.master,
            spark=self._spark_state,
            warm=self.warm,
            cores=self.cores,
            units=[self._unit_status(key, unit) for key, unit in list(self.units.items())],
            queues=[self._queue_status(q) for q in list(self.queues.values())],
            entries=list(self.entries),
            logs=[status for entry in self._all_entries() if (status := entry.log_status()) is not None],
            guards={stream: guard.status() for stream, guard in list(self.guards.entries.items())},
            started=self.started,
        )

    def _unit_status(self, key: tuple[str, str], unit: RunningUnit) -> UnitStatus:
        guard = self.guards.primaries.get(key) or self.guards.standbys.get(key)
        return unit.status().model_copy(update={"guard": guard.status() if guard is not None else None})

    def deposed(self, stream: str, incarnation: int) -> None:
        """Somebody knows of a later life of a stream that is served here."""
        self.guards.deposed(stream, incarnation)

    def _queue_status(self, queue: OutputQueue) -> QueueStatus:
        status = queue.status()
        entry = self.entries.get(queue.stream)
        return status if entry is None else status.model_copy(update={"late": entry.late.next_id})

    def schema(self, ask: SchemaOf) -> SchemaIs:
        """The columns of a stream; those of an input with a note of how its tuples get their times."""
        schema, entry = self.queue(ask.stream).schema, self.entries.get(ask.stream)
        if entry is not None:
            schema = noted(schema, entry.time)
        return SchemaIs(arrow=base64.b64encode(schema.serialize().to_pybytes()).decode())

    def stream(self, ask: SchemaOf) -> QueueStatus:
        """How one stream stands; where it only stands by, nobody can tell."""
        queue = self.queue(ask.stream)
        if queue.standby:
            raise StandbyError(f"stream {ask.stream} is on standby here", hint="ask the node that serves it")
        return self._queue_status(queue)

    def forget(self, order: Forget) -> Done:
        """Keep nothing for a reader any more; units are readers, too, but not to be forgotten."""
        queue = self.queue(order.stream)
        if order.reader.startswith(f"{order.stream.partition('/')[0]}."):
            raise StreamError(f"'{order.reader}' is a unit that reads {order.stream}", hint="undeploy the diagram")
        if order.reader not in (known := queue.status().readers):
            hint = did_you_mean(order.reader, known) or f"it has: {', '.join(known) or 'none'}"
            raise StreamError(f"stream {order.stream} has no reader '{order.reader}'", hint=hint)
        queue.forget(order.reader)
        return Done()

    def keep(self, order: Ack) -> Done:
        """Keep a stream for a reader from a tuple on; it will come."""
        self.queue(order.stream).register(order.reader, order.upto)
        return Done()

    def unread(self, order: Forget) -> Done:
        """Keep nothing for one of the two names of a unit any more; harmless if it is not known."""
        self.queue(order.stream).forget(order.reader)
        return Done()

    def check(self, order: CheckOrder) -> Checked:
        """Whether a diagram's types are right, as Spark sees them, and it could run."""
        spec = _spec(order.yaml)
        schemas = self._analyzed(spec)
        check_plan(spec, self._session(), schemas)
        return Checked(columns={arrow: _ddl(schema) for arrow, schema in schemas.items()})

    def _analyzed(self, spec: Spec) -> dict[str, Any]:
        """The Spark schema of every arrow; a diagram that is deployed is looked at once."""
        key = spec.fingerprint()
        if key not in self._schemas:
            found = analyze(spec, self._session())
            while len(self._schemas) >= SCHEMAS_MOST:
                self._schemas.pop(next(iter(self._schemas)))
            self._schemas[key] = found
        return self._schemas[key]

    # -- orders

    def start_entry(self, order: EntryOrder) -> Done:
        """Be the entry point of an input; it is no error if it is already here."""
        with self.ordering:
            stream = f"{order.diagram}/{order.input}"
            if stream in self.entries or stream in self.guards.entries:
                return Done()
            spec = _spec(order.yaml)
            one = spec.input(order.input)
            self._session()
            schema = to_arrow(nullable(input_schema(one)))
            time = time_of(one, self._session())
            limits = QueueLimits(full=one.full)
            home = self._home(one.durable, "entries", order.diagram, order.input)
            guard = order.guard
            incarnation = guard.incarnation if guard is not None else 0
            readers = (order.readers, order.late_readers)
            place = Place(stream, schema, limits, *readers, order.epoch, incarnation, self.name)
            if guard is not None and guard.role == "backup":
                entry = Entry.standby(one, spec.paces()[one.name], place, home, time=time)
                self.kept[stream], self.kept[stream + LATE] = entry.queue, entry.late
                self.guards.start_entry(entry, order)
                return Done()
            entry = Entry.open(one, spec.paces()[one.name], place, home, time=time)
            if guard is not None:
                self.guards.start_entry(entry, order)
            self.opened_entry(entry, incarnation)
            return Done()

    def opened_entry(self, entry: Entry, incarnation: int) -> None:
        """An entry point takes batches here from now on."""
        with self.ordering:
            self.entries[entry.queue.stream] = entry
            for queue in (entry.queue, entry.late):
                self._serve(queue, incarnation)

    def _serve(self, queue: OutputQueue, incarnation: int) -> None:
        """A stream is served here from now on; whoever reads it here need not go elsewhere."""
        self.kept.pop(queue.stream, None)
        self.queues[queue.stream] = queue
        self.routes.put(queue.stream, self.address, incarnation)
        self._look_again(queue.stream)

    def _look_again(self, stream: str) -> None:
        for unit in list(self.units.values()):
            for feed in unit.feeds.values():
                if feed.stream == stream:
                    feed.look_again()

    def drop_entry_of(self, guard: EntryGuard) -> None:
        """An entry point that was deposed goes."""
        with self.ordering:
            if self.guards.entries.get(guard.stream) is guard:
                self._remove_entry(guard.stream)

    def _home(self, durable: bool, *parts: str) -> Path | None:
        if not durable:
            return None
        if self.data is None:
            raise ClusterError(
                f"input '{parts[-1]}' is durable, and node {self.name} has no data directory",
                hint="start the node with --data DIR",
            )
        return self.data.joinpath(*parts)

    def start_unit(self, order: UnitOrder) -> Done:
        """Run a unit: from nothing, or from where the node `take_over` has frozen it.

        Other orders are carried out meanwhile: two nodes that take over units from each other must not wait for each
        other.
        """
        key = (order.diagram, order.unit)
        with self.ordering:
            if key in self.units and key not in self._starting and self.units[key].order.yaml == order.yaml:
                return Done()
            if key in self.units or key in self._starting:
                raise ClusterError(f"unit {order.unit} of {order.diagram} is on {self.name}", hint="drop it first")
            self._starting.add(key)
        try:
            self._start(key, order)
        except BaseException:
            self._take_down(key, order.take_over)
            raise
        finally:
            self._starting.discard(key)
        return Done()

    def _start(self, key: tuple[str, str], order: UnitOrder) -> None:
        spec, spark = _spec(order.yaml), self._session()
        piece = piece_of(spec, order.unit, order.boxes)
        compiled = compile_piece(spec, piece, spark, order.buckets, self._analyzed(spec))
        for stream, address in order.feeds.items():
            self.routes.put(stream, address)
        for stream, address in order.fallbacks.items():
            self.routes.put_fallback(stream, address)
        handover = self._fetch(order) if order.take_over is not None else None
        unit = self._build(order, spec, piece, compiled, handover)
        if order.guard is not None and order.guard.role == "backup":
            self._stand_by(key, unit)
            return
        if order.guard is not None:
            self.guards.start_primary(key, unit)
            if handover is None and order.guard.incarnation > 1:
                unit.begin_anew(may_lose=order.guard.guarantee == "gap")
        with self.ordering:
            self.units[key] = unit
            for queue in unit.queues.values():
                self.queues[queue.stream] = queue
                self.routes.put(queue.stream, self.address)  # wakes those who wait for it here
        if not unit.run.done.is_set():
            unit.query.start()  # there are no trains before the run starts
        if order.take_over is not None:
            self._close_source(order)
        # from here on this is the only one: whatever happens, it stays
        with self.ordering:
            unit.started = True
            if self.units.get(key) is unit and not unit.run.done.is_set():
                unit.run.start()

    def _stand_by(self, key: tuple[str, str], unit: RunningUnit) -> None:
        unit.standby = True
        assert unit.order.guard is not None
        for queue in unit.queues.values():  # before anybody can see them: readers who come here early shall wait
            queue.incarnation = unit.order.guard.incarnation
            queue.hold()
        with self.ordering:
            self.units[key] = unit
            self.kept.update({queue.stream: queue for queue in unit.queues.values()})
        unit.query.start()
        self.guards.start_standby(key, unit)
        self._warm(unit)

    def _warm(self, unit: RunningUnit) -> None:
        """Have a standby rehearse before it counts as one: its first train shall not be the first of its workers."""
        until = time.monotonic() + WARM_S
        while unit.run.rehearsed < WARM_REHEARSALS and time.monotonic() < until and not self._stopped.is_set():
            if unit.query.failure() is not None or unit.started:
                return
            before = unit.run.rehearsed
            unit.rehearse()
            unit.run.wait_rehearsed(before, until - time.monotonic())

    def opened(self, unit: RunningUnit) -> None:
        """A unit that stood by runs: its streams are served here from now on."""
        guard = unit.order.guard
        with self.ordering:
            unit.standby = False
            for queue in unit.queues.values():
                self._serve(queue, guard.incarnation if guard else 0)

    def _fetch(self, order: UnitOrder) -> Handover:
        assert order.take_over is not None
        name = UnitName(diagram=order.diagram, unit=order.unit)
        return Handover.from_bytes(b"".join(self.peers.at(order.take_over).export("unit", name.encode())))

    def _close_source(self, order: UnitOrder) -> None:
        assert order.take_over is not None
        moved = Moved(diagram=order.diagram, unit=order.unit, address=self.address)
        peer = self.peers.at(order.take_over)
        for left in reversed(range(MOVED_TRIES)):
            try:
                peer.act("moved", moved, Done)
                return
            except WireError:  # it may have been carried out, although no answer came
                status = peer.act("status", Ping(), NodeStatus)
                there = [u for u in status.units if (u.diagram, u.unit) == (order.diagram, order.unit)]
                if not there:
                    return
                if there[0].state != "frozen" or not left:
                    raise

    def _build(
        self, order: UnitOrder, spec: Spec, piece: Piece, compiled: Any, handover: Handover | None
    ) -> RunningUnit:
        def name(arrow: str) -> str:
            return f"{order.diagram}/{arrow}"

        full = {o.source: o.full for o in spec.outputs if o.full == "drop"}
        queues = {}
        for arrow in piece.gives:
            limits = QueueLimits(full="drop" if arrow == piece.errors else full.get(arrow, "wait"))
            if handover is not None:
                queues[arrow] = OutputQueue.restore(handover.queues[arrow], limits)
            else:
                schema = compiled.outlets[arrow].schema
                readers = order.readers.get(arrow, ())
                queues[arrow] = OutputQueue(name(arrow), schema, limits, readers=readers, epoch=order.epoch)
        epochs = handover.header.get("epochs", {}) if handover else {}
        reader = order.reader or f"{order.diagram}.{order.unit}"
        feeds = {
            arrow: StreamFeed(name(arrow), reader, self.routes, self.peers, self.acks, epochs.get(arrow))
            for arrow in piece.reads
        }
        run = UnitRun(
            Unit(name=order.unit, spec=spec),
            compiled,
            feeds,
            {},
            UnitOptions(),
            feeds=[Feed(arrow) for arrow in piece.reads],
            queues=queues,
            resume=handover,
        )
        query = self._query(self._spark, compiled, run, run.commit, run.scratch)
        kept = [CommitPoint.from_json(step) for step in handover.header.get("kept", ())] if handover else []
        return RunningUnit(order, piece, run, query, feeds, queues, kept_steps=kept)

    def _take_down(self, key: tuple[str, str], source: str | None) -> None:
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
            handover = unit.run.freeze(FREEZE_S)
            unit.frozen_since = time.monotonic()
            handover.header["epochs"] = {arrow: feed.epoch for arrow, feed in unit.feeds.items()}
            primary = self.guards.primaries.get((name.diagram, name.unit))
            handover.header["kept"] = primary.kept() if primary is not None else []
            return handover

    def thaw(self, name: UnitName) -> Done:
        """Let a frozen unit go on here."""
        with self.ordering:
            unit = self._unit(name)
            if unit.frozen_since is not None:
                unit.frozen_since = None
                unit.run.thaw()
            return Done()

    def moved(self, moved: Moved) -> Done:
        """A frozen unit goes on elsewhere: whoever reads its streams is sent there."""
        with self.ordering:
            unit = self._unit(UnitName(diagram=moved.diagram, unit=moved.unit))
            if unit.frozen_since is None:
                raise ClusterError(f"unit {moved.unit} of {moved.diagram} is not frozen", hint="move it again")
            for queue in unit.queues.values():
                self.routes.put(queue.stream, moved.address)
            self._remove((moved.diagram, moved.unit), moved_to=moved.address)
            return Done()

    def drop(self, name: UnitName) -> Done:
        """Stop a unit for good; harmless if it is not here."""
        self.drop_unit((name.diagram, name.unit))
        return Done()

    def drop_unit(self, key: tuple[str, str], moved_to: str | None = None, *, only: RunningUnit | None = None) -> None:
        """Stop a unit, or just this one; whoever reads its streams is sent elsewhere."""
        with self.ordering:
            if only is None or self.units.get(key) is only:
                self._remove(key, moved_to)

    def undeploy(self, name: DiagramName) -> Done:
        """Stop all of a diagram."""
        with self.ordering:
            for key in [k for k in self.units if k[0] == name.diagram]:
                self._remove(key)
            for stream in [s for s in self._entry_streams() if s.partition("/")[0] == name.diagram]:
                self._remove_entry(stream).erase()
            self.routes.forget(name.diagram)
            return Done()

    def drop_entry(self, name: EntryName) -> Done:
        """Be an entry point no more; harmless if it is not here."""
        with self.ordering:
            if name.stream in self._entry_streams():
                self._remove_entry(name.stream)
            return Done()

    def _all_entries(self) -> list[Entry]:
        """Those that take batches, and those that stand by."""
        return list({**{s: guard.entry for s, guard in list(self.guards.entries.items())}, **self.entries}.values())

    def _entry_streams(self) -> list[str]:
        return list({**self.entries, **self.guards.entries})

    def _remove_entry(self, stream: str) -> Entry:
        guard = self.guards.drop_entry(stream)
        served = self.entries.pop(stream, None)
        entry = served or (guard.entry if guard is not None else None)
        assert entry is not None
        for queue in (entry.queue, entry.late):
            for known in (self.queues, self.kept):
                if known.get(queue.stream) is queue:
                    del known[queue.stream]
            queue.close()
        entry.close()
        return entry

    def reroute(self, order: Reroute) -> Done:
        """A stream is served elsewhere now."""
        known, before = self.routes.incarnation(order.stream), self.routes.address(order.stream)
        self.routes.put(order.stream, order.address, order.incarnation)
        if order.incarnation > known and order.address != before:
            self._look_again(order.stream)
        return Done()

    def protect(self, order: Protect) -> Done:
        """Who stands on the other side of something that runs here."""
        return self.guards.protect(order)

    def stop(self, _: Ping) -> Done:
        """End this process, in good order."""
        self.stop_asked.set()
        return Done()

    def _remove(self, key: tuple[str, str], moved_to: str | None = None) -> None:
        unit = self.units.pop(key, None)
        self.guards.drop(key)
        if unit is None:
            return
        for feed in unit.feeds.values():  # first: under its name another may read elsewhere
            feed.stop()
        for queue in unit.queues.values():
            for served in (self.queues, self.kept):
                if served.get(queue.stream) is queue:
                    del served[queue.stream]
            queue.close(moved_to)
        ending = threading.Thread(target=unit.end, name="end-unit", daemon=True)
        self._ending = [*(one for one in self._ending if one.is_alive()), ending]
        ending.start()  # Spark takes its time to stop a query; nobody else shall wait for that

    # -- the end

    def close(self) -> None:
        """Finish the trains that are under way, then stop everything."""
        self._stopped.set()
        self.guards.close()
        with self.ordering:
            for key, unit in list(self.units.items()):
                try:
                    if unit.look() is None and unit.frozen_since is None and not unit.standby:
                        unit.run.freeze(FREEZE_S)
                except BorealisError as error:
                    log.warning("unit %s of %s: %s", key[1], key[0], error)
                self._remove(key)
            for stream in self._entry_streams():
                self._remove_entry(stream)
        for ending in self._ending:
            ending.join(FREEZE_S)
        self.acks.stop()
        self.peers.close()
        self._spark_state = "stopped"

    def _restart(self, unit: RunningUnit) -> None:
        """Start a query anew that died (its workers were killed, the machine was too busy): from its last commit."""
        failure = unit.wants_restart()
        if failure is None:
            return
        unit.restarts, unit.restart_at, unit.restarting = unit.restarts + 1, None, True
        work = partial(_try, partial(self._start_again, unit, failure))
        threading.Thread(target=work, name="restart", daemon=True).start()

    def _start_again(self, unit: RunningUnit, failure: BorealisError) -> None:
        key = (unit.order.diagram, unit.order.unit)
        try:
            unit.query.stop()
            fresh = self._query(self._spark, unit.run.compiled, unit.run, unit.run.commit, unit.run.scratch)
            with self.ordering:
                if self.units.get(key) is not unit:
                    return
                log.warning("unit %s of %s starts its query again: %s", key[1], key[0], failure)
                unit.query = fresh
            fresh.start()
            if self.units.get(key) is not unit:  # dropped meanwhile by someone who may have seen the old one
                fresh.stop()
        finally:
            unit.restarting = False

    def _tick_forever(self) -> None:
        ticks = 0
        while not self._stopped.wait(TICK_S):
            ticks += 1
            seldom = not ticks % SELDOM
            for entry in list(self.entries.values()):
                _try(entry.tick)
                if seldom:
                    _try(entry.trim)
            for entry in self._all_entries() if seldom else ():
                _try(entry.find_room)
            for unit in list(self.units.values()):
                _try(partial(self._thaw_forgotten, unit))
                if seldom:
                    _try(partial(self._restart, unit))
                    if unit.standby and not unit.started:
                        _try(unit.rehearse)

    def _thaw_forgotten(self, unit: RunningUnit) -> None:
        """A unit that was frozen for a node that never took it goes on here."""
        since = unit.frozen_since
        if since is not None and time.monotonic() - since > FREEZE_S:
            log.warning("unit %s stayed frozen too long: it goes on", unit.order.unit)
            self.thaw(UnitName(diagram=unit.order.diagram, unit=unit.order.unit))


ACTIONS: dict[str, tuple[type[Message], Callable[[Node, Any], Message]]] = {
    "ping": (Ping, Node.ping),
    "status": (Ping, Node.status),
    "schema": (SchemaOf, Node.schema),
    "stream": (SchemaOf, Node.stream),
    "forget": (Forget, Node.forget),
    "unread": (Forget, Node.unread),
    "keep": (Ack, Node.keep),
    "protect": (Protect, Node.protect),
    "check": (CheckOrder, Node.check),
    "entry": (EntryOrder, Node.start_entry),
    "start": (UnitOrder, Node.start_unit),
    "thaw": (UnitName, Node.thaw),
    "moved": (Moved, Node.moved),
    "drop": (UnitName, Node.drop),
    "drop_entry": (EntryName, Node.drop_entry),
    "undeploy": (DiagramName, Node.undeploy),
    "reroute": (Reroute, Node.reroute),
    "stop": (Ping, Node.stop),
}


def _try(work: Callable[[], None]) -> None:
    """What fails for one must not stop the others."""
    try:
        work()
    except BorealisError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("a tick failed")


def _spec(text: str) -> Spec:
    spec = Spec.from_yaml(text)
    passes.check(spec)
    return spec


def _ddl(schema: Any) -> str:
    return ", ".join(f"{f.name} {f.dataType.simpleString().upper()}" for f in schema.fields)
