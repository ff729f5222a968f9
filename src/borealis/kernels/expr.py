"""Spark SQL expressions as Arrow compute: only what gives Spark's own answer, to the bit, is ever built here.

`compile.expressions` translates a tree that Spark has resolved into an `Expr`; the workers evaluate it on whole columns
and no row crosses into the JVM. Spark evaluates lazily, row by row (`CASE WHEN b <> 0 THEN a / b END` never divides by
zero); Arrow evaluates whole columns. So an expression is first evaluated eagerly: if nothing went wrong anywhere, the
laziness could not have mattered. Only if something did is it evaluated again the slow way, each branch on just the rows
that Spark would have evaluated it on, and an error that is left is the user's.

>>> half = Call("divide", (Column("v", "double"), Literal("2.0", "double")), "double")
>>> evaluate(half, pa.table({"v": [1.0, None]})).to_pylist()
[0.5, None]
>>> from_json(to_json(half)) == half
True
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.errors import TrainError
from borealis.kernels import casts, dates, decimals, rounding, strings, times
from borealis.kernels.columns import Values, full, whole
from borealis.kernels.functions import FUNCTIONS, RAISING, TIMES

Rows: TypeAlias = Any  # pa.Table | pa.RecordBatch

ARROW_TYPES = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
}
INTEGRAL = ("byte", "short", "integer", "long")
FLOATING = ("float", "double")
ANY = "any"  # a type that is only carried, never looked at: a plain column may have it


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the input, by its name in the input's schema (Spark keeps the name as the *user* spelt it)."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: Spark's text of it and Spark's type; no text is a null of that type."""

    value: str | None
    type: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of this module applied to arguments; `type` is the result's, as Spark typed it."""

    function: str
    args: tuple[Expr, ...]
    type: str


Expr: TypeAlias = Column | Literal | Call


def to_json(expr: Expr) -> list[Any]:
    """Nested lists that `json` can write; `from_json` reads them back."""
    match expr:
        case Column(name, kind):
            return ["column", name, kind]
        case Literal(value, kind):
            return ["literal", value, kind]
        case Call(function, args, kind):
            return ["call", function, kind, [to_json(arg) for arg in args]]


def from_json(form: list[Any]) -> Expr:
    """The expression that `to_json` wrote; anything else is an error, never a guess."""
    match form:
        case ["column", str(name), str(kind)]:
            return Column(name, kind)
        case ["literal", str() | None as value, str(kind)]:
            return Literal(value, kind)
        case ["call", str(function), str(kind), list(args)] if function in FUNCTIONS or function in LAZY:
            return Call(function, tuple(from_json(arg) for arg in args), kind)
        case _:
            raise TrainError(f"not an expression: {form!r}", hint="the program is from another version; start it again")


@lru_cache(1024)
def arrow_type(kind: str) -> pa.DataType | None:
    """The Arrow type of a Spark type name, or None for a type (or collation) that is not handled here."""
    if known := ARROW_TYPES.get(kind):
        return known
    exact = casts.decimal_of(kind)
    return pa.decimal128(*exact) if exact else None


# --- evaluating ---------------------------------------------------------------------------------------------------


def evaluate(expr: Expr, table: Rows) -> Values:
    """The value of the expression on every row; a scalar if no column is in it. A plain column is not copied."""
    try:
        return _eager(expr, table, {})
    except _FaultError:
        return _lazy(expr, table)


def column(expr: Expr, table: Rows, type: pa.DataType) -> Values:
    """The value as an array of full length and exactly this Arrow type."""
    value = full(evaluate(expr, table), table.num_rows)
    return value if value.type == type else value.cast(type)


def mask(expr: Expr, table: Rows) -> Values:
    """The rows that pass a predicate; null counts as false.

    A row whose null fails the filter anyway does not raise: Spark tests those nulls first, whatever the order written.
    Then part by part: a row for which one is false or null is out before the next is looked at.
    """
    try:
        value = _eager(expr, table, {})
    except _FaultError:
        value = _alive(expr, table)
        for part in chain(expr, "and"):
            value = whole(pc.and_(value, pc.fill_null(_on(value, part, table), False)))
    value = full(value, table.num_rows)
    return value.fill_null(False) if value.null_count else value


class _FaultError(Exception):
    """Something overflowed or was divided by zero, perhaps on a row that Spark would not have looked at."""

    def __init__(self, what: str, expr: Call) -> None:
        super().__init__(what)
        self.what = what
        self.expr = expr

    def as_train_error(self) -> TrainError:
        if self.what == "division by zero":
            hint = "filter out the rows with a zero divisor, or use try_divide or try_mod, which give null"
        elif self.expr.function == "convert":
            hint = "mend the value, or use try_cast, which gives null"
        elif self.expr.function in rounding.FUNCTIONS:
            hint = f"filter out the rows whose result does not fit into {casts.name(self.expr.type)}"
        elif self.expr.function == "split_item":
            hint = "use split_part(text, sign, number), which gives an empty text"
        elif self.what == "overflow" and self.expr.function in dates.RAISING:
            hint = "filter out times so far away that Spark's type cannot hold the result"
        elif self.expr.function in TIMES or self.expr.function in dates.RAISING:
            hint = "mend the value, or give the format: to_timestamp(t, 'dd/MM/yyyy HH:mm')"
        else:
            hint = f"cast to a type wider than {self.expr.type} first, or use try_add, try_subtract or try_multiply"
        return TrainError(f"{self.what} in `{sql(self.expr)}`", hint=hint)


def _eager(expr: Expr, table: Rows, seen: dict[Call, Values]) -> Values:
    match expr:
        case Column(name, kind):
            values, wanted = table.column(name), arrow_type(kind)
            return values if wanted is None or values.type == wanted else values.cast(wanted)
        case Literal():
            return scalar(expr)
        case Call():
            if expr not in seen:
                seen[expr] = _apply(expr, [_eager(arg, table, seen) for arg in expr.args])
            return seen[expr]


def _apply(expr: Call, values: list[Values]) -> Values:
    try:
        return FUNCTIONS[expr.function](arrow_type(expr.type), *values)
    except ZeroDivisionError:
        raise _FaultError("division by zero", expr) from None
    except (times.NoValueError, strings.NoSuchPartError) as error:
        raise _FaultError(str(error), expr) from None
    except OverflowError:
        raise _FaultError("overflow", expr) from None
    except pa.ArrowInvalid as error:
        if "divide by zero" in str(error):
            raise _FaultError("division by zero", expr) from None
        if "overflow" in str(error):
            raise _FaultError("overflow", expr) from None
        raise


def _lazy(expr: Expr, table: Rows) -> Values:
    """As `_eager`, but no argument is evaluated on a row on which Spark would not evaluate it."""
    if not table.num_rows:  # where there is no row, even 1 / 0 is no error
        return pa.nulls(0, arrow_type(expr.type))
    if not isinstance(expr, Call) or not can_raise(expr):
        return full(_eager(expr, table, {}), table.num_rows)
    if expr.function in LAZY:
        return LAZY[expr.function](expr, table)
    order = list(evaluation_order(expr))
    values: list[Values] = [None] * len(order)
    alive = full(pa.scalar(True), table.num_rows)
    for i in order:
        arg = expr.args[i]
        values[i] = scalar(arg) if isinstance(arg, Literal) else _on(alive, arg, table)
        if expr.function not in NULL_TOLERANT:
            alive = pc.and_(alive, pc.is_valid(values[i]))
    try:
        return full(_apply(expr, values), table.num_rows)
    except _FaultError as fault:
        raise fault.as_train_error() from None


def _on(rows: Values, expr: Expr, table: Rows) -> Values:
    """The expression on just these rows; null elsewhere."""
    if not can_raise(expr):
        return full(_eager(expr, table, {}), table.num_rows)
    values = _lazy(expr, table.filter(rows))
    return pc.replace_with_mask(pa.nulls(len(rows), arrow_type(expr.type)), whole(rows), whole(values))


def _alive(expr: Expr, table: Rows) -> pa.Array:
    """The rows on which no part of a conjunction is null for sure."""
    alive = full(pa.scalar(True), table.num_rows)
    for name in sorted({name for part in chain(expr, "and") for name in _null_spreads(part)}):
        alive = pc.and_(alive, whole(pc.is_valid(table.column(name))))
    return alive


def chain(expr: Expr, function: str) -> Iterator[Expr]:
    """The operands of a chain of one function, from left to right."""
    if isinstance(expr, Call) and expr.function == function:
        for arg in expr.args:
            yield from chain(arg, function)
    else:
        yield expr


def _null_spreads(expr: Expr) -> Iterator[str]:
    """Columns whose null makes the whole expression null; not through AND: null AND false is false."""
    if isinstance(expr, Column):
        yield expr.name
    elif isinstance(expr, Call) and not any(expr.function in kind for kind in (LAZY, NULL_TOLERANT, NULL_UNTOLD)):
        for arg in expr.args:
            yield from _null_spreads(arg)


# --- what may raise, and when ---------------------------------------------------------------------------------------


def raises_itself(expr: Expr) -> bool:
    """Whether this call (not its arguments) may raise on some row."""
    match expr:
        case Call(function, args, kind):
            if function in ("add", "subtract", "multiply", "negate", "abs"):
                return kind in INTEGRAL or _too_many_digits(function, args)
            if function in ("divide", "int_divide", "remainder"):
                minus_one = function == "int_divide" and args[0].type in INTEGRAL
                return not _harmless_divisor(args[1], minus_one=minus_one) or _too_many_digits(function, args)
            if function in rounding.FUNCTIONS:
                return rounding.may_fail(function, args[0].type, kind)
            return function in RAISING
    return False


def _too_many_digits(function: str, args: tuple[Expr, ...]) -> bool:
    """Whether a result of DECIMALs may have more digits than its type."""
    kinds = [casts.decimal_of(arg.type) for arg in args]
    if function not in ("add", "subtract", "multiply", "divide", "remainder") or None in kinds:
        return False
    return decimals.result(function, *kinds)[0] > decimals.DIGITS_MAX  # type: ignore[arg-type]


def _harmless_divisor(divisor: Expr, *, minus_one: bool) -> bool:
    if not isinstance(divisor, Literal):
        return False
    if divisor.value is None:
        return True
    value = float(divisor.value)
    return value != 0 and not (minus_one and value == -1)


def can_raise(expr: Expr) -> bool:
    return raises_itself(expr) or (isinstance(expr, Call) and any(can_raise(arg) for arg in expr.args))


def evaluation_order(expr: Call) -> range:
    """The order in which Spark evaluates the arguments: the divisor comes first, and a null ends it there."""
    n = len(expr.args)
    return range(n - 1, -1, -1) if expr.function in ("divide", "int_divide", "remainder") else range(n)


def _lazy_and_or(expr: Call, table: Rows) -> Values:
    conjunction = expr.function == "and"
    left = _lazy(expr.args[0], table)
    undecided = pc.fill_null(left if conjunction else pc.invert(left), True)
    return (pc.and_kleene if conjunction else pc.or_kleene)(left, _on(undecided, expr.args[1], table))


def _lazy_case(expr: Call, table: Rows) -> Values:
    result = pa.nulls(table.num_rows, arrow_type(expr.type))
    waiting = full(pa.scalar(True), table.num_rows)
    pairs, rest = divmod(len(expr.args), 2)
    for i in range(pairs):
        chosen = pc.and_(waiting, pc.fill_null(_on(waiting, expr.args[2 * i], table), False))
        result = pc.if_else(chosen, _on(chosen, expr.args[2 * i + 1], table), result)
        waiting = pc.and_not(waiting, chosen)
    return pc.if_else(waiting, _on(waiting, expr.args[-1], table), result) if rest else result


def _lazy_coalesce(expr: Call, table: Rows) -> Values:
    result = _lazy(expr.args[0], table)
    for arg in expr.args[1:]:
        result = pc.coalesce(result, _on(pc.is_null(result), arg, table))
    return result


LAZY: dict[str, Callable[[Call, Rows], Values]] = {
    "and": _lazy_and_or,
    "or": _lazy_and_or,
    "case": _lazy_case,
    "coalesce": _lazy_coalesce,
}
NULL_TOLERANT = frozenset({
    "eq_null_safe", "is_null", "is_not_null", "is_nan", "greatest", "least", "in", "xxhash64", "concat_ws", "locate",
})  # fmt: skip
# Null if an argument is, but Spark does not test that first: it does not call them null-intolerant.
NULL_UNTOLD = frozenset({
    "concat", "trim", "ltrim", "rtrim", "right", "trunc", "date_trunc", "unix_timestamp", "to_timestamp",
})  # fmt: skip


# --- literals -------------------------------------------------------------------------------------------------------


_PARSERS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(INTEGRAL, int),
    "float": np.float32,
    "double": float,
    "boolean": {"true": True, "false": False}.__getitem__,
    "string": str,
    "date": datetime.date.fromisoformat,
    "timestamp": lambda text: datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC),
}


@lru_cache(1024)  # small trains ask for the same few again and again
def scalar(literal: Literal) -> pa.Scalar:
    """The Arrow scalar of a literal. Spark's text of a timestamp is in the session's zone, here always UTC."""
    type, text = arrow_type(literal.type), literal.value
    if text is None:
        return pa.scalar(None, type)
    parse = Decimal if literal.type.startswith("decimal") else _PARSERS.get(literal.type)
    if parse is None:
        raise TrainError(f"no constants of type {literal.type}", hint="start the program again")
    return pa.scalar(parse(text), type)


# --- for error messages ----------------------------------------------------------------------------------------------

_INFIX = {
    "eq": "=", "gt": ">", "ge": ">=", "lt": "<", "le": "<=", "eq_null_safe": "<=>", "and": "AND", "or": "OR",
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "int_divide": "DIV", "remainder": "%",
    "bit_and": "&", "bit_or": "|", "bit_xor": "^",
}  # fmt: skip


def sql(expr: Expr) -> str:
    """The expression for a reader of an error message; casts that Spark put in are left out, so do not parse it.

    >>> sql(Call("remainder", (Column("a", "long"), Column("b", "long")), "long"))
    'a % b'
    """
    match expr:
        case Column(name):
            return name
        case Literal(None):
            return "NULL"
        case Literal(value, kind):
            return f"'{value}'" if kind in ("string", "date", "timestamp") else str(value)
        case Call("cast" | "to_long", (arg,)):
            return sql(arg)
        case Call("convert", (arg,), kind):
            return f"CAST({sql(arg)} AS {casts.name(kind)})"
        case Call("date_of" | "date_to_timestamp" | "text_to_timestamp" | "time_to_string", (arg,), kind):
            return f"CAST({sql(arg)} AS {kind.upper()})"
        case Call("split_item", (arg, sign, _, index)):
            return f"split({sql(arg)}, {sql(sign)})[{sql(index)}]"
        case Call("plus_micros" | "plus_months", (arg, count)):
            return f"{_in_brackets(arg)} + INTERVAL {sql(count)} {expr.function[5:].upper()}"
        case Call("negate", (arg,)):
            return f"-{_in_brackets(arg)}"
        case Call(function, (a, b)) if function in _INFIX:
            return f"{_in_brackets(a)} {_INFIX[function]} {_in_brackets(b)}"
        case Call(function, args):
            return f"{function}({', '.join(map(sql, args))})"


def _in_brackets(expr: Expr) -> str:
    while isinstance(expr, Call) and expr.function == "cast":
        expr = expr.args[0]
    return f"({sql(expr)})" if isinstance(expr, Call) and expr.function in _INFIX else sql(expr)
