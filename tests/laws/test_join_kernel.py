"""Laws of the join kernel: it is its slow twin, however its input is cut; a copy that applies its deltas is it."""

from __future__ import annotations

import datetime as dt
import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.kernels import join, join_index
from borealis.kernels.flow import Bounds, Flow, merge_bounds
from borealis.kernels.join import JoinKernel
from borealis.state.delta import Change
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME

DOMAINS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, 0, 1, 2, -(2**63), 2**63 - 1],
    pa.int32(): [None, 0, 1, 2],
    pa.int8(): [-128, 0, 127],
    pa.bool_(): [None, True, False],
    pa.float64(): [None, math.nan, -math.nan, 0.0, -0.0, 1.5, math.inf],
    pa.float32(): [None, math.nan, 0.0, -0.0, 1.5],
    pa.string(): [
        None,
        "",
        "a",
        "ab",
        "Ελένη",
        "Ελένα",
        "名前",
        "نام",
        "a\0",
        "name-of-eight",
        "😀" * 40,
        "😀" * 40 + "b",
    ],
    pa.large_string(): ["", "ж", "жж"],
    pa.binary(): [None, b"", b"\0", b"\0\0", b"\xff" * 9],
    pa.decimal128(10, 2): [None, Decimal("0.00"), Decimal("-1.50"), Decimal("1.50")],
    pa.decimal128(38, 0): [None, Decimal(0), Decimal(2**64), Decimal(2**64 + 1), Decimal(-(2**64))],
    pa.date32(): [None, dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    pa.timestamp("us", "UTC"): [None, dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
    pa.null(): [None],
}
SIDES = ("left", "right")


@dataclass
class Row:
    """A tuple as the twin sees it."""

    cause: int
    sub: int
    time: int
    keys: list[Any]
    tag: int  # unique on its side


@dataclass
class Event:
    """What one cause brings to the two inputs: rows, then perhaps a boundary."""

    rows: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    bound: list[int | None] = field(default_factory=lambda: [None, None])


@dataclass
class Case:
    """An input of a join, which respects its boundaries."""

    types: list[pa.DataType]
    within: int
    events: list[Event]
    cuts: list[int]

    def schema(self, side: str) -> pa.Schema:
        fields = [pa.field(f"{side}_{i}", kind) for i, kind in enumerate(self.types)]
        return pa.schema([*fields, pa.field("unused", pa.int64()), pa.field("tag", pa.int64())])

    def kernel(self) -> JoinKernel:
        keys = [(f"left_{i}", f"right_{i}") for i in range(len(self.types))]
        columns = [("right", "tag", "r"), ("left", "tag", "l"), *[("left", key, key) for key, _ in keys]]
        return JoinKernel(self.schema("left"), self.schema("right"), keys, self.within, columns)

    def flow(self, side: int, start: int, end: int) -> Flow:
        rows = [row for event in self.events[start:end] for row in event.rows[side]]
        schema = self.schema(SIDES[side])
        columns = [pa.array([row.keys[i] for row in rows], kind) for i, kind in enumerate(self.types)]
        tags = pa.array([row.tag for row in rows], pa.int64())
        table = pa.Table.from_arrays([*columns, tags, tags], schema=schema)
        if len(rows) > 2:  # rows come in pieces, and as slices of something larger
            table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
        standing = self.boundary(side, start)
        raised = [
            (i, e.bound[side]) for i, e in enumerate(self.events) if start <= i < end and e.bound[side] is not None
        ]
        bounds = Bounds(standing, _ints(i for i, _ in raised), _ints(b for _, b in raised))
        return Flow(
            table, _ints(r.time for r in rows), _ints(r.cause for r in rows), _ints(r.sub for r in rows), bounds
        )

    def boundary(self, side: int, end: int) -> int:
        return max((e.bound[side] for e in self.events[:end] if e.bound[side] is not None), default=FIRST_TIME)

    def all_rows(self, side: int, end: int) -> list[Row]:
        return [row for event in self.events[:end] for row in event.rows[side]]


def _ints(values: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), np.int64)


def equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return False
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return bool(a == b)


def twin(case: Case) -> list[tuple[int, int, int, int, int]]:
    """(cause, sub, time, left tag, right tag) of every pair, by nested loops over everything that ever came."""
    pairs = []
    for left in case.all_rows(0, len(case.events)):
        for right in case.all_rows(1, len(case.events)):
            near = abs(left.time - right.time) < case.within
            if near and all(equal(a, b) for a, b in zip(left.keys, right.keys, strict=True)):
                pairs.append((max(left.cause, right.cause), left, right))
    pairs.sort(key=lambda p: (p[0], p[1].cause, p[1].sub, p[2].cause, p[2].sub))
    out, last, sub = [], -1, 0
    for cause, left, right in pairs:
        sub = sub + 1 if cause == last else 0
        last = cause
        out.append((cause, sub, max(left.time, right.time), left.tag, right.tag))
    return out


def twin_held(case: Case, side: int, end: int) -> list[tuple[int, int, int, int]]:
    """(cause, sub, time, tag) of the rows that may still match."""
    boundary = case.boundary(1 - side, end)
    return [
        (row.cause, row.sub, row.time, row.tag)
        for row in case.all_rows(side, end)
        if None not in row.keys and row.time + case.within > boundary and boundary != LAST_TIME
    ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    types = draw(st.lists(st.sampled_from(list(DOMAINS)), max_size=3))
    scale = draw(st.sampled_from([1, 1, 1_000, 2**58]))  # the last: times over nearly all of an int64
    within = draw(st.integers(1, 12)) * scale - draw(st.integers(0, min(scale - 1, 3)))
    keys = [draw(st.lists(st.sampled_from(DOMAINS[kind]), min_size=1, max_size=4)) for kind in types]
    low = [-30, -30]
    ended = [False, False]
    events = []
    tags = [0, 0]
    for cause in range(draw(st.integers(0, 25))):
        event = Event()
        for side in (0, 1):
            for sub in range(0 if ended[side] else draw(st.sampled_from([0, 0, 1, 1, 2, 4]))):
                time = draw(st.integers(low[side], min(low[side] + 15, 31))) * scale
                values = [draw(st.sampled_from(domain)) for domain in keys]
                event.rows[side].append(Row(cause, 3 * sub, time, values, tags[side]))
                tags[side] += 1
            if not ended[side] and draw(st.integers(0, 3)) == 0:
                if draw(st.integers(0, 15)) == 0:
                    ended[side], event.bound[side] = True, LAST_TIME
                elif low[side] < 31:
                    low[side] = draw(st.integers(low[side] + 1, min(low[side] + 20, 31)))
                    event.bound[side] = low[side] * scale
        events.append(event)
    cuts = draw(st.lists(st.integers(0, len(events)), max_size=8))
    return Case(types, within, events, [0, *sorted(cuts), len(events)])


def cramped() -> ExitStack:
    """Every limit so low that small cases run the code of large ones: all hashes collide, sorts fit into no word."""
    stack = ExitStack()
    limits = {
        join: {"CANDIDATES_AT_ONCE": 3, "ROWS_PER_TAKE": 5},
        join_index: {"WORD_BITS": 12, "SORT_PROBES_ABOVE": 1, "LONG_STRING_BYTES": 10},
    }
    for module, values in limits.items():
        for name, value in values.items():
            stack.enter_context(patch.object(module, name, value))
    stack.enter_context(patch.object(join_index, "_hash_words", lambda words, bits: np.zeros(len(words[0]), np.int64)))
    return stack


@given(case=cases(), tight=st.booleans())
@examples(150)
def test_any_cut_gives_what_the_twin_gives(case: Case, tight: bool) -> None:
    with cramped() if tight else ExitStack():
        kernel = case.kernel()
        got: list[tuple[int, ...]] = []
        bounds = []
        for start, end in zip(case.cuts, case.cuts[1:], strict=False):
            left, right = case.flow(0, start, end), case.flow(1, start, end)
            out, _ = kernel.step(left, right)
            assert out.rows.schema == kernel.schema
            assert out.rows.num_rows == len(out)
            tags = (out.rows["l"].to_pylist(), out.rows["r"].to_pylist())
            got += zip(out.cause.tolist(), out.sub.tolist(), out.time.tolist(), *tags, strict=True)
            bounds += list(zip(out.bounds.cause.tolist(), out.bounds.time.tolist(), strict=True))
    assert got == twin(case)
    whole = merge_bounds([case.flow(side, 0, len(case.events)).bounds for side in (0, 1)])
    assert bounds == list(zip(whole.cause.tolist(), whole.time.tolist(), strict=True))


@given(case=cases(), tight=st.booleans())
@examples(100)
def test_output_rows_carry_the_columns_of_their_pair(case: Case, tight: bool) -> None:
    with cramped() if tight else ExitStack():
        kernel = case.kernel()
        keys = {row.tag: row.keys for row in case.all_rows(0, len(case.events))}
        for start, end in zip(case.cuts, case.cuts[1:], strict=False):
            out, _ = kernel.step(case.flow(0, start, end), case.flow(1, start, end))
            for row in out.rows.to_pylist():
                for i, value in enumerate(keys[row["l"]]):
                    assert repr(row[f"left_{i}"]) == repr(pa.scalar(value, case.types[i]).as_py())


@given(case=cases(), tight=st.booleans())
@examples(100)
def test_a_copy_that_applies_the_deltas_is_the_kernel(case: Case, tight: bool) -> None:
    with cramped() if tight else ExitStack():
        runner, copy = case.kernel(), case.kernel()
        for start, end in zip(case.cuts, case.cuts[1:], strict=False):
            flows = case.flow(0, start, end), case.flow(1, start, end)
            before = runner.tables_now()
            loaded = case.kernel()
            loaded.apply({name: Change(table) for name, table in before.items()})
            out, delta = runner.step(*flows)
            again, delta_again = loaded.step(*flows)
            copy.apply(delta)
            now = runner.tables_now()
            assert _same(now, copy.tables_now())
            assert _same(now, loaded.tables_now())
            assert _bits(again.rows) == _bits(out.rows)
            assert (delta.keys(), [c.floor for c in delta.values()]) == (
                delta_again.keys(),
                [c.floor for c in delta_again.values()],
            )
            for change in delta.values():
                assert change.cut is None
                assert change.put.num_rows or change.floor is not None
            for name in set(now) - set(delta):
                assert _bits(before[name]) == _bits(now[name])
            for side, name in enumerate(SIDES):
                held = twin_held(case, side, end)
                columns = (now[name][c].to_pylist() for c in (CAUSE, SUB, TIME, "tag"))
                assert list(zip(*columns, strict=True)) == held


@given(case=cases(), seed=st.randoms(use_true_random=False))
@examples(50)
def test_a_base_loads_in_any_order_and_twice(case: Case, seed: Any) -> None:
    kernel, copy = case.kernel(), case.kernel()
    kernel.step(case.flow(0, 0, len(case.events)), case.flow(1, 0, len(case.events)))
    now = kernel.tables_now()
    for _ in range(2):
        for name, table in now.items():
            order = list(range(table.num_rows))
            seed.shuffle(order)
            copy.apply({name: Change(table.take(pa.array(order, pa.int64())))})
    assert _same(now, copy.tables_now())


def _bits(table: pa.Table) -> list[list[str]]:
    return [[repr(value) for value in column.to_pylist()] for column in table.columns]


def _same(a: dict[str, pa.Table], b: dict[str, pa.Table]) -> bool:
    return a.keys() == b.keys() and all(a[n].schema == b[n].schema and _bits(a[n]) == _bits(b[n]) for n in a)
