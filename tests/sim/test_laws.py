"""Laws of clusters of real nodes in one thread: cuts, nodes and moves do not matter; takeovers are as promised.

What random faults may do under each approach and guarantee is held by the runs of `make sim`; here is what those do not
look at: random diagrams, tuples that fail, databases, jumps that are passed on, and what is kept while all is well.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from chance import BOTH, COLUMNS, DDL, random_diagram, random_story, random_table, random_times
from harness import ASIDE, bag, check_truth, compiled, exactly, examples, pieces_of, run_story, tell, times
from harness import without_header as plain
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from simulated import Read, Simulated

from borealis.diagram.cut import cut
from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.diagram.spec import LATE, Spec
from borealis.errors import BorealisError, WireError
from borealis.sim.diagrams import spec_of, yaml_of
from borealis.sim.plan import Options, drawn_plan
from borealis.sim.programs import Programs
from borealis.sim.run import Run, Subject
from borealis.sim.shapes import rows
from postgres import Embedded

pytestmark = pytest.mark.spark
SEEDS = st.integers(0, 2**32)
KEPT = ("passive", "active", "upstream-backup")  # approaches that lose nothing
ROWS = 90


def few(n: int) -> settings:
    """So many examples; the seed says all, so nothing is gained by making it smaller."""
    return settings(examples(n), phases=(Phase.explicit, Phase.generate))


def batches_of(table: pa.Table, size: int = 3) -> list[pa.RecordBatch]:
    return [b for at in range(0, len(table), size) for b in table.slice(at, size).combine_chunks().to_batches()]


def in_pieces(table: pa.Table, rng: Random) -> list[pa.RecordBatch]:
    return [b for part in pieces_of(table, rng).tables for b in part.combine_chunks().to_batches()]


# -- cuts, nodes and moves do not matter


def run_anywhere(
    programs: Programs, spec: Spec, tables: dict[str, pa.Table], nodes: int, rng: Random, moves: int = 0
) -> dict[str, pa.Table]:
    """Every output and every late side of a diagram that is cut anywhere; meanwhile units move."""
    cuts = rng.sample([box.name for box in spec.boxes], rng.randint(0, len(spec.boxes)))
    pieces = cut(spec, cuts)
    assume(all(programs.compiled(spec, 1, piece).one_level for piece in pieces))  # Catalyst is not simulated
    with Simulated(programs, nodes, rng.randrange(2**32)) as town:
        names = list(town.cluster.nodes)
        town.deploy(spec.to_yaml(), cut=tuple(cuts))
        streams = {o.name: o.source for o in spec.outputs} | {name + LATE: name + LATE for name in tables}
        batches = {name: in_pieces(table, rng) for name, table in tables.items()}
        reads = town.run(spec.name, batches, dict.fromkeys(streams.values()))
        for _ in range(moves):
            town.live(rng.uniform(0.0, 0.15))
            unit = town.unit(rng.choice(pieces).name)
            town.move(unit.unit, rng.choice([name for name in names if name != unit.node]))
        town.finish(reads)
    assert not any(read.jumps or read.gaps for read in reads.values())
    return {name: reads[stream].table for name, stream in streams.items()}


@pytest.mark.parametrize("nodes", [1, 2, 4])
@few(4)
@given(seed=SEEDS)
def test_random_diagrams_cut_anywhere_give_the_oracles_output(
    programs: Programs, spark: SparkSession, nodes: int, seed: int
) -> None:
    rng = Random(seed)
    spec = random_diagram(rng, rows=24, late=True)
    story = tell(spec, random_story(rng, spec, BOTH, 24, tardy=0.1).tables)  # without boundaries that idleness wrote
    moves = rng.randint(0, 3) if nodes > 1 and spec.boxes else 0
    check_truth(story, run_anywhere(programs, spec, story.tables, nodes, rng, moves), spark)


def chain(rng: Random) -> Spec:
    """Boxes one behind the other: there is one order only, so every bit must be the same."""
    d = Diagram("chain")
    stream = d.input("a", DDL, slack="1 second")
    if rng.random() < 0.5:
        stream = stream.filter("k IS NOT NULL")
    stream = stream.map({name: f"`{name}`" for name in COLUMNS})
    first = stream.aggregate(by=["k"], over=window("3 seconds", "1 second"), n="count(*)", v="sum(v)", s="last(s)")
    first.output("first")
    second = first.filter("n > 0").aggregate(by=[], over=window("4 seconds"), m="sum(n)", v="sum(v)", k="first(k)")
    second.output("second")
    return d.validate()


@pytest.mark.parametrize("moves", [0, 3])
@few(5)
@given(seed=SEEDS)
def test_a_chain_gives_the_same_tuples_with_the_same_ids_wherever_it_runs(
    programs: Programs, spark: SparkSession, moves: int, seed: int
) -> None:
    rng = Random(seed)
    spec = chain(rng)
    table = random_table(rng, COLUMNS, random_times(rng, 60, 1_000_000, tardy=0.05))
    whole = run_story(tell(spec, {"a": table}), compiled(spec.to_yaml(), spark, 1))
    spread = run_anywhere(programs, spec, {"a": table}, rng.choice([2, 3, 4]), rng, moves)
    assert exactly(spread) == exactly(whole)


@pytest.mark.parametrize("kinds", [("move",), ("move", "kill")], ids=",".join)
@few(15)
@given(seed=SEEDS)
def test_protected_units_that_move_are_as_promised(programs: Programs, kinds: tuple[str, ...], seed: int) -> None:
    plan = drawn_plan(seed, Options(kinds=kinds, seconds=8.0))
    subject = Subject.of(yaml_of(plan.diagram), spec_of(plan.diagram), plan.cuts, programs, rows)
    assert Run(plan, subject, programs).play().faults == [], plan


def test_two_nodes_may_take_over_units_from_each_other_at_once(programs: Programs) -> None:
    """Each waits for the other's state; neither may wait for the other's order to end."""
    table = random_table(Random(3), COLUMNS, random_times(Random(3), 40, 1_000_000))
    with Simulated(programs, 2) as town:
        for name, node in (("left", "node1"), ("right", "node2")):
            d = Diagram(name)
            d.input("a", DDL, slack="1 second").filter("k IS NOT NULL", name="some").output("out")
            town.deploy(d.to_yaml(), place={"some": node})
        host = town.cluster.coordinator
        swaps = [host.do(lambda c, a=args: c.move(*a)) for args in (("left/u1", "node2"), ("right/u1", "node1"))]
        town.until(lambda: not any(task.is_alive() for task in swaps))
        assert [task.exception(0) for task in swaps] == [None, None]
        assert [town.unit("u1", name).node for name in ("left", "right")] == ["node2", "node1"]
        reads = {name: town.run(name, {"a": batches_of(table)}, ["some"])["some"] for name in ("left", "right")}
        town.finish(reads)
        assert len(reads["left"].table) == len(reads["right"].table) == table.num_rows - table["k"].null_count


@pytest.mark.parametrize("delivered", [True, False])
def test_a_move_whose_last_word_is_lost_still_leaves_one_unit(
    programs: Programs, spark: SparkSession, delivered: bool
) -> None:
    spec = chain(Random(4))
    table = random_table(Random(4), COLUMNS, random_times(Random(4), 40, 1_000_000))
    whole = run_story(tell(spec, {"a": table}), compiled(spec.to_yaml(), spark, 1))
    with Simulated(programs, 2) as town:
        town.deploy(spec.to_yaml(), place={box.name: "node1" for box in spec.boxes})
        target = town.host("node2").node
        assert target is not None
        source = target.peers.at("grpc://node1:1")
        act, lost = source.act, []

        def deaf(name: str, *message: Any, **within: Any) -> Any:
            if name != "moved" or lost:
                return act(name, *message, **within)
            lost.append(act(name, *message, **within) if delivered else None)
            raise WireError("no answer came")

        source.act = deaf  # type: ignore[method-assign]
        town.move("u1", "node2")
        assert len(lost) == 1
        assert town.where("u1") == {"node2": "runs"}
        reads = town.run(spec.name, {"a": batches_of(table)}, [o.source for o in spec.outputs])
        town.finish(reads)
        assert exactly({o.name: reads[o.source].table for o in spec.outputs}) == exactly(
            {o.name: whole[o.name] for o in spec.outputs}
        )


# -- takeovers


def run_with_deaths(
    town: Simulated, spec: Spec, tables: dict[str, pa.Table], streams: list[str], deaths: list[tuple[float, str]]
) -> dict[str, Read]:
    """Publish everything; after so many seconds each, kill the node that runs a unit, and let it be taken over."""
    reads = town.run(spec.name, {name: batches_of(table) for name, table in tables.items()}, streams)
    for after_s, unit in deaths:
        town.live(after_s)
        before = town.unit(unit)
        town.kill(before.node)
        town.until(lambda unit=unit, before=before: town.unit(unit).incarnation > before.incarnation)
        town.host(before.node).start()
        town.settle()
    town.finish(reads)
    assert not any(read.gaps for read in reads.values())
    return reads


def poisoned() -> Spec:
    """Two stateful boxes in a row, where some tuples fail in a box before and behind the first."""
    d = Diagram("poisoned", errors="aside")
    stream = d.input("a", DDL, slack="1 second").filter("10 div k < 100 OR k IS NULL")
    first = stream.aggregate(by=["k"], over=window("3 seconds", "1 second"), n="count(*)", v="sum(v)", s="last(s)")
    first.output("first")
    first.map(n="6 div (n - 1)", v="v").aggregate(by=[], over=window("4 seconds"), m="sum(n)").output("second")
    return d.validate()


@pytest.mark.parametrize("approach", KEPT)
@few(5)
@given(seed=SEEDS)
def test_tuples_that_fail_go_aside_once_whatever_dies(
    programs: Programs, spark: SparkSession, approach: str, seed: int
) -> None:
    rng = Random(seed)
    spec = poisoned()
    table = random_table(rng, COLUMNS, random_times(rng, ROWS, 200_000, tardy=0.05))
    whole = run_story(tell(spec, {"a": table}), compiled(spec.to_yaml(), spark, 1))
    cuts = rng.choice([["aggregate_2"], ["aggregate_1", "aggregate_2"], []])
    pieces = cut(spec, cuts)
    aside = [p.errors for p in pieces if p.errors is not None]
    with Simulated(programs, 3, seed) as town:
        town.deploy(spec.to_yaml(), cut=tuple(cuts), ha=approach, guarantee=rng.choice(["no-loss", "precise"]))
        deaths = [(rng.uniform(0.1, 0.8), rng.choice(pieces).name) for _ in range(rng.randint(1, 2))]
        found = run_with_deaths(town, spec, {"a": table}, [*(o.source for o in spec.outputs), *aside], deaths)
    assert not any(read.jumps for read in found.values())
    outputs = {o.name: found[o.source].table for o in spec.outputs}
    assert exactly(outputs) == exactly({name: whole[name] for name in outputs})
    failed = pa.concat_tables([plain(found[stream].table) for stream in aside])
    assert bag(failed) == bag(plain(whole[ASIDE]))  # each on the stream of the unit that it failed in
    assert len(failed)


def counted() -> Spec:
    """Streams that meet, and windows behind them in a unit of their own."""
    d = Diagram("counted")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    both = a.union(b, name="both").map(n="n", name="slim")
    both.aggregate(by=[], over=window("4 seconds"), m="count(*)", name="sums").output("first")
    return d.validate()


@pytest.mark.parametrize("approach", KEPT)
@few(4)
@given(seed=SEEDS)
def test_the_last_reader_hears_of_what_may_have_come_again(programs: Programs, approach: str, seed: int) -> None:
    """The windows of a unit that reads what was repeated may count it twice: its ids jump as well, once."""
    rng = Random(seed)
    spec = counted()
    tables = {n: random_table(rng, COLUMNS, random_times(rng, ROWS // 2, 200_000)) for n in "ab"}
    place = {"a": "node1", "b": "node1", "both": "node2", "slim": "node3", "sums": "node3"}
    with Simulated(programs, 4, seed) as town:
        how = {"cut": ("slim",), "ha": approach, "guarantee": "no-loss", "backup": {"u1": "node4"}}
        town.deploy(spec.to_yaml(), place=place, **how)
        [found] = run_with_deaths(town, spec, tables, ["sums"], [(rng.uniform(0.2, 0.8), "u1")]).values()
    assert found.jumps == 1
    assert sum(found.column("m")) >= ROWS


@pytest.mark.parametrize("approach", KEPT)
@few(3)
@given(seed=SEEDS)
def test_nothing_is_lost_where_the_next_unit_dies_with_it(programs: Programs, approach: str, seed: int) -> None:
    rng = Random(seed)
    spec = counted()
    tables = {n: random_table(rng, COLUMNS, random_times(rng, ROWS // 2, 200_000)) for n in "ab"}
    place = {"a": "node1", "b": "node1", "both": "node2", "slim": "node2", "sums": "node2"}
    with Simulated(programs, 3, seed) as town:
        how = {"cut": ("slim", "sums"), "ha": approach, "guarantee": "no-loss", "interval": "300 ms"}
        town.deploy(spec.to_yaml(), place=place, **how)
        found = run_with_deaths(town, spec, tables, ["slim"], [(rng.uniform(0.2, 0.8), "u1")])
    wanted = Counter(n for table in tables.values() for n in table["n"].to_pylist())
    assert not wanted - Counter(found["slim"].column("n"))


# -- databases


def written(database: Embedded, *inputs: str) -> Spec:
    """Writes each tuple; a table without a key shows what comes twice, and a check refuses some."""
    database.run("CREATE TABLE t (k INT CHECK (k <> 1), row TEXT)")
    d = Diagram("written")
    streams = [d.input(name, "ts TIMESTAMP, k INT, row STRING", slack="1 second") for name in inputs]
    stream = streams[0].union(*streams[1:], name="both") if len(streams) > 1 else streams[0]
    kept = stream.sql_write("INSERT INTO t (k, row) VALUES (:k, :row)", database=database.url, name="kept")
    kept.output("first")
    kept.bad.output("bad")
    return d.validate()


def numbered(rng: Random, name: str, count: int) -> pa.Table:
    moments = times(random_times(rng, count, 200_000))
    k = pa.array([i % 5 for i in range(count)], pa.int32())
    return pa.table({"ts": moments, "k": k, "row": [f"{name}{i}" for i in range(count)]})


@pytest.fixture
def database(tmp_path: Any) -> Embedded:
    return Embedded(tmp_path / "a.db")


@pytest.mark.parametrize(("approach", "guarantee"), list(zip(KEPT, ("no-loss", "precise", "precise"), strict=True)))
def test_what_is_written_to_a_database_is_written_once(
    programs: Programs, approach: str, guarantee: str, database: Embedded
) -> None:
    """Primary and active standby both write, backups replay: the ledger in the database tells what is done."""
    rng = Random(approach + guarantee)
    spec = written(database, "a")
    table = numbered(rng, "a", ROWS)
    with Simulated(programs, 3) as town:
        town.deploy(spec.to_yaml(), ha=approach, guarantee=guarantee)
        deaths = [(rng.uniform(0.2, 0.6), "u1"), (rng.uniform(0.1, 0.4), "u1")]
        found = run_with_deaths(town, spec, {"a": table}, ["kept", "kept.bad"], deaths)
    kept = [r["row"] for r in table.to_pylist() if r["k"] != 1]
    assert sorted(row for (row,) in database.run("SELECT row FROM t")) == sorted(kept)
    assert found["kept"].column("row") == kept
    assert found["kept.bad"].column("row") == [r["row"] for r in table.to_pylist() if r["k"] == 1]
    assert len(database.run("SELECT writer FROM borealis_writes")) == 1


@pytest.mark.parametrize("approach", KEPT)
def test_behind_streams_that_meet_nothing_is_missing_from_a_database(
    programs: Programs, approach: str, database: Embedded
) -> None:
    """Their order may be another the next time, so what is not known to be written is written again."""
    rng = Random(approach)
    spec = written(database, "a", "b")
    tables = {name: numbered(rng, name, ROWS // 2) for name in "ab"}
    with Simulated(programs, 3) as town:
        town.deploy(spec.to_yaml(), ha=approach, guarantee="no-loss")
        run_with_deaths(town, spec, tables, ["kept"], [(rng.uniform(0.2, 0.8), "u1")])
    wanted = {r["row"] for table in tables.values() for r in table.to_pylist() if r["k"] != 1}
    assert {row for (row,) in database.run("SELECT row FROM t")} == wanted


def test_a_unit_that_forgets_writes_under_another_name(programs: Programs, database: Embedded) -> None:
    spec = written(database, "a")
    with Simulated(programs, 3) as town:
        town.deploy(spec.to_yaml(), ha="amnesia")
        run_with_deaths(town, spec, {"a": numbered(Random(1), "a", ROWS)}, ["kept"], [(0.8, "u1")])
    found = {row for (row,) in database.run("SELECT row FROM t")}
    assert len(found) > 0.2 * ROWS
    assert len(database.run("SELECT writer FROM borealis_writes")) == 2  # it began from nothing, under another name


# -- what is kept


@pytest.mark.parametrize("approach", [*KEPT, "amnesia"])
def test_little_is_kept_while_all_is_well_and_when_a_unit_is_alone(programs: Programs, approach: str) -> None:
    inputs = {n: [rows(n, at, at + 40) for at in range(0, 3200, 40)] for n in ("left", "right")}
    with Simulated(programs, 2) as town:
        place = dict.fromkeys(("left", "right", "both", "counted", "totals"), "node1")
        town.deploy(yaml_of("counted"), cut=("counted",), place=place, ha=approach)
        reads = {name: town.read(f"counted/{name}") for name in ("counted", "totals")}
        for name, batches in inputs.items():
            town.publish(f"counted/{name}", batches, 0.1)
        town.live(3.0)
        for alone in (False, True):
            if alone:
                town.kill("node2")
                town.live(1.0)
            for _ in range(2):
                town.live(0.5)
                node = town.host("node1").node
                assert node is not None
                assert all(len(guard.policy._steps) < 60 for guard in node.guards.primaries.values())
                queues = [queue.status() for queue in node.queues.values() if queue.stream != "counted/totals"]
                assert all(one.next_id - min(one.readers.values()) < 1600 for one in queues if one.readers)
                assert not (alone and any(one.held for one in queues))
        town.finish(reads)


def test_refused_moves_say_why(programs: Programs) -> None:
    with Simulated(programs, 3) as town:
        town.deploy(counted().to_yaml(), ha="passive", place={"both": "node1"}, backup={"u1": "node2"})
        for node, why in (("node1", "runs on 'node1' already"), ("node2", "the backup of unit 'u1' is on 'node2'")):
            with pytest.raises(BorealisError, match=why):
                town.move("u1", node)
