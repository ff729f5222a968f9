"""BSort: what a bounded buffer makes of a stream is what passes of bubble sort make of a list."""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.diagram import Diagram
from borealis.errors import DiagramError
from borealis.kernels.bsort import BSortKernel
from borealis.kernels.flow import Bounds, Flow
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.float64()), ("n", pa.int64())])  # n tells equal values apart
NAN = math.nan
VALUES = [None, NAN, -0.0, 0.0, 1.0, 2.0, 3.0, -math.inf, math.inf]

Row = tuple[str | None, float | None, int]


def kernel(buffer: int, by: tuple[str, ...] = ()) -> BSortKernel:
    return BSortKernel(SCHEMA, "v", list(by), buffer, SCHEMA.names)


def flow(rows: list[Row], first: int = 0, standing: int = FIRST_TIME, bounds: tuple[tuple[int, int], ...] = ()) -> Flow:
    """Rows one second apart, each its own cause, counted from `first`; bounds as (cause, time)."""
    table = pa.table([[row[i] for row in rows] for i in range(3)], schema=SCHEMA)
    cause = np.arange(first, first + len(rows))
    promised = Bounds(standing, *(np.array([b[i] for b in bounds], np.int64) for i in (0, 1)))
    return Flow(table, 10 * cause, cause, np.zeros(len(rows), np.int64), promised)


def rank(value: float | None) -> tuple[int, float]:
    """SQL's order, said in Python."""
    if value is None:
        return (0, 0.0)
    return (2, 0.0) if math.isnan(value) else (1, value)


def bubble(rows: list[Row], passes: int) -> list[Row]:
    out = list(rows)
    for _ in range(passes):
        for i in range(len(out) - 1):
            if rank(out[i][1]) > rank(out[i + 1][1]):
                out[i], out[i + 1] = out[i + 1], out[i]
    return out


def numbered(out: Flow) -> list[int]:
    numbers: list[int] = out.rows["n"].to_pylist()
    return numbers


def random_rows(rng: Random, n: int) -> list[Row]:
    return [(rng.choice(["a", "b", None]), rng.choice(VALUES), i) for i in range(n)]


def run(one: BSortKernel, rows: list[Row], places: list[int]) -> list[Flow]:
    """In trains cut at these places; the stream ends with the last."""
    edges = sorted({0, len(rows), *places})
    flows = []
    for start, stop in zip(edges, [*edges[1:], None], strict=True):
        ends = ((len(rows), LAST_TIME),) if stop is None else ()
        flows.append(one.step(flow(rows[start:stop], start, bounds=ends))[0])
    return flows


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(1, 12))
def test_the_output_is_that_of_bubble_passes(seed: int, n: int, buffer: int) -> None:
    rng = Random(seed)
    rows = random_rows(rng, n)
    flows = run(kernel(buffer), rows, [rng.randrange(n + 1) for _ in range(4)])
    assert [i for one in flows for i in numbered(one)] == [row[2] for row in bubble(rows, buffer - 1)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 40), st.integers(1, 6))
def test_each_group_has_a_buffer(seed: int, n: int, buffer: int) -> None:
    rng = Random(seed)
    rows = random_rows(rng, n)
    flows = run(kernel(buffer, ("k",)), rows, [rng.randrange(n + 1) for _ in range(4)])
    out = [row for one in flows for row in one.rows.to_pylist()]
    for key in ("a", "b", None):
        mine = [row for row in rows if row[0] == key]
        assert [row["n"] for row in out if row["k"] == key] == [row[2] for row in bubble(mine, buffer - 1)]


@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.integers(1, 6))
def test_order_and_times_hold_whatever_the_cut(seed: int, n: int, buffer: int) -> None:
    rng = Random(seed)
    rows = random_rows(rng, n)
    seen = []
    for places in ([], [rng.randrange(n + 1) for _ in range(5)], list(range(n))):
        flows = run(kernel(buffer, ("k",)), rows, places)
        seen.append([(int(c), int(s), int(t), i) for f in flows for c, s, t, i in
                     zip(f.cause, f.sub, f.time, numbered(f), strict=True)])  # fmt: skip
    assert seen[0] == seen[1] == seen[2]
    assert sorted(seen[0]) == seen[0]
    assert all(time >= (10 * cause if cause < n else 10 * i) for cause, _, time, i in seen[0])


def test_what_is_pushed_out_takes_the_time_of_what_came() -> None:
    one = kernel(2)
    out, delta = one.step(flow([("a", 5.0, 0), ("a", 1.0, 1), ("a", 9.0, 2)]))
    assert (numbered(out), out.time.tolist(), out.cause.tolist()) == ([1, 0], [10, 20], [1, 2])
    assert delta["held"].put["n"].to_pylist() == [2]
    assert delta["held"].cut is None
    # a boundary has passed what is held; what is left at the end does not lie before it
    out, delta = one.step(flow([], 3, bounds=((3, 500), (4, LAST_TIME))))
    assert (numbered(out), out.time.tolist(), out.cause.tolist()) == ([2], [500], [4])
    assert delta["held"].cut is not None
    assert delta["held"].cut.to_pylist() == [{"_cause": 2, "_sub": 0}]
    assert one.tables_now()["held"].num_rows == 0


def test_the_state_is_the_buffers_and_no_more() -> None:
    one = kernel(4, ("k",))
    rows: list[Row] = [("ab"[i % 2], float(i * 7 % 11), i) for i in range(5000)]
    for start in range(0, 5000, 50):
        one.step(flow(rows[start : start + 50], start))
    assert one.tables_now()["held"].num_rows == 6
    assert len(one.held) < 3000  # rows that have left are swept out


TEXTS = ["😀", None, "", "b", "￿", "a", "é", "B", ""]
TIMES = [3, None, -1, 0, 7, -1]
SORTED: list[tuple[pa.DataType, list[Any], list[int]]] = [
    (pa.string(), TEXTS, [1, 2, 8, 7, 5, 3, 6, 4, 0]),
    (pa.binary(), [None if t is None else t.encode() for t in TEXTS], [1, 2, 8, 7, 5, 3, 6, 4, 0]),
    (pa.bool_(), [True, None, False], [1, 2, 0]),
    (pa.date32(), TIMES, [1, 2, 5, 3, 0, 4]),
    (pa.timestamp("us", "UTC"), TIMES, [1, 2, 5, 3, 0, 4]),
    (pa.decimal128(38, 2), [Decimal("9.5"), Decimal("-10"), Decimal("10"), None], [3, 1, 0, 2]),
]


@pytest.mark.parametrize(("kind", "values", "order"), SORTED, ids=[str(kind) for kind, _, _ in SORTED])
def test_any_type_is_sorted_as_spark_sorts_it(kind: pa.DataType, values: list[Any], order: list[int]) -> None:
    schema = pa.schema([("v", kind), ("n", pa.int64())])
    table = pa.table([pa.array(values, kind), list(range(len(values)))], schema=schema)
    numbers = np.arange(len(values))
    ends = Bounds(FIRST_TIME, numbers[-1:] + 1, np.array([LAST_TIME]))
    one = BSortKernel(schema, "v", [], 100, ["n"])
    assert one.step(Flow(table, numbers, numbers, 0 * numbers, ends))[0].rows.to_pydict() == {"n": order}


def test_drawing() -> None:
    d = Diagram("d")
    s = d.input("s", "ts TIMESTAMP, k STRING, v DOUBLE")
    s.bsort("abs(v)", buffer=3, by="k").output("out")
    box = d.spec.box("bsort_1")
    assert (box.operator_class, box.holds_us, box.columns([["a"]])) == ("deterministic", None, ["a"])
    assert box.describe() == "sort by abs(v) in a buffer of 3, one for each k"
    assert Diagram.from_yaml(d.to_yaml()).spec == d.spec
    with pytest.raises(DiagramError, match="a buffer of 0 tuples"):
        s.bsort("v", buffer=0)
    with pytest.raises(DiagramError, match="nothing to sort by"):
        s.bsort(" ", buffer=2)
    with pytest.raises(DiagramError, match="no column 'kk'"):
        s.bsort("v", buffer=2, by="kk")
