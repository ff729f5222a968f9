"""Kills of our own nodes: the node that runs the last unit dies, again and again, while packets come in."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from borealis import Diagram, window
from borealis.client.client import Client
from borealis.client.publisher import Publisher
from borealis.errors import BorealisError
from borealis.streams.section import Section
from borealis.wire.messages import Takeover

from .measuring import Say
from .recovery_cluster import Cluster
from .recovery_packets import Feed, Key, Packets, counted
from .recovery_sums import Arrivals, check, gaps_ms, line, silence_ms

COLUMNS = "ts TIMESTAMP, src INT, bytes INT"
LAST = "per_source"
PARTS = ("detection_ms", "takeover_ms", "reprocess_ms")
SIZE, SIZE_US = "1 second", 1_000_000
SLIDE, SLIDE_US = "50 milliseconds", 50_000
WARM_S = 8.0  # of packets before anything is measured
CALM_S = 12.0  # without failure before each kill: a node that just came back has warmed up
GOES_ON_S = 60.0  # within that something new must come, or the unit is lost
END_S = 60.0


def aggregate(name: str) -> Diagram:
    """Packets that are not empty, counted by source: one unit."""
    d = Diagram(name)
    kept = d.input("packets", COLUMNS, time="ts").filter("bytes > 0", name="kept")
    kept.aggregate(by="src", over=window(SIZE, SLIDE), n="count(*)", name=LAST).output(LAST)
    return d


def union(name: str) -> Diagram:
    """The same over two inputs that are merged as they arrive: what comes out depends on chance."""
    d = Diagram(name)
    both = d.input("packets", COLUMNS, time="ts").union(d.input("others", COLUMNS, time="ts"), name="both")
    kept = both.filter("bytes > 0", name="kept")
    kept.aggregate(by="src", over=window(SIZE, SLIDE), n="count(*)", name=LAST).output(LAST)
    return d


@dataclass(frozen=True)
class Shape:
    """A diagram and how it is cut; node1 has all but the last unit."""

    make: Any
    inputs: tuple[str, ...]
    cut: tuple[str, ...]
    first: str  # a box of the first unit
    units: int


DIAGRAMS = {
    "aggregate": Shape(aggregate, ("packets",), (), "kept", 1),
    "chain": Shape(aggregate, ("packets",), (LAST,), "kept", 2),
    "union": Shape(union, ("packets", "others"), (), "both", 1),
}
GUARANTEES = {"amnesia": "gap", "passive": "precise", "active": "precise", "upstream-backup": "precise"}


class Reader:
    """A client of the last stream: notes when what came."""

    def __init__(self, client: Client, stream: str) -> None:
        self.arrivals, self.ended = Arrivals(), threading.Event()
        self.error: BaseException | None = None
        self._subscription = client.subscribe(stream, start="oldest", on_gap="continue")
        threading.Thread(target=self._read, name="reader", daemon=True).start()

    def _read(self) -> None:
        try:
            for section in self._subscription.sections():
                if len(section):
                    self.arrivals.add(time.monotonic(), results(section))
        except BaseException as error:
            self.error = error
        self.ended.set()

    def wait_new(self, after: float, seconds: float) -> None:
        """Until something new has come after a moment."""
        deadline = time.monotonic() + seconds
        while not self.arrivals.when or self.arrivals.when[-1] <= after:
            if self.ended.is_set() or time.monotonic() > deadline:
                raise TimeoutError(f"nothing new within {seconds:.0f} s") from self.error
            time.sleep(0.02)

    def stop(self) -> None:
        """No more."""
        self._subscription.stop()


def results(section: Section) -> list[tuple[Key, int]]:
    """A section's rows as keys and counts."""
    rows = section.rows
    ends = rows.column("window_end").cast(pa.int64()).to_pylist()
    return [
        ((s, e), n) for s, e, n in zip(rows.column("src").to_pylist(), ends, rows.column("n").to_pylist(), strict=True)
    ]


class Sender:
    """A publisher as the taker of a feed."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher

    def __call__(self, rows: pa.RecordBatch | None, until_us: int) -> None:
        """Rows, or how far time has come without any."""
        if rows is None:
            self.publisher.heartbeat(until_us)
        else:
            self.publisher.send_batch(rows.select(self.publisher.schema.names).cast(self.publisher.schema))


class Trial:
    """One approach on one diagram: deployed, fed, killed, checked."""

    def __init__(self, cluster: Cluster, diagram: str, approach: str, interval: str | None, data: Packets) -> None:
        self.cluster, self.diagram, self.approach, self.interval = cluster, diagram, approach, interval
        self.guarantee = GUARANTEES[approach]
        self.name = f"{diagram}-{approach}"
        self.shape = DIAGRAMS[diagram]
        self.data = data
        self.chance = random.Random(f"{self.name}")

    def run(self, kills: int, say: Say) -> dict[str, Any]:
        """All kills; what stops them is told, and what was measured until then is kept."""
        self.cluster.mend()
        found: dict[str, Any] = {part: [] for part in ("silences", "gaps", "train_ms", *PARTS)}
        found |= {"duplicates": None, "lost": None, "wrong": None, "results": 0, "data": self.data.where_from}
        try:
            self._deploy()
            self._feed_and_kill(kills, found, say)
        except (BorealisError, TimeoutError) as error:
            found["note"] = f"stopped: {error}"
            say(f"{self.name}: {found['note']}")
        finally:
            with suppress(BorealisError):
                self.cluster.client.undeploy(self.name)
        return line(self.approach, self.guarantee, self.diagram, found)

    def _feed_and_kill(self, kills: int, found: dict[str, Any], say: Say) -> None:
        client = self.cluster.client
        reader = Reader(client, f"{self.name}/{LAST}")
        publishers = [client.publisher(f"{self.name}/{name}") for name in self.shape.inputs]
        feed = Feed(self.data, [Sender(p) for p in publishers])
        feed.start()
        try:
            self._kills(reader, kills, found, say)
            feed.stop()
            for publisher in publishers:
                publisher.end()
                publisher.close(END_S)
            if not reader.ended.wait(END_S):
                found["note"] = f"the stream did not end within {END_S:.0f} s"
        finally:
            feed.abandon()
            reader.stop()
            for publisher in publishers:
                publisher.abandon()
            found["results"] = len(reader.arrivals.seen)
        found |= asdict(check(reader.arrivals, counted(*feed.given(), SIZE_US, SLIDE_US)))

    def _deploy(self) -> None:
        shape = self.shape
        first = [shape.first] if shape.cut else []
        place = dict.fromkeys([*shape.inputs, *first], "node1") | {LAST: "node2"}
        backup = {f"u{number + 1}": "node3" for number in range(shape.units)}
        self.cluster.client.deploy(
            shape.make(self.name),
            cut=shape.cut,
            place=place,
            ha=self.approach,
            guarantee=self.guarantee,
            interval=self.interval,
            backup=backup,
            pin=True,
        )

    def _kills(self, reader: Reader, kills: int, found: dict[str, Any], say: Say) -> None:
        reader.wait_new(0.0, GOES_ON_S)
        self.cluster.wait_protected(self.name)
        time.sleep(WARM_S)
        for number in range(kills):
            calm = time.monotonic()
            time.sleep(CALM_S + self.chance.random())
            unit = self.cluster.unit(self.name, LAST)
            assert unit.protection is not None
            killed = self.cluster.kill(unit.node)
            found["gaps"] += gaps_ms(reader.arrivals.when, calm, killed)
            reader.wait_new(killed + 0.5, GOES_ON_S)
            found["silences"].append(silence_ms(reader.arrivals.when, killed))
            told = self.cluster.takeover(self.name, LAST, unit.protection.incarnation)
            for part in PARTS:
                found[part].append(getattr(told, part))
            found["train_ms"].append(unit.train_ms)
            found["interval_ms"] = unit.protection.interval_ms
            say(_story(self.name, number + 1, unit.node, found["silences"][-1], told))
            self.cluster.start(unit.node)
            self.cluster.wait_protected(self.name)


def _story(name: str, number: int, node: str, silence: float, told: Takeover) -> str:
    parts = f"detection {told.detection_ms:.0f}, takeover {told.takeover_ms:.0f}, reprocess {told.reprocess_ms:.0f}"
    return f"{name}: kill {number} ({node}): silence {silence:.0f} ms ({parts})"
