"""Nodes die in the midst of a stream; readers see what the guarantee says. Real nodes, queues, wire and guards."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from chance import COLUMNS, DDL, random_table, random_times
from guarded import Approach, Guarded, publish_slowly
from harness import bag, compiled, exactly, examples, run_story, tell
from hypothesis import given
from hypothesis import strategies as st
from nodes import table_of
from pyspark.sql import SparkSession

from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Spec
from borealis.section import Section, joined

pytestmark = pytest.mark.spark
SEEDS = st.integers(0, 2**32)
ROWS = 120
KEPT = ("passive", "active", "upstream-backup")  # approaches that lose nothing


def chain() -> Spec:
    """Two stateful boxes in a row, and a filter before them."""
    d = Diagram("chain")
    stream = d.input("a", DDL, slack="1 second").filter("k IS NOT NULL OR n > -100 OR n IS NULL")
    first = stream.aggregate(by=["k"], over=window("3 seconds", "1 second"), n="count(*)", v="sum(v)", s="last(s)")
    first.output("first")
    first.filter("n > 0").aggregate(by=[], over=window("4 seconds"), m="sum(n)", v="sum(v)").output("second")
    return d.validate()


def union() -> Spec:
    d = Diagram("both")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    a.union(b).map(k="k", n="n", s="s").output("first")
    return d.validate()


def batches_of(table: pa.Table, size: int = 3) -> list[pa.RecordBatch]:
    return [b for at in range(0, len(table), size) for b in table.slice(at, size).combine_chunks().to_batches()]


def run_with_deaths(
    cluster: Guarded, spec: Spec, tables: dict[str, pa.Table], deaths: list[tuple[float, str]]
) -> tuple[dict[str, list[Section]], int]:
    """Publish everything; when a share of the first output is there, kill the node that runs a unit then."""
    found: dict[str, tuple[list[Section], int]] = {}
    errors: list[BaseException] = []

    def work(what: Any, *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                what(*args)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def read(name: str, stream: str) -> None:
        found[name] = cluster.follow(stream)

    readers = [work(read, o.name, f"{spec.name}/{o.source}") for o in spec.outputs]
    writers = [work(publish_slowly, cluster, f"{spec.name}/{n}", batches_of(t), t.schema) for n, t in tables.items()]
    entries = {n: cluster.nodes[0].entries[f"{spec.name}/{n}"] for n in tables}
    total = sum(len(t) for t in tables.values())
    for share, unit in deaths:
        cluster.wait_for(
            lambda share=share: sum(e.queue.next_id + e.late.next_id for e in entries.values()) >= share * total,
            "no progress",
        )
        home = next(
            i
            for i, n in enumerate(cluster.nodes)
            if i not in cluster.dead and (u := n.units.get((spec.name, unit))) is not None and not u.standby
        )
        cluster.kill(home)
    for thread in [*writers, *readers]:
        thread.join(30)
        assert not thread.is_alive(), cluster.failures()
    assert not errors, errors[0]
    assert sum(len(cluster.takeovers(unit)) for _, unit in deaths) >= 1
    return {name: parts for name, (parts, _) in found.items()}, sum(j for _, j in found.values())


@pytest.mark.parametrize("approach", KEPT)
@examples(3)
@given(seed=SEEDS)
def test_a_chain_whose_nodes_die_gives_the_same_tuples_with_the_same_ids(
    spark: SparkSession, approach: Approach, seed: int
) -> None:
    rng = Random(seed)
    spec = chain()
    table = random_table(rng, COLUMNS, random_times(rng, ROWS, 200_000, tardy=0.05))
    whole = run_story(tell(spec, {"a": table}), compiled(spec.to_yaml(), spark, 1))
    with Guarded(spark, 4) as cluster:
        cuts = rng.choice([["aggregate_2"], ["aggregate_1", "aggregate_2"], []])
        pieces = cluster.protect(spec, cuts, rng, approach, rng.choice(["no-loss", "precise"]))
        deaths = [(rng.uniform(0.2, 0.8), rng.choice(pieces).name)]
        found, jumps = run_with_deaths(cluster, spec, {"a": table}, deaths)
    assert jumps == 0
    assert exactly({n: table_of(joined(parts)) for n, parts in found.items()}) == exactly(
        {n: t for n, t in whole.items() if n in found}
    )


@pytest.mark.parametrize("approach", KEPT)
@examples(3)
@given(seed=SEEDS)
def test_streams_that_meet_come_out_once_under_precise(spark: SparkSession, approach: Approach, seed: int) -> None:
    rng = Random(seed)
    spec = union()
    tables = {n: random_table(rng, COLUMNS, random_times(rng, ROWS // 2, 200_000)) for n in "ab"}
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, [], rng, approach, "precise")
        found, jumps = run_with_deaths(cluster, spec, tables, [(rng.uniform(0.2, 0.8), "u1")])
    assert jumps == 0
    rows = pa.table(joined(found["first"]).rows)
    wanted = pa.concat_tables(list(tables.values()))
    assert bag(rows.select(["k", "n", "s"])) == bag(wanted.select(["k", "n", "s"]))
