"""SQL-write: a kernel that writes, then a filter for what was written and one for what was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from borealis.compile.lowering import Lowering, unchanged
from borealis.compile.types import POSITION, show, visible
from borealis.diagram.boxes.sql_read import SqlRead
from borealis.diagram.boxes.sql_write import BAD, REASON, SqlWrite
from borealis.diagram.statements import anchored, parameters
from borealis.kernels.sql_table import SqlTableKernel
from borealis.kernels.sql_write import REASON as WHY
from borealis.kernels.step import schema_text
from borealis.tuples import TIME

PLAIN = (
    *("tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "string", "binary", "boolean", "date"),
    *("timestamp", "timestamp_ntz"),
)


def check(box: SqlWrite, sources: list[DataFrame]) -> None:
    columns = visible(sources[0]).columns if box.statement is None else parameters(box.statement)
    require_plain(box, sources[0].schema, columns)


def require_plain(box: SqlWrite | SqlRead, schema: StructType, columns: list[str]) -> None:
    """Refuse parameters that no database has a type for."""
    for name in columns:
        kind = schema[name].dataType
        if kind.simpleString().split("(")[0] not in PLAIN:
            hint = f'make it text before: map({name}="to_json({name})", ...)'
            what = f"column '{name}'" if box.statement is None else f"parameter ':{name}'"
            raise box.wrong(f"{what} is {show(kind)}, and a database takes plain values", hint)


def batch(box: SqlWrite, inputs: list[DataFrame]) -> dict[str, DataFrame]:
    """It passes rows on and writes nothing: a backfill must not repeat what the stream has written."""
    columns = [F.col(f"`{c}`") for c in visible(inputs[0]).columns]
    none = inputs[0].where(F.lit(False)).select(*columns, F.lit(None).cast("string").alias(REASON), TIME, POSITION)
    return {box.name: inputs[0], box.name + BAD: none}


def lower(box: SqlWrite, low: Lowering) -> None:
    source, judged = box.sources[0], f"{box.name}~judged"
    schema = low.schema(source)
    out = StructType([*schema.fields]).add(WHY, StringType())
    revised, options = low.revised(source), asking(box)
    if box.statement is not None:
        op, options["statement"] = "sql_write", box.statement
    else:
        op, history = "sql_table", low.history(box) if revised else None
        options |= {"table": box.table, "key": list(box.key or ()), "history": history}
        options["schema"] = schema_text(low.arrow(source))
    # one bucket writes all rows, so that they come into the database in the order of the stream
    tables = SqlTableKernel.tables if revised else ()
    low.stateful(op, box, [source], judged, out, by=[()], options=options, tables=tables)
    part(box, low, judged, schema.names, schema.names)


def asking(box: SqlWrite | SqlRead) -> dict[str, Any]:
    """What both kernels must know; a file is where the node says it is, wherever its workers run."""
    return {
        "database": anchored(box.database, Path.cwd()),
        "give_up": box.give_up_us,
    }


def part(box: SqlWrite | SqlRead, low: Lowering, judged: str, good: list[str], bad: list[str]) -> None:
    """What went well to the box's own arrow, the rest to the other one with the reason."""
    low.filter(box, judged, f"{box.name}~good", f"{WHY} IS NULL")
    low.map(box, f"{box.name}~good", box.name, unchanged(good))
    low.filter(box, judged, f"{box.name}~bad", f"{WHY} IS NOT NULL")
    low.map(box, f"{box.name}~bad", box.name + BAD, unchanged(bad) | {REASON: WHY})
