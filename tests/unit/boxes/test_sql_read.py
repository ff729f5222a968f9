"""The SQL-read kernel against real databases: each question once, answers in order, and only what fits."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sql_flows import NOWHERE, TRAIN, flow, slices

from borealis.databases.database import Database
from borealis.diagram.cut import cut
from borealis.diagram.model import Diagram
from borealis.errors import DiagramError, TrainError
from borealis.ha.classes import classify
from borealis.kernels.flow import Flow
from borealis.kernels.sql_read import SqlReadKernel
from borealis.kernels.sql_write import REASON
from postgres import Embedded, Server

NAME = pa.schema([("name", pa.string())])
ASK = "SELECT name FROM customers WHERE id = :id ORDER BY name"


@pytest.fixture
def database(empty_database: Embedded | Server) -> Embedded | Server:
    empty_database.run("CREATE TABLE customers (id BIGINT, name TEXT)")
    empty_database.run("INSERT INTO customers VALUES (1, 'b'), (1, 'a'), (2, 'c'), (3, NULL), (NULL, 'nobody')")
    return empty_database


def kernel(
    url: str, statement: str = ASK, given: pa.Schema = NAME, nulls: bool = False, source: pa.Schema | None = None
) -> SqlReadKernel:
    source = source or pa.schema([("id", pa.int64()), ("s", pa.string())])
    made = SqlReadKernel("r", statement, Database("r", url, 5_000_000), source, given, nulls=nulls)
    made.begin(TRAIN, 0, NOWHERE)
    return made


def questions(*ids: int | None) -> Flow:
    return flow({"id": pa.array(ids, pa.int64())})


def answered(out: Flow) -> list[tuple[Any, ...]]:
    """Cause, sub, then the columns."""
    columns = [column.to_pylist() for column in out.rows.columns]
    return list(zip(out.cause.tolist(), out.sub.tolist(), *columns, strict=True))


def test_a_row_for_each_row_of_the_answer_in_its_order(database: Embedded | Server) -> None:
    out, delta = kernel(database.url).step(questions(2, 1, 9, 3, None, 2))
    assert delta == {}
    assert answered(out) == [
        (0, 0, 2, "c", None),
        (1, 0, 1, "a", None),
        (1, 1, 1, "b", None),
        (3, 0, 3, None, None),
        (5, 0, 2, "c", None),
    ]
    assert out.time.tolist() == [0, 10, 10, 30, 50]


def test_a_missing_answer_may_be_nulls(database: Embedded | Server) -> None:
    out, _ = kernel(database.url, nulls=True).step(questions(9, 2, None))
    assert answered(out) == [(0, 0, 9, None, None), (1, 0, 2, "c", None), (2, 0, None, None, None)]


@pytest.mark.parametrize("places", [(), (1,), (1, 2, 3, 4), (3,)])
def test_the_cut_changes_nothing(database: Embedded | Server, places: tuple[int, ...]) -> None:
    k, whole = kernel(database.url), questions(1, 2, 1, 5, 3)
    pieces = [row for piece in slices(whole, *places) for row in answered(k.step(piece)[0])]
    assert pieces == answered(k.step(whole)[0])


def test_rows_of_one_cause_stay_in_order(database: Embedded | Server) -> None:
    out, _ = kernel(database.url).step(flow({"id": [1, 2, 1]}, 4, sub=[0, 3, 5]))
    assert [(c, s, name) for c, s, _, name, _ in answered(out)] == [
        (4, 0, "a"), (4, 1, "b"), (4, 2, "c"), (4, 3, "a"), (4, 4, "b"),
    ]  # fmt: skip


def test_nothing_asked_is_nothing_answered(tmp_path: Path) -> None:
    out, _ = kernel(f"sqlite:///{tmp_path}/nowhere/a.db").step(questions())
    assert out.rows.schema.names == ["id", "name", REASON]
    assert len(out) == 0


def test_each_question_is_asked_once_and_on_postgresql_all_together(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE SEQUENCE asked")
    k = kernel(postgres.url, "SELECT nextval('asked')::text || :id::text")
    out, _ = k.step(questions(7, 7, 8, 7))
    assert out.rows["name"].to_pylist() == ["17", "17", "28", "17"]
    assert k._all_at_once is not None


def test_a_statement_that_wants_plain_parameters_gets_them(postgres: Server) -> None:
    """As columns they have types: text is not compared with a number, and LIMIT takes none."""
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE customers (id BIGINT, name TEXT)")
    postgres.run("INSERT INTO customers VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    k = kernel(postgres.url, "SELECT name FROM customers WHERE id = :s")
    out, _ = k.step(flow({"s": ["2", "x", "1"]}))
    assert out.rows["name"].to_pylist() == ["b", None, "a"]
    assert "invalid input syntax" in out.rows[REASON][1].as_py()
    k = kernel(postgres.url, "SELECT name FROM customers ORDER BY id LIMIT :id")
    assert k.step(questions(2, 1))[0].rows["name"].to_pylist() == ["a", "b", "a"]


def test_a_question_that_cannot_be_answered_is_bad_alone(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
    out, _ = kernel(postgres.url, "SELECT (10 / :id)::text -- :no").step(questions(5, 0, 2))
    assert answered(out) == [(0, 0, 5, "2", None), (1, 0, 0, None, "division by zero"), (2, 0, 2, "5", None)]


def test_a_question_with_a_value_that_sqlite_does_not_take_is_bad_alone(tmp_path: Path) -> None:
    k = kernel(f"sqlite:///{tmp_path}/a.db", "SELECT abs(:id)", pa.schema([("n", pa.int64())]))
    assert answered(k.step(questions(5, -(2**63), -2))[0]) == [
        (0, 0, 5, 5, None),
        (1, 0, -(2**63), None, "integer overflow"),
        (2, 0, -2, 2, None),
    ]
    k = kernel(f"sqlite:///{tmp_path}/a.db", "SELECT json_extract(:s, '$.a')")
    assert k.step(flow({"s": ["{no", '{"a": "b"}']}))[0].rows[REASON].to_pylist() == ["malformed JSON", None]


def test_without_parameters_it_is_one_question(database: Embedded | Server) -> None:
    k = kernel(database.url, "SELECT count(*) FROM customers", pa.schema([("n", pa.int32())]))
    assert k.step(questions(4, 4))[0].rows["n"].to_pylist() == [5, 5]


def test_values_take_the_declared_types(database: Embedded | Server) -> None:
    lite = isinstance(database, Embedded)
    at = "'2024-05-01 12:30:00'" if lite else "timestamptz '2024-05-01 12:30:00+00'"
    day = "'2024-05-01'" if lite else "date '2024-05-01'"
    ask = f"SELECT 1, {'1' if lite else 'true'}, 1.5, 2.25, {day}, {at}, {'1' if lite else '1::float4'} WHERE :id = :id"
    kinds = [
        pa.int8(),
        pa.bool_(),
        pa.float64(),
        pa.decimal128(5, 2),
        pa.date32(),
        pa.timestamp("us", "UTC"),
        pa.float32(),
    ]
    given = pa.schema(list(zip("ibfmdtv", kinds, strict=True)))
    out, _ = kernel(database.url, ask, given).step(questions(1, 2))
    moment = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
    assert list(out.rows.to_pylist()[1].values()) == [
        2, 1, True, 1.5, Decimal("2.25"), date(2024, 5, 1), moment, 1.0, None,
    ]  # fmt: skip


def test_a_value_that_does_not_fit_is_bad_with_the_reason(database: Embedded | Server) -> None:
    ask = "SELECT name, id FROM customers WHERE name = :s"
    database.run("INSERT INTO customers VALUES (4000000000, 'big'), (5, 'big')")
    k = kernel(database.url, ask, pa.schema([("name", pa.string()), ("who", pa.int32())]))
    out, _ = k.step(flow({"s": ["c", "big"]}))
    assert out.rows["who"].to_pylist() == [2, None, 5]
    assert out.rows[REASON].to_pylist() == [None, "column 'who' is int32, and the database gave 4000000000", None]


def test_an_answer_of_another_width_is_an_error(database: Embedded | Server) -> None:
    for ids in ((1,), (1, 2)):
        with pytest.raises(TrainError, match="box 'r': the database answers with 2 columns, and gives= names 1"):
            kernel(database.url, "SELECT name, id FROM customers WHERE id = :id").step(questions(*ids))


def test_a_wrong_statement_is_an_error(database: Embedded | Server) -> None:
    with pytest.raises(TrainError, match=r"refuses the statement: .*nowhere"):
        kernel(database.url, "SELECT name FROM nowhere WHERE id = :id").step(questions(1, 2))


# -- drawing


def draw(**how: Any) -> Diagram:
    d = Diagram("d")
    fields = {"statement": ASK, "gives": "name STRING"} | how
    d.input("a", "ts TIMESTAMP, id INT").sql_read(fields.pop("statement"), **fields).output("out")
    return d


def test_it_is_drawn_and_read_back() -> None:
    for d in (draw(), draw(stable=True, missing="null", database="sqlite:///x.db")):
        assert Diagram.from_yaml(d.to_yaml()).spec == d.spec
    assert d.spec.columns("sql_read_1") == ["ts", "id", "name"]
    assert d.spec.columns("sql_read_1.bad") == ["ts", "id", "reason"]
    assert d.spec.box("sql_read_1").describe() == f"sql_read from sqlite:///x.db: {ASK} gives name STRING"


def test_a_table_may_change_unless_the_user_promises_that_it_does_not() -> None:
    found = {}
    for stable in (False, True):
        spec = draw(stable=stable).validate()
        classified = classify(spec, cut(spec)[0])
        found[stable] = (classified.kind, classified.random_boxes, classified.why["sql_read_1"][1])
    assert found[False] == ("arbitrary", ("sql_read_1",), "the table it reads may have changed the next time")
    assert found[True] == (
        "repeatable",
        (),
        "the user promises that the same question always has the same answer",
    )


WRONG = [
    ({"statement": "SELECT 1 WHERE :ids = 1"}, "parameter ':ids': no column 'ids' .*did you mean 'id'"),
    ({"statement": "DELETE FROM t RETURNING 1"}, "'DELETE' is no question"),
    ({"gives": ""}, "no columns"),
    ({"gives": "name"}, "column 'name' has no type"),
    ({"gives": "id INT"}, "column 'id' appears twice"),
    ({"missing": "ignore"}, "'missing': input should be 'drop' or 'null'"),
]


@pytest.mark.parametrize(("how", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_be_is_refused_when_it_is_drawn(how: dict[str, Any], says: str) -> None:
    with pytest.raises(DiagramError, match=says):
        draw(**how)
