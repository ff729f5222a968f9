"""The law of chance: our xxhash64 is Spark's, to the bit, over columns of all types in any order, with any seed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from harness import examples
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from borealis.compile.expressions import translate_all
from borealis.kernels.expr import column, from_json, to_json

pytestmark = pytest.mark.spark

ROWS_MOST = 200
CALLS_PER_EXAMPLE = 25
INF, NAN = float("inf"), float("nan")
KINDS: dict[str, pa.DataType] = {
    "b": pa.bool_(), "y": pa.int8(), "h": pa.int16(), "i": pa.int32(), "k": pa.int64(), "f": pa.float32(),
    "v": pa.float64(), "s": pa.string(), "x": pa.binary(), "d": pa.date32(), "ts": pa.timestamp("us", "UTC"),
    "m": pa.decimal128(10, 2), "n": pa.decimal128(18, 0), "o": pa.decimal128(19, 4), "z": pa.decimal128(38, 0),
}  # fmt: skip


def random_value(rng: Random, kind: pa.DataType) -> Any:
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        bits = rng.randint(1, kind.bit_width)
        return rng.choice([0, 1, -1, rng.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))])
    if pa.types.is_floating(kind):
        return rng.choice([0.0, -0.0, NAN, -NAN, INF, -INF, 1.5, rng.gauss(0, 1e3)])
    if pa.types.is_decimal(kind):
        digits = rng.randint(1, kind.precision)
        unscaled = rng.choice(
            [0, 1, -1, 127, 128, -128, -129, 10**digits - 1, rng.randrange(-(10**digits), 10**digits)]
        )
        if abs(unscaled) >= 10**kind.precision:
            unscaled = 0
        return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -kind.scale))
    if pa.types.is_date(kind):
        return dt.date(1970, 1, 1) + dt.timedelta(rng.randint(-700_000, 2_900_000))
    if pa.types.is_timestamp(kind):
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=rng.randint(-(10**16), 10**17))
    length = rng.choice([*range(70), 1000])
    if pa.types.is_string(kind):
        return "".join(rng.choice("aZ0é名😀\0") for _ in range(length))
    return rng.randbytes(length)


def random_table(rng: Random) -> pa.Table:
    rows = rng.choice([0, 1, 3, ROWS_MOST])
    return pa.table(
        {
            name: pa.array([None if rng.random() < 0.1 else random_value(rng, kind) for _ in range(rows)], kind)
            for name, kind in KINDS.items()
        }
    )


def random_calls(rng: Random) -> list[str]:
    """Each column alone, and several of them, with constants among them."""
    calls = [f"xxhash64({name})" for name in KINDS]
    while len(calls) < CALLS_PER_EXAMPLE:
        some = rng.sample([*KINDS], rng.randint(1, len(KINDS)))
        some.insert(rng.randrange(len(some) + 1), rng.choice(["7", "7L", "'seed'", "0.5D", "true"]))
        calls.append(f"xxhash64({', '.join(some)})")
    return calls


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """The shared session, made to run the generated code, as in a train."""
    own = spark.newSession()
    own.conf.set("spark.sql.optimizer.excludedRules", "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation")
    return own


def test_the_hash_is_sparks(spark: SparkSession) -> None:
    phases = (Phase.explicit, Phase.reuse, Phase.generate)  # a failure names the call and the row: nothing to shrink

    @settings(examples(4), phases=phases)
    @given(seed=st.integers(0, 2**32 - 1))
    def law(seed: int) -> None:
        rng = Random(seed)
        table, calls = random_table(rng), random_calls(rng)
        frame = spark.createDataFrame(table)
        theirs = frame.select(*(F.expr(sql).alias(f"x{i}") for i, sql in enumerate(calls))).toArrow()
        for i, (sql, twin) in enumerate(translate_all(frame, {sql: sql for sql in calls}).items()):
            assert twin is not None, sql
            ours = column(from_json(to_json(twin)), table, pa.int64()).to_pylist()
            for row, (mine, spark_says) in enumerate(zip(ours, theirs.column(i).to_pylist(), strict=True)):
                assert mine == spark_says, (sql, table.slice(row, 1).to_pylist())

    law()


@pytest.mark.parametrize(
    "sql", ["xxhash64(1)", "xxhash64(array(k))", "xxhash64(k, NULL)", "xxhash64(s COLLATE UTF8_LCASE)"]
)
def test_what_is_not_ours_is_left_to_catalyst(spark: SparkSession, sql: str) -> None:
    frame = spark.createDataFrame(random_table(Random(0)))
    assert translate_all(frame, {"x": sql}) == {"x": None}
