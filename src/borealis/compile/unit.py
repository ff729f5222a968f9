"""From a diagram, or a piece of one, to a program of kernels."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from borealis.compile.analyze import analyze, time_of
from borealis.compile.boxes import form_of
from borealis.compile.carried import telling
from borealis.compile.lowering import Answers, Arrows, CatalystStep, Lowering, Outlet
from borealis.diagram.boxes import Box
from borealis.diagram.boxes.history import CONFLICT, EXPIRED, History
from borealis.diagram.cut import Piece
from borealis.diagram.passes.revisions import revised_arrows
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
    counted: dict[str, Outlet] = field(default_factory=dict)  # changes of inputs that were not made, by their arrows
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
    piece: Piece | None = None,
    headers: bool = False,
    schemas: dict[str, StructType] | None = None,
    errors: str | None = None,
    answers: Answers | None = None,
) -> Compiled:
    """The program of a checked diagram, or of one piece of it: streams in, streams out, each known by its arrow.

    `headers`: its outputs will be asked for their times; those of a piece have times and causes, so that boundaries can
    be put among them. `schemas`: as `analyze` found them. `errors`: the output for tuples that a box cannot take; None:
    they fail their train. A piece has its own. `answers`: what Spark said of stateless steps, where its session and its
    settings were the same; what it says now is added.
    """
    schemas = analyze(spec, spark) if schemas is None else schemas
    boxes, times = spec.topological(), {}
    if piece is None:
        late = {one.name + LATE: one.name + LATE for one in spec.inputs}
        inputs = tuple(name for one in spec.inputs for name in (one.name, one.name + LATE))
        outputs = {o.name: o.source for o in spec.outputs} | late
        hidden: tuple[str, ...] = (TIME,) if headers else ()
        times = {one.name: time_of(one, spark) for one in spec.inputs}
    else:
        boxes = [box for box in boxes if box.name in piece.boxes]
        inputs, errors = piece.reads, piece.errors
        outputs = {arrow: arrow for arrow in piece.gives if arrow != errors}
        hidden = (TIME, CAUSE)
    if buckets > 1:
        hidden = (TIME, CAUSE, SUB)  # what one bucket sends is in order as it comes
    shared, histories = not any(box.stateful for box in boxes), revised_arrows(spec)
    low = Lowering(
        spark,
        buckets,
        shared=shared,
        aside=errors is not None,
        histories=histories,
        answers=answers,
        arrows=Arrows(spec.columns, schemas, telling(spec)),
    )
    for name in inputs:
        low.add_input(name, schemas[name])
    for box in boxes:
        form_of(box).lower(box, low)
    refused = {side: box.name + side.removeprefix(box.sources[0]) for box in boxes for side in refused_by(box)}
    if piece is None:
        outputs |= {side: arrow for side, arrow in refused.items() if side not in outputs}
    outlets = low.add_outlets(outputs, hidden)
    counted = {side: outlets[side] for side in refused} if piece is None else low.add_outlets(refused, ())
    if errors is not None:
        outlets[errors] = Outlet(ERRORS_TAG, ERRORS, ERRORS_SCHEMA)
    return Compiled(
        low.program(),
        outlets,
        low.inputs,
        schemas,
        low.tables,
        low.catalyst,
        low.where,
        low.hinders,
        headers=TIME in hidden,
        counted=counted,
        times=times,
    )


def refused_by(box: Box) -> list[str]:
    """The arrows of an input, as users call them, on which changes go that a box does not make."""
    return [box.sources[0] + side for side in (EXPIRED, CONFLICT)] if isinstance(box, History) else []
