"""Types, as Spark itself resolves them; its complaints, in terms of the box."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from borealis.compile.per_tuple import CONDITIONS, expression_error, per_tuple, refused, require_per_tuple
from borealis.diagram.boxes.base import Box
from borealis.diagram.spec import Input
from borealis.errors import ExpressionError, did_you_mean
from borealis.tuples import TIME

POSITION = "__position"  # of a row among those of one time, in the batch form: breaks ties in first and last
# a null of these is no null to Arrow, but a struct of parts that are said never to be; of TIME Spark knows but the name
WHOLE = (T.VariantType, T.GeometryType, T.GeographyType, T.TimeType)
_ALIAS = "__x"  # no user's column: in a select list a later item may refer to an earlier alias


def empty(spark: SparkSession, schema: T.StructType) -> DataFrame:
    """A frame with these columns, all nullable, and no rows."""
    columns = nullable(schema)
    try:
        java = spark._jsparkSession  # Python's own call takes ten times as long, and a diagram makes many
        frame = java.createDataFrame(spark._jvm.java.util.ArrayList(), java.parseDataType(columns.json()))
    except AnalysisException:  # some types are for Python alone, as TIME
        return spark.createDataFrame([], columns)
    return DataFrame(frame, spark)


def hidden(frame: DataFrame, time: Column | None = None, position: Column | None = None) -> DataFrame:
    """With the columns that travel along unseen in the batch form: a row's time, and its place among rows of one."""
    zero = F.lit(0).cast("bigint")
    return frame.select(
        "*", (zero if time is None else time).alias(TIME), (zero if position is None else position).alias(POSITION)
    )


def visible(frame: DataFrame) -> DataFrame:
    return frame.drop(TIME, POSITION)


def nullable(schema: T.StructType) -> T.StructType:
    """The same columns, each of which may be null, and so may whatever is in them.

    Arrow keeps a null struct as a null in each of its fields, and refuses one that is said to have none.
    """
    return T.StructType([T.StructField(f.name, _with_nulls(f.dataType), True, f.metadata) for f in schema.fields])


def _with_nulls(kind: T.DataType) -> T.DataType:
    match kind:
        case T.StructType():
            return nullable(kind)
        case T.ArrayType():
            return T.ArrayType(_with_nulls(kind.elementType), True)
        case T.MapType():
            return T.MapType(_with_nulls(kind.keyType), _with_nulls(kind.valueType), True)
        case _:
            return kind


def type_of(frame: DataFrame, sql: str, box: Box) -> T.DataType:
    """The type of an expression over a frame's columns; one that needs more than one tuple is refused."""
    with blaming(box, frame.columns, sql):
        made = frame.select(F.expr(sql).alias(_ALIAS))
    require_per_tuple(box, made, sql)
    try:
        return made.schema[0].dataType
    except PySparkException as error:  # a type that Spark has in the JVM, and not in Python
        raise not_carried(box, f"`{sql}`", made._jdf.schema().fields()[0].dataType().sql()) from error


def check_types(frame: DataFrame, texts: Collection[str], box: Box) -> None:
    """As `type_of`, for many expressions in one analysis; one by one only if something is wrong with one of them."""
    try:
        made = frame.select(*(F.expr(sql).alias(f"{_ALIAS}{i}") for i, sql in enumerate(texts)))
        if per_tuple(made) and len(made.schema) == len(texts):
            return
    except PySparkException:
        pass  # the one that is to blame says it below
    for sql in texts:
        type_of(frame, sql, box)


def require_carried(box: Box, schema: T.StructType) -> None:
    """Refuse columns of a type that no stream can carry."""
    for field in schema.fields:
        try:
            to_arrow_type(field.dataType, timezone="UTC")
        except PySparkException as error:
            raise not_carried(box, f"column '{field.name}'", show(field.dataType)) from error


def require_nullable(box: Box, schema: T.StructType) -> None:
    """Refuse columns that Catalyst cannot hand over: those whose type has parts that Arrow may never see as null."""
    for field in schema.fields:
        if any(isinstance(kind, WHOLE) for kind in types_in(field.dataType)):
            raise not_carried(box, f"column '{field.name}'", show(field.dataType))


def types_in(kind: T.DataType) -> Iterator[T.DataType]:
    """A type, and whatever types are in it."""
    yield kind
    match kind:
        case T.StructType():
            for field in kind.fields:
                yield from types_in(field.dataType)
        case T.ArrayType():
            yield from types_in(kind.elementType)
        case T.MapType():
            yield from (*types_in(kind.keyType), *types_in(kind.valueType))


def not_carried(box: Box, what: str, kind: str) -> ExpressionError:
    hint = "compute another type from it, such as STRING"
    return expression_error(box, f"{what} is {kind}, which no stream carries", hint)


def require_boolean(box: Box, frame: DataFrame, sql: str) -> None:
    kind = type_of(frame, sql, box)
    if not isinstance(kind, T.BooleanType):
        raise box.wrong(
            f"`{sql}` is {show(kind)}, not BOOLEAN", "a condition compares: write for example `bytes > 100`"
        )


def require_groups(box: Box, schema: T.StructType, by: Collection[str]) -> None:
    """Refuse to group by columns that have parts."""
    for name in by:
        kind = schema[name].dataType.typeName()
        if kind in ("array", "map", "struct", "variant"):
            raise box.wrong(f"cannot group by '{name}', a {kind.upper()}", "group by one of its fields")


def show(kind: T.DataType) -> str:
    """A type as SQL writes it."""
    return str(kind.simpleString()).upper()


@contextmanager
def blaming(box: Box | Input, columns: list[str], sql: str = "") -> Iterator[None]:
    """Turn Spark's complaint about an expression into one that names the box, the problem and a way out."""
    try:
        yield
    except (AnalysisException, ParseException) as error:
        condition = error.getCondition() or ""
        refusal = CONDITIONS.get(condition.partition(".")[0])
        if refusal is not None:
            raise refused(box, sql, refusal) from error
        if isinstance(error, ParseException):
            sql = sql or next((text for text in box.expressions if not _parses(text)), "")
        about = f" in `{sql}`" if sql else ""
        parameters = error.getMessageParameters() or {}
        name = re.sub(r".*`([^`]*)`$", r"\1", parameters.get("objectName", parameters.get("routineName", "")))
        if condition.startswith("UNRESOLVED_COLUMN"):
            wrong, hint = f"no column '{name}'{about} (has: {', '.join(columns)})", did_you_mean(name, columns)
        elif condition.startswith("UNRESOLVED_ROUTINE"):
            wrong, hint = f"no function '{name}'{about}", "see the built-in functions of Spark SQL"
        elif condition == "AMBIGUOUS_REFERENCE":
            either = parameters["referenceNames"].strip("[]").replace("`", "").replace(", ", " or ")
            wrong, hint = f"{parameters['name']}{about} may be {either}", f"say which: {either}"
        elif isinstance(error, ParseException):
            wrong, hint = f"cannot read `{sql}`: {first_line(error)}", "it must be a Spark SQL expression"
        else:
            wrong, hint = first_line(error) + about, "check the types of its columns"
        raise expression_error(box, wrong, hint) from error


def _parses(text: str) -> bool:
    try:
        SparkSession.active()._jsparkSession.sessionState().sqlParser().parseExpression(text)
    except ParseException:
        return False
    return True


def first_line(error: BaseException) -> str:
    """The first sentence of Spark's message, without its codes."""
    text = str(error).strip().split("\n")[0]
    text = re.sub(r"^\[[A-Z0-9_.]+\]\s*", "", text)
    return re.sub(r"\s*SQLSTATE:.*$", "", text).rstrip(".")
