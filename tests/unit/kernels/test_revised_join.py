"""A join of arrows that carry revisions: what it gives adds up to the join of the rows that live, however it is cut."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from borealis.errors import TrainError
from borealis.kernels import join, join_index
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.join import JoinKernel
from borealis.state.delta import Delta, merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND, KIND_NAMES, LAST_TIME, TIME, Kind

SIDES = ("left", "right")
USER = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("unused", pa.int64())])
SIGN = pa.field(KIND, pa.int8(), nullable=False)
KEYS: list[Any] = [0, 0, 1, None]
VALUES: list[Any] = [None, 0.0, -0.0, float("nan"), 1.5]
ADD, D, UB, UA = Kind.INSERTION, Kind.DELETION, Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER


@dataclass(frozen=True)
class Row:
    """A row as an input has it: what it does, when it is, what it says."""

    kind: Kind
    time: int
    key: int | None
    x: float | None = None
    s: str = ""

    def of(self, kind: Kind) -> Row:
        return Row(kind, self.time, self.key, self.x, self.s)

    @property
    def image(self) -> tuple[str, ...]:
        """What makes two rows the same row, -0.0 being no 0.0."""
        return tuple(map(repr, (self.time, self.key, self.x, self.s)))


@dataclass
class Event:
    """What one cause brings to each side: rows, then perhaps a boundary."""

    rows: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    bound: list[int | None] = field(default_factory=lambda: [None, None])


@dataclass
class Case:
    """An input of a join that keeps its promises; what is cut, and where."""

    signed: tuple[bool, bool]
    keyed: bool
    within: int
    history: int
    events: list[Event]

    def kernel(self) -> JoinKernel:
        schemas = [USER.append(SIGN) if signed else USER for signed in self.signed]
        columns = [(side, c, f"{side}_{c}") for side in SIDES for c in ("k", "x", "s")]
        return JoinKernel(*schemas, [("k", "k")] if self.keyed else [], self.within, columns, self.history)

    def flow(self, side: int, start: int, end: int) -> Flow:
        found = [(i, sub, row) for i in range(start, end) for sub, row in enumerate(self.events[i].rows[side])]
        rows = [row for _, _, row in found]
        columns = [
            pa.array([row.key for row in rows], pa.int64()),
            pa.array([row.x for row in rows], pa.float64()),
            pa.array([row.s for row in rows], pa.string()),
            pa.array(range(len(rows)), pa.int64()),
        ]
        table = pa.Table.from_arrays(columns, schema=USER)
        if self.signed[side]:
            table = table.append_column(SIGN, pa.array([row.kind for row in rows], pa.int8()))
        if len(rows) > 2:  # rows come in pieces
            table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
        raised = [(i, b) for i in range(start, end) if (b := self.events[i].bound[side]) is not None]
        bounds = Bounds(self.boundary(side, start), ints(i for i, _ in raised), ints(b for _, b in raised))
        return Flow(
            table, ints(r.time for r in rows), ints(i for i, _, _ in found), ints(n for _, n, _ in found), bounds
        )

    def boundary(self, side: int, end: int) -> int:
        return max((b for e in self.events[:end] if (b := e.bound[side]) is not None), default=FIRST_TIME)

    def live(self, side: int, end: int) -> list[Row]:
        """The rows that are there after so many events."""
        rows: list[Row] = []
        for event in self.events[:end]:
            for row in event.rows[side]:
                if row.kind in (ADD, UA):
                    rows.append(row)
                else:
                    del rows[max(i for i, other in enumerate(rows) if other.image == row.image)]
        return rows

    def results(self, end: int) -> Counter[tuple[str, ...]]:
        """The join of what is there after so many events, by nested loops."""
        left, right = self.live(0, end), self.live(1, end)
        return Counter(shown(a, b) for a in left for b in right if self.match(a, b))

    def match(self, a: Row, b: Row) -> bool:
        equal = a.key is not None and a.key == b.key if self.keyed else True
        return equal and abs(a.time - b.time) < self.within


def ints(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), np.int64)


def shown(a: Row, b: Row) -> tuple[str, ...]:
    return (repr(max(a.time, b.time)), *a.image[1:], *b.image[1:])


def case_of(seed: int, size: int) -> Case:
    """An input of so many events. By chance alone, as cases that are rich in meetings are rare among simple ones."""
    dice = Random(seed)
    signed = dice.choice([(True, True), (True, True), (True, False), (False, True)])
    case = Case(signed, dice.random() < 0.7, dice.randint(1, 6), dice.randint(0, 6), [])
    live: tuple[list[Row], list[Row]] = ([], [])
    now = 0
    for at in range(size):
        event = Event()
        now += dice.randint(0, 2)
        for side in dice.choice([(0,), (1,), (0, 1)]):
            least = max(case.boundary(side, at), -2) - (case.history if signed[side] else 0)
            for _ in range(dice.randint(0, 3)):
                new = Row(ADD, dice.randint(least, max(least, now) + 2), *map(dice.choice, (KEYS, VALUES, "ab")))
                old = [row for row in live[side] if row.time >= least] if signed[side] else []
                what = dice.choice("++-uu") if old else "+"
                if what != "+":
                    gone = dice.choice(old)
                    event.rows[side].append(gone.of(D if what == "-" else UB))
                    del live[side][next(i for i, row in enumerate(live[side]) if row is gone)]
                    if dice.random() < 0.6:  # most corrections change little
                        new = Row(ADD, gone.time, gone.key, new.x, gone.s)
                if what != "-":
                    event.rows[side].append(new.of(UA if what == "u" else ADD))
                    live[side].append(new)
            rise = dice.choice([None, None, None, now - 3, now - 1, now])
            if at == size - 1 and dice.random() < 0.3:
                rise = LAST_TIME
            if rise is not None and rise > case.boundary(side, at):
                event.bound[side] = rise
        case.events.append(event)
    return case


def cases() -> st.SearchStrategy[Case]:
    return st.builds(case_of, seed=st.integers(0, 2**32), size=st.integers(3, 16))


def cramped() -> ExitStack:
    """Every limit so low that small cases run the code of large ones."""
    stack = ExitStack()
    stack.enter_context(patch.multiple(join, CANDIDATES_AT_ONCE=3, ROWS_PER_TAKE=5))
    stack.enter_context(patch.multiple(join_index, WORD_BITS=12, SORT_PROBES_ABOVE=1))
    stack.enter_context(patch.object(join_index, "_hash_words", lambda words, bits: np.zeros(len(words[0]), np.int64)))
    return stack


Change = tuple[int, int, str, tuple[str, ...]]  # cause, sub, kind, what the result shows


def told(flow: Flow, kernel: JoinKernel) -> list[Change]:
    assert flow.rows.schema == kernel.schema
    assert flow.rows.schema.names[-1] == KIND
    *columns, kinds = (column.to_pylist() for column in flow.rows.columns)
    rows = zip(flow.time.tolist(), *columns, strict=True)
    images = [tuple(map(repr, row)) for row in rows]
    names = [KIND_NAMES[kind] for kind in kinds]
    return list(zip(flow.cause.tolist(), flow.sub.tolist(), names, images, strict=True))


def run(case: Case, cuts: list[int]) -> tuple[list[Change], JoinKernel, list[Delta]]:
    kernel = case.kernel()
    changes, deltas = [], []
    for start, end in pairwise(cuts):
        out, delta = kernel.step(case.flow(0, start, end), case.flow(1, start, end))
        changes += told(out, kernel)
        deltas.append(delta)
    return changes, kernel, deltas


def state(kernel: JoinKernel) -> dict[str, str]:
    """All that is held, one NaN being like another."""
    return {name: repr(table.to_pydict()) for name, table in kernel.tables_now().items()}


def cuts_of(case: Case, data: st.DataObject) -> list[int]:
    n = len(case.events)
    inner = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return [0, *(i for i in range(1, n) if inner[i]), n]


@given(case=cases(), tight=st.booleans())
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=150, deadline=None)
def test_any_cut_gives_the_same_changes_and_state(case: Case, tight: bool, data: st.DataObject) -> None:
    cuts = cuts_of(case, data)
    with cramped() if tight else ExitStack():
        once, whole, _ = run(case, [0, len(case.events)] if case.events else [0])
        often, parted, _ = run(case, cuts)
        single, _, _ = run(case, list(range(len(case.events) + 1)))
    assert often == once
    assert single == once
    assert state(parted) == state(whole)


@given(case=cases(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_copy_that_applies_deltas_goes_on_as_the_one_that_made_them(case: Case, data: st.DataObject) -> None:
    trains = [(case.flow(0, a, b), case.flow(1, a, b)) for a, b in pairwise(cuts_of(case, data))]
    turn = data.draw(st.integers(0, len(trains)))
    kernel, one_by_one, at_once = case.kernel(), case.kernel(), case.kernel()
    deltas = []
    for train in trains[:turn]:
        deltas.append(unpack(pack(kernel.step(*train)[1])))
        one_by_one.apply(deltas[-1])
        assert state(one_by_one) == state(kernel)
    at_once.apply(merge_deltas(JoinKernel.tables, deltas, whole=data.draw(st.booleans())))
    assert state(at_once) == state(kernel)
    for train in trains[turn:]:
        out, delta = kernel.step(*train)
        for copy in (one_by_one, at_once):
            own, own_delta = copy.step(*train)
            assert told(own, copy) == told(out, kernel)
            assert pack(own_delta) == pack(delta)


@given(case=cases())
@settings(max_examples=150, deadline=None)
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
    changes, _, _ = run(Case((True, False), True, 10, 50, events), [0, 1, 2])
    assert [(cause, kind) for cause, _, kind, _ in changes] == [(1, "+I")]


@pytest.mark.parametrize("missing", [Row(D, 6, 1, 1.0), Row(UB, 5, 1, -1.0), Row(D, 5, 0, 1.0), Row(D, 5, 1, None)])
def test_to_take_back_what_is_not_there_is_an_error(missing: Row) -> None:
    with pytest.raises(TrainError, match=r"left side takes back a row that is not there: .*'_time'"):
        by_hand([[Row(ADD, 5, 1, 1.0)], [missing]], [[], []])


@pytest.mark.parametrize("cuts", [[0, 3], [0, 1, 2, 3], [0, 2, 3]])
def test_no_row_can_be_taken_back_twice(cuts: list[int]) -> None:
    row, others = Row(ADD, 5, 1, 1.0), [Row(ADD, 5, 1, 2.0)] * 3
    events = [Event(([], [row, *others])), Event(([], [row.of(D)])), Event(([], [row.of(D)]))]
    with pytest.raises(TrainError, match="right side"):
        run(Case((True, True), True, 10, 0, events), cuts)


def test_rows_that_went_are_swept_out() -> None:
    kernel = Case((True, True), True, 10, 0, []).kernel()
    n = 100
    rows = [Row(ADD, 5, 1, float(i)) for i in range(n)]
    events = [Event((rows, [])), Event(([row.of(D) for row in rows[:-1]], []))]
    case = Case((True, True), True, 10, 0, events)
    for at in (0, 1):
        _, delta = kernel.step(case.flow(0, at, at + 1), case.flow(1, at, at + 1))
    assert delta["left"].cut is not None
    assert delta["left"].cut.num_rows == n - 1
    assert [len(chunk) for side in kernel._sides for chunk in side.chunks] == [1]
