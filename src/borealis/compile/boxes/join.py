"""Join: keys as maps before it, pairs as a kernel, what the condition asks beyond equality as a filter behind."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, StructType

from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import POSITION, require_boolean, visible
from borealis.diagram import join_columns, sql
from borealis.diagram.boxes.join import Join
from borealis.kernels.join import JoinKernel
from borealis.kernels.step import schema_text
from borealis.tuples import KIND, TIME

INTEGERS = ("tinyint", "smallint", "int", "bigint")


def check(box: Join, sources: list[DataFrame]) -> None:
    left, right = sources
    pair = left.alias("left").crossJoin(right.alias("right"))
    require_boolean(box, pair, box.on)


def batch(box: Join, inputs: list[DataFrame]) -> DataFrame:
    left, right = inputs[0].alias("left"), inputs[1].alias("right")
    near = F.abs(F.col(f"left.{TIME}") - F.col(f"right.{TIME}")) < box.within_us
    names = [visible(frame).columns for frame in inputs]
    columns = [F.col(f"{side}.`{column}`").alias(out) for side, column, out in box.output_names(*names)]
    both = [F.greatest(f"left.{c}", f"right.{c}").alias(c) for c in (TIME, POSITION)]
    return left.join(right, F.expr(box.on) & near).select(*columns, *both)


def lower(box: Join, low: Lowering) -> None:
    sides, keys, residual = list(box.sources), [], [] if box.residual is None else [box.residual]
    frames = [low.empty(s) for s in sides]
    pair = frames[0].alias("left").crossJoin(frames[1].alias("right"))
    added: list[dict[str, str]] = [{}, {}]
    for i, texts in enumerate(box.keys):
        kinds = [pair.select(F.expr(t).alias("x")).schema["x"].dataType.simpleString() for t in texts]
        bare = [join_columns.without_side(t) for t in texts]
        plain = [sql.plain_column(b, f.columns) for b, f in zip(bare, frames, strict=True)]
        if kinds[0] == kinds[1] and kinds[0].split("<")[0] not in ("array", "map", "struct"):
            names = [p or f"__k{i}" for p in plain]
        elif all(k in INTEGERS for k in kinds):
            bare, names = [f"CAST({b} AS BIGINT)" for b in bare], [f"__k{i}"] * 2
        else:  # Spark would convert one side: leave it to Spark's own equality
            residual.append(f"{texts[0]} = {texts[1]}")
            continue
        for side, (name, text) in enumerate(zip(names, bare, strict=True)):
            if name.startswith("__"):
                added[side][name] = text
        keys.append((names[0], names[1]))
    for side in (0, 1):
        if added[side]:
            exprs = unchanged(frames[side].columns) | added[side]
            out = f"{box.name}~{('left', 'right')[side]}"
            low.map(box, sides[side], out, exprs)
            sides[side] = out
    columns = [("left", c, f"__l_{c}") for c in frames[0].columns]
    columns += [("right", c, f"__r_{c}") for c in frames[1].columns]
    schema = StructType()
    for which, column, out in columns:
        schema = schema.add(out, frames[which == "right"].schema[column].dataType)
    if any(map(low.revised, sides)):
        schema = schema.add(KIND, ByteType())
    options = {
        "history": low.history(box),
        "left": schema_text(low.arrow(sides[0])),
        "right": schema_text(low.arrow(sides[1])),
        "keys": keys,
        "within": box.within_us,
        "columns": columns,
    }
    by = [[k[0] for k in keys], [k[1] for k in keys]]
    pairs, tables = f"{box.name}~pairs", JoinKernel.tables
    low.stateful("join", box, sides, pairs, schema, by=by, options=options, tables=tables)
    if residual:
        condition = join_columns.with_prefix(
            " AND ".join(f"({r})" for r in residual), frames[0].columns, frames[1].columns
        )
        low.filter(box, pairs, f"{box.name}~matches", condition)
        pairs = f"{box.name}~matches"
    outputs = box.output_names(frames[0].columns, frames[1].columns)
    low.map(box, pairs, box.name, {out: f"`__{which[0]}_{column}`" for which, column, out in outputs})
