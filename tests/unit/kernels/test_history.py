"""An input's history: rows with kinds become changes that say what goes and what comes, however trains are cut."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from borealis.kernels import history
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.history import CHANGE, EXPIRED, MISSING, SIGN, THERE, WHY, HistoryKernel
from borealis.state.delta import Delta, merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND, KIND_NAMES, Kind

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.float64()), (KIND, pa.string())])
HISTORY = 50
Event = tuple[str | None, int, float | None, int, int | None]  # kind, id, v, time, a boundary behind it


def kernel(key: list[str] | None = None, read: list[str] | None = None) -> HistoryKernel:
    return HistoryKernel(SCHEMA, ["id"] if key is None else key, HISTORY, SCHEMA.names if read is None else read)


def flow_of(events: list[Event], start: int, stop: int, standing: int) -> Flow:
    some = events[start:stop]
    rows = pa.table([[e[1] for e in some], [e[2] for e in some], [e[0] for e in some]], schema=SCHEMA)
    bounds = [(cause, e[4]) for cause, e in enumerate(some, start) if e[4] is not None]
    arrays = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
    cause = np.arange(start, stop)
    return Flow(
        rows, np.array([e[3] for e in some], np.int64), cause, np.zeros(len(some), np.int64), Bounds(standing, *arrays)
    )


def run(one: HistoryKernel, events: list[Event], cuts: list[int]) -> tuple[list[Any], list[Delta]]:
    places = [0, *sorted({c for c in cuts if 0 < c < len(events)}), len(events)]
    found, deltas, standing = [], [], FIRST_TIME
    for start, stop in pairwise(places):
        out, delta = one.step(flow_of(events, start, stop, standing))
        names = ("id", "v", SIGN, CHANGE, WHY)
        columns = [out.cause.tolist(), out.sub.tolist(), out.time.tolist(), *(out.rows[n].to_pylist() for n in names)]
        found += list(zip(*columns, strict=True))
        deltas.append(delta)
        standing = next((e[4] for e in reversed(events[:stop]) if e[4] is not None), FIRST_TIME)
    return found, deltas


def model(events: list[Event]) -> list[Any]:
    """One by one, as a person would do it."""
    held: dict[int, tuple[int, float | None]] = {}
    found: list[Any] = []
    boundary = FIRST_TIME
    for cause, (given_kind, key, value, time, bound) in enumerate(events):
        kind = Kind(KIND_NAMES.index(given_kind or "+I"))
        oldest = boundary - HISTORY if boundary > FIRST_TIME else FIRST_TIME
        old = held.get(key)
        old = None if old is None or old[0] < oldest else old
        adds = kind in (Kind.INSERTION, Kind.UPDATE_AFTER)
        why = EXPIRED if adds and time < oldest else None
        if why is None and kind == Kind.INSERTION and old is not None:
            why = THERE
        if why is None and kind in (Kind.DELETION, Kind.UPDATE_AFTER) and old is None:
            why = MISSING
        if kind == Kind.UPDATE_BEFORE:
            pass
        elif why is not None:
            found.append((cause, 0, time, key, value, 0, KIND_NAMES[kind], why))
        else:
            gone = Kind.UPDATE_BEFORE if adds else Kind.DELETION
            changes = [(old, gone)] if old is not None else []
            changes += [((time, value), kind)] if adds else []
            found += [(cause, i, at, key, v, int(k), None, None) for i, ((at, v), k) in enumerate(changes)]
            held.pop(key, None)
            if adds:
                held[key] = (time, value)
        boundary = boundary if bound is None else bound
    return found


def random_events(rng: Random, count: int) -> list[Event]:
    events: list[Event] = []
    now = boundary = 1000
    for _ in range(count):
        now += rng.choice((0, 1, 1, 5, 30))
        kind = rng.choice((None, None, "+I", "-D", "+U", "-U", "+U"))
        time = now - rng.choice((0, 0, 3, 20, 60, 90))
        bound = None
        if rng.random() < 0.3 and now - 10 > boundary:
            bound = boundary = now - 10
        events.append((kind, rng.randrange(6), rng.choice((None, 0.5, 1.5, float("inf"))), time, bound))
    return events


@settings(max_examples=6 * settings.default.max_examples)
@given(st.integers(0, 10**9))
def test_changes_are_those_of_the_model_however_trains_are_cut(seed: int) -> None:
    rng = Random(seed)
    events = random_events(rng, rng.randrange(1, 40))
    truth = model(events)
    for cuts in ([], list(range(len(events))), [rng.randrange(40) for _ in range(4)]):
        one = kernel()
        limits = {"TOGETHER_LEAST": rng.choice((1, 2, 16)), "AWAY_MOST": rng.choice((1, 8))}
        with patch.multiple(history, **limits):
            found, deltas = run(one, events, cuts)
        assert found == truth
        again = kernel()
        for delta in deltas:
            again.apply(unpack(pack(delta)))
        assert again.tables_now()["held"].equals(one.tables_now()["held"])
        whole = kernel()
        whole.apply(merge_deltas(one.tables, deltas, whole=True))
        assert whole.tables_now()["held"].equals(one.tables_now()["held"])


@given(st.integers(0, 10**9))
def test_what_is_not_read_is_not_held_and_shown_only_in_changes_that_are_not_made(seed: int) -> None:
    rng = Random(seed)
    events = random_events(rng, rng.randrange(1, 40))
    one = kernel(read=[])
    found, deltas = run(one, events, [rng.randrange(40) for _ in range(4)])
    assert [row[:4] + row[5:] for row in found] == [row[:4] + row[5:] for row in model(events)]
    assert [row[4] for row in found if row[7]] == [row[4] for row in model(events) if row[7]]
    assert one.tables_now()["held"].schema.names == ["_cause", "_sub", "_time", "id"]
    again = kernel(read=[])
    for delta in deltas:
        again.apply(unpack(pack(delta)))
    assert again.tables_now()["held"].equals(one.tables_now()["held"])


def test_keys_of_any_kind_are_told_apart() -> None:
    """However their numbers meet: here they all do."""
    schema = pa.schema([("a", pa.string()), ("b", pa.float64()), (KIND, pa.string())])
    keys = [("x", 0.0), ("x", None), (None, 0.0), ("x" * 200, float("nan")), ("", 1.0), (None, None), ("y", 1.0)]
    with patch.object(history, "mixed_numbers", lambda words: np.zeros(len(words[0]), np.int64)):
        one = HistoryKernel(schema, ["a", "b"], HISTORY, schema.names)
        flows = []
        for train, kind in enumerate(("+I", "+I", "-D")):
            rows = pa.table(
                [[a for a, _ in keys], [-0.0 if b == 0.0 else b for _, b in keys], [kind] * 7], schema=schema
            )
            if kind == "+I" and train:
                rows = rows.slice(0, 2)
            n = len(rows)
            cause = 7 * train + np.arange(n)
            flows.append(one.step(Flow(rows, np.full(n, 5), cause, np.zeros(n, np.int64), Bounds()))[0])
    assert flows[0].rows[WHY].null_count == len(keys)
    assert flows[1].rows[WHY].to_pylist() == [THERE, THERE]
    assert flows[2].rows[SIGN].to_pylist() == [int(Kind.DELETION)] * len(keys)
    assert flows[2].rows["a"].to_pylist() == [a for a, _ in keys]


def test_what_is_behind_the_history_is_forgotten() -> None:
    one = kernel()
    events: list[Event] = [("+I", i, 1.0, 10 * i, 10 * i if i % 5 == 0 else None) for i in range(5000)]
    run(one, events, list(range(0, 5000, 100)))
    assert len(one.tables_now()["held"]) <= HISTORY // 10 + 6
    assert sum(map(len, one.held.chunks)) < 2500


def test_without_a_key_only_what_is_too_old_is_refused() -> None:
    events: list[Event] = [(None, 1, 1.0, 100, 100), (None, 1, 1.0, 60, None), (None, 1, 1.0, 40, None)]
    found, deltas = run(kernel([]), events, [1])
    assert [(row[2], row[7]) for row in found] == [(100, None), (60, None), (40, EXPIRED)]
    assert deltas == [{}, {}]
