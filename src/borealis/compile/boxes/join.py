"""Join: keys as maps before it, pairs as a kernel, what the condition asks beyond equality as a filter behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ByteType, StructType

from borealis.compile.expressions import Names, columns_read
from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import POSITION, require_boolean, visible
from borealis.diagram import join_columns, sql
from borealis.diagram.boxes.join import Join
from borealis.diagram.join_columns import SIDES
from borealis.kernels.join import JoinKernel
from borealis.kernels.step import schema_text
from borealis.tuples import KIND, TIME

INTEGERS = ("tinyint", "smallint", "int", "bigint")


def check(box: Join, sources: list[DataFrame]) -> None:
    require_boolean(box, _pair(sources), box.on)


def batch(box: Join, inputs: list[DataFrame]) -> DataFrame:
    left, right = inputs[0].alias("left"), inputs[1].alias("right")
    near = F.abs(F.col(f"left.{TIME}") - F.col(f"right.{TIME}")) < box.within_us
    names = [visible(frame).columns for frame in inputs]
    columns = [F.col(f"{side}.`{column}`").alias(out) for side, column, out in box.output_names(*names)]
    both = [F.greatest(f"left.{c}", f"right.{c}").alias(c) for c in (TIME, POSITION)]
    return left.join(right, F.expr(box.on) & near).select(*columns, *both)


def reads(box: Join, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    mine = [set[str](), set[str]()]
    for side, column, out in box.output_names(*(source.columns for source in sources)):
        if out in wanted[box.name]:
            mine[SIDES.index(side)].add(column)
    for place, column in _asked(_pair(sources), [box.on], len(sources[0].columns)):
        mine[place].add(column)
    return [frozenset(one) for one in mine]


def _pair(sides: list[DataFrame]) -> DataFrame:
    return sides[0].alias("left").crossJoin(sides[1].alias("right"))


def _asked(pair: DataFrame, texts: Sequence[str], left: int) -> list[tuple[int, str]]:
    """The columns that conditions read, each with its side; the first so many of a pair are the left side's."""
    return [(int(place >= left), pair.columns[place]) for place in columns_read(pair, texts)]


def lower(box: Join, low: Lowering) -> None:
    sides, keys, residual = list(box.sources), [], [] if box.residual is None else [box.residual]
    frames = [low.empty(s) for s in sides]
    pair = _pair(frames)
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
    carried = low.carried(box.name)
    outputs = [one for one in box.output_names(*map(low.drawn, box.sources)) if one[2] in carried]
    needed = {(SIDES.index(side), column) for side, column, _ in outputs}
    needed.update(_asked(pair, residual, len(frames[0].columns)))
    columns = [("left", c, f"__l_{c}") for c in frames[0].columns if (0, c) in needed]
    columns += [("right", c, f"__r_{c}") for c in frames[1].columns if (1, c) in needed]
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
    low.map(box, pairs, box.name, {out: f"`__{which[0]}_{column}`" for which, column, out in outputs})
