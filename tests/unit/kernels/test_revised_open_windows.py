"""Count windows, and windows with a timeout, over rows that are taken back or come late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signed_stories import (
    DOUBLE,
    FOLDED,
    LONG,
    SCHEMA,
    UNDONE,
    Row,
    Story,
    check_copies,
    cuts,
    flow_of,
    left_after,
    random_story,
    run,
    some_calls,
    told,
)

from borealis.kernels import (
    count_windows,
    open_windows,
    revised_count_windows,
    revised_open_windows,
    revised_timed_windows,
    timed_windows,
)
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds
from borealis.kernels.open_windows import OpenWindows
from borealis.kernels.revised_open_windows import SLOT, Pool, RevisedOpenWindows
from borealis.kernels.step import Step, schema_text
from borealis.tuples import FIRST_TIME, KIND_NAMES, LAST_TIME, TIME, Kind

CALLS = FOLDED + UNDONE[2:]


def step_of(size: int, slide: int, timeout: int | None, history: int, calls: list[Call], by: list[str]) -> Step:
    results = pa.schema([(f"__a{i}", call.result) for i, call in enumerate(calls)])
    order = [name for call in calls for name in call.columns]
    options = {"schema": schema_text(SCHEMA), "by": by, "size": size, "slide": slide, "history": history}
    options |= {"timeout": timeout, "order": list(dict.fromkeys(order))}
    options["calls"] = [(call.function, call.columns, call.parameters) for call in calls]
    return Step("", "out", ["in"], "box", False, schema_text(results), options)


class Shape:
    """Windows of either kind, and what is computed over them."""

    def __init__(self, rng: Random, counted: bool, history: int) -> None:
        self.counted = counted
        self.size, self.slide = rng.randrange(1, 6 if counted else 13), rng.randrange(1, 6 if counted else 13)
        self.timeout = None if counted and rng.random() < 0.5 else rng.randrange(1, 20)
        self.history, self.calls = history, some_calls(rng, CALLS)
        self.by = rng.choice([["k"], ["k"], []])

    def step(self) -> Step:
        return step_of(self.size, self.slide, self.timeout, self.history, self.calls, self.by)

    def revised(self) -> RevisedOpenWindows:
        return (revised_count_windows.make if self.counted else revised_timed_windows.make)(self.step())

    def plain(self) -> OpenWindows:
        return (count_windows.make if self.counted else timed_windows.make)(self.step())


def expected(story: Story, upto: int, shape: Shape) -> Counter[tuple[Any, ...]]:
    """What the plain box gives for the rows left after a cause, up to the boundary that stands then."""
    bounds = [b for b in story.bounds[: upto + 1] if b is not None]
    if not bounds:
        return Counter()
    promised = Bounds(FIRST_TIME, np.array([upto]), np.array(bounds[-1:]))
    out, _ = shape.plain().step(flow_of(story.live(upto), promised, signed=False))
    return Counter(one[2:] for one in told(out))


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> Iterator[None]:
    """So that few rows already are folded in several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revised_open_windows, "FOLDED_AT_ONCE", 16)
        patch.setattr(open_windows, "ENTRIES_MOST", 40)
        yield


shapes = {"seed": st.integers(0, 2**32 - 1), "causes": st.integers(2, 40), "history": st.integers(0, 25)}
both = pytest.mark.parametrize("counted", [True, False], ids=["counted", "timed"])


@both
@settings(max_examples=6 * settings.default.max_examples)
@given(**shapes)
def test_what_all_changes_leave_is_what_the_rows_left_give(counted: bool, seed: int, causes: int, history: int) -> None:
    rng = Random(seed)
    story, shape = random_story(rng, causes, history), Shape(rng, counted, history)
    out, _ = run(shape.revised(), story, cuts(rng, causes))
    for upto in sorted({*rng.sample(range(causes), min(causes, 6)), causes - 1}):
        assert left_after(out, upto) == expected(story, upto, shape)


@both
@settings(max_examples=6 * settings.default.max_examples)
@given(**shapes)
def test_cuts_change_nothing_and_deltas_say_all(counted: bool, seed: int, causes: int, history: int) -> None:
    rng = Random(seed)
    story, shape = random_story(rng, causes, history), Shape(rng, counted, history)
    check_copies(rng, shape.revised, story, causes)


@both
@settings(max_examples=3 * settings.default.max_examples)
@given(**shapes)
def test_state_is_bounded_by_the_history(counted: bool, seed: int, causes: int, history: int) -> None:
    rng = Random(seed)
    story, shape = random_story(rng, causes, history), Shape(rng, counted, history)
    made = shape.revised()
    run(made, story, cuts(rng, causes))
    standing = max((b for b in story.bounds if b is not None), default=FIRST_TIME)
    if standing > FIRST_TIME:
        assert all(t >= standing - history for t in made.tables_now()["rows"]["_time"].to_pylist())
    far = max([standing, *(row.time for rows in story.rows for row in rows)], default=0) + history + 99
    made.step(flow_of([], Bounds(standing, np.array([causes]), np.array([far]))))
    tables = made.tables_now()
    assert not tables.pop("rows").num_rows
    if counted:  # a plain box that never saw what was taken back has as much
        plain = shape.plain()
        rows = story.live(causes - 1)
        plain.step(flow_of(rows, Bounds(FIRST_TIME, np.array([causes]), np.array([far])), signed=False))
        known = plain.tables_now()
        assert sorted(tables["counts"]["count"].to_pylist()) == sorted(known["counts"]["count"].to_pylist())
        assert [tables[name].num_rows for name in ("groups", "open")] == [known[n].num_rows for n in ("groups", "open")]
    else:
        assert all(not table.num_rows for table in tables.values())
    assert made.groups.capacity <= 3


def simple(*rows: tuple[int, int, float, Kind]) -> list[Row]:
    """Rows of one group with a cause, a time and a value each."""
    return [Row(time, ("a", x, 1, None, None, None, 0), kind, cause) for cause, time, x, kind in rows]


def given_by(made: RevisedOpenWindows, rows: list[Row], bounds: Bounds) -> list[tuple[Any, ...]]:
    out, _ = made.step(flow_of(rows, bounds))
    named = [KIND_NAMES[kind] for kind in out.rows["_kind"].to_pylist()]
    return list(zip(out.cause.tolist(), named, out.rows["__a0"].to_pylist(), strict=True))


ADD, D = Kind.INSERTION, Kind.DELETION
SUM = [Call("sum", "f", DOUBLE)]


def test_windows_change_from_a_row_that_goes_to_the_present() -> None:
    made = revised_count_windows.make(step_of(2, 2, None, 100, SUM, ["k"]))
    rows = simple(*((0, time, float(10**time), ADD) for time in range(6)), (2, 2, 100.0, D))
    for sub, row in enumerate(rows[:6]):
        row.sub = sub
    out = given_by(made, rows, Bounds(FIRST_TIME, np.array([1]), np.array([10])))
    assert out == [
        (1, "+I", 11.0),
        (1, "+I", 1100.0),
        (1, "+I", 110000.0),
        (2, "-U", 1100.0),
        (2, "+U", 11000.0),
        (2, "-D", 110000.0),
    ]
    late = simple((3, 0, 7.0, ADD))
    assert given_by(made, late, Bounds(10)) == [
        (3, "-U", 11.0),
        (3, "+U", 8.0),
        (3, "-U", 11000.0),
        (3, "+U", 1010.0),
        (3, "+I", 110000.0),
    ]


def test_a_replacement_in_its_place_changes_its_own_windows_only() -> None:
    made = revised_count_windows.make(step_of(2, 1, None, 100, SUM, []))
    rows = simple(*((cause, cause, 2.0**cause, ADD) for cause in range(8)))
    made.step(flow_of(rows, Bounds(FIRST_TIME, np.array([8]), np.array([10]))))
    pair = simple((9, 4, 16.0, Kind.UPDATE_BEFORE), (9, 4, 17.0, Kind.UPDATE_AFTER))
    pair[1].sub = 1
    assert given_by(made, pair, Bounds(10)) == [(9, "-U", 24.0), (9, "+U", 25.0), (9, "-U", 48.0), (9, "+U", 49.0)]


def test_numbers_go_on_when_rows_are_behind_the_history() -> None:
    made = revised_count_windows.make(step_of(3, 3, None, 10, SUM, ["k"]))
    rows = simple(*((cause, cause, float(cause), ADD) for cause in range(5)))
    assert given_by(made, rows, Bounds(FIRST_TIME, np.array([6]), np.array([100]))) == [(6, "+I", 3.0)]
    assert not made.tables_now()["rows"].num_rows
    # the window of 3, 4 and 95 is the second one; 3 and 4 are in its accumulator
    assert given_by(made, simple((7, 95, 0.5, ADD)), Bounds(100)) == [(7, "+I", 7.5)]
    assert given_by(made, simple((8, 94, 0.25, ADD)), Bounds(100)) == [(8, "-U", 7.5), (8, "+U", 7.25)]


def test_a_late_row_opens_a_window_earlier_and_so_closes_it_earlier() -> None:
    made = revised_timed_windows.make(step_of(100, 100, 10, 100, [Call("count", None, LONG)], ["k"]))
    rows = simple((0, 20, 1.0, ADD), (1, 25, 1.0, ADD), (2, 50, 1.0, ADD))
    assert given_by(made, rows, Bounds(FIRST_TIME, np.array([3]), np.array([90]))) == [(3, "+I", 2), (3, "+I", 1)]
    # parts from 15, 25 and 50 instead of 20 and 50; that from 50 stays as it is
    assert given_by(made, simple((4, 15, 1.0, ADD)), Bounds(90)) == [(4, "+I", 2), (4, "-D", 2), (4, "+I", 1)]


@pytest.mark.parametrize("far", [3, 2**61])
def test_places_are_found_however_far_apart_times_are(far: int) -> None:
    rows = {SLOT: np.array([0, 0, 1, 1, 2]), TIME: np.array([-far, far, -far, 0, far])}
    pool = Pool(rows, np.arange(3), Bounds())
    slots, times = np.array([0, 0, 1, 1, 1, 2, 2]), np.array([-far, 1, -far + 1, 1, LAST_TIME, FIRST_TIME, far + 1])
    assert pool.place(slots, times).tolist() == [0, 1, 3, 4, 4, 4, 5]


def test_to_take_back_what_never_came_changes_nothing() -> None:
    made = revised_count_windows.make(step_of(1, 1, None, 10, SUM, ["k"]))
    assert given_by(made, simple((1, 3, 2.0, D), (2, 4, 1.0, ADD)), Bounds(FIRST_TIME, np.array([3]), np.array([5])))
    assert given_by(made, simple((4, 3, 2.0, D)), Bounds(5)) == []


def test_a_copy_learns_of_a_row_that_went_and_fell_behind_the_history_at_once() -> None:
    made, other = (revised_count_windows.make(step_of(2, 2, None, 20, SUM, ["k"])) for _ in range(2))
    for one in (made, other):
        given_by(one, simple((0, 5, 1.0, ADD)), Bounds(FIRST_TIME, np.array([1]), np.array([10])))
    _, delta = made.step(flow_of(simple((2, 5, 1.0, D)), Bounds(10, np.array([3]), np.array([100]))))
    other.apply(delta)
    rows, bounds = simple((4, 101, 2.0, ADD), (5, 102, 4.0, ADD)), Bounds(100, np.array([6]), np.array([110]))
    assert given_by(made, rows, bounds) == given_by(other, rows, bounds) == [(6, "+I", 6.0)]
