"""The law of times: numbers and text become the instants that Spark makes of them, or none where Spark makes none."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from borealis.compile.expressions import translate_time
from borealis.errors import TrainError
from borealis.kernels.expr import column, from_json, to_json
from borealis.kernels.times import NoValueError, compiled_format, from_format, from_text, of_text

pytestmark = pytest.mark.spark

TIMESTAMP = pa.timestamp("us", "UTC")
TEXTS = [
    "2024-05-01 12:34:56", "2024-05-01T12:34:56.789", "2024-05-01T12:34:56Z", "2024-05-01", "2024-5-1", "2024-05",
    "2024", " 2024-05-01\t", "2024-05-01T", "2024-05-01 12", "2024-05-01 12:34", "2024-05-01T12:34Z",
    "2024-05-01 12:34:5", "2024-05-01 12:34:56.", "2024-05-01 12:34:56.123456789", "2024-05-01 12:34:56 +01:00",
    "2024-05-01 12:34:56+1:00", "2024-05-01 12:34:56-08", "2024-05-01 12:34:56+0530", "2024-05-01 12:34:56+05:3",
    "2024-05-01 12:34:56+18:00", "2024-05-01 12:34:56+18:01", "2024-05-01 12:34:56+05:30:15", "2024-05-01 12:34:56+5",
    "2024-05-01 12:34:56 UTC", "2024-05-01 12:34:56GMT+3", "2024-05-01 12:34:56 UTC-03:30",
    "2024-05-01 12:34:56UT+01", "2024-05-01 12:34:56 CET", "2024-07-01 12:34:56 Europe/Berlin",
    "2024-03-31 02:30:00 Europe/Berlin", "2024-10-27 02:30:00 Europe/Berlin", "1880-01-01 00:00:00 Europe/Berlin",
    "2024-05-01 12:34:56 PST", "2024-05-01 12:34:56 EST", "2024-05-01 12:34:56 XYZ",
    "2024-05-01 12:34:56 europe/berlin", "2024-02-30", "2023-02-29", "2024-02-29", "1900-02-29", "2000-02-29",
    "2024-13-01", "2024-05-01 24:00:00", "2024-05-01 12:60:00", "2024-05-01 12:34:60", "0000-01-01", "-0044-03-15",
    "+2024-01-01", "12024-01-01", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808",
    "-290308-12-21 19:59:05.224192", "999999-01-01", "1234567-01-01", "24-05-01", "", " ", "garbage", "1714564800",
    "2024/05/01", "20240501", "2024-05-01  12:34:56", "2024-05-01t12:34:56", "2024-05-01 12:34:56.5Z",
    "2024-05-01 12:34:56,5", "2024-05-01 1:2:3.4+2", "2024-05-01 12:34:56.1234567Z", "2024-05-01 12:34:56 ",
    "2024-05-01 12:34:56\x7f", "２０２４-05-01", "2024-05-01 12:34:56 +24:00", "1969-12-31 23:59:59.999999",
]  # fmt: skip
FORMATS = {
    "yyyy-MM-dd HH:mm:ss": ["2024-05-01 12:34:56", "2024-5-01 12:34:56", "2024-05-01 12:34:56 ", "2024-05-01"],
    "dd/MM/yyyy HH:mm": ["01/05/2024 12:34", "31/02/2024 12:34", "1/5/2024 12:34", "01/05/24 12:34"],
    "yyyyMMddHHmmss": ["20240501123456", "20240501", "2024050112345", "202405011234567"],
    "M/d/yyyy H:mm": ["5/1/2024 7:05", "05/01/2024 07:05", "13/1/2024 7:05", "005/1/2024 7:05", "/1/2024 7:05"],
    "yyyy-MM-dd'T'HH:mm:ss.SSS": ["2024-05-01T12:34:56.7", "2024-05-01T12:34:56.789", "2024-05-01T12:34:56.7891234"],
    "yyyy-MM-dd": ["2024-05-01", "2024-02-29", "2023-02-29", "2024-05-01x", "02024-05-01"],
    "HH:mm:ss": ["12:34:56", "24:00:00", "1:2:3"],
    "yyyy.MM.dd, HH_mm''ss": ["2024.05.01, 12_34'56", "2024.05.01, 12_34''56"],
    "yyyy-MM-dd ss.SSSSSS": ["2024-05-01 07.000001", "2024-05-01 07.1234567", "2024-05-01 07."],
}


def random_texts(rng: Random, count: int) -> list[str]:
    """Times with something left out, doubled or exchanged."""
    texts = []
    for _ in range(count):
        text = list(rng.choice(TEXTS[:40]))
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(text) + 1)
            text[at : at + rng.randrange(2)] = rng.choice(["", "0", "9", "-", ":", " ", "T", "+", ".", "Z"])
        texts.append("".join(text))
    return [text for text in texts if not text.lstrip().startswith("T") and ":" not in text.lstrip("+- ")[:3]]


def micros_of(text: str) -> int | None:
    try:
        return of_text(text)
    except NoValueError:
        return None


def test_text_is_read_as_spark_reads_it(spark: SparkSession) -> None:
    texts = TEXTS + random_texts(Random(7), 3000)
    frame = spark.createDataFrame(pa.table({"t": texts}))
    theirs = frame.select(F.expr("unix_micros(try_cast(t as timestamp))").alias("x")).toArrow()["x"].to_pylist()
    ours = [micros_of(text) for text in texts]
    assert [(t, o, s) for t, o, s in zip(texts, ours, theirs, strict=True) if o != s] == []
    assert sum(o is None for o in ours) > 500
    assert sum(o is not None for o in ours) > 500


def test_arrow_is_asked_only_where_it_agrees() -> None:
    good = [text for text in TEXTS + random_texts(Random(8), 3000) if micros_of(text) is not None]
    for text in good:
        assert from_text(pa.array([text, None])).cast(pa.int64()).to_pylist() == [of_text(text), None]
    assert from_text(pa.array(good)).cast(pa.int64()).to_pylist() == [of_text(text) for text in good]


def test_formats_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    texts = [text for some in FORMATS.values() for text in some]
    frame = spark.createDataFrame(pa.table({"t": texts}))
    quoted = ["'" + form.replace("'", "\\'") + "'" for form in FORMATS]
    columns = [F.expr(f"unix_micros(try_to_timestamp(t, {form}))").alias(str(i)) for i, form in enumerate(quoted)]
    theirs = frame.select(*columns).toArrow()
    for i, form in enumerate(FORMATS):
        for text, expected in zip(texts, theirs[str(i)].to_pylist(), strict=True):
            try:
                got = from_format(pa.array([text]), form).cast(pa.int64())[0].as_py()
            except NoValueError:
                got = None
            assert got == expected, (form, text)


@pytest.mark.parametrize(
    "form", ["EEE", "yy", "yyyyMd", "h:mm a", "yyyy-MM-dd VV", "yyyy-yyyy", "ssS", "[yyyy]", "", "'"]
)
def test_other_formats_are_not_read_at_all(form: str) -> None:
    assert compiled_format(form) is None


def decimals(precision: int, scale: int, *texts: str | None) -> pa.Array:
    return pa.array([None if t is None else Decimal(t) for t in texts], pa.decimal128(precision, scale))


NUMBERS = pa.table(
    {
        "n": pa.array([0, 1714564800, -1, None, 9_223_372_036_854], pa.int64()),
        "i": pa.array([0, 2**31 - 1, -(2**31), None, 7], pa.int32()),
        "v": pa.array([0.0, 1714564800.123456, -1.5, float("nan"), 1e300]),
        "u": pa.array([0.1, 1714564800.9999999, -0.0000005, None, 9.2e12]),
        "f": pa.array([0.1, 1.7e9, -1.25, None, 3.0], pa.float32()),
        "m": decimals(20, 6, "0.000001", "1714564800.5", None, "-1.25", "7"),
        "b": decimals(38, 10, "0.0000019", None, "-0.0000019", "900000000000000000", "3"),
        "d": pa.array([0, 19844, -1, None, 5], pa.date32()),
        "t": ["2024-05-01", "2024-05-01 01:02:03Z", None, "2024", "2024-05-01 12:00:00+02:00"],
        "h": ["00:00:00", "01:02:03", "23:59:59", None, "12:00:00"],
    }
)  # fmt: skip
EXPRESSIONS = [
    "timestamp_seconds(n)", "timestamp_seconds(i)", "timestamp_millis(n)", "timestamp_micros(n)",
    "timestamp_millis(i)", "timestamp_seconds(v)", "timestamp_seconds(f)", "timestamp_seconds(m)",
    "timestamp_seconds(u)", "to_timestamp(n)", "to_timestamp(u)", "to_timestamp(m)", "CAST(b AS TIMESTAMP)",
    "timestamp(i)", "to_timestamp(d)", "to_timestamp(t)", "CAST(n * 100 AS TIMESTAMP)", "timestamp_seconds(n / 1000)",
    "timestamp_micros(CAST(u * 1000 AS BIGINT))", "to_timestamp(f)", "to_timestamp(concat('2024-05-01 ', h))",
    "coalesce(to_timestamp(t), timestamp_seconds(n))", "timestamp_seconds(n - 86400)", "to_timestamp(h, 'HH:mm:ss')",
    "CASE WHEN n > 0 THEN timestamp_seconds(n) ELSE to_timestamp(d) END",
]  # fmt: skip
NO_TWIN = [
    "to_utc_timestamp(t, 'Europe/Berlin')",
    "TRY_CAST(t AS TIMESTAMP)",
    "to_timestamp(t, h)",
    "to_timestamp(h, 'h:mm a')",
]
RAISING = [
    "timestamp_seconds(n * 100000000)",
    "to_timestamp(v)",
    "timestamp_millis(n * 100000)",
    "timestamp_seconds(b)",
    "to_timestamp(h)",
]


def test_numbers_become_the_times_that_spark_makes_of_them(spark: SparkSession) -> None:
    frame = spark.createDataFrame(NUMBERS)
    theirs = frame.select(*(F.expr(sql).alias(str(i)) for i, sql in enumerate(EXPRESSIONS))).toArrow()
    for i, sql in enumerate(EXPRESSIONS):
        twin = translate_time(frame, sql)
        assert twin is not None, sql
        ours = column(from_json(to_json(twin)), NUMBERS, TIMESTAMP).cast(pa.int64()).to_pylist()
        assert ours == theirs[str(i)].cast(pa.int64()).to_pylist(), sql


def test_what_has_no_twin_is_declined_and_what_is_no_time_raises(spark: SparkSession) -> None:
    frame = spark.createDataFrame(NUMBERS.slice(0, 0))
    assert [sql for sql in NO_TWIN if translate_time(frame, sql) is not None] == []
    for sql in RAISING:
        twin = translate_time(frame, sql)
        assert twin is not None, sql
        with pytest.raises(TrainError):
            column(twin, NUMBERS, TIMESTAMP)
