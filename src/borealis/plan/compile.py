"""From a unit of a diagram to a program of kernels and the Spark plan around it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType

from borealis.diagram.cut import Piece
from borealis.diagram.spec import LATE, Spec
from borealis.ingest.times import TimeOf
from borealis.kernels.program import Program
from borealis.plan.analyze import analyze, time_of
from borealis.plan.boxes import form_of
from borealis.plan.lowering import CatalystStep, Lowering, Outlet, to_arrow
from borealis.plan.types import nullable
from borealis.plan.worker import BUCKET, FILE, HIDDEN, PAYLOAD, TAG, level_runner, rows_column
from borealis.state.delta import TableSpec
from borealis.tuples import CAUSE, SUB, TIME


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
    headers: bool = False  # outputs know their times
    times: dict[str, TimeOf] = field(default_factory=dict)  # of the inputs of a whole diagram

    @property
    def first_schema(self) -> StructType:
        """The schema of the Spark source."""
        return self._between(0)

    def frame(self, source: DataFrame) -> DataFrame:
        """The streaming plan from the source's rows to what the commit collects."""
        frame = source
        for number, level in enumerate(self.program.levels):
            if number:
                if self.program.buckets > 1:
                    frame = frame.repartitionById(self.program.buckets, F.col(BUCKET))
                schema = self._between(number)
                runner = level_runner(number, to_arrow(schema))
                frame = frame.mapInArrow(runner, schema)
            for port in level.leave:
                if port.as_rows:
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
        frame = wide.select(*others, F.when(mine, F.struct(*fields)).alias(column))
    return frame


def compile_unit(
    spec: Spec,
    spark: SparkSession,
    buckets: int = 1,
    *,
    headers: bool = False,
    schemas: dict[str, StructType] | None = None,
) -> Compiled:
    """The program of a unit whose diagram has been checked. `headers`: its outputs will be asked for their times.

    `schemas`: as `analyze` found them.
    """
    inputs = [name for one in spec.inputs for name in (one.name, one.name + LATE)]
    outputs = {o.name: o.source for o in spec.outputs}
    outputs |= {one.name + LATE: one.name + LATE for one in spec.inputs}
    hidden = (TIME, CAUSE, SUB) if buckets > 1 else (TIME,) if headers else ()
    boxes = [b.name for b in spec.boxes]
    times: dict[str, TimeOf] = {}
    known = analyze(spec, spark, times) if schemas is None else schemas
    compiled = _compile(spec, inputs, boxes, outputs, hidden, spark, buckets, known)
    return replace(compiled, times=times or {one.name: time_of(one, spark) for one in spec.inputs})


def compile_piece(
    spec: Spec, piece: Piece, spark: SparkSession, buckets: int = 1, schemas: dict[str, StructType] | None = None
) -> Compiled:
    """The program of one piece of a diagram: streams in, streams out, each known by its arrow.

    Outputs carry times and causes, so that boundaries can be put among them. `schemas`: as `analyze` found them.
    """
    hidden = (TIME, CAUSE, SUB) if buckets > 1 else (TIME, CAUSE)
    outputs = {arrow: arrow for arrow in piece.gives}
    known = analyze(spec, spark) if schemas is None else schemas
    return _compile(spec, piece.reads, piece.boxes, outputs, hidden, spark, buckets, known)


def _compile(
    spec: Spec,
    inputs: Sequence[str],
    boxes: Collection[str],
    outputs: dict[str, str],
    hidden: tuple[str, ...],  # what an output's parcels carry beside the rows: one bucket's are in order as they come
    spark: SparkSession,
    buckets: int,
    schemas: dict[str, StructType],
) -> Compiled:
    mine = [box for box in spec.topological() if box.name in boxes]
    low = Lowering(spark, buckets, shared=not any(box.stateful for box in mine))
    for name in inputs:
        low.add_input(name, schemas[name])
    for box in mine:
        form_of(box).lower(box, low)
    outlets = low.add_outlets(outputs, hidden)
    headers = TIME in hidden
    return Compiled(low.program(), outlets, low.inputs, schemas, low.tables, low.catalyst, low.where, headers)
