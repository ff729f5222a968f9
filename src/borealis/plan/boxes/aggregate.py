"""Aggregate: arguments as a map, windows as a kernel, results as a map over what the kernel computed."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from borealis.diagram.boxes.aggregate import Aggregate
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.step import schema_text
from borealis.plan.hidden import POSITION
from borealis.plan.lowering import Lowering
from borealis.plan.types import plain_column, type_of
from borealis.tuples import TIME


def check(box: Aggregate, sources: list[DataFrame]) -> None:
    for function, argument in box.calls:
        if argument != "*":
            type_of(sources[0], argument, box)
            type_of(sources[0], f"{function}({argument})", box)
    for name in box.by:
        kind = sources[0].schema[name].dataType.typeName()
        if kind in ("array", "map", "struct", "variant"):
            raise box.wrong(f"cannot group by '{name}', a {kind.upper()}", "group by one of its fields")


def batch(box: Aggregate, inputs: list[DataFrame]) -> DataFrame:
    size, slide = box.size_us, box.slide_us
    newest = f"{TIME} - pmod({TIME}, {slide}L)"
    oldest = f"{newest} - {(-(-size // slide) - 1) * slide}L"
    starts = F.expr(f"explode(filter(sequence({oldest}, {newest}, {slide}L), s -> s + {size}L > {TIME}))")
    rows = inputs[0].withColumn("__start", starts)
    calls = [batch_call(function, argument).alias(f"__a{i}") for i, (function, argument) in enumerate(box.calls)]
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


def batch_call(function: str, argument: str) -> Column:
    """An aggregate function over a group; first and last go by time."""
    if function in ("first", "last"):
        pick = "min_by" if function == "first" else "max_by"
        return F.expr(f"{pick}({argument}, struct({TIME}, {POSITION}))")
    return F.expr(f"{function}({argument})")


def lower(box: Aggregate, low: Lowering) -> None:
    source = box.sources[0]
    names = low.schema(source).names
    columns: list[str | None] = []
    arguments: dict[str, str] = {}
    for i, (_, argument) in enumerate(box.calls):
        plain = plain_column(argument, names)
        if argument != "*" and plain is None:
            arguments[f"__x{i}"] = argument
        columns.append(None if argument == "*" else plain or f"__x{i}")
    if arguments:
        used = dict.fromkeys([*box.by, *(c for c in columns if c is not None and c not in arguments)])
        keep = {name: f"`{name}`" for name in used}
        low.map(box, source, f"{box.name}~arguments", (keep | arguments).items())
        source = f"{box.name}~arguments"
    calls = [(f, c) for (f, _), c in zip(box.calls, columns, strict=True)]
    texts = [f"{f}({'*' if c is None else f'`{c}`'})" for f, c in calls]
    grouped = (
        low.empty(source)
        .groupBy(*(F.col(f"`{n}`") for n in box.by))
        .agg(
            F.first(F.lit(None).cast("timestamp")).alias("window_start"),
            F.first(F.lit(None).cast("timestamp")).alias("window_end"),
            *(F.expr(text).alias(f"__a{i}") for i, text in enumerate(texts)),
        )
    )
    options = {
        "schema": schema_text(low.arrow(source)),
        "by": list(box.by),
        "size": box.size_us,
        "slide": box.slide_us,
        "calls": calls,
    }
    windows, tables = f"{box.name}~windows", AggregateKernel.tables
    low.stateful("aggregate", box, [source], windows, grouped.schema, by=[box.by], options=options, tables=tables)
    finals = {name: f"`{name}`" for name in (*box.by, "window_start", "window_end")} | box.finals
    low.map(box, windows, box.name, finals.items())
