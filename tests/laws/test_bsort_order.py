"""The order is all that a sort is about, and a bag does not show it: BSort's tuples come as the batch form has them."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from chance import COLUMNS, DDL, random_story
from harness import compiled, exactly, examples, random_places, run_story, without_header
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from borealis.compile.boxes.bsort import batch
from borealis.compile.types import POSITION, hidden, visible
from borealis.diagram import Diagram, Stream, window
from borealis.tuples import TIME

pytestmark = pytest.mark.spark
VALUES = ["v", "s", "m", "-n", "b", "d", "upper(s)"]


def source(slack: str = "1 second") -> Stream:
    return Diagram("sorted").input("a", DDL, slack=slack)


@pytest.mark.long
def test_the_order_and_the_times_are_the_oracles(spark: SparkSession) -> None:
    @examples(2)
    @given(st.integers(0, 2**32 - 1), st.integers(0, 60))
    def law(seed: int, rows: int) -> None:
        rng = Random(seed)
        buffer, by = rng.choice([1, 2, 3, 7, 100]), rng.choice([[], [], ["k"]])
        a = source()
        a.bsort(rng.choice(VALUES), buffer=buffer, by=by, name="sorted").output("out")
        spec = a.diagram.validate()
        story = random_story(rng, spec, {"a": COLUMNS}, rows, tardy=rng.choice([0, 0.1]))
        unit = compiled(spec.to_yaml(), spark, 1)
        out = run_story(story, unit, random_places(rng, len(story.events)), spark=spark)["out"]
        on_time = spark.createDataFrame(story.late_rows("a", late=False))
        frame = hidden(on_time, F.unix_micros("ts"), F.monotonically_increasing_id())
        truth = batch(spec.box("sorted"), [frame]).orderBy(POSITION)  # type: ignore[arg-type]
        theirs, times = visible(truth).toArrow(), truth.select(TIME).toArrow()[TIME]
        groups = [None] if not by else theirs["k"].unique().to_pylist()
        for key in groups:  # positions of different groups' last tuples say nothing
            mine, yours = (
                pa.array([i for i, k in enumerate(table["k"].to_pylist()) if not by or k == key], pa.int64())
                for table in (out, theirs)
            )
            assert exactly({"": without_header(out).take(mine)}) == exactly({"": theirs.take(yours)})
            pushed = max(0, len(mine) - buffer + 1)  # the others were left at the end
            assert out[TIME].take(mine)[:pushed].to_pylist() == times.take(yours)[:pushed].to_pylist()

    law()


@pytest.mark.long
def test_windows_behind_it_do_not_depend_on_the_cut(spark: SparkSession) -> None:
    """They would, if a tuple came behind the boundary that has passed its time."""

    @examples(4)
    @given(st.integers(0, 2**32 - 1), st.integers(0, 40))
    def law(seed: int, rows: int) -> None:
        rng = Random(seed)
        a = source(rng.choice(["0 seconds", "1 second"]))
        ordered = a.filter("k > 0").bsort("v", buffer=rng.choice([2, 4, 10]), by=rng.choice([[], ["k"]]))
        ordered.aggregate(by="k", over=window("2 seconds", "1 second"), n="count(*)", last="last(s)").output("out")
        ordered.output("all")
        story = random_story(rng, a.diagram.validate(), {"a": COLUMNS}, rows, tardy=rng.choice([0, 0.1]))
        unit = compiled(story.spec.to_yaml(), spark, 1)
        whole = run_story(story, unit)
        assert exactly(run_story(story, unit, random_places(rng, len(story.events)))) == exactly(whole)
        counted = sum(whole["out"]["n"].to_pylist())
        assert counted == 2 * whole["all"].num_rows  # each tuple lies in two windows, and none was too late for them

    law()
