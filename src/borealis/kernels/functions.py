"""The functions that expressions call, by name: each gets the Arrow type of its result, then the values.

A value is a column or, where it is constant, a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels import casts, dates, decimals, rounding, strings, times
from borealis.kernels.columns import Values, on_arrays, to_numpy
from borealis.kernels.xxhash import xxhash64

_FALSE = pa.scalar(False)
_IN_AS_EQUALITIES_MAX = 8  # up to here a chain of comparisons beats building a hash table


# --- comparisons ------------------------------------------------------------------------------------------------------


def _may_be_nan(x: Values) -> bool:
    if not pa.types.is_floating(x.type):
        return False
    return not isinstance(x, pa.Scalar) or (x.is_valid and math.isnan(x.as_py()))


def _eq(_: Any, a: Values, b: Values) -> Values:
    same = pc.equal(a, b)
    if _may_be_nan(a) and _may_be_nan(b):
        return pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return same


def _gt(_: Any, a: Values, b: Values) -> Values:
    if not _may_be_nan(a):  # NaN on the right is above everything, and IEEE says false too
        return pc.greater(a, b)
    above = pc.invert(pc.less_equal(a, b))  # true for NaN on either side
    return pc.and_(above, pc.invert(pc.is_nan(b))) if _may_be_nan(b) else above


def _ge(_: Any, a: Values, b: Values) -> Values:
    if not _may_be_nan(a):
        return pc.greater_equal(a, b)
    return pc.invert(_gt(_, b, a)) if _may_be_nan(b) else pc.invert(pc.less(a, b))


def _eq_null_safe(_: Any, a: Values, b: Values) -> Values:
    return pc.or_(pc.coalesce(_eq(_, a, b), _FALSE), pc.and_(pc.is_null(a), pc.is_null(b)))


def _in(_: Any, value: Values, *items: Values) -> Values:
    constant = all(isinstance(item, pa.Scalar) for item in items)
    if pa.types.is_floating(value.type) or len(items) <= _IN_AS_EQUALITIES_MAX or not constant:
        found = _eq(_, value, items[0])
        for item in items[1:]:
            found = pc.or_kleene(found, _eq(_, value, item))
        return found
    present = pa.array([item.as_py() for item in items if item.is_valid], value.type)
    found = pc.is_in(value, value_set=present)
    null = pa.scalar(None, pa.bool_())
    if len(present) < len(items):  # not found among items one of which is unknown: unknown
        found = pc.if_else(found, found, null)
    return pc.if_else(pc.is_valid(value), found, null)


def _extreme(above: bool) -> Callable[..., Values]:
    """greatest or least: nulls do not count, NaN is above all, and of equals (0.0 and -0.0) the first is taken."""

    def function(_: Any, *args: Values) -> Values:
        found = args[0]
        for arg in args[1:]:
            better = _gt(_, arg, found) if above else _gt(_, found, arg)
            found = pc.if_else(pc.coalesce(better, pc.is_null(found)), arg, found)
        return found

    return function


# --- arithmetic -------------------------------------------------------------------------------------------------------


def _arithmetic(exact: Callable[..., Values], checked: Any, plain: Any) -> Callable[..., Values]:
    """A function of DECIMALs, of whole numbers and of others."""

    def function(type: pa.DataType, *args: Values) -> Values:
        if pa.types.is_decimal(args[0].type):
            return exact(*args, type)
        return checked(*args) if pa.types.is_integer(args[0].type) else plain(*args)

    return function


def _refuse_zero(a: Values, b: Values) -> None:
    """A zero divisor raises unless the dividend is null."""
    if isinstance(b, pa.Scalar) and (not b.is_valid or b.as_py() != 0):
        return
    hit = pc.and_kleene(pc.equal(b, pa.scalar(0, b.type)), pc.is_valid(a))
    if (hit if isinstance(hit, pa.Scalar) else pc.any(hit)).as_py():
        raise ZeroDivisionError


def _quotient(a: Values, b: Values) -> Values:
    _refuse_zero(a, b)
    return pc.divide(a, b)


def _rest(a: Values, b: Values) -> Values:
    """Java's %, with the sign of the dividend; Arrow has none, numpy's fmod is it."""
    _refuse_zero(a, b)
    return _fmod(a, b)


@decimals.arrays
def _fmod(a: pa.Array, b: pa.Array) -> pa.Array:
    with np.errstate(all="ignore"):
        rest = np.fmod(to_numpy(a), to_numpy(b))
    if not a.null_count and not b.null_count:
        return pa.array(rest)
    return pa.array(rest, mask=np.logical_or(*(x.is_null().to_numpy(zero_copy_only=False) for x in (a, b))))


def _cast(type: pa.DataType, value: Values) -> Values:
    return casts.convert(value, type)


# --- others -----------------------------------------------------------------------------------------------------------


def _case(type: pa.DataType, *args: Values) -> Values:
    pairs, rest = divmod(len(args), 2)
    result = args[-1] if rest else pa.scalar(None, type)
    for i in reversed(range(pairs)):
        result = pc.if_else(pc.coalesce(args[2 * i], _FALSE), args[2 * i + 1], result)
    return result


def _xxhash64(_: Any, *args: Values) -> Values:
    rows = next(len(arg) for arg in args if not isinstance(arg, pa.Scalar))  # the planner lets no constants through
    return xxhash64(list(args), rows)


def _to_timestamp(values: pa.Array, pattern: pa.Scalar | None = None) -> Values:
    if pattern is not None:
        return times.from_format(values, pattern.as_py())
    if pa.types.is_string(values.type):
        return times.from_text(values)
    if pa.types.is_date(values.type) or pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("us", "UTC"))
    return times.from_number(values)


def _plain(function: Callable[..., Values]) -> Callable[..., Values]:
    """A function of Arrow's, which finds the type of its result by itself."""
    return lambda _, *args: function(*args)


# Numbers and text as times: the planner lets them through only where an input gets its times.
TIMES: dict[str, Callable[..., Values]] = {
    "to_timestamp": on_arrays(_to_timestamp),
    "timestamp_seconds": on_arrays(times.from_seconds),
    "timestamp_millis": on_arrays(lambda values: times.from_units(values, 1_000)),
    "timestamp_micros": on_arrays(lambda values: times.from_units(values, 1)),
}

FUNCTIONS: dict[str, Callable[..., Values]] = {
    **TIMES,
    "to_long": _cast,  # in the time of an input
    "eq": _eq,
    "gt": _gt,
    "ge": _ge,
    "lt": lambda _, a, b: _gt(_, b, a),
    "le": lambda _, a, b: _ge(_, b, a),
    "eq_null_safe": _eq_null_safe,
    "in": _in,
    "and": _plain(pc.and_kleene),
    "or": _plain(pc.or_kleene),
    "not": _plain(pc.invert),
    "is_null": _plain(pc.is_null),
    "is_not_null": _plain(pc.is_valid),
    "is_nan": lambda _, a: pc.coalesce(pc.is_nan(a), _FALSE),
    "add": _arithmetic(decimals.add, pc.add_checked, pc.add),
    "subtract": _arithmetic(decimals.subtract, pc.subtract_checked, pc.subtract),
    "multiply": _arithmetic(decimals.multiply, pc.multiply_checked, pc.multiply),
    "divide": _arithmetic(decimals.divide, _quotient, _quotient),
    "int_divide": _arithmetic(decimals.int_divide, pc.divide_checked, pc.divide_checked),
    "remainder": _arithmetic(decimals.remainder, _rest, _rest),
    "negate": _arithmetic(decimals.negate, pc.negate_checked, pc.negate),
    "abs": _arithmetic(decimals.absolute, pc.abs_checked, pc.abs),
    "cast": _cast,  # one that cannot fail
    "convert": _cast,  # one that can
    **rounding.FUNCTIONS,
    "case": _case,
    "coalesce": _plain(pc.coalesce),
    "greatest": _extreme(above=True),
    "least": _extreme(above=False),
    "bit_and": _plain(pc.bit_wise_and),
    "bit_or": _plain(pc.bit_wise_or),
    "bit_xor": _plain(pc.bit_wise_xor),
    "bit_not": _plain(pc.bit_wise_not),
    "sqrt": _plain(pc.sqrt),
    "length": _plain(pc.utf8_length),
    "concat": lambda _, *args: pc.binary_join_element_wise(
        *args, pa.scalar("", pa.string()), null_handling="emit_null"
    ),
    "xxhash64": _xxhash64,
    **strings.FUNCTIONS,
    **dates.FUNCTIONS,
}
RAISING = dates.RAISING | TIMES.keys() | {"split_item", "to_long", "convert"}  # on some row, whatever the types
