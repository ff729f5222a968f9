"""Three protected diagrams side by side on three nodes, with a kill in the middle: `borealis bench protected`.

A chain of three units (passive standby), a merge of two inputs (active standby) and a filter with a map (upstream
backup), all precise, each fed 600 rows a second in real time. Half-way `kill -9` hits all processes of node2, which is
started again a little later. Told are the cores that nodes and coordinator use before the kill and after the return,
and for each diagram how old the boundary of its results is, how many seconds behind the kill that is as usual, and how
often it is later than usual when all nodes are back. What came out is checked against what was sent.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from borealis import Diagram, window
from borealis.client.client import Client
from borealis.client.cluster_config import read_record
from borealis.streams.section import Section

from .measuring import Say, meter, terminable
from .recovery_cluster import Cluster, cluster
from .recovery_ours import COLUMNS, END_S, Sender, results
from .recovery_packets import Feed, Packets, counted, packets

ROWS_PER_S = 600
SECONDS = 720.0
QUICK_S = 60.0
WARM_S = 15.0
AWAY_S = 15.0  # the killed node is started again behind that
RETURN_S = 30.0  # after its return, until cores are counted again
LOOK_S = 0.25
FRESH_S = 0.5  # results so much older than before the kill are late
VICTIM = "node2"
ASKED_CORES = 0.25  # of those there are
ASKED_BACK_S = 10.0
SIZE, SIZE_US, SLIDE, SLIDE_US = "1 second", 1_000_000, "250 milliseconds", 250_000
QUERIES = ("chain", "merge", "stateless")
SHOWN = (
    "query",
    "approach",
    "cores",
    "cores_after",
    "boundary_age_ms",
    "back_s",
    "rate",
    "rate_after",
    "duplicates",
    "lost",
)


@dataclass(frozen=True)
class Options:
    """What to measure. `only` names diagrams."""

    only: tuple[str, ...] = ()
    runs: int = 3  # of other benchmarks
    quick: bool = False

    @property
    def seconds(self) -> float:
        """How long packets come."""
        return QUICK_S if self.quick else SECONDS


@dataclass(frozen=True)
class Shape:
    """One of the diagrams, and how it is protected."""

    approach: str
    inputs: tuple[str, ...]
    cut: tuple[str, ...]
    place: dict[str, str]
    backup: dict[str, str]


SHAPES = {
    "chain": Shape(
        "passive",
        ("packets",),
        ("mapped", "last"),
        {"packets": "node1", "kept": "node1", "mapped": "node2", "last": "node3"},
        {"u1": "node3", "u2": "node3", "u3": "node1"},
    ),
    "merge": Shape(
        "active",
        ("packets", "others"),
        (),
        {"packets": "node1", "others": "node3", "both": "node2"},
        {"u1": "node3"},
    ),
    "stateless": Shape("upstream-backup", ("packets",), (), {"packets": "node3", "kept": "node2"}, {"u1": "node1"}),
}


def drawn(name: str) -> Diagram:
    """The diagram of that name."""
    d = Diagram(name)
    rows = d.input("packets", COLUMNS, time="ts")
    if name == "merge":
        rows = rows.union(d.input("others", COLUMNS, time="ts"), name="both")
    kept = rows.filter("bytes > 0", name="kept")
    if name == "stateless":
        kept.map(ts="ts", src="src", bytes="bytes * 8", name="last").output("last")
        return d
    mapped = kept.map(src="src", bits="bytes * 8", name="mapped") if name == "chain" else kept
    mapped.aggregate(by="src", over=window(SIZE, SLIDE), n="count(*)", name="last").output("last")
    return d


class Reader:
    """A client of the last stream: notes what came, and how old it was."""

    def __init__(self, client: Client, name: str) -> None:
        self.name, self.ended = name, threading.Event()
        self.seen: Counter[Any] = Counter()
        self.boundary = 0
        self.rows = 0
        self.ages: list[tuple[float, float, int]] = []  # monotonic time, seconds of age, rows so far
        self._subscription = client.subscribe(f"{name}/last", start="oldest", on_gap="continue")
        threading.Thread(target=self._read, name=f"read-{name}", daemon=True).start()

    def _read(self) -> None:
        for section in self._subscription.sections():
            self.seen.update(_facts(self.name, section))
            self.rows += len(section)
            self.boundary = section.final
        self.ended.set()

    def look(self, now_us: float) -> None:
        """Note how old the newest results are."""
        if self.boundary:
            self.ages.append((time.monotonic(), (now_us - self.boundary) / 1e6, self.rows))

    def stop(self) -> None:
        """No more."""
        self._subscription.stop()


def _facts(name: str, section: Section) -> list[Any]:
    if name != "stateless":
        return results(section)
    columns = [section.rows.column(c).to_pylist() for c in ("src", "bytes")]
    return list(zip(section.time.tolist(), *columns, strict=True))


def age_s(ages: Sequence[tuple[float, float, int]], since: float, until: float) -> float:
    """The median between two moments.

    >>> age_s([(1.0, 0.3, 0), (2.0, 0.5, 0), (3.0, 9.0, 0)], 0.0, 2.5)
    0.4
    """
    return statistics.median(age for at, age, _ in ages if since <= at <= until)


def back_s(ages: Sequence[tuple[float, float, int]], killed: float, until: float, usual_s: float) -> float | None:
    """How long behind the kill the last look was that found results older than usual; None if the last of all did.

    >>> back_s([(1.0, 0.3, 0), (2.0, 1.9, 0), (3.0, 1.2, 0), (4.0, 0.4, 0)], 1.5, 9.0, 0.3)
    1.5
    """
    behind = [(at, age) for at, age, _ in ages if killed < at <= until]
    late = [at for at, age in behind if age > usual_s + FRESH_S]
    if late and late[-1] == behind[-1][0]:
        return None
    return round(late[-1] - killed, 1) if late else 0.0


def late(ages: Sequence[tuple[float, float, int]], since: float, until: float, usual_s: float) -> float:
    """The share of looks between two moments that found results older than usual.

    >>> late([(1.0, 0.3, 0), (2.0, 0.9, 0), (3.0, 0.4, 0)], 1.5, 9.0, 0.3)
    0.5
    """
    found = [age > usual_s + FRESH_S for at, age, _ in ages if since <= at <= until]
    return round(sum(found) / len(found), 3)


def rate(ages: Sequence[tuple[float, float, int]], since: float, until: float) -> float:
    """Results a second between two moments.

    >>> rate([(1.0, 0.3, 10), (2.0, 0.5, 20), (3.0, 9.0, 40)], 0.0, 9.0)
    15.0
    """
    inside = [(at, rows) for at, _, rows in ages if since <= at <= until]
    return round((inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]), 1)


class Diagrams:
    """Those that run, each with its feed and its reader."""

    def __init__(self, running: Cluster, names: Sequence[str], data: Packets) -> None:
        self.running = running
        self.readers: dict[str, Reader] = {}
        self.feeds: dict[str, Feed] = {}
        self.publishers: dict[str, list[Any]] = {}
        for name in names:
            shape = SHAPES[name]
            running.client.deploy(
                drawn(name),
                cut=shape.cut,
                place=shape.place,
                ha=shape.approach,
                guarantee="precise",
                backup=shape.backup,
                pin=True,
            )
            self.readers[name] = Reader(running.client, name)
            self.publishers[name] = [running.client.publisher(f"{name}/{one}") for one in shape.inputs]
            self.feeds[name] = Feed(data, [Sender(p) for p in self.publishers[name]])

    def start(self) -> None:
        """Packets begin to come, and all is protected and warm."""
        for feed in self.feeds.values():
            feed.start_us = int(time.time() * 1e6)
            feed.start()
        for name in self.feeds:
            self.running.wait_protected(name)
        self.watch(WARM_S)

    def watch(self, seconds: float) -> float:
        """Look at the ages of results for so long; the moment when that began."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            for reader in self.readers.values():
                reader.look(time.time() * 1e6)
            time.sleep(LOOK_S)
        return began

    def finish(self, name: str) -> dict[str, Any]:
        """End the diagram's input, and compare what came with what was to come."""
        reader, feed = self.readers[name], self.feeds[name]
        feed.stop()
        for publisher in self.publishers[name]:
            publisher.end()
            publisher.close(END_S)
        ended = reader.ended.wait(END_S)
        wanted = _expected(name, feed)
        extra = sum((reader.seen - wanted).values())
        found: dict[str, Any] = {"duplicates": extra, "lost": sum((wanted - reader.seen).values())}
        return found if ended else found | {"note": f"the stream did not end within {END_S:.0f} s"}

    def stop(self) -> None:
        """Let go of everything."""
        for name, feed in self.feeds.items():
            feed.abandon()
            self.readers[name].stop()
            for publisher in self.publishers[name]:
                publisher.abandon()


def _expected(name: str, feed: Feed) -> Counter[Any]:
    at, src, size = feed.given()
    if name != "stateless":
        return Counter(list(counted(at, src, size, SIZE_US, SLIDE_US).items()))
    kept = size > 0
    return Counter(zip(at[kept].tolist(), src[kept].tolist(), (size[kept] * 8).tolist(), strict=True))


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """All figures."""
    names = options.only or QUERIES
    data = packets().faster(ROWS_PER_S)
    say(f"packets: {data.where_from}; about {options.seconds / 60 + 2:.0f} minutes")
    with terminable(), cluster(say) as running:
        running.wait_warm()
        diagrams = Diagrams(running, names, data)
        try:
            return _measure(running, diagrams, names, options.seconds, say)
        finally:
            diagrams.stop()


def _measure(
    running: Cluster, diagrams: Diagrams, names: Sequence[str], seconds: float, say: Say
) -> list[dict[str, Any]]:
    diagrams.start()
    before, began, calm = meter(_pids()), time.monotonic(), seconds / 2
    diagrams.watch(calm)
    cores = before() / (time.monotonic() - began)
    say(f"{cores:.2f} cores while all is well")
    killed = running.kill(VICTIM)
    diagrams.watch(AWAY_S)
    running.start(VICTIM)
    back = diagrams.watch(max(RETURN_S, seconds / 4))
    after, again = meter(_pids()), time.monotonic()
    diagrams.watch(max(RETURN_S / 2, seconds / 4 - AWAY_S))
    end = time.monotonic()
    cores_after = after() / (end - again)
    lines = []
    for name in names:
        ages = diagrams.readers[name].ages
        usual = age_s(ages, began, killed)
        line = {"query": name, "approach": SHAPES[name].approach, "rows_per_s": ROWS_PER_S}
        line |= {"cores": round(cores, 2), "cores_after": round(cores_after, 2), "boundary_age_ms": round(usual * 1000)}
        line |= {"back_s": back_s(ages, killed, back, usual), "late_after": late(ages, again, end, usual)}
        line |= {"rate": rate(ages, began, killed), "rate_after": rate(ages, again, end)}
        line |= diagrams.finish(name)
        line |= {"asked_cores_most": ASKED_CORES, "asked_back_s_most": ASKED_BACK_S}
        lines.append(line)
        say(f"{name}: {line}")
    return lines


def _pids() -> list[int]:
    """Of nodes and coordinator."""
    record = read_record()
    assert record is not None
    return [part.pid for part in record.parts]
