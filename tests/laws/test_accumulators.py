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
from borealis.kernels.accumulators import Rows, accumulator
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


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def rank(value: Any) -> tuple[bool, Any]:
    """NaN is larger than any number; strings go by their bytes."""
    if isinstance(value, str):
        return False, value.encode()
    return (True, 0) if is_nan(value) else (False, value)


def in_panes(function: str, kind: pa.DataType, result: pa.DataType, rows: list[Any], rng: Random) -> list[Any]:
    """The accumulator's answer per slot: rows are (slot, pane, time, value), folded in several goes, then combined."""
    acc = accumulator(function, kind, result)
    keys = sorted({(pane, slot) for slot, pane, _, _ in rows})
    stored = acc.start(len(keys))
    picks = function in ("first", "last")
    places = sorted(rng.randrange(len(rows) + 1) for _ in range(rng.randrange(4)))
    for start, stop in zip([0, *places], [*places, len(rows)], strict=True):
        some = [r for r in rows[start:stop] if picks or r[3] is not None]
        slot = np.array([keys.index((r[1], r[0])) for r in some], np.int64)
        stamps = np.array([r[2] for r in some], np.int64)
        stored = acc.fold(stored, Rows(pa.array([r[3] for r in some], kind), slot, stamps, len(keys)))
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


def check(function: str, kind: pa.DataType, result: pa.DataType, seed: int, twin: Callable[[list[Any]], Any]) -> None:
    rng = Random(seed)
    rows = random_rows(rng, kind)
    answers = in_panes(function, kind, result, rows, rng)
    for slot, answer in enumerate(answers):
        mine = [r for r in rows if r[0] == slot]
        expected = twin(mine)
        same = (is_nan(answer) and is_nan(expected)) or answer == expected
        assert same, f"{function}({kind}) of {mine} is {answer}, not {expected}"


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


@MANY
@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=40), SEEDS)
def test_a_decimal_sum_of_38_digits_is_exact_or_an_error(numbers: list[int], seed: int) -> None:
    rng = Random(seed)
    kind = pa.decimal128(38, 0)
    with localcontext() as context:
        context.prec = 100
        rows = [(0, rng.randrange(3), i, Decimal(n)) for i, n in enumerate(numbers)]
        if abs(sum(numbers)) < 10**38:
            try:
                assert in_panes("sum", kind, kind, rows, rng)[0] == Decimal(sum(numbers))
            except TrainError:
                # a sum on the way to it may be too large, as in Spark
                assert max(abs(n) for n in numbers) > 10**36
        else:
            with pytest.raises(TrainError):
                in_panes("sum", kind, kind, rows, rng)


@pytest.mark.parametrize("numbers", [[2**63 - 1, 1], [-(2**63), -1], [2**62] * 2, [2**63 - 1] * 5])
def test_a_bigint_sum_that_overflows_is_an_error(numbers: list[int]) -> None:
    for panes in (1, 2):
        rows = [(0, i % panes, i, n) for i, n in enumerate(numbers)]
        with pytest.raises(TrainError, match="overflow"):
            in_panes("sum", pa.int64(), pa.int64(), rows, Random(0))


@MANY
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6), SEEDS)
def test_a_bigint_sum_is_exact_or_an_error(numbers: list[int], seed: int) -> None:
    rng = Random(seed)
    rows = [(0, rng.randrange(2), i, n) for i, n in enumerate(numbers)]
    try:
        answer = in_panes("sum", pa.int64(), pa.int64(), rows, rng)[0]
    except TrainError:
        assert sum(abs(n) for n in numbers) >= 2**63
        return
    assert answer == (sum(numbers) if numbers else None)


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
