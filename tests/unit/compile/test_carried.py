"""Which columns travel on arrows: what is read behind a history or a join, and what tells rows apart."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from borealis.compile.analyze import analyze
from borealis.compile.batch import batch
from borealis.compile.carried import telling
from borealis.compile.unit import compile_unit
from borealis.diagram import Diagram, window
from borealis.diagram.cut import cut
from borealis.errors import BorealisWarning
from borealis.kernels.program import MAKERS
from borealis.local.run import run

QUOTES = "ts TIMESTAMP, id INT, symbol STRING, price DOUBLE, `the note` STRING, venue STRING"
TRADES = "ts TIMESTAMP, symbol STRING, n INT, venue STRING, memo STRING"


def quotes(d: Diagram) -> Any:
    return d.input("quotes", QUOTES, key="id", history="1 hour")


def names(d: Diagram, spark: SparkSession) -> dict[str, list[str]]:
    return {arrow: schema.names for arrow, schema in analyze(d.validate(), spark).items()}


def test_a_history_gives_its_key_and_what_boxes_behind_it_read(spark: SparkSession) -> None:
    d = Diagram("d")
    some = quotes(d).filter("length(`THE note`) > 1 OR exists(array(venue), v -> v = 'price')", name="some")
    some.aggregate(by="symbol", over=window("1 minute"), n="count(*)").output("n")
    found = names(d, spark)
    read = ["id", "symbol", "the note", "venue", "_kind"]
    assert found["quotes~history"] == found["some"] == read
    every = ["ts", "id", "symbol", "price", "the note", "venue"]
    assert found["quotes"] == [*every, "_kind"]
    for aside in (".expired", ".conflict"):
        assert found[f"quotes~history{aside}"] == [*every, "change", "reason"]


def test_what_an_output_gives_is_whole(spark: SparkSession) -> None:
    d = Diagram("d")
    q = quotes(d)
    q.filter("price > 1", name="dear").output("dear")
    q.aggregate(by="symbol", over=window("1 minute"), n="count(*)").output("n")
    assert names(d, spark)["dear"] == ["ts", "id", "symbol", "price", "the note", "venue", "_kind"]


@pytest.mark.parametrize(
    ("key", "read"), [((), ["ts", "id", "symbol", "price", "the note", "venue"]), ("venue", ["id", "venue"])]
)
def test_a_drop_by_the_hash_of_a_row_reads_all_of_it(spark: SparkSession, key: Any, read: list[str]) -> None:
    d = Diagram("d")
    quotes(d).drop(rate=0.5, key=key).aggregate(over=window("1 minute"), n="count(*)").output("n")
    assert names(d, spark)["quotes~history"] == [*read, "_kind"]


def test_a_join_gives_what_is_read_under_the_names_that_it_has(spark: SparkSession) -> None:
    d = Diagram("d")
    trades = d.input("trades", TRADES)
    pairs = quotes(d).join(trades, on="left.symbol = right.symbol AND price < right.n", within="1 s", name="pairs")
    pairs.map(v="venue_right").output("v")
    found = names(d, spark)
    assert found["quotes~history"] == ["id", "symbol", "price", "_kind"]
    assert found["pairs"] == ["id", "venue_right", "_kind"]  # its left rows are told apart by their ids
    spec = d.validate()
    steps = [step for level in compile_unit(spec, spark).program.levels for step in level.steps if step.op == "join"]
    held = {name: table.schema.names[3:] for name, table in MAKERS["join"](steps[0]).tables_now().items()}
    assert held == {"left": ["id", "symbol", "price"], "right": ["symbol", "n", "venue"]}


def only_counted() -> Diagram:
    d = Diagram("d")
    trades, others = d.input("trades", TRADES), d.input("others", TRADES, late="revise", history="1 hour")
    pairs = trades.join(trades.filter("n > 0"), on="left.symbol = right.symbol", within="1 s", name="pairs")
    more = trades.join(trades, on="left.n = right.n", within="1 s", name="more")
    pairs.union(more, name="all").aggregate(over=window("1 minute"), n="count(*)").output("n")
    others.aggregate(over=window("1 minute"), n="count(*)").output("m")
    return d


def test_where_rows_are_only_counted_a_column_is_left(spark: SparkSession) -> None:
    found = names(only_counted(), spark)
    assert found["pairs"] == found["more"] == found["all"] == ["ts"]
    assert found["others~history"] == ["ts", "_kind"]


@pytest.mark.long
def test_rows_that_are_only_counted_count(spark: SparkSession) -> None:
    row = {"ts": "2026-01-01T12:00:00Z", "symbol": "a", "n": 1, "venue": "v", "memo": "m"}
    result = run(only_counted(), {"trades": [row, row], "others": [row]}, spark=spark)
    assert (result["n"]["n"].to_pylist(), result.table("m")["n"].to_pylist()) == ([8], [1])


def test_rows_are_told_apart_as_far_as_boxes_let_it_be_known() -> None:
    d = Diagram("d")
    q = quotes(d)
    q.map(number="id", up="upper(symbol)", name="with_key").output("a")
    q.map(up="upper(symbol)", p="price", name="without").output("b")
    q.aggregate(by="symbol", over=window("1 minute"), n="count(*)", name="windows").output("c")
    d.input("plain", TRADES).filter("n > 1", name="uncorrected").output("e")
    found = telling(d.validate())
    assert {name: found[name] for name in ("quotes~history", "with_key", "without", "windows", "uncorrected")} == {
        "quotes~history": {"id"},
        "with_key": {"number"},
        "without": {"up", "p"},
        "windows": {"symbol", "window_start", "window_end"},
        "uncorrected": frozenset(),
    }


def test_units_read_of_each_other_what_is_carried(spark: SparkSession) -> None:
    d = Diagram("d")
    dear = quotes(d).filter("price > 1", name="dear")
    dear.aggregate(by="symbol", over=window("1 minute"), most="max(venue)", name="most").output("most")
    spec = d.validate()
    schemas = analyze(spec, spark)
    one, other = (compile_unit(spec, spark, piece=piece, schemas=schemas) for piece in cut(spec, ["most"]))
    assert one.outlets["dear"].schema == other.inputs["dear"]
    assert other.inputs["dear"].names == ["id", "symbol", "price", "venue", "_kind"]


def test_corrections_of_what_is_not_read_change_nothing_and_conflicts_show_all(spark: SparkSession) -> None:
    d = Diagram("d")
    q = quotes(d)
    q.aggregate(by="symbol", over=window("10 s"), p="collect_list(price)").output("prices")
    q.conflict.output("conflict")
    rows = [
        {"ts": f"2026-01-01T12:00:0{i}Z", "id": i, "symbol": "a", "price": float(i % 2), "the note": "x", "venue": "v"}
        for i in range(4)
    ]
    rows += [rows[0] | {"_kind": "+U", "venue": "w"}, rows[1] | {"the note": "again"}, rows[3] | {"_kind": "-D"}]
    rows += [rows[0] | {"id": 9, "ts": "2026-01-01T12:00:20Z"}, rows[1] | {"_kind": "+U", "price": 7.0}]
    with pytest.warns(BorealisWarning, match="1 change on 'quotes.conflict' could not be made"):
        found = run(d, {"quotes": rows}, spark=spark)
    truth = [row["p"] for row in batch(d, spark, {"quotes": rows})["prices"].collect()]
    assert sorted(row["p"] for row in found.table("prices").to_pylist()) == sorted(truth)
    assert [(row["_kind"], row["p"]) for row in found.rows("prices")] == [
        ("+I", [0.0, 1.0, 0.0]),
        ("-U", [0.0, 1.0, 0.0]),
        ("+U", [0.0, 7.0, 0.0]),
        ("+I", [0.0]),
    ]
    again = found.rows("conflict")
    assert [(row["change"], row["id"], row["price"], row["the note"], row["venue"]) for row in again] == [
        ("+I", 1, 1.0, "again", "v")
    ]
