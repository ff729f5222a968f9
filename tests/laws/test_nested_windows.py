"""Windows over windows: results belong to the window that they are of, so what is added up in steps is the whole."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness import check_truth, compiled, differences, examples, run_story, tell, times, without_header
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from borealis.diagram.durations import count_window, window
from borealis.diagram.model import Diagram
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.aggregate import AggregateKernel, oldest_needed
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.open_windows import OpenWindows
from borealis.kernels.timed_windows import TimedWindows
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SUM = [Call("sum", "v", pa.int64())]


def random_flow(rng: Random, n: int) -> Flow:
    """Rows out of order between boundaries that none of them comes after; then the end."""
    rows: list[tuple[int, int, int, int]] = []  # cause, time, k, v
    bounds: list[tuple[int, int]] = []
    base, standing = rng.choice([0, -37, 10**15]), FIRST_TIME
    for cause in range(n):
        if rng.random() < 0.3:
            base += rng.choice([0, 1, 1, 5, 40])
            if base > standing:
                standing = base
                bounds.append((cause, base))
        else:
            rows.append((cause, base + rng.randrange(12), rng.randrange(2), rng.randrange(100)))
    bounds.append((n, LAST_TIME))
    cause, time, k, v = (np.array([row[i] for row in rows], np.int64) for i in range(4))
    promised = Bounds(FIRST_TIME, *(np.array([b[i] for b in bounds], np.int64) for i in (0, 1)))
    return Flow(pa.table([k, v], schema=SCHEMA), time, cause, np.zeros(len(cause), np.int64), promised)


def kernel(size: int, slide: int, timeout: int | None) -> AggregateKernel | OpenWindows:
    if timeout is None:
        return AggregateKernel(SCHEMA, ["k"], size, slide, SUM)
    return TimedWindows(SCHEMA, ["k"], size, slide, timeout, SUM)


def summed(made: AggregateKernel | OpenWindows, flow: Flow) -> Flow:
    """What it emits, as rows of the same columns; none lies before the boundary that stands, none in one that came."""
    out, _ = made.step(flow)
    at = np.searchsorted(flow.bounds.cause, out.cause)
    assert flow.bounds.cause[at].tolist() == out.cause.tolist()
    assert np.all(out.time >= np.append(flow.bounds.standing, flow.bounds.time)[at])
    assert np.all(out.time < flow.bounds.time[at])
    return out


def told(out: Flow) -> list[tuple[Any, ...]]:
    columns = [c.cast(pa.int64()).to_pylist() for c in out.rows.columns]
    return sorted(zip(out.cause.tolist(), out.time.tolist(), *columns, strict=True))


@examples(60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([None, None, 1, 3, 8]),
)
def test_a_window_over_windows_is_the_window_over_the_tuples(
    seed: int, n: int, inner: int, size: int, slide: int, timeout: int | None
) -> None:
    """Where the inner windows tile the outer ones: the same results, by the same boundaries; parts of them, too."""
    flow = random_flow(Random(seed), n)
    steps = summed(kernel(inner, inner, timeout), flow)
    steps = steps.with_rows(pa.table([steps.rows["k"], steps.rows["__a0"]], schema=SCHEMA))
    outer = (size * inner, slide * inner, None)
    assert told(summed(kernel(*outer), steps)) == told(summed(kernel(*outer), flow))


@pytest.mark.spark
@pytest.mark.long
def test_windows_nest_and_match(spark: SparkSession) -> None:
    """In the engine and in the batch form; the columns of a window are what they were."""
    seconds = [0, 1, 9, 10, 13, 25, 25, 38, 44, 51, 59, 60, 61]
    rows = pa.table(
        {"ts": times([s * 1_000_000 for s in seconds]), "k": pa.array([s % 2 for s in seconds], pa.int32())}
    )
    d = Diagram("nested")
    a = d.input("a", "ts TIMESTAMP, k INT")
    tens = a.aggregate(by="k", over=window("10 seconds"), n="count(*)")
    tens.aggregate(over=window("10 seconds"), n="sum(n)", keys="count(*)", at="max(window_end)").output("again")
    tens.aggregate(by="k", over=window("1 minute"), n="sum(n)", windows="count(*)").output("minutes")
    every = a.aggregate(over=window("10 seconds"), total="count(*)")
    every.aggregate(over=window("1 minute"), n="count(*)").output("six")
    steps = tens.aggregate(over=window("10 seconds"), total="sum(n)")
    tens.join(steps, on="left.window_start = right.window_start", within="1 us").output("stepwise")
    tens.join(every, on="left.window_start = right.window_start", within="1 us").output("shares")
    a.aggregate(over=window("10 seconds", timeout="2 seconds"), n="count(*)").aggregate(
        over=window("10 seconds"), n="sum(n)"
    ).output("parts")
    a.aggregate(by="k", over=count_window(4, timeout="5 seconds"), n="count(*)").output("fours")
    story = tell(d.validate(), {"a": rows})
    outputs = run_story(story, compiled(story.spec.to_yaml(), spark, 2))
    check_truth(story, outputs, spark)

    def second(table: pa.Table, column: str) -> list[int]:
        return [t // 1_000_000 for t in table[column].cast(pa.int64()).to_pylist()]

    again = outputs["again"]
    assert second(again, "window_start") == [0, 10, 20, 30, 40, 50, 60]
    assert second(again, "at") == second(again, "window_end") == [10, 20, 30, 40, 50, 60, 70]
    assert again["n"].to_pylist() == outputs["parts"]["n"].to_pylist() == [3, 2, 2, 1, 1, 2, 2]
    minutes = outputs["minutes"]
    found = sorted(
        zip(second(minutes, "window_start"), *(minutes[c].to_pylist() for c in ("k", "n", "windows")), strict=True)
    )
    assert found == [(0, 0, 4, 4), (0, 1, 7, 4), (60, 0, 1, 1), (60, 1, 1, 1)]
    assert outputs["six"]["n"].to_pylist() == [6, 1]
    shares = outputs["shares"]
    assert differences(outputs["stepwise"], without_header(shares)) == []
    assert sum(shares["n"].to_pylist()) == len(seconds)
    assert sorted(zip(second(shares, "window_start"), shares["total"].to_pylist(), strict=True))[0] == (0, 3)


@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 60), max_size=4)), max_size=25),
)
def test_nothing_comes_of_windows_while_the_oldest_they_need_stays(
    size: int, slide: int, trains: list[tuple[int, list[int]]]
) -> None:
    kernel, boundary, cause = AggregateKernel(SCHEMA, ["k"], size, slide, SUM), FIRST_TIME, 0
    for step, ahead in trains:
        reached = 0 if boundary == FIRST_TIME else boundary + step
        times = np.array([max(boundary, 0) + n for n in ahead], np.int64)
        ones = pa.array(np.ones(len(times), np.int64))
        news = reached > boundary
        bounds = Bounds(boundary, np.array([cause + len(times)] * news, np.int64), np.array([reached] * news, np.int64))
        causes = np.arange(cause, cause + len(times))
        out, _ = kernel.step(Flow(pa.table([ones, ones], schema=SCHEMA), times, causes, 0 * causes, bounds))
        if oldest_needed(boundary, size, slide) == oldest_needed(reached, size, slide):
            assert not len(out)
        boundary, cause = reached, cause + len(times) + 1
