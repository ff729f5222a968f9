"""The batch form of a diagram: the same boxes over finite DataFrames, in plain Spark SQL.

It shares nothing with the kernels and is the truth that tests hold them to; users run backfills with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from borealis.compile.analyze import input_schema
from borealis.compile.boxes import batch_arrows
from borealis.compile.boxes.history import aside, corrected
from borealis.compile.lowering import to_arrow
from borealis.compile.types import hidden, nullable, visible
from borealis.connectors.sources import as_source
from borealis.diagram import Diagram
from borealis.diagram.passes import checked
from borealis.diagram.spec import LATE, Input, Spec
from borealis.errors import InputError
from borealis.tuples import KIND

ROWS_AT_ONCE = 65_536  # read from a source


def batch(diagram: Diagram | Spec, spark: SparkSession, inputs: Mapping[str, Any]) -> dict[str, DataFrame]:
    """Each output as a DataFrame, from one DataFrame (or anything else with an end) per input. Nothing is late.

    It is ordinary Spark SQL: the truth that the engine is held to, and the way to fill in the past.
    """
    spec = diagram if isinstance(diagram, Spec) else diagram.spec
    checked(spec)  # and computed as it was drawn: what passes make of it is held to that
    frames: dict[str, DataFrame] = {}
    for one in spec.inputs:
        if one.name not in inputs:
            raise InputError(f"no DataFrame for input '{one.name}'", hint=f"pass {{'{one.name}': df}}")
        frame = _frame(one, inputs[one.name], spark)
        missing = [n for n in one.names if n.lower() not in {c.lower() for c in frame.columns}]
        if missing:
            raise InputError(
                f"input '{one.name}': no column '{missing[0]}' in the DataFrame (has: {', '.join(frame.columns)})"
            )
        if one.key and KIND not in frame.columns:
            frame = frame.withColumn(KIND, F.lit(None).cast("string"))
        frame = frame.select(*(F.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in input_schema(one).fields))
        time = F.col(f"`{one.time}`") if one.time_expression is None else F.expr(one.time_expression)
        came = hidden(frame, F.unix_micros(time), F.monotonically_increasing_id())
        frames[one.name] = corrected(came, one.key)
        frames |= {side: aside(frames[one.name]) for side in one.sides}
        frames[one.name + LATE] = came.drop(KIND).where(F.lit(False))
    for box in spec.topological():
        frames |= batch_arrows(box, [frames[s] for s in box.sources])
    return {o.name: visible(frames[o.source]) for o in spec.outputs}


def _frame(one: Input, value: Any, spark: SparkSession) -> DataFrame:
    """A finite DataFrame of PySpark, or whatever else `run` takes that has an end, as one."""
    if isinstance(value, DataFrame):
        if value.isStreaming:
            raise InputError(f"input '{one.name}': a batch cannot read a streaming DataFrame", hint="use run(...)")
        return value
    source = as_source(value)
    if not source.finite_and_ordered:
        raise InputError(
            f"input '{one.name}' has no end that a batch could read", hint="give a file, a list or a frame"
        )
    schema = to_arrow(nullable(input_schema(one)))
    return spark.createDataFrame(pa.Table.from_batches(list(source.batches(schema, 0, ROWS_AT_ONCE)), schema))
