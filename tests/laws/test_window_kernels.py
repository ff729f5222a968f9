"""Windows that take tuples in order of time against slow twins: what comes out, when, and whatever the cuts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from chance import VALUES
from harness import examples, random_places
from hypothesis import given
from hypothesis import strategies as st

from borealis.kernels import open_windows
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.count_windows import CountWindows
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.open_windows import OpenWindows
from borealis.kernels.timed_windows import TimedWindows
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("k", pa.float64()), ("g", pa.string()), ("v", pa.float64()), ("s", pa.string())])
CALLS = [Call("count", None, pa.int64()), Call("sum", "v", pa.float64())]
CALLS += [Call("first", "s", pa.string()), Call("last", "v", pa.float64())]
CALLS += [Call("collect_list", "s", pa.list_(pa.string())), Call("max_by", "s", pa.string(), ("v",))]
ORDER = ["v", "s"]
COUNTED = [(1, 1), (2, 1), (3, 3), (5, 2), (2, 5), (7, 1), (4, 4)]
TIMED = [(8, 4), (4, 4), (2, 6), (6, 4), (10, 2), (30, 30), (9, 2)]
TIMEOUTS = [1, 2, 5, 12]

Row = tuple[int, int, dict[str, Any]]  # time, place in the stream, values
Event = Row | int  # or a boundary


def random_events(rng: Random, n: int) -> list[Event]:
    """Tuples out of order and often of one time, boundaries that none of them comes after."""
    start, spread = rng.choice([0, -50, 10**15]), rng.choice([1, 3, 8])
    times = [start + t // rng.choice([1, 2]) + rng.randrange(spread) for t in range(n)]
    kinds = {"k": "DOUBLE", "g": "STRING", "v": "DOUBLE", "s": "STRING"}
    few = {name: VALUES[kind][: rng.choice([1, 3, 100])] for name, kind in kinds.items()}
    events: list[Event] = []
    bound = FIRST_TIME
    for i, time in enumerate(times):
        row = {name: None if rng.random() < 0.15 else rng.choice(values) for name, values in few.items()}
        events.append((time, i, row))
        promise = min(times[i + 1 :], default=time) - rng.choice([0, 0, 0, 2])
        if rng.random() < 0.4 and promise > bound:
            bound = promise
            events.append(bound)
    return [*events, LAST_TIME]


def trains(events: Sequence[Event], places: Sequence[int]) -> list[Flow]:
    cuts = sorted({0, len(events), *(p for p in places if 0 < p < len(events))})
    flows, standing = [], FIRST_TIME
    for start, stop in pairwise(cuts):
        here = list(enumerate(events))[start:stop]
        rows = [(at, e) for at, e in here if isinstance(e, tuple)]
        bounds = [(at, e) for at, e in here if isinstance(e, int)]
        table = pa.Table.from_pylist([e[2] for _, e in rows], SCHEMA)
        cause, time = (np.array(c, np.int64) for c in ([at for at, _ in rows], [e[0] for _, e in rows]))
        promised = Bounds(standing, *(np.array([b[i] for b in bounds], np.int64) for i in (0, 1)))
        flows.append(Flow(table, time, cause, np.zeros(len(rows), np.int64), promised))
        standing = promised.final
    return flows


def ran(kernel: OpenWindows, flows: Sequence[Flow]) -> list[tuple[Any, ...]]:
    """Results as (cause, time, key, start, end, ...), in order; each comes by a boundary, and fits between two."""
    found: list[tuple[Any, ...]] = []
    for flow in flows:
        out, _ = kernel.step(flow)
        at = np.searchsorted(flow.bounds.cause, out.cause)
        assert flow.bounds.cause[at].tolist() == out.cause.tolist()
        assert np.all(out.time < flow.bounds.time[at])
        assert np.all(out.time >= np.append(flow.bounds.standing, flow.bounds.time)[at])
        assert sorted(set(zip(out.cause.tolist(), out.sub.tolist(), strict=True))) == list(
            zip(out.cause.tolist(), out.sub.tolist(), strict=True)
        )
        columns = [(c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist() for c in out.rows.columns]
        found += zip(out.cause.tolist(), out.time.tolist(), *columns, strict=True)
    return found


# -- the slow twins


def rank(value: Any) -> tuple[int, Any]:
    """Where a value stands as SQL sorts."""
    if value is None:
        return (0, 0)
    if isinstance(value, str):
        return (1, value.encode())
    return (2, 0) if value != value else (1, value + 0.0)


def groups_of(events: Sequence[Event], by: Sequence[str], order: Sequence[str]) -> list[list[Row]]:
    found: dict[Any, list[Row]] = {}
    for event in events:
        if isinstance(event, tuple):
            found.setdefault(tuple(rank(event[2][name]) for name in by), []).append(event)
    for rows in found.values():
        rows.sort(key=lambda row: (row[0], *(rank(row[2][name]) for name in order), row[1]))
    return list(found.values())


def result(rows: Sequence[Row], by: Sequence[str]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The key, and the aggregates."""
    total, some = 0.0, False
    for _, _, values in rows:
        if values["v"] is not None:
            total, some = total + values["v"], True
    key = tuple(rows[0][2][name] for name in by)
    texts = [values["s"] for *_, values in rows]
    best = max(((rank(row[2]["v"]), i) for i, row in enumerate(rows) if row[2]["v"] is not None), default=None)
    more = [s for s in texts if s is not None], None if best is None else texts[best[1]]
    return key, (len(rows), total if some else None, rows[0][2]["s"], rows[-1][2]["v"], *more)


def closing(events: Sequence[Event], due: int) -> int:
    """The place of the boundary that closes a window: the first that is not before `due`."""
    return next(at for at, event in enumerate(events) if isinstance(event, int) and event >= due)


def slow_count(
    events: Sequence[Event], by: Sequence[str], size: int, slide: int, timeout: int | None
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for rows in groups_of(events, by, ORDER):
        for start in range(0, len(rows), slide):
            opened = rows[start][0]
            mine = [r for r in rows[start : start + size] if timeout is None or r[0] < opened + timeout]
            key, values = result(mine, by)
            if len(mine) == size:
                end, flag = mine[-1][0], [False] if timeout else []
                found.append((closing(events, end + 1), end, *key, opened, end, *flag, *values))
            elif timeout is not None:
                end = opened + timeout
                found.append((closing(events, end), end - 1, *key, opened, end, True, *values))
    return found


def slow_timed(
    events: Sequence[Event], by: Sequence[str], size: int, slide: int, timeout: int
) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for rows in groups_of(events, by, []):
        for start in {s for t, *_ in rows for s in range(t // slide * slide, t - size, -slide)}:
            left = [r for r in rows if start <= r[0] < start + size]
            while left:
                late = left[0][0] + timeout
                mine, left = [r for r in left if r[0] < late], [r for r in left if r[0] >= late]
                key, values = result(mine, by)
                due, end = min(start + size, late), start + size
                found.append((closing(events, due), due - 1, *key, start, end, due < end, *values))
    return found


def as_set(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows as text, without regard to the sign of zero."""
    return sorted(repr(tuple(v + 0.0 if isinstance(v, float) else v for v in row)) for row in rows)


def law(
    seed: int, n: int, make: Callable[[list[str]], OpenWindows], slow: Callable[..., list[tuple[Any, ...]]]
) -> None:
    rng = Random(seed)
    by = rng.choice([["g"], ["k"], ["k", "g"], []])
    events = random_events(rng, n)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_windows, "ENTRIES_MOST", rng.choice([1, 3, 10, 1 << 20]))
        whole = ran(make(by), trains(events, []))
        assert as_set(whole) == as_set(slow(events, by))
        assert [row[:2] for row in whole] == sorted(row[:2] for row in whole)
        for _ in range(2):
            cut = ran(make(by), trains(events, random_places(rng, len(events))))
            assert list(map(repr, cut)) == list(map(repr, whole))


@examples(30)
@given(
    st.integers(0, 2**32 - 1), st.integers(1, 50), st.sampled_from(COUNTED), st.sampled_from([None, None, *TIMEOUTS])
)
def test_count_windows_are_their_slow_twin(seed: int, n: int, window: tuple[int, int], timeout: int | None) -> None:
    law(
        seed,
        n,
        lambda by: CountWindows(SCHEMA, by, *window, timeout, CALLS, ORDER),
        lambda events, by: slow_count(events, by, *window, timeout),
    )


@examples(30)
@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.sampled_from(TIMED), st.sampled_from(TIMEOUTS))
def test_time_windows_with_a_timeout_are_their_slow_twin(
    seed: int, n: int, window: tuple[int, int], timeout: int
) -> None:
    law(
        seed,
        n,
        lambda by: TimedWindows(SCHEMA, by, *window, timeout, CALLS),
        lambda events, by: slow_timed(events, by, *window, timeout),
    )
