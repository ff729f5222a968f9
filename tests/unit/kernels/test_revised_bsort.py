"""A sort of an arrow that carries revisions: what stands and what waits in buffers is what lives, however it is cut."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from random import Random

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
    random_streams,
    state,
    told,
)

from borealis.kernels.bsort import BSortKernel
from borealis.kernels.flow import Flow
from borealis.kernels.revised_bsort import RevisedBSort
from borealis.state.delta import Delta
from borealis.tuples import KIND, LAST_TIME, TIME


@dataclass
class Case(Streams):
    """A stream, the first of two, and how it is sorted."""

    buffer: int = 3
    by: tuple[str, ...] = ()

    def kernel(self) -> RevisedBSort:
        return RevisedBSort(USER.append(SIGN), "x", list(self.by), self.buffer, [*USER.names, KIND], self.history)

    def plain(self) -> BSortKernel:
        return BSortKernel(USER, "x", list(self.by), self.buffer, USER.names)

    def key(self, image: tuple[str, ...]) -> str:
        return image[0] if self.by else ""


def case_of(seed: int, size: int) -> Case:
    dice = Random(seed)
    history, buffer, by = dice.randint(0, 8), dice.choice([1, 2, 2, 3, 5]), dice.choice([(), ("k",)])
    return Case((True, False), history, random_streams(dice, size, (True, False), history).events, buffer, by)


def cases() -> st.SearchStrategy[Case]:
    return st.builds(case_of, seed=st.integers(0, 2**32), size=st.integers(3, 24))


def run(case: Case, cuts: list[int]) -> tuple[list[Change], RevisedBSort, list[Delta]]:
    kernel = case.kernel()
    changes, deltas = [], []
    for start, end in pairwise(cuts):
        flow = case.flow(0, start, end)
        out, delta = kernel.step(flow)
        assert (out.time + case.history >= out.bounds.at(out.cause)).all()
        changes += told(out)
        deltas.append(delta)
    return changes, kernel, deltas


def rank(image: tuple[str, ...]) -> tuple[int, float]:
    if image[1] == "None":
        return (0, 0.0)
    value = float(image[1])
    return (2, 0.0) if math.isnan(value) else (1, value)


def waiting(kernel: RevisedBSort) -> Counter[tuple[str, ...]]:
    rows = kernel.tables_now()["held"].select(USER.names)
    return Counter(tuple(map(repr, row.values())) for row in rows.to_pylist())


@given(case=cases())
def test_what_stands_and_what_waits_is_what_lives(case: Case) -> None:
    kernel, bag = case.kernel(), Counter[tuple[str, ...]]()
    for at in range(len(case.events)):
        out, _ = kernel.step(case.flow(0, at, at + 1))
        own, buffers = told(out), waiting(kernel)
        assert [sub for _, sub, _, _ in own] == list(range(len(own)))
        for i, (_, _, kind, image) in enumerate(own):
            if kind == "-U":
                assert own[i + 1][2] == "+U"
                assert own[i + 1][3] != image
            bag[image] += 1 if kind[0] == "+" else -1
            assert bag[image] >= 0
            if kind[0] == "+":  # the least has left
                mine = [row for row in buffers if case.key(row) == case.key(image[1:])]
                assert all(rank(image[1:]) <= rank(row) for row in mine)
        standing: Counter[tuple[str, ...]] = Counter()
        for image, count in (+bag).items():
            standing[image[1:]] += count
        assert standing + buffers == Counter(row.image[1:] for row in case.live(0, at + 1))
        sizes = Counter(case.key(row) for row in buffers.elements())
        assert all(size < case.buffer for size in sizes.values())


@given(case=cases(), data=st.data())
def test_any_cut_gives_the_same_changes_and_state(case: Case, data: st.DataObject) -> None:
    once, whole, _ = run(case, [0, len(case.events)])
    for cuts in (case.cuts(data), list(range(len(case.events) + 1))):
        often, parted, _ = run(case, cuts)
        assert often == once
        assert state(parted) == state(whole)


@given(case=cases(), data=st.data())
def test_a_copy_that_applies_deltas_goes_on_as_the_one_that_made_them(case: Case, data: st.DataObject) -> None:
    trains = [(case.flow(0, a, b),) for a, b in pairwise(case.cuts(data))]
    check_copies(case.kernel, trains, data)


@given(case=cases())
def test_without_corrections_it_is_the_plain_sort(case: Case) -> None:
    for event in case.events:
        event.rows[0][:] = [row.of(ADD) for row in event.rows[0] if row.kind in (ADD, UA)]
    n = len(case.events)
    signed = case.flow(0, 0, n)
    out, _ = case.kernel().step(signed)
    plain, _ = case.plain().step(
        Flow(signed.rows.drop_columns([KIND]), signed.time, signed.cause, signed.sub, signed.bounds)
    )
    assert repr(out.rows.drop_columns([KIND]).to_pydict()) == repr(plain.rows.to_pydict())
    for name in ("time", "cause", "sub"):
        assert getattr(out, name).tolist() == getattr(plain, name).tolist()


@given(case=cases())
def test_the_state_is_the_buffers_and_what_the_history_has(case: Case) -> None:
    n = len(case.events)
    _, kernel, _ = run(case, [0, n])
    left = kernel.tables_now()["left"][TIME].to_pylist()
    if case.boundary(0, n) == LAST_TIME:
        assert not left
        assert not waiting(kernel)
    assert all(time >= case.boundary(0, n) - case.history for time in left)


# ---------------------------------------------------------------- by hand


def by_hand(rows: list[list[Row]], buffer: int = 2, end: bool = False) -> list[tuple[int, str, int, float]]:
    """(cause, kind, time, x) of what a sort gives, of rows by cause."""
    events = [Event((one, [])) for one in rows] + ([Event(([], []), [LAST_TIME, None])] if end else [])
    changes, _, _ = run(Case((True, False), 100, events, buffer), [0, len(events)])
    return [(cause, kind, int(image[0]), float(image[2])) for cause, _, kind, image in changes]


FIVE, NINE, SEVEN = (Row(ADD, time, 1, x) for time, x in ((1, 5.0), (2, 9.0), (3, 7.0)))


def test_what_has_left_is_taken_back_with_the_time_at_which_it_left() -> None:
    got = by_hand([[FIVE], [NINE], [FIVE.of(D)], [SEVEN]])
    assert got == [(1, "+I", 2, 5.0), (2, "-D", 2, 5.0), (3, "+I", 3, 7.0)]


def test_what_waits_is_taken_out_and_leaves_a_place() -> None:
    got = by_hand([[FIVE], [NINE], [NINE.of(D)], [SEVEN]], end=True)
    assert got == [(1, "+I", 2, 5.0), (4, "+I", 3, 7.0)]


def test_what_comes_for_a_row_is_sorted_in_like_any_other() -> None:
    got = by_hand([[FIVE], [NINE], [FIVE.of(UB), Row(UA, 4, 1, 10.0)]])
    assert got == [(1, "+I", 2, 5.0), (2, "-D", 2, 5.0), (2, "+I", 4, 9.0)]


def test_what_comes_and_leaves_at_once_makes_a_pair() -> None:
    got = by_hand([[FIVE], [NINE], [FIVE.of(UB), Row(UA, 1, 1, 6.0)]])
    assert got[1:] == [(2, "-U", 2, 5.0), (2, "+U", 1, 6.0)]


def test_what_one_cause_takes_out_is_never_pushed_out_by_it() -> None:
    got = by_hand([[FIVE], [NINE, FIVE.of(D)]])
    assert got == []


def test_to_take_back_what_is_not_there_changes_nothing() -> None:
    assert by_hand([[FIVE], [Row(D, 1, 1, -5.0), NINE]]) == [(1, "+I", 2, 5.0)]
