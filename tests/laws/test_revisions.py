"""Corrected input gives corrected results: what stands after all changes is the batch answer over what stands of the
input, however trains are cut and rows are spread over buckets; and the changes themselves do not hang on the cuts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from borealis.compile.batch import batch
from borealis.compile.unit import compile_unit
from borealis.diagram.durations import count_window, window
from borealis.diagram.model import Diagram
from borealis.kernels.flow import Bounds, Flow, empty_flow
from borealis.kernels.program import run_level
from borealis.kernels.step import Kernel, schema_of
from borealis.local.run import Result, run
from borealis.trains.intake import Admission
from borealis.tuples import FIRST_TIME
from postgres import Embedded

START = datetime(2026, 1, 1, tzinfo=UTC)
PRICES = (0.25, 1.5, 7.25, None)  # sums of these are exact in any order


def everything(database: Embedded) -> Diagram:
    """A diagram with every box that takes rows back."""
    d = Diagram("ticker")
    columns = "ts TIMESTAMP, id INT, symbol STRING, price DOUBLE, n INT"
    quotes = d.input("quotes", columns, key="id", history="1 hour", late="revise")
    orders = d.input("orders", "ts TIMESTAMP, id INT, symbol STRING", key="id", history="1 hour", late="revise")
    plain = d.input("plain", columns)
    dear, rest = quotes.route(dear="price > 5", otherwise="rest")
    quotes.filter("n % 3 <> 0").with_columns(twice="price * 2").output("mapped")
    several = {"n": "count(*)", "total": "sum(n)", "most": "max(price)", "mean": "avg(price)", "newest": "last(price)"}
    sliding = quotes.aggregate(by="symbol", over=window("10 seconds", "5 seconds"), exprs=several)
    sliding.output("windows")
    slim = rest.drop(0.2).filter("n % 3 <> 0").select("symbol", "price", n="n DIV 4")  # to it many changes are none
    for at, name in ((None, "kept_here"), ("quotes", "given_again")):
        slim.aggregate(by="symbol", over=window("9 seconds", "6 seconds"), exprs=several, history_at=at).output(name)
    again = quotes.aggregate(by="symbol", over=window("10 seconds", "5 seconds"), exprs=several, history_at="quotes")
    again.output("again")
    sliding.output("settled", revisions="final")
    sliding.output("first", revisions="drop")
    sliding.output("some", important="n > 2")
    sliding.aggregate(over=window("20 seconds"), windows="count(*)", total="sum(total)").output("nested")
    fives = quotes.aggregate(
        by="symbol", over=count_window(5, 2), n="count(n)", total="sum(price)", all="collect_list(n)"
    )
    fives.output("counted")
    fives.aggregate(over=window("20 seconds"), windows="count(*)", n="sum(n)").output("over_counted")
    rest.aggregate(over=count_window(3, timeout="6 seconds"), n="count(*)", total="sum(n)").output("impatient")
    early = window("12 seconds", "6 seconds", timeout="5 seconds")
    quotes.aggregate(by="symbol", over=early, n="count(*)", most="max(price)").output("early")
    dear.drop(where="n > 6").union(rest, plain).output("both")
    quotes.join(orders, on="left.symbol = right.symbol AND left.n > right.id", within="7 seconds").output("pairs")
    quotes.resample(orders, "id", "previous", window="9 seconds", by="symbol").output("looked_up")
    orders.resample(plain, window="5 seconds", by="symbol", n="count(*)", mean="avg(price)").output("near")
    quotes.bsort("price", buffer=4, by="symbol").filter("n <> 4").bsort("-n", buffer=3).output("sorted")
    ask = "SELECT name FROM names WHERE symbol = :symbol AND least <= :n ORDER BY name"
    named = quotes.sql_read(ask, gives="name STRING", database=database.url, missing="null")
    named.output("named")
    counted = named.aggregate(by="name", over=window("10 seconds"), n="count(*)").filter("name IS NOT NULL")
    counted.sql_write(table="counted", key=["name", "window_start"], database=database.url).output("kept")
    return d


def story(rng: Random, count: int) -> list[dict[str, Any]]:
    """Rows of an input, some of which correct earlier ones, or come late."""
    rows: list[dict[str, Any]] = []
    alive: list[int] = []
    now = fresh = 0
    for _ in range(count):
        now += rng.choice((0, 1, 2))
        what = rng.random()
        if what < 0.2 and alive:
            rows.append({"_kind": "-D", "id": alive.pop(rng.randrange(len(alive)))})
            continue
        row: dict[str, Any] = {"ts": START + timedelta(seconds=now - rng.choice((0, 0, 0, 15, 30)))}
        row |= {"symbol": rng.choice("ab"), "price": rng.choice(PRICES), "n": rng.randrange(9)}
        if what < 0.4 and alive:
            if rng.random() < 0.3:
                rows.append({"_kind": "-U", "id": alive[0]})
            rows.append(row | {"_kind": "+U", "id": rng.choice(alive)})
        else:
            rows.append(row | {"_kind": rng.choice((None, "+I")), "id": fresh})
            alive.append(fresh)
            fresh += 1
    return rows


def bag(table: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


@pytest.mark.parametrize("seed", [1])
def test_what_stands_is_the_batch_answer(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    database = Embedded(tmp_path / "names.db")
    database.run("CREATE TABLE names (symbol TEXT, name TEXT, least INT)")
    database.run("INSERT INTO names VALUES ('a', 'Ada', 0), ('a', 'Alan', 5), ('b', 'Barbara', 3)")
    columns = "name TEXT, window_start TEXT, window_end TEXT, n INT"
    database.run(f"CREATE TABLE counted ({columns}, PRIMARY KEY (name, window_start))")
    rng, diagram = Random(seed), everything(database)
    inserts = [row for row in story(rng, 20) if row.get("_kind") in (None, "+I")]
    plain = sorted(({k: v for k, v in row.items() if k != "_kind"} for row in inserts), key=lambda row: row["ts"])
    inputs = {"quotes": story(rng, 60), "orders": story(rng, 30), "plain": plain}
    ways = {
        (most, buckets): run(diagram, inputs, admission=Admission(rows_most=most), buckets=buckets, spark=spark)
        for most, buckets in ((1000, 1), (rng.randrange(3, 12), 1), (20, 3))
    }
    whole, cut, spread = ways.values()
    counted = [(row["name"], row["n"]) for row in whole.table("kept").to_pylist()]
    assert sorted(database.run("SELECT name, n FROM counted")) == sorted(counted)  # of the three the last one's
    for result in ways.values():  # nothing shows where rows are kept
        assert result["given_again"].equals(result["kept_here"])
        assert result["again"].equals(result["windows"])
    for name, frame in batch(diagram, spark, inputs).items():
        assert cut[name].equals(whole[name]), name
        truth = bag(frame.toArrow())
        for way, result in ways.items():
            kinds = [row.get("_kind") for row in result.rows(name)] + ["+I"]
            assert all(kinds[i + 1] == "+U" for i, kind in enumerate(kinds) if kind == "-U"), (name, way)
            if name not in ("first", "some"):
                assert bag(result.table(name)) == truth, (name, way)
        if name in ("settled", "first", "some"):
            continue
        assert len(whole[name]) > len(whole.table(name)), "nothing was corrected"
        assert len(spread[name]) > len(spread.table(name))
    assert all(not any(result.to_json()["refused"].values()) for result in ways.values())
    changes, few = whole["windows"].to_pylist(), whole["some"].to_pylist()
    new = [{k: v for k, v in row.items() if k != "_kind"} for row in changes if row["_kind"] == "+I"]
    assert whole["first"].to_pylist() == new
    assert whole["settled"].column_names == whole["first"].column_names == list(new[0])
    assert [row for row in few if row["_kind"] == "+I"] == [row for row in changes if row["_kind"] == "+I"]
    assert len(new) < len(few) < len(changes)


def test_what_is_left_to_catalyst_keeps_pairs_and_mends_them(spark: SparkSession) -> None:
    d = Diagram("odd")
    quotes = d.input("quotes", "ts TIMESTAMP, id INT, n INT", key="id", history="1 hour")
    odd = quotes.filter("bin(n) LIKE '%1'").map({"half": "n DIV 4"}, id="id")  # of what Catalyst alone knows
    odd.output("odd")
    odd.aggregate(over=window("1 minute"), n="count(*)", most="max(half)").output("windows")
    odd.aggregate(over=window("1 minute"), n="count(*)", most="max(half)", history_at="quotes").output("again")
    numbers = [("+I", 1, 1), ("+I", 2, 3), ("+I", 3, 9), ("+I", 4, 2)]
    numbers += [("+U", 1, 5), ("+U", 2, 4), ("+U", 2, 1), ("+U", 3, 11), ("+U", 4, 7), ("-D", 1, 5)]
    rows = [{"_kind": kind, "ts": START, "id": id, "n": n} for kind, id, n in numbers]
    first = {
        "_kind": "+I",
        "ts": START - timedelta(minutes=1),
        "id": 0,
        "n": 13,
    }  # whose window is given, and corrected
    rows = [first, *rows, {"_kind": "+U", "ts": START - timedelta(minutes=1), "id": 0, "n": 21}]
    changes = [
        *(("+I", 0, 3), ("+I", 1, 0), ("+I", 2, 0), ("+I", 3, 2)),
        *(("-U", 1, 0), ("+U", 1, 1), ("-D", 2, 0), ("+I", 2, 0)),  # 9 and 11 are the same to it
        *(("+I", 4, 1), ("-D", 1, 1), ("-U", 0, 3), ("+U", 0, 5)),
    ]
    windows = [("+I", 1, 3), ("-U", 1, 3), ("+U", 1, 5), ("+I", 3, 2)]
    for most, buckets in ((1000, 1), (8, 2)):
        result = run(d, {"quotes": rows}, admission=Admission(rows_most=most), buckets=buckets, spark=spark)
        assert [(row["_kind"], row["id"], row["half"]) for row in result.rows("odd")] == changes
        for name in ("windows", "again"):
            assert [(row["_kind"], row["n"], row["most"]) for row in result.rows(name)] == windows


def test_what_failed_when_it_came_is_not_aside_again(spark: SparkSession) -> None:
    d = Diagram("odd", errors="aside")
    quotes = d.input("quotes", "ts TIMESTAMP, id INT, n INT", key="id", history="1 hour")
    for x in ("100 DIV n", "CAST(bin(100 DIV n) AS INT)"):  # in a kernel, and in Catalyst
        windows = quotes.map(x=x).aggregate(over=window("1 minute"), most="max(x)", history_at="quotes")
        windows.output(f"most_{len(x)}")
    rows = [{"ts": START, "id": id, "n": id} for id in (0, 3, 7)] + [{"_kind": "-D", "id": id} for id in (3, 7)]
    result = run(d, {"quotes": rows}, admission=Admission(rows_most=4), spark=spark)
    assert result.to_json()["errors"] == {"u1": 2}


def test_what_cannot_be_is_set_aside_and_counted(spark: SparkSession) -> None:
    d = Diagram("odd")
    quotes = d.input("quotes", "ts TIMESTAMP, id INT", key="id", history="1 minute", late="revise")
    quotes.output("all")
    quotes.conflict.output("conflict")

    def at(seconds: int, **more: Any) -> dict[str, Any]:
        return {"ts": START + timedelta(seconds=seconds), **more}

    rows = [
        at(0, id=1),
        at(1, id=1),
        {"_kind": "-D", "id": 7},
        at(100, id=2),
        at(10, id=3),
        {"_kind": "-D", "id": 1},
        at(50, id=4),
    ]
    with pytest.warns(UserWarning, match=r"quotes\.expired"):
        result: Result = run(d, {"quotes": rows}, spark=spark)
    assert result.to_json()["refused"] == {"quotes.expired": 1, "quotes.conflict": 3}
    assert [row["id"] for row in result.rows("all")] == [1, 2, 4]
    assert [(row["id"], row["change"]) for row in result.rows("conflict")] == [(1, "+I"), (7, "-D"), (1, "-D")]


def readings_of(rng: Random, minutes: int) -> Iterator[pa.Table]:
    """Minute by minute the readings of meters, of which some come late, are replaced or withdrawn, or are the last."""
    alive: list[int] = []
    fresh = 0
    for second in range(0, minutes * 60, 60):
        rows: list[dict[str, Any]] = []
        for now in range(second, second + 60):
            kind, which, what = "+I", fresh, rng.random()
            if what < 0.2 and len(alive) > 60:
                kind, which = (
                    ("-D", alive.pop(rng.randrange(-60, 0))) if what < 0.1 else ("+U", rng.choice(alive[-60:]))
                )
            else:
                alive.append(fresh)
                fresh += 1
            ts = START + timedelta(seconds=now - rng.choice((0,) * 8 + (120, 240)))
            rows.append({"ts": ts, "id": which, "meter": f"m{now // 200}", "value": rng.random() * 100, "_kind": kind})
        yield pa.Table.from_pylist(rows)


def test_an_hour_leaves_no_more_state_than_the_history(spark: SparkSession) -> None:
    d = Diagram("meters")
    columns = "ts TIMESTAMP, id INT, meter STRING, value DOUBLE"
    readings = d.input("readings", columns, key="id", history="5 minutes", late="revise")
    readings.aggregate(by="meter", over=window("1 minute"), n="count(*)").output("counts", revisions="final")
    highest = readings.aggregate(by="meter", over=window("2 minutes", "1 minute"), most="max(value)")
    highest.output("highest", important="most > 99")
    over = window("2 minutes", "1 minute")
    readings.aggregate(by="meter", over=over, most="max(value)", history_at="readings", name="again").output("again")
    readings.join(readings, on="left.meter = right.meter AND left.id < right.id", within="1 second").output("near")
    spec = d.validate()
    program = compile_unit(spec, spark).program
    kernels: dict[str, Kernel] = {}
    held: dict[str, list[int]] = {box.name: [] for box in spec.boxes}
    standing, noon = FIRST_TIME, int(START.timestamp()) * 1_000_000
    for minute, given in enumerate(readings_of(Random(1), 60)):
        rows = given.cast(schema_of(program.inputs["readings"]))
        time, cause = rows["ts"].cast(pa.int64()).to_numpy(), 60 * minute + np.arange(60)
        bounds = Bounds(standing, cause[-1:], np.array([noon + (minute + 1) * 60_000_000]))
        flows = {"readings": Flow(rows, time, cause, np.zeros(60, np.int64), bounds)}
        flows["readings.late"] = empty_flow(schema_of(program.inputs["readings.late"]), Bounds())
        standing = bounds.final
        for _ in run_level(program, 0, 0, flows, lambda box, make: kernels.setdefault(box, make())):
            pass
        for box, kernel in kernels.items():
            held[box].append(sum(one.nbytes for one in kernel.tables_now().values()))
    assert {*kernels["again"].tables_now()} == {"groups", "panes"}
    for box, bytes_ in held.items():
        assert 0 < max(bytes_[20:]) < 1.5 * max(bytes_[:20]) + 500, (box, bytes_)
