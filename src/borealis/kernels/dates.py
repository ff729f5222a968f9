"""Spark's functions of dates and timestamps (UTC) on whole columns: one calendar, whatever the year.

Arrow's own calendar ends at the year 32767 and Python's at 9999, while Spark's dates go on for five million years. So
the calendar here is numpy's, on 64 bits. What Spark counts in 32 bits without a check (`date_add`) wraps around here,
too; what it checks raises OverflowError.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels import times
from borealis.kernels.strings import on_arrays
from borealis.kernels.times import DAY_US, SECOND_US, NotATimeError

Values: TypeAlias = Any  # pa.Array | pa.Scalar
Longs: TypeAlias = npt.NDArray[np.int64]

_DATE, _TIMESTAMP = pa.date32(), pa.timestamp("us", "UTC")
_LONG = (-(2**63), 2**63 - 1)
_INT = (-(2**31), 2**31 - 1)
_DAYS_OF_WEEK = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")  # 1970 began on a Thursday
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TEXT = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CLOCK = re.compile(r"(?:T(?=\d)|(?=\d{1,2}:))([\d:.]+)(.*)", re.ASCII | re.DOTALL)
_PLAIN = r"^\d{4}-\d\d-\d\d$"


# --- numbers in and out -----------------------------------------------------------------------------------------------


def _longs(values: pa.Array) -> tuple[Longs, Any]:
    """The numbers of a date (days), a timestamp (microseconds) or a number, 0 for null, and where the nulls are."""
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    values = values.cast(pa.int64())
    nulls = pc.is_null(values).to_numpy(zero_copy_only=False) if values.null_count else None
    full = values.fill_null(0) if values.null_count else values
    return full.to_numpy(zero_copy_only=False), nulls


def _made(numbers: Any, nulls: Any, type: pa.DataType) -> pa.Array:
    """The array of these numbers. Raises OverflowError if one that is no null is not in the type's range."""
    if type in (_TIMESTAMP, pa.int64()):
        return pa.array(numbers, pa.int64(), mask=nulls).cast(type)
    if numbers.size and (numbers.min() < _INT[0] or numbers.max() > _INT[1]):
        wide = (numbers < _INT[0]) | (numbers > _INT[1])
        if (wide if nulls is None else wide & ~nulls).any():
            raise OverflowError
        numbers = np.where(wide, 0, numbers)
    return pa.array(numbers.astype(np.int32), pa.int32(), mask=nulls).cast(type)


def _wrapped(numbers: Longs) -> Longs:
    return numbers.astype(np.int32).astype(np.int64)


def _exact(result: Longs, wrong: Any, nulls: Any) -> Longs:
    """The result, unless a row that is no null went wrong."""
    if (wrong if nulls is None else wrong & ~nulls).any():
        raise OverflowError
    return result


def _sum(a: Longs, b: Longs, nulls: Any) -> Longs:
    with np.errstate(all="ignore"):
        total = a + b
    return _exact(total, ((a ^ total) & (b ^ total)) < 0, nulls)


def _product(a: Longs, factor: int, nulls: Any) -> Longs:
    with np.errstate(all="ignore"):
        product = a * np.int64(factor)
    return _exact(product, (a > _LONG[1] // factor) | (a < -(2**63 // factor)), nulls)


def _together(a: pa.Array, b: Values) -> tuple[Longs, Longs, Any]:
    if isinstance(b, pa.Scalar):
        b = pa.repeat(b, len(a)) if b.is_valid else pa.nulls(len(a), b.type)
    (left, left_nulls), (right, right_nulls) = _longs(a), _longs(b)
    if left_nulls is None or right_nulls is None:
        return left, right, right_nulls if left_nulls is None else left_nulls
    return left, right, left_nulls | right_nulls


# --- the calendar -----------------------------------------------------------------------------------------------------


def _month_number(days: Longs) -> Longs:
    """Months since January 1970."""
    return days.astype("M8[D]").astype("M8[M]").astype(np.int64)


def _month_start(months: Longs) -> Longs:
    return months.astype("M8[M]").astype("M8[D]").astype(np.int64)


def _year(days: Longs) -> Longs:
    return _month_number(days) // 12 + 1970


def _day(days: Longs) -> Longs:
    return days - _month_start(_month_number(days)) + 1


def _plus_months(days: Longs, months: Longs) -> Longs:
    """The same day of another month, or the last one that this month has."""
    there = _month_number(days) + months
    start = _month_start(there)
    day: Longs = np.minimum(_day(days) - 1, _month_start(there + 1) - start - 1)
    return start + day


def _thursday(days: Longs) -> Longs:
    """The Thursday of the same week, which tells the week's year."""
    return days - (days + 3) % 7 + 3


def _week(days: Longs) -> Longs:
    thursday = _thursday(days)
    return (thursday - _month_start((_year(thursday) - 1970) * 12)) // 7 + 1


def _day_of_year(days: Longs) -> Longs:
    return days - _month_start((_year(days) - 1970) * 12) + 1


def _field(function: Callable[[Longs], Longs]) -> Callable[..., Values]:
    def applied(values: pa.Array) -> Values:
        numbers, nulls = _longs(values)
        return _made(function(numbers), nulls, pa.int32())

    return on_arrays(applied)


def _named(names: tuple[str, ...], function: Callable[[Longs], Longs]) -> Callable[..., Values]:
    def applied(values: pa.Array) -> Values:
        numbers, nulls = _longs(values)
        return pa.array(names, pa.string()).take(pa.array(function(numbers), mask=nulls))

    return on_arrays(applied)


def second_with_fraction(values: pa.Array) -> Values:
    """extract(SECOND FROM ts): a DECIMAL(8,6)."""
    micros, nulls = _longs(values)
    words = np.zeros((len(micros), 2), np.int64)
    words[:, 0] = micros % (60 * SECOND_US)
    made = pa.Array.from_buffers(pa.decimal128(8, 6), len(micros), [None, pa.py_buffer(words.tobytes())])
    return made if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, made.type), made)


# --- truncating -----------------------------------------------------------------------------------------------------

_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
_MICROS_OF = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": SECOND_US,
    "minute": 60 * SECOND_US,
    "hour": 3600 * SECOND_US,
    "day": DAY_US,
    "week": 7 * DAY_US,
}


_MONDAY = 4


def _next_weekday(days: Longs, weekday: int) -> Longs:
    """The first day behind these that is such a day of the week, counted from Thursday; in Java's 32 bits."""
    return _wrapped(days + 1 + (np.fmod(_wrapped(weekday - 1 - days), 7) + 7) % 7)


def _truncated(days: Longs, level: str) -> Longs:
    if level == "week":
        return _next_weekday(_wrapped(days - 7), _MONDAY)
    months = _month_number(days)
    return _month_start(months - months % _MONTHS_OF[level])


def trunc(values: pa.Array, level: pa.Scalar) -> Values:
    """Spark lets it wrap around, at all levels but the quarter."""
    days, nulls = _longs(values)
    return _made(_wrapped(_truncated(days, level.as_py())), nulls, _DATE)


def trunc_quarter(values: pa.Array) -> Values:
    days, nulls = _longs(values)
    return _made(_truncated(days, "quarter"), nulls, _DATE)


def date_trunc(level: pa.Scalar, values: pa.Array) -> Values:
    micros, nulls = _longs(values)
    unit = level.as_py()
    if unit in _MONTHS_OF or unit == "week":
        return _made(_product(_truncated(micros // DAY_US, unit), DAY_US, nulls), nulls, _TIMESTAMP)
    rest = micros % _MICROS_OF[unit]
    return _made(_exact(micros - rest, micros < _LONG[0] + rest, nulls), nulls, _TIMESTAMP)


# --- counting -------------------------------------------------------------------------------------------------------


def date_add(values: pa.Array, count: Values) -> Values:
    days, more, nulls = _together(values, count)
    return _made(_wrapped(days + more), nulls, _DATE)


def date_sub(values: pa.Array, count: Values) -> Values:
    days, less, nulls = _together(values, count)
    return _made(_wrapped(days - less), nulls, _DATE)


def date_diff(end: pa.Array, start: Values) -> Values:
    later, earlier, nulls = _together(end, start)
    return _made(_wrapped(later - earlier), nulls, pa.int32())


def add_months(values: pa.Array, count: Values) -> Values:
    days, months, nulls = _together(values, count)
    return _made(_plus_months(days, months), nulls, _DATE)


def last_day(values: pa.Array) -> Values:
    days, nulls = _longs(values)
    return _made(_wrapped(_month_start(_month_number(days) + 1) - 1), nulls, _DATE)


def next_day(values: pa.Array, weekday: pa.Scalar) -> Values:
    days, nulls = _longs(values)
    return _made(_next_weekday(days, weekday.as_py()), nulls, _DATE)


def plus_micros(values: pa.Array, count: Values) -> Values:
    micros, more, nulls = _together(values, count)
    return _made(_sum(micros, more, nulls), nulls, _TIMESTAMP)


def plus_months(values: pa.Array, count: Values) -> Values:
    """A timestamp so many months on, at the same time of the day."""
    micros, months, nulls = _together(values, count)
    days, rest = micros // DAY_US, micros % DAY_US
    there = _plus_months(days, months)
    (first, first_us), (last, last_us) = divmod(_LONG[0], DAY_US), divmod(_LONG[1], DAY_US)
    below = (there < first) | ((there == first) & (rest < first_us))
    above = (there > last) | ((there == last) & (rest > last_us))
    with np.errstate(all="ignore"):
        result = there * np.int64(DAY_US) + rest
    return _made(_exact(result, below | above, nulls), nulls, _TIMESTAMP)


def between(unit_us: pa.Scalar, start: Values, end: Values) -> Values:
    """timestampdiff: whole units from start to end, towards zero."""
    unit = unit_us.as_py()
    first, last, nulls = _together(_array(start, end), end)
    with np.errstate(all="ignore"):
        away = last - first
    if (((last ^ first) & (last ^ away)) < 0).any():  # more than 64 bits: once in 292,000 years
        exact = last.astype(object) - first.astype(object)
        counts = [int(abs(n) // unit) * (1 if n >= 0 else -1) for n in exact]
        if any(not _LONG[0] <= n <= _LONG[1] for n in counts):
            raise OverflowError
        return _made(np.array(counts, np.int64), nulls, pa.int64())
    whole = away // unit
    return _made(whole + ((away < 0) & (away % unit != 0)), nulls, pa.int64())


def months_apart(size: pa.Scalar, start: Values, end: Values) -> Values:
    """timestampdiff in months, quarters or years: whole ones, towards zero."""
    first, last, nulls = _together(_array(start, end), end)
    days = [first // DAY_US, last // DAY_US]
    months = _month_number(days[1]) - _month_number(days[0])
    inside = [_day(day) * DAY_US + micros % DAY_US for day, micros in zip(days, (first, last), strict=True)]
    months = np.where((months > 0) & (inside[1] < inside[0]), months - 1, months)
    months = np.where((months < 0) & (inside[1] > inside[0]), months + 1, months)
    whole = np.sign(months) * (np.abs(months) // size.as_py())
    return _made(whole, nulls, pa.int64())


def _array(value: Values, other: Values) -> pa.Array:
    if not isinstance(value, pa.Scalar):
        return value
    n = 1 if isinstance(other, pa.Scalar) else len(other)
    return pa.repeat(value, n) if value.is_valid else pa.nulls(n, value.type)


# --- seconds since 1970 ---------------------------------------------------------------------------------------------


def _units(unit_us: int) -> Callable[..., Values]:
    def applied(values: pa.Array) -> Values:
        micros, nulls = _longs(values)
        return _made(micros // unit_us, nulls, pa.int64())

    return on_arrays(applied)


def unix_timestamp(values: pa.Array, form: Values = None) -> Values:
    """Before 1970 towards zero, other than unix_seconds."""
    if pa.types.is_string(values.type):
        values = times.from_format(values, form.as_py())
    elif pa.types.is_date(values.type):
        values = to_timestamp(values)
    micros, nulls = _longs(values)
    return _made(micros // SECOND_US + ((micros < 0) & (micros % SECOND_US != 0)), nulls, pa.int64())


# --- one type from another --------------------------------------------------------------------------------------------


def to_timestamp(values: pa.Array) -> Values:
    """CAST(date AS TIMESTAMP)."""
    days, nulls = _longs(values)
    return _made(_product(days, DAY_US, nulls), nulls, _TIMESTAMP)


def text_to_timestamp(values: pa.Array) -> Values:
    """CAST(text AS TIMESTAMP): as `times.from_text`, but a time without a date is one of today, as it is to Spark."""
    try:
        return times.from_text(values)
    except NotATimeError:
        now = datetime.now(UTC)
        known = values.dictionary_encode()
        micros = pa.array([time_of_text(text, now) for text in known.dictionary.to_pylist()], pa.int64())
        return micros.take(known.indices).cast(_TIMESTAMP)


def time_of_text(text: str, now: datetime) -> int:
    """
    >>> time_of_text("T01:30", datetime(1970, 1, 2, tzinfo=UTC)) == (24 * 60 + 90) * 60 * SECOND_US
    True
    """
    found = _CLOCK.fullmatch(text.strip(times.TRIMMED))
    if found is None or (found[0].startswith("T") and not text.startswith("T")):  # no blank may come before a T
        return times.of_text(text)
    clock, zone = found.groups()
    try:
        ahead = times.of_text(f"{now:%Y-%m-%d} {clock}") - times.of_text(f"{now:%Y-%m-%d} {clock}{zone}")
        there = now + timedelta(microseconds=ahead)  # what day it is in that zone
        return times.of_text(f"{there:%Y-%m-%d} {clock}{zone}")
    except NotATimeError:
        raise NotATimeError(text) from None


def date_of(values: pa.Array) -> Values:
    """CAST(timestamp AS DATE)."""
    micros, nulls = _longs(values)
    return _made(micros // DAY_US, nulls, _DATE)


def to_date(values: pa.Array, form: Values = None) -> Values:
    """CAST(text AS DATE), and to_date(text, format)."""
    if form is not None:
        return date_of(times.from_format(values, form.as_py()))
    if pc.all(pc.match_substring_regex(values, _PLAIN)).as_py() is not False:  # nulls do not count
        try:
            return values.cast(_DATE)
        except pa.ArrowInvalid:
            pass
    known = values.dictionary_encode()
    days = pa.array([day_of_text(text) for text in known.dictionary.to_pylist()], pa.int32())
    return days.take(known.indices).cast(_DATE)


def day_of_text(text: str) -> int:
    """The days since 1970 that a text stands for; the truth that the fast way is held to."""
    found = _TEXT.fullmatch(text.strip(times.TRIMMED))
    if found is None:
        raise NotATimeError(text)
    sign, year, month, day = found.groups()
    years = -int(year) if sign == "-" else int(year)
    days = times.day_number(years, int(month or 1), int(day or 1))
    if days is None or not _INT[0] <= days <= _INT[1]:
        raise NotATimeError(text)
    return days


def make_date(years: pa.Array, months: Values, day: Values) -> Values:
    year, month, nulls = _together(years, months)
    _, number, more = _together(years, day)
    nulls = more if nulls is None else nulls if more is None else nulls | more
    right = (month >= 1) & (month <= 12) & (number >= 1) & (np.abs(year) <= 999_999_999)
    first = (np.where(right, year, 1970) - 1970) * 12 + np.where(right, month, 1) - 1
    start = _month_start(first)
    wrong = ~right | (number > _month_start(first + 1) - start)
    if (wrong if nulls is None else wrong & ~nulls).any():
        at = int(np.flatnonzero(wrong if nulls is None else wrong & ~nulls)[0])
        raise NotATimeError(f"{year[at]}-{month[at]}-{number[at]}")
    return _made(start + np.where(wrong, 1, number) - 1, nulls, _DATE)


# --- texts ------------------------------------------------------------------------------------------------------------

_PIECES = re.compile(r"yyyy|MM|dd|HH|mm|ss|S{1,6}|'[^']+'|[^A-Za-z']", re.ASCII)
_FREE = frozenset(" -/:.,_")


def format_pieces(pattern: str) -> list[str] | None:
    """The pieces of a format of date_format, or None for one that Spark may write differently.

    >>> format_pieces("dd/MM/yyyy")
    ['dd', '/', 'MM', '/', 'yyyy']
    >>> format_pieces("EEE") is None
    True
    """
    pieces = [piece[0] for piece in _PIECES.finditer(pattern)]
    letters = [piece for piece in pieces if piece[0].isalpha()]
    doubled = any(a[0] == b[0] and a[0].isalpha() for a, b in pairwise(pieces))
    free = all(piece[0].isalpha() or piece[0] == "'" or piece in _FREE for piece in pieces)
    return pieces if "".join(pieces) == pattern and letters and not doubled and free else None


def _digits(numbers: Longs, width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width=width, padding="0")


def _years(days: Longs) -> pa.Array:
    years = _year(days)
    if not years.size or (years.min() >= 0 and years.max() <= 9999):
        return _digits(years, 4)
    signs = pa.array(np.where(years < 0, "-", np.where(years > 9999, "+", "")), pa.string())
    return pc.binary_join_element_wise(signs, _digits(np.abs(years), 4), "")


def _written(days: Longs, micros: Longs, pieces: list[str]) -> pa.Array:
    """micros are those of the day."""
    seconds = micros // SECOND_US
    parts: list[Any] = []
    for piece in pieces:
        match piece:
            case "yyyy":
                parts.append(_years(days))
            case "MM":
                parts.append(_digits(_month_number(days) % 12 + 1, 2))
            case "dd":
                parts.append(_digits(_day(days), 2))
            case "HH":
                parts.append(_digits(seconds // 3600, 2))
            case "mm":
                parts.append(_digits(seconds // 60 % 60, 2))
            case "ss":
                parts.append(_digits(seconds % 60, 2))
            case _ if piece.startswith("S"):
                parts.append(_digits(micros % SECOND_US // 10 ** (6 - len(piece)), len(piece)))
            case _:
                parts.append(pa.repeat(pa.scalar(piece.strip("'"), pa.string()), len(days)))
    return pc.binary_join_element_wise(*parts, "")


def _text(micros: Longs, nulls: Any, pieces: list[str]) -> pa.Array:
    made = _written(micros // DAY_US, micros % DAY_US, pieces)
    return made if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, pa.string()), made)


def date_format(values: pa.Array, form: pa.Scalar) -> Values:
    micros, nulls = _longs(values)
    return _text(micros, nulls, format_pieces(form.as_py()) or [])


def from_unixtime(values: pa.Array, form: pa.Scalar) -> Values:
    seconds, nulls = _longs(values)
    with np.errstate(all="ignore"):
        micros = seconds * np.int64(SECOND_US)  # Spark lets it wrap around
    return _text(micros, nulls, format_pieces(form.as_py()) or [])


def to_text(values: pa.Array) -> Values:
    """CAST(date or timestamp AS STRING)."""
    numbers, nulls = _longs(values)
    if pa.types.is_date(values.type):
        made = _written(numbers, np.zeros_like(numbers), ["yyyy", "-", "MM", "-", "dd"])
        return made if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, pa.string()), made)
    made = _text(numbers, nulls, ["yyyy", "-", "MM", "-", "dd", " ", "HH", ":", "mm", ":", "ss", ".", "SSSSSS"])
    return pc.utf8_rtrim(pc.utf8_rtrim(made, characters="0"), characters=".")


def _second_array(function: Callable[..., Values]) -> Callable[..., Values]:
    """A function whose first argument is a constant of the planner's."""

    def applied(_: object, constant: pa.Scalar, *args: Values) -> Values:
        return on_arrays(lambda first, *more: function(constant, first, *more))(_, *args)

    return applied


FUNCTIONS: dict[str, Callable[..., Values]] = {
    "year": _field(_year),
    "quarter": _field(lambda days: _month_number(days) % 12 // 3 + 1),
    "month": _field(lambda days: _month_number(days) % 12 + 1),
    "day": _field(_day),
    "dayofweek": _field(lambda days: (days + 4) % 7 + 1),
    "weekday": _field(lambda days: (days + 3) % 7),
    "dayofyear": _field(_day_of_year),
    "weekofyear": _field(_week),
    "yearofweek": _field(lambda days: _year(_thursday(days))),
    "hour": _field(lambda micros: micros // (3600 * SECOND_US) % 24),
    "minute": _field(lambda micros: micros // (60 * SECOND_US) % 60),
    "second": _field(lambda micros: micros // SECOND_US % 60),
    "second_with_fraction": on_arrays(second_with_fraction),
    "dayname": _named(_DAYS_OF_WEEK, lambda days: days % 7),
    "monthname": _named(_MONTHS, lambda days: _month_number(days) % 12),
    "trunc": on_arrays(trunc),
    "trunc_quarter": on_arrays(trunc_quarter),
    "date_trunc": _second_array(date_trunc),
    "date_add": on_arrays(date_add),
    "date_sub": on_arrays(date_sub),
    "date_diff": on_arrays(date_diff),
    "add_months": on_arrays(add_months),
    "last_day": on_arrays(last_day),
    "next_day": on_arrays(next_day),
    "plus_micros": on_arrays(plus_micros),
    "plus_months": on_arrays(plus_months),
    "timestamp_diff": _second_array(between),
    "months_diff": _second_array(months_apart),
    "unix_seconds": _units(SECOND_US),
    "unix_millis": _units(1000),
    "unix_micros": _units(1),
    "unix_date": on_arrays(lambda values: values.cast(pa.int32())),
    "date_from_unix_date": on_arrays(lambda values: values.cast(_DATE)),
    "unix_timestamp": on_arrays(unix_timestamp),
    "text_to_timestamp": on_arrays(text_to_timestamp),
    "date_to_timestamp": on_arrays(to_timestamp),
    "date_of": on_arrays(date_of),
    "to_date": on_arrays(to_date),
    "make_date": on_arrays(make_date),
    "date_format": on_arrays(date_format),
    "from_unixtime": on_arrays(from_unixtime),
    "time_to_string": on_arrays(to_text),
}

# What may raise on some row; the rest never does.
RAISING = frozenset({
    "trunc_quarter", "date_trunc", "add_months", "plus_micros", "plus_months", "unix_timestamp", "date_to_timestamp",
    "to_date", "text_to_timestamp", "make_date",
})  # fmt: skip
