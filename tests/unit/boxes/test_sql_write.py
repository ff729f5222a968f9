"""The SQL-write kernel against real databases: exactly once, in order, and what is refused comes with its reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sql_flows import NOWHERE, TRAIN, flow, slices

from borealis.clock import ManualClock
from borealis.databases import ledger
from borealis.databases.address import address
from borealis.databases.copying import Copying
from borealis.databases.database import Database
from borealis.databases.troubles import safe_message, verdict
from borealis.diagram.model import Diagram
from borealis.diagram.statements import check_database, parameters
from borealis.errors import DiagramError, GivenUpError, TrainError
from borealis.kernels.flow import Flow
from borealis.kernels.sql_write import REASON, SqlWriteKernel
from borealis.trains.notices import NoticeFile, Troubles
from postgres import Embedded, Server

INSERT = "INSERT INTO t (id, n) VALUES (:id, :n)"
GIVE_UP_US = 20_000_000


@pytest.fixture
def database(empty_database: Embedded | Server) -> Embedded | Server:
    empty_database.run("CREATE TABLE t (id BIGINT PRIMARY KEY, n BIGINT CHECK (n >= 0))")
    return empty_database


def kernel(url: str, statement: str = INSERT, life: str = "first", **how: Any) -> SqlWriteKernel:
    made = SqlWriteKernel("w", statement, Database("w", url, how.pop("give_up_us", GIVE_UP_US), **how))
    made.begin(TRAIN | {"writer_id": life}, 0, NOWHERE)
    return made


def rows(start: int, count: int, n: list[int] | None = None) -> Flow:
    ids = list(range(start, start + count))
    numbers = n or [i % 7 for i in ids]
    return flow({"id": pa.array(ids, pa.int64()), "n": pa.array(numbers, pa.int64())}, start)


def reasons(written: Flow) -> dict[int, str]:
    """Why rows were refused, by their ids."""
    told = zip(written.rows["id"].to_pylist(), written.rows[REASON].to_pylist(), strict=True)
    return {i: why for i, why in told if why is not None}


def ids(database: Embedded | Server) -> list[Any]:
    return [i for (i,) in database.run("SELECT id FROM t ORDER BY id")]


@pytest.mark.parametrize("n", [1, 5, 100])
def test_rows_are_written_once_however_often_a_train_runs(database: Embedded | Server, n: int) -> None:
    whole = rows(0, n)
    first, again = kernel(database.url), kernel(database.url)
    for one in (first, first, again):
        out, delta = one.step(whole)
        assert out.rows.drop_columns([REASON]).equals(whole.rows)
        assert (reasons(out), delta, one.tables_now()) == ({}, {}, {})
    assert ids(database) == list(range(n))


def test_a_replay_cut_elsewhere_writes_only_what_is_missing(database: Embedded | Server) -> None:
    whole = rows(0, 60)
    for piece in slices(whole, 20, 40)[:2]:
        kernel(database.url).step(piece)
    for piece in slices(whole, 7, 33):
        kernel(database.url).step(piece)
    assert ids(database) == list(range(60))


def test_rows_of_one_cause_have_places_of_their_own(database: Embedded | Server) -> None:
    whole = flow({"id": [1, 2, 3, 4], "n": [0, 0, 0, 0]}, 5, sub=[0, 1, 2, 9])
    kernel(database.url).step(slices(whole, 2)[0])
    kernel(database.url).step(whole)
    assert ids(database) == [1, 2, 3, 4]


def test_a_unit_that_begins_anew_writes_anew(database: Embedded | Server) -> None:
    kernel(database.url).step(rows(0, 10))
    out, _ = kernel(database.url, life="second").step(rows(0, 11))
    assert sorted(reasons(out)) == list(range(10))
    assert ids(database) == list(range(11))


@pytest.mark.parametrize("places", [(), (1,), (10, 30), tuple(range(1, 60))])
def test_what_is_refused_goes_with_its_reason_whatever_the_cut(
    database: Embedded | Server, places: tuple[int, ...]
) -> None:
    database.run("INSERT INTO t VALUES (7, 0), (8, 0), (59, 0)")
    whole = rows(0, 60, n=[-1 if i in (0, 20, 21) else i for i in range(60)])
    cut = slices(whole, *places)
    told = {i: why for piece in cut for i, why in reasons(kernel(database.url).step(piece)[0]).items()}
    assert sorted(told) == [0, 7, 8, 20, 21, 59]
    assert "CHECK" in told[20].upper()
    assert "UNIQUE" in told[59].upper()
    assert ids(database) == [i for i in range(60) if i not in (0, 20, 21)]
    database.run("DELETE FROM t")  # a replay looks at the ledger, not at the table
    assert reasons(kernel(database.url).step(whole)[0]) == told
    assert ids(database) == []


def test_a_row_is_judged_by_the_rows_before_it(database: Embedded | Server, caplog: pytest.LogCaptureFixture) -> None:
    twice = flow({"id": [1, 2, 1, 3, 2], "n": [0, 1, 2, 3, 4]})
    out, _ = kernel(database.url).step(twice)
    assert "box 'w': 2 of 5 rows of a train are bad, the first: " in caplog.text
    assert out.rows[REASON].is_valid().to_pylist() == [False, False, True, False, True]
    assert database.run("SELECT id, n FROM t ORDER BY id") == [(1, 0), (2, 1), (3, 3)]


def test_any_statement_runs_row_by_row_in_order(database: Embedded | Server) -> None:
    upsert = "INSERT INTO t (id, n) VALUES (:id, :n) ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n -- :no"
    kernel(database.url, upsert).step(flow({"id": [1, 1, 2, 1], "n": [1, 10, 5, 100]}))
    assert database.run("SELECT id, n FROM t ORDER BY id") == [(1, 111), (2, 5)]
    kernel(database.url, "UPDATE t SET n = n + 1", life="all").step(flow({"id": [0, 0], "n": [0, 0]}))
    assert database.run("SELECT id, n FROM t ORDER BY id") == [(1, 113), (2, 7)]
    kernel(database.url, "DELETE FROM t WHERE id = :id", life="cut").step(flow({"id": [1, 9], "n": [0, 0]}))
    assert database.run("SELECT id, n FROM t") == [(2, 7)]


def test_only_the_newest_reasons_are_kept(database: Embedded | Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "REFUSED_MOST", 5)
    for piece in slices(rows(0, 40, n=[-1] * 40), 8, 30):
        kernel(database.url).step(piece)
    assert database.run("SELECT cause FROM borealis_refused ORDER BY cause") == [(i,) for i in range(35, 40)]


@pytest.mark.parametrize("n", [3, 40])  # one by one, and as a COPY
def test_every_type_comes_through(database: Embedded | Server, n: int) -> None:
    lite = isinstance(database, Embedded)
    types = "y INT, f REAL, v DOUBLE PRECISION, m NUMERIC(10,2), s TEXT, x BYTEA, b BOOLEAN, d DATE, u TIMESTAMPTZ"
    database.run(f"CREATE TABLE wide (id BIGINT, {types.replace('BYTEA', 'BLOB') if lite else types})")
    at = datetime(2024, 5, 1, 12, 30, 0, 250_000, UTC)
    one: list[Any] = [-3, 0.1, 0.1, Decimal("1.50"), 'a "b", \\.\n\'c', b"\x00\xff", True, date(2024, 5, 1), at]
    kinds = [pa.int32(), pa.float32(), pa.float64(), pa.decimal128(10, 2), pa.string(), pa.binary(), pa.bool_()]
    kinds += [pa.date32(), pa.timestamp("us", "UTC")]
    names = "yfvmsxbdu"
    columns = {c: pa.array([v, None, *[v] * (n - 2)], k) for c, v, k in zip(names, one, kinds, strict=True)}
    columns["s"] = pa.array([one[4], None, *[""] * (n - 2)])  # an empty string is no null
    statement = f"INSERT INTO wide (id, {', '.join(names)}) VALUES (:id, {', '.join(f':{c}' for c in names)})"
    k = kernel(database.url, statement)
    out, _ = k.step(flow({"id": list(range(n))} | columns))
    assert reasons(out) == {}
    assert lite or n < 16 or k._copying_suits
    full, empty, last, *_ = database.run(f"SELECT {', '.join(names)} FROM wide ORDER BY id")
    assert empty == (None,) * len(names)
    assert last[4] == ""
    if lite:
        assert full == (-3, pytest.approx(0.1), 0.1, 1.5, one[4], one[5], 1, "2024-05-01", str(at))
    else:
        assert [*full[:1], *full[2:]] == [one[0], *one[2:]]
        assert full[1] == pytest.approx(0.1)


def test_a_copy_that_would_do_something_else_is_none(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE t (id BIGINT, n TEXT)")
    k = kernel(postgres.url)
    k.step(rows(0, 50))  # a number into text: COPY would read the text of it
    assert k._copying_suits is False
    assert postgres.run("SELECT n FROM t WHERE id = 8") == [("1",)]
    postgres.run("CREATE TABLE seen (n BIGINT)", "CREATE TABLE u (id BIGINT, n BIGINT)")
    note = "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (1);"
    postgres.run(f"{note} RETURN NULL; END $$", "CREATE TRIGGER n AFTER INSERT ON u EXECUTE FUNCTION note()")
    k = kernel(postgres.url, "INSERT INTO u (id, n) VALUES (:id, :n)", life="u")
    k.step(rows(0, 50))
    assert k._copying_suits is False
    assert postgres.run("SELECT count(*) FROM seen") == [(50,)]


def test_only_a_plain_insert_can_be_a_copy() -> None:
    plain = Copying.of('insert into "a b".t ( x, "y z" ) values (:p , :q);')
    assert plain is not None
    assert (plain.table, plain.columns, plain.names) == ('"a b".t', ["x", '"y z"'], ["p", "q"])
    for other in ("INSERT INTO t (a) VALUES (:a + 1)", "INSERT INTO t (a) VALUES (:a) RETURNING a", "DELETE FROM t",
                  "INSERT INTO t VALUES (:a)", "INSERT INTO t (a, b) VALUES (:a)"):  # fmt: skip
        assert Copying.of(other) is None


def test_a_wrong_statement_is_an_error_and_changes_nothing(database: Embedded | Server) -> None:
    k = kernel(database.url, "INSERT INTO nowhere (id) VALUES (:id)")
    with pytest.raises(TrainError, match=r"box 'w': database .* refuses the statement: .*nowhere"):
        k.step(rows(0, 30))
    assert ids(database) == []


@pytest.mark.parametrize("call", ["abs(:v)", "json(:v)"])
def test_a_value_that_a_function_of_sqlite_does_not_take_is_refused_alone(tmp_path: Path, call: str) -> None:
    """SQLite says "error" of it, with the same code as of a table that is not there."""
    database = Embedded(tmp_path / "a.db")
    database.run("CREATE TABLE t (id BIGINT, v)")
    values: list[Any] = [1, -(2**63), 3] if call == "abs(:v)" else ["[1]", "{no", "[3]"]
    for life, times in (("few", 1), ("many", 9)):
        written = flow({"id": list(range(3 * times)), "v": values * times})
        out, _ = kernel(database.url, f"INSERT INTO t (id, v) VALUES (:id, {call}) -- :no", life=life).step(written)
        assert list(reasons(out)) == list(range(1, 3 * times, 3))
        assert {"integer overflow", "malformed JSON"} >= set(reasons(out).values())
    assert ids(database) == sorted([0, 2, *(i for i in range(27) if i % 3 != 1)])


def test_values_that_postgresql_finds_too_large_or_a_function_refuses_are_refused_alone(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE t (id BIGINT, s TEXT UNIQUE)")
    wide = "".join(chr(0x4E00 + (i * i * 7919) % 20_000) for i in range(9_000))  # an index row has 2,704 bytes
    k = kernel(postgres.url, "INSERT INTO t (id, s) VALUES (:id, :s)", life="wide")
    told = reasons(k.step(flow({"id": list(range(20)), "s": [wide if i == 5 else str(i) for i in range(20)]}))[0])
    assert list(told) == [5]
    assert "index row" in told[5]
    strict = "DECLARE r BIGINT; BEGIN SELECT t.id INTO STRICT r FROM t WHERE t.id % wanted = 0; RETURN r; END"
    postgres.run(f"CREATE FUNCTION one(wanted BIGINT) RETURNS BIGINT LANGUAGE plpgsql AS $$ {strict} $$")
    postgres.run("DELETE FROM t WHERE id = 0")
    k = kernel(postgres.url, "UPDATE t SET s = 'found' WHERE id = one(:n)", life="one")
    told = reasons(k.step(flow({"id": [1, 2, 3], "n": [19, 50, 4]}))[0])
    assert told == {2: "query returned no rows", 3: "query returned more than one row"}


def test_a_row_that_a_policy_or_a_trigger_of_postgresql_forbids_is_refused_alone(postgres: Server) -> None:
    look = "BEGIN IF NEW.n = 1 THEN EXECUTE 'SELECT nothing'; END IF; RETURN NEW; END"
    postgres.run(
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN",
        "GRANT ALL ON SCHEMA public TO clerk",
        "CREATE TABLE t (id BIGINT, n BIGINT)",
        "GRANT ALL ON t TO clerk",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY small ON t USING (true) WITH CHECK (n < 6)",
        f"CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ {look} $$",
        "CREATE TRIGGER look BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION look()",
    )
    clerk = postgres.url.replace("//postgres@", "//clerk@")
    told = reasons(kernel(clerk).step(rows(0, 7))[0])
    assert told == {1: 'column "nothing" does not exist', 6: 'new row violates row-level security policy for table "t"'}
    assert ids(postgres) == [0, 2, 3, 4, 5]
    postgres.run("REVOKE INSERT ON t FROM clerk")
    with pytest.raises(TrainError, match="permission denied for table t"):
        kernel(clerk).step(rows(7, 2))


def test_a_deferred_constraint_refuses_its_row_and_not_the_train(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE parents (id BIGINT PRIMARY KEY)")
    deferred = "REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"
    postgres.run(f"CREATE TABLE t (id BIGINT {deferred}, n BIGINT)", "INSERT INTO parents VALUES (1), (2)")
    out, _ = kernel(postgres.url).step(rows(0, 4))
    assert sorted(reasons(out)) == [0, 3]


class Watch(ManualClock):
    """A clock that only sleeping moves; sleeping may do something."""

    def __init__(self, *then: Callable[[], object]) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.then = list(then)

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)
        self.slept.append(seconds)
        if self.then:
            self.then.pop(0)()


def test_a_database_that_is_away_is_tried_again_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, notice = tmp_path / "later", tmp_path / "troubles" / "w.0"
    seen: list[str] = []

    def look() -> None:
        seen.append(notice.read_text())

    def come() -> None:
        look()
        folder.mkdir()
        Embedded(folder / "a.db").run("CREATE TABLE t (id BIGINT, n BIGINT)")

    watch = Watch(look, look, look, come)
    k = kernel(f"sqlite:///{folder}/a.db", clock=watch)
    k.begin(TRAIN, 0, NoticeFile(str(notice), 0))
    with caplog.at_level(logging.WARNING, "borealis.databases"):
        k.step(rows(0, 3))
    assert watch.slept == [0.0, 0.1, 0.2, 0.4]
    assert "cannot be used, tried 3 times: unable to open database file" in seen[2]
    assert len(caplog.records) == 4
    assert not notice.exists()
    assert ids(Embedded(folder / "a.db")) == [0, 1, 2]


def test_patience_ends_with_an_error_that_says_so(tmp_path: Path) -> None:
    watch = Watch()
    k = kernel(f"sqlite:///{tmp_path}/no/a.db", clock=watch)
    with pytest.raises(GivenUpError, match=r"could not be used for 20 seconds, tried \d+ times: unable to open") as e:
        k.step(rows(0, 3))
    assert max(watch.slept) == 5.0
    assert watch.now() == 20
    assert "nothing is lost" in e.value.hint


def test_only_the_attempt_that_gives_up_has_waited(tmp_path: Path) -> None:
    watch, place = Watch(), str(tmp_path / "troubles" / "w.0")
    k = kernel(f"sqlite:///{tmp_path}/no/a.db", clock=watch)
    k.begin(TRAIN, 0, NoticeFile(place, 1))  # an attempt before it may have died of something else
    with pytest.raises(GivenUpError) as first:
        k.step(rows(0, 3))
    assert [text for text, _ in Troubles(tmp_path / "troubles").now()] == [first.value.message]
    with pytest.raises(GivenUpError) as second:
        kernel(f"sqlite:///{tmp_path}/no/a.db").begin(TRAIN, 0, NoticeFile(place, 2))
    assert str(second.value) == str(first.value)
    k.begin(TRAIN, 0, NoticeFile(place, 0))  # the next start of the query waits again


def test_a_server_that_dies_and_comes_back_has_each_row_once(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE t (id BIGINT, n BIGINT)")
    watch = Watch(postgres.stop, lambda: None, postgres.start)
    k = kernel(postgres.url, clock=watch)
    k.step(rows(0, 30))
    ours = "pid <> pg_backend_pid() AND backend_type = 'client backend'"
    postgres.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {ours}")
    k.step(rows(30, 30))
    assert ids(postgres) == list(range(60))
    assert len(watch.slept) >= 3


def test_two_copies_at_once_write_each_row_once(postgres: Server) -> None:
    """An active standby: the second waits for the first one's transaction, then finds its rows."""
    import threading

    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE t (id BIGINT, n BIGINT)")
    copies = [kernel(postgres.url) for _ in range(2)]
    cuts = [slices(rows(0, 400), *range(40, 400, 40)), slices(rows(0, 400), *range(70, 400, 70))]
    failures: list[BaseException] = []

    def run(which: int) -> None:
        try:
            for piece in cuts[which]:
                copies[which].step(piece)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert ids(postgres) == list(range(400))


def test_a_time_that_no_driver_takes_is_refused_alone(database: Embedded | Server) -> None:
    database.run("CREATE TABLE times (id BIGINT, at TEXT)")
    at = pa.array(np.array([0, 2**62, 10], np.int64)).view(pa.timestamp("us", "UTC"))
    k = kernel(database.url, "INSERT INTO times (id, at) VALUES (:id, :at)")
    assert list(reasons(k.step(flow({"id": [0, 1, 2], "at": at}))[0])) == [1]
    assert database.run("SELECT id FROM times ORDER BY id") == [(0,), (2,)]


# -- drawing


def draw(statement: str = "INSERT INTO t (a) VALUES (:src)", columns: str = "src STRING, n INT", **how: Any) -> Diagram:
    d = Diagram("d")
    d.input("a", f"ts TIMESTAMP, {columns}").sql_write(statement, **how).output("out")
    return d


def test_it_is_drawn_and_read_back() -> None:
    d = draw(database="warehouse", give_up="5 s")
    assert Diagram.from_yaml(d.to_yaml()).spec == d.spec
    box = d.spec.box("sql_write_1")
    assert (box.operator_class, box.holds_us, box.arrows) == ("repeatable", 0, ["sql_write_1", "sql_write_1.bad"])
    assert box.describe() == "sql_write to warehouse: INSERT INTO t (a) VALUES (:src)"
    d.stream("sql_write_1").bad.output("bad")
    assert d.spec.columns("sql_write_1.bad") == ["ts", "src", "n", "reason"]


WRONG = [
    ({"statement": "INSERT INTO t (a) VALUES (:scr)"}, "parameter ':scr': no column 'scr' .*did you mean 'src'"),
    ({"statement": " -- nothing"}, "the statement is empty"),
    ({"statement": "DELETE FROM t; DELETE FROM u"}, "several statements"),
    ({"statement": "COMMIT"}, "'COMMIT' is not for a box to say"),
    ({"statement": "SELECT :src"}, "'SELECT' changes nothing. Hint: ask with sql_read"),
    ({"database": "no database"}, "neither a URL nor a name"),
    ({"database": "postgresql://me:secret@h/db"}, "a password stands in the URL"),
    ({"database": "postgresql://h/db?user=me&password=secret"}, "a password stands in the URL"),
    ({"database": "sqlite://"}, "in memory"),
    ({"give_up": "0 s"}, "'give_up' must be more than zero"),
    ({"columns": "src STRING, Reason STRING"}, "there is a column 'Reason' already"),
]


@pytest.mark.parametrize(("how", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_be_is_refused_when_it_is_drawn(how: dict[str, Any], says: str) -> None:
    with pytest.raises(DiagramError, match=says) as e:
        draw(**how)
    assert "secret" not in str(e.value)
    assert e.value.hint


def test_parameters_are_told_from_what_looks_like_them() -> None:
    assert parameters("SELECT ':a', \":b\", $$ :c $$, x::int, y[1:n] /* :d */ -- :e\n, E'\\':f', :g, :g::text") == ["g"]
    assert parameters("INSERT INTO t VALUES (:a,:b)") == ["a", "b"]


def test_casts_and_colons_in_text_arrive_as_written(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE t (id BIGINT, s TEXT)")
    statement = "INSERT INTO t (id, s) VALUES (:n::bigint + 1, ':n 12:30 50% \\:x' || :n::text) -- it's :n"
    kernel(postgres.url, statement).step(rows(0, 2))
    assert postgres.run("SELECT id, s FROM t ORDER BY id") == [(1, ":n 12:30 50% \\:x0"), (2, ":n 12:30 50% \\:x1")]


# -- where a database is


def test_names_and_variables_are_those_of_the_environment() -> None:
    environ = {"BOREALIS_DATABASE_WAREHOUSE": "postgresql://me:${PW}@h/db", "PW": "p@ss/w:rd", "HOME": "/home/a b"}
    environ |= {"BOREALIS_DATABASE_LOCAL": "sqlite:///${HOME}/x.db"}
    url = address("warehouse", environ).url
    assert (url.drivername, url.password, url.host, url.database) == ("postgresql+psycopg", "p@ss/w:rd", "h", "db")
    assert address("local", environ).url.database == "/home/a b/x.db"
    url = address("postgresql://me:${PW}@h/db?sslpassword=${PW}", environ).url
    assert (url.password, url.query["sslpassword"]) == ("p@ss/w:rd", "p@ss/w:rd")
    with pytest.raises(TrainError, match="database 'other' is not known here: BOREALIS_DATABASE_OTHER is not set"):
        address("other", environ)
    with pytest.raises(TrainError, match="NO_SUCH is not set"):
        address("postgresql://me:${NO_SUCH}@h/db", environ)


def test_no_password_is_ever_told() -> None:
    watch = Watch()
    environ = {"PW": "s3cret", "BOREALIS_DATABASE_BAD": "s3cret"}
    with pytest.raises(TrainError, match="no URL") as e:
        address("bad", environ)
    assert "s3cret" not in str(e.value)
    url = "postgresql://me:${PW}@127.0.0.1:1/db"
    k = kernel(url, environ=environ, clock=watch)
    with pytest.raises(TrainError, match=r"me:\*\*\*@127.0.0.1") as e:
        k.step(rows(0, 1))
    assert "s3cret" not in f"{e.value!r} {e.value.__cause__!r}"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/${PW}/x.db",
        "sqlite:///${PW}",
        "postgresql://me@${PW}.example/db",
        "postgresql://me@h/${PW}",
        "postgresql://me@h/db?application_name=${PW}",
        "postgresql://me@h/db?x=://${PW}@",
        "postgresql://me:${PW}@h/${PW}@db",
    ],
)
def test_variables_stand_for_user_and_password_only(url: str) -> None:
    with pytest.raises(DiagramError, match=r"'\$\{PW\}' stands where all could read its value"):
        check_database(url)
    made = address(url, {"PW": "s3cret"})
    assert "s3cret" not in f"{made.shown} {made.url.host} {made.url.database} {made.url.query}"


def test_user_and_password_are_in_nothing_that_a_database_says() -> None:
    watch = Watch()
    environ = {
        "ME": "ann of s3cret",
        "PW": "s3cret",
        "BOREALIS_DATABASE_HOUSE": "postgresql://${ME}:literal@127.0.0.1:1/db",
    }
    for url in ("postgresql://${ME}:${PW}@127.0.0.1:1/db", "house", "sqlite://${ME}:${PW}@h/x.db"):
        if url != "house":
            check_database(url)
        k = kernel(url, environ=environ, clock=watch)
        with pytest.raises(TrainError) as e:
            k.step(rows(0, 1))
        assert not any(word in str(e.value) for word in ("s3cret", "ann of", "ann%20of", "literal"))
    spoken = RuntimeError(f"no user 'ann of s3cret' {'.' * 250} or ann%20of%20s3cret with s3cret")
    said_of = safe_message(spoken, address("postgresql://${ME}:${PW}@h/db", environ))
    assert said_of.startswith("no user '***' ...")
    assert said_of.endswith("or *** with ***")


def test_verdicts() -> None:
    assert verdict(OSError("no route")) == "passing"
    assert verdict(KeyError("a defect")) == "wrong"
    assert verdict(OverflowError("too large")) == "refused"
