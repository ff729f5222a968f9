"""Types of all arrows, as Spark itself resolves them; its complaints, told in terms of the box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructType, TimestampType

from borealis.diagram.boxes.base import Box
from borealis.diagram.spec import Input, Spec
from borealis.errors import DiagramError, ExpressionError, did_you_mean
from borealis.plan.batch import batch_box, hidden, visible


def analyze(spec: Spec, spark: SparkSession) -> dict[str, StructType]:
    """The Spark schema of every arrow, by the input or box it comes from; raises on the first that does not type."""
    frames: dict[str, DataFrame] = {}
    for one in spec.inputs:
        frames[one.name] = frames[f"{one.name}.late"] = empty(spark, input_schema(one))
    for box in spec.topological():
        sources = [frames[s] for s in box.sources]
        _check_expressions(box, sources)
        with told(box, [c for s in sources for c in s.columns]):
            out = visible(batch_box(box, [hidden(s) for s in sources]))
        frames[box.name] = empty(spark, out.schema)
    return {name: frame.schema for name, frame in frames.items()}


def input_schema(one: Input) -> StructType:
    """The declared columns as Spark types."""
    try:
        schema = StructType.fromDDL(one.columns)
    except PySparkException as error:
        raise DiagramError(
            f"input '{one.name}': {first_line(error)}", hint="columns are Spark SQL: 'ts TIMESTAMP, n INT'"
        ) from error
    if not isinstance(schema[one.time].dataType, TimestampType):
        raise DiagramError(f"input '{one.name}': time column '{one.time}' is not a TIMESTAMP", hint="declare it so")
    return schema


def empty(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame with these columns, all nullable, and no rows."""
    return spark.createDataFrame([], nullable(schema))


def nullable(schema: StructType) -> StructType:
    """The same columns, each of which may be null."""
    out = StructType()
    for f in schema.fields:
        out = out.add(f.name, f.dataType, True)
    return out


def type_of(frame: DataFrame, sql: str, box: Box) -> DataType:
    """The type of an expression over a frame's columns."""
    with told(box, frame.columns, sql):
        return frame.select(F.expr(sql).alias("x")).schema["x"].dataType


def _check_expressions(box: Box, sources: list[DataFrame]) -> None:
    match box.kind:
        case "filter":
            _must_be_boolean(box, type_of(sources[0], box.predicate, box), box.predicate)  # type: ignore[attr-defined]
        case "map":
            for sql in box.exprs.values():  # type: ignore[attr-defined]
                type_of(sources[0], sql, box)
        case "union":
            first = sources[0].schema
            for name, other in zip(box.sources[1:], sources[1:], strict=True):
                for a, b in zip(first.fields, other.schema.fields, strict=True):
                    if a.dataType != b.dataType:
                        ours, theirs = show(a.dataType), show(b.dataType)
                        raise box.wrong(
                            f"column '{a.name}' is {ours} in '{box.sources[0]}' and {theirs} in '{name}'",
                            f'cast one of them: map({a.name}="CAST({a.name} AS {show(a.dataType)})", ...)',
                        )
        case "aggregate":
            for function, argument in box.calls:  # type: ignore[attr-defined]
                if argument != "*":
                    type_of(sources[0], argument, box)
                    type_of(sources[0], f"{function}({argument})", box)
            for name in box.by:  # type: ignore[attr-defined]
                kind = sources[0].schema[name].dataType.typeName()
                if kind in ("array", "map", "struct", "variant"):
                    raise box.wrong(f"cannot group by '{name}', a {kind.upper()}", "group by one of its fields")
        case "join":
            left, right = sources
            pair = left.alias("left").crossJoin(right.alias("right"))
            _must_be_boolean(box, type_of(pair, box.on, box), box.on)  # type: ignore[attr-defined]


def _must_be_boolean(box: Box, kind: DataType, sql: str) -> None:
    if not isinstance(kind, BooleanType):
        raise box.wrong(
            f"`{sql}` is {show(kind)}, not BOOLEAN", "a condition compares: write for example `bytes > 100`"
        )


def show(kind: DataType) -> str:
    """A type as SQL writes it."""
    return str(kind.simpleString()).upper()


@contextmanager
def told(box: Box, columns: list[str], sql: str = "") -> Iterator[None]:
    """Turn Spark's complaint about an expression into one that names the box, the problem and a way out."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        about = f" in `{sql}`" if sql else ""
        condition = error.getCondition() or ""
        parameters = error.getMessageParameters() or {}
        name = re.sub(r".*`([^`]*)`$", r"\1", parameters.get("objectName", parameters.get("routineName", "")))
        if condition.startswith("UNRESOLVED_COLUMN"):
            wrong, hint = f"no column '{name}'{about} (has: {', '.join(columns)})", did_you_mean(name, columns)
        elif condition.startswith("UNRESOLVED_ROUTINE"):
            wrong, hint = f"no function '{name}'{about}", "see the built-in functions of Spark SQL"
        elif isinstance(error, ParseException):
            wrong, hint = f"cannot read `{sql}`: {first_line(error)}", "it must be a Spark SQL expression"
        else:
            wrong, hint = first_line(error) + about, "check the types of its columns"
        told_error = box.wrong(wrong, hint)
        raise ExpressionError(told_error.message, hint=told_error.hint) from error


def first_line(error: BaseException) -> str:
    """The first sentence of Spark's message, without its codes."""
    text = str(error).strip().split("\n")[0]
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text)
    return re.sub(r"\s*SQLSTATE:.*$", "", text).rstrip(".")
