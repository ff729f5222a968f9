"""round, bround, floor, ceil and sign, as Spark computes them.

DOUBLE and FLOAT are rounded to whole numbers only: Spark rounds the text that Java writes for them, and its last digits
differ between versions of Java. A number that lies half way between two whole ones is always written out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from borealis.kernels import decimals
from borealis.kernels.casts import decimal_of
from borealis.kernels.columns import Values
from borealis.kernels.folding import Floats
from borealis.tuples import Int64s


def type_of(function: str, source: str, digits: int = 0) -> str | None:
    """The type of a result, as Spark types it; None where there is no exact twin."""
    exact = decimal_of(source)
    if function in ("floor", "ceil"):
        if exact is None:
            return "long" if source in ("long", "double") else None
        p, s = exact
        return source if s == 0 else f"decimal({min(p - s + 1, decimals.DIGITS_MAX)},0)"
    if function == "sign":
        return "double" if source == "double" else None
    if source in ("float", "double"):
        return source if digits == 0 else None
    if abs(digits) > decimals.DIGITS_MAX or (exact is None and source not in ("byte", "short", "integer", "long")):
        return None
    if exact is None:
        return source
    p, s = exact
    scale = max(0, min(s, digits))
    return f"decimal({min(max(p - s + 1, -digits + 1) + scale, decimals.DIGITS_MAX)},{scale})"


def may_fail(function: str, source: str, kind: str) -> bool:
    """Whether a result may have no place in its type."""
    if function == "sign" or kind in ("float", "double"):
        return False
    if function in ("floor", "ceil"):
        return source == "double"
    exact = decimal_of(kind)
    return exact is None or exact == (decimals.DIGITS_MAX, 0)


@decimals.arrays
def _rounded(values: pa.Array, digits: int, type: pa.DataType, even: bool) -> pa.Array:
    if pt.is_decimal(values.type):
        return decimals.rounded(values, digits, type, even)
    if pt.is_floating(values.type):
        return _to_whole(values, even)
    if digits >= 0:
        return values
    ints, valid = decimals.apart(values)
    ints = decimals.rounded_ints(ints, 10**-digits, even=even)
    try:
        return pa.array(ints.astype(np.int64), mask=None if valid is None else ~valid).cast(type)
    except pa.ArrowInvalid:
        raise OverflowError from None


def _of_floats(function: Callable[..., Any]) -> Callable[..., Values]:
    """A function of floating-point numbers, for columns and constants; of a null it gets NaN, and gives null."""

    def applied(values: pa.Array, *more: Any) -> pa.Array:
        valid = pc.is_valid(values).to_numpy(zero_copy_only=False)
        return pa.array(function(values.to_numpy(zero_copy_only=False), *more), mask=~valid)

    return decimals.arrays(applied)


@_of_floats
def _to_whole(numbers: Floats, even: bool) -> Floats:
    size = np.abs(numbers)
    with np.errstate(invalid="ignore"):
        whole = np.rint(size) if even else np.trunc(size) + (size - np.trunc(size) >= 0.5)
    whole = np.where(np.isfinite(numbers), np.where(whole == 0, 0.0, np.copysign(whole, numbers)), numbers)
    return whole.astype(numbers.dtype)


def _round(even: bool) -> Callable[..., Values]:
    return lambda type, values, digits: _rounded(values, digits.as_py(), type, even)


def _whole(down: bool) -> Callable[..., Values]:
    def function(type: pa.DataType, values: Values) -> Values:
        if pt.is_integer(values.type):
            return values
        if pt.is_decimal(values.type):
            return decimals.to_whole(values, type, 1 if down else -1)
        return _longs(values, np.floor if down else np.ceil)

    return function


@_of_floats
def _longs(numbers: Floats, function: Callable[[Any], Any]) -> Int64s:
    """Doubles as whole numbers; NaN is 0, what does not fit is an error."""
    whole = function(np.nan_to_num(numbers, nan=0.0, posinf=np.inf, neginf=-np.inf))
    if bool(((whole < -(2.0**63)) | (whole >= 2.0**63)).any()):
        raise OverflowError
    longs: Int64s = whole.astype(np.int64)
    return longs


@_of_floats
def _sign(numbers: Floats) -> Floats:
    """-1.0, 1.0, or the number itself where it is zero or NaN."""
    return np.where((numbers == 0) | np.isnan(numbers), numbers, np.copysign(1.0, numbers))


FUNCTIONS: dict[str, Callable[..., Values]] = {
    "round": _round(even=False),
    "bround": _round(even=True),
    "floor": _whole(down=True),
    "ceil": _whole(down=False),
    "sign": lambda _, values: _sign(values),
}
