"""Nodes die in the midst of a stream; readers see what the guarantee says. Real nodes, queues, wire and guards."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from chance import COLUMNS, DDL, random_table, random_times
from guarded import Approach, Guarded, publish_slowly
from harness import ASIDE, bag, compiled, differences, exactly, examples, run_story, tell, times, truth, without_header
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nodes import table_of
from pyspark.sql import SparkSession

from borealis.diagram.durations import window
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Spec
from borealis.streams.section import Section, joined
from postgres import Embedded

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


def poisoned() -> Spec:
    """The same where some tuples fail in a box, before and behind the windows."""
    d = Diagram("poisoned", errors="aside")
    stream = d.input("a", DDL, slack="1 second").filter("10 div k < 100 OR k IS NULL")
    first = stream.aggregate(by=["k"], over=window("3 seconds", "1 second"), n="count(*)", v="sum(v)", s="last(s)")
    first.output("first")
    first.map(n="6 div (n - 1)", v="v").aggregate(by=[], over=window("4 seconds"), m="sum(n)").output("second")
    return d.validate()


def union() -> Spec:
    d = Diagram("both")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    a.union(b).map(k="k", n="n", s="s").output("first")
    return d.validate()


def join() -> Spec:
    d = Diagram("pairs")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    a.join(b, on="left.k = right.k", within="1 second").output("first")
    return d.validate()


def batches_of(table: pa.Table, size: int = 3) -> list[pa.RecordBatch]:
    return [b for at in range(0, len(table), size) for b in table.slice(at, size).combine_chunks().to_batches()]


def few(n: int) -> settings:
    """So many examples; a failure here takes long to shrink, and the seed says all."""
    return settings(examples(n), phases=(Phase.explicit, Phase.generate))


def check_rows(spec: Spec, tables: dict[str, pa.Table], found: dict[str, list[Section]], spark: SparkSession) -> None:
    """What the batch oracle says, in whatever order."""
    for name, wanted in truth(tell(spec, tables), spark).items():
        mine = without_header(table_of(joined(found[name])))
        assert not differences(mine, wanted), name


def check_nothing_missing(tables: dict[str, pa.Table], parts: list[Section]) -> None:
    """Every row of the inputs has come, some perhaps more than once."""
    rows = pa.concat_tables([pa.table(part.rows) for part in parts]).select(["k", "n", "s"])
    missing = Counter(map(repr, bag(pa.concat_tables(list(tables.values())).select(["k", "n", "s"]))))
    missing.subtract(map(repr, bag(rows)))
    assert not +missing


def run_with_deaths(
    cluster: Guarded, spec: Spec, tables: dict[str, pa.Table], deaths: list[tuple[float, str]], *, gated: bool = False
) -> tuple[dict[str, list[Section]], int]:
    """Publish everything; when a share of the inputs is there, kill the node that runs a unit then.

    Gated: the rest is published when the last takeover is done, so that there is something left for who forgets.
    """
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

    aside = [p.errors for p in cluster.pieces if p.errors is not None and spec.errors == "aside"]
    readers = [work(read, o.name, f"{spec.name}/{o.source}") for o in spec.outputs]
    readers += [work(read, errors, f"{spec.name}/{errors}") for errors in aside]
    writers, over = [], threading.Event()
    for name, table in tables.items():
        batches = batches_of(table)
        gate = (int(deaths[-1][0] * len(batches)) + 2, over) if gated else None
        writers.append(work(publish_slowly, cluster, f"{spec.name}/{name}", batches, table.schema, gate))
    entries = {n: cluster.nodes[0].entry(f"{spec.name}/{n}") for n in tables}
    total = sum(len(t) for t in tables.values())
    for share, unit in deaths:
        cluster.wait_for(
            lambda share=share: sum(e.queue.next_id + e.late.next_id for e in entries.values()) >= share * total,
            "no progress",
        )
        before = len(cluster.takeovers(unit))
        home, backup = cluster.homes(unit)
        if backup is None:
            backup = cluster.rejoin_somewhere(unit)
            cluster.wait_for(lambda unit=unit, home=home: cluster.is_protected(unit, home), "never protected")
        cluster.kill(home)
        cluster.wait_for(lambda unit=unit, b=backup: len(cluster.takeovers(unit, b)) > 0, f"no takeover after {before}")
    over.set()
    for thread in [*writers, *readers]:
        thread.join(30)
        assert not thread.is_alive(), cluster.failures()
    assert not errors, errors[0]
    return {name: parts for name, (parts, _) in found.items()}, sum(j for _, j in found.values())


@pytest.mark.parametrize("approach", KEPT)
@few(3)
@given(seed=SEEDS)
def test_a_chain_whose_nodes_die_gives_the_same_tuples_with_the_same_ids(
    spark: SparkSession, approach: Approach, seed: int
) -> None:
    rng = Random(seed)
    spec = poisoned()
    table = random_table(rng, COLUMNS, random_times(rng, ROWS, 200_000, tardy=0.05))
    whole = run_story(tell(spec, {"a": table}), compiled(spec.to_yaml(), spark, 1))
    with Guarded(spark, 4) as cluster:
        cuts = rng.choice([["aggregate_2"], ["aggregate_1", "aggregate_2"], []])
        pieces = cluster.protect(spec, cuts, rng, approach, rng.choice(["no-loss", "precise"]))
        deaths = [(rng.uniform(0.2, 0.8), rng.choice(pieces).name)]
        found, jumps = run_with_deaths(cluster, spec, {"a": table}, deaths)
    assert jumps == 0
    outputs = {o.name: table_of(joined(found.pop(o.name))) for o in spec.outputs}
    assert exactly(outputs) == exactly({n: t for n, t in whole.items() if n in outputs})
    failed = pa.concat_tables([without_header(table_of(joined(parts))) for parts in found.values() if parts])
    assert bag(failed) == bag(without_header(whole[ASIDE]))  # each on the stream of the unit that it failed in
    assert len(failed)


@pytest.mark.parametrize("approach", KEPT)
@few(3)
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


@pytest.mark.parametrize("approach", KEPT)
@pytest.mark.parametrize("make", [chain, union, join])
@few(2)
@given(seed=SEEDS)
def test_the_backup_of_the_backup_goes_on_as_well(
    spark: SparkSession, make: Callable[[], Spec], approach: Approach, seed: int
) -> None:
    rng = Random(seed)
    spec = make()
    tables = {i.name: random_table(rng, COLUMNS, random_times(rng, ROWS, 200_000)) for i in spec.inputs}
    with Guarded(spark, 5) as cluster:
        cluster.protect(spec, [], rng, approach, "precise")
        found, jumps = run_with_deaths(cluster, spec, tables, [(0.2, "u1"), (0.4, "u1"), (0.6, "u1")])
    assert jumps == 0
    check_rows(spec, tables, found, spark)


@pytest.mark.parametrize("approach", KEPT)
@few(2)
@given(seed=SEEDS)
def test_streams_that_meet_lose_nothing_under_no_loss(spark: SparkSession, approach: Approach, seed: int) -> None:
    rng = Random(seed)
    spec = union()
    tables = {n: random_table(rng, COLUMNS, random_times(rng, ROWS // 2, 200_000)) for n in "ab"}
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, [], rng, approach, "no-loss")
        found, jumps = run_with_deaths(cluster, spec, tables, [(rng.uniform(0.2, 0.8), "u1")])
    assert jumps <= 1
    check_nothing_missing(tables, found["first"])


def counted() -> Spec:
    """Streams that meet, and windows behind them in a unit of their own."""
    d = Diagram("counted")
    a, b = (d.input(name, DDL, slack="1 second") for name in "ab")
    both = a.union(b, name="both").map(n="n", name="slim")
    both.aggregate(by=[], over=window("4 seconds"), m="count(*)", name="sums").output("first")
    return d.validate()


@pytest.mark.parametrize("approach", KEPT)
@few(2)
@given(seed=SEEDS)
def test_the_last_reader_hears_of_what_may_have_come_again(spark: SparkSession, approach: Approach, seed: int) -> None:
    """The windows of a unit that reads what was repeated may count it twice: its ids jump as well, once."""
    rng = Random(seed)
    spec = counted()
    tables = {n: random_table(rng, COLUMNS, random_times(rng, ROWS // 2, 200_000)) for n in "ab"}
    with Guarded(spark, 4) as cluster:
        cluster.protect(spec, ["slim", "sums"], rng, approach, "no-loss")
        found, jumps = run_with_deaths(cluster, spec, tables, [(rng.uniform(0.2, 0.6), "u1")])
    assert jumps == 1
    counts = [m for part in found["first"] for m in part.rows["m"].to_pylist()]
    assert sum(counts) >= ROWS


class OneNode(Random):
    """Has all units on the first node that may die."""

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        return list(population)[:k]


@pytest.mark.parametrize("approach", ["passive", "upstream-backup"])
@few(3)
@given(seed=SEEDS)
def test_nothing_is_lost_where_the_next_unit_dies_with_it(spark: SparkSession, approach: Approach, seed: int) -> None:
    rng = OneNode(seed)
    spec = union()
    tables = {n: random_table(rng, COLUMNS, random_times(rng, ROWS // 2, 200_000)) for n in "ab"}
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, ["map_1"], rng, approach, "no-loss", interval_ms=300)
        found, _ = run_with_deaths(cluster, spec, tables, [(rng.uniform(0.3, 0.8), "u1")])
    check_nothing_missing(tables, found["first"])


@few(2)
@given(seed=SEEDS)
def test_amnesia_goes_on_at_the_present(spark: SparkSession, seed: int) -> None:
    rng = Random(seed)
    d = Diagram("gap")
    d.input("a", DDL, slack="1 second").filter("true").output("out")
    spec = d.validate()
    tables = {"a": random_table(rng, COLUMNS, random_times(rng, ROWS, 200_000))}
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, [], rng, "amnesia", "gap")
        found, jumps = run_with_deaths(cluster, spec, tables, [(0.5, "u1")])
    assert jumps == 1
    rows = Counter(repr(r) for part in found["out"] for r in bag(pa.table(part.rows)))
    assert not rows - Counter(map(repr, bag(tables["a"])))
    assert found["out"][-1].ended


@pytest.mark.parametrize("approach", ["amnesia", *KEPT])
@pytest.mark.parametrize("make", [chain, union])
def test_a_backup_that_dies_disturbs_nobody(spark: SparkSession, make: Callable[[], Spec], approach: Approach) -> None:
    rng = Random(7)
    spec = make()
    tables = {i.name: random_table(rng, COLUMNS, random_times(rng, ROWS, 200_000)) for i in spec.inputs}
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, [], rng, approach, "gap" if approach == "amnesia" else "precise")
        cluster.kill(cluster.homes("u1")[1])
        found, jumps = run_with_deaths(cluster, spec, tables, [])
    assert jumps == 0
    check_rows(spec, tables, found, spark)


def written(database: Embedded, *inputs: str) -> Spec:
    """Writes each tuple; a table without a key shows what comes twice, and a check refuses some."""
    database.run("CREATE TABLE t (k INT CHECK (k <> 1), row TEXT)")
    d = Diagram("written")
    streams = [d.input(name, "ts TIMESTAMP, k INT, row STRING", slack="1 second") for name in inputs]
    stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    kept = stream.sql_write("INSERT INTO t (k, row) VALUES (:k, :row)", database=database.url)
    kept.output("first")
    kept.bad.output("bad")
    return d.validate()


def numbered(rng: Random, name: str, rows: int) -> pa.Table:
    moments = times(random_times(rng, rows, 200_000))
    k = pa.array([i % 5 for i in range(rows)], pa.int32())
    return pa.table({"ts": moments, "k": k, "row": [f"{name}{i}" for i in range(rows)]})


@pytest.mark.parametrize("approach", KEPT)
@few(2)
@given(seed=SEEDS)
def test_what_is_written_to_a_database_is_written_once(
    spark: SparkSession, approach: Approach, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Primary and active standby both write, backups replay: the ledger in the database tells what is done."""
    rng, database = Random(seed), Embedded(tmp_path_factory.mktemp("written") / "a.db")
    spec = written(database, "a")
    table = numbered(rng, "a", ROWS)
    with Guarded(spark, 4) as cluster:
        cluster.protect(spec, [], rng, approach, rng.choice(["no-loss", "precise"]))
        found, jumps = run_with_deaths(cluster, spec, {"a": table}, [(rng.uniform(0.2, 0.4), "u1"), (0.6, "u1")])
    assert jumps == 0
    kept = [r["row"] for r in table.to_pylist() if r["k"] != 1]
    assert sorted(row for (row,) in database.run("SELECT row FROM t")) == sorted(kept)
    assert [row for part in found["first"] for row in part.rows["row"].to_pylist()] == kept
    bad = [row for part in found["bad"] for row in part.rows["row"].to_pylist()]
    assert bad == [r["row"] for r in table.to_pylist() if r["k"] == 1]
    assert len(database.run("SELECT writer FROM borealis_writes")) == 1


@pytest.mark.parametrize("approach", KEPT)
@few(1)
@given(seed=SEEDS)
def test_behind_streams_that_meet_nothing_is_missing_from_a_database(
    spark: SparkSession, approach: Approach, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Their order may be another the next time, so what is not known to be written is written again."""
    rng, database = Random(seed), Embedded(tmp_path_factory.mktemp("written") / "a.db")
    spec = written(database, "a", "b")
    tables = {name: numbered(rng, name, ROWS // 2) for name in "ab"}
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, [], rng, approach, "precise")
        run_with_deaths(cluster, spec, tables, [(rng.uniform(0.2, 0.8), "u1")])
    wanted = {r["row"] for table in tables.values() for r in table.to_pylist() if r["k"] != 1}
    assert {row for (row,) in database.run("SELECT row FROM t")} == wanted


@few(1)
@given(seed=SEEDS)
def test_a_unit_that_forgets_writes_under_another_name(
    spark: SparkSession, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, database = Random(seed), Embedded(tmp_path_factory.mktemp("written") / "a.db")
    spec = written(database, "a")
    with Guarded(spark, 3) as cluster:
        cluster.protect(spec, [], rng, "amnesia", "gap")
        run_with_deaths(cluster, spec, {"a": numbered(rng, "a", ROWS)}, [(0.5, "u1")], gated=True)
    rows = [row for (row,) in database.run("SELECT row FROM t")]
    assert len(set(rows)) > 0.2 * ROWS
    assert len(database.run("SELECT writer FROM borealis_writes")) == 2  # it began anew, under another name
