"""The law of functions: whatever Spark lists either gives Spark's answer wherever it goes, or is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import functions
import pyarrow as pa
import pytest
from functions import CALLS, UNTRIED, Finding, everywhere
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from borealis.diagram.repeating import UNREPEATABLE_CALLS

pytestmark = pytest.mark.spark

AT_ONCE = 70  # functions in one map


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> list[Finding]:
    return functions.findings(spark)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> pa.Table:
    return functions.table(spark)


def sparks(spark: SparkSession, calls: Mapping[str, str], rows: pa.Table) -> pa.Table:
    made = spark.createDataFrame(rows).select(*(F.expr(call).alias(name) for name, call in calls.items()))
    return made.toArrow()


def check(spark: SparkSession, names: Sequence[str], rows: pa.Table) -> None:
    calls = {f"x{number}": CALLS[name] for number, name in enumerate(names)}
    theirs = sparks(spark, calls, rows)
    for way, mine in everywhere(spark, calls, rows).items():
        for column, name in zip(calls, names, strict=True):
            assert kind(mine[column]) == kind(theirs[column]), f"{name} at {way}"
            if name in UNREPEATABLE_CALLS:
                assert mine[column].null_count == theirs[column].null_count, f"{name} at {way}"
            else:
                assert repr(mine[column].to_pylist()) == repr(theirs[column].to_pylist()), f"{name} at {way}"


def kind(values: pa.ChunkedArray) -> str:
    """The type: on a stream anything may be null."""
    return str(values.type).replace(" not null", "")


def test_every_function_that_is_not_refused_gives_sparks_answer_everywhere(
    spark: SparkSession, found: list[Finding], rows: pa.Table
) -> None:
    names = [one.name for one in found if one.where in ("Catalyst", "kernel") and one.name not in UNTRIED]
    for start in range(0, len(names), AT_ONCE):
        check(spark, names[start : start + AT_ONCE], rows)


def test_the_page_of_functions_says_what_is_so(spark: SparkSession, found: list[Finding]) -> None:
    page = Path(__file__).parents[2] / "docs" / "functions.md"
    assert page.read_text("utf-8") == functions.page(found, spark.version), (
        "write it again: see tests/laws/functions.py"
    )
