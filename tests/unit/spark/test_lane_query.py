"""Queries that are started before there is a unit, with Spark: any unit of one level runs in any of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pyspark.sql import SparkSession

from borealis import Diagram, window
from borealis.compile.unit import compile_unit
from borealis.connectors.python.sink import TableSink
from borealis.connectors.sources import as_source
from borealis.diagram import passes
from borealis.diagram.cut import cut, part_of
from borealis.spark.lane_query import LaneQuery, start_one
from borealis.spark.query import Query
from borealis.trains.unit import UnitOptions, UnitRun

pytestmark = pytest.mark.timeout(180)
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ROWS = [{"ts": START + dt.timedelta(seconds=i), "k": i % 3, "s": str(i)} for i in range(10)]
PATIENCE_S = 60.0


def counted(d: Diagram) -> None:
    rows = d.input("rows", "ts TIMESTAMP, k INT, s STRING", time="ts")
    rows.aggregate(by="k", over=window("1 day"), n="count(*)", name="counts").output("out")


def filtered(d: Diagram) -> None:
    d.input("rows", "ts TIMESTAMP, k INT, s STRING", time="ts").filter("k = 1").map(t="concat(s, '!')").output("out")


Units = Callable[[Callable[[Diagram], None], LaneQuery], tuple[UnitRun, Query, TableSink]]


@pytest.fixture
def units(spark: SparkSession) -> Iterator[Units]:
    with ExitStack() as ending:

        def make(draw: Callable[[Diagram], None], lanes: LaneQuery) -> tuple[UnitRun, Query, TableSink]:
            d = Diagram(draw.__name__)
            draw(d)
            spec = passes.checked(d.spec)
            [piece] = cut(spec, local=True)
            part, sink = part_of(spec, piece), TableSink()
            compiled = compile_unit(part, spark, 1, errors=piece.errors)
            run = UnitRun(d.spec.name, part, compiled, {"rows": as_source(ROWS)}, {"out": sink}, UnitOptions())
            ending.callback(run.close, complete=False)
            query = Query(spark, compiled, run, run.commit, run.scratch, lambda _: lanes)
            ending.callback(query.stop)
            return run, query, sink

        yield make


def result(run: UnitRun, query: Query, sink: TableSink) -> list[dict[str, Any]]:
    run.start()
    query.start()
    assert run.done.wait(PATIENCE_S), query.failure()
    return sink.table().to_pylist()  # type: ignore[no-any-return]


def test_one_that_has_tried_several_on_runs_whichever_it_is_given(spark: SparkSession, units: Units) -> None:
    lanes = start_one(spark, 1)
    counts, letters = units(counted, lanes), units(filtered, lanes)
    for run, query, _ in (counts, letters) * 2:
        before = run.rehearsals.count
        assert query.fit(lanes, PATIENCE_S), lanes.failure()
        assert (run.rehearsals.count, run.committed()) == (before + 1, 0)
    assert result(*letters) == [{"t": "1!"}, {"t": "4!"}, {"t": "7!"}]
    assert not counts[1].fit(lanes, PATIENCE_S)  # it is somebody's now


def test_one_that_has_never_seen_its_unit_runs_it_as_well(spark: SparkSession, units: Units) -> None:
    found = result(*units(counted, start_one(spark, 1)))
    assert [(row["k"], row["n"]) for row in found] == [(0, 4), (1, 3), (2, 3)]


def test_a_unit_that_is_gone_while_it_is_tried_on_spoils_at_most_the_query(spark: SparkSession, units: Units) -> None:
    lanes = start_one(spark, 1)
    gone, other = units(counted, lanes), units(filtered, lanes)
    gone[1].stop()
    gone[0].close(complete=False)
    assert gone[1].fit(lanes, PATIENCE_S) == (lanes.failure() is None)
    if lanes.failure() is None:
        assert other[1].fit(lanes, PATIENCE_S)
    lanes.stop()
