"""The batch form of a diagram: the same boxes over finite DataFrames, in plain Spark SQL.

It shares nothing with the kernels and is the truth that tests hold them to; users run backfills with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from borealis.diagram.passes import check
from borealis.diagram.spec import Spec
from borealis.errors import InputError
from borealis.plan.boxes import batch_arrows
from borealis.plan.hidden import hidden, visible


def batch(spec: Spec, spark: SparkSession, inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Each output as a DataFrame, from one DataFrame per input. Nothing is late: all rows count."""
    check(spec)
    frames: dict[str, DataFrame] = {}
    for one in spec.inputs:
        if one.name not in inputs:
            raise InputError(f"no DataFrame for input '{one.name}'", hint=f"pass {{'{one.name}': df}}")
        frame = inputs[one.name]
        missing = [n for n in one.names if n.lower() not in {c.lower() for c in frame.columns}]
        if missing:
            raise InputError(
                f"input '{one.name}': no column '{missing[0]}' in the DataFrame (has: {', '.join(frame.columns)})"
            )
        empty = spark.createDataFrame([], one.columns)
        frame = frame.select(*(F.col(f"`{f.name}`").cast(f.dataType).alias(f.name) for f in empty.schema.fields))
        time = F.col(f"`{one.time}`") if one.time_expression is None else F.expr(one.time_expression)
        frames[one.name] = hidden(frame, F.unix_micros(time), F.monotonically_increasing_id())
        frames[f"{one.name}.late"] = frames[one.name].where(F.lit(False))
    for box in spec.topological():
        frames |= batch_arrows(box, [frames[s] for s in box.sources])
    return {o.name: visible(frames[o.source]) for o in spec.outputs}
