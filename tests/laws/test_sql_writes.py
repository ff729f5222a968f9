"""Exactly once, as a law: whatever befalls workers and runs, each row is in the table once, and refused ones are told.

A run that is killed between the database's commit and its own is a run that is dropped before `commit`; the next one
starts from the same directory, and cuts its trains elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from harness import Luck, Pieces, compiled, examples, random_places, run_story, tell, times
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from borealis.compile.unit import Compiled
from borealis.connectors.sinks import as_sink
from borealis.diagram.model import Diagram
from borealis.diagram.spec import Spec
from borealis.kernels.kinds import standing
from borealis.spark.plan import level_schema
from borealis.spark.worker import read_train
from borealis.trains.intake import Admission
from borealis.trains.unit import UnitOptions, UnitRun
from postgres import Embedded, Server

pytestmark = pytest.mark.spark
SEEDS = st.integers(0, 2**32 - 1)
TABLE = "CREATE TABLE t (n BIGINT CHECK (n <> 3), s TEXT)"


@pytest.fixture
def database(empty_database: Embedded | Server) -> Embedded | Server:
    return empty_database


def empty(database: Embedded | Server) -> None:
    names = ("t", "borealis_writes", "borealis_refused")
    database.run(*(f"DROP TABLE IF EXISTS {name}" for name in names), TABLE)


def diagram(database: Embedded | Server, inputs: str = "a") -> Diagram:
    d = Diagram("laws")
    first, *others = (d.input(name, "ts TIMESTAMP, n BIGINT, s STRING", slack="1 second") for name in inputs)
    both = first.union(*others) if others else first
    kept = both.sql_write("INSERT INTO t (n, s) VALUES (:n, :s)", database=database.url)
    kept.output("kept")
    kept.bad.output("bad")
    return d


def rows(rng: Random, count: int, name: str = "row") -> pa.Table:
    moments = sorted(rng.randrange(20_000_000) for _ in range(count))
    numbers = [rng.choice([1, 2, 3, 4, None]) for _ in range(count)]
    return pa.table(
        {"ts": times(moments), "n": pa.array(numbers, pa.int64()), "s": [f"{name} {i}" for i in range(count)]}
    )


def check(database: Embedded | Server, table: pa.Table, kept: pa.Table, bad: pa.Table) -> None:
    taken = [r for r in table.to_pylist() if r["n"] != 3]
    assert sorted(database.run("SELECT s FROM t")) == sorted((r["s"],) for r in taken)
    assert [r["s"] for r in kept.to_pylist()] == [r["s"] for r in taken]
    assert [r["s"] for r in bad.to_pylist()] == [r["s"] for r in table.to_pylist() if r["n"] == 3]
    assert all("check" in why.lower() for why in bad["reason"].to_pylist())


def test_workers_that_fail_and_tasks_that_run_twice(spark: SparkSession, database: Embedded | Server) -> None:
    d = diagram(database)

    @examples(6)
    @given(SEEDS, st.integers(0, 40))
    def law(seed: int, count: int) -> None:
        rng = Random(seed)
        empty(database)
        story = tell(d.validate(), {"a": rows(rng, count)})
        luck = Luck(Random(seed), workers=2, forget=0.2, retry=0.3, abandon=0.3)
        unit = compiled(story.spec.to_yaml(), spark, rng.choice([1, 2]))
        out = run_story(story, unit, random_places(rng, len(story.events)), luck)
        check(database, story.tables["a"], out["kept"], out["bad"])

    law()


class AsTheyCome(Pieces):
    """A live source: pieces come when they come, and two of these are merged in another order each time."""

    def __init__(self, table: pa.Table, rng: Random) -> None:
        super().__init__([table.slice(at, 2) for at in range(0, len(table), 2)], ordered=False)
        self.rng = rng

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        for batch in super().batches(schema, skip, most_rows):
            time.sleep(self.rng.random() / 100)
            yield batch


def live(home: Path, spec: Spec, made: Compiled, sources: dict[str, Pieces], rng: Random) -> bool:
    """One life of a run; whether it came to the end, or died between the database's commit and its own."""
    schema = to_arrow_schema(level_schema(made, 0), timezone="UTC")
    sinks = {name: as_sink(home / f"{name}.arrow", home / f"{name}.journal") for name in ("kept", "bad")}
    options = UnitOptions(Admission(rows_most=rng.choice([1, 3, 10])), home / "u", headers=True)
    run = UnitRun("u1", spec, made, sources, sinks, options)
    complete = False
    try:
        run.start()
        while not run.done.is_set():
            number = run.next_train(run.committed(), 5.0)
            assert number is not None
            result = pa.Table.from_batches(list(read_train(run.plan(number), 0, schema)))
            if rng.random() < 0.25:
                return False
            run.commit(result)
        complete = True
        return True
    finally:
        run.close(complete)


def outputs(home: Path) -> dict[str, pa.Table]:
    found = {}
    for name in ("kept", "bad"):
        with pa.ipc.open_file(home / f"{name}.arrow") as file:
            found[name] = file.read_all()
    return found


def test_runs_that_die_between_the_two_commits(
    spark: SparkSession, database: Embedded | Server, tmp_path: Path
) -> None:
    spec = diagram(database).validate()
    made = compiled(spec.to_yaml(), spark, 1)

    @examples(6)
    @given(SEEDS, st.integers(1, 40))
    def law(seed: int, count: int) -> None:
        rng = Random(seed)
        empty(database)
        home = Path(tempfile.mkdtemp(dir=tmp_path))
        table = rows(rng, count)
        while not live(home, spec, made, {"a": Pieces([table])}, rng):
            continue
        found = outputs(home)
        check(database, table, found["kept"], found["bad"])

    law()


def corrected(rng: Random, count: int) -> pa.Table:
    """Rows by the key `n`, some of which replace or delete earlier ones; of texts, the one that is refused."""
    alive, found = list[int](), list[tuple[str, int, int, str]]()
    for at in range(count):
        kind = rng.choice(("+I", "-D", "+U")) if alive else "+I"
        n = at if kind == "+I" else rng.choice(alive)
        alive = [*alive, n] if kind == "+I" else [one for one in alive if one != n or kind == "+U"]
        found.append((kind, at * 1_000_000, n, rng.choice(("bad", f"row {at}"))))
    kinds, moments, numbers, texts = (list(column) for column in zip(*found, strict=True))
    return pa.table({"ts": times(moments), "n": pa.array(numbers, pa.int64()), "s": texts, "_kind": kinds})


def test_corrections_by_runs_that_die_between_the_two_commits(
    spark: SparkSession, database: Embedded | Server, tmp_path: Path
) -> None:
    d = Diagram("laws")
    rows = d.input("a", "ts TIMESTAMP, n BIGINT, s STRING", key="n", history="1 hour")
    kept = rows.map(n="n", s="s").sql_write(table="t", key="n", database=database.url)
    kept.output("kept")
    kept.bad.output("bad")
    spec = d.validate()
    made = compiled(spec.to_yaml(), spark, 1)

    @examples(6)
    @given(SEEDS, st.integers(1, 25))
    def law(seed: int, count: int) -> None:
        rng, home = Random(seed), Path(tempfile.mkdtemp(dir=tmp_path))
        empty(database)
        database.run("DROP TABLE t", "CREATE TABLE t (n BIGINT PRIMARY KEY, s TEXT CHECK (s <> 'bad'))")
        table = corrected(rng, count)
        while not live(home, spec, made, {"a": Pieces([table])}, rng):
            continue
        stands: dict[int, str] = {}
        for row in table.to_pylist():
            stands.pop(row["n"], None)
            stands |= {} if row["_kind"] == "-D" else {row["n"]: row["s"]}
        good = sorted((n, s) for n, s in stands.items() if s != "bad")
        assert sorted(database.run("SELECT n, s FROM t")) == good
        found = {name: standing(one).to_pylist() for name, one in outputs(home).items()}
        assert sorted((row["n"], row["s"]) for row in found["kept"]) == good
        assert sorted(row["n"] for row in found["bad"]) == sorted(n for n, s in stands.items() if s == "bad")

    law()


def test_live_inputs_that_come_in_another_order_after_a_death(
    spark: SparkSession, database: Embedded | Server, tmp_path: Path
) -> None:
    """The train that had begun is kept with its rows: it is run again as it was."""
    spec = diagram(database, "ab").validate()
    made = compiled(spec.to_yaml(), spark, 1)

    @examples(4)
    @given(SEEDS, st.integers(1, 20))
    def law(seed: int, count: int) -> None:
        rng = Random(seed)
        empty(database)
        home = Path(tempfile.mkdtemp(dir=tmp_path))
        tables = {name: rows(rng, count, name) for name in "ab"}
        while not live(home, spec, made, {n: AsTheyCome(t, rng) for n, t in tables.items()}, rng):
            continue
        found = outputs(home)
        wanted = sorted(r["s"] for t in tables.values() for r in t.to_pylist() if r["n"] != 3)
        assert sorted(s for (s,) in database.run("SELECT s FROM t")) == wanted
        assert sorted(found["kept"]["s"].to_pylist()) == wanted
        assert len(found["bad"]) == 2 * count - len(wanted)

    law()
