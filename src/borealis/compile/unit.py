"""From a unit of a diagram to a program of kernels."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from borealis.compile.analyze import analyze, time_of
from borealis.compile.boxes import form_of
from borealis.compile.lowering import CatalystStep, Lowering, Outlet
from borealis.diagram.cut import Piece
from borealis.diagram.spec import LATE, Spec
from borealis.kernels.aside import ERRORS
from borealis.kernels.aside import SCHEMA as ERRORS_SCHEMA
from borealis.kernels.program import ERRORS_TAG, Program
from borealis.kernels.time_of import TimeOf
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
    hinders: str | None = None  # why it cannot run in a lane
    headers: bool = False  # outputs know their times
    times: dict[str, TimeOf] = field(default_factory=dict)  # of the inputs of a whole diagram

    @property
    def one_level(self) -> bool:
        """Whether all of it is computed inside the Spark source, so that it can run in a lane."""
        return len(self.program.levels) == 1 and not self.catalyst


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
