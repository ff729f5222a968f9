"""Numbers and text as timestamps, as Spark reads them (ANSI mode, UTC): whole columns, or an error for a value.

Text goes by Arrow's parser where that cannot but agree with Spark, else value by value. One thing is refused that Spark
takes: a time without a date, which means another instant every day.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from borealis.kernels.columns import each
from borealis.tuples import TIMESTAMP

Array: TypeAlias = Any  # pa.Array | pa.ChunkedArray

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
_LONG = (-(2**63), 2**63 - 1)
TRIMMED = "".join(map(chr, range(33))) + "\x7f"  # what Spark cuts off at the ends of a text
_YEAR_MOST = 9999  # that Python knows
ERA_DAYS = 146_097  # four hundred years

# What Arrow's parser and Spark read alike.
_PLAIN = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?)?$"
_ZONED = r"^\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-](0\d|1[0-7]):[0-5]\d)$"

_TEXT = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?(\D.*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_OFFSET = re.compile(r"([+-])(?:(\d)|(\d\d)(?::?(\d\d)(?::?(\d\d))?)?)", re.ASCII)
_OFFSET_S_MOST = 18 * 3600
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+", re.ASCII)
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan", "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh", "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip


class NoValueError(Exception):
    """A value that stands for none of another type."""

    def __init__(self, value: object, kind: str = "time") -> None:
        super().__init__(f"{value!r} is no {kind}")


# --- text -----------------------------------------------------------------------------------------------------------


def from_text(strings: Array) -> Array:
    """CAST(text AS TIMESTAMP).

    >>> from_text(pa.array(["2024-05-01 12:00:00", "2024-05-01T12:00:00+02:00", None])).cast(pa.int64()).to_pylist()
    [1714564800000000, 1714557600000000, None]
    """
    for form, kind in ((_PLAIN, pa.timestamp("us")), (_ZONED, TIMESTAMP)):
        if pc.all(pc.match_substring_regex(strings, form)).as_py() is not False:  # nulls do not count
            try:
                return strings.cast(kind).cast(TIMESTAMP)
            except pa.ArrowInvalid:
                break
    return each(of_text, pa.int64())(strings).cast(TIMESTAMP)


def of_text(text: str) -> int:
    """The microseconds since 1970 that a text stands for; the truth that the fast way is held to."""
    found = _TEXT.fullmatch(text.strip(TRIMMED))
    if found is None:
        raise NoValueError(text)
    sign, year, month, day, hour, minute, second, fraction, zone = found.groups()
    years = -int(year) if sign == "-" else int(year)
    date = (years, int(month or 1), int(day or 1))
    local = _instant(text, date, (int(hour or 0), int(minute or 0), int(second or 0)), _micros(fraction or ""))
    return _checked(text, local if zone is None else _in_zone(text, local, years, zone.strip(TRIMMED)))


def _micros(fraction: str) -> int:
    return int(fraction[:6].ljust(6, "0"))


def _instant(text: str, date: tuple[int, int, int], time: tuple[int, int, int], micros: int) -> int:
    days, (hour, minute, second) = day_number(*date), time
    if days is None or hour > 23 or minute > 59 or second > 59:
        raise NoValueError(text)
    return ((days * 24 + hour) * 60 + minute) * 60 * SECOND_US + second * SECOND_US + micros


def day_number(year: int, month: int, day: int) -> int | None:
    """The days since 1970, by the calendar of today, whatever the year; None if there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= _first_day(year, month + 1) - _first_day(year, month)):
        return None
    return _first_day(year, month) + day - 1


def _first_day(year: int, month: int) -> int:
    year, month = divmod(12 * year + month - 3, 12)  # years begin in March: leap days end them
    era, of_era = divmod(year, 400)
    return era * ERA_DAYS + of_era * 365 + of_era // 4 - of_era // 100 + (153 * month + 2) // 5 - 719_468


def _checked(text: object, micros: int) -> int:
    if not _LONG[0] <= micros <= _LONG[1]:
        raise NoValueError(text)
    return micros


def _in_zone(text: str, local: int, year: int, name: str) -> int:
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", name, count=1, flags=re.ASCII)
    name = re.sub(r"([+-])(\d\d):(\d)$", r"\1\2:0\3", name, flags=re.ASCII)
    name = _SHORT_ZONES.get(name, name)
    offset = name.removeprefix("UTC").removeprefix("GMT").removeprefix("UT") if name[:1] in "UG" else name
    if name in ("Z", "UTC", "GMT", "UT"):
        return local
    if found := _OFFSET.fullmatch(offset):
        sign, digit, hours, minutes, seconds = found.groups()
        away = int(hours or digit) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)
        if int(minutes or 0) > 59 or int(seconds or 0) > 59 or away > _OFFSET_S_MOST:
            raise NoValueError(text)
        return local - (-away if sign == "-" else away) * SECOND_US
    zone = _region(name) if _REGION.fullmatch(name) else None
    if zone is None:
        raise NoValueError(text)
    days, rest = divmod(local, DAY_US)
    eras = min(0, (_YEAR_MOST - year) // 400) or max(0, -((year - 1) // 400))
    days += eras * ERA_DAYS  # into years that Python knows: the calendar and the rules of a zone are those of any era
    seconds, micros = divmod(rest, SECOND_US)
    wall = datetime.fromordinal(days + 719_163).replace(
        hour=seconds // 3600, minute=seconds // 60 % 60, second=seconds % 60, microsecond=micros, tzinfo=zone
    )
    ahead = wall.utcoffset() or timedelta()
    return local - (ahead.days * 86_400 + ahead.seconds) * SECOND_US


@lru_cache
def _region(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        return None


# --- text in a format -----------------------------------------------------------------------------------------------

_LETTERS = {"M": "month", "d": "day", "H": "hour", "m": "minute", "s": "second"}
_FIELDS = {"yyyy": "year"} | {letter * n: field for letter, field in _LETTERS.items() for n in (1, 2)}
_DIGITS = {4: r"(\d{4})", 2: r"(\d{2})", 1: r"(\d{1,19})"}  # that so many letters stand for
_PIECE = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']", re.DOTALL)
_FREE = frozenset(" -/:.,_")  # signs that stand for themselves


@lru_cache
def compiled_format(pattern: str) -> tuple[re.Pattern[str], tuple[str, ...]] | None:
    """How to read a format of to_timestamp, and its fields in order; None for one that Spark may read differently.

    >>> compiled_format("dd/MM/yyyy HH:mm:ss")[1]
    ('day', 'month', 'year', 'hour', 'minute', 'second')
    >>> compiled_format("EEE dd MMM") is None
    True
    """
    made: list[str] = []
    fields: list[str] = []
    end, open_ended = 0, False
    for piece in _PIECE.finditer(pattern):
        text = piece[0]
        if piece.start() != end:
            return None
        end = piece.end()
        if piece[1]:
            if set(text) == {"S"} and len(text) <= 9:
                field, form = "fraction", rf"(\d{{1,{len(text)}}})"
            elif text in _FIELDS:
                field, form = _FIELDS[text], _DIGITS[len(text)]
            else:
                return None
            if field in fields or (open_ended and made and made[-1].startswith("(")):
                return None  # where digits follow digits, Java's parser shares them out by rules of its own
            fields.append(field)
            open_ended = len(text) == 1 or field == "fraction"
            if open_ended and len(made) > 0 and made[-1].startswith("("):
                return None
            made.append(form)
        elif text.startswith("'"):
            made.append(re.escape(text[1:-1].replace("''", "'") or "'"))
        elif text in _FREE:
            made.append(re.escape(text))
        else:
            return None
    if end != len(pattern) or not fields:
        return None
    return re.compile("".join(made), re.ASCII), tuple(fields)


def from_format(strings: Array, pattern: str) -> Array:
    """to_timestamp(text, format), for a format that `compiled_format` knows."""
    known = compiled_format(pattern)
    assert known is not None
    reading, fields = known

    def parse(text: str) -> int:
        found = reading.fullmatch(text)
        if found is None:
            raise NoValueError(text)
        parts = dict(zip(fields, found.groups(), strict=True))
        date = (int(parts.get("year", 1970)), int(parts.get("month", 1)), int(parts.get("day", 1)))
        time = (int(parts.get("hour", 0)), int(parts.get("minute", 0)), int(parts.get("second", 0)))
        return _checked(text, _instant(text, date, time, _micros(parts.get("fraction", ""))))

    return each(parse, pa.int64())(strings).cast(TIMESTAMP)


# --- numbers --------------------------------------------------------------------------------------------------------


def from_units(numbers: Array, unit_us: int) -> Array:
    """timestamp_seconds, _millis or _micros of whole numbers. Raises ArrowInvalid if one is too large."""
    return pc.multiply_checked(numbers.cast(pa.int64()), pa.scalar(unit_us, pa.int64())).cast(TIMESTAMP)


def from_seconds(numbers: Array) -> Array:
    """timestamp_seconds: of a fraction finer than a microsecond the rest goes, if it is no DECIMAL; NaN is null."""
    if pt.is_decimal(numbers.type):
        return _decimals(numbers, exact=True)
    if pt.is_floating(numbers.type):
        finite = pc.is_finite(numbers)
        return _floats(pc.if_else(finite, numbers, pa.scalar(None, numbers.type)), saturated=True)
    return from_units(numbers, SECOND_US)


def from_number(numbers: Array) -> Array:
    """CAST(number AS TIMESTAMP): seconds, too; whole ones that are too large are the last there is."""
    if pt.is_decimal(numbers.type):
        return _decimals(numbers, exact=False)
    if pt.is_floating(numbers.type):
        return _floats(numbers, saturated=False)
    most = _LONG[1] // SECOND_US
    seconds = numbers.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(seconds, -most), pc.less_equal(seconds, most))
    ends = pc.if_else(pc.greater(seconds, 0), pa.scalar(_LONG[1]), pa.scalar(_LONG[0]))
    micros = pc.multiply(pc.if_else(inside, seconds, pa.scalar(0, pa.int64())), SECOND_US)
    return pc.if_else(inside, micros, ends).cast(TIMESTAMP)


def _floats(numbers: Array, *, saturated: bool) -> Array:
    valid = pc.is_valid(numbers).to_numpy(zero_copy_only=False)
    with np.errstate(all="ignore"):
        values = np.trunc(numbers.cast(pa.float64()).to_numpy(zero_copy_only=False) * float(SECOND_US))
    fits = (values >= -(2.0**63)) & (values < 2.0**63)
    if not saturated and bool((valid & ~fits & (values != 2.0**63)).any()):  # 2**63 itself is the largest there is
        raise OverflowError
    longs = np.where(fits, values, 0.0).astype(np.int64)
    longs = np.where(valid & (values >= 2.0**63), _LONG[1], np.where(valid & (values < -(2.0**63)), _LONG[0], longs))
    return pa.array(longs, mask=~valid).cast(TIMESTAMP)


def _decimals(numbers: Array, *, exact: bool) -> Array:
    def micros_of(value: Decimal) -> int:
        with localcontext(prec=80):
            micros = value * SECOND_US
            whole = int(micros)
            if exact and (whole != micros or not _LONG[0] <= whole <= _LONG[1]):
                raise NoValueError(str(value))
        return (whole + 2**63) % 2**64 - 2**63  # a cast keeps the low 64 bits

    return each(micros_of, pa.int64())(numbers).cast(TIMESTAMP)
