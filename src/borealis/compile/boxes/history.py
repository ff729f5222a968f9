"""History: a kernel that finds the rows which go, then a filter for what fits and for each way in which it does not.

The batch form knows no boundaries: it gives what stands after all changes, and nothing is too old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import POSITION, visible
from borealis.diagram.boxes import history as box_of
from borealis.diagram.boxes.history import History
from borealis.kernels import history as kernel_of
from borealis.kernels.history import HistoryKernel
from borealis.kernels.join_index import is_text
from borealis.kernels.kinds import kinds_of
from borealis.kernels.replaying_history import AT, MORE, READER, ReplayingHistory
from borealis.kernels.step import schema_text
from borealis.tuples import KIND, Kind


def check(box: History, sources: list[DataFrame]) -> None:
    """The columns of its key are there: the input has seen to that."""


def batch(box: History, inputs: list[DataFrame]) -> dict[str, DataFrame]:
    stands = corrected(inputs[0], box.key)
    none = aside(stands)
    again = dict.fromkeys(box.replays, stands.where(F.lit(False)))
    return {box.name: stands, box.name + box_of.EXPIRED: none, box.name + box_of.CONFLICT: none} | again


def corrected(rows: DataFrame, key: Sequence[str]) -> DataFrame:
    """What stands after all changes; a group of rows with one key is gone through in one task."""
    if KIND not in rows.columns:
        return rows
    out = rows.drop(KIND)
    return rows.groupBy(*(F.col(f"`{name}`") for name in key)).applyInArrow(_standing(out.columns), out.schema)


def aside(rows: DataFrame) -> DataFrame:
    """No rows, with the columns of changes that were not made."""
    hidden = [name for name in rows.columns if name not in visible(rows).columns]
    texts = [F.lit(None).cast("string").alias(name) for name in (box_of.CHANGE, box_of.REASON)]
    return rows.where(F.lit(False)).select(*(F.col(f"`{n}`") for n in visible(rows).columns), *texts, *hidden)


def _standing(names: list[str]) -> Callable[[pa.Table], pa.Table]:
    def last(group: pa.Table) -> pa.Table:
        group = group.sort_by(POSITION)
        stands: int | None = None
        for row, kind in enumerate(kinds_of(group).tolist()):
            if kind == Kind.INSERTION:
                stands = row if stands is None else stands
            elif kind == Kind.DELETION:
                stands = None
            elif kind == Kind.UPDATE_AFTER:
                stands = stands if stands is None else row
        return group.select(names).take(pa.array([] if stands is None else [stands], pa.int64()))

    return last


def lower(box: History, low: Lowering) -> None:
    source, judged = box.sources[0], f"{box.name}~judged"
    columns = [field for field in low.schema(source).fields if field.name != KIND]
    every, names = [field.name for field in columns], low.carried(box.name)
    text = T.StringType()
    more = ((kernel_of.SIGN, T.ByteType()), (kernel_of.CHANGE, text), (kernel_of.WHY, text))
    schema = T.StructType([*columns, *(T.StructField(*one) for one in more)])
    options = {"schema": schema_text(low.arrow(source)), "key": list(box.key), "history": box.history_us, "read": names}
    op, by = "fused_history", [box.key] if box.key else None
    tables = HistoryKernel.tables if box.key else ()
    changes = f"{kernel_of.WHY} IS NULL"
    if box.replays:  # a pane has rows of any key, so that all of them are in one bucket
        op, by, tables = "replaying_history", [()], ReplayingHistory.tables
        options["replays"] = [(pane, _plain(low.arrow(source), groups)) for pane, groups in box.replays.values()]
        schema = T.StructType([*schema.fields, *from_arrow_schema(MORE).fields])
        changes += f" AND {READER} IS NULL"
    low.stateful(op, box, [source], judged, schema, options=options, by=by, tables=tables)
    why = kernel_of.WHY
    low.filter(box, judged, f"{box.name}~changes", changes)
    low.map(box, f"{box.name}~changes", box.name, unchanged(names) | {KIND: kernel_of.SIGN})
    low.filter(box, judged, f"{box.name}~aside", f"{why} IS NOT NULL")  # most trains have none, and texts are slow
    told = unchanged(every) | {box_of.CHANGE: kernel_of.CHANGE, box_of.REASON: why}
    for side, sign in ((box_of.EXPIRED, "="), (box_of.CONFLICT, "<>")):
        low.filter(box, f"{box.name}~aside", f"{box.name}~{side}", f"{why} {sign} '{kernel_of.EXPIRED}'")
        low.map(box, f"{box.name}~{side}", box.name + side, told)
    for reader, arrow in enumerate(box.replays):
        low.filter(box, judged, f"{arrow}~rows", f"{READER} = {reader}")
        low.map(box, f"{arrow}~rows", arrow, unchanged(names) | AT)


def _plain(schema: pa.Schema, names: Sequence[str]) -> list[str]:
    """Those columns that have a number for each value."""
    kinds = pa.types
    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_decimal128, kinds.is_boolean)
    plain = (is_text, *numbers, kinds.is_date32, kinds.is_timestamp)
    return [name for name in names if any(is_a(schema.field(name).type) for is_a in plain)]
