"""The types of all arrows of a diagram."""

from __future__ import annotations

from functools import lru_cache

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ByteType,
    DataType,
    IntegralType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from borealis.compile.boxes import batch_arrows, form_of
from borealis.compile.carried import carried
from borealis.compile.expressions import translate_time
from borealis.compile.types import blaming, empty, first_line, hidden, require_carried, show, visible
from borealis.diagram.passes.revisions import revised_arrows
from borealis.diagram.spec import LATE, Input, Spec
from borealis.errors import DiagramError
from borealis.kernels.time_of import TimeOf
from borealis.tuples import KIND

TIMES_ARE_MADE_BY = (
    "times are made by to_timestamp (of text, also in a format such as 'dd/MM/yyyy HH:mm:ss', or of seconds), "
    "timestamp_seconds, timestamp_millis, timestamp_micros, CAST, CASE, coalesce, concat, substring and arithmetic"
)


def analyze(spec: Spec, spark: SparkSession) -> dict[str, StructType]:
    """The Spark schema of every arrow, by the input or box it comes from, with the columns that are `carried` on it;
    raises on the first that does not type."""
    frames: dict[str, DataFrame] = {}
    for one in spec.inputs:
        frames[one.name] = empty(spark, input_schema(one))
        frames[one.name + LATE] = frames[one.name].drop(KIND)
        time_of(one, spark)
    for box in spec.topological():
        sources = [frames[s] for s in box.sources]
        form_of(box).check(box, sources)
        with blaming(box, [c for s in sources for c in s.columns]):
            found = batch_arrows(box, [hidden(s) for s in sources])
        for arrow, out in found.items():
            schema = visible(out).schema
            require_carried(box, schema)
            frames[arrow] = empty(spark, schema)
    names, revised, kinds = carried(spec, frames), revised_arrows(spec), StructField(KIND, ByteType())
    schemas = {n: [field for field in f.schema.fields if field.name in names[n]] for n, f in frames.items()}
    return {n: StructType([*fields, kinds] if n in revised else fields) for n, fields in schemas.items()}


def input_schema(one: Input) -> StructType:
    """The columns of an input; where rows have a key, what each of them does comes behind them, as users write it."""
    try:
        schema = _columns(one.columns)
    except PySparkException as error:
        raise DiagramError(
            f"input '{one.name}': {first_line(error)}", hint="columns are Spark SQL: 'ts TIMESTAMP, n INT'"
        ) from error
    if one.time_expression is None and not isinstance(schema[one.time].dataType, TimestampType):
        raise DiagramError(f"input '{one.name}': time column '{one.time}' is not a TIMESTAMP", hint="declare it so")
    return StructType([*schema.fields, StructField(KIND, StringType())]) if one.key else schema


@lru_cache(256)
def _columns(ddl: str) -> StructType:
    return StructType.fromDDL(ddl)  # Spark's JVM is asked


def time_of(one: Input, spark: SparkSession) -> TimeOf:
    """How an input's rows get their times; an expression is typed by Spark, and must have an Arrow twin."""
    sql = one.time_expression
    if sql is None:
        return TimeOf(one.time)
    frame = empty(spark, input_schema(one))
    with blaming(one, frame.columns, sql):
        kind = frame.select(F.expr(sql).alias("x")).schema["x"].dataType
    if not isinstance(kind, TimestampType):
        raise one.wrong(f"its time `{sql}` is {show(kind)}, not TIMESTAMP", f"make it one: {_makers(kind, sql)}")
    twin = translate_time(frame, sql)
    if twin is None:
        raise one.wrong(f"its time `{sql}` cannot be computed where rows come in", TIMES_ARE_MADE_BY)
    return TimeOf(sql, twin)


def _makers(kind: DataType, sql: str) -> str:
    if isinstance(kind, IntegralType):
        return f"timestamp_seconds({sql}), timestamp_millis({sql}) or timestamp_micros({sql})"
    return f"timestamp_seconds({sql})" if isinstance(kind, NumericType) else f"to_timestamp({sql})"
