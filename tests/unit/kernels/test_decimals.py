"""Arithmetic on columns of DECIMALs against Python's own, number by number; that this is Spark's is a law."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_DOWN, ROUND_HALF_EVEN, ROUND_HALF_UP, Context, Decimal, localcontext
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.kernels import decimals

EXACT = Context(prec=200)
TRUTH: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "add": EXACT.add,
    "subtract": EXACT.subtract,
    "multiply": EXACT.multiply,
    "divide": EXACT.divide,
    "remainder": EXACT.remainder,
}


def made(rng: Random, precision: int, scale: int, rows: int) -> pa.Array:
    """Random numbers of every length; some are null."""
    digits = rng.choice([precision, min(precision, 9), min(precision, 18)])
    ints = [rng.randrange(-(10 ** rng.randint(0, digits)) + 1, 10 ** rng.randint(0, digits)) for _ in range(rows)]
    values = [None if rng.random() < 0.1 else EXACT.scaleb(Decimal(one), -scale) for one in ints]
    return pa.array(values, pa.decimal128(precision, scale))


def truth(function: str, a: Any, b: Any, type: pa.Decimal128Type) -> Decimal | None:
    if a is None or b is None:
        return None
    found = TRUTH[function](a, b).quantize(Decimal(1).scaleb(-type.scale, EXACT), ROUND_HALF_UP, EXACT)
    if abs(found) >= 10 ** (type.precision - type.scale):
        raise OverflowError
    return found


@given(seed=st.integers(0, 2**32 - 1))
def test_a_column_is_its_numbers(seed: int) -> None:
    rng = Random(seed)
    kinds = []
    for _ in range(2):
        precision = rng.choice([1, 5, 10, 18, 19, 20, 38])
        kinds.append((precision, rng.randint(0, precision)))
    function = rng.choice(sorted(TRUTH))
    type = pa.decimal128(*decimals.bounded(*decimals.result(function, *kinds)))
    rows = rng.choice([0, 1, 20])
    a, b = (made(rng, *kind, rows + 2).slice(1, rows) for kind in kinds)
    if function in ("divide", "remainder"):
        b = pa.array([None if one == 0 else one for one in b.to_pylist()], b.type)
    left: Any = rng.choice(
        [a, pa.chunked_array([a.slice(0, rows // 2), a.slice(rows // 2)]), made(rng, *kinds[0], 1)[0]]
    )
    lefts = left.to_pylist() if not isinstance(left, pa.Scalar) else [left.as_py()] * rows
    try:
        wanted = [truth(function, x, y, type) for x, y in zip(lefts, b.to_pylist(), strict=True)]
    except OverflowError:
        with pytest.raises(OverflowError):
            getattr(decimals, function)(left, b, type)
    else:
        assert getattr(decimals, function)(left, b, type).to_pylist() == wanted


@given(seed=st.integers(0, 2**32 - 1))
def test_a_column_is_rounded_as_its_numbers_are(seed: int) -> None:
    rng = Random(seed)
    precision = rng.choice([2, 10, 18, 20, 37])
    scale = rng.randint(0, precision)
    values = made(rng, precision, scale, 20)
    digits = rng.randint(-5, scale)
    even = rng.random() < 0.5
    type = pa.decimal128(38, max(0, digits))
    with localcontext(EXACT):
        unit = Decimal(1).scaleb(-digits)
        wanted = [
            None
            if one is None
            else (one / unit).quantize(Decimal(1), ROUND_HALF_EVEN if even else ROUND_HALF_UP) * unit
            for one in values.to_pylist()
        ]
        whole = [None if one is None else one.quantize(Decimal(1), ROUND_DOWN) for one in values.to_pylist()]
        below = [None if x is None else n - 1 if x < n else n for x, n in zip(values.to_pylist(), whole, strict=True)]
        above = [None if x is None else n + 1 if x > n else n for x, n in zip(values.to_pylist(), whole, strict=True)]
    if all(one is None or abs(one) < 10 ** (38 - type.scale) for one in wanted):
        assert decimals.rounded(values, digits, type, even).to_pylist() == wanted
    assert decimals.to_whole(values, pa.decimal128(38, 0), 1).to_pylist() == below
    assert decimals.to_whole(values, pa.decimal128(38, 0), -1).to_pylist() == above


def test_a_zero_raises_unless_what_it_divides_is_null() -> None:
    a = pa.array([None, Decimal("1.00")], pa.decimal128(5, 2))
    b = pa.array([Decimal(0), Decimal(3)], pa.decimal128(5, 2))
    type = pa.decimal128(13, 8)
    assert decimals.divide(a, b, type).to_pylist() == [None, Decimal("0.33333333")]
    assert decimals.int_divide(a, b, pa.int64()).to_pylist() == [None, 0]
    for function in (decimals.divide, decimals.remainder):
        with pytest.raises(ZeroDivisionError):
            function(a, b.take(pa.array([1, 0])), type)
        assert len(function(a.slice(0, 0), pa.scalar(Decimal(0), b.type), type)) == 0
