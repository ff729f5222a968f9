"""Windows over rows that are taken back or come late: what all changes leave is what the rows left would give."""

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

from borealis.kernels import revised_panes
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.flow import Bounds
from borealis.kernels.revised_panes import RevisedPanes
from borealis.kernels.revised_windows import make
from borealis.kernels.step import Step, schema_text
from borealis.tuples import FIRST_TIME, LAST_TIME, Kind


def kernel(size: int, slide: int, history: int, calls: list[Call]) -> RevisedPanes:
    def written(call: Call) -> tuple[Any, ...]:
        return call.function, call.columns, call.parameters

    results = pa.schema([(f"__a{i}", call.result) for i, call in enumerate(calls)])
    options = {"schema": schema_text(SCHEMA), "by": ["k"], "size": size, "slide": slide, "history": history}
    options["calls"] = [written(call) for call in calls]
    return make(Step("revised_windows", "out", ["in"], "box", False, schema_text(results), options))


def expected(story: Story, upto: int, size: int, slide: int, calls: list[Call]) -> Counter[tuple[Any, ...]]:
    """What the plain box gives for the rows left after a cause, up to the boundary that stands then."""
    bounds = [b for b in story.bounds[: upto + 1] if b is not None]
    if not bounds:
        return Counter()
    promised = Bounds(FIRST_TIME, np.array([upto]), np.array(bounds[-1:]))
    rows = story.live(upto)
    out, _ = AggregateKernel(SCHEMA, ["k"], size, slide, calls).step(flow_of(rows, promised, signed=False))
    return Counter(one[2:] for one in told(out))


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """So that few rows already lie in several parts, and are folded in several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revised_panes, "PART_ENTRIES", 4)
        patch.setattr(revised_panes, "FOLDED_AT_ONCE", 16)
        yield


shapes = {
    "seed": st.integers(0, 2**32 - 1),
    "causes": st.integers(2, 40),
    "size": st.integers(1, 12),
    "slide": st.integers(1, 12),
    "history": st.integers(0, 25),
}


@pytest.mark.parametrize("calls", [FOLDED, UNDONE], ids=["folded", "undone"])
@settings(max_examples=6 * settings.default.max_examples)
@given(**shapes)
def test_what_all_changes_leave_is_what_the_rows_left_give(
    calls: list[Call], seed: int, causes: int, size: int, slide: int, history: int
) -> None:
    rng = Random(seed)
    story, chosen = random_story(rng, causes, history), some_calls(rng, calls)
    out, _ = run(kernel(size, slide, history, chosen), story, cuts(rng, causes))
    for upto in sorted({*rng.sample(range(causes), min(causes, 6)), causes - 1}):
        assert left_after(out, upto) == expected(story, upto, size, slide, chosen)


@pytest.mark.parametrize("calls", [FOLDED, UNDONE], ids=["folded", "undone"])
@settings(max_examples=6 * settings.default.max_examples)
@given(**shapes)
def test_cuts_change_nothing_and_deltas_say_all(
    calls: list[Call], seed: int, causes: int, size: int, slide: int, history: int
) -> None:
    rng = Random(seed)
    story, chosen = random_story(rng, causes, history), some_calls(rng, calls)
    check_copies(rng, lambda: kernel(size, slide, history, chosen), story, causes)


@pytest.mark.parametrize("calls", [FOLDED, UNDONE], ids=["folded", "undone"])
@settings(max_examples=3 * settings.default.max_examples)
@given(**shapes)
def test_state_is_bounded_by_the_history(
    calls: list[Call], seed: int, causes: int, size: int, slide: int, history: int
) -> None:
    rng = Random(seed)
    story, chosen = random_story(rng, causes, history), some_calls(rng, calls)
    made = kernel(size, slide, history, chosen)
    run(made, story, cuts(rng, causes))
    standing = max((b for b in story.bounds if b is not None), default=FIRST_TIME)
    for name, table in made.tables_now().items():
        for time in ("_time", "pane"):
            if time in table.column_names and standing > FIRST_TIME:
                assert all(t > standing - history - size - slide for t in table[time].to_pylist()), name
    far = max([standing, *(row.time for rows in story.rows for row in rows)], default=0) + history + size + slide
    made.step(flow_of([], Bounds(standing, np.array([causes]), np.array([far]))))
    assert all(not table.num_rows for table in made.tables_now().values())
    assert made.groups.capacity <= 3


@pytest.mark.parametrize(("function", "column"), [("sum", "f"), ("count", "f")])
def test_to_take_back_what_never_came_changes_nothing(function: str, column: str) -> None:
    """It was lost in a gap."""
    made = kernel(10, 10, 40, [Call(function, column, DOUBLE if function == "sum" else pa.int64())])
    one, other = (("a", x, 1, None, None, None, 0) for x in (1.0, 2.0))
    gone = [Row(3, other, Kind.UPDATE_BEFORE, 0), Row(3, one, Kind.UPDATE_AFTER, 0), Row(14, other, Kind.DELETION, 1)]
    made.step(flow_of(gone, Bounds()))
    out, _ = made.step(flow_of([], Bounds(FIRST_TIME, np.array([2]), np.array([30]))))
    assert out.rows["__a0"].to_pylist() == [1]
    out, _ = made.step(flow_of([Row(14, other, Kind.DELETION, 3), Row(3, one, Kind.DELETION, 4)], Bounds(30)))
    assert out.rows["_kind"].to_pylist() == [Kind.DELETION]
    assert all(not table.num_rows for table in made.tables_now().values())


def test_a_row_behind_the_history_changes_nothing() -> None:
    made = kernel(10, 10, 20, [Call("sum", "f", DOUBLE)])
    made.step(flow_of([], Bounds(FIRST_TIME, np.array([0]), np.array([100]))))
    out, delta = made.step(flow_of([Row(79, ("a", 1.0, 1, None, None, None, 0), cause=1)], Bounds(100)))
    assert not len(out)
    assert not delta


def test_of_rows_that_differ_elsewhere_the_right_one_goes() -> None:
    made = kernel(10, 10, 20, [Call("first", "f", DOUBLE)])
    values = [
        ("a", 1.0, 1, None, None, None, 0),
        ("a", 2.0, 1, None, None, None, 0),
        ("a", 1.0, 2, None, None, None, 0),
    ]
    rows = [Row(3, one, cause=i) for i, one in enumerate(values)]
    gone = Row(3, values[0], Kind.DELETION, 3)
    out, _ = made.step(flow_of([*rows, gone], Bounds(FIRST_TIME, np.array([4]), np.array([LAST_TIME]))))
    assert out.rows["__a0"].to_pylist() == [2.0]
