"""Which nodes of Spark's tree about numbers and casts have an exact twin, and of which type the result is."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from borealis.errors import TrainError
from borealis.kernels import casts, decimals, rounding
from borealis.kernels.casts import decimal_of
from borealis.kernels.expr import FLOATING, INTEGRAL, Call, Expr, Literal, arrow_type, can_raise, evaluate

_NEGATED_MAX = 34  # digits; of more, Spark's -x and abs(x) lose the last ones


class DeclinedError(Exception):
    """There is no exact twin, or we are not sure that there is."""


def decline_unless(sure: bool) -> None:
    """Go on only where the twin is sure to be exact."""
    if not sure:
        raise DeclinedError


# --- arithmetic -----------------------------------------------------------------------------------------------------


def decimal_arithmetic(function: str, args: list[Expr]) -> Expr | None:
    """A function of DECIMALs; None if they are no DECIMALs."""
    exact = [decimal_of(arg.type) for arg in args]
    kinds = [kind for kind in exact if kind is not None]
    if not kinds:
        return None
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


def rounded(function: str, args: list[Expr]) -> Expr:
    """round, bround, floor, ceil or sign."""
    value, *more = args
    digits = 0
    if more:
        (count,) = more
        if not isinstance(count, Literal) or count.value is None or count.type != "integer":
            raise DeclinedError
        digits = int(count.value)
    kind = rounding.type_of(function, value.type, digits)
    if kind is None:
        raise DeclinedError
    return value if function in ("floor", "ceil") and kind == value.type else Call(function, tuple(args), kind)


def extreme(function: str, args: list[Expr]) -> Expr:
    """greatest or least."""
    kind = args[0].type
    decline_unless(all(arg.type == kind for arg in args) and arrow_type(kind) is not None and kind != "binary")
    return Call(function, tuple(args), kind)


# --- casts ----------------------------------------------------------------------------------------------------------


def cast(node: Any, args: list[Expr], one_row: Callable[[], Any]) -> Expr:
    """A cast. Of a constant, its value, as Spark folds it: lists of constants ask for that."""
    (arg,), kind = args, node.fields["dataType"]
    decline_unless(isinstance(kind, str) and arrow_type(kind) is not None)
    if arg.type == kind:
        return arg
    if isinstance(arg, Literal) and arg.value is None:
        return Literal(None, kind)
    decline_unless(casts.can(arg.type, kind))
    times = {arg.type, kind} & {"date", "timestamp"}
    decline_unless(not times or node.fields.get("timeZoneId") == "UTC")
    if kind == "double" and arg.type == "float" and _from_whole(arg):
        # Spark takes the inner of two casts out if both only widen, as it thinks of INT to FLOAT
        if not isinstance(arg, Call) or arg.function != "cast" or isinstance(arg.args[0], Literal):
            raise DeclinedError
        return Call("cast", arg.args, kind)
    made = Call("convert" if casts.may_fail(arg.type, kind) else "cast", (arg,), kind)
    return _folded(made, one_row) if isinstance(arg, Literal) else made


def _from_whole(expr: Expr) -> bool:
    """Whether a FLOAT may be a whole number that was cast."""
    if not isinstance(expr, Call):
        return False
    if expr.function == "cast":
        return expr.args[0].type in INTEGRAL
    return expr.function in ("case", "coalesce") and any(_from_whole(arg) for arg in expr.args)


def _folded(made: Call, one_row: Callable[[], Any]) -> Expr:
    """The constant that a cast of a constant is."""
    try:
        value = evaluate(made, one_row()).as_py()
    except (TrainError, OverflowError):  # an error, or a year that Python does not know
        raise DeclinedError from None
    if made.type in INTEGRAL:
        return Literal(str(value), made.type)
    if made.type == "boolean":
        return Literal("true" if value else "false", made.type)
    if made.type == "string":
        return Literal(value, made.type)
    if isinstance(value, Decimal):
        return Literal(f"{value:f}", made.type)
    if made.type == "double" and math.isfinite(value):
        return Literal(repr(value), made.type)
    if made.type in FLOATING:
        return made
    return Literal(value.isoformat() if made.type == "date" else value.replace(tzinfo=None).isoformat(" "), made.type)


def stays(comparison: Call, one_row: Callable[[], Any]) -> bool:
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


# --- lists ----------------------------------------------------------------------------------------------------------


def is_in(args: list[Expr], float_max: int) -> Expr:
    """IN. Longer lists of constants become a hash set in Spark, where -0.0 and 0.0 may differ."""
    value, items = args[0], args[1:]
    decline_unless(len(items) > 0 and all(item.type == value.type for item in items))
    if not all(isinstance(item, Literal) for item in items):
        decline_unless(not any(can_raise(item) for item in items))
    decline_unless(value.type not in FLOATING or len(items) <= float_max)
    return Call("in", tuple(args), "boolean")
