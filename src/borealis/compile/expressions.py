"""Which Spark SQL expressions have an exact Arrow twin: Spark parses, resolves and types, we translate or decline.

A row that crosses into the JVM is the dearest thing in a train, so a Filter or Map that translates is evaluated in
Python, inside the Spark source. What is declined costs time and nothing else; what is translated wrongly costs the
truth. Hence the rule: only what equals Spark (ANSI mode, UTC) on every input is translated.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from borealis.compile import numeric_rules, text_rules
from borealis.compile.rules import DeclinedError, Rule, decline_unless, is_constant, one_row, sure
from borealis.errors import TrainError
from borealis.kernels.expr import (
    ANY,
    FLOATING,
    INTEGRAL,
    LAZY,
    NULL_TOLERANT,
    Call,
    Column,
    Expr,
    Literal,
    arrow_type,
    chain,
    evaluate,
    evaluation_order,
    raises_itself,
)
from borealis.kernels.times import DAY_US

_CATALYST = "org.apache.spark.sql.catalyst.expressions."
Names = frozenset[str]  # of columns
_ALIAS = "__borealis_expression_"  # no user's column: in a select list a later item may refer to an earlier alias
_MOMENTS: dict[str, tuple[re.Pattern[str], Callable[[str], str]]] = {  # constants that are known, and in one form
    "date": (
        re.compile(r"\d{4}-\d\d-\d\d", re.ASCII),
        lambda text: datetime.date.fromisoformat(text).isoformat(),
    ),
    "timestamp": (
        re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?", re.ASCII),
        lambda text: datetime.datetime.fromisoformat(text).isoformat(" "),
    ),
}
_FOLDED = frozenset({"add", "subtract", "multiply", "divide", "negate", "cast", "convert"})  # as people write constants
_COMPARISONS = frozenset({"eq", "eq_null_safe", "gt", "ge", "lt", "le", "in"})
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
}


def translate_time(frame: DataFrame, sql: str) -> Expr | None:
    """As `translate_all`, for the time of an input's rows: there text and numbers may become times, too."""
    return translate_all(frame, {"x": sql}, _RULES | text_rules.INPUT_RULES)["x"]


def translate_all(
    frame: DataFrame, expressions: Mapping[str, str], rules: Mapping[str, Rule] | None = None
) -> dict[str, Expr | None]:
    """The Arrow twins of Spark SQL expressions over the frame's columns, None for each that has no exact one.

    The frame may be empty, but its session must be the one that would run the expressions: its settings decide.
    What Spark itself refuses (a column that is not there, types that do not fit) raises as Spark raises it, for all.
    """
    if not expressions:
        return {}
    selected = [F.expr(sql).alias(f"{_ALIAS}{i}") for i, sql in enumerate(expressions.values())]
    trees = _project_list(frame.select(*selected))
    conf = frame.sparkSession.conf
    exact = all(conf.get(setting) == value for setting, value in _SETTINGS.items())
    whole = [tree.fields.get("name") for tree in trees] == [f"{_ALIAS}{i}" for i in range(len(selected))]
    if not exact or (not whole and len(expressions) == 1):
        return dict.fromkeys(expressions)
    if not whole:  # one of them made Spark plan something other than a projection: find out which
        return {name: translate_all(frame, {"x": sql}, rules)["x"] for name, sql in expressions.items()}
    columns = {_expr_id(node): str(node.fields["name"]) for node in _project_list(frame.select("*"))}
    return {
        name: _translate(tree.children[0], columns, sql, rules or _RULES) if tree.name == "Alias" else None
        for (name, sql), tree in zip(expressions.items(), trees, strict=True)
    }


def columns_read(frame: DataFrame, texts: Iterable[str]) -> frozenset[int]:
    """The places of the frame's columns that Spark SQL expressions over them read; all, where that is not plain."""
    selected = [F.expr(sql).alias(f"{_ALIAS}{i}") for i, sql in enumerate(texts)]
    places = {_expr_id(node): place for place, node in enumerate(_project_list(frame.select("*")))}
    trees = _project_list(frame.select(*selected)) if selected else []
    nodes = [node for tree in trees for node in _nodes(tree)]
    if len(trees) != len(selected) or any("ubquery" in node.name or node.name == "Exists" for node in nodes):
        return frozenset(range(len(frame.columns)))
    read = (places.get(_expr_id(node)) for node in nodes if node.name == "AttributeReference")
    return frozenset(place for place in read if place is not None)


def names_read(frame: DataFrame, texts: Iterable[str]) -> Names:
    """The same by name."""
    return frozenset(frame.columns[place] for place in columns_read(frame, texts))


# --- the resolved tree ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    """One node of Spark's tree. Use `children`, not the indices in the fields: equal children share an index there."""

    name: str
    fields: dict[str, Any]
    children: tuple[_Node, ...]


def _project_list(frame: DataFrame) -> list[_Node]:
    plan = json.loads(frame._jdf.queryExecution().analyzed().toJSON())
    if not plan[0]["class"].endswith(".Project"):
        return []
    return [_node(iter(nodes)) for nodes in plan[0]["projectList"]]


def _node(nodes: Iterator[dict[str, Any]]) -> _Node:
    fields = next(nodes)
    name = str(fields["class"])
    children = tuple(_node(nodes) for _ in range(fields["num-children"]))
    return _Node(name.removeprefix(_CATALYST), fields, children)


def _nodes(tree: _Node) -> Iterator[_Node]:
    yield tree
    for child in tree.children:
        yield from _nodes(child)


def _expr_id(node: _Node) -> tuple[int, str]:
    identity = node.fields["exprId"]
    return int(identity["id"]), str(identity["jvmId"])


# --- translating ------------------------------------------------------------------------------------------------------


def _translate(tree: _Node, columns: Mapping[tuple[int, str], str], sql: str, rules: Mapping[str, Rule]) -> Expr | None:
    if tree.name == "AttributeReference" and (name := columns.get(_expr_id(tree))) is not None:
        kind = tree.fields["dataType"]
        return Column(name, kind if isinstance(kind, str) and arrow_type(kind) is not None else ANY)
    try:
        expr = _Translation(columns, sql, rules).of(tree)
        decline_unless(arrow_type(expr.type) is not None)  # a bare NULL
        _check_constants(expr)
        _check_repeats(expr)
        if any(_raising(expr)):
            _check_plain(expr)
    except DeclinedError:
        return None
    return expr


def _check_constants(expr: Expr) -> None:
    """Decline constants that raise, and -0.0.

    Spark may fold a constant early and raise on rows (or no rows) that never need it. And it takes -0.0 and 0.0 for the
    same constant: `if(c, 0.0D, -0.0D)` is 0.0 always.
    """
    if isinstance(expr, Call):
        for arg in expr.args:
            _check_constants(arg)
    if is_constant(expr) and arrow_type(expr.type) is not None:
        try:
            value = evaluate(expr, one_row())
        except TrainError:
            raise DeclinedError from None
        if expr.type in FLOATING and value.is_valid:
            decline_unless(value.as_py() != 0 or math.copysign(1, value.as_py()) > 0)


def _check_repeats(expr: Expr) -> None:
    """Decline what Spark may compute once, ahead of the conditions around it, and so raise where we would not."""
    repeated = {part for part, times in Counter(_raising(expr)).items() if times > 1}
    decline_unless(repeated <= set(_certain(expr)))


def _check_plain(expr: Expr) -> None:
    """Decline an expression that may raise and that Spark's optimizer may simplify: the error could go, or come.

    `k + 1 > 5 AND false`, `if(k + 1 > 5, 2, 2)` and `k + 1 > NULL` never add; `1 + k + l` adds k and l first.
    """
    operands = Counter(_operands(expr))
    decline_unless(all(times == 1 for times in operands.values()))
    for part in _calls(expr):
        args = part.args
        decline_unless(not is_constant(part) or part.function in _FOLDED)
        decline_unless(part.function not in ("is_null", "is_not_null", "eq_null_safe") or not any(_raising(part)))
        if part.function in ("add", "multiply") and part.type in INTEGRAL:
            constants = [is_constant(operand) for operand in chain(part, part.function)]
            decline_unless(len(constants) == 2 or all(constants) or not any(constants[:-1]))
        decline_unless(part.function not in _COMPARISONS or numeric_rules.stays(part))
        if any(isinstance(arg, Call) and arg.function == "date_to_timestamp" for arg in args):
            decline_unless(not any(map(is_constant, args)))  # compared with a constant, Spark may leave out the cast
        if part.function == "case":
            pairs, rest = divmod(len(args), 2)
            values = {*args[1 : 2 * pairs : 2], args[-1] if rest else Literal(None, part.type)}
            decline_unless(len(values) == pairs + 1 and not any(is_constant(arg) for arg in args[: 2 * pairs : 2]))
        elif part.function == "coalesce":
            decline_unless(not any(is_constant(arg) for arg in args[:-1]) and len(set(args)) == len(args))
        elif part.function != "in":
            decline_unless(not any(isinstance(arg, Literal) and arg.value is None for arg in args))
        if part.type == "boolean" and part.function != "in":
            decline_unless(len(set(args)) == len(args))
            decline_unless(not any(arg.type == "boolean" and is_constant(arg) for arg in args))


def _calls(expr: Expr) -> Iterator[Call]:
    if isinstance(expr, Call):
        yield expr
        for arg in expr.args:
            yield from _calls(arg)


def _operands(expr: Expr) -> Iterator[Expr]:
    """What AND and OR connect, whether denied or not."""
    for part in _calls(expr):
        if part.function in ("and", "or"):
            for arg in part.args:
                while isinstance(arg, Call) and arg.function == "not":
                    arg = arg.args[0]
                if not (isinstance(arg, Call) and arg.function in ("and", "or")):
                    yield arg


def _raising(expr: Expr) -> Iterator[Expr]:
    """The parts that may raise on some row; constants have been checked."""
    return (part for part in _calls(expr) if raises_itself(part) and not is_constant(part))


def _certain(expr: Expr) -> Iterator[Expr]:
    """The parts that are evaluated on every row, whatever is null."""
    if isinstance(expr, Call):
        yield expr
        for i in evaluation_order(expr):
            arg = expr.args[i]
            yield from _certain(arg)
            never_null = isinstance(arg, Literal) and arg.value is not None
            if expr.function in LAZY or not (never_null or expr.function in NULL_TOLERANT):
                break


class _Translation:
    """One expression's translation; holds the columns by Spark's id, as the name in the tree is the user's spelling."""

    def __init__(self, columns: Mapping[tuple[int, str], str], sql: str, rules: Mapping[str, Rule]) -> None:
        self.columns, self.rules = columns, rules
        self.tries = "try_cast" in sql.lower()  # nor does it tell TRY_CAST from CAST
        self.escapes = "escape" in sql.lower()  # the tree does not tell LIKE's escape character
        self.common: Expr | None = None  # what BETWEEN and NULLIF compute once

    def of(self, node: _Node) -> Expr:
        node = _fused(node)
        name, children = node.name, node.children
        if name == "AttributeReference":
            kind = node.fields["dataType"]
            decline_unless(isinstance(kind, str) and arrow_type(kind) is not None)
            return Column(sure(self.columns.get(_expr_id(node))), kind)
        if name == "Literal":
            return _literal(node)
        if name == "With":
            return self.with_common(node)
        if name == "CommonExpressionRef":
            if self.common is None or self.common.type != node.fields["dataType"]:
                raise DeclinedError
            return self.common
        if name in _TRANSPARENT and len(children) == 1:
            return self.of(children[0])
        decline_unless(not (name in ("Like", "ILike") and self.escapes) and not (name == "Cast" and self.tries))
        expr = sure(self.rules.get(name))(node.fields, [self.of(child) for child in children])
        decline_unless(arrow_type(expr.type) is not None)
        return expr

    def with_common(self, node: _Node) -> Expr:
        """Put the one common expression in place of its references; their ids are not in the tree, so never nested."""
        body, *definitions = node.children
        decline_unless(self.common is None and [one.name for one in definitions] == ["CommonExpressionDef"])
        self.common = self.of(definitions[0].children[0])
        try:
            return self.of(body)
        finally:
            self.common = None


def _fused(node: _Node) -> _Node:
    """What has no type here but in one place: an item of a split text, and a constant interval."""
    match node:
        case _Node("GetArrayItem" | "ElementAt" as name, fields, (_Node("StringSplit", _, texts), index)):
            return _Node("SplitItem", {**fields, "counts from": int(name == "ElementAt")}, (*texts, index))
        case _Node("UnaryMinus", _, (_Node("Literal", literal, ()),)) if literal["dataType"] in text_rules.INTERVALS:
            return _Node("Literal", {**literal, "value": str(-int(literal["value"]))}, ())
        case _Node("ExtractANSIIntervalDays", _, (_Node("Literal", literal, ()),)):
            return _Node("Literal", {"value": str(int(literal["value"]) // DAY_US), "dataType": "integer"}, ())
    return node


def _literal(node: _Node) -> Literal:
    value, kind = node.fields["value"], node.fields["dataType"]
    if not isinstance(kind, str):
        raise DeclinedError
    if value is None and (kind == "void" or arrow_type(kind) is not None):
        return Literal(None, kind)
    if kind in text_rules.INTERVALS and isinstance(value, str):  # its rules take it; no other knows such a type
        return Literal(value, kind)
    if arrow_type(kind) is None or kind == "binary" or not isinstance(value, str):  # a binary's text is its address
        raise DeclinedError
    if kind not in _MOMENTS:
        return Literal(value, kind)
    form, normal = _MOMENTS[kind]
    decline_unless(form.fullmatch(value))
    try:
        return Literal(normal(value), kind)
    except ValueError:
        raise DeclinedError from None


_RULES: dict[str, Rule] = numeric_rules.RULES | text_rules.RULES
_TRANSPARENT = text_rules.TRANSPARENT | {
    "Between", "NullIf", "Nvl", "Nvl2", "ZeroIfNull", "NullIfZero", "UnaryPositive",
}  # fmt: skip
