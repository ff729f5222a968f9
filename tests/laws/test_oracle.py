"""The oracle of simulations agrees with the engine about random diagrams, however their inputs are merged."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from chance import BOTH, random_diagram, random_story
from harness import compiled, examples, random_places, run_story, without_header
from hypothesis import assume, given, note
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from borealis.diagram.cut import cut
from borealis.sim.history import Row, plain
from borealis.sim.oracle import Oracle, shape_of

pytestmark = pytest.mark.spark


@examples(8)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_what_the_oracle_knows_comes_of_every_merge(spark: SparkSession, seed: int, rows: int) -> None:
    rng = Random(seed)
    spec = random_diagram(rng, rows, distinct=rng.random() < 0.4)
    note(spec.to_yaml())
    story = random_story(rng, spec, BOTH, rows)
    unit = compiled(spec.to_yaml(), spark, 1)
    assume(not unit.catalyst)
    oracle = Oracle(spec, unit, lambda name, _, stop: story.tables[name].slice(0, stop))
    found = run_story(story, unit, random_places(rng, len(story.events)))
    counts = {name: table.num_rows for name, table in story.tables.items()}
    for one in spec.outputs:
        shape = shape_of(oracle, cut(spec), one.name)
        rows_now, truth = plain(without_header(found[one.name])), shape.truth(counts)
        if shape.known:
            assert Counter(map(rounded, rows_now)) == Counter(map(rounded, truth)), one.name
        else:
            assert shape.arbitrary


def rounded(row: Row) -> Row:
    """What of a row is exact: means of means, and the like, are not."""
    return tuple(map(_rounded, row))


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return rounded(value)
    return float(f"{value:.7g}") + 0.0 if isinstance(value, float) else value
