"""Compiled loops give what kernels give without them: rows, causes, ranks, kinds, deltas and tables, in any cuts."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_stories import LONG, SCHEMA, UNDONE, cuts, random_story, some_calls

from borealis.errors import TrainError
from borealis.kernels import compiled, fused_history, fused_windows, history, revised_panes
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.fused_history import FusedHistory
from borealis.kernels.fused_windows import FusedWindows
from borealis.kernels.history import WHY
from borealis.kernels.step import Kernel
from borealis.state.delta import Delta, pack, unpack
from borealis.tuples import FIRST_TIME, KIND

SUMMED = [*(call for call in UNDONE if call.column != "d"), Call("sum", "n", LONG)]
KEYED = pa.schema(
    [
        ("id", pa.int32()),
        ("f", pa.float64()),
        ("b", pa.int8()),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        (KIND, pa.string()),
    ]
)
HISTORY = 60


@pytest.fixture(autouse=True, scope="module")
def loops() -> None:
    """Set-up has made them; where it has not, this takes its time."""
    assert compiled.loops() is not None or compiled.make_loops() is not None


def outcome(kernel: Kernel, flow: Flow) -> tuple[Flow, Delta] | str:
    try:
        return kernel.step(flow)
    except TrainError as error:
        return str(error)


def alike(one: Kernel, other: Kernel, flow: Flow, unread: Collection[str] = ()) -> bool:
    """Run a train in both, the other without compiled loops; whether the kernels can go on. What is unread may be left
    out of changes that are made."""
    found = outcome(one, flow)
    with patch.object(fused_windows, "loops", lambda: None), patch.object(fused_history, "loops", lambda: None):
        expected = outcome(other, flow)
    if isinstance(found, str) or isinstance(expected, str):
        assert found == expected
        return False
    assert told(found[0], unread) == told(expected[0], unread)
    assert changed(found[1]) == changed(expected[1])
    assert tables(one) == tables(other)
    return True


def told(out: Flow, unread: Collection[str]) -> list[Any]:
    heads = zip(out.time.tolist(), out.cause.tolist(), out.sub.tolist(), strict=True)
    rows = [row if row.get(WHY) else row | dict.fromkeys(unread) for row in out.rows.to_pylist()]
    return [out.rows.schema, *heads, *map(repr, rows)]


def changed(delta: Delta) -> dict[str, Any]:
    """What a delta says; its rows may be in any order."""

    def bag(table: pa.Table | None) -> list[str] | None:
        return None if table is None else [str(table.schema), *sorted(map(repr, table.to_pylist()))]

    return {name: (bag(one.put), bag(one.cut), one.floor) for name, one in unpack(pack(delta)).items()}


def tables(kernel: Kernel) -> dict[str, str]:
    return {name: repr(table.to_pylist()) for name, table in kernel.tables_now().items()}


class Watched(FusedWindows):
    """Counts the trains that run compiled."""

    trains = 0

    def _told(self, *given: Any) -> Flow:
        Watched.trains += 1
        return super()._told(*given)


@settings(max_examples=10 * settings.default.max_examples)
@given(
    seed=st.integers(0, 2**32 - 1),
    causes=st.integers(2, 40),
    size=st.integers(1, 12),
    slide=st.integers(1, 12),
    history=st.integers(0, 25),
)
def test_windows(seed: int, causes: int, size: int, slide: int, history: int) -> None:
    rng = Random(seed)
    story, calls = random_story(rng, causes, history), some_calls(rng, SUMMED)
    one, other = (Watched(SCHEMA, ["k"], size, slide, calls, history) for _ in range(2))
    start, standing = 0, FIRST_TIME
    with patch.object(revised_panes, "PART_ENTRIES", 4):
        for end in cuts(rng, causes):
            flow = story.flow(start, end, standing)
            start, standing = end, flow.bounds.final
            if rng.random() < 0.3:  # what one form holds is what the other holds
                one, other = other, one
            if not alike(one, other, flow):
                break


def keyed(rng: Random, cause: int, rows: int, now: int, standing: int) -> Flow:
    """Rows most of which rise; some have keys of before, are late, or share a cause."""
    ids, kinds, times, causes = [], [], [], []
    for i in range(rows):
        odd = rng.random() < 0.3
        ids.append(rng.randrange(0, now + i + 3) if odd else now + i)
        kinds.append(rng.choice(["+I", "-D", "+U", "+U", "-U", None]) if odd else rng.choice(["+I", None]))
        times.append(now + i - (rng.choice([0, 5, 50, 90]) if odd else 0))
        causes.append(cause + i - (i > 0 and rng.random() < 0.1))
    columns = [
        ids,
        [rng.choice([0.0, -0.0, float("nan"), 1.5, None]) for _ in ids],
        [rng.randrange(-5, 5) for _ in ids],
        [rng.choice(["a", "bc", None]) for _ in ids],
        times,
        kinds,
    ]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, KEYED, strict=True)], schema=KEYED)
    if rows > 2 and rng.random() < 0.5:  # rows come in pieces
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    cause_of = np.maximum.accumulate(np.array(causes, np.int64))
    sub = np.array([causes[:i].count(c) for i, c in enumerate(cause_of.tolist())], np.int64)
    some = sorted(rng.sample(range(cause, cause + rows), min(rows, rng.randrange(3))))
    raised = [(c, now + c - cause - 8) for c in some if now + c - cause - 8 > standing]
    bounds = Bounds(standing, *(np.array([one[i] for one in raised], np.int64) for i in (0, 1)))
    return Flow(table, np.array(times, np.int64), cause_of, sub, bounds)


@settings(max_examples=6 * settings.default.max_examples)
@given(st.integers(0, 2**32 - 1))
def test_histories(seed: int) -> None:
    rng = Random(seed)
    read = rng.choice([KEYED.names, ["f"], ["b", "at"], []])
    one, other = (FusedHistory(KEYED, ["id"], HISTORY, read) for _ in range(2))
    cause, now, standing = 0, 1000, FIRST_TIME
    for _ in range(rng.randrange(1, 6)):
        rows = rng.choice([0, 1, 5, 30])
        flow = keyed(rng, cause, rows, now, standing)
        cause, now, standing = cause + rows + 1, now + rows + rng.choice([0, 3, 40]), flow.bounds.final
        if rng.random() < 0.3:
            one, other = other, one
        with patch.object(history, "AWAY_MOST", rng.choice((1, 8))):
            assert alike(one, other, flow, set(KEYED.names) - {"id", KIND, *read})


@pytest.mark.parametrize(("groups", "compiled"), [(3, True), (3_000, False)])
def test_where_most_would_be_empty_columns_do_it(groups: int, compiled: bool) -> None:
    """Many groups, of which each pane has few."""
    made = Watched(pa.schema([("k", pa.int64())]), ["k"], 10, 1, [Call("count", None, LONG)], 50)
    rows, before = np.arange(3_000), Watched.trains
    schema = pa.schema([("k", pa.int64()), (KIND, pa.int8())])
    table = pa.table([pa.array(rows % groups), pa.array(np.zeros(len(rows), np.int8))], schema=schema)
    bounds = Bounds(0, np.array([len(rows)]), np.array([50]))
    out, _ = made.step(Flow(table, rows, rows, np.zeros(len(rows), np.int64), bounds))
    assert (Watched.trains > before) == compiled
    assert sum(out.rows["__a0"].to_pylist()) == sum(min(10, 50 - row) for row in range(50))
