"""A resample of arrows that carry revisions: what it gives adds up to what the rows that live do, whatever the cut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from signed_streams import (
    ADD,
    SIGN,
    UA,
    UB,
    USER,
    Change,
    D,
    Event,
    Row,
    Streams,
    check_copies,
    flow_of,
    ints,
    random_streams,
    state,
    told,
)

from borealis.kernels import resample
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.resample import VALUE, ResampleKernel
from borealis.kernels.revised_resample import RevisedResample
from borealis.state.delta import Delta
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME

GIVEN = pa.schema([("k", pa.int64()), (VALUE, pa.float64())])
CALLS = [Call("count", None, pa.int64()), Call("sum", VALUE, pa.float64()), Call("last", VALUE, pa.float64())]
VALUES: list[Any] = [None, 0.1, -0.0, float("nan"), 1.5, -7.25, 1e16]


@dataclass
class Case(Streams):
    """Two streams, and what is looked for."""

    how: str | None = "linear"
    window: int = 5
    by: tuple[str, ...] = ("k",)

    def kernel(self) -> RevisedResample:
        first, second = (
            pa.schema([*s, *([SIGN] if signed else [])]) for s, signed in zip((USER, GIVEN), self.signed, strict=True)
        )
        return RevisedResample(first, second, list(self.by), self.window, self.how, self.calls, self.history)

    @property
    def calls(self) -> list[Call]:
        return CALLS if self.how is None else []

    def flows(self, start: int, end: int) -> tuple[Flow, Flow]:
        return self.flow(0, start, end), as_given(self.flow(1, start, end))

    def results(self, end: int) -> Counter[tuple[str, ...]]:
        """What the plain box gives for what is there after so many events, up to the boundary that stands then."""
        plain = ResampleKernel(USER, GIVEN, list(self.by), self.window, self.how, self.calls)
        flows = []
        for side in (0, 1):
            bound = self.boundary(side, end)
            bounds = Bounds() if bound == FIRST_TIME else Bounds(FIRST_TIME, ints([end]), ints([bound]))
            rows = [(i, 0, row) for i, row in enumerate(self.live(side, end))]
            flows.append(flow_of(rows, Bounds(bounds.standing, 1000 + bounds.cause, bounds.time), signed=False))
        out, _ = plain.step(flows[0], as_given(flows[1]))
        rows = zip(out.time.tolist(), *(c.to_pylist() for c in out.rows.columns), strict=True)
        return Counter(tuple(map(repr, row)) for row in rows)


def as_given(flow: Flow) -> Flow:
    rows = flow.rows.drop_columns(["s"])
    return flow.with_rows(rows.rename_columns({"x": VALUE}))


def case_of(seed: int, size: int) -> Case:
    dice = Random(seed)
    signed = dice.choice([(True, True), (True, True), (True, False), (False, True)])
    history, window = dice.randint(0, 8), dice.randint(1, 6)
    how, by = dice.choice(["linear", "nearest", "previous", None, None]), dice.choice([(), ("k",), ("k",)])
    return Case(signed, history, random_streams(dice, size, signed, history, VALUES).events, how, window, by)


def cases() -> st.SearchStrategy[Case]:
    return st.builds(case_of, seed=st.integers(0, 2**32), size=st.integers(3, 20))


def run(case: Case, cuts: list[int]) -> tuple[list[Change], RevisedResample, list[Delta]]:
    kernel = case.kernel()
    changes, deltas = [], []
    for start, end in pairwise(cuts):
        out, delta = kernel.step(*case.flows(start, end))
        assert out.rows.schema == kernel.out
        changes += told(out)
        deltas.append(delta)
    return changes, kernel, deltas


@given(case=cases(), few=st.booleans())
def test_changes_add_up_to_what_the_rows_that_live_give(case: Case, few: bool) -> None:
    n = len(case.events)
    with patch.object(resample, "PAIRS_AT_ONCE", 2 if few else 1 << 20):
        changes, _, _ = run(case, [0, n])
    bag: Counter[tuple[str, ...]] = Counter()
    for cause in range(n):
        own = [change for change in changes if change[0] == cause]
        assert [sub for _, sub, _, _ in own] == list(range(len(own)))
        for i, (_, _, kind, image) in enumerate(own):
            if kind == "-U":
                assert own[i + 1][2] == "+U"
                assert own[i + 1][3] != image
            elif kind == "+U":
                assert own[i - 1][2] == "-U"
            bag[image] += 1 if kind[0] == "+" else -1
            assert bag[image] >= 0
        assert +bag == case.results(cause + 1)


@given(case=cases(), data=st.data())
def test_any_cut_gives_the_same_changes_and_state(case: Case, data: st.DataObject) -> None:
    once, whole, _ = run(case, [0, len(case.events)])
    for cuts in (case.cuts(data), list(range(len(case.events) + 1))):
        often, parted, _ = run(case, cuts)
        assert often == once
        assert state(parted) == state(whole)


@given(case=cases(), data=st.data())
def test_a_copy_that_applies_deltas_goes_on_as_the_one_that_made_them(case: Case, data: st.DataObject) -> None:
    trains = [case.flows(a, b) for a, b in pairwise(case.cuts(data))]
    check_copies(case.kernel, trains, data)


@given(case=cases())
def test_the_state_is_bounded_by_the_history(case: Case) -> None:
    n = len(case.events)
    _, kernel, _ = run(case, list(range(n + 1)))
    least = min(case.boundary(side, n) for side in (0, 1))
    if least == LAST_TIME:
        assert [table.num_rows for table in kernel.tables_now().values()] == [0, 0]
    elif least > FIRST_TIME:
        held = [table[TIME].to_pylist() for table in kernel.tables_now().values()]
        assert all(t > least - case.history - case.window for t in held[0])
        assert all(t > least - case.history - 2 * case.window for t in held[1])


# ---------------------------------------------------------------- by hand


def by_hand(events: list[Event], how: str | None = "previous") -> list[tuple[int, str, str, str]]:
    """(cause, kind, own x, value) of what a resample gives."""
    changes, _, _ = run(Case((True, True), 100, events, how), [0, len(events)])
    return [(cause, kind, image[2], image[-1]) for cause, _, kind, image in changes]


ASKED, TICK = Row(ADD, 10, 1, 1.0), Row(ADD, 9, 1, 7.0)
BEGINNING = [Event(([ASKED], [TICK])), Event(([], []), [50, 50])]


def test_a_change_of_the_second_stream_gives_a_pair_for_each_result_it_touches() -> None:
    other = Row(UA, 9, 1, 8.0)
    assert by_hand([*BEGINNING, Event(([], [TICK.of(UB), other]))]) == [
        (1, "+I", "1.0", "7.0"),
        (2, "-U", "1.0", "7.0"),
        (2, "+U", "1.0", "8.0"),
    ]


def test_a_change_of_the_first_stream_gives_a_pair() -> None:
    got = by_hand([*BEGINNING, Event(([ASKED.of(UB), Row(UA, 10, 1, 2.0)], [])), Event(([Row(D, 10, 1, 2.0)], []))])
    assert got[1:] == [(2, "-U", "1.0", "7.0"), (2, "+U", "2.0", "7.0"), (3, "-D", "2.0", "7.0")]


def test_what_is_moved_beyond_the_boundary_goes_and_comes_when_it_is_due() -> None:
    moved = Event(([ASKED.of(UB), Row(UA, 60, 1, 2.0)], []), [61, 61])
    got = by_hand([*BEGINNING, moved])
    assert got[1:] == [(2, "-D", "1.0", "7.0"), (2, "+I", "2.0", "None")]


def test_a_late_row_counts_at_once() -> None:
    late = [Event(([Row(ADD, 11, 1, 3.0)], [])), Event(([], [Row(ADD, 11, 1, 9.0)]))]
    assert by_hand(BEGINNING + late)[1:] == [
        (2, "+I", "3.0", "7.0"),
        (3, "-U", "3.0", "7.0"),
        (3, "+U", "3.0", "9.0"),
    ]


def test_a_change_that_no_result_shows_gives_nothing() -> None:
    assert by_hand([*BEGINNING, Event(([], [Row(ADD, 8, 1, 3.0)]))]) == [(1, "+I", "1.0", "7.0")]


@pytest.mark.parametrize("side", [0, 1])
def test_to_take_back_what_is_not_there_changes_nothing(side: int) -> None:
    rows: tuple[list[Row], list[Row]] = ([], [])
    rows[side].append(Row(D, 10, 1, 5.0))
    assert by_hand([*BEGINNING, Event(rows)]) == [(1, "+I", "1.0", "7.0")]
