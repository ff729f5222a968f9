"""Resample: the kernel against a plain twin that sees everything at once, whatever the order, the cut and the merge."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram import Diagram
from borealis.errors import DiagramError
from borealis.kernels import resample
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.resample import VALUE, ResampleKernel
from borealis.tuples import FIRST_TIME, LAST_TIME

ASKED = pa.schema([("k", pa.string()), ("n", pa.int64())])
GIVEN = pa.schema([("k", pa.string()), (VALUE, pa.float64())])
CALLS = [
    Call("count", None, pa.int64()),
    Call("count", VALUE, pa.int64()),
    Call("sum", VALUE, pa.float64()),
    Call("max", VALUE, pa.float64()),
    Call("first", VALUE, pa.float64()),
    Call("last", VALUE, pa.float64()),
]
HOWS = ["previous", "nearest", "linear", None]
SEEDS = st.integers(0, 2**32 - 1)

Event = tuple[int, int, tuple[Any, ...] | None]  # side, time, row; no row: a boundary


def kernel(how: str | None, window: int, by: tuple[str, ...] = ("k",)) -> ResampleKernel:
    return ResampleKernel(ASKED, GIVEN, list(by), window, how, CALLS if how is None else [])


# -- one train from events


def flows(events: list[tuple[int, Event]], standing: list[int]) -> list[Flow]:
    """Events with their causes as a flow for each side; `standing` is brought forward."""
    out = []
    for side, schema in enumerate((ASKED, GIVEN)):
        rows = [(c, t, row) for c, (s, t, row) in events if s == side and row is not None]
        bounds = [(c, t) for c, (s, t, row) in events if s == side and row is None]
        table = pa.table([[row[i] for _, _, row in rows] for i in range(2)], schema=schema)
        cause, time = (np.array([r[i] for r in rows], np.int64) for i in (0, 1))
        at, promised = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
        out.append(Flow(table, time, cause, 0 * cause, Bounds(standing[side], at, promised)))
        standing[side] = max([standing[side], *promised.tolist()])
    return out


def random_events(rng: Random, n: int, span: int) -> list[Event]:
    """Both streams in any merge order, out of order up to their boundaries, and ended."""
    bound = [FIRST_TIME, FIRST_TIME]
    now = [0, 0]
    events: list[Event] = []
    for i in range(n):
        side = rng.randrange(2)
        if rng.random() < 0.25:
            time = now[side] - rng.randrange(3) + rng.choice([0, 0, 0, 3 * span])
            if time > bound[side]:
                bound[side] = now[side] = time
                events.append((side, time, None))
            continue
        now[side] += rng.randrange(3)
        time = max(now[side] - rng.randrange(4), bound[side])
        key = rng.choice(["a", "b", None])
        value = rng.choice([None, 0.0, 1.0, 2.5, -4.0, math.inf, math.nan])
        events.append((side, time, (key, i) if side == 0 else (key, value)))
    ends: list[Event] = [(0, LAST_TIME, None), (1, LAST_TIME, None)]
    rng.shuffle(ends)
    return events + ends


def run(one: ResampleKernel, events: list[Event], places: list[int]) -> list[tuple[Any, ...]]:
    """(cause, sub, time, row) of all results; boundaries are kept as they go."""
    numbered, standing = list(enumerate(events)), [FIRST_TIME, FIRST_TIME]
    out: list[tuple[Any, ...]] = []
    for start, stop in pairwise(sorted({0, len(events), *places})):
        before = min(standing)
        found, _ = one.step(*flows(numbered[start:stop], standing))
        assert found.bounds.final == min(standing)
        times = np.concatenate([[before], found.bounds.time])
        stood = times[np.searchsorted(found.bounds.cause, found.cause)]  # before the boundary of the same cause
        assert (found.time >= stood).all()
        columns = [found.cause.tolist(), found.sub.tolist(), found.time.tolist()]
        out += zip(*columns, map(repr, found.rows.to_pylist()), strict=True)
    return out


# -- the plain twin


def rank(value: float | None) -> tuple[int, float]:
    if value is None:
        return (0, 0.0)
    return (2, 0.0) if math.isnan(value) else (1, value)


def plain(how: str | None, window: int, events: list[Event]) -> list[tuple[int, str]]:
    """(time, row) of all results, in no order."""
    asked = [(t, row) for s, t, row in events if s == 0 and row is not None]
    given_rows = [(t, *row) for s, t, row in events if s == 1 and row is not None]
    out = []
    for time, (key, n) in asked:
        near = sorted(
            ((t, v) for t, k, v in given_rows if k == key and key is not None and abs(t - time) < window),
            key=lambda tv: (tv[0], rank(tv[1])),
        )
        row: dict[str, Any] = {"k": key, "n": n}
        if how is None:
            row |= {f"__a{i}": x for i, x in enumerate(aggregates([v for _, v in near]))}
        else:
            row[VALUE] = point(how, time, [(t, v) for t, v in near if v is not None])
        out.append((time if how == "previous" else time + window - 1, repr(row)))
    return out


def aggregates(near: list[float | None]) -> list[Any]:
    there = [v for v in near if v is not None]
    total = 0.0
    for v in there:
        total += v
    most = max(there, key=rank) if there else None
    ends = [near[0], near[-1]] if near else [None, None]
    return [len(near), len(there), total if there else None, most, *ends]


def point(how: str, time: int, near: list[tuple[int, float]]) -> float | None:
    before = [(t, v) for t, v in near if t <= time]
    after = [(t, v) for t, v in near if t >= time]
    last = before[-1] if before else None
    next_ = [(t, v) for t, v in after if t == after[0][0]][-1] if after else None
    if how == "previous" or last is None or next_ is None:
        one = last if how == "previous" else None if how == "linear" else last or next_
        return None if one is None else one[1]
    if how == "nearest":
        return last[1] if time - last[0] <= next_[0] - time else next_[1]
    if last[0] == next_[0]:
        return last[1]
    return last[1] + (next_[1] - last[1]) * ((time - last[0]) / (next_[0] - last[0]))


# -- the laws


@pytest.mark.parametrize("how", HOWS)
def test_it_is_the_plain_twin_whatever_the_cut(how: str | None) -> None:
    @given(SEEDS, st.integers(0, 60), st.sampled_from([1, 2, 5, 20]))
    def law(seed: int, n: int, window: int) -> None:
        rng = Random(seed)
        events = random_events(rng, n, window)
        whole = run(kernel(how, window), events, [])
        for places in ([rng.randrange(len(events)) for _ in range(6)], list(range(len(events)))):
            assert run(kernel(how, window), events, places) == whole
        assert sorted(whole) == whole
        assert sorted(r[2:] for r in whole) == sorted(plain(how, window, events))

    law()


@given(SEEDS, st.integers(0, 60), st.sampled_from(HOWS))
def test_the_merge_order_changes_no_value(seed: int, n: int, how: str | None) -> None:
    rng = Random(seed)
    events = random_events(rng, n, 5)
    sides = [[e for e in events if e[0] == side] for side in (0, 1)]
    one_after_the_other = run(kernel(how, 5), sides[0] + sides[1], [])
    assert sorted(r[2:] for r in one_after_the_other) == sorted(r[2:] for r in run(kernel(how, 5), events, []))


def test_few_pairs_at_a_time_are_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    events = random_events(Random(5), 80, 5)
    whole = run(kernel(None, 20), events, [])
    monkeypatch.setattr(resample, "PAIRS_AT_ONCE", 3)
    assert run(kernel(None, 20), events, []) == whole


@pytest.mark.parametrize(("how", "waits", "counts"), [("previous", 100, 91), ("linear", 91, 82), (None, 91, 82)])
def test_the_state_is_what_still_counts(how: str | None, waits: int, counts: int) -> None:
    """At the boundary 100 with a window of 10: the least times of what waits, and of what counts for it."""
    one, standing = kernel(how, 10), [FIRST_TIME, FIRST_TIME]
    events: list[Event] = [(0, t, ("a", t)) for t in range(70, 103)] + [(1, t, ("a", 1.0)) for t in range(70, 103)]
    events += [(1, 102, (None, 1.0)), (0, 100, None), (1, 100, None)]
    _, delta = one.step(*flows(list(enumerate(events)), standing))
    for name, least in (("first", waits), ("second", counts)):
        assert one.tables_now()[name]["_time"].to_pylist() == list(range(least, 103))
        assert delta[name].put["_time"].to_pylist() == list(range(least, 103))
    ends: list[Event] = [(0, LAST_TIME, None), (1, LAST_TIME, None)]
    _, delta = one.step(*flows(list(enumerate(ends, 100)), standing))
    assert [table.num_rows for table in one.tables_now().values()] == [0, 0]
    assert {name: change.floor for name, change in delta.items()} == {"first": LAST_TIME, "second": LAST_TIME}


# -- the box


def drawn() -> tuple[Any, Any]:
    d = Diagram("d")
    return d.input("a", "ts TIMESTAMP, k INT, v INT"), d.input("b", "ts TIMESTAMP, k INT, v INT, w DOUBLE")


def test_drawing() -> None:
    a, b = drawn()
    assert a.resample(b, "w", window="1 s").columns == ["ts", "k", "v", "w"]
    assert a.resample(b, "v", "previous", window="1 s", by="k").columns == ["ts", "k", "v", "v_right"]
    assert a.resample(b, window="1 s", by=["k"], mean="avg(w)", n="count(*)").columns == ["ts", "k", "v", "mean", "n"]
    spec = a.diagram.spec
    boxes = [spec.box(f"resample_{i}") for i in (1, 2, 3)]
    assert [box.operator_class for box in boxes] == ["convergent-capable"] * 3
    assert [box.holds_us for box in boxes] == [1_999_999, 1_000_000, 1_999_999]
    assert [box.describe() for box in boxes] == [
        "resample b at a within 1 second: linear w",
        "resample b at a by k within 1 second: previous v",
        "resample b at a by k within 1 second: mean = avg(w), n = count(*)",
    ]
    assert Diagram.from_yaml(a.diagram.to_yaml()).spec == spec


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"value": "ww"}, "no column 'ww'"),
    ({}, "give either a value to interpolate or aggregates"),
    ({"value": "w", "mean": "avg(w)"}, "give either a value to interpolate or aggregates"),
    ({"how": "linear", "mean": "avg(w)"}, "aggregates are not interpolated"),
    ({"value": "w", "by": "kk"}, "no column 'kk'"),
    ({"value": "w", "how": "cubic"}, "'how': input should be 'previous', 'nearest' or 'linear'"),
    ({"V": "avg(w)"}, "columns 'v' and 'V' differ only in case"),
    ({"mean": "w"}, "'mean': no aggregate in 'w'"),
    ({"value": "w", "window": "0 s"}, "'window' must be more than zero"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    a, b = drawn()
    with pytest.raises(DiagramError) as e:
        a.resample(b, **({"window": "1 s"} | fields))
    assert message in str(e.value)
    assert e.value.hint
