"""The law of numbers and casts: on every edge, Spark's own answer; and an error where Spark's try_ form gives null."""

from __future__ import annotations

import contextlib
import datetime
import itertools
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from test_expressions import bits

from borealis.compile.expressions import translate_all
from borealis.errors import TrainError
from borealis.kernels.casts import name
from borealis.kernels.expr import Expr, arrow_type, column

pytestmark = pytest.mark.spark

ROWS_MAX = 50  # of a random choice of pairs; that there is one is what counts


def alone(twin: Expr, table: pa.Table, type: pa.DataType) -> list[Any]:
    """The values of the rows, each on its own; None where one raises."""
    answers = []
    for i in range(table.num_rows):
        try:
            answers += bits(column(twin, table.slice(i, 1), type))
        except TrainError:
            answers.append(None)
    return answers


def ours(twin: Expr, table: pa.Table, type: pa.DataType) -> list[Any]:
    """All at once where nothing raises; then the rows alone must give the same."""
    each = alone(twin, table, type)
    with contextlib.suppress(TrainError):
        assert bits(column(twin, table, type)) == each
    return each


def check(spark: SparkSession, table: pa.Table, pairs: dict[str, str]) -> list[str]:
    """Compare expressions with the forms of them that do not raise; those that have no twin are returned."""
    frame = spark.createDataFrame(table).repartition(1)
    twins = translate_all(frame, {sql: sql for sql in pairs})
    known = {sql: twin for sql, twin in twins.items() if twin is not None}
    made = frame.select(*[F.expr(pairs[sql]).alias(f"x{i}") for i, sql in enumerate(known)]).toArrow()
    told = []
    for (sql, twin), theirs in zip(known.items(), made.columns, strict=True):
        assert arrow_type(twin.type) == theirs.type, sql
        for i, (mine, spark_s) in enumerate(zip(ours(twin, table, theirs.type), bits(theirs), strict=True)):
            if mine != spark_s:
                row = {
                    name: bits(values.slice(i, 1))[0]
                    for name, values in zip(table.column_names, table.columns, strict=True)
                }
                told.append(
                    f"{sql}: ours {mine!r}, Spark's {spark_s!r} of { {c: x for c, x in row.items() if c in sql} }"
                )
    assert not told, "\n".join(told[:20]) + f"\n({len(told)} in all)"
    return [sql for sql, twin in twins.items() if twin is None]


# --- casts -----------------------------------------------------------------------------------------------------------

UTC = datetime.UTC
NAN, INF = float("nan"), float("inf")


def _ints(bits: int) -> list[int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    near = [x for b in (8, 16, 32) if b < bits for e in (2 ** (b - 1),) for x in (e - 1, e, -e, -e - 1)]
    return [0, 1, -1, 9, 10, -99, 100, low, low + 1, high, high - 1, *near]


def _decimals(precision: int, scale: int) -> list[Decimal | None]:
    rng = Random(precision * 100 + scale)
    top = 10**precision - 1
    ints = [0, 1, -1, 5, -5, 15, 25, -25, 49, 50, 51, 99, top, -top, top // 2, top // 3, -(top // 7)]
    ints += [127, 128, -128, -129, 32767, 32768, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, -(2**63)]
    ints += [x * 10**scale + d for x in (1, 127, 128, -129, 2**31, 2**63 - 1, 2**63) for d in (0, -1, 1, 5)]
    ints += [rng.randrange(-(10**n), 10**n) for n in range(1, precision + 1)]
    kept = [x for x in ints if abs(x) <= top]
    return [None, *(Decimal(x).scaleb(-scale) if abs(x) < 10**27 else Decimal(f"{x}E-{scale}") for x in kept)]


FLOATS = [
    None, 0.0, -0.0, 0.5, -0.5, 1.0, -1.9, 127.5, 128.0, -128.9, -129.0, 32767.9, 32768.0, 2147483647.5, 2147483648.0,
    -2147483648.9, -2147483649.0, 2.0**63, 2.0**63 - 1024, -(2.0**63), -(2.0**63) - 2048, 9.3e18, NAN, INF, -INF,
    5e-324,
    1.7976931348623157e308, 9223372036854.775, 9223372036855.0, -9223372036854.775, 1e-7,
]  # fmt: skip
TEXTS = [
    None, "", " ", "0", "1", "-1", "+1", "-0", "+", "-", "007", " 7 ", "\t8\n", "\x7f9\x00", "1 2", "1.5", "-1.5", ".5",
    "5.", ".", "-.5", "+.5e1", "1e2", "1E-3", "1e", "e1", "1e400", "-1e400", "1e-400", "0e400", "1e38", "1e37",
    "1e99999999999",
    "0e99999999999", "127", "128", "-128", "-129", "32767", "32768", "2147483647", "2147483648", "-2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "0.005", "0.0049",
    "-0.005", "99999999.994", "99999999.995", "123456789012345678901234567890.123456789",
    "1" * 38, "1" * 39, "0" * 50 + "1",
    "0.1", "0.30000000000000004", "2.2250738585072011e-308", "1.7976931348623159e308", "4.9e-324", "2e-324", "1d",
    "1.5F",
    "1L", "0x1p3", "0x1.8p1", "-0x.8p0d", "0x1", "0x1p99999", "NaN", "nan", "+NaN", "-NaN", "-nan", "Infinity",
    "-Infinity",
    "inf", "+INF", "-inf", " Inf ", "\x7f1", "\x7f1.5", "１２", "١٢", "1_000", "1,5", "1e1.5", "--1", "t", "T", "true",
    "TRUE",
    " Yes ", "y", "f", "False", "no", "N", "tru", "on", "2024-01-01", "2024-1-1", "2024", "2024-02", "2024-2-30",
    "2024-02-29",
    "2023-02-29", "2024-01-01 ", "2024-01-01x", "2024-01-01T", "2024-01-01 12:34:56.789", "2024-01-01T12:34",
    "+2024-01-01",
    "-2024-01-01", "12024-01-01", "0000-01-01", "5881580-07-11", "5881580-07-12", "-5877641-06-23", "-5877641-06-22",
    "99999999-01-01", "2024-13-01", "2024-00-01", "2024-001-01", "24-01-01", "2024 01", "2024-01 01", "2024T", "é",
    "1é",
    "2024-01-01 12:34:56+02:00", "2024-01-01 12:34:56.1234567", "2024-01-01 24:00:00",
]  # fmt: skip
DAYS = [
    0,
    1,
    -1,
    19782,
    -719162,
    -719163,
    -719528,
    -719529,
    2932896,
    2932897,
    106751991,
    106751992,
    2**31 - 1,
    -(2**31),
]
MICROS = [0, 1, -1, 10, 120000, 1714564800000000, 1714564800100000, -62135596800000000, -62135596800000001,
          -62167219200000000, -62167219200000001, 253402300799999999, 253402300800000000, 2**63 - 1, -(2**63),
          2147483647999999, 2147483648000000, -2147483648000000, -2147483648000001]  # fmt: skip

SOURCES: dict[str, pa.Array] = {
    "b": pa.array([True, False, None]),
    "y": pa.array([None, *_ints(8)], pa.int8()),
    "i": pa.array([None, *_ints(32), 16777217], pa.int32()),
    "k": pa.array([None, *_ints(64), 2**53 + 1, 9223372036854, 9223372036855, -9223372036855], pa.int64()),
    "f": pa.array(FLOATS, pa.float64()).cast(pa.float32(), safe=False),
    "v": pa.array(FLOATS, pa.float64()),
    "m": pa.array(_decimals(10, 2), pa.decimal128(10, 2)),
    "n": pa.array(_decimals(15, 3), pa.decimal128(15, 3)),
    "p": pa.array(_decimals(18, 0), pa.decimal128(18, 0)),
    "q": pa.array(_decimals(38, 18), pa.decimal128(38, 18)),
    "r": pa.array(_decimals(38, 0), pa.decimal128(38, 0)),
    "o": pa.array(_decimals(38, 38), pa.decimal128(38, 38)),
    "s": pa.array(TEXTS, pa.string()),
    "d": pa.array([None, *DAYS], pa.int32()).cast(pa.date32()),
    "ts": pa.array([None, *MICROS], pa.int64()).cast(pa.timestamp("us", "UTC")),
}
TARGETS = [
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "date", "timestamp",
    "decimal(1,1)", "decimal(5,2)", "decimal(20,0)", "decimal(38,18)",
]  # fmt: skip
# Not allowed in ANSI mode, or by way of Java's digits of a double, or of a double where a DECIMAL has more digits.
NO_CAST = {
    ("b", "timestamp"),
    *((c, "date") for c in "byikfvmnpqro"),
    ("b", "date"),
    ("d", "boolean"),
    ("ts", "boolean"),
}


def _wide(values: pa.Array, rows: int) -> pa.Array:
    return pa.concat_arrays([values, pa.nulls(rows - len(values), values.type)])


@pytest.mark.long
def test_casts_are_sparks(spark: SparkSession) -> None:
    rows = max(map(len, SOURCES.values()))
    table = pa.table({source: _wide(values, rows) for source, values in SOURCES.items()})
    kinds = {field.name: field.dataType for field in spark.createDataFrame(table).schema}
    pairs = {
        f"CAST({source} AS {name(target)})": f"try_cast({source} AS {name(target)})"
        for source, target in itertools.product(SOURCES, TARGETS)
        if (source, target) not in NO_CAST
        and not (kinds[source].typeName() == "date" and target not in ("date", "timestamp", "string"))
    }
    declined = check(spark, table, pairs)
    inexact = [f"CAST({x} AS {name(t)})" for x in "fv" for t in TARGETS if t == "string" or t.startswith("decimal")]
    by_double = [f"CAST({x} AS {t})" for x in "pqro" for t in ("TINYINT", "SMALLINT", "INT")]
    of_times = [f"CAST(ts AS {name(t)})" for t in ("byte", "short", "float", *(t for t in TARGETS if "(" in t))]
    assert sorted(declined) == sorted([*inexact, *by_double, *of_times, "CAST(s AS FLOAT)"])


# --- arithmetic ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_decimals_are_sparks(spark: SparkSession) -> None:
    rng = Random(12)
    columns = [*"mpqro", "i"]
    table = pa.table({
        f"{c}{side}": pa.array([rng.choice(SOURCES[c].to_pylist()) for _ in range(ROWS_MAX)], SOURCES[c].type)
        for c in columns for side in "12"
    })  # fmt: skip
    forms = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide", "%": "try_mod"}
    pairs = {
        f"{a}1 {sign} {b}2": f"{trying}({a}1, {b}2)"
        for (sign, trying), a, b in itertools.product(forms.items(), columns, columns)
        if (a, b) != ("i", "i")
    }
    constants = ("3BD", "1024.0", "-0.007", "7", "1e20BD", "99999999999999999999999999999999999999BD")
    pairs |= {
        f"{a}1 {sign} {b}": f"{trying}({a}1, {b})"
        for (sign, trying), a, b in itertools.product(forms.items(), "mri", constants)
        if (a, b) != ("i", "7")
    }
    declined = check(spark, table, pairs)
    assert {sql.split()[1] for sql in declined} <= {"%"}, declined
    assert check(spark, table, {"-q1": "q1", "abs(r1)": "r1"}) == ["-q1", "abs(r1)"]  # Spark loses digits
    plain = [f"{f}({a}1)" for f in ("-", "abs") for a in "mp"]
    plain += [f"{f}({a}1)" for f in ("floor", "ceil", "sign") for a in "mpqro"]
    plain += [f"{f}({a}1, {b}1, {a}2)" for f in ("greatest", "least", "coalesce") for a, b in ("mp", "qp", "mm")]
    plain += [f"{a}1 {sign} {b}2" for sign in ("<", "=", "<=>") for a, b in ("mr", "qm", "po", "ip")]
    plain += ["m1 IN (p2, 1, i2)", "m1 BETWEEN -1 AND p2"]
    assert check(spark, table, {sql: sql for sql in plain}) == []


@pytest.mark.long
def test_roundings_are_sparks(spark: SparkSession) -> None:
    columns = "yikmqro"
    rows = max(len(SOURCES[c]) for c in columns)
    table = pa.table({c: _wide(SOURCES[c], rows) for c in columns})
    small = pc.less(pc.abs(table["r"]), pa.scalar(Decimal("4e37"), pa.decimal128(38, 0)))  # more cannot be rounded up
    table = table.set_column(table.column_names.index("r"), "r", pc.if_else(small, table["r"], None))
    places = (0, 1, 17, -1, -2, -10, -19, -38)
    pairs = {}
    for function, c, n in itertools.product(("round", "bround"), columns, places):
        sql = f"{function}({c}, {n})"
        fits = (
            f"{function}(CAST({c} AS DECIMAL(38,0)), {n}) BETWEEN {-(2 ** (w - 1))} AND {2 ** (w - 1) - 1}"
            if (w := INTS.get(c, 0))
            else "true"
        )
        pairs[sql] = f"CASE WHEN {fits} THEN {sql} END"
    assert check(spark, table, pairs) == []
    edges = [0.49999999999999994, 2.0**52 - 0.5, 2.0**52 + 1, 2.0**51 + 0.5, 123456789012344.5, 1e15 + 0.5, -2.5, 3.5]
    doubles = pa.table({"v": pa.array([*FLOATS, 1.5, -1.5, -0.2, 7.05299204911e17, *edges], pa.float64())})
    doubles = doubles.append_column("f", doubles["v"].cast(pa.float32(), safe=False))
    fits = "isnan(v) OR v BETWEEN -9223372036854775808D AND 9223372036854774784D"
    pairs = {f"{f}(v)": f"CASE WHEN {fits} THEN {f}(v) END" for f in ("floor", "ceil")} | {"sign(v)": "sign(v)"}
    pairs |= {sql: sql for sql in ("round(v)", "bround(v)", "round(f, 0)", "bround(f)")}
    assert check(spark, doubles, pairs) == []


INTS = {"y": 8, "i": 32, "k": 64}
