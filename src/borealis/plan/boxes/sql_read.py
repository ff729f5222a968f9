"""SQL-read: a kernel that asks, then a filter for answers that fit and one for those that do not."""

from __future__ import annotations

from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from borealis.diagram.boxes.sql_read import SqlRead
from borealis.diagram.boxes.sql_write import BAD
from borealis.diagram.statements import parameters
from borealis.kernels.sql_write import REASON as WHY
from borealis.kernels.step import schema_text
from borealis.plan.boxes.sql_write import PLAIN, asking, part, require_plain, with_reason
from borealis.plan.hidden import POSITION
from borealis.plan.lowering import Lowering, to_arrow
from borealis.plan.types import first_line, show
from borealis.tuples import TIME

NUMBER = "__number"  # of a question; in the batch form


def check(box: SqlRead, sources: list[DataFrame]) -> None:
    require_plain(box, sources[0].schema)
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
    asked = [tuple(row) for row in rows.select(*keys, F.lit(0).alias(NUMBER)).distinct().drop(NUMBER).collect()]
    questions = StructType().add(NUMBER, "bigint")
    for i, name in enumerate(names):
        questions = questions.add(f"__q{i}", rows.schema[name].dataType)
    answers = StructType().add(NUMBER, "bigint").add("__refused", "string")
    for i, field in enumerate(fields):
        answers = answers.add(f"__a{i}", BinaryType() if isinstance(field.dataType, BinaryType) else StringType())
    spark = rows.sparkSession
    told = spark.createDataFrame([(n, *question) for n, question in enumerate(asked)], questions)
    found = spark.createDataFrame(_ask(box, names, asked, len(fields)) if asked else [], answers)
    same = [F.col(f"`{name}`").eqNullSafe(F.col(f"__q{i}")) for i, name in enumerate(names)]
    both = (rows.join(told, same) if same else rows.crossJoin(told)).join(found, NUMBER)
    good, fits = [], F.col("__refused").isNull()
    for i, field in enumerate(fields):
        text = f"try_cast(__a{i} AS {field.dataType.simpleString()})"
        fits &= F.expr(f"__a{i} IS NULL OR {text} IS NOT NULL")
        good.append(F.expr(text).alias(field.name))
    own = [F.col(f"`{c}`") for c in rows.columns if c not in (TIME, POSITION)]
    misfit = F.coalesce(F.col("__refused"), F.lit("an answer that does not fit"))
    bad = with_reason(both.where(~fits).select(*own, TIME, POSITION, misfit.alias(WHY)), F.col(WHY))
    return {box.name: both.where(fits).select(*own, *good, TIME, POSITION), box.name + BAD: bad}


def _ask(box: SqlRead, names: list[str], asked: list[tuple[Any, ...]], width: int) -> list[tuple[Any, ...]]:
    """The rows of all answers as text: the number of the question, why it was refused, the values."""
    import sqlalchemy as sa

    from borealis.databases.database import Database

    database = Database(box.name, box.database, box.give_up_us)
    found: list[tuple[Any, ...]] = []
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        for number, question in enumerate(asked):
            try:
                with connection.begin_nested():
                    values = {name: _sent(value) for name, value in zip(names, question, strict=True)}
                    rows = connection.execute(database.statement(box.statement), values).fetchall()
            except (sa.exc.DataError, sa.exc.IntegrityError) as error:
                found.append((number, " ".join(str(error.orig).split()), *[None] * width))
                continue
            found += [(number, None, *map(_text, row)) for row in rows]
            if not rows and box.missing == "null":
                found.append((number, None, *[None] * width))
    engine.dispose()
    return found


def _sent(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def _text(value: Any) -> Any:
    return value if value is None or isinstance(value, bytes) else str(value)


def lower(box: SqlRead, low: Lowering) -> None:
    source, judged, answer = box.sources[0], f"{box.name}~judged", given(box)
    schema = low.schema(source)
    options = asking(box) | {
        "missing": box.missing,
        "schema": schema_text(low.arrow(source)),
        "given": schema_text(to_arrow(answer)),
    }
    out = StructType([*schema.fields, *answer.fields]).add(WHY, StringType())
    low.alone("sql_read", box, source, judged, out, options=options)
    part(box, low, judged, [*schema.names, *answer.names], schema.names)
