"""Units and entry points as they are ordered, put together so that they can run on a node."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from borealis.compile.lowering import to_arrow
from borealis.compile.types import nullable
from borealis.diagram.cut import Piece, piece_of
from borealis.diagram.spec import LATE, Input
from borealis.entry.point import Entry, StreamConfig
from borealis.errors import ClusterError
from borealis.machine import HERE, Machine
from borealis.node.feeds import AckSender, Routes, StreamFeed
from borealis.node.pool import QueryPool
from borealis.node.running import RunningEntry, RunningUnit, UnitKey
from borealis.node.session import Session, spec_of
from borealis.spark.query import Query
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.trains.commit_point import CommitPoint
from borealis.trains.forking import DelayBound
from borealis.trains.handover import Handover
from borealis.trains.relay import StreamInput
from borealis.trains.unit import UnitOptions, UnitRun
from borealis.wire.client import Peers
from borealis.wire.messages import ENTRY, UnitName, UnitOrder


@dataclass(frozen=True)
class Builder:
    """Makes units and entry points out of orders, with what the node has."""

    node: str
    data: Path | None  # where durable inputs are kept
    session: Session
    routes: Routes
    peers: Peers
    acks: AckSender
    pool: QueryPool  # where units get their queries
    limits: QueueLimits = field(default_factory=QueueLimits)  # but for what the diagram says
    machine: Machine = HERE

    def entry(self, order: UnitOrder) -> RunningEntry:
        """An entry point that takes batches, or stands by."""
        spec, guard, name = spec_of(order.yaml), order.guard, order.unit.removeprefix(ENTRY)
        one = spec.input(name)
        arrows = (name, name + LATE)
        place = StreamConfig(
            f"{order.diagram}/{name}",
            to_arrow(nullable(self.session.input_schema(one))),
            replace(self.limits, full=one.full),
            order.readers.get(name, ()),
            order.readers.get(name + LATE, ()),
            order.epoch,
            self.node,
        )
        stands_by = guard is not None and guard.role != "primary"
        entry = Entry(
            one,
            spec.paces()[name],
            place,
            self._home(order, one),
            time=self.session.time_of(one),
            standby=stands_by,
            machine=self.machine,
        )
        return RunningEntry(
            order, Piece(name=order.unit, boxes=(), reads=(), gives=arrows), entry.queues, entry, machine=self.machine
        )

    def _home(self, order: UnitOrder, one: Input) -> Path | None:
        if not one.durable or (order.guard is not None and order.guard.approach == "storage"):
            return None
        if self.data is None:
            raise ClusterError(
                f"input '{one.name}' is durable, and node {self.node} has no data directory",
                hint="start the node with --data DIR",
            )
        return self.data / "entries" / order.diagram / one.name

    def query(self, key: UnitKey, run: UnitRun) -> Query:
        """What runs its trains; another one if that died."""
        return Query(self.session.get(), run.compiled, run, run.commit, run.scratch, partial(self.pool.take, key))

    def unit(self, order: UnitOrder) -> RunningUnit:
        """A unit from its feeds to its queues: from nothing, or from where the node `take_over` freezes it for this."""
        spec = spec_of(order.yaml)
        piece = piece_of(spec, order.unit, order.boxes)
        compiled = self.session.compiled(spec, order.buckets, piece)
        handover = None
        if order.take_over is not None:  # now that its program is ready: it stands still from here on
            unit_name = UnitName(diagram=order.diagram, unit=order.unit)
            handover = Handover.from_bytes(b"".join(self.peers.at(order.take_over).export("unit", unit_name.encode())))

        def name(arrow: str) -> str:
            return f"{order.diagram}/{arrow}"

        full = {o.source: o.full for o in spec.outputs if o.full == "drop"}
        queues = {}
        for arrow in piece.gives:
            limits = replace(self.limits, full="drop" if arrow == piece.errors else full.get(arrow, "wait"))
            if handover is not None:
                queues[arrow] = OutputQueue.restore(handover.queues[arrow], limits, self.machine)
            else:
                schema = compiled.outlets[arrow].schema
                readers = order.readers.get(arrow, ())
                queues[arrow] = OutputQueue(
                    name(arrow), schema, limits, readers=readers, epoch=order.epoch, machine=self.machine
                )
        epochs = handover.header.get("epochs", {}) if handover else {}
        reader = order.reader or f"{order.diagram}.{order.unit}"
        parts = (self.routes, self.peers, self.acks)
        protection = order.guard.protection if order.guard is not None else None
        bound = DelayBound.of(protection, self.limits.memory_bytes)
        feeds = {
            arrow: StreamFeed(
                name(arrow),
                reader,
                *parts,
                epochs.get(arrow),
                machine=self.machine,
                wants="stable" if bound is None else "both",
                replicated=name(arrow) in order.replicated,
            )
            for arrow in piece.reads
        }
        for feed in feeds.values():  # what was given up is gone, also if the unit moves meanwhile
            feed.forgetful = bound is not None and bound.keep.gives_up
        run = UnitRun(
            order.unit,
            spec,
            compiled,
            feeds,
            {},
            UnitOptions(bucket_us=protection.bucket_us if protection is not None else None, bound=bound),
            feeds=[StreamInput(arrow) for arrow in piece.reads],
            queues=queues,
            resume=handover,
            machine=self.machine,
        )
        retained = [CommitPoint.from_json(step) for step in handover.header.get("retained", ())] if handover else []
        query = self.query((order.diagram, order.unit), run)
        return RunningUnit(
            order, piece, queues, run, query, feeds=feeds, retained_points=retained, machine=self.machine
        )
