"""SQL-read: a kernel that asks, then a filter for answers that fit and one for those that do not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from borealis.compile.boxes.sql_write import PLAIN, asking, part, require_plain
from borealis.compile.lowering import Lowering, to_arrow
from borealis.compile.types import POSITION, first_line, show, visible
from borealis.diagram.boxes.sql_read import SqlRead
from borealis.diagram.boxes.sql_write import BAD, REASON
from borealis.diagram.statements import parameters
from borealis.kernels.sql_read import RememberingSqlRead
from borealis.kernels.sql_write import REASON as WHY
from borealis.kernels.step import schema_text
from borealis.tuples import TIME

NUMBER = "__number"  # of a question; in the batch form


def check(box: SqlRead, sources: list[DataFrame]) -> None:
    require_plain(box, sources[0].schema, parameters(box.statement))
    for field in given(box).fields:
        if field.dataType.simpleString().split("(")[0] not in PLAIN:
            raise box.wrong(f"'{field.name}' is {show(field.dataType)}, which no database gives", "give it as STRING")


def given(box: SqlRead) -> StructType:
    """The columns of an answer."""
    try:
        return StructType.fromDDL(box.gives)
    except PySparkException as error:
        raise box.wrong(first_line(error), "gives= is Spark SQL: 'name STRING, tier INT'") from error


def batch(box: SqlRead, inputs: list[DataFrame]) -> dict[str, DataFrame]:
    """Ask each distinct question on the driver, and join the answers to the rows that asked."""
    rows, names, fields = inputs[0], parameters(box.statement), given(box).fields
    keys = [F.col(f"`{name}`").alias(f"__q{i}") for i, name in enumerate(names)]
    asked = rows.select(*keys, F.lit(0).alias(NUMBER)).distinct().drop(NUMBER).toArrow()
    answers = StructType().add(NUMBER, LongType()).add("__refused", StringType())
    for i, field in enumerate(fields):
        answers = answers.add(f"__a{i}", BinaryType() if isinstance(field.dataType, BinaryType) else StringType())
    spark = rows.sparkSession
    found = spark.createDataFrame(_ask(box, names, asked, len(fields)) if asked.num_rows else [], answers)
    same = [F.col(f"`{name}`").eqNullSafe(F.col(f"__q{i}")) for i, name in enumerate(names)]
    numbered = spark.createDataFrame(asked.append_column(NUMBER, pa.array(range(asked.num_rows), pa.int64())))
    both = (rows.join(numbered, same) if same else rows.crossJoin(numbered)).join(found, NUMBER)
    good, fits = [], F.col("__refused").isNull()
    for i, field in enumerate(fields):
        text = f"try_cast(__a{i} AS {field.dataType.simpleString()})"
        fits &= F.expr(f"__a{i} IS NULL OR {text} IS NOT NULL")
        good.append(F.expr(text).alias(field.name))
    own = [F.col(f"`{c}`") for c in visible(rows).columns]
    why = F.coalesce(F.col("__refused"), F.lit("an answer that does not fit")).alias(REASON)
    return {
        box.name: both.where(fits).select(*own, *good, TIME, POSITION),
        box.name + BAD: both.where(~fits).select(*own, why, TIME, POSITION),
    }


def _ask(box: SqlRead, names: list[str], asked: pa.Table, width: int) -> list[tuple[Any, ...]]:
    """The rows of all answers as text: the number of the question, why it was refused, the values."""
    import sqlalchemy as sa

    from borealis.databases.database import Database

    database = Database(box.name, box.database, box.give_up_us)
    columns = [database.values(column) for column in asked.columns]
    questions = list(zip(*columns, strict=True)) if columns else [()]
    found: list[tuple[Any, ...]] = []
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        for number, question in enumerate(questions):
            try:
                with connection.begin_nested():
                    values = dict(zip(names, question, strict=True))
                    rows = connection.execute(database.statement(box.statement), values).fetchall()
            except (sa.exc.DataError, sa.exc.IntegrityError) as error:
                found.append((number, " ".join(str(error.orig).split()), *[None] * width))
                continue
            found += [(number, None, *map(_text, row)) for row in rows]
            if not rows and box.missing == "null":
                found.append((number, None, *[None] * width))
    engine.dispose()
    return found


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, bytes) else str(value)


def lower(box: SqlRead, low: Lowering) -> None:
    source, judged, answer = box.sources[0], f"{box.name}~judged", given(box)
    schema = low.schema(source)
    revised = low.revised(source)
    options = asking(box) | {
        "statement": box.statement,
        "history": low.history(box) if revised else None,
        "revised": revised,
        "missing": box.missing,
        "schema": schema_text(low.arrow(source)),
        "given": schema_text(to_arrow(answer)),
    }
    out = StructType([*schema.fields, *answer.fields]).add(WHY, StringType())
    if revised:  # a row that goes must find the one that came, with the same question
        by, tables = [parameters(box.statement)], RememberingSqlRead.tables
        low.stateful("sql_read", box, [source], judged, out, options=options, by=by, tables=tables)
    else:
        low.stateful("sql_read", box, [source], judged, out, options=options)
    part(box, low, judged, [*schema.names, *answer.names], schema.names)
