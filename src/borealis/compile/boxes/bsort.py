"""BSort: what to sort by as a map, the buffers as a kernel. The batch form asks Spark's own order for the ranks."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from borealis.compile.expressions import Names, names_read
from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import POSITION, require_groups, show, type_of
from borealis.diagram import sql
from borealis.diagram.boxes.bsort import BSort
from borealis.kernels.bsort import BSortKernel
from borealis.kernels.revised_bsort import RevisedBSort
from borealis.kernels.step import schema_text
from borealis.tuples import TIME

SORT = "__sort"
RANK = "__rank"
AT_THE_END = 1 << 62  # behind any row's position
ORDERED = (T.NumericType, T.BinaryType, T.BooleanType, T.DateType, T.StringType, T.TimestampType, T.TimestampNTZType)


def check(box: BSort, sources: list[DataFrame]) -> None:
    kind = type_of(sources[0], box.value, box)
    if not has_order(kind):
        raise box.wrong(f"cannot sort by `{box.value}`, {show(kind)}", "sort by a number, text, a date or a time")
    require_groups(box, sources[0].schema, box.by)


def has_order(kind: T.DataType) -> bool:
    """Whether the kernels compare values of this type as Spark does; text with a collation they do not."""
    return isinstance(kind, ORDERED) and kind.simpleString() != "void" and "collate" not in kind.simpleString()


def batch(box: BSort, inputs: list[DataFrame]) -> DataFrame:
    """A group is sorted in one task, in memory. Without boundaries, what is left at the end keeps its time."""
    by: list[Column] = [F.col(f"`{name}`") for name in box.by]
    order = Window.partitionBy(*by).orderBy(F.expr(box.value).asc_nulls_first(), POSITION, TIME)
    ranked = inputs[0].withColumn(RANK, F.row_number().over(order))
    return ranked.groupBy(*by).applyInArrow(buffered(box.buffer), inputs[0].schema)


def buffered(size: int) -> Callable[[pa.Table], pa.Table]:
    """What a buffer of this size makes of one group's rows, which know their ranks."""

    def run(group: pa.Table) -> pa.Table:
        came = group.sort_by([(POSITION, "ascending"), (TIME, "ascending")])
        times, positions = came[TIME].to_pylist(), came[POSITION].to_pylist()
        row_of = dict(zip(came[RANK].to_pylist(), range(len(came)), strict=True))
        buffer: list[int] = []
        rows, raised, places = [], [], []
        for rank, row in row_of.items():
            insort(buffer, rank)
            if len(buffer) == size:
                rows.append(row_of[buffer.pop(0)])
                raised.append(max(times[rows[-1]], times[row]))
                places.append(positions[row])
        rest = [row_of[rank] for rank in buffer]
        out = came.take(pa.array(np.array(rows + rest, np.int64)))
        hidden = {
            TIME: raised + [times[row] for row in rest],
            POSITION: [*places, *range(AT_THE_END, AT_THE_END + len(rest))],
        }
        columns = [pa.array(hidden[n], pa.int64()) if n in hidden else out[n] for n in out.column_names if n != RANK]
        return pa.table(columns, names=[n for n in out.column_names if n != RANK])

    return run


def reads(box: BSort, sources: list[DataFrame], wanted: Mapping[str, Names]) -> list[Names]:
    return [wanted[box.name] | names_read(sources[0], [box.value]) | frozenset(box.by)]


def lower(box: BSort, low: Lowering) -> None:
    source = box.sources[0]
    schema = low.schema(source)
    value = sql.plain_column(box.value, schema.names)
    if value is None:
        value, keyed = SORT, f"{box.name}~keyed"
        low.map(box, source, keyed, unchanged(schema.names) | {SORT: box.value})
        source = keyed
    form = schema_text(low.arrow(source))
    options: dict[str, Any] = {"schema": form, "value": value, "by": list(box.by), "buffer": box.buffer}
    op, tables = "bsort", BSortKernel.tables
    if low.revised(source):
        op, tables, options["history"] = "revised_bsort", RevisedBSort.tables, low.history(box)
    low.stateful(op, box, [source], box.name, schema, by=[box.by], options=options, tables=tables)
