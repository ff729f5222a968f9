"""What Spark itself computes reaches every place a tuple can go to; what no train could compute is refused before."""

from __future__ import annotations

import datetime as dt

import pytest
from functions import everywhere, rows_of, table
from pyspark.sql import SparkSession

from borealis import BorealisError, Diagram, run, window
from borealis.diagram.model import Stream
from borealis.errors import DiagramError
from borealis.spark.plan import check_plan

pytestmark = pytest.mark.spark

# Spark knows that these are never null, and rows of other flows stand beside them
NEVER_NULL = {
    "concat_ws": "concat_ws('-', s, 'x')",
    "hash": "hash(s)",
    "case": "CASE WHEN hour(ts) < 12 THEN 'am' ELSE 'pm' END",
    "coalesce": "coalesce(hour(ts), 0)",
    "md5": "md5(coalesce(s, ''))",
    "isnotnull": "isnotnull(soundex(s))",
    "struct": "struct(1 AS one, struct(2 AS two, array(struct(3 AS three)) AS many) AS inner)",
    "array": "array(struct(1 AS one), if(row = 1, struct(2 AS one), NULL))",
    "map": "map('k', struct(1 AS one))",
}
CHANCE = {"now": "now()", "clock": "current_timestamp()", "rand": "rand()", "uuid": "uuid()"}


@pytest.mark.long
def test_what_is_never_null_reaches_outputs_state_and_other_units(spark: SparkSession) -> None:
    rows = table(spark)
    for way, made in everywhere(spark, NEVER_NULL, rows).items():
        assert made["concat_ws"].to_pylist() == ["abc-x", "Zé ,x-x", "x"], way
        assert made["case"].to_pylist() == ["pm", "pm", "am"], way
        assert made["struct"][0].as_py() == {"one": 1, "inner": {"two": 2, "many": [{"three": 3}]}}, way
        assert made["array"].to_pylist() == [[{"one": 1}, {"one": 2}], [{"one": 1}, None], [{"one": 1}, None]], way
        assert made["map"][2].as_py() == [("k", {"one": 1})], way
        assert all(made[name].null_count == 0 for name in NEVER_NULL), way


@pytest.mark.long
def test_clock_and_chance_reach_an_output_of_a_run(spark: SparkSession) -> None:
    d = Diagram("chance")
    packets = d.input("packets", "ts TIMESTAMP, src STRING")
    packets.map(CHANCE | {"tag": "concat_ws('-', src, 'x')"}).output("out")
    packets.filter("rand() >= 0").map(src="src").output("all")
    given = run(d, {"packets": [("2024-01-01 12:00:00", "a"), ("2024-01-01 12:00:01", "b")]}, spark=spark)
    first, second = given.rows("out")
    assert (first["tag"], second["tag"]) == ("a-x", "b-x")
    assert abs(dt.datetime.now(dt.UTC) - first["now"]) < dt.timedelta(minutes=5)
    assert 0 <= first["rand"] < 1
    assert first["uuid"] != second["uuid"]
    assert [row["src"] for row in given.rows("all")] == ["a", "b"]


REFUSED = {
    "explode(a)": "'explode' in `explode(a)` makes several tuples of one",
    "posexplode(a)": "'posexplode' in `posexplode(a)` makes several tuples of one",
    "1 + explode(a)": "'explode' in `1 + explode(a)` makes several tuples of one",
    "row_number() OVER (ORDER BY k)": "'row_number' in `row_number() OVER (ORDER BY k)` looks at other tuples",
    "lag(k)": "'lag' in `lag(k)` looks at other tuples",
    "sum(k) OVER (PARTITION BY s)": "OVER in `sum(k) OVER (PARTITION BY s)` looks at other tuples",
    "sum(k)": "'sum' in `sum(k)` is an aggregate, it takes many tuples. Hint: use an aggregate box",
    "length(s) + max(k)": "'max' in `length(s) + max(k)` is an aggregate",
    "window(ts, '1 second')": "'window' in `window(ts, '1 second')` cuts time into windows",
    "monotonically_increasing_id()": "'monotonically_increasing_id' in `monotonically_increasing_id()` tells where",
    "hash(input_file_name())": "'input_file_name' in `hash(input_file_name())` tells where",
    "range(3)": "'range' in `range(3)` gives a table",
    "make_interval(0, i)": "column 'x' is INTERVAL, which no stream carries",
    "parse_json(j)": "column 'x' is VARIANT, which no stream carries",
    "array(parse_json(j))": "column 'x' is ARRAY<VARIANT>, which no stream carries",
    "timestamp_nanos(k)": "`timestamp_nanos(k)` is TIMESTAMP_LTZ(9), which no stream carries",
    "current_time()": "column 'x' is TIME(6), which no stream carries",
}


def _aggregate(rows: Stream, text: str) -> Stream:
    return rows.aggregate(by="s", over=window("1 second"), x=text)


@pytest.mark.long
def test_what_no_train_could_compute_is_refused_by_name(spark: SparkSession) -> None:
    for text, words in REFUSED.items():
        d = Diagram("wrong")
        rows_of(d).map(x=text).output("out")
        with pytest.raises(BorealisError) as error:
            check_plan(d.validate(), spark)
        assert str(error.value).startswith(f"box 'map_1': {words}"), error.value
    for text, words in {
        "sum(s)": "'sum' in `sum(s)` takes a number, not STRING. Hint: give it a number, such as sum(CAST(",
        "avg(make_dt_interval(i))": "'avg' in `avg(make_dt_interval(i))` takes a number, not INTERVAL DAY TO SECOND",
        "max(k) +": "cannot read `max(k) +`",
        "first(explode(a))": "'explode' in `explode(a)` makes several tuples of one",
        "explode(array(max(k)))": "'explode' in `explode(array(max(k)))` makes several tuples of one",
        "max(k) + spark_partition_id()": "'spark_partition_id' in `max(k) + spark_partition_id()` tells where",
    }.items():
        d = Diagram("wrong")
        _aggregate(rows_of(d), text).output("out")
        with pytest.raises(BorealisError) as error:
            check_plan(d.validate(), spark)
        assert words in str(error.value)


def test_a_column_of_both_sides_is_told_with_its_names(spark: SparkSession) -> None:
    d = Diagram("both")
    rows = rows_of(d)
    rows.join(rows.filter("b"), on="left.k = right.k AND s = s", within="1 second").output("out")
    with pytest.raises(DiagramError, match=r"say which: left\.s or right\.s"):
        check_plan(d.validate(), spark)


def test_a_run_raises_its_own_errors_only(spark: SparkSession) -> None:
    d = Diagram("wrong")
    d.input("packets", "ts TIMESTAMP, src STRING").map(x="explode(split(src, ','))").output("out")
    with pytest.raises(BorealisError, match="'explode'"):
        run(d, {"packets": [("2024-01-01 12:00:00", "a")]}, spark=spark)
