"""Arithmetic on DECIMAL columns, as Spark does it: exact, rounded half up, an error where a result has too many digits.

A column is the whole numbers that stand for its values (12.50 is 1250), in 64 bits while they fit, which they nearly
always do, and as Python's own numbers where they do not. Whether they fit is seen from the values, not from the type:
`bytes / 1024.0` of a BIGINT is DECIMAL(27,6) by type, and a division of small whole numbers in fact.

>>> size, kilo = pa.array([1500, 40, None]).cast(pa.decimal128(20, 0)), pa.scalar(1024).cast(pa.decimal128(20, 0))
>>> divide(size, kilo, pa.decimal128(27, 6)).cast(pa.string()).to_pylist()
['1.464844', '0.039063', None]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels.columns import Values, decimal_words, full, whole

Ints: TypeAlias = Any  # an array of int64, or of Python's int

DIGITS_MAX = 38  # of Spark's DECIMAL, and of Arrow's with 128 bits
_SCALE_MIN = 6  # that a result keeps which has too many digits
_NARROW_MAX = 2**63 - 1
_NARROW_DIGITS = 18
_LOW = 2**64 - 1


# --- types ----------------------------------------------------------------------------------------------------------


def result(function: str, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    """Precision and scale of a result as they would be without a limit; `bounded` applies it.

    >>> bounded(*result("divide", (20, 0), (5, 1)))
    (27, 6)
    """
    (p1, s1), (p2, s2) = a, b
    scale = max(s1, s2)
    if function in ("add", "subtract"):
        return max(p1 - s1, p2 - s2) + scale + 1, scale
    if function == "multiply":
        return p1 + p2 + 1, s1 + s2
    if function == "divide":
        scale = max(_SCALE_MIN, s1 + p2 + 1)
        return p1 - s1 + s2 + scale, scale
    if function == "remainder":
        return min(p1 - s1, p2 - s2) + scale, scale
    raise LookupError(function)


def bounded(precision: int, scale: int) -> tuple[int, int]:
    """What is left of a type with too many digits: those before the point, and at least six behind it if it had six."""
    if precision <= DIGITS_MAX:
        return precision, scale
    return DIGITS_MAX, max(DIGITS_MAX - (precision - scale), min(scale, _SCALE_MIN))


# --- whole numbers --------------------------------------------------------------------------------------------------


def apart(values: pa.Array) -> tuple[Ints, Any]:
    """The whole numbers of a DECIMAL or integral array (0 where it is null), and which are not null: None if all."""
    valid = pc.is_valid(values).to_numpy(zero_copy_only=False) if values.null_count else None
    if pa.types.is_integer(values.type):
        ints = (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False).astype(np.int64)
        return _fitting(ints), valid
    low, high = decimal_words(values).T
    if valid is not None:
        low, high = np.where(valid, low, 0), np.where(valid, high, 0)
    if bool((high == low >> 63).all()):
        return _fitting(low), valid
    return high.astype(object) * (_LOW + 1) + low.view(np.uint64).astype(object), valid


def together(ints: Ints, valid: Any, type: pa.Decimal128Type) -> pa.Array:
    """A DECIMAL array; OverflowError if one of the numbers has too many digits."""
    if valid is not None:
        valid = np.broadcast_to(valid, len(ints))
        ints = np.where(valid, ints, 0)
    if _most(ints) >= 10**type.precision:
        raise OverflowError
    halves = np.empty(2 * len(ints), np.int64)
    if ints.dtype == object:
        halves[0::2] = (ints & _LOW).astype(np.uint64).view(np.int64)
        halves[1::2] = (ints >> 64).astype(np.int64)
    else:
        halves[0::2], halves[1::2] = ints, ints >> 63
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(type, len(ints), [bits, pa.py_buffer(halves)])


def _fitting(ints: Any) -> Ints:
    """As they are; but the one number whose absolute value does not fit is wide, and with it all."""
    return ints.astype(object) if len(ints) and int(ints.min()) < -_NARROW_MAX else ints


def _most(ints: Ints) -> int:
    return max(int(ints.max()), -int(ints.min())) if len(ints) else 0


def _times(ints: Ints, factor: int) -> Ints:
    if factor == 1:
        return ints
    narrow = factor <= _NARROW_MAX and _most(ints) * factor <= _NARROW_MAX
    return (ints if narrow else ints.astype(object)) * factor


def _halved_up(ints: Ints, divisor: Ints | int) -> Ints:
    """Divided by positive numbers, a half rounded away from zero."""
    if isinstance(divisor, int) and divisor > _NARROW_MAX:
        ints = ints.astype(object)
    size = np.abs(ints)
    quotient = size // divisor
    rest = size - quotient * divisor
    quotient = quotient + (rest >= divisor - rest)
    return np.where(ints < 0, -quotient, quotient)


def rescaled(ints: Ints, by: int) -> Ints:
    """With so many more digits behind the point; if fewer, rounded half up."""
    return _times(ints, 10**by) if by >= 0 else _halved_up(ints, 10**-by)


# --- functions ------------------------------------------------------------------------------------------------------


def arrays(function: Callable[..., pa.Array]) -> Callable[..., Values]:
    """A function of arrays, for constants, too: they come as arrays of one. All else is handed on."""

    def applied(*args: Any) -> Values:
        found = function(*(whole(full(arg, 1)) for arg in args))
        return found if any(isinstance(arg, pa.Array | pa.ChunkedArray) for arg in args) else found[0]

    return applied


def _both(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a & b


def _aligned(x: Ints, a: pa.DataType, y: Ints, b: pa.DataType) -> tuple[Ints, Ints, int]:
    """Both with the same number of digits behind the point, and how many these are."""
    scale = max(a.scale, b.scale)
    return rescaled(x, scale - a.scale), rescaled(y, scale - b.scale), scale


@arrays
def add(a: pa.Array, b: pa.Array, type: pa.Decimal128Type, sign: int = 1) -> pa.Array:
    (x, x_valid), (y, y_valid) = apart(a), apart(b)
    x, y, scale = _aligned(x, a.type, y, b.type)
    if _most(x) + _most(y) > _NARROW_MAX:
        x = x.astype(object)
    return together(rescaled(x + sign * y, type.scale - scale), _both(x_valid, y_valid), type)


def subtract(a: Values, b: Values, type: pa.Decimal128Type) -> Values:
    return add(a, b, type, -1)


@arrays
def multiply(a: pa.Array, b: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    (x, x_valid), (y, y_valid) = apart(a), apart(b)
    if _most(x) * _most(y) > _NARROW_MAX:
        x = x.astype(object)
    return together(rescaled(x * y, type.scale - a.type.scale - b.type.scale), _both(x_valid, y_valid), type)


def _divisible(a: pa.Array, b: pa.Array) -> tuple[Ints, Ints, Any]:
    """Both as whole numbers, no divisor zero; ZeroDivisionError if one is, unless it or what it divides is null."""
    (x, x_valid), (y, y_valid) = apart(a), apart(b)
    valid = _both(x_valid, y_valid)
    zero = y == 0
    if bool(zero.any()):
        if len(x) and bool((zero & (True if valid is None else valid)).any()):
            raise ZeroDivisionError
        y = np.where(zero, 1, y)
    return x, y, valid


@arrays
def divide(a: pa.Array, b: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    x, y, valid = _divisible(a, b)
    return together(_ratio(x, y, type.scale + b.type.scale - a.type.scale), valid, type)


def _ratio(x: Ints, y: Ints, by: int) -> Ints:
    """x * 10**by / y, rounded half up."""
    up, down = 10 ** max(0, by), 10 ** max(0, -by)
    if len(y) == 1:  # one divisor: take out what it shares with 10**by
        divisor = abs(int(y[0])) * down
        shared = math.gcd(up, divisor)
        ratio = _halved_up(_times(x, up // shared), divisor // shared)
        return -ratio if int(y[0]) < 0 else ratio
    x, divisors = np.broadcast_to(x, y.shape) if len(y) != 1 else x, np.abs(_times(y, down))
    if x.dtype == object or divisors.dtype == object:
        ratio = _halved_up(x.astype(object) * up, divisors.astype(object))
    else:
        ratio = _divided(np.abs(x), divisors, max(0, by))
        ratio = np.where(x < 0, -ratio, ratio)
    return np.where(y < 0, -ratio, ratio)


def _divided(x: Any, y: Any, digits: int) -> Ints:
    """x / y with so many more digits, rounded half up: on paper, some digits at a time; wide where the result is."""
    step = _NARROW_DIGITS - len(str(_most(y)))
    near = np.asarray(x / np.maximum(y, 1) * 10.0**digits)
    if step < 1 or not bool((near < 10.0**_NARROW_DIGITS).all()):
        wide = near >= 10.0**_NARROW_DIGITS if step >= 1 else np.full(len(x), True)
        found = np.empty(len(x), object)
        found[wide] = _halved_up(x[wide].astype(object) * 10**digits, y[wide].astype(object))
        if not wide.all():
            found[~wide] = _divided(x[~wide], y[~wide], digits)
        return found
    quotient = x // y
    rest = x - quotient * y
    for start in range(0, digits, step):
        unit = 10 ** min(step, digits - start)
        rest = rest * unit
        more = rest // y
        quotient, rest = quotient * unit + more, rest - more * y
    return quotient + (rest >= y - rest)


@arrays
def remainder(a: pa.Array, b: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    """a % b, with the sign of a."""
    x, y, valid = _divisible(a, b)
    x, y, scale = _aligned(x, a.type, y, b.type)
    rest = np.abs(x) % np.abs(y)
    return together(rescaled(np.where(x < 0, -rest, rest), type.scale - scale), valid, type)


@arrays
def int_divide(a: pa.Array, b: pa.Array, _: pa.DataType) -> pa.Array:
    """a DIV b: the whole part, a BIGINT; the planner lets through only types whose quotients fit."""
    x, y, valid = _divisible(a, b)
    x, y, _ = _aligned(x, a.type, y, b.type)
    size = np.abs(x) // np.abs(y)
    quotient = np.where((x < 0) != (y < 0), -size, size).astype(np.int64)
    return pa.array(quotient, mask=None if valid is None else ~np.broadcast_to(valid, len(quotient)))


@arrays
def negate(a: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    ints, valid = apart(a)
    return together(-ints, valid, type)


@arrays
def absolute(a: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    ints, valid = apart(a)
    return together(np.abs(ints), valid, type)


@arrays
def fitted(values: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    """A DECIMAL or whole number as a DECIMAL of another type, rounded half up."""
    scale = values.type.scale if pa.types.is_decimal(values.type) else 0
    ints, valid = apart(values)
    return together(rescaled(ints, type.scale - scale), valid, type)


@arrays
def rounded(values: pa.Array, digits: int, type: pa.Decimal128Type, even: bool) -> pa.Array:
    """round or bround to so many digits behind the point, or before it where negative."""
    ints, valid = apart(values)
    by = values.type.scale - digits
    if by > 0:
        ints = rounded_ints(ints, 10**by, even=even)
    return together(rescaled(ints, type.scale - values.type.scale), valid, type)


def rounded_ints(ints: Ints, unit: int, *, even: bool) -> Ints:
    """To a multiple of the unit, a half away from zero or to the even multiple."""
    wide = 2 * unit > _NARROW_MAX or _most(ints) + unit > _NARROW_MAX
    ints = ints.astype(object) if wide else ints
    size = np.abs(ints)
    count = size // unit
    twice = 2 * (size - count * unit)
    up = (twice > unit) | ((twice == unit) & (count % 2 == 1)) if even else twice >= unit
    nearest = (count + up) * unit
    return np.where(ints < 0, -nearest, nearest)


@arrays
def to_whole(values: pa.Array, type: pa.Decimal128Type, sign: int) -> pa.Array:
    """floor with the sign 1, ceil with -1."""
    ints, valid = apart(values)
    unit = 10**values.type.scale
    ints = ints if unit <= _NARROW_MAX else ints.astype(object)
    return together(sign * (sign * ints // unit), valid, type)
