"""Corrected input gives corrected results: what stands after all changes is the batch answer over what stands of the
input, however trains are cut and rows are spread over buckets; and the changes themselves do not hang on the cuts.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from borealis.compile.batch import batch
from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.local.run import Result, run
from borealis.trains.intake import Admission

START = datetime(2026, 1, 1, tzinfo=UTC)
PRICES = (0.25, 1.5, 7.25, None)  # sums of these are exact in any order


def everything() -> Diagram:
    """A diagram with every box that takes rows back."""
    d = Diagram("ticker")
    columns = "ts TIMESTAMP, id INT, symbol STRING, price DOUBLE, n INT"
    quotes = d.input("quotes", columns, key="id", history="1 hour", late="revise")
    orders = d.input("orders", "ts TIMESTAMP, id INT, symbol STRING", key="id", history="1 hour", late="revise")
    plain = d.input("plain", columns)
    dear, rest = quotes.route(dear="price > 5", otherwise="rest")
    quotes.filter("n % 3 <> 0").with_columns(twice="price * 2").output("mapped")
    sliding = quotes.aggregate(
        by="symbol",
        over=window("10 seconds", "5 seconds"),
        n="count(*)",
        total="sum(n)",
        most="max(price)",
        mean="avg(price)",
        newest="last(price)",
    )
    sliding.output("windows")
    sliding.aggregate(over=window("20 seconds"), windows="count(*)", total="sum(total)").output("nested")
    dear.drop(where="n > 6").union(rest, plain).output("both")
    quotes.join(orders, on="left.symbol = right.symbol AND left.n > right.id", within="7 seconds").output("pairs")
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
def test_what_stands_is_the_batch_answer(spark: SparkSession, seed: int) -> None:
    rng, diagram = Random(seed), everything()
    inserts = [row for row in story(rng, 20) if row.get("_kind") in (None, "+I")]
    plain = sorted(({k: v for k, v in row.items() if k != "_kind"} for row in inserts), key=lambda row: row["ts"])
    inputs = {"quotes": story(rng, 60), "orders": story(rng, 30), "plain": plain}
    ways = {
        (most, buckets): run(diagram, inputs, admission=Admission(rows_most=most), buckets=buckets, spark=spark)
        for most, buckets in ((1000, 1), (rng.randrange(3, 12), 1), (20, 3))
    }
    whole, cut, spread = ways.values()
    for name, frame in batch(diagram, spark, inputs).items():
        truth = bag(frame.toArrow())
        for way, result in ways.items():
            assert bag(result.table(name)) == truth, (name, way)
        assert cut[name].equals(whole[name]), name
        assert len(whole[name]) > len(whole.table(name)), "nothing was corrected"
        assert len(spread[name]) > len(spread.table(name))
    assert all(not any(result.to_json()["refused"].values()) for result in ways.values())


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
