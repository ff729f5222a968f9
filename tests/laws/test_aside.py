"""Tuples that a box cannot take: the same go aside whatever the cut, and the rest is as if they had not come."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from chance import COLUMNS, DDL, random_story
from harness import ASIDE, Luck, Story, compiled, differences, exactly, examples, random_places, run_story, tell
from harness import without_header as plain
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.errors import TrainError

pytestmark = pytest.mark.spark
SEEDS = st.integers(0, 2**32 - 1)


def kernels(errors: str) -> Diagram:
    """Boxes that fail before, within and behind an aggregate, as exact twins of Spark's expressions."""
    d = Diagram("kernels", errors=errors)  # type: ignore[arg-type]
    parts = d.input("a", DDL, slack="1 second").map(k="k", s="s", x="100 div k", n="n")
    parts.output("out")
    parts.filter("10 div x >= 0").output("some")
    windows = parts.aggregate(by="s", over=window("2 seconds"), rows="count(*)", most="max(n % k)")
    windows.map(s="s", odd="rows / (rows - 2)").output("windows")
    return d


def catalyst(errors: str) -> Diagram:
    """The same where Spark itself computes."""
    d = Diagram("catalyst", errors=errors)  # type: ignore[arg-type]
    parts = d.input("a", DDL, slack="1 second").map(k="k", u="initcap(s)", x="pmod(100, k)", y="100 div k")
    parts.filter("length(u) div (k - 1) >= 0 OR u IS NULL").output("out")
    parts.aggregate(by="u", over=window("2 seconds"), rows="count(*)", most="max(make_date(2020, k, 1))").output("w")
    return d


def story_of(diagram: Diagram, rng: Random, rows: int) -> Story:
    return random_story(rng, diagram.validate(), {"a": COLUMNS}, rows, tardy=0.1)


@pytest.mark.parametrize("draw", [kernels, pytest.param(catalyst, marks=pytest.mark.long)], ids=lambda d: d.__name__)
def test_the_same_tuples_go_aside_whatever_the_cut(spark: SparkSession, draw: Callable[[str], Diagram]) -> None:
    diagram = draw("aside")

    @examples(1 if draw is catalyst else 4)
    @given(SEEDS, st.integers(10, 25))
    def law(seed: int, rows: int) -> None:
        rng = Random(seed)
        story = story_of(diagram, rng, rows)
        results = []
        for buckets in (1, 2):
            unit = compiled(story.spec.to_yaml(), spark, buckets)
            whole = run_story(story, unit, spark=spark)
            luck = Luck(Random(seed), rng.randint(1, 3), retry=0.1, abandon=0.1)
            places = random_places(rng, len(story.events))
            if draw is catalyst:  # each train is a job of Spark's
                places = places[: 2 // buckets]
            assert exactly(run_story(story, unit, places, luck, spark)) == exactly(whole)
            results.append(whole)
        for name, table in results[0].items():
            assert differences(results[1][name], plain(table)) == []

    law()


@examples(4)
@given(seed=SEEDS)
def test_the_rest_is_as_if_they_had_not_come(spark: SparkSession, seed: int) -> None:
    story = story_of(kernels("aside"), Random(seed), 25)
    outputs = run_story(story, compiled(story.spec.to_yaml(), spark, 1))
    rows = story.late_rows("a", late=False)
    zero = pc.equal(rows["k"], 0).fill_null(False)
    failed = outputs[ASIDE].filter(pc.equal(outputs[ASIDE]["box"], "map_1"))
    assert [json.loads(t)["k"] for t in failed["tuple"].to_pylist()] == [0] * pc.sum(zero).as_py()
    assert set(failed["expression"].to_pylist()) <= {"100 div k"}
    assert set(failed["reason"].to_pylist()) <= {"division by zero in `100 DIV k`"}
    good = tell(story.spec, {"a": rows.filter(pc.invert(zero))})
    there = run_story(good, compiled(story.spec.to_yaml(), spark, 1))
    for name in ("out", "some"):
        assert exactly({name: plain(outputs[name])}) == exactly({name: plain(there[name])})


def test_what_fails_without_a_tuple_is_the_fault_of_its_box(spark: SparkSession) -> None:
    story = story_of(kernels("fail"), Random(1), 25)
    table = story.tables["a"].set_column(1, "k", pa.array([0] * 25, pa.int32()))
    with pytest.raises(TrainError, match="box 'map_1': division by zero in `100 DIV k`"):
        run_story(tell(story.spec, {"a": table}), compiled(story.spec.to_yaml(), spark, 1))
