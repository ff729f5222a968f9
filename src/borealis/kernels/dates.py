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

from borealis.clock import WALL
from borealis.kernels import decimals, times
from borealis.kernels.columns import Values, each, full, on_arrays
from borealis.kernels.times import DAY_US, SECOND_US, NoValueError
from borealis.tuples import TIMESTAMP

Longs: TypeAlias = npt.NDArray[np.int64]

_DATE, _INT, _LONG = pa.date32(), pa.int32(), pa.int64()
_INT_ENDS, _LONG_ENDS = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_DAYS_OF_WEEK = ("Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed")  # 1970 began on a Thursday
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TEXT = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_CLOCK = re.compile(r"(?:T(?=\d)|(?=\d{1,2}:))([\d:.]+)(.*)", re.ASCII | re.DOTALL)
_PLAIN = r"^\d{4}-\d\d-\d\d$"


# --- numbers in and out -----------------------------------------------------------------------------------------------


def _longs(*columns: Values) -> tuple[list[Longs], Any]:
    """The numbers of dates (days), timestamps (microseconds) or numbers, and where one is null: None if nowhere.

    There all of them are 0, for which no function raises.
    """
    n = next((len(column) for column in columns if not isinstance(column, pa.Scalar)), 1)
    numbers, nulls = [], None
    for column in columns:
        values = full(column, n)
        values = (values.cast(_INT) if pa.types.is_date(values.type) else values).cast(_LONG)
        if values.null_count:
            mine = pc.is_null(values).to_numpy(zero_copy_only=False)
            nulls = mine if nulls is None else nulls | mine
            values = values.fill_null(0)
        numbers.append(values.to_numpy(zero_copy_only=False))
    return numbers if nulls is None or len(numbers) == 1 else [np.where(nulls, 0, some) for some in numbers], nulls


def _made(numbers: Any, nulls: Any, type: pa.DataType) -> pa.Array:
    """The array of these numbers. Raises OverflowError if one is not in the type's range."""
    if type in (TIMESTAMP, _LONG):
        return pa.array(numbers, _LONG, mask=nulls).cast(type)
    if numbers.size and (numbers.min() < _INT_ENDS[0] or numbers.max() > _INT_ENDS[1]):
        raise OverflowError
    return pa.array(numbers.astype(np.int32), _INT, mask=nulls).cast(type)


def _of(type: pa.DataType, function: Callable[..., Longs]) -> Callable[..., Values]:
    """A function of the numbers of all arguments, null where one is."""

    def applied(*columns: Values) -> Values:
        numbers, nulls = _longs(*columns)
        return _made(function(*numbers), nulls, type)

    return on_arrays(applied)


def _wrapped(numbers: Longs) -> Longs:
    return numbers.astype(np.int32).astype(np.int64)


def _exact(result: Longs, wrong: Any) -> Longs:
    if wrong.any():
        raise OverflowError
    return result


def _sum(a: Longs, b: Longs) -> Longs:
    with np.errstate(all="ignore"):
        total = a + b
    return _exact(total, ((a ^ total) & (b ^ total)) < 0)


def _day_start(days: Longs) -> Longs:
    """The microseconds at which a day begins."""
    with np.errstate(all="ignore"):
        product = days * np.int64(DAY_US)
    return _exact(product, (days > _LONG_ENDS[1] // DAY_US) | (days < -(2**63 // DAY_US)))


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


def _day_of_year(days: Longs) -> Longs:
    return days - _month_start((_year(days) - 1970) * 12) + 1


def _named(names: tuple[str, ...], function: Callable[[Longs], Longs]) -> Callable[..., Values]:
    def applied(values: pa.Array) -> Values:
        (numbers,), nulls = _longs(values)
        return pa.array(names, pa.string()).take(pa.array(function(numbers), mask=nulls))

    return on_arrays(applied)


def _second_with_fraction(values: pa.Array) -> Values:
    """extract(SECOND FROM ts): a DECIMAL(8,6)."""
    (micros,), nulls = _longs(values)
    return decimals.together(micros % (60 * SECOND_US), None if nulls is None else ~nulls, pa.decimal128(8, 6))


# --- truncating -----------------------------------------------------------------------------------------------------

_MONTHS_OF = {"month": 1, "quarter": 3, "year": 12}
_MICROS_OF = {"second": SECOND_US, "minute": 60 * SECOND_US, "hour": 3600 * SECOND_US, "day": DAY_US}
_MONDAY = 4


def _next_weekday(days: Longs, weekday: Longs | int) -> Longs:
    """The first day behind these that is such a day of the week, counted from Thursday; in Java's 32 bits."""
    return _wrapped(days + 1 + (np.fmod(_wrapped(weekday - 1 - days), 7) + 7) % 7)


def _truncated(days: Longs, level: str) -> Longs:
    if level == "week":
        return _next_weekday(_wrapped(days - 7), _MONDAY)
    months = _month_number(days)
    return _month_start(months - months % _MONTHS_OF[level])


def _trunc(values: pa.Array, level: pa.Scalar) -> Values:
    """Spark lets it wrap around, at all levels but the quarter."""
    (days,), nulls = _longs(values)
    return _made(_wrapped(_truncated(days, level.as_py())), nulls, _DATE)


def _date_trunc(level: pa.Scalar, values: pa.Array) -> Values:
    (micros,), nulls = _longs(values)
    unit = level.as_py()
    if unit in _MONTHS_OF or unit == "week":
        return _made(_day_start(_truncated(micros // DAY_US, unit)), nulls, TIMESTAMP)
    rest = micros % _MICROS_OF[unit]
    return _made(_exact(micros - rest, micros < _LONG_ENDS[0] + rest), nulls, TIMESTAMP)


# --- counting -------------------------------------------------------------------------------------------------------


def _timestamp_plus_months(micros: Longs, months: Longs) -> Longs:
    """So many months on, at the same time of the day."""
    days, rest = micros // DAY_US, micros % DAY_US
    there = _plus_months(days, months)
    (first, first_us), (last, last_us) = (divmod(end, DAY_US) for end in _LONG_ENDS)
    below = (there < first) | ((there == first) & (rest < first_us))
    above = (there > last) | ((there == last) & (rest > last_us))
    with np.errstate(all="ignore"):
        result = there * np.int64(DAY_US) + rest
    return _exact(result, below | above)


def _units_apart(unit_us: pa.Scalar, start: Values, end: Values) -> Values:
    """timestampdiff: whole units from start to end, towards zero."""
    unit = unit_us.as_py()
    (first, last), nulls = _longs(start, end)
    with np.errstate(all="ignore"):
        away = last - first
    if (((last ^ first) & (last ^ away)) < 0).any():  # more than 64 bits: once in 292,000 years
        exact = last.astype(object) - first.astype(object)
        counts = [int(abs(n) // unit) * (1 if n >= 0 else -1) for n in exact]
        if any(not _LONG_ENDS[0] <= n <= _LONG_ENDS[1] for n in counts):
            raise OverflowError
        return _made(np.array(counts, np.int64), nulls, _LONG)
    return _made(away // unit + ((away < 0) & (away % unit != 0)), nulls, _LONG)


def _months_apart(size: pa.Scalar, start: Values, end: Values) -> Values:
    """timestampdiff in months, quarters or years: whole ones, towards zero."""
    (first, last), nulls = _longs(start, end)
    days = [first // DAY_US, last // DAY_US]
    months = _month_number(days[1]) - _month_number(days[0])
    inside = [_day(day) * DAY_US + micros % DAY_US for day, micros in zip(days, (first, last), strict=True)]
    months = np.where((months > 0) & (inside[1] < inside[0]), months - 1, months)
    months = np.where((months < 0) & (inside[1] > inside[0]), months + 1, months)
    return _made(np.sign(months) * (np.abs(months) // size.as_py()), nulls, _LONG)


def _unix_timestamp(values: pa.Array, form: Values = None) -> Values:
    """Before 1970 towards zero, other than unix_seconds."""
    if pa.types.is_string(values.type):
        values = times.from_format(values, form.as_py())
    elif pa.types.is_date(values.type):
        values = to_timestamp(None, values)
    (micros,), nulls = _longs(values)
    return _made(micros // SECOND_US + ((micros < 0) & (micros % SECOND_US != 0)), nulls, _LONG)


# --- one type from another --------------------------------------------------------------------------------------------

to_timestamp = _of(TIMESTAMP, _day_start)  # CAST(date AS TIMESTAMP)
date_of = _of(_DATE, lambda micros: micros // DAY_US)  # CAST(timestamp AS DATE)


def text_to_timestamp(values: pa.Array) -> Values:
    """CAST(text AS TIMESTAMP): as `times.from_text`, but a time without a date is one of today, as it is to Spark."""
    try:
        return times.from_text(values)
    except NoValueError:
        now = datetime.fromtimestamp(WALL.time(), UTC)
        return each(lambda text: time_of_text(text, now), _LONG)(values).cast(TIMESTAMP)


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
    except NoValueError:
        raise NoValueError(text) from None


def to_date(values: pa.Array, form: Values = None) -> Values:
    """CAST(text AS DATE), and to_date(text, format)."""
    if form is not None:
        return date_of(None, times.from_format(values, form.as_py()))
    if pc.all(pc.match_substring_regex(values, _PLAIN)).as_py() is not False:  # nulls do not count
        try:
            return values.cast(_DATE)
        except pa.ArrowInvalid:
            pass
    return each(day_of_text, _INT)(values).cast(_DATE)


def day_of_text(text: str) -> int:
    """The days since 1970 that a text stands for; the truth that the fast way is held to.

    >>> day_of_text("1970-1-2"), day_of_text(" 1970-01-03 whatever ")
    (1, 2)
    """
    found = _TEXT.fullmatch(text.strip(times.TRIMMED))
    if found is None:
        raise NoValueError(text)
    sign, year, month, day = found.groups()
    days = times.day_number(-int(year) if sign == "-" else int(year), int(month or 1), int(day or 1))
    if days is None or not _INT_ENDS[0] <= days <= _INT_ENDS[1]:
        raise NoValueError(text)
    return days


def _make_date(years: pa.Array, months: Values, day: Values) -> Values:
    (year, month, number), nulls = _longs(years, months, day)
    right = (month >= 1) & (month <= 12) & (number >= 1) & (np.abs(year) <= 999_999_999)
    first = (np.where(right, year, 1970) - 1970) * 12 + np.where(right, month, 1) - 1
    start = _month_start(first)
    wrong = ~right | (number > _month_start(first + 1) - start)
    faults = np.flatnonzero(wrong if nulls is None else wrong & ~nulls)
    if len(faults):
        at = int(faults[0])
        raise NoValueError(f"{year[at]}-{month[at]}-{number[at]}")
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


_WRITTEN: dict[str, Callable[[Longs, Longs], pa.Array]] = {  # of the days, and of the microseconds of the day
    "yyyy": lambda days, _: _years(days),
    "MM": lambda days, _: _digits(_month_number(days) % 12 + 1, 2),
    "dd": lambda days, _: _digits(_day(days), 2),
    "HH": lambda _, micros: _digits(micros // (3600 * SECOND_US), 2),
    "mm": lambda _, micros: _digits(micros // (60 * SECOND_US) % 60, 2),
    "ss": lambda _, micros: _digits(micros // SECOND_US % 60, 2),
}


def _text(days: Longs, micros: Longs, nulls: Any, pieces: list[str]) -> pa.Array:
    parts: list[Any] = []
    for piece in pieces:
        if piece in _WRITTEN:
            parts.append(_WRITTEN[piece](days, micros))
        elif piece.startswith("S"):
            parts.append(_digits(micros % SECOND_US // 10 ** (6 - len(piece)), len(piece)))
        else:
            parts.append(pa.repeat(pa.scalar(piece.strip("'"), pa.string()), len(days)))
    made = pc.binary_join_element_wise(*parts, "")
    return made if nulls is None else pc.if_else(pa.array(nulls), pa.scalar(None, made.type), made)


def _formatted(values: pa.Array, form: pa.Scalar, unit_us: int = 1) -> Values:
    (numbers,), nulls = _longs(values)
    with np.errstate(all="ignore"):
        micros = numbers * np.int64(unit_us)  # of seconds: Spark lets it wrap around
    return _text(micros // DAY_US, micros % DAY_US, nulls, format_pieces(form.as_py()) or [])


def to_text(values: pa.Array) -> Values:
    """CAST(date or timestamp AS STRING)."""
    (numbers,), nulls = _longs(values)
    day = ["yyyy", "-", "MM", "-", "dd"]
    if pa.types.is_date(values.type):
        return _text(numbers, np.zeros_like(numbers), nulls, day)
    pieces = [*day, " ", "HH", ":", "mm", ":", "ss", ".", "SSSSSS"]
    made = _text(numbers // DAY_US, numbers % DAY_US, nulls, pieces)
    return pc.utf8_rtrim(pc.utf8_rtrim(made, characters="0"), characters=".")


def _second_array(function: Callable[..., Values]) -> Callable[..., Values]:
    """A function whose first argument is a constant of the planner's."""

    def applied(_: object, constant: pa.Scalar, *args: Values) -> Values:
        return on_arrays(lambda first, *more: function(constant, first, *more))(_, *args)

    return applied


FUNCTIONS: dict[str, Callable[..., Values]] = {
    "year": _of(_INT, _year),
    "quarter": _of(_INT, lambda days: _month_number(days) % 12 // 3 + 1),
    "month": _of(_INT, lambda days: _month_number(days) % 12 + 1),
    "day": _of(_INT, _day),
    "dayofweek": _of(_INT, lambda days: (days + 4) % 7 + 1),
    "weekday": _of(_INT, lambda days: (days + 3) % 7),
    "dayofyear": _of(_INT, _day_of_year),
    "weekofyear": _of(_INT, lambda days: (_day_of_year(_thursday(days)) + 6) // 7),
    "yearofweek": _of(_INT, lambda days: _year(_thursday(days))),
    "hour": _of(_INT, lambda micros: micros // (3600 * SECOND_US) % 24),
    "minute": _of(_INT, lambda micros: micros // (60 * SECOND_US) % 60),
    "second": _of(_INT, lambda micros: micros // SECOND_US % 60),
    "second_with_fraction": on_arrays(_second_with_fraction),
    "dayname": _named(_DAYS_OF_WEEK, lambda days: days % 7),
    "monthname": _named(_MONTHS, lambda days: _month_number(days) % 12),
    "trunc": on_arrays(_trunc),
    "trunc_quarter": _of(_DATE, lambda days: _truncated(days, "quarter")),
    "date_trunc": _second_array(_date_trunc),
    "date_add": _of(_DATE, lambda days, more: _wrapped(days + more)),
    "date_sub": _of(_DATE, lambda days, less: _wrapped(days - less)),
    "date_diff": _of(_INT, lambda end, start: _wrapped(end - start)),
    "add_months": _of(_DATE, _plus_months),
    "last_day": _of(_DATE, lambda days: _wrapped(_month_start(_month_number(days) + 1) - 1)),
    "next_day": _of(_DATE, _next_weekday),
    "plus_micros": _of(TIMESTAMP, _sum),
    "plus_months": _of(TIMESTAMP, _timestamp_plus_months),
    "timestamp_diff": _second_array(_units_apart),
    "months_diff": _second_array(_months_apart),
    "unix_seconds": _of(_LONG, lambda micros: micros // SECOND_US),
    "unix_millis": _of(_LONG, lambda micros: micros // 1000),
    "unix_micros": _of(_LONG, lambda micros: micros),
    "unix_date": on_arrays(lambda values: values.cast(_INT)),
    "date_from_unix_date": on_arrays(lambda values: values.cast(_DATE)),
    "unix_timestamp": on_arrays(_unix_timestamp),
    "text_to_timestamp": on_arrays(text_to_timestamp),
    "date_to_timestamp": to_timestamp,
    "date_of": date_of,
    "to_date": on_arrays(to_date),
    "make_date": on_arrays(_make_date),
    "date_format": on_arrays(_formatted),
    "from_unixtime": on_arrays(lambda values, form: _formatted(values, form, SECOND_US)),
    "time_to_string": on_arrays(to_text),
}

# What may raise on some row; the rest never does.
RAISING = frozenset({
    "trunc_quarter", "date_trunc", "add_months", "plus_micros", "plus_months", "unix_timestamp", "date_to_timestamp",
    "to_date", "text_to_timestamp", "make_date",
})  # fmt: skip
