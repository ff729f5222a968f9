"""The batch form of a diagram: the same boxes over finite DataFrames, in plain Spark SQL.

It shares nothing with the kernels and is the truth that tests hold them to; users run backfills with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.base import Box
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.boxes.join import Join
from borealis.diagram.boxes.map import Map
from borealis.diagram.passes import check
from borealis.diagram.spec import Spec
from borealis.errors import InputError
from borealis.tuples import TIME

POSITION = "__position"  # breaks ties of time in first and last


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
        frames[one.name] = hidden(frame, F.unix_micros(F.col(f"`{one.time}`")), F.monotonically_increasing_id())
        frames[f"{one.name}.late"] = frames[one.name].where(F.lit(False))
    for box in spec.topological():
        frames[box.name] = batch_box(box, [frames[s] for s in box.sources])
    return {o.name: visible(frames[o.source]) for o in spec.outputs}


def hidden(frame: DataFrame, time: Column | None = None, position: Column | None = None) -> DataFrame:
    """With the columns that travel along unseen."""
    zero = F.lit(0).cast("bigint")
    return frame.select(
        "*", (zero if time is None else time).alias(TIME), (zero if position is None else position).alias(POSITION)
    )


def visible(frame: DataFrame) -> DataFrame:
    """Without them."""
    return frame.drop(TIME, POSITION)


def batch_box(box: Box, inputs: list[DataFrame]) -> DataFrame:
    """A box's batch form."""
    return FORMS[box.kind](box, inputs)


def _filter(box: Filter, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].where(F.expr(box.predicate))


def _map(box: Map, inputs: list[DataFrame]) -> DataFrame:
    return inputs[0].select(*(F.expr(sql).alias(name) for name, sql in box.exprs.items()), TIME, POSITION)


def _union(box: Box, inputs: list[DataFrame]) -> DataFrame:
    out = inputs[0]
    for other in inputs[1:]:
        out = out.union(other.select(*(f"`{c}`" for c in out.columns)))
    return out


def _aggregate(box: Aggregate, inputs: list[DataFrame]) -> DataFrame:
    size, slide = box.size_us, box.slide_us
    newest = f"{TIME} - pmod({TIME}, {slide}L)"
    oldest = f"{newest} - {(-(-size // slide) - 1) * slide}L"
    starts = F.expr(f"explode(filter(sequence({oldest}, {newest}, {slide}L), s -> s + {size}L > {TIME}))")
    rows = inputs[0].withColumn("__start", starts)
    calls = [_call(function, argument).alias(f"__a{i}") for i, (function, argument) in enumerate(box.calls)]
    by = [F.col(f"`{name}`") for name in box.by]
    groups = rows.groupBy(*by, "__start").agg(*calls, F.min(POSITION).alias(POSITION))
    return groups.select(
        *by,
        F.expr("timestamp_micros(__start)").alias("window_start"),
        F.expr(f"timestamp_micros(__start + {size}L)").alias("window_end"),
        *(F.expr(sql).alias(name) for name, sql in box.finals.items()),
        F.expr(f"__start + {size}L").alias(TIME),
        POSITION,
    )


def _call(function: str, argument: str) -> Column:
    if function in ("first", "last"):
        pick = "min_by" if function == "first" else "max_by"
        return F.expr(f"{pick}({argument}, struct({TIME}, {POSITION}))")
    return F.expr(f"{function}({argument})")


def _join(box: Join, inputs: list[DataFrame]) -> DataFrame:
    left, right = inputs[0].alias("left"), inputs[1].alias("right")
    near = F.abs(F.col(f"left.{TIME}") - F.col(f"right.{TIME}")) < box.within_us
    names = [[c for c in frame.columns if c not in (TIME, POSITION)] for frame in inputs]
    columns = [F.col(f"{side}.`{column}`").alias(out) for side, column, out in box.output_names(*names)]
    both = [F.greatest(f"left.{c}", f"right.{c}").alias(c) for c in (TIME, POSITION)]
    return left.join(right, F.expr(box.on) & near).select(*columns, *both)


FORMS: dict[str, Callable[[Any, list[DataFrame]], DataFrame]] = {
    "filter": _filter,
    "map": _map,
    "union": _union,
    "aggregate": _aggregate,
    "join": _join,
}
