"""Windows over rows that are taken back or come late: what all changes leave is what the rows left would give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from borealis.errors import TrainError
from borealis.kernels import revised_panes, revised_windows
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.revised_panes import RevisedPanes
from borealis.kernels.revised_windows import make
from borealis.kernels.step import Step, schema_text
from borealis.state.delta import Delta, merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME, Kind

SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("f", pa.float64()),
        ("n", pa.int64()),
        ("d", pa.decimal128(30, 2)),
        ("i", pa.int64()),
        ("e", pa.decimal128(10, 1)),
        ("other", pa.int64()),
    ]
)
SIGNED = SCHEMA.append(pa.field(KIND, pa.int8()))
FLOATS = [None, 0.0, -0.0, 0.1, 0.2, 0.3, 1e16, -1e16, 1 / 3, float("nan")]
INTS = [None, 0, 1, -1, 5, 2**62, -(2**62)]
DECIMALS = [None, Decimal("0.01"), Decimal("-1.50"), Decimal(10) ** 27, -(Decimal(10) ** 27)]
DOUBLE, LONG = pa.float64(), pa.int64()
FOLDED = [
    Call("count", None, LONG),
    Call("count", "f", LONG),
    Call("sum", "f", DOUBLE),
    Call("avg", "n", DOUBLE),
    Call("min", "f", DOUBLE),
    Call("max", "d", pa.decimal128(30, 2)),
    Call("first", "f", DOUBLE),
    Call("last", "n", LONG),
    Call("stddev", "f", DOUBLE),
    Call("corr", "f", DOUBLE, ("n",)),
    Call("collect_list", "f", pa.list_(DOUBLE)),
    Call("percentile", "f", DOUBLE, (), (0.5,)),
    Call("count_distinct", "n", LONG),
    Call("mode", "n", LONG),
    Call("max_by", "f", DOUBLE, ("n",)),
]
UNDONE = [
    Call("count", None, LONG),
    Call("count", "f", LONG),
    Call("sum", "d", pa.decimal128(38, 2)),
    Call("avg", "d", pa.decimal128(34, 6)),
    Call("sum", "i", LONG),
    Call("sum", "e", pa.decimal128(20, 1)),
]


@dataclass
class Row:
    """A row as it comes: at a cause, with a sign."""

    time: int
    values: tuple[Any, ...]
    kind: Kind = Kind.INSERTION
    cause: int = 0
    sub: int = 0

    def equals(self, other: Row) -> bool:
        return self.time == other.time and repr(self.values) == repr(other.values)


@dataclass
class Story:
    """What comes, cause by cause: rows, and perhaps a boundary behind them."""

    rows: list[list[Row]] = field(default_factory=list)
    bounds: list[int | None] = field(default_factory=list)

    def flow(self, start: int, end: int, standing: int) -> Flow:
        return flow_of([row for rows in self.rows[start:end] for row in rows], self._bounds(start, end, standing))

    def _bounds(self, start: int, end: int, standing: int) -> Bounds:
        some = [(cause, self.bounds[cause]) for cause in range(start, end) if self.bounds[cause] is not None]
        return Bounds(standing, *(np.array([b[i] for b in some], np.int64) for i in (0, 1)))

    def live(self, upto: int) -> list[Row]:
        """The rows left after this cause: the newest equal one goes."""
        left: list[Row] = []
        for row in (row for rows in self.rows[: upto + 1] for row in rows):
            if row.kind in (Kind.INSERTION, Kind.UPDATE_AFTER):
                left.append(row)
            else:
                del left[max(i for i, one in enumerate(left) if one.equals(row))]
        return left


def flow_of(rows: list[Row], bounds: Bounds, signed: bool = True) -> Flow:
    columns = [[row.values[i] for row in rows] for i in range(len(SCHEMA))] + [[int(row.kind) for row in rows]]
    schema = SIGNED if signed else SCHEMA
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=False)], schema=schema)
    time, cause, sub = (np.array([getattr(row, name) for row in rows], np.int64) for name in ("time", "cause", "sub"))
    return Flow(table, time, cause, sub, bounds)


def random_story(rng: Random, causes: int, history: int) -> Story:
    story, boundary = Story(), rng.choice([0, -37, 10**15])
    base, left = boundary, []
    known = FIRST_TIME
    for cause in range(causes):
        rows: list[Row] = []

        def add(time: int, values: tuple[Any, ...], kind: Kind, cause: int = cause, rows: list[Row] = rows) -> None:
            row = Row(time, values, kind, cause, len(rows))
            rows.append(row)
            if kind in (Kind.INSERTION, Kind.UPDATE_AFTER):
                left.append(row)
            else:
                del left[max(i for i, one in enumerate(left) if one.equals(row))]

        for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
            low = max(known, base - history) if known == FIRST_TIME else known - history
            time = rng.randrange(max(low, base - history), base + 12)
            old = [row for row in left if row.time >= low]
            choice = rng.random()
            if old and choice < 0.45:
                one = rng.choice(old[-6:] if rng.random() < 0.5 else old)
                if choice < 0.2:
                    add(one.time, one.values, Kind.DELETION)
                else:
                    add(one.time, one.values, Kind.UPDATE_BEFORE)
                    new = one.time if rng.random() < 0.6 else time
                    add(new, random_values(rng), Kind.UPDATE_AFTER)
            else:
                add(time, random_values(rng), Kind.INSERTION)
        bound = None
        if rng.random() < 0.3:
            base += rng.choice([0, 1, 2, 5, 5, 30])
            if base > known:
                bound = known = base
        story.rows.append(rows)
        story.bounds.append(bound)
    return story


def random_values(rng: Random) -> tuple[Any, ...]:
    key = rng.choice(["a", "a", "b", None])
    return (key, rng.choice(FLOATS), rng.choice(INTS), rng.choice(DECIMALS), *random_sums(rng), rng.randrange(2))


def random_sums(rng: Random) -> tuple[Any, ...]:
    return rng.choice([None, 1, -7, 2**40]), rng.choice([None, Decimal("0.1"), Decimal("-12345.6")])


def cuts(rng: Random, causes: int) -> list[int]:
    """Where trains end."""
    return sorted({*rng.sample(range(1, causes), min(causes - 1, rng.choice([0, 1, 3, causes]))), causes})


def kernel(size: int, slide: int, history: int, calls: list[Call]) -> RevisedPanes:
    def written(call: Call) -> tuple[Any, ...]:
        return call.function, call.columns, call.parameters

    results = pa.schema([(f"__a{i}", call.result) for i, call in enumerate(calls)])
    options = {"schema": schema_text(SCHEMA), "by": ["k"], "size": size, "slide": slide, "history": history}
    options["calls"] = [written(call) for call in calls]
    return make(Step("revised_windows", "out", ["in"], "box", False, schema_text(results), options))


def run(made: RevisedPanes, story: Story, ends: list[int]) -> tuple[list[tuple[Any, ...]], list[Delta]]:
    """All that comes out, as (cause, kind, time, row as text), and what each train changed."""
    out, deltas, start, standing = [], [], 0, FIRST_TIME
    for end in ends:
        flow = story.flow(start, end, standing)
        given, delta = made.step(flow)
        assert given.rows.schema.names[-1] == KIND
        assert given.sub.tolist() == [given.cause.tolist()[:i].count(c) for i, c in enumerate(given.cause.tolist())]
        assert np.all(given.cause[1:] >= given.cause[:-1])
        out += told(given)
        deltas.append(unpack(pack(delta)))
        start, standing = end, flow.bounds.final
    return out, deltas


def told(out: Flow) -> list[tuple[Any, ...]]:
    kinds = out.rows[KIND].to_pylist() if KIND in out.rows.column_names else [0] * len(out)
    plain = [n for n in out.rows.column_names if n != KIND]
    rows = [repr(row) for row in out.rows.select(plain).to_pylist()]
    return list(zip(out.cause.tolist(), kinds, out.time.tolist(), rows, strict=True))


def expected(story: Story, upto: int, size: int, slide: int, calls: list[Call]) -> Counter[tuple[Any, ...]]:
    """What the plain box gives for the rows left after a cause, up to the boundary that stands then."""
    bounds = [b for b in story.bounds[: upto + 1] if b is not None]
    if not bounds:
        return Counter()
    promised = Bounds(FIRST_TIME, np.array([upto]), np.array(bounds[-1:]))
    rows = story.live(upto)
    out, _ = AggregateKernel(SCHEMA, ["k"], size, slide, calls).step(flow_of(rows, promised, signed=False))
    return Counter(one[2:] for one in told(out))


def left_after(out: list[tuple[Any, ...]], upto: int) -> Counter[tuple[Any, ...]]:
    bag: Counter[tuple[Any, ...]] = Counter()
    for i, (cause, kind, *row) in enumerate(out):
        if cause > upto:
            break
        adds = kind in (Kind.INSERTION, Kind.UPDATE_AFTER)
        bag[tuple(row)] += 1 if adds else -1
        assert bag[tuple(row)] >= 0, f"taken back before it was given: {row}"
        if kind == Kind.UPDATE_BEFORE:
            assert out[i + 1][:3] == (cause, Kind.UPDATE_AFTER, row[0])
            assert out[i + 1][3] != row[1]
    return +bag


def some_calls(rng: Random, calls: list[Call]) -> list[Call]:
    return rng.sample(calls, rng.choice([1, 2, 4]))


@pytest.fixture(autouse=True, scope="module")
def small_parts() -> Iterator[None]:
    """So that few rows already lie in several parts, and are folded in several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revised_panes, "PART_ENTRIES", 4)
        for module in (revised_panes, revised_windows):
            patch.setattr(module, "FOLDED_AT_ONCE", 16)
        yield


shapes = {
    "seed": st.integers(0, 2**32 - 1),
    "causes": st.integers(2, 40),
    "size": st.integers(1, 12),
    "slide": st.integers(1, 12),
    "history": st.integers(0, 25),
}


@pytest.mark.parametrize("calls", [FOLDED, UNDONE], ids=["folded", "undone"])
@settings(max_examples=60, deadline=None)
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
@settings(max_examples=60, deadline=None)
@given(**shapes)
def test_cuts_change_nothing_and_deltas_say_all(
    calls: list[Call], seed: int, causes: int, size: int, slide: int, history: int
) -> None:
    rng = Random(seed)
    story, chosen = random_story(rng, causes, history), some_calls(rng, calls)
    at_once, _ = run(kernel(size, slide, history, chosen), story, [causes])
    ends = cuts(rng, causes)
    runs = kernel(size, slide, history, chosen)
    out, deltas = run(runs, story, ends)
    assert out == at_once
    # another copy that gets the deltas, some of them merged, some trains run by itself, some known twice
    copy, start, standing, i = kernel(size, slide, history, chosen), 0, FIRST_TIME, 0
    while i < len(ends):
        if rng.random() < 0.4:
            flow = story.flow(start, ends[i], standing)
            given, delta = copy.step(flow)
            assert told(given) == [one for one in out if start <= one[0] < ends[i]]
            assert pack(delta) == pack(deltas[i])
            upto = i + 1
        else:
            upto = rng.randrange(i + 1, len(ends) + 1)
            copy.apply(merge_deltas(copy.tables, deltas[i:upto], whole=False))
            if rng.random() < 0.3:
                copy.apply(merge_deltas(copy.tables, deltas[i:upto], whole=False))
        standing = story.flow(start, ends[upto - 1], standing).bounds.final
        start, i = ends[upto - 1], upto
    assert same_tables(copy, runs)
    loaded = kernel(size, slide, history, chosen)
    loaded.apply(merge_deltas(copy.tables, deltas, whole=True))
    assert same_tables(loaded, runs)


def same_tables(one: RevisedPanes, other: RevisedPanes) -> bool:
    mine, theirs = one.tables_now(), other.tables_now()
    assert mine.keys() == theirs.keys() == {spec.name for spec in one.tables}
    return all(repr(mine[name].to_pydict()) == repr(theirs[name].to_pydict()) for name in mine)


@pytest.mark.parametrize("calls", [FOLDED, UNDONE], ids=["folded", "undone"])
@settings(max_examples=25, deadline=None)
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


def test_a_row_that_never_came_is_a_defect_upstream() -> None:
    made = kernel(10, 10, 20, [Call("sum", "f", DOUBLE)])
    made.step(flow_of([Row(3, ("a", 1.0, 1, None, None, None, 0))], Bounds()))
    with pytest.raises(TrainError, match=r"never came: group .'a'., time 3, cause 1"):
        made.step(flow_of([Row(3, ("a", 2.0, 1, None, None, None, 0), Kind.DELETION, 1)], Bounds()))


def test_a_row_behind_the_history_is_a_defect_upstream() -> None:
    made = kernel(10, 10, 20, [Call("sum", "f", DOUBLE)])
    made.step(flow_of([], Bounds(FIRST_TIME, np.array([0]), np.array([100]))))
    with pytest.raises(TrainError, match="21 us behind the boundary"):
        made.step(flow_of([Row(79, ("a", 1.0, 1, None, None, None, 0), cause=1)], Bounds(100)))


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
