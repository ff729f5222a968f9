"""A join of arrows that carry revisions: what it gives adds up to the join of the rows that live, however it is cut."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
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

from borealis.kernels import join, join_index
from borealis.kernels.flow import Flow
from borealis.kernels.join import JoinKernel
from borealis.state.delta import Delta
from borealis.tuples import LAST_TIME, TIME

SIDES = ("left", "right")
UNUSED = pa.field("unused", pa.int64())


@dataclass
class Case(Streams):
    """An input of a join that keeps its promises."""

    keyed: bool
    within: int

    def kernel(self) -> JoinKernel:
        schemas = [pa.schema([*USER, UNUSED, *([SIGN] if signed else [])]) for signed in self.signed]
        columns = [(side, c, f"{side}_{c}") for side in SIDES for c in ("k", "x", "s")]
        return JoinKernel(*schemas, [("k", "k")] if self.keyed else [], self.within, columns, self.history)

    def flow(self, side: int, start: int, end: int) -> Flow:
        flow = super().flow(side, start, end)
        return flow.with_rows(flow.rows.add_column(len(USER), UNUSED, pa.array(range(len(flow)), pa.int64())))

    def results(self, end: int) -> Counter[tuple[str, ...]]:
        """The join of what is there after so many events, by nested loops."""
        left, right = self.live(0, end), self.live(1, end)
        return Counter(shown(a, b) for a in left for b in right if self.match(a, b))

    def match(self, a: Row, b: Row) -> bool:
        equal = a.key is not None and a.key == b.key if self.keyed else True
        return equal and abs(a.time - b.time) < self.within


def shown(a: Row, b: Row) -> tuple[str, ...]:
    return (repr(max(a.time, b.time)), *a.image[1:], *b.image[1:])


def case_of(seed: int, size: int) -> Case:
    dice = Random(seed)
    signed = dice.choice([(True, True), (True, True), (True, False), (False, True)])
    keyed, within, history = dice.random() < 0.7, dice.randint(1, 6), dice.randint(0, 6)
    return Case(signed, history, random_streams(dice, size, signed, history).events, keyed, within)


def cases() -> st.SearchStrategy[Case]:
    return st.builds(case_of, seed=st.integers(0, 2**32), size=st.integers(3, 16))


def cramped() -> ExitStack:
    """Every limit so low that small cases run the code of large ones."""
    stack = ExitStack()
    stack.enter_context(patch.multiple(join, CANDIDATES_AT_ONCE=3, ROWS_PER_TAKE=5))
    stack.enter_context(patch.multiple(join_index, WORD_BITS=12, SORT_PROBES_ABOVE=1))
    stack.enter_context(patch.object(join_index, "_hash_words", lambda words, bits: np.zeros(len(words[0]), np.int64)))
    return stack


def run(case: Case, cuts: list[int]) -> tuple[list[Change], JoinKernel, list[Delta]]:
    kernel = case.kernel()
    changes, deltas = [], []
    for start, end in pairwise(cuts):
        out, delta = kernel.step(case.flow(0, start, end), case.flow(1, start, end))
        changes += told(out)
        deltas.append(delta)
    return changes, kernel, deltas


@given(case=cases(), tight=st.booleans())
@settings(max_examples=15 * settings.default.max_examples)
def test_changes_add_up_to_the_join_of_what_lives(case: Case, tight: bool) -> None:
    n = len(case.events)
    with cramped() if tight else ExitStack():
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
        assert +bag == case.results(cause + 1)
        assert min(bag.values(), default=0) >= 0


@given(case=cases(), tight=st.booleans(), data=st.data())
@settings(max_examples=15 * settings.default.max_examples)
def test_any_cut_gives_the_same_changes_and_state(case: Case, tight: bool, data: st.DataObject) -> None:
    cuts = case.cuts(data)
    with cramped() if tight else ExitStack():
        once, whole, _ = run(case, [0, len(case.events)] if case.events else [0])
        often, parted, _ = run(case, cuts)
        single, _, _ = run(case, list(range(len(case.events) + 1)))
    assert often == once
    assert single == once
    assert state(parted) == state(whole)


@given(case=cases(), data=st.data())
@settings(max_examples=15 * settings.default.max_examples)
def test_a_copy_that_applies_deltas_goes_on_as_the_one_that_made_them(case: Case, data: st.DataObject) -> None:
    trains = [(case.flow(0, a, b), case.flow(1, a, b)) for a, b in pairwise(case.cuts(data))]
    check_copies(case.kernel, trains, data)


@given(case=cases())
@settings(max_examples=15 * settings.default.max_examples)
def test_held_is_what_lives_and_may_still_count(case: Case) -> None:
    n = len(case.events)
    _, kernel, _ = run(case, list(range(n + 1)))
    promised = [case.boundary(side, n) for side in (0, 1)]
    for side, name in enumerate(SIDES):
        held = kernel.tables_now()[name]
        rows = [row for row in case.live(side, n) if not case.keyed or row.key is not None]
        behind = case.history if case.signed[1 - side] else 0
        needs = [
            r for r in rows if promised[1 - side] < LAST_TIME and r.time > promised[1 - side] - behind - case.within
        ]
        if case.signed[side] and promised[side] < LAST_TIME:
            revisable = [r for r in rows if r.time >= promised[side] - case.history]
            needs = min((needs, revisable), key=lambda some: -len(some))
        assert sorted(held[TIME].to_pylist()) == sorted(row.time for row in needs)


# ---------------------------------------------------------------- by hand


def by_hand(left: list[list[Row]], right: list[list[Row]], **more: Any) -> list[tuple[int, str, str, str]]:
    """(cause, kind, left x, right x) of what a join gives, of rows by cause."""
    events = [Event((a, b)) for a, b in zip(left, right, strict=True)]
    case = Case(**{"signed": (True, True), "keyed": True, "within": 10, "history": 100, "events": events} | more)
    changes, _, _ = run(case, [0, len(events)])
    return [(cause, kind, image[2], image[5]) for cause, _, kind, image in changes]


def test_a_pair_gives_a_pair_for_each_partner() -> None:
    old, new = Row(UB, 5, 1, 1.0), Row(UA, 5, 1, 2.0)
    partners = [Row(ADD, 6, 1, 7.0), Row(ADD, 7, 1, 8.0)]
    got = by_hand([[old.of(ADD)], [], [old, new]], [[], partners, []])
    assert got[2:] == [
        (2, "-U", "1.0", "7.0"),
        (2, "+U", "2.0", "7.0"),
        (2, "-U", "1.0", "8.0"),
        (2, "+U", "2.0", "8.0"),
    ]


def test_what_no_longer_matches_goes_and_what_now_matches_comes() -> None:
    old, new = Row(UB, 5, 1, 1.0), Row(UA, 5, 2, 1.0)
    got = by_hand([[old.of(ADD)], [], [old, new]], [[], [Row(ADD, 6, 1, 7.0), Row(ADD, 6, 2, 8.0)], []])
    assert got == [(1, "+I", "1.0", "7.0"), (2, "-D", "1.0", "7.0"), (2, "+I", "1.0", "8.0")]


def test_pairs_on_both_sides_of_one_cause_give_one_pair() -> None:
    old, new = Row(UB, 5, 1, 1.0), Row(UA, 5, 1, 2.0)
    assert by_hand([[old.of(ADD)], [old, new]], [[old.of(ADD)], [old, new]])[1:] == [
        (1, "-U", "1.0", "1.0"),
        (1, "+U", "2.0", "2.0"),
    ]


def test_a_change_that_no_result_shows_gives_nothing() -> None:
    old, new = Row(UB, 5, 1, 1.0), Row(UA, 6, 1, 1.0)  # the partner's time is later than both
    assert by_hand([[old.of(ADD)], [], [old, new]], [[], [Row(ADD, 8, 1, 7.0)], []]) == [(1, "+I", "1.0", "7.0")]


def test_what_one_cause_adds_and_takes_back_never_was() -> None:
    row, other = Row(ADD, 5, 1, 1.0), Row(ADD, 5, 1, 2.0)
    got = by_hand([[], [row, row.of(D)], [other], [other.of(D), other]], [[Row(ADD, 6, 1, 7.0)], [], [], []])
    assert got == [(2, "+I", "2.0", "7.0")]


def test_what_came_for_a_row_and_went_at_once_leaves_no_pair() -> None:
    old, new, other = (Row(ADD, 5, 1, x) for x in (1.0, 2.0, 3.0))
    got = by_hand([[old], [other, old.of(UB), new.of(UA), new.of(D)]], [[Row(ADD, 6, 1, 7.0)], []])
    assert got == [(0, "+I", "1.0", "7.0"), (1, "-D", "1.0", "7.0"), (1, "+I", "3.0", "7.0")]


def test_a_late_row_finds_partners_of_long_ago_if_the_history_has_them() -> None:
    events = [Event(([], [Row(ADD, 0, 1, 7.0)]), [55, 55]), Event(([Row(ADD, 9, 1)], []))]
    changes, _, _ = run(Case((True, False), 50, events, True, 10), [0, 1, 2])
    assert [(cause, kind) for cause, _, kind, _ in changes] == [(1, "+I")]


@pytest.mark.parametrize("missing", [Row(D, 6, 1, 1.0), Row(UB, 5, 1, -1.0), Row(D, 5, 0, 1.0), Row(D, 5, 1, None)])
def test_to_take_back_what_is_not_there_changes_nothing(missing: Row) -> None:
    got = by_hand([[Row(ADD, 5, 1, 1.0)], [missing]], [[Row(ADD, 6, 1, 7.0)], []])
    assert got == [(0, "+I", "1.0", "7.0")]


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 2, 3], [0, 2, 3]])
def test_no_row_can_be_taken_back_twice(cuts: list[int]) -> None:
    row, others = Row(ADD, 5, 1, 1.0), [Row(ADD, 5, 1, 2.0)] * 3
    events = [Event(([Row(ADD, 5, 1)], [row, *others])), Event(([], [row.of(D)])), Event(([], [row.of(D)]))]
    changes, _, _ = run(Case((True, True), 0, events, True, 10), cuts)
    assert [(cause, kind) for cause, _, kind, _ in changes] == [(0, "+I")] * 4 + [(1, "-D")]


def test_rows_that_went_are_swept_out() -> None:
    kernel = Case((True, True), 0, [], True, 10).kernel()
    n = 100
    rows = [Row(ADD, 5, 1, float(i)) for i in range(n)]
    events = [Event((rows, [])), Event(([row.of(D) for row in rows[:-1]], []))]
    case = Case((True, True), 0, events, True, 10)
    for at in (0, 1):
        _, delta = kernel.step(case.flow(0, at, at + 1), case.flow(1, at, at + 1))
    assert delta["left"].cut is not None
    assert delta["left"].cut.num_rows == n - 1
    assert [len(chunk) for side in kernel._sides for chunk in side.chunks] == [1]
