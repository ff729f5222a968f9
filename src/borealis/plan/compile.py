"""From a unit of a diagram to a program of kernels and the Spark plan around it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from borealis.diagram.cut import Piece
from borealis.diagram.spec import LATE, Spec
from borealis.errors import ExpressionError
from borealis.ingest.times import TimeOf
from borealis.kernels.aside import BOX, ERRORS, EXPRESSION, RANK, TUPLE
from borealis.kernels.aside import SCHEMA as ERRORS_SCHEMA
from borealis.kernels.program import ERRORS_TAG, STEPS_MOST, Program
from borealis.plan.analyze import analyze, time_of
from borealis.plan.boxes import form_of
from borealis.plan.lowering import CatalystStep, Lowering, Outlet, to_arrow
from borealis.plan.types import empty, first_line, nullable
from borealis.plan.worker import BUCKET, FAILED, FAILED_TAG, FILE, HIDDEN, PAYLOAD, TAG, level_runner, rows_column
from borealis.state.delta import TableSpec
from borealis.tuples import CAUSE, SUB, TIME

TRIED = "__tried"
KEEP_NULLS = {"ignoreNullFields": "false"}


@dataclass(frozen=True)
class Compiled:
    """A unit ready to run."""

    program: Program
    outlets: dict[str, Outlet]  # outputs, and `<input>.late` for each input
    inputs: dict[str, pa.Schema]
    schemas: dict[str, StructType]  # of every arrow
    tables: dict[str, tuple[TableSpec, ...]]  # of every stateful box
    catalyst: dict[int, tuple[tuple[CatalystStep, ...], StructType]]  # by tag: steps, and the schema they start from
    where: dict[str, str]  # box to where it runs, for explain
    hinders: str | None = None  # why it cannot run in a lane
    headers: bool = False  # outputs know their times
    times: dict[str, TimeOf] = field(default_factory=dict)  # of the inputs of a whole diagram

    @property
    def one_level(self) -> bool:
        """Whether all of it is computed inside the Spark source, so that it can run in a lane."""
        return len(self.program.levels) == 1 and not self.catalyst

    @property
    def first_schema(self) -> StructType:
        """The schema of the Spark source."""
        return self._between(0)

    def frame(self, source: DataFrame) -> DataFrame:
        """The streaming plan from the source's rows to what the commit collects."""
        try:
            return self._frame(source)
        except PySparkException as error:
            hint = "simplify the expressions of these boxes, or report this: `borealis check` should have told"
            boxes = ", ".join(box for box, where in self.where.items() if "Catalyst" in where)
            raise ExpressionError(f"Spark cannot plan box {boxes}: {first_line(error)}", hint=hint) from error

    def _frame(self, source: DataFrame) -> DataFrame:
        frame = source
        for number, level in enumerate(self.program.levels):
            if number:
                if self.program.buckets > 1:
                    frame = frame.repartitionById(self.program.buckets, F.col(BUCKET))
                schema = self._between(number)
                runner = level_runner(number, to_arrow(schema))
                frame = frame.mapInArrow(runner, schema)
            for port in level.leave:
                if port.as_rows and self.program.aside:
                    rank = number * STEPS_MOST + STEPS_MOST // 2 + port.tag  # behind the level's own steps
                    frame = _try(frame, port.tag, self.catalyst[port.tag][0], rank)
                elif port.as_rows:
                    frame = _apply(frame, port.tag, self.catalyst[port.tag][0])
        return frame

    def _between(self, number: int) -> StructType:
        """What leaves a level, before Catalyst has touched it."""
        schema = StructType().add(TAG, IntegerType()).add(BUCKET, IntegerType())
        schema = schema.add(PAYLOAD, BinaryType()).add(FILE, StringType())
        rows = [p for p in self.program.levels[number].leave if p.as_rows]
        if rows:
            for name in HIDDEN.values():
                schema = schema.add(name, LongType())
            if self.program.aside:
                schema = schema.add(FAILED, StringType())
        for port in rows:
            schema = schema.add(rows_column(port.tag), nullable(self.catalyst[port.tag][1]))
        return schema


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


def compile_unit(
    spec: Spec,
    spark: SparkSession,
    buckets: int = 1,
    *,
    headers: bool = False,
    schemas: dict[str, StructType] | None = None,
    errors: str | None = None,
) -> Compiled:
    """The program of a unit whose diagram has been checked. `headers`: its outputs will be asked for their times.

    `schemas`: as `analyze` found them. `errors`: the output for tuples that a box cannot take; None: they fail.
    """
    inputs = [name for one in spec.inputs for name in (one.name, one.name + LATE)]
    outputs = {o.name: o.source for o in spec.outputs}
    outputs |= {one.name + LATE: one.name + LATE for one in spec.inputs}
    hidden = (TIME, CAUSE, SUB) if buckets > 1 else (TIME,) if headers else ()
    boxes = [b.name for b in spec.boxes]
    times: dict[str, TimeOf] = {}
    known = analyze(spec, spark, times) if schemas is None else schemas
    compiled = _compile(spec, inputs, boxes, outputs, hidden, spark, buckets, known, errors)
    return replace(compiled, times=times or {one.name: time_of(one, spark) for one in spec.inputs})


def check_plan(spec: Spec, spark: SparkSession, schemas: dict[str, StructType] | None = None) -> None:
    """Raise as `analyze` does, and also on what has types but no plan that could run."""
    for unit in spec.units():
        compiled = compile_unit(unit.spec, spark, schemas=schemas)
        compiled.frame(empty(spark, compiled.first_schema))


def compile_piece(
    spec: Spec, piece: Piece, spark: SparkSession, buckets: int = 1, schemas: dict[str, StructType] | None = None
) -> Compiled:
    """The program of one piece of a diagram: streams in, streams out, each known by its arrow.

    Outputs carry times and causes, so that boundaries can be put among them. `schemas`: as `analyze` found them.
    """
    hidden = (TIME, CAUSE, SUB) if buckets > 1 else (TIME, CAUSE)
    outputs = {arrow: arrow for arrow in piece.gives if arrow != piece.errors}
    known = analyze(spec, spark) if schemas is None else schemas
    return _compile(spec, piece.reads, piece.boxes, outputs, hidden, spark, buckets, known, piece.errors)


def _compile(
    spec: Spec,
    inputs: Sequence[str],
    boxes: Collection[str],
    outputs: dict[str, str],
    hidden: tuple[str, ...],  # what an output's parcels carry beside the rows: one bucket's are in order as they come
    spark: SparkSession,
    buckets: int,
    schemas: dict[str, StructType],
    errors: str | None,
) -> Compiled:
    mine = [box for box in spec.topological() if box.name in boxes]
    low = Lowering(spark, buckets, shared=not any(box.stateful for box in mine), aside=errors is not None)
    for name in inputs:
        low.add_input(name, schemas[name])
    for box in mine:
        form_of(box).lower(box, low)
    outlets = low.add_outlets(outputs, hidden)
    if errors is not None:
        outlets[errors] = Outlet(ERRORS_TAG, ERRORS, ERRORS_SCHEMA)
    headers = TIME in hidden
    return Compiled(
        low.program(), outlets, low.inputs, schemas, low.tables, low.catalyst, low.where, low.hinders, headers
    )
