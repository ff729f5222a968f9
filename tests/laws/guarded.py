"""A protected diagram on a cluster in one process, whose nodes can die: cut off in an instant, as far as others see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

import pyarrow as pa
from nodes import PATIENCE_S, Cluster

from aborting import abort
from borealis.diagram.cut import Piece, cut
from borealis.diagram.protection import Protection
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError
from borealis.streams.queue import StandbyError
from borealis.streams.section import Section
from borealis.tuples import FIRST_TIME
from borealis.wire.client import Peer
from borealis.wire.endpoints import Location
from borealis.wire.messages import ENTRY, Claim, Claimed, Done, Guard, Protect, Subscribe, UnitOrder
from borealis.wire.waiting import PeerTimings

Approach = Literal["amnesia", "passive", "active", "upstream-backup"]
PING_MS = 40.0


class Truth:
    """What a coordinator knows: who runs what, as which incarnation."""

    def __init__(self) -> None:
        self.units: dict[tuple[str, str], tuple[int, str, str]] = {}  # incarnation, primary, backup
        self.lock = threading.Lock()

    def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        with self.lock:
            return [self._one(c) for c in claims]

    def _one(self, claim: Claim) -> Claimed:
        key = (claim.diagram, claim.unit)
        incarnation, primary, backup = self.units[key]
        if claim.what == "take over" and claim.incarnation == incarnation + 1 and claim.node == backup:
            self.units[key] = (claim.incarnation, backup, "")
        elif claim.what == "alone" and claim.incarnation == incarnation and claim.node == primary:
            self.units[key] = (incarnation, primary, "")
        else:
            return Claimed(granted=False, incarnation=incarnation)
        return Claimed(granted=True, incarnation=self.units[key][0])


class Guarded(Cluster):
    """Entry points on the first node, which never dies; each unit on two of the others."""

    def __init__(self, spark: Any, nodes: int) -> None:
        self.truth, self.dead = Truth(), set[int]()
        super().__init__(spark, nodes)
        for node in self.nodes:
            node.guards.claim = self.truth.claim

    def locate(self, stream: str) -> Any:
        for i, node in enumerate(self.nodes):
            if i not in self.dead and stream in node.queues:
                alive = [n for j, n in enumerate(self.nodes) if j not in self.dead]
                other = [n for n in alive if stream in n.served.standby_queues]
                return Location(stream, node.address, fallback=other[0].address if other else None)
        return None

    def protect(
        self, spec: Spec, cuts: Sequence[str], rng: Random, approach: Approach, guarantee: str, interval_ms: float = 30
    ) -> list[Piece]:
        """Deploy, each unit with a backup."""
        self.spec, self.pieces, yaml = spec, cut(spec, cuts), spec.to_yaml()
        names = {p.name: [f"{spec.name}.{p.name}"] for p in self.pieces}
        if approach == "active":
            names = {n: [f"{one[0]}.1", f"{one[0]}.2"] for n, one in names.items()}
        readers: dict[str, list[str]] = {}
        for piece in self.pieces:
            for arrow in piece.reads:
                readers.setdefault(arrow, []).extend(names[piece.name])
        for one in spec.inputs:
            order = UnitOrder(diagram=spec.name, yaml=yaml, unit=ENTRY + one.name, boxes=[], readers=readers)
            self.peers[0].act("start", order, Done)
        self.places = {p.name: rng.sample(range(1, len(self.nodes)), 2) for p in self.pieces}
        served = {a: self.places[p.name] for p in self.pieces for a in p.gives}
        self.orders = {}
        for piece in self.pieces:
            primary, backup = self.places[piece.name]
            self.truth.units[spec.name, piece.name] = (1, self.nodes[primary].name, self.nodes[backup].name)
            self.orders[piece.name] = UnitOrder(
                diagram=spec.name,
                yaml=yaml,
                unit=piece.name,
                boxes=list(piece.boxes),
                readers={arrow: readers.get(arrow, []) for arrow in piece.gives},
                feeds={f"{spec.name}/{a}": self.nodes[served[a][0] if a in served else 0].address for a in piece.reads},
                fallbacks={f"{spec.name}/{a}": self.nodes[served[a][1]].address for a in piece.reads if a in served},
                epoch="e1",
                reader=f"{spec.name}.{piece.name}.1" if approach == "active" else None,
                guard=Guard(
                    protection=Protection(
                        ha=approach,
                        guarantee=guarantee,
                        interval=None if approach == "amnesia" else f"{interval_ms} ms",
                        ping=f"{PING_MS} ms",
                    ),
                    partner=self.nodes[backup].address,
                    partner_node=self.nodes[backup].name,
                ),
            )
            self.start_backup(piece.name, backup, primary)
        for piece in self.pieces:
            self.peers[self.places[piece.name][0]].act("start", self.orders[piece.name], Done)
        return self.pieces

    def start_backup(self, unit: str, where: int, primary: int) -> None:
        order = self.orders[unit]
        assert order.guard is not None
        incarnation = self.truth.units[order.diagram, unit][0]
        guard = order.guard.model_copy(
            update={
                "role": "backup",
                "partner": self.nodes[primary].address,
                "partner_node": self.nodes[primary].name,
                "incarnation": incarnation,
            }
        )
        name = f"{order.diagram}.{unit}.{incarnation + 1}" if guard.approach == "active" else None
        self.peers[where].act("start", order.model_copy(update={"guard": guard, "reader": name}), Done)

    def rejoin(self, unit: str, where: int) -> None:
        """Make a node the backup of a unit that is alone."""
        key = (self.spec.name, unit)
        with self.truth.lock:
            incarnation, primary, _ = self.truth.units[key]
            self.truth.units[key] = (incarnation, primary, self.nodes[where].name)
        home = next(i for i, n in enumerate(self.nodes) if n.name == primary)
        self.start_backup(unit, where, home)
        order = Protect(
            diagram=key[0],
            unit=unit,
            partner=self.nodes[where].address,
            partner_node=self.nodes[where].name,
            incarnation=incarnation,
        )
        self.peers[home].act("protect", order, Done)

    def kill(self, i: int) -> None:
        """Nobody hears of this node again."""
        self.dead.add(i)
        server, node = self._servers[i], self.nodes[i]
        node._care.stop()
        for guard in list(node.guards.primaries.values()):
            guard._stopped = True
        node.guards.watch.close()
        node.acks._stopped.set()
        for unit in list(node.units.values()):
            unit.run.closed = True
        abort(server)
        node.peers.close()

    def takeovers(self, unit: str, where: int | None = None) -> list[Any]:
        """All that happened to a unit that is alive; or just what happened on one node."""
        alive = [n for i, n in enumerate(self.nodes) if i not in self.dead and where in (None, i)]
        guards = [n.guards.primaries.get((self.spec.name, unit)) for n in alive]
        return [t for g in guards if g is not None for t in g.takeovers]

    def homes(self, unit: str) -> tuple[int, int | None]:
        """Where the primary of a unit is, and its backup."""
        key = (self.spec.name, unit)
        alive = {i: n for i, n in enumerate(self.nodes) if i not in self.dead and key in n.units}
        primary = next(i for i, n in alive.items() if not n.units[key].standby)
        return primary, next((i for i, n in alive.items() if n.units[key].standby), None)

    def rejoin_somewhere(self, unit: str) -> int:
        """Another backup for a unit, on the first node that has nothing of it."""
        home, _ = self.homes(unit)
        where = next(i for i in range(1, len(self.nodes)) if i not in {*self.dead, home})
        self.rejoin(unit, where)
        return where

    def is_protected(self, unit: str, home: int) -> bool:
        guard = self.nodes[home].guards.primaries.get((self.spec.name, unit))
        return guard is not None and guard.status().state == "protected"

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: {self.failures()}"
            time.sleep(0.01)

    def follow(self, stream: str) -> tuple[list[Section], int]:
        """A stream from its first tuple to its end, as a client sees it whatever dies; and how often ids jumped."""
        parts: list[Section] = []
        at, boundary, epoch, jumps, known = 0, FIRST_TIME, None, 0, 0
        deadline = time.monotonic() + PATIENCE_S
        where: str | None = None
        while True:
            assert time.monotonic() < deadline, f"{stream} did not end: at {at}, {self.failures()}"
            way = self.locate(stream)
            where = way.address if way is not None else where
            if where is None:
                time.sleep(0.01)
                continue
            ask = Subscribe(stream=stream, start=at, boundary=boundary, epoch=epoch, incarnation=known)
            try:
                with Peer(where, timings=PeerTimings(connect_s=0.5)) as peer, peer.subscribe(ask) as subscription:
                    epoch, known = subscription.epoch, max(known, subscription.incarnation)
                    for section in subscription:
                        jumps += section.first != at
                        parts.append(section)
                        at, boundary = section.stop, section.final
                return parts, jumps
            except (StandbyError, BorealisError):
                time.sleep(0.01)

    def __exit__(self, *exc: Any) -> None:
        for i in sorted(self.dead):
            for unit in list(self.nodes[i].units.values()):
                unit.query.stop()
        alive = [i for i in range(len(self.nodes)) if i not in self.dead]
        ended = [unit.run for i in alive for unit in self.nodes[i].units.values() if unit.run.done.is_set()]
        left = [run.manager.waiting() for run in ended]
        for i in alive:
            self.nodes[i].close()
            self._servers[i].close()
        for peer in self.peers:
            peer.close()
        assert not any(left), f"rows that are said to wait in units that have ended: {left}"


def publish_slowly(
    cluster: Guarded,
    stream: str,
    batches: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    gate: tuple[int, threading.Event] | None = None,
) -> None:
    """All batches of an input, then its end, with pauses, so that there is a midst; behind a gate when it is open."""
    from borealis.wire.messages import BatchHead, Publish

    with cluster.peers[0].publish(Publish(stream=stream, publisher="law"), schema) as publication:
        for number, batch in enumerate(batches):
            if gate is not None and number == gate[0]:
                assert gate[1].wait(PATIENCE_S)
            publication.send(batch, BatchHead(number=number))
            time.sleep(0.01)
        nothing = pa.record_batch([pa.array([], f.type) for f in schema], schema=schema)
        publication.send(nothing, BatchHead(number=len(batches), end=True))
