"""Which nodes of Spark's tree about numbers, truth and casts have an exact twin, and of which type the result is."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from borealis.compile.rules import (
    DeclinedError,
    Fields,
    Rule,
    decline_unless,
    is_constant,
    one_row,
    same,
    sure,
    uniform,
    whole,
)
from borealis.errors import TrainError
from borealis.kernels import casts, decimals, rounding
from borealis.kernels.casts import decimal_of
from borealis.kernels.expr import FLOATING, INTEGRAL, Call, Expr, Literal, arrow_type, can_raise, evaluate
from borealis.kernels.xxhash import SEED, can_hash

_NEGATED_MAX = 34  # digits; of more, Spark's -x and abs(x) lose the last ones
_FLOAT_IN_MAX = 10  # longer lists become a hash set in Spark, where -0.0 and 0.0 may differ
_NUMBERS = (*INTEGRAL, *FLOATING)


# --- arithmetic -----------------------------------------------------------------------------------------------------


def _arithmetic(function: str, *kinds: str) -> Rule:
    """Of numbers of these types, or of DECIMALs."""

    def rule(fields: Fields, args: list[Expr]) -> Expr:
        decline_unless(fields.get("failOnError", True) is True)
        exact = [kind for kind in (decimal_of(arg.type) for arg in args) if kind is not None]
        return _of_decimals(function, args, exact) if exact else uniform(function, None, kinds)(fields, args)

    return rule


def _of_decimals(function: str, args: list[Expr], kinds: list[tuple[int, int]]) -> Expr:
    decline_unless(len(kinds) == len(args))
    if len(args) == 1:
        decline_unless(kinds[0][0] <= _NEGATED_MAX)
        return Call(function, tuple(args), args[0].type)
    (p1, s1), (_, s2) = kinds
    if function in ("remainder", "int_divide"):  # Java refuses a quotient of too many digits
        decline_unless(p1 - s1 + s2 <= (18 if function == "int_divide" else decimals.DIGITS_MAX))
    if function == "int_divide":
        return Call(function, tuple(args), "long")
    p, s = decimals.bounded(*decimals.result(function, kinds[0], kinds[1]))
    return Call(function, tuple(args), f"decimal({p},{s})")


def _rounded(function: str) -> Rule:
    def rule(fields: Fields, args: list[Expr]) -> Expr:
        decline_unless(fields.get("failOnError", True) is True and fields.get("ansiEnabled", True) is True)
        number, *more = args
        decline_unless(all(count.type == "integer" for count in more))
        kind = sure(rounding.type_of(function, number.type, sure(whole(more[0])) if more else 0))
        return number if function in ("floor", "ceil") and kind == number.type else Call(function, tuple(args), kind)

    return rule


# --- casts ----------------------------------------------------------------------------------------------------------


# Of columns: these need more than `casts` can say of one value.
_OF_TIMES = {
    ("timestamp", "date"): "date_of",
    ("string", "date"): "to_date",
    ("string", "timestamp"): "text_to_timestamp",
    ("date", "timestamp"): "date_to_timestamp",
    ("date", "string"): "time_to_string",
    ("timestamp", "string"): "time_to_string",
}


def time_cast(arg: Expr, kind: str) -> Call | None:
    """The cast of a column to or from dates and timestamps, in UTC; None for all others."""
    function = None if isinstance(arg, Literal) else _OF_TIMES.get((arg.type, kind))
    return Call(function, (arg,), kind) if function else None


def cast(fields: Fields, args: list[Expr]) -> Expr:
    """A cast. Of a constant, its value, as Spark folds it: lists of constants ask for that."""
    (arg,), kind = args, fields["dataType"]
    decline_unless(isinstance(kind, str) and arrow_type(kind) is not None)
    if arg.type == kind:
        return arg
    if isinstance(arg, Literal) and arg.value is None:
        return Literal(None, kind)
    decline_unless(casts.can(arg.type, kind))
    decline_unless(not {arg.type, kind} & {"date", "timestamp"} or fields.get("timeZoneId") == "UTC")
    if (made := time_cast(arg, kind)) is not None:
        return made
    if kind == "double" and arg.type == "float" and _from_whole(arg):
        # Spark takes the inner of two casts out if both only widen, as it thinks of INT to FLOAT
        if not isinstance(arg, Call) or arg.function != "cast" or isinstance(arg.args[0], Literal):
            raise DeclinedError
        return Call("cast", arg.args, kind)
    made = Call("convert" if casts.may_fail(arg.type, kind) else "cast", (arg,), kind)
    return _folded(made) if isinstance(arg, Literal) else made


def _from_whole(expr: Expr) -> bool:
    """Whether a FLOAT may be a whole number that was cast."""
    if not isinstance(expr, Call):
        return False
    if expr.function == "cast":
        return expr.args[0].type in INTEGRAL
    return expr.function in ("case", "coalesce") and any(_from_whole(arg) for arg in expr.args)


def _folded(made: Call) -> Expr:
    """The constant that a cast of a constant is."""
    try:
        found = evaluate(made, one_row()).as_py()
    except (TrainError, OverflowError):  # an error, or a year that Python does not know
        raise DeclinedError from None
    if made.type in FLOATING and not (made.type == "double" and math.isfinite(found)):
        return made
    if isinstance(found, Decimal):
        return Literal(f"{found:f}", made.type)
    if made.type == "boolean":
        return Literal(str(found).lower(), made.type)
    if made.type == "timestamp":
        return Literal(found.replace(tzinfo=None).isoformat(" "), made.type)
    return Literal(str(found), made.type)


def stays(comparison: Call) -> bool:
    """Whether Spark keeps what a comparison of a cast with a constant computes.

    It takes casts that widen out of comparisons: `CAST(i + 1 AS BIGINT) > 5` is `i + 1 > 5`. And where the constant is
    no value of the narrow type, it knows the answer, and never adds.
    """
    for arg in comparison.args:
        if not isinstance(arg, Call) or arg.function != "cast" or not can_raise(arg):
            continue
        for other in comparison.args:
            if isinstance(other, Literal) and (
                other.value is None or not _inside(arg.args[0].type, evaluate(other, one_row()).as_py())
            ):
                return False
    return True


def _inside(kind: str, value: Any) -> bool:
    """Whether a constant is a value of a type, and not one of its ends."""
    if (exact := decimal_of(kind)) is not None and isinstance(value, Decimal):
        p, s = exact
        return value == round(value, s) and abs(value) < 10 ** (p - s) - 1
    if kind in INTEGRAL and isinstance(value, int | float | Decimal) and math.isfinite(value):
        return value == int(value) and abs(value) < 2 ** (8 * 2 ** INTEGRAL.index(kind) - 1) - 1
    return False


# --- others -----------------------------------------------------------------------------------------------------------


def _in(_: Fields, args: list[Expr]) -> Expr:
    kind, items = same(args), args[1:]
    decline_unless(items and (all(isinstance(item, Literal) for item in items) or not any(map(can_raise, items))))
    decline_unless(kind not in FLOATING or len(items) <= _FLOAT_IN_MAX)
    return Call("in", tuple(args), "boolean")


def _extreme(function: str) -> Rule:
    def rule(fields: Fields, args: list[Expr]) -> Expr:
        decline_unless(args[0].type != "binary")
        return uniform(function)(fields, args)

    return rule


def _case(_: Fields, args: list[Expr]) -> Expr:
    pairs, rest = divmod(len(args), 2)
    decline_unless(all(args[2 * i].type == "boolean" for i in range(pairs)))
    kind = same([args[2 * i + 1] for i in range(pairs)] + ([args[-1]] if rest else []))
    return Call("case", tuple(args), kind)


def _null_if(_: Fields, args: list[Expr]) -> Expr:
    predicate, number = args
    decline_unless(predicate.type == "boolean" and arrow_type(number.type) is not None)
    return Call("case", (predicate, Literal(None, number.type), number), number.type)


def _xxhash64(fields: Fields, args: list[Expr]) -> Expr:
    decline_unless(fields.get("seed") == SEED and not all(map(is_constant, args)))
    decline_unless(all(can_hash(sure(arrow_type(arg.type))) for arg in args))
    return Call("xxhash64", tuple(args), "long")


RULES: dict[str, Rule] = {
    "EqualTo": uniform("eq", "boolean"),
    "EqualNullSafe": uniform("eq_null_safe", "boolean"),
    "GreaterThan": uniform("gt", "boolean"),
    "GreaterThanOrEqual": uniform("ge", "boolean"),
    "LessThan": uniform("lt", "boolean"),
    "LessThanOrEqual": uniform("le", "boolean"),
    "In": _in,
    **{name: uniform(name.lower(), "boolean", ("boolean",)) for name in ("And", "Or", "Not")},
    "IsNull": uniform("is_null", "boolean"),
    "IsNotNull": uniform("is_not_null", "boolean"),
    "IsNaN": uniform("is_nan", "boolean", FLOATING),
    **{name: _arithmetic(name.lower(), *_NUMBERS) for name in ("Add", "Subtract", "Multiply", "Remainder", "Abs")},
    "Divide": _arithmetic("divide", "double"),
    "IntegralDivide": _arithmetic("int_divide", "long"),
    "UnaryMinus": _arithmetic("negate", *_NUMBERS),
    **{f"Bitwise{name}": uniform(f"bit_{name.lower()}", None, INTEGRAL) for name in ("And", "Or", "Xor", "Not")},
    "Sqrt": uniform("sqrt", None, ("double",)),
    "Cast": cast,
    "If": _case,
    "CaseWhen": _case,
    "NullIfResult": _null_if,
    "Coalesce": uniform("coalesce"),
    **{name: _extreme(name.lower()) for name in ("Greatest", "Least")},
    **{name: _rounded(name.lower()) for name in ("Round", "BRound", "Floor", "Ceil")},
    "Signum": _rounded("sign"),
    "Length": uniform("length", "integer", ("string",)),
    "Concat": uniform("concat", None, ("string",)),
    "XxHash64": _xxhash64,
}
