"""What can be an input, and how its rows get their times: one run over all of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from borealis import BorealisError, BorealisWarning, Diagram, batch, replay, rows, run, watch, window
from borealis.errors import DiagramError, InputError

pytestmark = pytest.mark.spark

NOON = 1_777_636_800  # 2026-05-01 12:00:00
TEXT = "2026-05-01 12:00:0"


class Frame:
    """A data frame of any library that speaks Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def every_input(spark: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Name, type and time expression of an input, and what is given for it: three seconds from noon."""
    seconds = [NOON, NOON + 1, NOON + 2]
    yield "dicts", "BIGINT", "timestamp_millis(t)", [{"t": s * 1000} for s in seconds]
    yield "tuples", "STRING", "to_timestamp(t)", [(f"{TEXT}{i}",) for i in range(3)]
    Path("a.csv").write_text("t\n" + "".join(f"01/05/2026 12:00:0{i}\n" for i in range(3)))
    yield "csv", "STRING", "to_timestamp(t, 'dd/MM/yyyy HH:mm:ss')", "a.csv"
    Path("a.txt").write_text("".join(f"{s} x\n" for s in seconds))
    yield "bare", "DOUBLE, x STRING", "timestamp_seconds(t)", "a.txt?format=csv&delimiter=%20&header=false"
    Path("a.jsonl").write_text("".join(json.dumps({"t": s * 1_000_000}) + "\n" for s in seconds))
    yield "jsonl", "BIGINT", "timestamp_micros(t)", "a.jsonl"
    table = pa.table({"t": pa.array([float(s) for s in seconds])})
    pq.write_table(table, "a.parquet")
    yield "parquet", "DOUBLE", "CAST(t AS TIMESTAMP)", "a.parquet"
    with pa.OSFile("a.arrow", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    yield "arrow", "BIGINT", "timestamp_seconds(t - 1 + 1)", "a.arrow"
    yield "pandas", "DOUBLE", "to_timestamp(t)", pd.DataFrame({"t": seconds, "more": None})
    yield "named_index", "BIGINT", "timestamp_seconds(t)", pd.DataFrame({"n": 1}, index=pd.Index(seconds, name="t"))
    yield "polars", "BIGINT", "timestamp_seconds(t)", Frame(pa.table({"t": seconds}))
    yield "finite", "BIGINT", "timestamp_seconds(t)", spark.createDataFrame([(s,) for s in reversed(seconds)], "t LONG")
    yield "unsorted", "BIGINT", "timestamp_seconds(t)", rows([{"t": s} for s in reversed(seconds)], sort=True)
    Path("dir").mkdir()
    Path("dir/a.csv").write_text("t\n" + "".join(f"{t}\n" for t in (f"{TEXT}0", "noon", f"{TEXT}1", f"{TEXT}2")))
    Path("dir/_END").touch()
    yield (
        "watched",
        "STRING",
        "to_timestamp(t)",
        watch("dir", until="_END", poll="10 ms", settle="0 ms", bad="bad.jsonl"),
    )


def test_whatever_it_is_and_however_its_times_are_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = list(every_input(spark))
    d = Diagram("all")
    streams = [d.input(name, f"t {kind}", time=time).map({"name": f"'{name}'"}) for name, kind, time, _ in given]
    counted = streams[0].union(*streams[1:]).aggregate(by="name", over=window("1 second"), n="count(*)")
    counted.output("counts")
    d = Diagram.from_yaml(d.to_yaml())
    inputs = {name: value for name, _, _, value in given}
    with pytest.warns(BorealisWarning, match="1 record in dir could not be read"):
        result = run(d, inputs, spark=spark)
    expected = [(name, NOON + i + 1, 1) for name in sorted(inputs) for i in range(3)]
    table = result["counts"].sort_by([("name", "ascending"), ("window_end", "ascending")])
    seconds = [t.timestamp() for t in table["window_end"].to_pylist()]
    assert list(zip(table["name"].to_pylist(), seconds, table["n"].to_pylist(), strict=True)) == expected
    assert "'noon' is no time in `to_timestamp(t)`" in Path("bad.jsonl").read_text()

    assert repr(result).startswith(f"Result: {len(expected)} rows in\n\ncounts: {len(expected)} rows\nname ")
    assert result._repr_html_().count("<tr>") == 11
    assert result.pandas().n.sum() == len(expected)

    del inputs["watched"]  # a batch needs an end
    finite = Diagram("finite")
    kept = [finite.input(name, f"t {kind}", time=time) for name, kind, time, _ in given if name in inputs]
    first = kept[0].map({"name": "'dicts'"})
    others = [s.map({"name": f"'{s.source}'"}) for s in kept[1:]]
    first.union(*others).aggregate(by="name", over=window("1 second"), n="count(*)").output("counts")
    whole = batch(finite, spark, inputs)["counts"]
    got = whole.selectExpr("name", "unix_seconds(window_end)", "n").collect()
    assert sorted(map(tuple, got)) == [e for e in expected if e[0] != "watched"]


def test_late_tuples_are_told_and_sorting_has_none(spark: Any, tmp_path: Path) -> None:
    d = Diagram("late")
    d.input("rows", "ts TIMESTAMP, n INT").aggregate(over=window("1 second"), n="count(*)").output("counts")
    backwards = [{"ts": datetime(2026, 5, 1, 12, 0, 9 - i, tzinfo=UTC), "n": i} for i in range(10)]
    with pytest.warns(BorealisWarning, match="9 late tuples on 'rows', up to 9 seconds behind"):
        result = run(d, {"rows": backwards}, spark=spark)
    assert result["counts"].num_rows == 1
    assert ", 9 late" in repr(result)
    pq.write_table(pa.Table.from_pylist(backwards), tmp_path / "a.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(d, {"rows": replay(tmp_path / "a.parquet", sort=True)}, spark=spark)
    assert result["counts"].num_rows == 10


def test_a_time_that_python_cannot_hold_is_told_with_its_row(spark: Any) -> None:
    d = Diagram("far")
    d.input("rows", "ts TIMESTAMP").aggregate(over=window("1 second"), n="count(*)").output("counts")
    result = run(d, {"rows": [{"ts": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)}]}, spark=spark)
    with pytest.raises(BorealisError, match=r"output 'counts', row 1: column 'window_end' is 10000-01-01"):
        result.rows("counts")
    assert "10000-01-01" in repr(result)


TIMES = {
    "t": "its time column 't' is BIGINT|the time column 't' is BIGINT",
    "tt": "no column 'tt'",
    "t + 1": r"its time `t \+ 1` is BIGINT, not TIMESTAMP. Hint: make it one: timestamp_seconds",
    "timestamp_seconds(u)": r"no column 'u' in `timestamp_seconds\(u\)`",
    "to_utc_timestamp(s, 'CET')": "cannot be computed where rows come in. Hint: times are made by to_timestamp",
    "from_unixtime(t)": "is STRING, not TIMESTAMP. Hint: make it one: to_timestamp",
    "reflect('a', 'b')": "runs any code",
    "to_timestamp(": "cannot read|bracket",
}


@pytest.mark.parametrize("time", TIMES)
def test_times_that_cannot_be_are_refused_before_anything_runs(spark: Any, time: str) -> None:
    def use() -> None:
        d = Diagram("bad")
        d.input("rows", "t BIGINT, s STRING", time=time).output("all")
        run(d, {"rows": []}, spark=spark)

    with pytest.raises(DiagramError, match=TIMES[time]) as caught:
        use()
    assert "input 'rows'" in str(caught.value)


NOT_INPUTS = {
    "columns": (pd.DataFrame({"tss": [1]}), "no column 'ts' in the rows \\(has: tss\\). Hint: did you mean 'ts'|'tss'"),
    "series": (pd.Series([1]), "a pandas Series is no table"),
    "numbers": ([1, 2], "the rows, row 1 is of type int"),
    "mixed": (pd.DataFrame({"ts": [1, "a"]}), "cannot be read as a table"),
    "number": (7, "a int cannot be an input|an? int cannot be an input"),
}


@pytest.mark.parametrize("name", NOT_INPUTS)
def test_a_wrong_value_is_refused_before_spark_starts(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def no_spark() -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("borealis.local.run.session", no_spark)
    d = Diagram("wrong")
    d.input("rows", "ts TIMESTAMP").output("all")
    value, message = NOT_INPUTS[name]
    with pytest.raises(InputError, match=message):
        run(d, {"rows": value})


def test_corrections_in_a_finite_frame_come_behind_what_they_correct(spark: Any) -> None:
    """Spark gives rows no order, and a deletion has no time to be sorted by."""
    d = Diagram("frame")
    d.input("i", "t BIGINT, id INT", time="timestamp_seconds(t)", key="id", history="1 hour").output("o")
    given = [("-D", None, 1), ("+U", 3, 2), ("+I", 5, 1), ("+I", 7, 2)]
    found = run(d, {"i": spark.createDataFrame(given, "_kind STRING, t LONG, id INT")}, spark=spark)
    assert [(row["_kind"], row["t"], row["id"]) for row in found.rows("o")] == [
        ("+I", 5, 1),
        ("+I", 7, 2),
        ("-U", 7, 2),
        ("+U", 3, 2),
        ("-D", 5, 1),
    ]
