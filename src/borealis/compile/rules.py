"""What rules are made of: a rule makes our call of the fields of Spark's node and its translated arguments.

It raises DeclinedError where there is no exact twin, or where we are not sure that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from borealis.kernels.expr import INTEGRAL, Call, Column, Expr, Literal, arrow_type, can_raise

Fields: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Fields, list[Expr]], Expr]
T = TypeVar("T")


class DeclinedError(Exception):
    """There is no exact twin, or we are not sure that there is."""


def decline_unless(sure: object) -> None:
    """Go on only where the twin is sure to be exact."""
    if not sure:
        raise DeclinedError


def sure(found: T | None) -> T:
    """What was found; declined if nothing was."""
    if found is None:
        raise DeclinedError
    return found


@cache
def one_row() -> pa.Table:
    """To evaluate constants on. Not at import: the first array that pyarrow makes costs an import of pandas."""
    return pa.table({"": [0]})


# --- arguments --------------------------------------------------------------------------------------------------------


def same(args: list[Expr]) -> str:
    """The one type of all arguments."""
    decline_unless(args and all(arg.type == args[0].type for arg in args) and arrow_type(args[0].type) is not None)
    return args[0].type


def are(args: list[Expr], *kinds: str | Collection[str]) -> bool:
    """Whether the arguments have these types, each the one or one of several; "decimal" is a DECIMAL of any digits."""
    found = ["decimal" if arg.type.startswith("decimal") else arg.type for arg in args]
    return len(args) == len(kinds) and all(
        has == kind if isinstance(kind, str) else has in kind for has, kind in zip(found, kinds, strict=True)
    )


def is_constant(expr: Expr) -> bool:
    return not isinstance(expr, Column) and (isinstance(expr, Literal) or all(map(is_constant, expr.args)))


def value(expr: Expr) -> str | None:
    """The text of a constant, or None if it is none, or null."""
    return expr.value if isinstance(expr, Literal) else None


def whole(expr: Expr) -> int | None:
    """The number that a constant is."""
    text = value(expr)
    return int(text) if text is not None and expr.type in INTEGRAL else None


def calm(args: list[Expr]) -> bool:
    """Whether no argument can raise."""
    return not any(map(can_raise, args))


# --- rules of one shape -----------------------------------------------------------------------------------------------


def plain(
    function: str, result: str, *kinds: str | Collection[str], when: Callable[[list[Expr]], object] = lambda _: True
) -> Rule:
    """A function whose arguments have just these types and go over as they are."""

    def rule(_: Fields, args: list[Expr]) -> Expr:
        decline_unless(are(args, *kinds) and when(args))
        return Call(function, tuple(args), result)

    return rule


def uniform(function: str, result: str | None = None, kinds: Collection[str] | None = None) -> Rule:
    """A function of arguments that have one type, which is also the result's if none is given."""

    def rule(_: Fields, args: list[Expr]) -> Expr:
        kind = same(args)
        decline_unless(kinds is None or kind in kinds)
        return Call(function, tuple(args), result or kind)

    return rule


def where(rule: Rule, **fields: object) -> Rule:
    """A rule for nodes that have just these fields."""

    def guarded(given: Fields, args: list[Expr]) -> Expr:
        decline_unless(all(given.get(name) == wanted for name, wanted in fields.items()))
        return rule(given, args)

    return guarded
