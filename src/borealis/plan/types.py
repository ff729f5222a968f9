"""Types, as Spark itself resolves them; its complaints, told in terms of the box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, StructType

from borealis.diagram.boxes.base import Box
from borealis.diagram.frozen import Frozen
from borealis.errors import ExpressionError, did_you_mean


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


def require_boolean(box: Box, kind: DataType, sql: str) -> None:
    """Refuse a condition that is none."""
    if not isinstance(kind, BooleanType):
        raise box.wrong(
            f"`{sql}` is {show(kind)}, not BOOLEAN", "a condition compares: write for example `bytes > 100`"
        )


def show(kind: DataType) -> str:
    """A type as SQL writes it."""
    return str(kind.simpleString()).upper()


@contextmanager
def told(box: Frozen, columns: list[str], sql: str = "") -> Iterator[None]:
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


def plain_column(text: str, columns: list[str]) -> str | None:
    """The column that an expression merely names, if it does no more."""
    name = text.strip()
    bare = name[1:-1] if len(name) > 2 and name[0] == name[-1] == "`" else name
    return next((c for c in columns if c.lower() == bare.lower()), None)
