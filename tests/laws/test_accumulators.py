"""Laws of the accumulators: each is its slow twin in Python, however rows fall into folds and panes."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, localcontext
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness import examples
from hypothesis import given
from hypothesis import strategies as st

from borealis.errors import TrainError
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.accumulators import accumulator, seen
from borealis.kernels.columns import concat, take

SEEDS = st.integers(0, 2**32 - 1)
MANY = examples(150)
SLOTS = 3

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 127, 0, 1],
    pa.int64(): [0, 1, -1, 2**40, -(2**50)],
    pa.float32(): [0.5, -1.25, math.nan, math.inf, -0.0, 0.0],
    pa.float64(): [0.1, 0.2, 1e16, -1e16, math.nan, math.inf, -math.inf, 0.0, -0.0],
    pa.string(): ["", "a", "b", "é", "z", "名", "😀"],
    pa.binary(): [b"", b"\x00", b"\xff"],
    pa.bool_(): [True, False],
    pa.date32(): [dt.date(1969, 12, 31), dt.date(2024, 1, 1)],
    pa.timestamp("us", "UTC"): [dt.datetime(1960, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)],
    pa.decimal128(10, 2): [Decimal("1.50"), Decimal("-99999999.99"), Decimal("0.01")],
    pa.decimal128(38, 0): [Decimal(10**37), Decimal(-(10**37)), Decimal(3)],
}


PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
VALUES |= {
    PAIR: [{"a": a, "b": b} for a in (None, 1, 2) for b in (None, "", "é")],
    pa.list_(pa.float64()): [[], [math.nan], [1.0], [1.0, None], [1.0, -1.0], [None], [math.inf, 2.0]],
    pa.list_(PAIR): [[], [{"a": 1, "b": "x"}], [{"a": 1, "b": None}], [None], [{"a": 1, "b": "x"}] * 2],
    pa.null(): [None],
}


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def rank(value: Any) -> tuple[Any, ...]:
    """Null is the least, NaN above all numbers; strings go by their bytes, structs by fields, arrays by elements."""
    if value is None:
        return (0,)
    if isinstance(value, str):
        return 1, value.encode()
    if isinstance(value, dict):
        return 1, tuple(rank(v) for v in value.values())
    if isinstance(value, list):
        return 1, tuple(rank(v) for v in value)
    return (2,) if is_nan(value) else (1, value)


def same(a: Any, b: Any) -> bool:
    """Equal, and NaN is NaN."""
    return rank(a) == rank(b) and type(a) is type(b)


def in_panes(
    function: str,
    kind: pa.DataType,
    result: pa.DataType,
    rows: list[Any],
    rng: Random,
    *,
    by: pa.DataType | None = None,
    parameters: tuple[float, ...] = (),
) -> list[Any]:
    """The accumulator's answer per slot: rows are (slot, pane, time, value), folded in several goes, then combined.

    With `by`, values are pairs: of these and of that type.
    """
    kinds = [kind] if by is None else [kind, by]
    call = Call(function, "x", result, () if by is None else ("y",), parameters)
    acc = accumulator(call, pa.schema(list(zip("xy", kinds, strict=False))))
    keys = sorted({(pane, slot) for slot, pane, _, _ in rows})
    stored = acc.start(len(keys))
    places = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(4)))
    for start, stop in zip([0, *places], [*places, len(rows)], strict=True):
        some = rows[start:stop]
        slot = np.array([keys.index((r[1], r[0])) for r in some], np.int64)
        stamps = np.array([r[2] for r in some], np.int64)
        values = [[r[3] for r in some]] if by is None else [[r[3][i] for r in some] for i in (0, 1)]
        columns = [pa.array(v, of) for v, of in zip(values, kinds, strict=True)]
        stored = acc.fold(stored, seen(acc, columns, slot, stamps, len(keys)))
    # panes may be stored in several parts, and taken from them
    if keys:
        half = len(keys) // 2
        parts = [take(stored, np.arange(half)), take(stored, np.arange(half, len(keys)))]
        stored = concat(parts)
    slots = np.array([slot for _, slot in keys], np.int64)
    answer = acc.result(acc.combine(stored, slots, SLOTS))
    assert answer.type == result
    return answer.to_pylist()


def random_rows(rng: Random, kind: pa.DataType, most: int = 20) -> list[Any]:
    """(slot, pane, time, value) in input order; times are distinct and lie in their panes."""
    n = rng.randrange(most)
    stamps = rng.sample(range(40), n)
    return [
        (rng.randrange(SLOTS), t // 10, t, None if rng.random() < 0.2 else rng.choice(VALUES[kind])) for t in stamps
    ]


def check(
    function: str,
    kind: pa.DataType,
    result: pa.DataType,
    seed: int,
    twin: Callable[[list[Any]], Any],
    parameters: tuple[float, ...] = (),
) -> None:
    rng = Random(seed)
    rows = random_rows(rng, kind)
    answers = in_panes(function, kind, result, rows, rng, parameters=parameters)
    for slot, answer in enumerate(answers):
        mine = [r for r in rows if r[0] == slot]
        expected = twin(mine)
        assert same(answer, expected), f"{function}({kind}) of {mine} is {answer}, not {expected}"


@MANY
@given(SEEDS, st.sampled_from(list(VALUES)))
def test_counts_are_counts(seed: int, kind: pa.DataType) -> None:
    check("count", kind, pa.int64(), seed, lambda rows: sum(v is not None for *_, v in rows))


@MANY
@given(SEEDS, st.sampled_from(list(VALUES)), st.sampled_from(["min", "max"]))
def test_extremes_are_extremes(seed: int, kind: pa.DataType, function: str) -> None:
    pick = min if function == "min" else max
    check(function, kind, kind, seed, lambda rows: pick((v for *_, v in rows if v is not None), key=rank, default=None))


@MANY
@given(SEEDS, st.sampled_from(list(VALUES)), st.sampled_from(["first", "last"]))
def test_picks_go_by_time_and_take_nulls(seed: int, kind: pa.DataType, function: str) -> None:
    pick = min if function == "first" else max
    check(function, kind, kind, seed, lambda rows: pick(rows, key=lambda r: r[2])[3] if rows else None)


@MANY
@given(SEEDS, st.sampled_from([pa.int8(), pa.int64()]))
def test_integer_sums_are_exact(seed: int, kind: pa.DataType) -> None:
    def total(rows: list[Any]) -> Any:
        values = [v for *_, v in rows if v is not None]
        return sum(values) if values else None

    check("sum", kind, pa.int64(), seed, total)


@MANY
@given(SEEDS, st.sampled_from([pa.float32(), pa.float64()]), st.sampled_from(["sum", "avg"]))
def test_float_sums_fold_rows_into_panes_and_panes_into_windows(seed: int, kind: pa.DataType, function: str) -> None:
    def total(rows: list[Any]) -> Any:
        panes: dict[int, float] = {}
        count = 0
        for _, pane, _, value in rows:
            if value is not None:
                panes[pane] = panes.get(pane, 0.0) + float(np.float32(value) if kind == pa.float32() else value)
                count += 1
        out = 0.0
        for pane in sorted(panes):
            out += panes[pane]
        return None if not count else out / count if function == "avg" else out

    check(function, kind, pa.float64(), seed, total)


@MANY
@given(SEEDS)
def test_decimal_sums_are_exact_and_averages_round_half_up(seed: int) -> None:
    kind = pa.decimal128(10, 2)

    def values(rows: list[Any]) -> list[Decimal]:
        return [v for *_, v in rows if v is not None]

    def average(rows: list[Any]) -> Any:
        with localcontext() as context:
            context.prec = 100
            some = values(rows)
            return (sum(some) / len(some)).quantize(Decimal("1e-6"), ROUND_HALF_UP) if some else None

    check("sum", kind, pa.decimal128(20, 2), seed, lambda rows: sum(values(rows)) if values(rows) else None)
    check("avg", kind, pa.decimal128(14, 6), seed, average)


EDGES = {
    pa.int64(): [2**63 - 1, -(2**63), 2**62, -(2**62), 1, -1, 0, 2**32, -(2**32) - 1, 2**63 - 2],
    pa.decimal128(18, 0): [10**18 - 1, 1 - 10**18, 1, -1, 2**59],
    pa.decimal128(38, 0): [10**38 - 1, 1 - 10**38, 1, -1, 2**64, -(2**64), 2**63, 2**126, -(2**126), 10**37],
}


@MANY
@given(SEEDS, st.sampled_from(list(EDGES)))
def test_a_sum_overflows_if_its_last_value_does_whatever_it_was_on_the_way(seed: int, kind: pa.DataType) -> None:
    rng = Random(seed)
    limits = EDGES[kind] if rng.random() < 0.8 else [rng.randint(min(EDGES[kind]), max(EDGES[kind])) for _ in range(9)]
    numbers = [rng.choice(limits) for _ in range(rng.randint(1, 30))]
    numbers += rng.choice([[], [-n for n in numbers if -n in limits]])  # often there and back again
    rng.shuffle(numbers)
    rows = [(0, rng.randrange(3), i, n if kind == pa.int64() else Decimal(n)) for i, n in enumerate(numbers)]
    result = kind if kind == pa.int64() else pa.decimal128(min(38, kind.precision + 10), 0)
    top = 2**63 if kind == pa.int64() else 10**result.precision
    if -top + (kind != pa.int64()) <= sum(numbers) < top:
        assert in_panes("sum", kind, result, rows, rng)[0] == sum(numbers)
    else:
        with pytest.raises(TrainError, match="sum overflows"):
            in_panes("sum", kind, result, rows, rng)


@MANY
@given(SEEDS, st.sampled_from([0.0, 1e6, -1e9, 1e12]), st.sampled_from([1.0, 1e-3]))
def test_stddev_keeps_its_digits_far_from_zero(seed: int, offset: float, spread: float) -> None:
    rng = Random(seed)
    n = rng.randrange(0, 30)
    values = [offset + spread * rng.gauss(0, 1) for _ in range(n)]
    rows = [(0, rng.randrange(3), i, v) for i, v in enumerate(values)]
    answer = in_panes("stddev", pa.float64(), pa.float64(), rows, rng)[0]
    if n < 2:
        assert answer is None
        return
    exact = float(statistics.stdev([Decimal(v) for v in values]))
    assert math.isclose(answer, exact, rel_tol=1e-6, abs_tol=1e-12)


@MANY
@given(SEEDS)
def test_stddev_of_equal_values_is_zero(seed: int) -> None:
    rng = Random(seed)
    value = rng.choice([0.1, 1e15, -3.3])
    rows = [(0, rng.randrange(3), i, value) for i in range(rng.randrange(2, 9))]
    assert in_panes("stddev", pa.float64(), pa.float64(), rows, rng)[0] == 0.0


# -- functions that compare, that keep values, that take two arguments

SOME = examples(60)
EVERY = st.sampled_from(list(VALUES))


def seen_values(rows: list[Any]) -> list[Any]:
    return [v for *_, v in rows if v is not None]


def distinct(rows: list[Any]) -> list[Any]:
    """Each value once, the least first; zero has no sign."""
    found = {rank(v): v + 0.0 if isinstance(v, float) else v for v in reversed(seen_values(rows))}
    return [found[key] for key in sorted(found)]


@SOME
@given(SEEDS, EVERY)
def test_distinct_values_are_those_that_differ(seed: int, kind: pa.DataType) -> None:
    check("count_distinct", kind, pa.int64(), seed, lambda rows: len(distinct(rows)))
    check("collect_set", kind, pa.list_(kind), seed, distinct)

    def mode(rows: list[Any]) -> Any:
        ranks = [rank(v) for v in seen_values(rows)]
        return max(distinct(rows), key=lambda v: ranks.count(rank(v)), default=None)  # the first, which is the least

    check("mode", kind, kind, seed, mode)


@SOME
@given(SEEDS, EVERY)
def test_collected_values_are_in_order_of_time(seed: int, kind: pa.DataType) -> None:
    def collected(rows: list[Any]) -> Any:
        return seen_values(sorted(rows, key=lambda r: r[2]))

    element = pa.field("element", kind, nullable=pa.types.is_null(kind))
    check("collect_list", kind, pa.list_(element), seed, collected)


@SOME
@given(SEEDS, st.sampled_from([pa.int8(), pa.float64(), pa.decimal128(10, 2)]))
def test_percentiles_lie_between_the_nearest_ranks(seed: int, kind: pa.DataType) -> None:
    def percentile(rows: list[Any], p: float) -> Any:
        values = [float(v) for v in sorted(seen_values(rows), key=rank)]
        if not values:
            return None
        place = (len(values) - 1) * p
        low, high = values[math.floor(place)], values[math.ceil(place)]
        share = place - math.floor(place)
        return low if not share or low == high else (math.ceil(place) - place) * low + share * high

    some = (0.0, 0.3, 0.5, 1.0)
    check("percentile", kind, pa.float64(), seed, lambda rows: percentile(rows, 0.5), (0.5,))
    several = pa.list_(pa.field("element", pa.float64(), nullable=False))
    check(
        "percentile", kind, several, seed, lambda r: [percentile(r, p) for p in some] if seen_values(r) else None, some
    )


@SOME
@given(SEEDS, st.sampled_from(["bool_and", "bool_or"]))
def test_conditions_hold_for_all_or_for_some(seed: int, function: str) -> None:
    every = all if function == "bool_and" else any
    check(function, pa.bool_(), pa.bool_(), seed, lambda rows: every(seen_values(rows)) if seen_values(rows) else None)


def random_pairs(rng: Random, kind: pa.DataType, by: pa.DataType) -> list[Any]:
    others = VALUES[by][: rng.choice([1, 2, 9])]
    rows = random_rows(rng, kind)
    return [(*r[:3], (r[3], None if rng.random() < 0.2 else rng.choice(others))) for r in rows]


@SOME
@given(SEEDS, EVERY, EVERY, st.sampled_from(["max_by", "min_by"]))
def test_the_best_is_beside_the_greatest_or_the_least(seed: int, kind: pa.DataType, by: pa.DataType, name: str) -> None:
    rng = Random(seed)
    rows = random_pairs(rng, kind, by)
    pick = max if name == "max_by" else min
    for slot, answer in enumerate(in_panes(name, kind, kind, rows, rng, by=by)):
        mine = [r for r in rows if r[0] == slot and r[3][1] is not None]
        best = pick(mine, key=lambda r: (rank(r[3][1]), r[2]), default=None)
        assert same(answer, None if best is None else best[3][0])


@SOME
@given(SEEDS, st.sampled_from([0.0, 1e6, -1e9]))
def test_variances_and_correlations_keep_their_digits_far_from_zero(seed: int, offset: float) -> None:
    rng = Random(seed)
    pairs = [(offset + rng.gauss(0, 1), rng.gauss(0, 3) - offset) for _ in range(rng.randrange(12))]
    rows = [(0, rng.randrange(3), i, pair) for i, pair in enumerate(pairs)]
    n, exact = len(pairs), [[Decimal(v) for v in side] for side in zip(*pairs, strict=True)]
    if n:
        means = [sum(side) / n for side in exact]
        xx, yy, xy = (
            float(sum((a - means[i]) * (b - means[j]) for a, b in zip(exact[i], exact[j], strict=True)))
            for i, j in ((0, 0), (1, 1), (0, 1))
        )
    expected = {"covar_pop": xy / n if n else None, "covar_samp": xy / (n - 1) if n > 1 else None}
    expected["corr"] = xy / math.sqrt(xx * yy) if n > 1 else None
    for function, value in expected.items():
        answer = in_panes(function, pa.float64(), pa.float64(), rows, rng, by=pa.float64())[0]
        assert answer == value if value is None else math.isclose(answer, value, rel_tol=1e-5, abs_tol=1e-6)
    variances = {"var_pop": xx / n if n else None, "var_samp": xx / (n - 1) if n > 1 else None}
    variances["stddev_pop"] = math.sqrt(xx / n) if n else None
    lone = [(*r[:3], r[3][0]) for r in rows]
    for function, value in variances.items():
        answer = in_panes(function, pa.float64(), pa.float64(), lone, rng)[0]
        assert answer == value if value is None else math.isclose(answer, value, rel_tol=1e-5, abs_tol=1e-9)


def test_nothing_correlates_with_what_does_not_vary() -> None:
    rows = [(0, i % 2, i, (0.1, float(i))) for i in range(5)]
    assert in_panes("corr", pa.float64(), pa.float64(), rows, Random(0), by=pa.float64())[0] is None
