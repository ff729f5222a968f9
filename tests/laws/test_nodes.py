"""The same diagram, cut anywhere and spread over any number of nodes, gives the same output; so does one that moves."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from chance import BOTH, COLUMNS, DDL, random_diagram, random_story, random_table, random_times
from harness import check_truth, compiled, exactly, examples, pieces_of, random_places, run_story, tell
from hypothesis import given
from hypothesis import strategies as st
from nodes import Cluster, collect_all, table_of
from pyspark.sql import SparkSession

from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.diagram.spec import LATE, Spec
from borealis.errors import WireError
from borealis.wire.client import Peer
from borealis.wire.messages import Done, UnitOrder

pytestmark = pytest.mark.spark

SEEDS = st.integers(0, 2**32)


def random_cuts(rng: Random, spec: Spec) -> list[str]:
    names = [box.name for box in spec.boxes]
    return rng.sample(names, rng.randint(0, len(names)))


def batches_of(table: pa.Table, rng: Random) -> list[pa.RecordBatch]:
    return [b for part in pieces_of(table, rng).tables for b in part.combine_chunks().to_batches()]


def run_on_nodes(
    spark: SparkSession, spec: Spec, tables: dict[str, pa.Table], nodes: int, rng: Random, moves: int = 0
) -> dict[str, pa.Table]:
    """Every output and every late side, as a client of the cluster sees them."""
    with Cluster(spark, nodes) as cluster:
        pieces = cluster.deploy(spec, random_cuts(rng, spec), rng)

        def publish(name: str) -> None:
            batches = batches_of(tables[name], Random(name))
            cluster.publish(f"{spec.name}/{name}", batches, tables[name].schema)

        publishers = [threading.Thread(target=publish, args=(name,), daemon=True) for name in tables]
        for publisher in publishers:
            publisher.start()
        for _ in range(moves):
            cluster.move(rng.choice(pieces).name, rng)
        streams = {o.name: f"{spec.name}/{o.source}" for o in spec.outputs}
        streams |= {name + LATE: f"{spec.name}/{name}{LATE}" for name in tables}
        return {name: table_of(section) for name, section in collect_all(cluster, streams).items()}


@pytest.mark.parametrize("nodes", [1, 2, 4])
@examples(3)
@given(seed=SEEDS)
def test_random_diagrams_and_cuts_give_the_oracles_output(spark: SparkSession, nodes: int, seed: int) -> None:
    rng = Random(seed)
    spec = random_diagram(rng, rows=24, late=True)
    story = random_story(rng, spec, BOTH, 24, tardy=0.1)
    story = tell(spec, story.tables)  # without boundaries that idleness wrote: those come from the clock
    check_truth(story, run_on_nodes(spark, spec, story.tables, nodes, rng), spark)


def chain(rng: Random) -> Spec:
    """Boxes one behind the other: there is one order only, so every bit must be the same."""
    d = Diagram("chain")
    stream = d.input("a", DDL, slack="1 second")
    for _ in range(rng.randint(0, 2)):
        stream = rng.choice([lambda s: s.filter("k IS NOT NULL"), lambda s: s.filter("n > -100 OR n IS NULL")])(stream)
    stream = stream.map({name: f"`{name}`" for name in COLUMNS})
    first = stream.aggregate(by=["k"], over=window("3 seconds", "1 second"), n="count(*)", v="sum(v)", s="last(s)")
    first.output("first")
    second = first.filter("n > 0").aggregate(by=[], over=window("4 seconds"), m="sum(n)", v="sum(v)", k="first(k)")
    second.output("second")
    return d.validate()


@examples(4)
@given(seed=SEEDS)
def test_a_chain_gives_the_same_tuples_with_the_same_ids_however_it_is_cut(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)
    spec = chain(rng)
    table = random_table(rng, COLUMNS, random_times(rng, 40, 1_000_000, tardy=0.05))
    story = tell(spec, {"a": table})
    whole = run_story(story, compiled(spec.to_yaml(), spark, 1), random_places(rng, len(story.events)))
    spread = run_on_nodes(spark, spec, {"a": table}, rng.choice([1, 2, 4]), rng)
    assert exactly(spread) == exactly(whole)


@examples(4)
@given(seed=SEEDS)
def test_units_that_move_lose_and_repeat_nothing(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)
    spec = chain(rng)
    table = random_table(rng, COLUMNS, random_times(rng, 60, 1_000_000, tardy=0.05))
    story = tell(spec, {"a": table})
    whole = run_story(story, compiled(spec.to_yaml(), spark, 1))
    moved = run_on_nodes(spark, spec, {"a": table}, rng.choice([2, 3]), rng, moves=rng.randint(1, 4))
    assert exactly(moved) == exactly(whole)


@examples(3)
@given(seed=SEEDS)
def test_random_diagrams_that_move_give_the_oracles_output(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)
    spec = random_diagram(rng, rows=24, late=True)
    story = tell(spec, random_story(rng, spec, BOTH, 24, tardy=0.1).tables)
    if spec.boxes:
        check_truth(story, run_on_nodes(spark, spec, story.tables, 3, rng, moves=rng.randint(1, 3)), spark)


def test_two_nodes_may_take_over_units_from_each_other_at_once(spark: SparkSession) -> None:
    """Each waits for the other's state; neither may wait for the other's order to end."""
    rng = Random(3)
    table = random_table(rng, COLUMNS, random_times(rng, 40, 1_000_000))
    with Cluster(spark, 2) as cluster:
        orders = {}
        for number, name in enumerate(("left", "right")):
            d = Diagram(name)
            d.input("a", DDL, slack="1 second").filter("k IS NOT NULL").output("out")
            order = UnitOrder(diagram=name, yaml=d.to_yaml(), unit="in-a", boxes=[], readers={"a": [f"{name}.u1"]})
            cluster.peers[number].act("start", order, Done)
            orders[name] = UnitOrder(diagram=name, yaml=d.to_yaml(), unit="u1", boxes=["filter_1"])
            cluster.peers[number].act("start", orders[name], Done)
        errors: list[BaseException] = []

        def swap(there: int, name: str, source: int) -> None:
            try:
                taken = orders[name].model_copy(update={"take_over": cluster.nodes[source].address})
                cluster.peers[there].act("start", taken, Done)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=swap, args=a) for a in ((1, "left", 0), (0, "right", 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not errors, errors
        assert [list(node.units) for node in cluster.nodes] == [[("right", "u1")], [("left", "u1")]]
        for name in orders:
            cluster.publish(f"{name}/a", batches_of(table, rng), table.schema)
        found = collect_all(cluster, {name: f"{name}/filter_1" for name in orders})
        assert len(found["left"]) == len(found["right"]) == table.num_rows - table["k"].null_count


class Deaf(Peer):
    """A way to a node on which the first `moved`, or its answer, is lost."""

    def __init__(self, address: str, delivered: bool) -> None:
        super().__init__(address)
        self.delivered, self.lost = delivered, 0

    def act(self, name: str, message: Any, answer: Any, *, within: float | None = None) -> Any:
        if name != "moved" or self.lost:
            return super().act(name, message, answer, within=within)
        self.lost += 1
        if self.delivered:
            super().act(name, message, answer, within=within)
        raise WireError("no answer came")


@pytest.mark.parametrize("delivered", [True, False])
def test_a_move_whose_last_word_is_lost_still_leaves_one_unit(spark: SparkSession, delivered: bool) -> None:
    rng = Random(4)
    spec = chain(rng)
    table = random_table(rng, COLUMNS, random_times(rng, 40, 1_000_000))
    whole = run_story(tell(spec, {"a": table}), compiled(spec.to_yaml(), spark, 1))
    with Cluster(spark, 2) as cluster:
        cluster.deploy(spec, [], rng)
        here = next(i for i, node in enumerate(cluster.nodes) if node.units)
        deaf = Deaf(cluster.nodes[here].address, delivered)
        cluster.nodes[1 - here].peers._peers[deaf.address] = deaf
        cluster.move("u1", rng)
        assert deaf.lost == 1
        assert [bool(node.units) for node in cluster.nodes] == [here == 1, here == 0]
        cluster.publish("chain/a", batches_of(table, rng), table.schema)
        found = collect_all(cluster, {o.name: f"chain/{o.source}" for o in spec.outputs})
        assert exactly({n: table_of(f) for n, f in found.items()}) == exactly({n: whole[n] for n in found})
