"""Cases that random search found once, kept small."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from harness import Luck, compiled, differences, run_story, tell, times, truth
from pyspark.sql import SparkSession

from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.aggregate import AggregateKernel
from borealis.kernels.flow import Bounds, Flow
from borealis.state import log as state_log
from borealis.state.cache import Cache
from borealis.state.delta import pack
from borealis.state.log import StateLog
from borealis.tuples import FIRST_TIME

ROWS = pa.table({"ts": times([1, 2, 3]), "k": pa.array([1, 2, 3], pa.int32()), "s": ["a", "b", "a"]})


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_a_union_across_levels_has_each_row_once(spark: SparkSession, buckets: int) -> None:
    d = Diagram("levels")
    a = d.input("a", "ts TIMESTAMP, k INT, s STRING")
    a.filter("k > 0").union(a.filter("initcap(s) = 'A'")).output("out")
    a.aggregate(by="k", over=window("1 second"), n="count(*)").output("keyed")
    story = tell(d.validate(), {"a": ROWS})
    outputs = run_story(story, compiled(story.spec.to_yaml(), spark, buckets), (), Luck(), spark)
    assert differences(outputs["out"], truth(story, spark)["out"]) == []


@pytest.mark.spark
@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_buckets_share_the_rows_where_no_box_has_a_key(spark: SparkSession, buckets: int) -> None:
    d = Diagram("shared")
    d.input("a", "ts TIMESTAMP, k INT, s STRING").filter("k > 0").output("out")
    story = tell(d.validate(), {"a": ROWS})
    outputs = run_story(story, compiled(story.spec.to_yaml(), spark, buckets))
    assert outputs["out"]["k"].to_pylist() == [1, 2, 3]


def test_a_worker_that_slept_does_not_take_one_group_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile its group died, the number went to another, and the log was merged down to the whole state."""
    monkeypatch.setattr(state_log, "STRETCHES_MOST", 2)
    schema = pa.schema([("k", pa.string())])

    def make() -> AggregateKernel:
        return AggregateKernel(schema, ["k"], 10, 10, [Call("count", None, pa.int64())])

    sleeper, other = Cache[AggregateKernel](), Cache[AggregateKernel]()
    turns = [(sleeper, "x"), (other, "y"), (other, "z"), (other, "y"), (other, "z"), (sleeper, "x"), (sleeper, "x")]
    closed = []
    with tempfile.TemporaryDirectory() as home:
        log = StateLog(Path(home), {"box": AggregateKernel.tables})
        for number, (worker, key) in enumerate(turns, 1):
            log.merge()
            kernel = worker.take(log.root, ("box", 0), number - 1, log.manifest().get("box.0", []), make)
            cause, bound = np.array([2 * number + 1]), 10 * number
            bounds = Bounds(bound - 10 if number > 1 else FIRST_TIME, cause - 1, np.array([bound]))
            out, delta = kernel.step(Flow(pa.table({"k": [key]}), np.array([bound + 5]), cause, 0 * cause, bounds))
            closed += out.rows["k"].to_pylist()
            worker.give(log.root, ("box", 0), number, kernel)
            log.commit(number, {("box", 0): pack(delta)})
        log.close()
    assert closed == [key for _, key in turns[:-1]]
