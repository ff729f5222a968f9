"""Windows that keep no rows, and are given them again when one goes: they come to what those come to that keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import gcd
from operator import itemgetter
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from signed_stories import DOUBLE, FLOATS, LONG, cuts, told

from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.history import SIGN, WHY, HistoryKernel
from borealis.kernels.kinds import mended
from borealis.kernels.replayed_windows import ReplayedWindows
from borealis.kernels.replaying_history import AT, CAME, READER, REPLACED, ReplayingHistory
from borealis.kernels.revised_windows import RevisedWindows
from borealis.state.delta import merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND

USER = pa.schema([("id", pa.int64()), ("k", pa.string()), ("v", DOUBLE), ("n", LONG)])
SCHEMA = USER.append(pa.field(KIND, pa.string()))
CALLS = [
    Call("max", "v", DOUBLE),
    Call("sum", "v", DOUBLE),
    Call("first", "n", LONG),
    Call("last", "n", LONG),
    Call("count", None, LONG),
    Call("collect_list", "v", pa.list_(DOUBLE)),
    Call("stddev", "v", DOUBLE),
]


@dataclass(frozen=True)
class Event:
    """What comes at a cause: a row, and perhaps a boundary behind it."""

    kind: str
    time: int
    row: tuple[int, str | None, float | None, int]
    bound: int | None


def random_events(rng: Random, count: int, history: int) -> list[Event]:
    """Few keys, so that most rows are replaced or withdrawn, or come again when they are forgotten."""
    now = boundary = rng.choice((0, -37, 10**15))
    events = []
    for _ in range(count):
        now += rng.choice((0, 0, 0, 1, 1, 4, history))
        time = now - rng.choice((0, 0, 2, 5, history, history))
        row = rng.randrange(9), rng.choice(["a", "a", "b", None]), rng.choice(FLOATS), rng.randrange(4)
        bound = None
        if rng.random() < 0.3 and now - 3 > boundary:
            bound = boundary = now - 3
        same = [event for event in events if event.row[0] == row[0]]
        kind = rng.choice(("+U", "+U", "-D")) if same and rng.random() < 0.6 else "+I"
        if same and rng.random() < 0.5:  # most corrections change little
            time, row = same[-1].time, (*same[-1].row[:3], row[3])
        events.append(Event(kind, time, row, bound))
    return events


def flow_of(events: list[Event], start: int, end: int) -> Flow:
    some = events[start:end]
    columns = [[event.row[i] for event in some] for i in range(4)] + [[event.kind for event in some]]
    rows = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    bounds = [(cause, event.bound) for cause, event in enumerate(some, start) if event.bound is not None]
    raised = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
    standing = max((event.bound for event in events[:start] if event.bound is not None), default=FIRST_TIME)
    time = np.array([event.time for event in some], np.int64)
    return Flow(rows, time, np.arange(start, end), np.zeros(len(some), np.int64), Bounds(standing, *raised))


# -- ways from the history to the aggregate: what they make of a table, and of which columns the box knows its groups

Way = Callable[[Flow], Flow]


def straight(flow: Flow) -> Flow:
    return flow


def picky(flow: Flow) -> Flow:
    """A filter."""
    return flow.take(np.flatnonzero(flow.rows["n"].to_numpy() != 2))


def coarse(flow: Flow) -> Flow:
    """A map to which many changes are none."""
    half = pc.shift_right(flow.rows["n"], 1)
    return flow.with_rows(flow.rows.set_column(3, USER.field("n"), half).set_column(0, USER.field("id"), half))


WAYS: dict[str, tuple[Way, list[str]]] = {
    "straight": (straight, ["k"]),
    "picky": (picky, ["k"]),
    "coarse": (lambda flow: coarse(picky(flow)), ["k"]),
    "groups unknown": (coarse, []),
}


class Chain:
    """A history and an aggregate behind it, with rows kept in both or only in the first."""

    def __init__(self, way: Way, by: list[str], size: int, slide: int, history: int, *, replays: bool) -> None:
        self.way = way
        self.history = HistoryKernel(SCHEMA, ["id"], history, SCHEMA.names)
        self.windows = RevisedWindows(USER, ["k"], size, slide, CALLS, history)
        if replays:
            self.history = ReplayingHistory(SCHEMA, ["id"], history, SCHEMA.names, [(gcd(size, slide), by), (7, [])])
            self.windows = ReplayedWindows(USER, ["k"], size, slide, CALLS, history)  # type: ignore[assignment]
        self.again: list[tuple[Any, ...]] = []

    def step(self, flow: Flow) -> tuple[list[tuple[Any, ...]], list[bytes]]:
        judged, held = self.history.step(flow)
        fits, again = pc.is_null(judged.rows[WHY]), None
        if isinstance(self.history, ReplayingHistory):
            reader = judged.rows[READER].fill_null(-1).to_numpy()
            fits = pc.and_(fits, pc.is_null(judged.rows[READER]))
            again = judged.take(np.flatnonzero(reader == 0))
            given = [again.rows[AT[name]] for name in (CAME, REPLACED)]
            again = again.with_rows(
                pa.table([*again.rows.select(USER.names).columns, *given], [*USER.names, CAME, REPLACED])
            )
            shown = again.rows.to_pylist()
            self.again = [(c, t, repr(row)) for c, t, row in zip(again.cause, again.time, shown, strict=True)]
            again = self.way(again)
        changes = judged.take(np.flatnonzero(fits.to_numpy(zero_copy_only=False)))
        signed = pa.table([*changes.rows.select(USER.names).columns, changes.rows[SIGN]], [*USER.names, KIND])
        flow = mended(self.way(mended(changes.with_rows(signed))))
        out, panes = self.windows.step(flow) if again is None else self.windows.step(flow, again)  # type: ignore[call-arg]
        return told(out), [pack(held), pack(panes)]

    def apply(self, deltas: list[list[bytes]]) -> None:
        for kernel, some in zip((self.history, self.windows), zip(*deltas, strict=True), strict=True):
            kernel.apply(merge_deltas(kernel.tables, [unpack(one) for one in some], whole=False))

    def state(self) -> str:
        tables = self.history.tables_now() | self.windows.tables_now()
        return repr({name: table.to_pydict() for name, table in tables.items()})


def stood(events: list[Event], width: int, by: bool, history: int) -> list[tuple[Any, ...]]:
    """What stood before each cause that takes a row, as a person would find it: with the pane and group of that."""
    rows: list[dict[str, Any]] = []  # all that ever came, with the causes of their lives
    found, boundary = [], FIRST_TIME
    for cause, event in enumerate(events):
        oldest = boundary - history if boundary > FIRST_TIME else FIRST_TIME
        mine = [r for r in rows if r["row"][0] == event.row[0] and r["end"] is None and r["time"] >= oldest]
        comes = event.kind != "-D" and event.time >= oldest
        if comes == (event.kind != "-D") and bool(mine) == (event.kind != "+I"):
            for old in mine:
                pane = old["time"] // width
                for r in rows:
                    same = r["time"] // width == pane and (not by or r["row"][1] == old["row"][1])
                    if same and (r["end"] is None or r["lasting"]):
                        values = dict(zip(USER.names, r["row"], strict=True)) | {CAME: r["came"], REPLACED: r["end"]}
                        found.append((pane, by and old["row"][1], cause, r["time"], repr(values)))
                old |= {"end": cause, "lasting": comes and event.time == old["time"]}
            if comes:
                rows.append({"row": event.row, "time": event.time, "came": cause, "end": None})
        boundary = boundary if event.bound is None else event.bound
    return found


shapes = {
    "seed": st.integers(0, 2**32 - 1),
    "causes": st.integers(2, 30),
    "width": st.integers(1, 12),
    "panes": st.tuples(st.integers(1, 3), st.integers(1, 3)),
    "history": st.integers(1, 25),
}


@pytest.mark.parametrize("way", WAYS)
@given(**shapes)
def test_it_gives_what_rows_that_are_kept_give(
    way: str, seed: int, causes: int, width: int, panes: tuple[int, int], history: int
) -> None:
    rng, (size, slide) = Random(seed), (width * many for many in panes)
    events = random_events(rng, causes, history)

    def chain(replays: bool) -> Chain:
        return Chain(*WAYS[way], size, slide, history, replays=replays)

    truth, _ = chain(replays=False).step(flow_of(events, 0, causes))
    before = stood(events, width * gcd(*panes), bool(WAYS[way][1]), history)
    runs, copy, deltas, out = chain(replays=True), chain(replays=True), [], []
    for start, end in pairwise([0, *cuts(rng, causes)]):
        given, delta = runs.step(flow_of(events, start, end))
        mine = [one for one in before if start <= one[2] < end]
        first = {one[:2]: one[2] for one in reversed(mine)}
        assert runs.again == sorted((one[2:] for one in mine if first[one[:2]] == one[2]), key=itemgetter(0))
        deltas.append(delta)
        out += given
        if rng.random() < 0.4:
            copy.apply(deltas)
            deltas = []
            assert copy.state() == runs.state()
        elif len(deltas) == 1:
            assert copy.step(flow_of(events, start, end)) == (given, delta)
            deltas = []
    assert out == truth
    assert runs.windows.tables_now().keys() == {"groups", "panes"}
    assert not runs.windows.held.size


LARGE = 1e16  # to add 1 to it first or last makes a difference


@pytest.mark.parametrize(
    ("way", "events"),
    [
        (  # what changes nothing for the aggregate leaves the row its place: 1, LARGE, -LARGE is 0, and else 1
            "coarse",
            [("+I", 1, 1.0, 0), ("+I", 2, LARGE, 0), ("+I", 3, -LARGE, 0), ("+I", 4, 5.0, 0), ("+U", 1, 1.0, 1)],
        ),
        (  # the key of a row that is forgotten comes again, and the pane of that row is folded again
            "straight",
            [("+I", 1, 1.0, 0), ("+I", 2, 2.0, 8), ("+I", 4, 5.0, 9), ("", 14, None, 0), ("+I", 1, 7.0, 15)],
        ),
    ],
)
def test_the_rows_that_stand_are_known_to_the_history(way: str, events: list[tuple[str, int, float, int]]) -> None:
    """Each in a train of its own, before the last row of the pane goes."""
    made = []
    for kind, id, v, n in events:
        at = n if way == "straight" else 0
        if kind:
            made.append(Event(kind, at, (id, "a", v, n), None))
        else:
            made[-1] = replace(made[-1], bound=id)
    made.append(Event("-D", 9 if way == "straight" else 0, (4, "a", None, 0), 40))
    results = []
    for replays in (False, True):
        chain = Chain(*WAYS[way], 10, 10, 10, replays=replays)
        results.append([one for i in range(len(made)) for one in chain.step(flow_of(made, i, i + 1))[0]])
    assert results[0] == results[1]
    assert results[0]
