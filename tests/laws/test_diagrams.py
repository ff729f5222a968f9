"""Random diagrams over random data: no cut, worker or number of buckets changes them, and the oracle agrees."""

from __future__ import annotations

from random import Random

import pytest
from chance import BOTH, random_diagram, random_story
from harness import (
    Luck,
    check_truth,
    compiled,
    differences,
    exactly,
    examples,
    random_places,
    run_story,
    without_header,
)
from hypothesis import given, note
from hypothesis import strategies as st
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
SEEDS = st.integers(0, 2**32 - 1)


@examples(5)
@given(SEEDS, st.integers(1, 35), st.booleans())
def test_random_diagrams_obey_the_cut_law_and_the_oracle(
    spark: SparkSession, seed: int, rows: int, tardy: bool
) -> None:
    rng = Random(seed)
    distinct = rng.random() < 0.4
    spec = random_diagram(rng, rows, distinct=distinct, late=tardy and rng.random() < 0.5)
    note(spec.to_yaml())
    outputs = {}
    story = random_story(rng, spec, BOTH, rows, distinct=distinct, tardy=0.1 if tardy else 0)
    for buckets in (1, rng.choice([2, 3])):
        unit = compiled(spec.to_yaml(), spark, buckets)
        catalyst = any(port.as_rows for level in unit.program.levels for port in level.leave)
        outputs[buckets] = run_story(story, unit, spark=spark)
        for _ in range(1 if catalyst else 3):
            n = len(story.events)
            places = [rng.randrange(n)] if catalyst else random_places(rng, n)
            chances = () if catalyst else (rng.choice([0, 0.15]) for _ in range(3))
            luck = Luck(Random(rng.random()), rng.randint(1, 3), *chances, stretches=rng.choice([2, 4, 24]))
            assert exactly(run_story(story, unit, places, luck, spark)) == exactly(outputs[buckets])
    one, many = outputs.values()
    for name, table in one.items():
        assert differences(many[name], without_header(table)) == []
    check_truth(story, one, spark)


@examples(2)
@given(SEEDS, st.integers(1, 25))
def test_random_diagrams_with_boxes_left_to_catalyst_obey_them_too(spark: SparkSession, seed: int, rows: int) -> None:
    rng = Random(seed)
    spec = random_diagram(rng, rows, catalyst=True)
    note(spec.to_yaml())
    story = random_story(rng, spec, BOTH, rows)
    unit = compiled(spec.to_yaml(), spark, rng.choice([1, 2, 3]))
    whole = run_story(story, unit, spark=spark)
    places = [rng.randrange(len(story.events)) for _ in range(2)]
    assert exactly(run_story(story, unit, places, Luck(rng, 2, 0.2), spark)) == exactly(whole)
    check_truth(story, whole, spark)
