"""Laws of the small parts: each against a slow, obvious twin."""

from __future__ import annotations

import datetime as dt
import json
import math
import pickle
import subprocess
import sys
from decimal import Decimal
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from chance import random_times
from harness import examples, times
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram.spec import Input
from borealis.entry.admission import Cursor, EntryPoint
from borealis.kernels.columns import compact
from borealis.kernels.flow import Bounds, Flow, merge_bounds, rank_within
from borealis.kernels.groups import Groups
from borealis.kernels.program import bucket_of
from borealis.tuples import FIRST_TIME, LAST_TIME

SEEDS = st.integers(0, 2**32 - 1)
MANY = examples(200)


# -- boundaries


@st.composite
def some_bounds(draw: st.DrawFn) -> Bounds:
    standing = draw(st.sampled_from([FIRST_TIME, 0, 3, -5]))
    time = sorted(t for t in draw(st.sets(st.integers(-10, 20) | st.just(LAST_TIME), max_size=6)) if t > standing)
    cause = sorted(draw(st.sets(st.integers(0, 12), min_size=len(time), max_size=len(time))))
    return Bounds(standing, np.array(cause, np.int64), np.array(time, np.int64))


@MANY
@given(st.lists(some_bounds(), min_size=1, max_size=4))
def test_merged_boundaries_are_the_least_of_all_at_every_cause(inputs: list[Bounds]) -> None:
    def after(bounds: Bounds, cause: int) -> int:
        return max([bounds.standing, *(t for c, t in zip(bounds.cause, bounds.time, strict=True) if c <= cause)])

    merged = merge_bounds(inputs)
    assert merged.standing == min(b.standing for b in inputs)
    for cause in range(-1, 14):
        assert after(merged, cause) == min(after(b, cause) for b in inputs)
    assert (np.diff(merged.cause) > 0).all()
    assert all(b > a for a, b in zip([merged.standing, *merged.time.tolist()], merged.time.tolist(), strict=False))
    assert merged.final == min(b.final for b in inputs)


@MANY
@given(st.lists(st.integers(0, 5)).map(sorted))
def test_rank_within_counts_equal_causes(causes: list[int]) -> None:
    assert rank_within(np.array(causes, np.int64)).tolist() == [causes[:i].count(c) for i, c in enumerate(causes)]


@MANY
@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([41, 1 << 20, 1 << 50]))
def test_compact_is_unique_whatever_the_span(codes: list[int], span: int) -> None:
    distinct, place = compact(np.array(codes, np.int64), span)
    assert distinct.tolist() == sorted(set(codes))
    assert [distinct[p] for p in place] == codes


# -- groups

KEYS: dict[pa.DataType, list[Any]] = {
    pa.int32(): [None, 0, 1, -1],
    pa.string(): [None, "", "a", "é", "a\0"],
    pa.float64(): [None, 0.0, -0.0, math.nan, 1.5],
    pa.float32(): [None, math.nan, 0.5],
    pa.decimal128(10, 2): [None, Decimal("1.50"), Decimal("0.00")],
    pa.bool_(): [None, True, False],
    pa.date32(): [None, dt.date(1969, 12, 31)],
    pa.binary(): [b"", b"\0"],
    pa.timestamp("us", "UTC"): [None, dt.datetime(1960, 1, 1, tzinfo=dt.UTC)],
}


def plain(value: Any) -> Any:
    """One NaN, no negative zero."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


@MANY
@given(SEEDS)
def test_groups_are_a_dict_of_keys_and_a_copy_follows(seed: int) -> None:
    rng = Random(seed)
    types = [rng.choice(list(KEYS)) for _ in range(rng.randrange(4))]
    live, copy = Groups(types), Groups(types)
    twin: dict[tuple[Any, ...], int] = {}
    begun: list[Groups] = []  # with all that were there by then, and runs as the first does
    for _ in range(rng.randrange(1, 12)):
        rows = rng.randrange(8)
        columns = [pa.array([rng.choice(KEYS[t]) for _ in range(rows)], t) for t in types]
        if rng.random() < 0.3:
            begun.append(Groups(types))
            with patch("borealis.kernels.loaded_keys.MANY", 1):
                begun[-1].put(live.alive(), live.keys(live.alive()))
        numbers, fresh = live.encode(columns, rows)
        for one in begun:
            same, more = one.encode(columns, rows)
            assert (same.tolist(), more) == (numbers.tolist(), fresh)
        keys = [tuple(plain(c[i].as_py()) for c in columns) for i in range(rows)]
        assert sorted(fresh) == sorted({int(n) for n in numbers} - set(twin.values()))
        for key, number in zip(keys, numbers.tolist(), strict=True):
            assert twin.setdefault(key, number) == number
        assert len(set(twin.values())) == len(twin)
        back = [tuple(plain(v) for v in row) for row in zip(*(k.to_pylist() for k in live.keys(numbers)), strict=True)]
        assert not types or back == keys
        copy.put(np.array(fresh, np.int64), live.keys(np.array(fresh, np.int64)))
        gone = [n for n in twin.values() if rng.random() < 0.3]
        for groups in (live, copy, *begun):
            groups.cut(gone)
            groups.cut(gone)  # twice is once
        twin = {k: n for k, n in twin.items() if n not in gone}
        for groups in (live, copy, *begun):
            assert groups.alive().tolist() == sorted(twin.values())
            assert len(groups.alive()) == len(twin)
            assert [repr(k.to_pylist()) for k in groups.keys(groups.alive())] == [
                repr(k.to_pylist()) for k in live.keys(live.alive())
            ]


# -- buckets

BUCKETS = """
import json, pickle, sys
from borealis.kernels.program import bucket_of
print(json.dumps([bucket_of(flow, ["x"], 7).tolist() for flow in pickle.load(sys.stdin.buffer)]))
"""


def test_a_bucket_is_the_same_in_another_process() -> None:
    """Every sample value of every type."""
    flows = []
    for kind, values in KEYS.items():
        nothing = np.zeros(len(values), np.int64)
        flows.append(Flow(pa.table({"x": pa.array(values, kind)}), nothing, nothing, nothing, Bounds()))
    said = subprocess.run([sys.executable, "-c", BUCKETS], input=pickle.dumps(flows), capture_output=True, check=True)
    assert json.loads(said.stdout) == [bucket_of(flow, ["x"], 7).tolist() for flow in flows]


@MANY
@given(SEEDS, st.integers(1, 5))
def test_equal_keys_have_one_bucket_however_rows_are_cut(seed: int, buckets: int) -> None:
    rng = Random(seed)
    types = [rng.choice(list(KEYS)) for _ in range(rng.randrange(4))]
    rows = rng.randrange(1, 12)
    table = pa.table({f"c{i}": pa.array([rng.choice(KEYS[t]) for _ in range(rows)], t) for i, t in enumerate(types)})
    if not types:
        table = pa.table({"x": pa.nulls(rows)})
    nothing = np.zeros(rows, np.int64)
    flow = Flow(table, nothing, nothing, nothing, Bounds())
    names = [f"c{i}" for i in range(len(types))]
    whole = bucket_of(flow, names, buckets)
    assert ((whole >= 0) & (whole < buckets)).all()
    seen: dict[Any, int] = {}
    for i in range(rows):
        assert bucket_of(flow.take(np.array([i])), names, buckets)[0] == whole[i]
        key = tuple(plain(table[n][i].as_py()) for n in names)
        assert seen.setdefault(key, int(whole[i])) == whole[i]


# -- entry points


def marks(spec: Input, pace: int, table: pa.Table, places: list[int]) -> tuple[list[Any], Cursor]:
    """(boundary before it, late) of every row, admitted in batches cut at these places; each batch split once more."""
    entry = EntryPoint(spec, pace, Cursor())
    out: list[Any] = []
    for start, stop in zip([0, *places], [*places, table.num_rows], strict=True):
        batch = entry.admit(table.slice(start, stop - start))
        head, tail = batch.split(len(batch) // 2)
        for part in (head, tail):
            bounds = dict(zip(part.at.tolist(), part.bound.tolist(), strict=True))
            out += [(bounds.get(row, FIRST_TIME), late) for row, late in enumerate(part.late.tolist())]
        assert tail.cursor(len(tail)) == batch.cursor(len(batch)) == entry.cursor
        assert tail.start == head.cursor(len(head))
    return out, entry.cursor


@MANY
@given(SEEDS, st.integers(0, 40), st.sampled_from([1, 300_000, 1_000_000, 7_000_000]))
def test_boundaries_and_lateness_do_not_depend_on_batches(seed: int, rows: int, pace: int) -> None:
    rng = Random(seed)
    spec = Input(name="a", columns="ts TIMESTAMP", slack=rng.choice(["0 s", "1 s", "2500 ms"]))  # type: ignore[call-arg]
    stamps = random_times(rng, rows, spec.slack_us, rng.choice([0, -(10**13), 10**15]), tardy=0.2)
    table = pa.table({"ts": times(stamps)})
    whole, cursor = marks(spec, pace, table, [])
    places = sorted(rng.randrange(rows + 1) for _ in range(rng.randrange(6)))
    assert marks(spec, pace, table, places) == (whole, cursor)
    assert marks(spec, pace, table, list(range(1, rows))) == (whole, cursor)
    # and they are what the slow twin says
    boundary, newest, late = FIRST_TIME, FIRST_TIME, []
    for time, (bound, is_late) in zip(stamps, whole, strict=True):
        newest = max(newest, time)
        held = newest - spec.slack_us
        now = max(boundary, held // pace * pace)
        assert bound == (now if now > boundary else FIRST_TIME)
        boundary = now
        assert is_late == (time < boundary)
        late += [boundary - time] if is_late else []
    assert cursor == Cursor(rows, newest, boundary, len(late), max(late, default=0))
