"""Law: a unit built again from nothing, of what `retention_of` says upstream must keep, goes on as if it had not died.

Random units of one or two streams, run with the real kernels and without Spark; the merge order is the same both times,
as it is for a unit of one stream, or where the backup has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness import examples, random_places
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram import Diagram, Spec, window
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.join import Join
from borealis.diagram.boxes.resample import Resample
from borealis.diagram.cut import Piece, piece_of
from borealis.ha import retention
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.join import JoinKernel
from borealis.kernels.program import run_union
from borealis.kernels.resample import VALUE, ResampleKernel
from borealis.kernels.timed_windows import TimedWindows
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
WINDOWS = [(4, 2), (2, 2), (1, 3), (3, 2), (5, 1), (7, 7), (9, 2)]
TIMEOUTS = [None, None, 1, 2, 5]
WITHINS = [1, 2, 5, 8]


@dataclass(frozen=True)
class Event:
    """At its place in the merge order: a tuple of a stream, or a boundary on it."""

    stream: str
    time: int
    row: tuple[int, int] | None = None  # None: a boundary


@dataclass
class Machine:
    """A unit's kernels, without anything around them."""

    spec: Spec
    piece: Piece
    standing: dict[str, int]  # the boundary of each stream
    kernels: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)  # of each outlet

    def train(self, events: Sequence[tuple[int, Event]]) -> list[tuple[Any, ...]]:
        """Run these; what leaves, as (outlet, time, k, v), in order for each outlet."""
        flows = {name: self._flow(name, events) for name in self.piece.reads}
        for box in self.spec.topological():
            flows[box.name] = self._box(box, [flows[s] for s in box.sources])
        for name in self.piece.reads:
            self.standing[name] = flows[name].bounds.final
        given = [name for name in self.piece.gives if name != self.piece.errors]  # nothing fails here
        self.bounds = {self.piece.errors or "": FIRST_TIME} | {name: flows[name].bounds.final for name in given}
        return [
            (name, time, *row.values())
            for name in given
            for time, row in zip(flows[name].time.tolist(), flows[name].rows.to_pylist(), strict=True)
        ]

    def _flow(self, name: str, events: Sequence[tuple[int, Event]]) -> Flow:
        rows = [(at, e) for at, e in events if e.stream == name and e.row is not None]
        bounds = [(at, e.time) for at, e in events if e.stream == name and e.row is None]
        bounds = [(at, time) for at, time in bounds if time > self.standing[name]]
        table = pa.table([[e.row[i] for _, e in rows if e.row] for i in (0, 1)], schema=SCHEMA)
        promised = Bounds(self.standing[name], numbers(at for at, _ in bounds), numbers(t for _, t in bounds))
        cause = numbers(at for at, _ in rows)
        return Flow(table, numbers(e.time for _, e in rows), cause, np.zeros(len(cause), np.int64), promised)

    def _box(self, box: Any, flows: list[Flow]) -> Any:
        match box:
            case Aggregate():
                calls = [Call("sum", "v", pa.int64())]
                over, known = box.over, (SCHEMA, ["k"], box.size_us, box.slide_us)
                kernel = self.kernels.setdefault(
                    box.name,
                    AggregateKernel(*known, calls)
                    if over.timeout_us is None
                    else TimedWindows(*known, over.timeout_us, calls),
                )
                out, _ = kernel.step(flows[0])
                return out.with_rows(pa.table([out.rows["k"], out.rows["__a0"]], schema=SCHEMA))
            case Join():
                columns = [("left", "k", "k"), ("left", "v", "v"), ("right", "v", "w")]
                kernel = self.kernels.setdefault(
                    box.name, JoinKernel(SCHEMA, SCHEMA, [("k", "k")], box.within_us, columns)
                )
                out, _ = kernel.step(*flows)
                mixed = out.rows["v"].to_numpy() * 3 + out.rows["w"].to_numpy()
                return out.with_rows(pa.table([out.rows["k"], pa.array(mixed % 1009)], schema=SCHEMA))
            case Resample():
                given_ = pa.schema([("k", pa.int64()), (VALUE, pa.float64() if box.how == "linear" else pa.int64())])
                calls = [] if box.how else [Call("sum", VALUE, pa.int64())]
                kernel = self.kernels.setdefault(
                    box.name, ResampleKernel(SCHEMA, given_, ["k"], box.window_us, box.how, calls)
                )
                out, _ = kernel.step(
                    flows[0], flows[1].with_rows(flows[1].rows.cast(SCHEMA).rename_columns(given_.names).cast(given_))
                )
                found = out.rows.column(2).cast(pa.float64()).fill_null(0.5).to_numpy()
                mixed = out.rows["v"].to_numpy() * 3 + np.floor(found * 2).astype(np.int64)
                return out.with_rows(pa.table([out.rows["k"], pa.array(mixed % 1009)], schema=SCHEMA))
            case _ if box.kind == "union":
                return run_union(flows)
            case _:
                return flows[0].take(np.flatnonzero(flows[0].rows["v"].to_numpy() % 3 != 0))


def numbers(values: Iterator[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), np.int64)


# -- chance


def random_unit(rng: Random, streams: int) -> tuple[Spec, Piece]:
    d = Diagram("unit")
    arrows = [d.input(name, "ts TIMESTAMP, k BIGINT, v BIGINT") for name in "ab"[:streams]]
    arrows = [one.map(k="k", v="v") for one in arrows]  # they stand for what comes in
    inlets = [one.source for one in arrows]
    for _ in range(rng.randint(1, 5)):
        one, other = (rng.choice(arrows[-3:] if rng.random() < 0.7 else arrows) for _ in "12")
        match rng.choice(["filter", "union", "aggregate", "aggregate", "join", "join", "resample", "resample"]):
            case "filter":
                made = one.filter("v > 0")
            case "union":
                made = one.union(other)
            case "aggregate":
                size, slide = rng.choice(WINDOWS)
                timeout = rng.choice(TIMEOUTS)
                over = window(f"{size} us", f"{slide} us", timeout=None if timeout is None else f"{timeout} us")
                made = one.aggregate(by="k", over=over, v="sum(v)").map(k="k", v="v")
            case "resample":
                how = rng.choice(["previous", "nearest", "linear", None])
                what = {"w": "sum(v)"} if how is None else {"value": "v", "how": how}
                made = one.resample(other, window=f"{rng.choice(WITHINS)} us", by="k", **what).map(k="k", v="v")
            case _:
                made = one.join(other, on="left.k = right.k", within=f"{rng.choice(WITHINS)} us").map(k="k", v="v")
        arrows.append(made)
    read = {s for box in d.spec.boxes for s in box.sources}
    for i, arrow in enumerate(arrows):
        if arrow.source not in read or rng.random() < 0.1:
            arrow.output(f"o{i}")
    spec = plain(d.validate(), inlets)
    return spec, piece_of(spec, "u1", [box.name for box in spec.boxes])


def plain(spec: Spec, inlets: list[str]) -> Spec:
    """Without the maps, which are there only to give all arrows the same columns."""
    real = {box.name: box.sources[0] for box in spec.boxes if box.kind == "map"}
    boxes = []
    for box in spec.boxes:
        if box.kind != "map":
            boxes.append(box.model_copy(update={"sources": tuple(real.get(s, s) for s in box.sources)}))
    outputs = [o.model_copy(update={"source": real.get(o.source, o.source)}) for o in spec.outputs]
    outputs = [o for o in outputs if o.source not in {i.name for i in spec.inputs}]
    return spec.model_copy(update={"boxes": tuple(boxes), "outputs": tuple(outputs)})


def random_events(rng: Random, streams: Sequence[str], n: int) -> list[Event]:
    """Tuples out of order, never before their stream's boundary; boundaries that jump ahead of them now and then."""
    now = dict.fromkeys(streams, 0)
    bound = dict.fromkeys(streams, FIRST_TIME)
    events = []
    step = rng.choice([1, 1, 2, 5])
    jumps = rng.choice([0, 0, 0.1])
    for _ in range(n):
        name = rng.choice(streams)
        if rng.random() < 0.25:
            time = now[name] - rng.randrange(3) + (30 if rng.random() < jumps else 0)
            if time > bound[name]:
                bound[name] = time
                events.append(Event(name, time))
            now[name] = max(now[name], time)
        else:
            now[name] += rng.randrange(step + 1)
            time = max(now[name] - rng.randrange(4), bound[name])
            events.append(Event(name, time, (rng.randrange(2), rng.randrange(1, 100))))
    return [*events, *(Event(name, LAST_TIME) for name in streams)]


# -- the law


def in_trains(rng: Random, machine: Machine, events: list[tuple[int, Event]]) -> list[tuple[Any, ...]]:
    places = sorted({0, len(events), *(p for p in random_places(rng, len(events)))})
    out: list[tuple[Any, ...]] = []
    for start, stop in pairwise(places):
        out += machine.train(events[start:stop])
    return sorted(out, key=lambda row: row[0])  # by outlet; within one, as they came


def go_on(
    spec: Spec, piece: Piece, story: list[tuple[int, Event]], place: int, needed: Mapping[str, int | None], rng: Random
) -> list[tuple[Any, ...]]:
    """What a unit emits from `place` on that was built again from what is needed of the story before."""
    since = {}  # from here on upstream has the stream
    for name in piece.reads:
        limit = needed[name]
        wanted = [at for at, e in story[:place] if e.stream == name and e.row and (limit is None or e.time > limit)]
        since[name] = min(wanted, default=place)
    standing = {
        name: max(
            (e.time for at, e in story if at < since[name] and e.stream == name and not e.row), default=FIRST_TIME
        )
        for name in piece.reads
    }
    machine = Machine(spec, piece, standing)
    strict = rng.random() < 0.5  # what is older, but came later, may be there or not
    kept = [(at, e) for at, e in story[:place] if at >= since[e.stream]]
    if strict:
        limits = {name: FIRST_TIME if limit is None else limit for name, limit in needed.items()}
        kept = [(at, e) for at, e in kept if not e.row or e.time > limits[e.stream]]
    in_trains(rng, machine, kept)
    return in_trains(rng, machine, story[place:])


def dies_at(spec: Spec, piece: Piece, story: list[tuple[int, Event]], place: int, rng: Random) -> None:
    """Built again at this place of the story, the unit emits what it would have emitted."""
    machine = Machine(spec, piece, dict.fromkeys(piece.reads, FIRST_TIME))
    in_trains(rng, machine, story[:place])
    machine.train([])
    bounds = machine.bounds
    after = in_trains(rng, machine, story[place:])
    least = min(bounds.values())
    by_least = {
        name: LAST_TIME if reach == 0 else None if reach is None else least - reach
        for name, reach in retention.retention_of(spec, piece).items()
    }
    assert go_on(spec, piece, story, place, by_least, rng) == after
    by_outlet = retention.retention_horizon(spec, piece, bounds)
    assert all(by_outlet[name] >= by_least[name] for name in piece.reads)  # type: ignore[operator]
    assert go_on(spec, piece, story, place, by_outlet, rng) == after


@pytest.mark.parametrize("streams", [1, 2])
def test_what_reaches_back_is_enough(streams: int) -> None:
    @examples(40)
    @given(st.integers(0, 2**32 - 1), st.integers(20, 80))
    def law(seed: int, n: int) -> None:
        rng = Random(seed)
        spec, piece = random_unit(rng, streams)
        story = list(enumerate(random_events(rng, piece.reads, n)))
        for place in rng.sample(range(len(story)), 4):
            dies_at(spec, piece, story, place, rng)

    law()


def test_less_would_not_be_enough() -> None:
    """The law has teeth: a microsecond less, and a tuple is missing."""
    d = Diagram("one")
    a = d.input("a", "ts TIMESTAMP, k BIGINT, v BIGINT")
    a.aggregate(by="k", over=window("5 us", "1 us"), v="sum(v)").output("out")
    spec = d.validate()
    piece = piece_of(spec, "u1", [box.name for box in spec.boxes])
    [reach] = retention.retention_of(spec, piece).values()
    assert reach == 5
    story = list(enumerate([Event("a", 6, (1, 1)), Event("a", 10), Event("a", 11, (1, 4)), Event("a", LAST_TIME)]))
    whole = Machine(spec, piece, {"a": FIRST_TIME})
    whole.train(story[:2])
    after = whole.train(story[2:])
    assert go_on(spec, piece, story, 2, {"a": 10 - reach}, Random(0)) == after
    assert go_on(spec, piece, story, 2, {"a": 10 - reach + 1}, Random(0)) != after


def test_less_would_not_be_enough_for_a_tuple_that_waits() -> None:
    """The oldest tuple that counts for the oldest that waits: nearly two windows before the boundary."""
    d = Diagram("one")
    a, b = (d.input(name, "ts TIMESTAMP, k BIGINT, v BIGINT") for name in "ab")
    a.resample(b, "v", "nearest", window="3 us", by="k").output("out")
    spec = d.validate()
    piece = piece_of(spec, "u1", [box.name for box in spec.boxes])
    reach = retention.retention_of(spec, piece)["b"]
    assert reach == 5
    events = [Event("b", 6, (1, 7)), Event("a", 8, (1, 1)), Event("a", 10), Event("b", 10)]
    story = list(enumerate([*events, Event("a", LAST_TIME), Event("b", LAST_TIME)]))
    whole = Machine(spec, piece, dict.fromkeys("ab", FIRST_TIME))
    whole.train(story[:4])
    after = whole.train(story[4:])
    assert len(after) == 1
    assert go_on(spec, piece, story, 4, dict.fromkeys("ab", 10 - reach), Random(0)) == after
    assert go_on(spec, piece, story, 4, dict.fromkeys("ab", 10 - reach + 1), Random(0)) != after
