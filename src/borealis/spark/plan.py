"""A unit's program as a plan of Spark: levels of kernels, and what Catalyst computes between them."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from borealis.compile.lowering import CatalystStep, to_arrow
from borealis.compile.types import empty, first_line, nullable
from borealis.compile.unit import Compiled, compile_unit
from borealis.diagram.cut import cut, part_of
from borealis.diagram.spec import Spec
from borealis.errors import ExpressionError
from borealis.kernels.aside import BOX, EXPRESSION, RANK, TUPLE
from borealis.kernels.program import STEPS_MOST
from borealis.kernels.replaying_history import CAME
from borealis.spark.worker import level_runner
from borealis.trains.results import BUCKET, FAILED, FAILED_TAG, FILE, HIDDEN, PAYLOAD, TAG, rows_column
from borealis.tuples import SUB

TRIED = "__tried"
KEEP_NULLS = {"ignoreNullFields": "false"}


def frame_of(compiled: Compiled, source: DataFrame) -> DataFrame:
    """The streaming plan from the source's rows to what the commit collects."""
    frame = source
    try:
        for number, level in enumerate(compiled.program.levels):
            if number:
                if compiled.program.buckets > 1:
                    frame = frame.repartitionById(compiled.program.buckets, F.col(BUCKET))
                schema = level_schema(compiled, number)
                frame = frame.mapInArrow(level_runner(number, to_arrow(schema)), schema)
            for port in level.leave:
                if port.as_rows and compiled.program.aside:
                    rank = number * STEPS_MOST + STEPS_MOST // 2 + port.tag  # behind the level's own steps
                    frame = _try(frame, port.tag, compiled.catalyst[port.tag][0], rank)
                elif port.as_rows:
                    frame = _apply(frame, port.tag, compiled.catalyst[port.tag][0])
    except PySparkException as error:
        hint = "simplify the expressions of these boxes, or report this: `borealis check` should have found it"
        boxes = ", ".join(box for box, where in compiled.where.items() if "Catalyst" in where)
        raise ExpressionError(f"Spark cannot plan box {boxes}: {first_line(error)}", hint=hint) from error
    return frame


def level_schema(compiled: Compiled, number: int) -> StructType:
    """What leaves a level, before Catalyst has touched it."""
    schema = packet_schema()
    rows = [p for p in compiled.program.levels[number].leave if p.as_rows]
    if rows:
        for name in HIDDEN.values():
            schema = schema.add(name, LongType())
        if compiled.program.aside:
            schema = schema.add(FAILED, StringType())
    for port in rows:
        schema = schema.add(rows_column(port.tag), nullable(compiled.catalyst[port.tag][1]))
    return schema


def packet_schema() -> StructType:
    """Where no rows leave it, whatever the program is."""
    schema = StructType().add(TAG, IntegerType()).add(BUCKET, IntegerType())
    return schema.add(PAYLOAD, BinaryType()).add(FILE, StringType())


def check_plan(spec: Spec, spark: SparkSession, schemas: dict[str, StructType] | None = None) -> None:
    """Raise as `analyze` does, and also on what has types but no plan that could run."""
    for piece in cut(spec, local=True):
        compiled = compile_unit(part_of(spec, piece), spark, schemas=schemas)
        frame_of(compiled, empty(spark, level_schema(compiled, 0)))


def _apply(frame: DataFrame, tag: int, steps: tuple[CatalystStep, ...]) -> DataFrame:
    """Run stateless steps over the rows of one tag; all others pass untouched."""
    column = rows_column(tag)
    others = [c for c in frame.columns if c != column]
    mine = F.col(TAG) == tag
    for step in steps:
        wide = frame.select(*others, f"{column}.*")
        names = wide.columns[len(others) :]
        if step.predicate is not None:
            wide = wide.where(~mine | F.expr(step.predicate))
            fields: list[Column] = [F.col(f"`{n}`") for n in names]
        else:
            fields = [F.expr(text).alias(name) for name, text in step.exprs]
        made = wide.select(F.struct(*fields).alias(column)).schema[column].dataType
        assert isinstance(made, StructType)
        rows = F.struct(*fields)
        if made != nullable(made):  # rows of other tags are null in this column, whatever Spark knows of its own
            rows = rows.cast(nullable(made))
        frame = wide.select(*others, F.when(mine, rows).alias(column))
    return frame


def _try(frame: DataFrame, tag: int, steps: tuple[CatalystStep, ...], rank: int) -> DataFrame:
    """As `_apply`, but a row that an expression fails on gets the tag of failed ones, and says where it failed."""
    column, sub = rows_column(tag), HIDDEN[SUB]
    others = [c for c in frame.columns if c not in (column, TAG, FAILED, sub)]
    mine = F.col(TAG) == tag
    for step in steps:
        wide = frame.select(*others, TAG, FAILED, sub, f"{column}.*")
        names = [f"`{n}`" for n in wide.columns[len(others) + 3 :]]
        exprs = step.exprs if step.predicate is None else (("p", step.predicate),)
        tried = F.when(mine, _attempt(F.struct(*(F.expr(text).alias(name) for name, text in exprs))))
        wide = wide.select(*others, TAG, FAILED, sub, *names, tried.alias(TRIED))
        failed = mine & F.col(TRIED).isNull()
        if CAME in step.schema.names:  # it failed when it first came
            wide = wide.where(~failed)
        if step.predicate is not None:
            wide = wide.where(~mine | failed | F.col(f"{TRIED}.p"))
            made: Column = F.struct(*names)
        else:
            made = F.col(TRIED).cast(nullable(wide.schema[TRIED].dataType))
        frame = wide.select(
            *others,
            F.when(failed, F.lit(FAILED_TAG)).otherwise(F.col(TAG)).alias(TAG),
            F.when(failed, _where_failed(step, names)).otherwise(F.col(FAILED)).alias(FAILED),
            F.when(failed, F.col(sub) + (rank << RANK)).otherwise(F.col(sub)).alias(sub),
            F.when(mine & ~failed, made).alias(column),
        )
    return frame


def _attempt(tried: Column) -> Column:
    """The value, or null where an error comes instead of one; what is tried must not be null by itself.

    Spark must not compute common parts of expressions ahead: it would do that outside of the attempt.
    """
    context = SparkContext._active_spark_context
    assert context is not None
    assert context._jvm is not None
    spark = context._jvm.org.apache.spark.sql
    expression = spark.catalyst.expressions.TryEval(spark.classic.ExpressionUtils.expression(tried._jc))
    return Column(spark.classic.ExpressionUtils.column(expression))


def _where_failed(step: CatalystStep, names: list[str]) -> Column:
    """Box, expression and the row as JSON; computed for failed rows alone."""
    first: Any = None
    for text in step.texts[:-1]:
        wrong = _attempt(F.struct(F.expr(text))).isNull()
        first = F.when(wrong, F.lit(text)) if first is None else first.when(wrong, F.lit(text))
    last = F.lit(step.texts[-1] if step.texts else "")
    row = F.to_json(F.struct(*names), KEEP_NULLS) if step.as_json else F.struct(*names).cast("string")
    return F.to_json(
        F.struct(
            F.lit(step.box).alias(BOX),
            (last if first is None else first.otherwise(last)).alias(EXPRESSION),
            row.alias(TUPLE),
        )
    )
