"""The law of the fast path: whatever translates gives Spark's own answer to the bit, or both raise."""

from __future__ import annotations

import datetime
import json
import re
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from harness import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type

from borealis.compile.expressions import translate_all
from borealis.errors import TrainError
from borealis.kernels.expr import Expr, arrow_type, column, from_json, mask, to_json

pytestmark = pytest.mark.spark

EXPRESSIONS_PER_EXAMPLE = 12
ROWS_MAX = 8

SCHEMA = pa.schema({
    "k": pa.int64(), "l": pa.int64(), "i": pa.int32(), "j": pa.int32(), "h": pa.int16(), "y": pa.int8(),
    "v": pa.float64(), "w": pa.float64(), "f": pa.float32(), "g": pa.float32(), "s": pa.string(), "t": pa.string(),
    "ts": pa.timestamp("us", "UTC"), "tt": pa.timestamp("us", "UTC"), "d": pa.date32(), "e": pa.date32(),
    "b": pa.bool_(), "c": pa.bool_(), "m": pa.decimal128(10, 2), "n": pa.binary(), "o": pa.binary(),
    "q": pa.decimal128(38, 18), "r": pa.decimal128(18, 6), "z": pa.string(),
})  # fmt: skip


def translate(frame: DataFrame, sql: str) -> Expr | None:
    return translate_all(frame, {"x": sql})["x"]


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """The shared session with settings of its own."""
    own = spark.newSession()
    # let the generated code run, as in a train, and not the optimizer's interpreter
    rule = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
    own.conf.set("spark.sql.optimizer.excludedRules", rule)
    return own


@pytest.fixture(scope="module")
def empty(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(SCHEMA.empty_table())


# --- random tables ---------------------------------------------------------------------------------------------------
# Hypothesis draws one seed and the seed makes the rest: its own strategies favour small and equal values, and what we
# look for is a rare meeting of edges.

INTS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
UTC = datetime.UTC
NAN, INF = float("nan"), float("inf")


def _ints(bits: int) -> list[Any]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return [0, 1, -1, 2, 3, 7, -7, 100, low, low + 1, high, high - 1]


VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): _ints(8),
    pa.int16(): _ints(16),
    pa.int32(): _ints(32),
    pa.int64(): [*_ints(64), 2**53 + 1, -(2**53) - 1, 2**62 + 2**9 + 1],
    pa.float64(): [
        0.0,
        -0.0,
        0.5,
        1.0,
        -1.0,
        2.5,
        3.0,
        0.1,
        NAN,
        INF,
        -INF,
        5e-324,
        1.7976931348623157e308,
        1e17,
        -7.3,
    ],
    pa.float32(): [0.0, -0.0, 0.5, 1.0, -3.0, NAN, INF, -INF, float(np.float32(0.1)), float(np.float32(3.4e38))],
    pa.string(): [
        "",
        "a",
        "ab",
        "b",
        "aé",
        "é",
        "x",
        "😀",
        "a\nb",
        "%",
        "a%",
        "é😀b",
        "￿",
        "ba",
        " Ab ",
        "ΑΣ",
        "ß,İ",
        "a,b,,",
        "a\r\n",
        "a_b\\c",
        "2024-02-29",
        "2024-2-30",
        "2024-02-29 12:34:56.5",
        "k=12",
    ],
    pa.timestamp("us", "UTC"): [
        datetime.datetime(*x, tzinfo=UTC)
        for x in ((1970, 1, 1), (2024, 1, 1), (2024, 1, 1, 0, 0, 0, 1), (1, 1, 1), (1969, 12, 31, 23, 59, 59, 999999))
    ]
    + [1_735_648_496_123_456, -(2**63), 2**63 - 1, -62_167_219_200_000_001],
    pa.date32(): [datetime.date(*x) for x in ((1970, 1, 1), (2024, 2, 29), (1, 1, 1), (9999, 12, 31), (2026, 12, 31))]
    + [-(2**31), 2**31 - 1, -719_529],
    pa.bool_(): [True, False],
    pa.decimal128(10, 2): [Decimal(x) for x in ("0.00", "1.00", "1.50", "-1.50", "99999999.99", "1.01")],
    pa.decimal128(38, 18): [
        Decimal(x) for x in ("0", "1", "-2.5", "1024", "1e-18", "99999999999999999999.999999999999999999")
    ],
    pa.decimal128(18, 6): [Decimal(x) for x in ("0", "3", "-0.000001", "0.5", "999999999999.999999", "1024.000001")],
    pa.binary(): [b"", b"\x00", b"\x7f", b"\x80", b"a"],
}


# texts of a kind, so that not every table has one that cannot be read
NUMERALS = [
    ["1", "-7", " 12 ", "+3", "0", "99"], ["1.5", "-0.25", "3", ".5", "1e2", "0"], ["true", "no", "1", "0", " Y "],
    ["2024-02-29", "1970-01-01", "2024-1-1 x"], ["2024-02-29 12:30:00", "1970-01-01", "2024-05-01T00:00:00.5Z"],
    ["", "x", "1", "1.5", "2024-02-29", "9223372036854775808", "NaN", "-inf", "1d", "200", "-0"],
]  # fmt: skip


def random_table(rng: Random) -> pa.Table:
    rows = rng.choice([0, 1, 4, ROWS_MAX, ROWS_MAX])
    calm = rng.random() < 0.5  # small numbers only, so that not every sum overflows
    numerals = rng.choice(NUMERALS)
    columns = []
    for field in SCHEMA:
        values = numerals if field.name == "z" else VALUES[field.type]
        values = values[:8] if calm and pa.types.is_integer(field.type) else values
        values = values[:5] if calm and pa.types.is_temporal(field.type) else values
        columns.append(pa.array([None if rng.random() < 0.2 else rng.choice(values) for _ in range(rows)], field.type))
    return pa.table(columns, schema=SCHEMA)


# --- random expressions ----------------------------------------------------------------------------------------------

LEAVES: dict[str, list[str]] = {
    "long": ["k", "l", "1L", "0L", "-1L", "3L", "9223372036854775807L", "CAST(NULL AS BIGINT)", "CAST(7 AS BIGINT)"],
    "integer": ["i", "j", "1", "0", "-1", "2", "2147483647", "CAST(NULL AS INT)", "length(s)", "CAST(b AS INT)"],
    "short": ["h", "3S", "0S", "-1S", "CAST(y AS SMALLINT)"],
    "byte": ["y", "2Y", "0Y", "-1Y"],
    "double": ["v", "w", "0.5D", "0.0D", "-0.0D", "2D", "-1D", "CAST(0.1 AS DOUBLE)", "CAST(NULL AS DOUBLE)",
               "CAST(k AS DOUBLE)", "CAST(f AS DOUBLE)"],
    "float": ["f", "g", "0.5F", "-0.0F", "3F", "CAST(k AS FLOAT)", "CAST(v AS FLOAT)", "CAST(i AS FLOAT)"],
    "string": ["s", "t", "'a'", "''", "'é'", "CAST(NULL AS STRING)", "s || t",
               "substring(s, 1, 2)", "substring(s, 2, 1)"],
    "timestamp": ["ts", "tt", "TIMESTAMP '2024-01-01 00:00:00'", "TIMESTAMP '1969-12-31 23:59:59.999999'"],
    "date": ["d", "e", "DATE '2024-02-29'"],
    "decimal": ["m", "q", "r", "1.50BD", "CAST(1 AS DECIMAL(10,2))", "0.005BD", "1024.0", "0.0",
                "CAST(NULL AS DECIMAL(5,1))",
                "CAST(i AS DECIMAL(10,0))"],
    "binary": ["n", "o"],
    "boolean": ["b", "c", "true", "false", "CAST(NULL AS BOOLEAN)", "isnan(v)", "isnan(f)", "s LIKE 'a%'",
                "s LIKE '%b'",
                "s LIKE '%é%'", "s LIKE 'a'", "startswith(s, 'a')", "endswith(s, '')", "contains(s, 'b')",
                "ts > '2024-01-01'", "d <= '2024-02-29'", "m > 1", "i > 1.5", "m > 1.005", "h = i", "v = k"],
}  # fmt: skip
CASTS = {
    "long": ["integer", "double", "float", "decimal", "string", "boolean", "timestamp"],
    "integer": ["long", "short", "double", "string", "boolean", "timestamp"],
    "short": ["long", "integer", "float", "boolean"],
    "byte": ["short", "double", "decimal"],
    "double": ["decimal", "float", "long", "string", "boolean", "timestamp"],
    "float": ["double", "decimal", "integer"],
    "string": ["long", "integer", "boolean", "decimal", "date", "timestamp"],
    "timestamp": ["date", "string", "long"],
    "date": ["timestamp", "string"],
    "decimal": ["long", "integer", "decimal", "boolean", "string"],
    "boolean": ["long", "double", "decimal", "string"],
}
TYPES = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}
# Functions of texts and times: the parts in braces are expressions of that type.
FORMS: dict[str, list[str]] = {
    "string": [
        "upper({string})", "lower({string})", "trim({string})", "ltrim('a ', {string})", "btrim({string}, {string})",
        "substring({string}, -2, 1)", "substring({string}, {integer}, {integer})", "left({string}, {integer})",
        "right({string}, {integer})", "concat_ws({string}, {string}, {string}, s)", "replace({string}, 'a', {string})",
        "reverse({string})", "repeat({string}, 2)", "lpad({string}, 3, 'xy')", "rpad({string}, 4, 'é')",
        "translate({string}, 'aé,', 'b')", "split_part({string}, ',', 2)", "split({string}, ',')[1]",
        "element_at(split({string}, ','), -1)", "substring_index({string}, ',', -2)",
        "regexp_replace({string}, '[a-b]+', '-')", "regexp_extract({string}, '([a-z])=([0-9]+)', 2)",
        "date_format({timestamp}, 'yyyy-MM-dd HH:mm:ss.SSS')", "from_unixtime({long})", "CAST({date} AS STRING)",
        "CAST({timestamp} AS STRING)", "dayname({date})", "monthname({date})",
    ],
    "integer": [
        "instr({string}, {string})", "locate({string}, {string})", "locate('b', {string}, {integer})",
        "ascii({string})", "octet_length({string})", "year({date})", "quarter({date})", "month({timestamp})",
        "day({date})", "dayofweek({date})", "weekday({date})", "dayofyear({date})", "weekofyear({date})",
        "extract(YEAROFWEEK FROM {date})", "hour({timestamp})", "minute({timestamp})", "second({timestamp})",
        "datediff({date}, {timestamp})", "unix_date({date})",
    ],
    "long": [
        "unix_seconds({timestamp})", "unix_millis({timestamp})", "unix_micros({timestamp})",
        "unix_timestamp({timestamp})", "unix_timestamp({date})", "timestampdiff(HOUR, {timestamp}, {timestamp})",
        "timestampdiff(MONTH, {timestamp}, {timestamp})",
    ],
    "boolean": [
        "{string} LIKE 'a_%'", "{string} LIKE '%a\\\\_b%'", "{string} ILIKE 'A%b%'", "{string} RLIKE '^a.?$'",
        "{string} RLIKE '\\\\d{1,2}|é'", "startswith({string}, {string})", "endswith({string}, {string})",
        "contains({string}, {string})", "equal_null({string}, {string})",
    ],
    "date": [
        "date_add({date}, {integer})", "date_sub({date}, {short})", "add_months({date}, {integer})",
        "add_months({date}, 1)", "last_day({date})", "next_day({date}, 'Mo')", "trunc({date}, 'MM')",
        "trunc({date}, 'QUARTER')", "trunc({date}, 'WEEK')", "to_date({string})", "CAST({timestamp} AS DATE)",
        "make_date({integer}, 2, 29)", "({date} - INTERVAL 3 DAYS)", "({date} + INTERVAL 1 YEAR)",
        "to_date({string}, 'yyyy-MM-dd')", "date_from_unix_date({integer})",
    ],
    "timestamp": [
        "date_trunc('HOUR', {timestamp})", "date_trunc('week', {timestamp})", "date_trunc('MONTH', {timestamp})",
        "({timestamp} + INTERVAL 90 MINUTES)", "({timestamp} - INTERVAL 1 DAY)", "({timestamp} + INTERVAL 1 MONTH)",
        "CAST({date} AS TIMESTAMP)", "CAST({string} AS TIMESTAMP)", "timestamp_seconds({long})",
        "timestamp_millis({long})", "timestamp_micros({long})", "timestampadd(DAY, 3, {timestamp})",
        "timestampadd(QUARTER, -1, {timestamp})", "to_timestamp({string}, 'yyyy-MM-dd')",
    ],
}  # fmt: skip
ARITHMETIC = ("long", "integer", "short", "byte", "double", "float")


def random_expression(rng: Random, kind: str, depth: int) -> str:
    """A Spark SQL expression of this type, in brackets where it needs them."""
    if depth == 0 or rng.random() < 0.2:
        leaf = rng.choice(LEAVES[kind])
        return f"({leaf})" if " " in leaf else leaf

    def part(kind: str) -> str:
        return random_expression(rng, kind, depth - 1)

    forms = ["if", "case", "case else", "coalesce", "nullif", "nvl"]
    if kind in ARITHMETIC:
        forms += ["+", "-", "*", "%", "negate", "abs"] * 2
    if kind in INTS:
        forms += ["&", "|", "^", "~"]
    if kind == "decimal":
        forms += ["+", "-", "*", "/", "%", "negate", "abs", "mixed"] * 2
    if kind in ("decimal", *INTS):
        forms += ["round", "bround"]
    if kind in ("decimal", "long"):
        forms += ["floor", "ceil"]
    if kind != "binary":
        forms += ["greatest", "least"]
    if kind in CASTS:
        forms += ["cast"] * 2
    if kind == "double":
        forms += ["/", "int /", "sqrt"] * 2
    if kind == "long":
        forms += ["div", "widen"]
    if kind == "boolean":
        forms = ["compare", "and", "or"] * 4 + ["not", "in", "not in", "between", "is null", "is not null", *forms]
    if kind in FORMS:
        forms += ["form"] * len(forms)
    form = rng.choice(forms)
    other = rng.choice(sorted(LEAVES))
    match form:
        case "form":
            made = re.sub(r"\{([a-z]+)\}", lambda hole: part(hole[1]), rng.choice(FORMS[kind]))
            return f"({made})" if kind == "boolean" else made
        case "if":
            return f"if({part('boolean')}, {part(kind)}, {part(kind)})"
        case "case":
            return f"CASE WHEN {part('boolean')} THEN {part(kind)} END"
        case "case else":
            first, second = (f"WHEN {part('boolean')} THEN {part(kind)}" for _ in range(2))
            return f"CASE {first} {second} ELSE {part(kind)} END"
        case "coalesce" | "nullif" | "nvl" | "greatest" | "least":
            return f"{form}({part(kind)}, {part(kind)})"
        case "+" | "-" | "*" | "%" | "/" | "&" | "|" | "^" | "div":
            return f"({part(kind)} {form} {part(kind)})"
        case "mixed":
            return f"({part(rng.choice(ARITHMETIC[:4]))} {rng.choice('+-*/%')} {part('decimal')})"
        case "round" | "bround":
            return f"{form}({part(kind)}, {rng.choice([0, 1, 2, 5, -1, -2, -5, -20])})"
        case "floor" | "ceil":
            return f"{form}({part(rng.choice(['long', 'double']) if kind == 'long' else kind)})"
        case "cast":
            source = rng.choice(CASTS[kind])
            target = rng.choice(["DECIMAL(5,2)", "DECIMAL(20,0)", "DECIMAL(38,18)"]) if kind == "decimal" else None
            value = "z" if source == "string" and rng.random() < 0.8 else part(source)
            return f"CAST({value} AS {target or TYPES.get(kind, kind.upper())})"
        case "int /":
            return f"({part('integer')} / {part('long')})"
        case "widen":
            return f"({part('integer')} + {part('long')})"
        case "negate":
            return f"(- {part(kind)})"
        case "~":
            return f"(~ {part(kind)})"
        case "abs" | "sqrt":
            return f"{form}({part(kind)})"
        case "compare":
            operator = rng.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])
            return f"({part(other)} {operator} {part(other)})"
        case "and" | "or":
            return f"({part('boolean')} {form} {part('boolean')})"
        case "not":
            return f"(NOT {part('boolean')})"
        case "in" | "not in":
            size = rng.choice([1, 2, 3, 12])
            items = [rng.choice(LEAVES[other]) for _ in range(size)]
            return f"({part(other)} {form} ({', '.join(items)}))"
        case "between":
            return f"({part(other)} BETWEEN {part(other)} AND {part(other)})"
        case _:
            return f"({part(other)} {form})"


def random_batch(rng: Random) -> list[str]:
    return [random_expression(rng, rng.choice(sorted(LEAVES)), 3) for _ in range(EXPRESSIONS_PER_EXAMPLE)]


# --- the law ---------------------------------------------------------------------------------------------------------


def bits(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """What may be compared with ==: -0.0 is not 0.0, all NaNs are one, and times are numbers: Python has not all."""
    values = _plain(values)
    if not pa.types.is_floating(values.type):
        return values.to_pylist()
    return [None if x is None else "NaN" if np.isnan(x) else float(x).hex() for x in values.to_pylist()]


def ours(form: str, table: pa.Table, type: pa.DataType) -> list[Any] | str:
    try:
        return bits(column(from_json(json.loads(form)), table, type))
    except TrainError as error:
        return f"raised {error}"


def sparks(frame: DataFrame, expressions: list[str]) -> list[list[Any] | str]:
    """Spark's answers; the expressions run one by one when one of them raises."""
    try:
        answer = frame.select(*[F.expr(sql).alias(f"x{i}") for i, sql in enumerate(expressions)]).toArrow()
        return [bits(values) for values in answer.columns]
    except (PySparkException, Py4JJavaError) as error:  # a time that overflows is one of Java's own
        if len(expressions) == 1:
            return [f"raised {type(error).__name__}: {str(error)[:120]}"]
        return [answer for sql in expressions for answer in sparks(frame, [sql])]


def same(mine: list[Any] | str, theirs: list[Any] | str) -> bool:
    return isinstance(theirs, str) if isinstance(mine, str) else mine == theirs


def check(spark: SparkSession, table: pa.Table, expressions: list[str]) -> int:
    """Compare, print what replays a difference, and return how many were translated."""
    frame = spark.createDataFrame(table)
    twins = {sql: twin for sql, twin in translate_all(frame, {sql: sql for sql in expressions}).items() if twin}
    types = {sql: _arrow(frame, sql) for sql in twins}
    assert {sql: arrow_type(twin.type) for sql, twin in twins.items()} == types
    mine = {sql: ours(json.dumps(to_json(twin)), table, types[sql]) for sql, twin in twins.items()}
    calm = [sql for sql, answer in mine.items() if not isinstance(answer, str)]
    theirs = dict(zip(calm, sparks(frame, calm), strict=True)) if calm else {}
    for sql in mine.keys() - set(calm):
        theirs[sql] = sparks(frame, [sql])[0]
    for sql in twins:
        if not same(mine[sql], theirs[sql]):
            numbers = {field.name: _plain(table.column(field.name)).to_pylist() for field in SCHEMA}
            rows = f"pa.table({numbers!r}, schema=SCHEMA)"
            pytest.fail(
                f"{sql}\n  twin  {twins[sql]}\n  ours  {mine[sql]}\n  Spark {theirs[sql]}\n"
                f"replay: check(spark, {rows}, [{sql!r}])"
            )
    return len(twins)


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if not pa.types.is_temporal(values.type):
        return values
    return values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())


def _arrow(frame: DataFrame, sql: str) -> pa.DataType:
    return to_arrow_type(frame.select(F.expr(sql)).schema[0].dataType, timezone="UTC")


def test_what_translates_equals_spark(spark: SparkSession) -> None:
    # each try costs Spark jobs, so a failure is not shrunk: it names the one expression that differs
    phases = (Phase.explicit, Phase.reuse, Phase.generate)

    @settings(examples(8), phases=phases)
    @given(seed=st.integers(0, 2**32 - 1))
    def law(seed: int) -> None:
        rng = Random(seed)
        check(spark, random_table(rng), random_batch(rng))

    law()


ROWS = pa.Table.from_pylist(
    [
        {"k": 7, "l": 2, "i": 5, "v": 0.5, "w": -0.0, "s": "ab", "b": True},
        {"k": 5, "l": 0, "i": None, "v": NAN, "w": 0.0, "s": "", "b": False},
        {"k": None, "l": 0, "i": 0, "v": None, "w": NAN, "s": None, "b": None},
        {"k": 2**63 - 1, "l": None, "i": -1, "v": INF, "w": 1.0, "s": "é", "b": True},
    ],
    schema=SCHEMA,
)

TRANSLATED = [
    "v > 0.5", "v * 2", "k % 2 = 0", "k + 1", "k > 100", "s = 'x' AND v IS NOT NULL", "k IN (1, 2, 3)",
    "coalesce(v, 0.0D)", "ts > TIMESTAMP '2024-01-01 00:00:00'", "ts > '2024-01-01'", "d = DATE '2024-02-29'",
    "NOT (k > l)", "k BETWEEN 1 AND 5", "k + 1 BETWEEN 2 AND 5", "V > 1", "k", "'x'", "1", "k > 60 * 60 * 1000",
    "k > 60 * 60 AND l < 60 * 60", "k + l + 1", "i + 1 > 5L", "i + 1 > 5.0",
    "v / 2", "k / l", "CASE WHEN l <> 0 THEN k / l END", "l <> 0 AND k / l > 1", "l = 0 OR k % l = 1",
    "if(l = 0, 0, k % l)", "k * 2 + i * 3", "nullif(k, 5)", "nvl(k, 0)", "ifnull(i, 1)", "nvl2(k, 1, 2)", "v <=> w",
    "v = w", "v >= w", "f + v", "f > 0.5", "-k", "abs(i)", "k div 2", "y + 1Y", "m > 1", "m > 1.005", "m IS NULL",
    "s LIKE 'a%'", "length(s) > 1", "s || '!'", "s < t", "n = o", "b", "NOT b", "b = c", "k & 1", "greatest(k, l)",
    "CAST(i AS BIGINT)", "CAST(k AS DOUBLE)", "CAST(b AS INT)", "isnan(v)", "sqrt(v)", "i > 1.5",
    "CAST(CAST(i AS STRING) AS INT)", "CAST(l AS INT)", "CAST(k AS STRING)",
    "CAST(m AS DOUBLE)", "m + 1", "m / 2", "m * m", "k / 1024.0", "CASE WHEN l <> 0 THEN 1.0 / l END", "-m", "abs(m)",
    "m % 3",
    "CAST(ts AS DATE)", "CAST(d AS TIMESTAMP)", "CAST(d AS STRING)", "floor(m)", "round(m, 1)", "round(k, -1)",
    "sign(v)",
    "greatest(v, w)", "least(s, t, 'b')", "greatest(m, 1.5)", "k IN (l, 1)", "m IN (1, 2.5)", "v > '0.5'", "z > 1",
    "int(z)",
    "CAST(z AS DECIMAL(10,2))", "CAST(z AS DOUBLE) > 0.5", "CAST(i AS FLOAT) + v", "m div 2.5",
    "CASE s WHEN 'ab' THEN 1 ELSE 0 END", "s NOT IN ('a', NULL)",
    "upper(s)", "lower(s)", "s RLIKE 'a'", "s LIKE 'a_'", "s LIKE 'a%b'", "s ILIKE 'a'", "substring(s, -1, 1)",
    "ts + INTERVAL 1 SECOND", "year(ts)", "CAST(ts AS DATE)", "trim(s) = 'x'", "split(s, ',')[0] = 'a'",
    "date_trunc('hour', ts)", "unix_timestamp(ts)", "datediff(d, e) > 1", "date_add(d, 1)", "to_date(s)",
    "hour(ts) BETWEEN 8 AND 18", "s RLIKE '^[a-z]+@[a-z]+[.]com$'", "date_format(ts, 'yyyy-MM-dd')",
]  # fmt: skip

DECLINED = [
    "try_add(k, 1)", "try_divide(k, l)", "try_mod(k, l)", "try_multiply(k, 2)", "try_subtract(k, 1)",
    "try_cast(s AS INT)",
    "s LIKE 'a!%' ESCAPE '!'", "s COLLATE UTF8_LCASE = 'x'", "n = X'00'", "rand()",
    "current_timestamp()", "ts - tt", "round(v, 2)", "exp(v)", "pmod(k, 3)",
    "shiftleft(k, 1)", "1 / 0", "k + 1 / 0", "NULL", "hash(k)", "array(k)",
    "named_struct('a', k).a", "monotonically_increasing_id()",
    "sum(v)", "row_number() OVER (ORDER BY k)", "explode(array(k, l))", "exists(SELECT 1)", "CAST(v AS STRING)",
    "CAST(v AS DECIMAL(10,2))", "CAST(q AS INT)", "CAST(z AS FLOAT)", "-q", "abs(q)", "floor(v, 1)", "power(v, 2)",
    "ln(v)",
    "round(f, 1)", "k div q", "CAST(CAST(5 AS FLOAT) AS DOUBLE)", "CAST(k AS INT) + 1 > NULL", "i + 1 > 9999999999",

    "m % i = 0.005",
    "CASE WHEN b THEN k % l WHEN c THEN k % l END",
    "1 + k + l", "k + 1 > 5 AND false", "if(k + 1 > 5, 2, 2)", "k + 1 > NULL", "isnull(k + 1)",
    "k + 1 > 5 OR k + 1 > 5", "if(b, 0.0D, -0.0D)", "v * -0.0D", "INTERVAL 1 DAY",
    "s RLIKE '(a)\\\\1'", "s RLIKE 'a(?=b)'", "s RLIKE '\\\\bx'", "s RLIKE '(?i)a'", "s RLIKE 'a++'",
    "s RLIKE '[a&&b]'",
    "s RLIKE '\\\\r$'", "s RLIKE t", "s LIKE t", "s LIKE ANY ('a%', 'b%')", "initcap(s)", "split(s, ',')",
    "split(s, '[,;]')[0]", "regexp_replace(s, 'a*', 'b')", "regexp_replace(s, 'a', '$0')", "lpad(s, i)",
    "repeat(s, 10000000)", "split_part(s, ',', 0)", "date_format(ts, 'EEE')", "months_between(ts, tt)",
    "d > TIMESTAMP '2024-01-01 00:00:00'", "timestampdiff(MICROSECOND, ts, tt)", "try_to_date(s)",
    "try_to_timestamp(s)", "date_trunc('decade', ts)", "ts - tt > INTERVAL 1 HOUR", "if(false, 1 / 0, 1.0D)",
]  # fmt: skip


@pytest.mark.long
def test_what_must_be_fast_translates(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS)
    twins = translate_all(frame, {sql: sql for sql in TRANSLATED})
    assert [sql for sql, twin in twins.items() if twin is None] == []
    check(spark, ROWS, TRANSLATED)


@pytest.mark.parametrize("sql", DECLINED)
def test_what_is_not_exact_is_declined(empty: DataFrame, sql: str) -> None:
    assert translate(empty, sql) is None


def test_one_odd_expression_does_not_hide_the_others(empty: DataFrame) -> None:
    twins = translate_all(empty, {"a": "v * 2", "b": "explode(array(k, l))", "c": "k + 1"})
    assert [name for name, twin in twins.items() if twin is None] == ["b"]
    assert translate_all(empty, {}) == {}


def test_sparks_own_errors_pass_through(empty: DataFrame) -> None:
    for wrong in ("nosuch > 1", "k +", "k AND b"):
        with pytest.raises(PySparkException):
            translate(empty, wrong)
    with pytest.raises(PySparkException):  # an alias of ours is no column of theirs
        translate_all(empty, {"x": "k + 1", "y": "x + 1"})


def test_other_settings_decline(spark: SparkSession, empty: DataFrame) -> None:
    for setting, other in (("spark.sql.ansi.enabled", "false"), ("spark.sql.session.timeZone", "Europe/Berlin")):
        usual = spark.conf.get(setting)
        spark.conf.set(setting, other)
        try:
            assert translate(empty, "k + 1") is None
        finally:
            spark.conf.set(setting, usual)
    assert translate(empty, "k + 1") is not None


@pytest.mark.parametrize(
    "sql",
    [
        "v > 0",
        "l <> 0 AND k / l > 1",
        "k % l > 0 AND v > 0",
        "v > 0 AND k % l > 0",
        "s > '' AND k % l = 1",
        "NOT (b AND k > 5)",
        "upper(t) > '' AND k % l = 1",
        "trim(t) > '' AND k % l = 1",
        "k % l = 1 AND t || s > ''",
        "right(t, 2) > '' AND k % l = 1",
        "date_trunc('hour', ts) > TIMESTAMP '2024-01-01' AND k % l = 1",
        "k % l = 1 AND date_trunc('hour', ts) > TIMESTAMP '2024-01-01'",
        "nullif(k, 5) > 0 AND k % l = 1",
        "year(ts) > 2000 AND k % l = 1",
    ],
)
def test_a_mask_is_sparks_filter(spark: SparkSession, sql: str) -> None:
    table = ROWS.slice(0, 3)
    frame = spark.createDataFrame(table)
    twin = translate(frame, sql)
    assert twin is not None
    try:
        theirs: Any = bits(frame.filter(sql).toArrow().column("k"))
    except PySparkException:
        theirs = "raised"
    try:
        mine: Any = bits(table.filter(mask(twin, table)).column("k"))
    except TrainError:
        mine = "raised"
    assert mine == theirs
