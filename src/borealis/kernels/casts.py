"""Casts as Spark does them (ANSI mode, UTC): the value in the other type, or an error for one that has none there.

Text is read a column at a time where it is as people write it, else value by value; the two ways agree. Not here:
DOUBLE and FLOAT to text or DECIMAL, which go by Java's own digits, and those differ between versions of Java. Columns
become dates, timestamps and their texts by functions of `dates`; here only the constants do, which the planner folds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from borealis.kernels import dates, decimals, times
from borealis.kernels.columns import each
from borealis.kernels.times import NoValueError

NAMES = {
    "boolean": "BOOLEAN", "byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT",
    "float": "FLOAT", "double": "DOUBLE", "string": "STRING", "date": "DATE", "timestamp": "TIMESTAMP",
}  # fmt: skip
DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_INTEGRAL = ("byte", "short", "integer", "long")
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_EXACT_DIGITS = 15  # that a double keeps: Spark casts a larger DECIMAL to INT and smaller by way of a double
_TRIMMED = "".join(map(chr, range(33)))  # what Java's trim cuts off
_EXPONENT_MAX = 2**31 - 1
_PLAIN_SCALE_MAX = 6  # up to here Arrow writes no exponent


def decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a DECIMAL; None for another type."""
    found = DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def name(kind: str) -> str:
    """A type as SQL writes it."""
    return NAMES.get(kind) or kind.upper()


def can(source: str, target: str) -> bool:
    """Whether there is an exact cast from one Spark type to another."""
    if target == "string":
        return source in ("boolean", *_INTEGRAL, "date", "timestamp") or decimal_of(source) is not None
    if source == "string":
        return target in ("boolean", *_INTEGRAL, "double", "date", "timestamp") or decimal_of(target) is not None
    if source in ("date", "timestamp"):
        return target in ("date", "timestamp") or (source == "timestamp" and target in ("integer", "long", "double"))
    if target == "timestamp":
        return source in (*_INTEGRAL, "float", "double") or decimal_of(source) is not None
    if source in ("float", "double"):
        return target in ("boolean", *_INTEGRAL, "float", "double")
    if (exact := decimal_of(source)) and target in _INTEGRAL[:-1]:
        return exact[0] <= _EXACT_DIGITS
    numeric = ("boolean", *_INTEGRAL, "float", "double")
    return (source in numeric or exact is not None) and (target in numeric or decimal_of(target) is not None)


def may_fail(source: str, target: str) -> bool:
    """Whether a cast that there is may raise for some value."""
    if source == "string":
        return target != "string"
    if (wanted := decimal_of(target)) is not None:
        p, s = decimal_of(source) or (1 if source == "boolean" else _DIGITS.get(source, 99), 0)
        whole = p - s + (1 if s > wanted[1] else 0)  # rounding may carry
        return whole > wanted[0] - wanted[1]
    if target in _INTEGRAL and source != "boolean":
        if (exact := decimal_of(source)) is not None:
            return exact[0] - exact[1] >= _DIGITS[target]
        if source == "timestamp":
            return target != "long"
        return source not in _INTEGRAL or _INTEGRAL.index(source) > _INTEGRAL.index(target)
    return target == "timestamp" and source in ("float", "double", "date")


@decimals.arrays
def convert(values: pa.Array, type: pa.DataType) -> pa.Array:
    """The cast of a column; OverflowError or NoValueError for a value that has none."""
    source = values.type
    if source == type:
        return values
    if pt.is_string(source):
        return _from_text(values, type)
    if pt.is_string(type):
        return _to_text(values)
    if pt.is_temporal(source) or pt.is_temporal(type):
        return _time(values, type)
    if pt.is_boolean(type):
        return pc.not_equal(values, pa.scalar(Decimal(0) if pt.is_decimal(source) else 0, source))
    if pt.is_boolean(source):
        values = values.cast(pa.int8())
        source = values.type
    if pt.is_decimal(type):
        return decimals.fitted(values, type)
    if pt.is_decimal(source):
        return _whole(values, type) if pt.is_integer(type) else _real(values, type)
    if pt.is_floating(source) and pt.is_integer(type):
        return _truncated(values, type)
    try:
        return values.cast(type, safe=pt.is_integer(type))
    except pa.ArrowInvalid:
        raise OverflowError from None


# --- numbers --------------------------------------------------------------------------------------------------------


def _bounds(type: pa.DataType) -> tuple[int, int]:
    return -(2 ** (type.bit_width - 1)), 2 ** (type.bit_width - 1) - 1


def _truncated(numbers: pa.Array, type: pa.DataType) -> pa.Array:
    """Without the fraction. 2**63 itself, the first that does not fit, is the largest BIGINT; NaN is an error."""
    valid = pc.is_valid(numbers).to_numpy(zero_copy_only=False)
    low, high = _bounds(type)
    values = np.where(valid, numbers.cast(pa.float64()).to_numpy(zero_copy_only=False), 0.0)
    with np.errstate(invalid="ignore"):
        fits = (np.floor(values) <= float(high)) & (np.ceil(values) >= float(low))
        if not bool(fits.all()):
            raise OverflowError
        whole = np.where(values >= 2.0**63, high, values.astype(np.int64))
    return pa.array(whole, mask=~valid).cast(type)


def _whole(numbers: pa.Array, type: pa.DataType) -> pa.Array:
    """A DECIMAL without its fraction."""
    ints, valid = decimals.apart(numbers)
    unit = 10**numbers.type.scale
    ints = ints if unit < 2**63 else ints.astype(object)
    whole = np.abs(ints) // unit
    whole = np.where(ints < 0, -whole, whole)
    low, high = _bounds(type)
    if len(whole) and (int(whole.min()) < low or int(whole.max()) > high):
        raise OverflowError
    return pa.array(whole.astype(np.int64), mask=None if valid is None else ~valid).cast(type)


def _real(numbers: pa.Array, type: pa.DataType) -> pa.Array:
    """The nearest DOUBLE or FLOAT to a DECIMAL; a quotient of two exact numbers is, as text that is read is."""
    scale = numbers.type.scale
    if pt.is_float64(type) and scale <= 22:  # powers of ten that a double holds exactly
        ints, valid = decimals.apart(numbers)
        if ints.dtype != object and (not len(ints) or int(np.abs(ints).max()) <= 2**53):
            return pa.array(ints.astype(np.float64) / 10.0**scale, mask=None if valid is None else ~valid)
    return _plain(numbers).cast(type)


# --- text -----------------------------------------------------------------------------------------------------------


def _to_text(values: pa.Array) -> pa.Array:
    if pt.is_decimal(values.type):
        return _plain(values)
    if pt.is_temporal(values.type):
        return dates.to_text(values)
    return values.cast(pa.string())


def _all(strings: pa.Array, form: str) -> bool:
    return pc.all(pc.match_substring_regex(strings, form)).as_py() is not False  # nulls do not count


def _plain(numbers: pa.Array) -> pa.Array:
    """A DECIMAL with all its digits, never with an exponent."""
    scale = numbers.type.scale
    if scale <= _PLAIN_SCALE_MAX:
        return numbers.cast(pa.string())
    ints, valid = decimals.apart(numbers)
    if ints.dtype == object:
        texts = pa.array([_digits(int(one), scale) for one in ints], pa.string())
        return texts if valid is None else pc.if_else(pa.array(valid), texts, None)
    missing = None if valid is None else ~valid
    digits = pc.utf8_lpad(pa.array(np.abs(ints), mask=missing).cast(pa.string()), scale + 1, "0")
    sign = pc.if_else(pa.array(ints < 0), "-", "")
    before, behind = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), behind, ".")


def _digits(number: int, scale: int) -> str:
    sign, digits = "-" if number < 0 else "", str(abs(number)).rjust(scale + 1, "0")
    return sign + digits if not scale else f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def _from_text(strings: pa.Array, type: pa.DataType) -> pa.Array:
    if pt.is_timestamp(type):
        return times.from_text(strings)  # not `dates.text_to_timestamp`: a constant '12:30' is of no day yet
    if pt.is_integer(type):
        return _ints(strings, type)
    if pt.is_floating(type):
        return _doubles(strings)
    if pt.is_decimal(type):
        return _decimals(strings, type)
    return _booleans(strings) if pt.is_boolean(type) else dates.to_date(strings)


def _first(strings: pa.Array, good: Any) -> str:
    """The first text that is not good."""
    at = pc.index(pc.fill_null(good, True), pa.scalar(False)).as_py()
    return str(strings[at].as_py())


def _only(strings: pa.Array, signs: bytes) -> bool:
    """Whether there is nothing but these signs in all texts."""
    if not len(strings) or strings.buffers()[2] is None:
        return True
    ends = np.frombuffer(strings.buffers()[1], np.int32, len(strings) + 1, 4 * strings.offset)
    known = np.zeros(256, bool)
    known[np.frombuffer(signs, np.uint8)] = True
    return bool(known[np.frombuffer(strings.buffers()[2], np.uint8)[ends[0] : ends[-1]]].all())


_INT = r"^[+-]?[0-9]+$"


def _ints(strings: pa.Array, type: pa.DataType) -> pa.Array:
    if _only(strings, b"0123456789-"):
        try:
            return strings.cast(pa.int64()).cast(type)
        except pa.ArrowInvalid:
            pass
    trimmed = pc.utf8_trim(strings, times.TRIMMED)
    if not _all(trimmed, _INT):
        raise NoValueError(_first(strings, pc.match_substring_regex(trimmed, _INT)), "whole number")
    bare = pc.replace_substring_regex(trimmed, r"^(-?)\+?0*([0-9])", r"\1\2")
    try:
        return bare.cast(pa.int64()).cast(type)
    except pa.ArrowInvalid:
        raise OverflowError from None


_REAL = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[dDfF]?", re.ASCII)
_HEX = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?\d+)[dDfF]?", re.ASCII)
_SPECIAL = {"inf": np.inf, "+inf": np.inf, "infinity": np.inf, "+infinity": np.inf, "-inf": -np.inf,
            "-infinity": -np.inf, "nan": np.nan}  # fmt: skip


def _doubles(strings: pa.Array) -> pa.Array:
    if _only(strings, b"0123456789-."):
        try:
            return strings.cast(pa.float64())
        except pa.ArrowInvalid:
            pass
    return each(_double, pa.float64())(strings)


def _double(text: str) -> float:
    trimmed = text.strip(_TRIMMED)
    if found := _REAL.fullmatch(trimmed):
        return float(found[1])
    if found := _HEX.fullmatch(trimmed):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return float("-inf" if trimmed.startswith("-") else "inf")
    if trimmed in ("NaN", "+NaN", "-NaN"):
        return float("nan")
    if (special := _SPECIAL.get(trimmed.lower())) is None:
        raise NoValueError(text, "number")
    return special


_EXACT = re.compile(r"([+-]?)(\d*)(?:\.(\d*))?(?:[eE]([+-]?\d+))?")


def _decimals(strings: pa.Array, type: pa.Decimal128Type) -> pa.Array:
    fraction = rf"(\.[0-9]{{1,{type.scale}}})?" if type.scale else ""
    whole = decimals.DIGITS_MAX - type.scale
    if whole and _all(strings, rf"^-?[0-9]{{1,{whole}}}{fraction}$"):
        return decimals.fitted(strings.cast(pa.decimal128(decimals.DIGITS_MAX, type.scale)), type)
    ints = [None if text is None else _exact(text, type) for text in strings.to_pylist()]
    valid = np.array([one is not None for one in ints], bool)
    return decimals.together(np.array([one or 0 for one in ints], object), valid, type)


def _exact(text: str, type: pa.Decimal128Type) -> int:
    """The whole number that stands for a text in a DECIMAL type."""
    found = _EXACT.fullmatch(text.strip(_TRIMMED))
    if found is None or not (found[2] or found[3]) or any(ord(c) > 0xFFFF for c in found[0]):
        raise NoValueError(text, "number")
    fraction, exponent = found[3] or "", int(found[4] or 0)
    scale = len(fraction) - exponent
    if abs(exponent) > _EXPONENT_MAX or abs(scale) > _EXPONENT_MAX:
        raise NoValueError(text, "number")
    digits = int(found[2] + fraction)
    by = type.scale - scale
    if not digits or by < -len(found[2] + fraction) - 1:
        return 0
    if by > 2 * decimals.DIGITS_MAX:
        raise OverflowError
    whole: int = digits * 10**by if by >= 0 else (digits + 10**-by // 2) // 10**-by
    return -whole if found[1] == "-" else whole


_TRUE, _FALSE = pa.array(["t", "true", "y", "yes", "1"]), pa.array(["f", "false", "n", "no", "0"])


def _booleans(strings: pa.Array) -> pa.Array:
    words = pc.ascii_lower(pc.utf8_trim(strings, times.TRIMMED))
    true, false = pc.is_in(words, _TRUE), pc.is_in(words, _FALSE)
    known = pc.or_(pc.or_(true, false), pc.is_null(strings))
    if pc.all(known).as_py() is False:
        raise NoValueError(_first(strings, known), "BOOLEAN")
    return pc.if_else(pc.is_valid(strings), true, pa.scalar(None, pa.bool_()))


# --- dates and times ------------------------------------------------------------------------------------------------


def _time(values: pa.Array, type: pa.DataType) -> pa.Array:
    source = values.type
    if not pt.is_temporal(source):
        return times.from_number(values)
    if pt.is_date(source):
        return dates.to_timestamp(type, values)
    if pt.is_date(type):
        return dates.date_of(type, values)
    micros = values.cast(pa.int64())
    nulls = pc.is_null(micros).to_numpy(zero_copy_only=False)
    micros = micros.fill_null(0).to_numpy(zero_copy_only=False)
    if pt.is_float64(type):
        return pa.array(micros.astype(np.float64) / float(times.SECOND_US), mask=nulls)
    try:
        return pa.array(micros // times.SECOND_US, mask=nulls).cast(type)
    except pa.ArrowInvalid:
        raise OverflowError from None
