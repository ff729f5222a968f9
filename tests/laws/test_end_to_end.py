"""A few runs of the whole thing on Structured Streaming itself, held to the oracle."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from chance import BOTH, COLUMNS, DDL, SECOND, random_table, random_times
from harness import Story, differences, exactly, pieces_of, tell, truth, without_header
from pyspark.sql import SparkSession

from borealis import run
from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.diagram.spec import LATE, Spec
from borealis.trains.intake import Admission

pytestmark = pytest.mark.spark


def left_to_catalyst() -> Diagram:
    """Expressions that only Catalyst knows, before and behind stateful boxes."""
    d = Diagram("catalyst")
    a, b = (d.input(name, DDL, slack="1 second") for name in BOTH)
    loud = a.map(k="k", loud="initcap(s)", m="m * 2 + 1.25", minute="date_trunc('MINUTE', ts)")
    loud.aggregate(by=["loud", "minute"], over=window("4 seconds", "2 seconds"), n="count(*)", m="sum(m)").output(
        "loud"
    )
    loud.join(b.map(k="k", w="v"), on="left.k = right.k", within="1 second").filter("loud LIKE 'A%'").output("pairs")
    nested = {
        "top": "max(struct(k, s, d))",
        "low": "min(array(n, k))",
        "set": "collect_set(struct(s, k))",
        "sum": "sum(n)",
    }
    a.aggregate(by="b", over=window("3 seconds", "2 seconds"), exprs=nested).output("nested")
    return d


def two_keys() -> Diagram:
    """Two stateful boxes with different keys: with several buckets, a shuffle between them."""
    d = Diagram("two_keys")
    a, b = (d.input(name, DDL, slack="1 second") for name in BOTH)
    both = a.union(b).filter("k IS NOT NULL")
    per = both.aggregate(by=["k", "s"], over=window("3 seconds", "1 second"), n="count(*)", mean="avg(m)")
    per.aggregate(by="n", over=window("6 seconds"), groups="count(*)", names="max(s)").output("sizes")
    a.late.union(b.late).output("tardy")
    return d


def story_of(spec: Spec, rng: Random, rows: int) -> Story:
    tables = {}
    for one in spec.inputs:
        stamps = random_times(rng, rows, one.slack_us, -5 * SECOND, tardy=0.05)
        tables[one.name] = random_table(rng, COLUMNS, stamps)
    return tell(spec, tables)


@pytest.mark.parametrize(
    ("make", "runs"),
    [(left_to_catalyst, [(1, 45), (3, 1000)]), (two_keys, [(1, 30), (1, 1000), (3, 50)])],
    ids=["left_to_catalyst", "two_keys"],
)
def test_a_run_on_structured_streaming_is_the_oracle(
    spark: SparkSession, make: Callable[[], Diagram], runs: list[tuple[int, int]]
) -> None:
    rng = Random(make.__name__)
    spec = make().validate()
    story = story_of(spec, rng, 40)
    known = truth(story, spark)
    late = {name + LATE: story.late_rows(name) for name in story.tables}
    orders = {}
    for buckets, most in runs:
        sources = {name: pieces_of(table, rng) for name, table in story.tables.items()}
        lists: dict[str, list[dict[str, object]]] = {name: [] for name in late}
        result = run(
            spec, sources, lists, buckets=buckets, admission=Admission(rows_most=most), headers=True, spark=spark
        )  # fmt: skip
        for name, table in known.items():
            assert differences(result[name], table) == []
            mine, theirs = without_header(result[name]).schema.types, table.schema.types
            # on a stream any value may be null, also within a list
            assert [str(t).replace(" not null", "") for t in mine] == [str(t).replace(" not null", "") for t in theirs]
        for name, table in late.items():
            assert len(lists[name]) == table.num_rows
        outputs = exactly({name: result[name] for name in known})
        assert orders.setdefault(buckets, outputs) == outputs
