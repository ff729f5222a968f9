"""Stories of signed rows for aggregates: rows that come, late or not, are replaced and taken back, and boundaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.step import Kernel
from borealis.state.delta import Delta, merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND, Kind

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


def run(made: Kernel, story: Story, ends: list[int]) -> tuple[list[tuple[Any, ...]], list[Delta]]:
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


def left_after(out: list[tuple[Any, ...]], upto: int) -> Counter[tuple[Any, ...]]:
    bag: Counter[tuple[Any, ...]] = Counter()
    for i, (cause, kind, *row) in enumerate(out):
        if cause > upto:
            break
        adds = kind in (Kind.INSERTION, Kind.UPDATE_AFTER)
        bag[tuple(row)] += 1 if adds else -1
        assert bag[tuple(row)] >= 0, f"taken back before it was given: {row}"
        if kind == Kind.UPDATE_BEFORE:
            assert out[i + 1][:2] == (cause, Kind.UPDATE_AFTER)
            assert list(out[i + 1][2:]) != row
    return +bag


def some_calls(rng: Random, calls: list[Call]) -> list[Call]:
    return rng.sample(calls, rng.choice([1, 2, 4]))


def check_copies(rng: Random, make: Callable[[], Kernel], story: Story, causes: int) -> None:
    """Cuts change nothing, and another copy that gets the deltas holds the same and goes on the same way."""
    at_once, _ = run(make(), story, [causes])
    ends = cuts(rng, causes)
    runs = make()
    out, deltas = run(runs, story, ends)
    assert out == at_once
    # some deltas merged, some trains run by itself, some known twice
    copy, start, standing, i = make(), 0, FIRST_TIME, 0
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
    loaded = make()
    loaded.apply(merge_deltas(copy.tables, deltas, whole=True))
    assert same_tables(loaded, runs)


def same_tables(one: Kernel, other: Kernel) -> bool:
    mine, theirs = one.tables_now(), other.tables_now()
    assert mine.keys() == theirs.keys() == {spec.name for spec in one.tables}
    return all(repr(mine[name].to_pydict()) == repr(theirs[name].to_pydict()) for name in mine)
