"""Which functions of texts, dates and timestamps have an exact Arrow twin: rules from Spark's node to ours."""

from __future__ import annotations

from collections.abc import Callable

from borealis.compile.numeric_rules import cast, time_cast
from borealis.compile.rules import Fields, Rule, are, calm, decline_unless, plain, sure, value, where, whole
from borealis.kernels.dates import format_pieces
from borealis.kernels.expr import FLOATING, INTEGRAL, Call, Expr, Literal
from borealis.kernels.regex import java_regex, like_regex
from borealis.kernels.strings import lower_of
from borealis.kernels.times import DAY_US, SECOND_US, compiled_format

SIZE_MAX = 10_000  # characters that a text is padded or repeated to: more is left to the one who has the memory
_INT_MIN = -(2**31)
_MONTH_UNITS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_TIME_UNITS = {
    "MILLISECOND": 1000, "SECOND": SECOND_US, "MINUTE": 60 * SECOND_US, "HOUR": 3600 * SECOND_US,
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


def _integer(number: int, kind: str = "integer") -> Literal:
    return Literal(str(number), kind)


def _in_utc(rule: Rule) -> Rule:
    return where(rule, timeZoneId="UTC")


# --- texts ------------------------------------------------------------------------------------------------------------


def _texts(function: str, when: Callable[[list[Expr]], object]) -> Rule:
    """A function of any number of texts."""

    def rule(_: Fields, args: list[Expr]) -> Expr:
        decline_unless(all(arg.type == "string" for arg in args) and when(args))
        return Call(function, tuple(args), "string")

    return rule


def _trim(function: str) -> Rule:
    return _texts(function, lambda args: len(args) == 1 or calm(args))


def _like(function: str) -> Rule:
    """The tree does not tell the escape character, so that LIKE ... ESCAPE is declined elsewhere."""

    def rule(_: Fields, args: list[Expr]) -> Expr:
        decline_unless(are(args, "string", "string"))
        text, pattern = args[0], sure(value(args[1]))
        sure(like_regex(pattern if function == "like" else lower_of(pattern)))
        simple = pattern.strip("%")
        if function == "ilike" or set(simple) & set("%_\\"):
            return Call(function, tuple(args), "boolean")
        match pattern.startswith("%"), pattern.endswith("%"):
            case False, False:
                test = "eq"
            case before, after:
                test = "contains" if before and after else "ends_with" if before else "starts_with"
        return Call(test, (text, Literal(simple, "string")), "boolean")

    return rule


def _rlike(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(are(args, "string", "string"))
    made = sure(java_regex(sure(value(args[1]))))
    return Call("rlike", (args[0], Literal(made.regex, "string")), "boolean")


def _regexp_replace(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(are(args, "string", "string", "string", "integer") and whole(args[3]) == 1)
    made, new = sure(java_regex(sure(value(args[1])))), sure(value(args[2]))
    decline_unless(not made.empty and not made.anchored and not set(new) & set("$\\"))
    return Call("regexp_replace", (args[0], Literal(made.regex, "string"), args[2]), "string")


def _regexp_extract(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(are(args, "string", "string", "integer"))
    pattern, group = sure(value(args[1])), sure(whole(args[2]))
    decline_unless(group >= 0)
    made = sure(java_regex(pattern, group))
    decline_unless(group <= made.groups and not made.anchored)
    return Call("regexp_extract", (args[0], Literal(made.regex, "string")), "string")


def _separator(pattern: str) -> str | None:
    """The literal that a pattern of split() stands for."""
    if len(pattern) == 2 and pattern[0] == "\\" and pattern[1].isascii() and not pattern[1].isalnum():
        return pattern[1]
    return pattern if pattern and not set(pattern) & set("\\^$.|?*+()[]{}") else None


def _split_item(fields: Fields, args: list[Expr]) -> Expr:
    """split(text, pattern, limit)[index], and element_at(split(...), number)."""
    decline_unless(are(args, "string", "string", "integer", "integer"))
    sign, index = sure(_separator(sure(value(args[1])))), sure(whole(args[3]))
    sure(whole(args[2]))
    if fields["counts from"] == 1:
        decline_unless(index != 0)
        index = index - 1 if index > 0 else index
    else:
        decline_unless(index >= 0)
    return Call("split_item", (args[0], Literal(sign, "string"), args[2], _integer(index)), "string")


def _counted(function: str, when: Callable[[str, int], object]) -> Rule:
    """A function of a text that is cut at a constant sign, a constant number of times."""

    def known(args: list[Expr]) -> object:
        sign, count = value(args[1]), whole(args[2])
        return sign is not None and count is not None and count != _INT_MIN and when(sign, count)

    return plain(function, "string", "string", "string", "integer", when=known)


def _sized(function: str, *kinds: str) -> Rule:
    """A function that makes a text of a small constant size, with constants behind that."""

    def known(args: list[Expr]) -> bool:
        size = whole(args[1])
        return size is not None and size <= SIZE_MAX and None not in map(value, args[2:])

    return plain(function, "string", "string", "integer", *kinds, when=known)


# --- dates and timestamps ---------------------------------------------------------------------------------------------


def _level(expr: Expr) -> str | None:
    return _LEVELS.get((value(expr) or "").upper())


def _date_trunc(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(are(args, "string", "timestamp"))
    return Call("date_trunc", (Literal(sure(_level(args[0])), "string"), args[1]), "timestamp")


def _trunc(_: Fields, args: list[Expr]) -> Expr:
    level = _level(args[1])
    decline_unless(are(args, "date", "string") and level in _DATE_LEVELS)
    if level == "quarter":
        return Call("trunc_quarter", (args[0],), "date")
    return Call("trunc", (args[0], Literal(level, "string")), "date")


def _next_day(_: Fields, args: list[Expr]) -> Expr:
    day = sure(_WEEKDAYS.get((value(args[1]) or "").upper()))
    decline_unless(args[0].type == "date")
    return Call("next_day", (args[0], _integer(day)), "date")


def _parsed(function: str, kind: str) -> Rule:
    """to_date or to_timestamp: of one argument a cast, of two by a format."""

    def rule(_: Fields, args: list[Expr]) -> Expr:
        if len(args) == 1:
            return args[0] if args[0].type == kind else sure(time_cast(args[0], kind))
        decline_unless(_formatted(args))
        return Call(function, tuple(args), kind)

    return rule


def _formatted(args: list[Expr]) -> bool:
    form = value(args[1]) if are(args, "string", "string") and not isinstance(args[0], Literal) else None
    return form is not None and compiled_format(form) is not None


def _unix_timestamp(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(len(args) == 2)
    form = sure(value(args[1]))
    if args[0].type in ("timestamp", "date"):
        return Call("unix_timestamp", (args[0],), "long")
    decline_unless("S" not in form and _formatted(args))
    return Call("unix_timestamp", tuple(args), "long")


def _written(function: str, kind: str) -> Rule:
    return _in_utc(plain(function, "string", kind, "string", when=lambda args: format_pieces(value(args[1]) or "")))


def _plus(time: Expr, months: int | None = None, micros: int = 0) -> Expr:
    if months is not None:
        return Call("plus_months", (time, _integer(months)), "timestamp")
    return Call("plus_micros", (time, _integer(micros, "long")), "timestamp")


def _plus_interval(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(are(args, "timestamp", INTERVALS))
    count = int(sure(value(args[1])))
    return _plus(args[0], months=count) if args[1].type in _YEAR_MONTH else _plus(args[0], micros=count)


def _date_plus_months(_: Fields, args: list[Expr]) -> Expr:
    decline_unless(are(args, "date", _YEAR_MONTH))
    return Call("add_months", (args[0], _integer(int(sure(value(args[1]))))), "date")


def _timestamp_add(fields: Fields, args: list[Expr]) -> Expr:
    """Only of constant counts: Spark evaluates the count first."""
    count, time = args
    number, unit = sure(whole(count)), str(fields.get("unit")).upper()
    decline_unless(time.type == "timestamp")
    if unit in _MONTH_UNITS:
        months = number * _MONTH_UNITS[unit]
        decline_unless(abs(months) < 2**31)
        return _plus(time, months=months)
    micros = number * sure(_TIME_UNITS.get(unit))
    decline_unless(abs(micros) < 2**63)
    return _plus(time, micros=micros)


def _timestamp_diff(fields: Fields, args: list[Expr]) -> Expr:
    unit = str(fields.get("unit")).upper()
    decline_unless(are(args, "timestamp", "timestamp"))
    if unit in _MONTH_UNITS:
        return Call("months_diff", (_integer(_MONTH_UNITS[unit]), *args), "long")
    return Call("timestamp_diff", (_integer(sure(_TIME_UNITS.get(unit)), "long"), *args), "long")


_SECONDS_OF = (*INTEGRAL, *FLOATING, "decimal")


def _time_of(function: str, *kinds: str) -> Rule:
    return plain(function, "timestamp", kinds, when=lambda args: not isinstance(args[0], Literal))


_FIELDS = ("Year", "Quarter", "Month", "DayOfWeek", "WeekDay", "DayOfYear", "WeekOfYear", "YearOfWeek")  # of a date

RULES: dict[str, Rule] = {
    **{name: plain(name.lower(), "string", "string") for name in ("Upper", "Lower", "Reverse")},
    **{name: plain(name.lower(), "integer", "date") for name in _FIELDS},
    **{name: plain(name.lower(), "string", "date") for name in ("DayName", "MonthName")},
    "StringTrim": _trim("trim"),
    "StringTrimLeft": _trim("ltrim"),
    "StringTrimRight": _trim("rtrim"),
    "Substring": plain("substring", "string", "string", "integer", "integer"),
    "Left": plain("left", "string", "string", "integer"),
    "Right": plain("right", "string", "string", "integer", when=calm),
    "ConcatWs": _texts("concat_ws", lambda args: len(args) > 1 and calm(args)),
    "StartsWith": plain("starts_with", "boolean", "string", "string"),
    "EndsWith": plain("ends_with", "boolean", "string", "string"),
    "Contains": plain("contains", "boolean", "string", "string"),
    **{name: _like(name.lower()) for name in ("Like", "ILike")},
    "RLike": _rlike,
    "RegExpReplace": _regexp_replace,
    "RegExpExtract": _regexp_extract,
    "SplitItem": where(_split_item, failOnError=True),
    "SplitPart": _counted("split_part", lambda sign, count: sign and count != 0),
    "SubstringIndex": _counted("substring_index", lambda sign, _: len(sign) == 1),
    "StringReplace": plain("replace", "string", "string", "string", "string"),
    "StringRepeat": _sized("repeat"),
    "StringLPad": _sized("lpad", "string"),
    "StringRPad": _sized("rpad", "string"),
    "StringTranslate": plain(
        "translate", "string", "string", "string", "string", when=lambda args: None not in map(value, args[1:])
    ),
    "StringInstr": plain("position", "integer", "string", "string"),
    "StringLocate": plain("locate", "integer", "string", "string", "integer", when=calm),
    "Ascii": plain("ascii", "integer", "string"),
    "OctetLength": plain("octet_length", "integer", "string"),
    "BitLength": plain("bit_length", "integer", "string"),
    "DayOfMonth": plain("day", "integer", "date"),
    **{name: _in_utc(plain(name.lower(), "integer", "timestamp")) for name in ("Hour", "Minute", "Second")},
    "SecondWithFraction": _in_utc(plain("second_with_fraction", "decimal(8,6)", "timestamp")),
    "TruncTimestamp": _in_utc(_date_trunc),
    "TruncDate": _trunc,
    "DateAdd": plain("date_add", "date", "date", INTEGRAL[:3]),
    "DateSub": plain("date_sub", "date", "date", INTEGRAL[:3]),
    "DateDiff": plain("date_diff", "integer", "date", "date"),
    "AddMonths": plain("add_months", "date", "date", "integer"),
    "LastDay": plain("last_day", "date", "date"),
    "NextDay": where(_next_day, failOnError=True),
    "ParseToDate": _in_utc(where(_parsed("to_date", "date"), ansiEnabled=True)),
    "ParseToTimestamp": _in_utc(where(_parsed("to_timestamp", "timestamp"), dataType="timestamp", failOnError=True)),
    "UnixTimestamp": where(_unix_timestamp, timeZoneId="UTC", failOnError=True),
    "ToUnixTimestamp": where(_unix_timestamp, timeZoneId="UTC", failOnError=True),
    "UnixSeconds": plain("unix_seconds", "long", "timestamp"),
    "UnixMillis": plain("unix_millis", "long", "timestamp"),
    "UnixMicros": plain("unix_micros", "long", "timestamp"),
    "UnixDate": plain("unix_date", "integer", "date"),
    "DateFromUnixDate": plain("date_from_unix_date", "date", "integer"),
    "SecondsToTimestamp": _time_of("timestamp_seconds", *_SECONDS_OF),
    "MillisToTimestamp": _time_of("timestamp_millis", *INTEGRAL),
    "MicrosToTimestamp": _time_of("timestamp_micros", *INTEGRAL),
    "FromUnixTime": _written("from_unixtime", "long"),
    "DateFormatClass": _written("date_format", "timestamp"),
    "TimestampAddInterval": _in_utc(_plus_interval),
    "TimestampAddYMInterval": _in_utc(_plus_interval),
    "DateAddYMInterval": _date_plus_months,
    "TimestampAdd": _in_utc(_timestamp_add),
    "TimestampDiff": _in_utc(_timestamp_diff),
    "MakeDate": where(plain("make_date", "date", "integer", "integer", "integer"), failOnError=True),
}

# Nodes of Spark's that stand for their one child.
TRANSPARENT = frozenset({"StringTrimBoth", "Extract", "DatePart", "DatetimeSub", "EqualNull"})


# --- times of an input's rows ---------------------------------------------------------------------------------------


def _input_cast(fields: Fields, args: list[Expr]) -> Expr:
    """Also casts that can fail: a row that has no time is refused, whether the time is null or an error."""
    (arg,), kind = args, fields["dataType"]
    if not isinstance(arg, Literal) and arg.type != kind:
        if kind == "timestamp":
            return _input_time(fields, args)
        if kind == "long" and arg.type in FLOATING:
            return Call("to_long", (arg,), kind)
    return cast(fields, args)


def _input_time(fields: Fields, args: list[Expr]) -> Expr:
    decline_unless(fields["dataType"] == "timestamp" and fields.get("timeZoneId") == "UTC")
    decline_unless(fields.get("failOnError", True) is True)
    decline_unless(are(args[:1], (*_SECONDS_OF, "string", "date", "timestamp")))
    if len(args) > 1:
        decline_unless(are(args[:1], "string"))
        sure(compiled_format(sure(value(args[1]))))
    return Call("to_timestamp", tuple(args), "timestamp")


INPUT_RULES: dict[str, Rule] = {
    "Cast": _input_cast,
    "ParseToTimestamp": _input_time,
    "SecondsToTimestamp": plain("timestamp_seconds", "timestamp", _SECONDS_OF),
    "MillisToTimestamp": plain("timestamp_millis", "timestamp", INTEGRAL),
    "MicrosToTimestamp": plain("timestamp_micros", "timestamp", INTEGRAL),
}
