"""Which functions of texts, dates and timestamps have an exact Arrow twin: rules from Spark's node to ours.

A rule gets the fields of Spark's node and its translated arguments, and answers None where the twin is not exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from borealis.kernels.dates import format_pieces
from borealis.kernels.expr import FLOATING, INTEGRAL, Call, Expr, Literal, can_raise
from borealis.kernels.regex import java_regex, like_regex
from borealis.kernels.strings import lower_of
from borealis.kernels.times import DAY_US, SECOND_US, compiled_format

TextRule: TypeAlias = Callable[[Mapping[str, Any], list[Expr]], Expr | None]

SIZE_MAX = 10_000  # characters that a text is padded or repeated to: more is left to the one who has the memory
_INT_MIN = -(2**31)
_MONTH_UNITS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_TIME_UNITS = {
    "MICROSECOND": 1, "MILLISECOND": 1000, "SECOND": SECOND_US, "MINUTE": 60 * SECOND_US, "HOUR": 3600 * SECOND_US,
    "DAY": DAY_US, "WEEK": 7 * DAY_US,
}  # fmt: skip
_LEVELS = {"YYYY": "year", "YY": "year", "MM": "month", "MON": "month", "DD": "day"} | {
    name: name.lower() for name in ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")
}
_DATE_LEVELS = frozenset({"year", "quarter", "month", "week"})
_WEEKDAYS = {
    name: number
    for number, day in enumerate(("THURSDAY", "FRIDAY", "SATURDAY", "SUNDAY", "MONDAY", "TUESDAY", "WEDNESDAY"))
    for name in (day, day[:3], day[:2])
}
_DAY_TIME = frozenset(
    f"interval {first}" + (f" to {last}" if last != first else "")
    for i, first in enumerate(("day", "hour", "minute", "second"))
    for last in ("day", "hour", "minute", "second")[i:]
)
_YEAR_MONTH = frozenset({"interval year", "interval month", "interval year to month"})
INTERVALS = _DAY_TIME | _YEAR_MONTH  # types of constants only


def _kinds(args: list[Expr], *kinds: str) -> bool:
    return len(args) == len(kinds) and all(arg.type == kind for arg, kind in zip(args, kinds, strict=True))


def _value(expr: Expr) -> str | None:
    """The text of a constant, or None if it is none, or null."""
    return expr.value if isinstance(expr, Literal) else None


def _whole(expr: Expr) -> int | None:
    value = _value(expr)
    return int(value) if value is not None and expr.type in INTEGRAL else None


def _integer(value: int, kind: str = "integer") -> Literal:
    return Literal(str(value), kind)


def _plain(function: str, result: str, *kinds: str) -> TextRule:
    """A function whose arguments have just these types and go over as they are."""

    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        return Call(function, tuple(args), result) if _kinds(args, *kinds) else None

    return rule


def _in_utc(rule: TextRule) -> TextRule:
    return lambda fields, args: rule(fields, args) if fields.get("timeZoneId") == "UTC" else None


# --- texts ------------------------------------------------------------------------------------------------------------


def _trim(function: str) -> TextRule:
    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        right = all(arg.type == "string" for arg in args) and not (len(args) > 1 and any(map(can_raise, args)))
        return Call(function, tuple(args), "string") if right else None

    return rule


def _concat_ws(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    right = len(args) > 1 and all(arg.type == "string" for arg in args) and not any(map(can_raise, args))
    return Call("concat_ws", tuple(args), "string") if right else None


def _right(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    right = _kinds(args, "string", "integer") and not any(map(can_raise, args))
    return Call("right", tuple(args), "string") if right else None


def _test(function: str) -> TextRule:
    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        return Call(function, tuple(args), "boolean") if _kinds(args, "string", "string") else None

    return rule


def _like(function: str) -> TextRule:
    """The tree does not tell the escape character, so that LIKE ... ESCAPE is declined elsewhere."""

    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        if not _kinds(args, "string", "string"):
            return None
        text, pattern = args[0], _value(args[1])
        if pattern is None or like_regex(pattern if function == "like" else lower_of(pattern)) is None:
            return None
        plain = pattern.strip("%")
        if function == "ilike" or set(plain) & set("%_\\"):
            return Call(function, tuple(args), "boolean")
        match pattern.startswith("%"), pattern.endswith("%"):
            case False, False:
                simple = "eq"
            case before, after:
                simple = "contains" if before and after else "ends_with" if before else "starts_with"
        return Call(simple, (text, Literal(plain, "string")), "boolean")

    return rule


def _rlike(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if not _kinds(args, "string", "string") or (pattern := _value(args[1])) is None:
        return None
    made = java_regex(pattern)
    return Call("rlike", (args[0], Literal(made.regex, "string")), "boolean") if made else None


def _regexp_replace(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if not _kinds(args, "string", "string", "string", "integer") or _whole(args[3]) != 1:
        return None
    pattern, new = _value(args[1]), _value(args[2])
    if pattern is None or new is None or set(new) & set("$\\"):
        return None
    made = java_regex(pattern)
    if made is None or made.empty or made.anchored:
        return None
    return Call("regexp_replace", (args[0], Literal(made.regex, "string"), args[2]), "string")


def _regexp_extract(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if not _kinds(args, "string", "string", "integer"):
        return None
    pattern, group = _value(args[1]), _whole(args[2])
    if pattern is None or group is None or group < 0:
        return None
    made = java_regex(pattern, group)
    if made is None or group > made.groups or made.anchored:
        return None
    return Call("regexp_extract", (args[0], Literal(made.regex, "string")), "string")


def _separator(pattern: str | None) -> str | None:
    """The literal that a pattern of split() stands for."""
    if pattern is None:
        return None
    if len(pattern) == 2 and pattern[0] == "\\" and pattern[1].isascii() and not pattern[1].isalnum():
        return pattern[1]
    return pattern if pattern and not set(pattern) & set("\\^$.|?*+()[]{}") else None


def _split_item(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    """split(text, pattern, limit)[index], and element_at(split(...), number)."""
    if fields.get("failOnError") is not True or not _kinds(args, "string", "string", "integer", "integer"):
        return None
    sign, limit, index = _separator(_value(args[1])), _whole(args[2]), _whole(args[3])
    if sign is None or limit is None or index is None:
        return None
    if fields["counts from"] == 1:
        if index == 0:
            return None
        index = index - 1 if index > 0 else index
    elif index < 0:
        return None
    return Call("split_item", (args[0], Literal(sign, "string"), args[2], _integer(index)), "string")


def _split_part(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    right = _kinds(args, "string", "string", "integer") and _value(args[1]) and _whole(args[2])
    return Call("split_part", tuple(args), "string") if right and _whole(args[2]) != _INT_MIN else None


def _substring_index(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if not _kinds(args, "string", "string", "integer") or len(_value(args[1]) or "") != 1:
        return None
    count = _whole(args[2])
    return Call("substring_index", tuple(args), "string") if count is not None and count != _INT_MIN else None


def _repeat(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    count = _whole(args[1]) if _kinds(args, "string", "integer") else None
    return Call("repeat", tuple(args), "string") if count is not None and count <= SIZE_MAX else None


def _pad(function: str) -> TextRule:
    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        if not _kinds(args, "string", "integer", "string") or _value(args[2]) is None:
            return None
        size = _whole(args[1])
        return Call(function, tuple(args), "string") if size is not None and size <= SIZE_MAX else None

    return rule


def _translate(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    constant = _kinds(args, "string", "string", "string") and None not in (_value(args[1]), _value(args[2]))
    return Call("translate", tuple(args), "string") if constant else None


def _locate(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    right = _kinds(args, "string", "string", "integer") and not any(map(can_raise, args))
    return Call("locate", tuple(args), "integer") if right else None


# --- dates and timestamps ---------------------------------------------------------------------------------------------


def time_cast(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    """Casts of a column to and from dates and timestamps; None for all others."""
    (arg,), kind = args, fields["dataType"]
    if isinstance(arg, Literal) or fields.get("timeZoneId") != "UTC":
        return None
    functions = {
        ("timestamp", "date"): "date_of",
        ("string", "date"): "to_date",
        ("string", "timestamp"): "text_to_timestamp",
        ("date", "timestamp"): "date_to_timestamp",
        ("date", "string"): "time_to_string",
        ("timestamp", "string"): "time_to_string",
    }
    function = functions.get((arg.type, kind))
    return Call(function, (arg,), kind) if function else None


def _date_trunc(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    level = _LEVELS.get((_value(args[0]) or "").upper())
    if level is None or not _kinds(args, "string", "timestamp"):
        return None
    return Call("date_trunc", (Literal(level, "string"), args[1]), "timestamp")


def _trunc(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    level = _LEVELS.get((_value(args[1]) or "").upper())
    if level not in _DATE_LEVELS or not _kinds(args, "date", "string"):
        return None
    if level == "quarter":
        return Call("trunc_quarter", (args[0],), "date")
    return Call("trunc", (args[0], Literal(level, "string")), "date")


def _date_add(function: str) -> TextRule:
    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        right = len(args) == 2 and args[0].type == "date" and args[1].type in ("byte", "short", "integer")
        return Call(function, tuple(args), "date") if right else None

    return rule


def _next_day(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    day = _WEEKDAYS.get((_value(args[1]) or "").upper())
    if day is None or args[0].type != "date" or fields.get("failOnError") is not True:
        return None
    return Call("next_day", (args[0], _integer(day)), "date")


def _to_date(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if fields.get("ansiEnabled") is not True:
        return None
    if len(args) == 1:
        return args[0] if args[0].type == "date" else time_cast({**fields, "dataType": "date"}, args)
    return Call("to_date", tuple(args), "date") if _formatted(args) else None


def _to_timestamp(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if fields.get("failOnError") is not True or fields["dataType"] != "timestamp":
        return None
    if len(args) == 1:
        return args[0] if args[0].type == "timestamp" else time_cast(fields, args)
    return Call("to_timestamp", tuple(args), "timestamp") if _formatted(args) else None


def _formatted(args: list[Expr]) -> bool:
    form = _value(args[1]) if _kinds(args, "string", "string") and not isinstance(args[0], Literal) else None
    return form is not None and compiled_format(form) is not None


def _unix_timestamp(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    if fields.get("failOnError") is not True or len(args) != 2:
        return None
    if args[0].type in ("timestamp", "date") and _value(args[1]) is not None:
        return Call("unix_timestamp", (args[0],), "long")
    form = _value(args[1])
    right = form is not None and "S" not in form and _formatted(args)
    return Call("unix_timestamp", tuple(args), "long") if right else None


def _written(function: str, kind: str) -> TextRule:
    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        form = _value(args[1]) if _kinds(args, kind, "string") else None
        return Call(function, tuple(args), "string") if form is not None and format_pieces(form) else None

    return rule


def _plus_interval(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    time, interval = args
    value = _value(interval)
    if time.type != "timestamp" or value is None or interval.type not in INTERVALS:
        return None
    if interval.type in _YEAR_MONTH:
        return Call("plus_months", (time, _integer(int(value))), "timestamp")
    return Call("plus_micros", (time, _integer(int(value), "long")), "timestamp")


def _date_plus_months(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    date, interval = args
    value = _value(interval)
    if date.type != "date" or value is None or interval.type not in _YEAR_MONTH:
        return None
    return Call("add_months", (date, _integer(int(value))), "date")


def _timestamp_add(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    """Only of constant counts: Spark evaluates the count first."""
    count, time = args
    number, unit = _whole(count), str(fields.get("unit")).upper()
    if number is None or time.type != "timestamp":
        return None
    if unit in _MONTH_UNITS:
        months = number * _MONTH_UNITS[unit]
        return Call("plus_months", (time, _integer(months)), "timestamp") if abs(months) < 2**31 else None
    micros = number * _TIME_UNITS.get(unit, 2**64)
    if unit == "MICROSECOND" or abs(micros) >= 2**63:
        return None
    return Call("plus_micros", (time, _integer(micros, "long")), "timestamp")


def _timestamp_diff(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    unit = str(fields.get("unit")).upper()
    if not _kinds(args, "timestamp", "timestamp") or unit == "MICROSECOND":  # that one may overflow
        return None
    if unit in _MONTH_UNITS:
        return Call("months_diff", (_integer(_MONTH_UNITS[unit]), *args), "long")
    return Call("timestamp_diff", (_integer(_TIME_UNITS[unit], "long"), *args), "long") if unit in _TIME_UNITS else None


def _units(function: str, kinds: tuple[str, ...]) -> TextRule:
    def rule(_: Mapping[str, Any], args: list[Expr]) -> Expr | None:
        decimal = function == "timestamp_seconds" and args[0].type.startswith("decimal")
        right = (args[0].type in kinds or decimal) and not isinstance(args[0], Literal)
        return Call(function, tuple(args), "timestamp") if right else None

    return rule


def _make_date(fields: Mapping[str, Any], args: list[Expr]) -> Expr | None:
    right = _kinds(args, "integer", "integer", "integer") and fields.get("failOnError") is True
    return Call("make_date", tuple(args), "date") if right else None


RULES: dict[str, TextRule] = {
    "Upper": _plain("upper", "string", "string"),
    "Lower": _plain("lower", "string", "string"),
    "StringTrim": _trim("trim"),
    "StringTrimLeft": _trim("ltrim"),
    "StringTrimRight": _trim("rtrim"),
    "Substring": _plain("substring", "string", "string", "integer", "integer"),
    "Left": _plain("left", "string", "string", "integer"),
    "Right": _right,
    "ConcatWs": _concat_ws,
    "StartsWith": _test("starts_with"),
    "EndsWith": _test("ends_with"),
    "Contains": _test("contains"),
    "Like": _like("like"),
    "ILike": _like("ilike"),
    "RLike": _rlike,
    "RegExpReplace": _regexp_replace,
    "RegExpExtract": _regexp_extract,
    "SplitItem": _split_item,
    "SplitPart": _split_part,
    "SubstringIndex": _substring_index,
    "StringReplace": _plain("replace", "string", "string", "string", "string"),
    "Reverse": _plain("reverse", "string", "string"),
    "StringRepeat": _repeat,
    "StringLPad": _pad("lpad"),
    "StringRPad": _pad("rpad"),
    "StringTranslate": _translate,
    "StringInstr": _plain("position", "integer", "string", "string"),
    "StringLocate": _locate,
    "Ascii": _plain("ascii", "integer", "string"),
    "OctetLength": _plain("octet_length", "integer", "string"),
    "BitLength": _plain("bit_length", "integer", "string"),
    "Year": _plain("year", "integer", "date"),
    "Quarter": _plain("quarter", "integer", "date"),
    "Month": _plain("month", "integer", "date"),
    "DayOfMonth": _plain("day", "integer", "date"),
    "DayOfWeek": _plain("dayofweek", "integer", "date"),
    "WeekDay": _plain("weekday", "integer", "date"),
    "DayOfYear": _plain("dayofyear", "integer", "date"),
    "WeekOfYear": _plain("weekofyear", "integer", "date"),
    "YearOfWeek": _plain("yearofweek", "integer", "date"),
    "DayName": _plain("dayname", "string", "date"),
    "MonthName": _plain("monthname", "string", "date"),
    "Hour": _in_utc(_plain("hour", "integer", "timestamp")),
    "Minute": _in_utc(_plain("minute", "integer", "timestamp")),
    "Second": _in_utc(_plain("second", "integer", "timestamp")),
    "SecondWithFraction": _in_utc(_plain("second_with_fraction", "decimal(8,6)", "timestamp")),
    "TruncTimestamp": _in_utc(_date_trunc),
    "TruncDate": _trunc,
    "DateAdd": _date_add("date_add"),
    "DateSub": _date_add("date_sub"),
    "DateDiff": _plain("date_diff", "integer", "date", "date"),
    "AddMonths": _plain("add_months", "date", "date", "integer"),
    "LastDay": _plain("last_day", "date", "date"),
    "NextDay": _next_day,
    "ParseToDate": _in_utc(_to_date),
    "ParseToTimestamp": _in_utc(_to_timestamp),
    "UnixTimestamp": _in_utc(_unix_timestamp),
    "ToUnixTimestamp": _in_utc(_unix_timestamp),
    "UnixSeconds": _plain("unix_seconds", "long", "timestamp"),
    "UnixMillis": _plain("unix_millis", "long", "timestamp"),
    "UnixMicros": _plain("unix_micros", "long", "timestamp"),
    "UnixDate": _plain("unix_date", "integer", "date"),
    "DateFromUnixDate": _plain("date_from_unix_date", "date", "integer"),
    "SecondsToTimestamp": _units("timestamp_seconds", (*INTEGRAL, *FLOATING)),
    "MillisToTimestamp": _units("timestamp_millis", INTEGRAL),
    "MicrosToTimestamp": _units("timestamp_micros", INTEGRAL),
    "FromUnixTime": _in_utc(_written("from_unixtime", "long")),
    "DateFormatClass": _in_utc(_written("date_format", "timestamp")),
    "TimestampAddInterval": _in_utc(_plus_interval),
    "TimestampAddYMInterval": _in_utc(_plus_interval),
    "DateAddYMInterval": _date_plus_months,
    "TimestampAdd": _in_utc(_timestamp_add),
    "TimestampDiff": _in_utc(_timestamp_diff),
    "MakeDate": _make_date,
}

# Nodes of Spark's that stand for their one child.
TRANSPARENT = frozenset({"StringTrimBoth", "Extract", "DatePart", "DatetimeSub", "EqualNull"})
