"""SQL boxes in whole runs on Spark: what comes out, what is in the tables, and databases that come and go."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from borealis import Diagram, batch, run, window
from borealis.errors import DiagramError, TrainError
from borealis.trains.intake import Admission
from borealis.trains.progress import Progress
from postgres import Embedded, Server

pytestmark = pytest.mark.spark
CALL = "ts TIMESTAMP, customer INT, seconds INT"
INSERT = "INSERT INTO bills (name, seconds) VALUES (:name, :seconds)"


@pytest.fixture
def database(empty_database: Embedded | Server) -> Embedded | Server:
    empty_database.run(
        "CREATE TABLE customers (id INT, name TEXT)", "INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob')"
    )
    empty_database.run("CREATE TABLE bills (name TEXT, seconds INT CHECK (seconds >= 0))")
    return empty_database


def calls(n: int) -> list[tuple[str, int, int]]:
    return [(f"2024-01-01 12:{i // 60:02}:{i % 60:02}", i % 4, -1 if i % 10 == 9 else i) for i in range(n)]


def bills(database: Embedded | Server) -> Diagram:
    d = Diagram("bills")
    named = d.input("calls", CALL).sql_read(
        "SELECT name FROM customers WHERE id = :customer", gives="name STRING", database=database.url, stable=True
    )
    billed = named.sql_write(INSERT, database=database.url)
    billed.output("billed")
    billed.bad.output("refused")
    return d


@pytest.mark.parametrize("buckets", [1, 2])
def test_read_then_write(spark: SparkSession, database: Embedded | Server, buckets: int) -> None:
    result = run(bills(database), {"calls": calls(60)}, spark=spark, buckets=buckets)
    mine = [(("Ada", "Bob")[c - 1], s) for _, c, s in calls(60) if c in (1, 2)]
    good = [(name, s) for name, s in mine if s >= 0]
    assert [(r["name"], r["seconds"]) for r in result.rows("billed")] == good
    assert [r["seconds"] for r in result.rows("refused")] == [-1] * (len(mine) - len(good))
    assert result.to_json()["rows_out"] == {"billed": len(good), "refused": len(mine) - len(good)}  # counted
    order = "rowid" if isinstance(database, Embedded) else "ctid"
    assert database.run(f"SELECT name, seconds FROM bills ORDER BY {order}") == good


def test_the_batch_form_reads_and_does_not_write(spark: SparkSession, database: Embedded | Server) -> None:
    frame = spark.createDataFrame(calls(20), "ts STRING, customer INT, seconds INT").selectExpr(
        "CAST(ts AS TIMESTAMP) ts", "customer", "seconds"
    )
    found = batch(bills(database), spark, {"calls": frame})
    names = sorted((r.name, r.seconds) for r in found["billed"].collect())
    assert names == sorted((("Ada", "Bob")[c - 1], s) for _, c, s in calls(20) if c in (1, 2))
    assert found["refused"].count() == 0
    assert found["refused"].columns == ["ts", "customer", "seconds", "name", "reason"]
    assert database.run("SELECT count(*) FROM bills") == [(0,)]


QUOTES = "ts TIMESTAMP, id INT, customer INT, price DOUBLE"


def prices(database: Embedded | Server) -> Diagram:
    d = Diagram("prices")
    quotes = d.input("quotes", QUOTES, key="id", history="1 hour")
    named = quotes.sql_read(
        "SELECT name FROM customers WHERE id = :customer", gives="name STRING", database=database.url, missing="null"
    )
    over = named.aggregate(by="name", over=window("10 seconds"), n="count(*)", highest="max(price)")
    kept = over.sql_write(table="highest", key=["name", "window_start"], database=database.url, name="keep")
    kept.output("kept")
    kept.bad.output("refused")
    return d


def test_corrections_reach_a_table_that_is_kept_by_its_key(spark: SparkSession, database: Embedded | Server) -> None:
    most, buckets = (4, 2) if isinstance(database, Embedded) else (1000, 1)
    columns = "name TEXT, window_start TEXT, window_end TEXT, n BIGINT, highest FLOAT8 CHECK (highest < 1000)"
    if not isinstance(database, Embedded):
        columns = columns.replace("start TEXT", "start TIMESTAMPTZ").replace("end TEXT", "end TIMESTAMPTZ")
    database.run("DROP TABLE IF EXISTS highest")
    database.run(f"CREATE TABLE highest ({columns}, PRIMARY KEY (name, window_start))")

    def quote(second: int, id: int, customer: int, price: float, kind: str = "+I") -> dict[str, object]:
        at = f"2024-01-01T12:00:{second:02}Z"
        return {"_kind": kind, "ts": at, "id": id, "customer": customer, "price": price}

    rows = [
        quote(1, 1, 1, 10.0),
        quote(2, 2, 1, 2000.0),
        quote(3, 3, 2, 5.0),
        quote(4, 4, 9, 7.0),
        quote(15, 5, 2, 8.0),
    ]
    rows += [quote(2, 2, 1, 20.0, "+U"), quote(3, 3, 1, 30.0, "+U"), {"_kind": "-D", "id": 1}, quote(40, 6, 2, 9.0)]
    admission = Admission(rows_most=most)
    result = run(prices(database), {"quotes": rows}, spark=spark, admission=admission, buckets=buckets)
    found = database.run("SELECT name, n, highest FROM highest ORDER BY name, window_start")
    assert found == [("Ada", 2, 30.0), ("Bob", 1, 8.0), ("Bob", 1, 9.0)]
    stands = result.table("kept").select(["name", "n", "highest"]).to_pylist()
    assert sorted(tuple(row.values()) for row in stands) == found
    assert len(result.rows("kept")) > len(found), "nothing was corrected"
    bad = [(row["_kind"], row["name"], row["highest"]) for row in result.rows("refused")]
    assert sorted(bad, key=str) == [("+I", "Ada", 2000.0), ("+I", None, 7.0), ("-D", "Ada", 2000.0)]
    assert [row["name"] for row in result.table("refused").to_pylist()] == [None]
    again = batch(prices(database), spark, {"quotes": rows})["kept"].toArrow().select(["name", "n", "highest"])
    assert sorted(map(str, again.to_pylist())) == sorted(map(str, [*stands, {"name": None, "n": 1, "highest": 7.0}]))


class Gate:
    """A source whose second half waits for a sign."""

    finite_and_ordered = True

    def __init__(self, rows: list[tuple[str, int, int]]) -> None:
        table = pa.table(
            {n: list(v) for n, v in zip(("ts", "customer", "seconds"), zip(*rows, strict=True), strict=True)}
        )
        times = pa.array([f"{t}Z" for t in table["ts"].to_pylist()]).cast(pa.timestamp("us", "UTC"))
        self.table, self.open = table.set_column(0, "ts", times), threading.Event()

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        half = len(self.table) // 2
        assert skip == 0
        yield from self.table.slice(0, half).cast(schema).combine_chunks().to_batches()
        assert self.open.wait(120)
        yield from self.table.slice(half).cast(schema).combine_chunks().to_batches()


def test_a_database_that_stops_and_starts_again_in_mid_run(spark: SparkSession, postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE bills (name TEXT, seconds INT)")
    d = Diagram("bills")
    named = d.input("calls", CALL).map({"name": "CAST(customer AS STRING)"}, seconds="seconds")
    named.sql_write(INSERT, database=postgres.url).output("out")
    gate, state, notes = Gate(calls(100)), ["up"], []

    def watch(units: list[Progress]) -> None:
        if state[0] == "up" and units[0].trains:
            postgres.stop()
            state[0] = "down"
            gate.open.set()
        elif state[0] == "down" and (said := units[0].notes()):
            notes.extend(said)
            postgres.start()
            state[0] = "up again"

    result = run(d, {"calls": gate}, spark=spark, watch=watch)
    assert state == ["up again"]
    assert "box 'sql_write_1': database postgresql+psycopg://postgres@127.0.0.1" in notes[0]
    assert "cannot be used" in notes[0]
    assert result.units[0].notes() == []
    assert len(result.rows("out")) == 100
    assert sorted(s for (s,) in postgres.run("SELECT seconds FROM bills")) == sorted(s for _, _, s in calls(100))


def test_a_database_that_never_comes_ends_the_run_with_a_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    d = Diagram("bills")
    url = f"sqlite:///{tmp_path}/no/such/a.db"
    d.input("calls", CALL).sql_write("DELETE FROM t", database=url, give_up="300 ms", name="bill").output("out")
    with pytest.raises(
        TrainError, match=r"box 'bill': database sqlite:///.* could not be used for 300 milliseconds"
    ) as e:
        run(d, {"calls": calls(4)}, spark=spark)
    assert "nothing is lost" in e.value.hint


def test_parameters_must_be_plain_and_answers_too(spark: SparkSession) -> None:
    d = Diagram("bills")
    a = d.input("calls", "ts TIMESTAMP, tags ARRAY<STRING>")
    a.sql_write("INSERT INTO t (a) VALUES (:tags)").output("out")
    with pytest.raises(DiagramError, match=r"parameter ':tags' is ARRAY<STRING>, and a database takes plain values"):
        run(d, {"calls": []}, spark=spark)
    d = Diagram("bills")
    d.input("calls", CALL).sql_read("SELECT 1", gives="x MAP<STRING, INT>").output("out")
    with pytest.raises(DiagramError, match=r"'x' is MAP<STRING,INT>, which no database gives"):
        run(d, {"calls": []}, spark=spark)
