"""A whole cluster in one process: real nodes, queues, wire and migration; only Spark's micro-batches are left out.

Each unit's trains run in a thread of their own, with the very code that Spark's workers run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any

import pyarrow as pa
from harness import Luck, _later_levels
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from borealis.compile.analyze import analyze
from borealis.compile.unit import Compiled
from borealis.diagram.cut import Piece, cut
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError, TrainError
from borealis.node import session
from borealis.node.node import Node
from borealis.spark import worker
from borealis.spark.lane import run_lane
from borealis.spark.lanes import Lanes, failure_of
from borealis.spark.plan import level_schema
from borealis.streams.queue import MovedError
from borealis.streams.section import Section, joined
from borealis.trains.message import decode, encode
from borealis.tuples import FIRST_TIME, with_header
from borealis.wire.client import Peer
from borealis.wire.endpoints import Location
from borealis.wire.messages import ENTRY, BatchHead, Done, Publish, Subscribe, UnitOrder
from borealis.wire.server import WireServer

PATIENCE_S = 20.0
SCHEMAS: dict[str, dict[str, StructType]] = {}


def analyze_once(spec: Spec, spark: SparkSession) -> dict[str, StructType]:
    """Spark takes longest to tell the types of a diagram: all nodes of all clusters ask once."""
    key = spec.fingerprint()
    if key not in SCHEMAS:
        SCHEMAS[key] = analyze(spec, spark)
    return SCHEMAS[key]


session.analyze = analyze_once


class ThreadQuery:
    """What `plan.train.Query` is to a node, without Spark's tasks: threads keep the lanes, or run train after train."""

    def __init__(self, spark: Any, compiled: Compiled, trains: Any, commit: Callable[[Any], None], scratch: Path):
        self.spark, self.compiled, self.trains = spark, compiled, trains
        self.hinders = compiled.hinders
        self._commit = commit
        self._stopped = threading.Event()
        self._failed: BorealisError | None = None
        self._lanes = Lanes(trains, commit, compiled.program.buckets) if compiled.one_level else None
        works = [lambda: self._run()] if self._lanes is None else map(self._keeping, range(compiled.program.buckets))
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]

    def start(self) -> None:
        if self._lanes is not None:
            self._lanes.lease(0)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._lanes is not None:
            self._lanes.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(PATIENCE_S)

    def failure(self) -> BorealisError | None:
        if self._lanes is not None and self._lanes.failure is not None:
            return failure_of(self._lanes.failure)
        return self._failed

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            if not self._stopped.is_set():
                self._failed = TrainError(f"{type(error).__name__}: {error}")

    def _keeping(self, bucket: int) -> Callable[[], None]:
        lanes = self._lanes
        assert lanes is not None

        def ask(head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[pa.Buffer]]:
            told = lanes.turn(*decode(encode(head, buffers)))
            return decode(encode(*told))

        return lambda: run_lane(ask, 1, bucket)

    def _run(self) -> None:
        while not self._stopped.is_set():
            number = self.trains.next_train(self.trains.committed(), 0.05)
            if number is not None:
                self._commit(self._train(number))

    def _train(self, number: int) -> pa.Table:
        plan = json.loads(json.dumps(self.trains.plan(number)))
        schema = to_arrow_schema(level_schema(self.compiled, 0), timezone="UTC")
        buckets = self.compiled.program.buckets
        batches = [b for bucket in range(buckets) for b in worker.read_train(plan, bucket, schema)]
        table = pa.Table.from_batches(batches, schema)
        return _later_levels(self.compiled, table, _Calm(), self.spark)


class _Calm(Luck):
    """Tasks run as they are, with this process's cache of kernels."""

    def task(self, work: Callable[[], Any]) -> list[pa.RecordBatch]:
        return list(work())


class Cluster:
    """Some nodes, and a client of each. Use with `with`."""

    def __init__(self, spark: SparkSession, nodes: int) -> None:
        self.nodes = [
            Node(f"node{i + 1}", query=ThreadQuery, ask=self.locate)  # type: ignore[arg-type]
            for i in range(nodes)
        ]
        self._servers = [WireServer(node).start() for node in self.nodes]
        for node, server in zip(self.nodes, self._servers, strict=True):
            node.address = server.address
            node.session.started(spark)
        self.peers = [Peer(node.address) for node in self.nodes]

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)
            for server in self._servers:
                stack.callback(server.close)
            for peer in self.peers:
                stack.callback(peer.close)

    def locate(self, stream: str) -> Location | None:
        """What a coordinator would know."""
        return next((Location(stream, node.address) for node in self.nodes if stream in node.queues), None)

    def home(self, stream: str) -> int:
        """Which node serves a stream."""
        return next(i for i, node in enumerate(self.nodes) if stream in node.queues)

    def deploy(self, spec: Spec, cuts: Sequence[str], rng: Random, buckets: int = 1) -> list[Piece]:
        """Entry points and units on random nodes; where their streams are, they must find out."""
        pieces, yaml = cut(spec, cuts), spec.to_yaml()
        readers: dict[str, list[str]] = {}
        for piece in pieces:
            for arrow in piece.reads:
                readers.setdefault(arrow, []).append(f"{spec.name}.{piece.name}")
        for one in spec.inputs:
            order = UnitOrder(diagram=spec.name, yaml=yaml, unit=ENTRY + one.name, boxes=[], readers=readers)
            rng.choice(self.peers).act("start", order, Done)
        self.orders = {
            piece.name: UnitOrder(
                diagram=spec.name,
                yaml=yaml,
                unit=piece.name,
                boxes=list(piece.boxes),
                buckets=buckets,
                readers={arrow: readers.get(arrow, []) for arrow in piece.gives},
            )
            for piece in pieces
        }
        for order in rng.sample(list(self.orders.values()), len(self.orders)):
            rng.choice(self.peers).act("start", order, Done)
        return pieces

    def move(self, unit: str, rng: Random) -> None:
        """A running unit, from where it is to another node."""
        order = self.orders[unit]
        here = next(i for i, n in enumerate(self.nodes) if (order.diagram, unit) in n.units)
        there = rng.choice([i for i in range(len(self.nodes)) if i != here])
        self.peers[there].act("start", order.model_copy(update={"take_over": self.nodes[here].address}), Done)

    def publish(self, stream: str, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> None:
        """All batches of an input, then its end."""
        peer = self.peers[self.home(stream)]
        with peer.publish(Publish(stream=stream, publisher="law"), schema) as publication:
            for number, batch in enumerate(batches):
                publication.send(batch, BatchHead(number=number))
            nothing = pa.record_batch([pa.array([], f.type) for f in schema], schema=schema)
            publication.send(nothing, BatchHead(number=len(batches), end=True))

    def collect(self, stream: str) -> Section:
        """A stream from its first tuple to its end, wherever it goes meanwhile."""
        parts: list[Section] = []
        at, boundary, epoch, where = 0, FIRST_TIME, None, self.peers[self.home(stream)].address
        while True:
            ask = Subscribe(stream=stream, start=at, boundary=boundary, epoch=epoch)
            try:
                with Peer(where) as peer, peer.subscribe(ask) as subscription:
                    epoch = subscription.epoch
                    for section in subscription:
                        assert (section.first, section.standing) == (at, boundary)
                        parts.append(section)
                        at, boundary = section.stop, section.final
                return joined(parts)
            except MovedError as moved:
                where = moved.moved_to

    def failures(self) -> list[str]:
        """Units that stand still."""
        return [f"{u.unit}: {u.error}" for node in self.nodes for u in node.status().units if u.state == "failed"]


def table_of(section: Section) -> pa.Table:
    """A collected stream with header columns, as `run(..., headers=True)` gives it."""
    return with_header(pa.table(section.rows), section.first, section.time)


def collect_all(cluster: Cluster, streams: Mapping[str, str]) -> dict[str, Section]:
    """Several streams at once, each in a thread: a stream that nobody reads must not stop those that somebody does."""
    found: dict[str, Section] = {}
    errors: list[BaseException] = []

    def collect(name: str, stream: str) -> None:
        try:
            found[name] = cluster.collect(stream)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=collect, args=item, daemon=True) for item in streams.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not errors, errors[0]
    assert not any(t.is_alive() for t in threads), f"streams did not end: {cluster.failures()}"
    return found
