"""The SQL-read kernel against real databases: each question once, answers in order, and only what fits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_flows import NOWHERE, TRAIN, Signed, flow, signed, slices

from borealis.databases.database import Database
from borealis.diagram.cut import cut
from borealis.diagram.model import Diagram
from borealis.errors import DiagramError, TrainError
from borealis.ha.classes import classify
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.kinds import mended
from borealis.kernels.sql_read import RememberingSqlRead, SqlReadKernel
from borealis.kernels.sql_write import REASON
from borealis.state.delta import Delta, pack, unpack
from borealis.tuples import KIND, KIND_NAMES
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


# -- rows that are taken back

HISTORY = 100


def remembering(url: str, deltas: Sequence[Delta] = (), ask: str = ASK) -> RememberingSqlRead:
    source, database = (
        pa.schema([("i", pa.int64()), ("v", pa.int64()), (KIND, pa.int8())]),
        Database("r", url, 5_000_000),
    )
    made = RememberingSqlRead("r", ask.replace(":id", ":i"), database, source, NAME, nulls=False, history=HISTORY)
    made.begin(TRAIN, 0, NOWHERE)
    for delta in deltas:
        made.apply(unpack(pack(delta)))
    return made


def changes(out: Flow) -> list[tuple[Any, ...]]:
    """Cause, kind and columns, with what is left of pairs mended."""
    whole = mended(out)
    kinds = [KIND_NAMES[kind] for kind in whole.rows[KIND].to_pylist()]
    columns = [whole.rows[name].to_pylist() for name in ("i", "v", "name", REASON)]
    return list(zip(whole.cause.tolist(), kinds, *columns, strict=True))


def test_a_row_leaves_with_the_answer_that_it_came_with(database: Embedded | Server) -> None:
    k = remembering(database.url)
    first, _ = k.step(signed("iv", [(0, "+I", (1, 5)), (1, "+I", (2, 5)), (2, "+I", (9, 5)), (3, "+I", (2, 7))]))
    assert [name for _, _, _, _, name, _ in changes(first)] == ["a", "b", "c", "c"]
    database.run("DELETE FROM customers", "INSERT INTO customers VALUES (2, 'new'), (9, 'known')")
    later: list[Signed] = [
        (4, "-D", (1, 5)),
        (5, "-U", (2, 5)),
        (5, "+U", (2, 6)),
        (6, "-D", (9, 5)),
        (7, "-D", (2, 7)),
    ]
    out, _ = k.step(signed("iv", [*later, (8, "+I", (9, 5))]))
    assert changes(out) == [
        *((4, "-D", 1, 5, "a", None), (4, "-D", 1, 5, "b", None)),
        *((5, "-U", 2, 5, "c", None), (5, "+U", 2, 6, "new", None)),
        *((7, "-D", 2, 7, "c", None), (8, "+I", 9, 5, "known", None)),
    ]


def test_answers_of_a_row_and_of_the_one_in_its_place_replace_each_other_in_order(database: Embedded | Server) -> None:
    k = remembering(database.url)
    k.step(signed("iv", [(0, "+I", (1, 5)), (1, "+I", (2, 5)), (2, "+I", (1, 8))]))
    database.run("INSERT INTO customers VALUES (2, 'z')")
    out, _ = k.step(signed("iv", [(3, "-U", (1, 5)), (3, "+U", (2, 5)), (4, "-U", (1, 8)), (4, "+U", (3, 8))]))
    assert changes(out) == [
        *(
            (3, "-U", 1, 5, "a", None),
            (3, "+U", 2, 5, "c", None),
            (3, "-U", 1, 5, "b", None),
            (3, "+U", 2, 5, "z", None),
        ),
        *((4, "-U", 1, 8, "a", None), (4, "+U", 3, 8, None, None), (4, "-D", 1, 8, "b", None)),
    ]
    assert out.sub.tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_a_bad_answer_is_remembered_with_its_reason(postgres: Server) -> None:
    postgres.run("DROP SCHEMA public CASCADE", "CREATE SCHEMA public", "CREATE TABLE d (n BIGINT)")
    postgres.run("INSERT INTO d VALUES (0)")
    k = remembering(postgres.url, ask="SELECT (:id / n)::text FROM d")
    k.step(signed("iv", [(0, "+I", (6, 5))]))
    postgres.run("UPDATE d SET n = 2")
    out, _ = k.step(signed("iv", [(1, "-U", (6, 5)), (1, "+U", (6, 7))]))
    assert changes(out) == [(1, "-U", 6, 5, None, "division by zero"), (1, "+U", 6, 7, "3", None)]


@settings(max_examples=3 * settings.default.max_examples)
@given(seed=st.integers(0, 2**32))
def test_changes_of_answers_hang_on_no_cut_and_state_on_the_history_alone(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng, database = Random(seed), Embedded(tmp_path_factory.mktemp("asked") / "a.db")
    database.run("CREATE TABLE customers (id BIGINT, name TEXT)")
    database.run("INSERT INTO customers VALUES (1, 'b'), (1, 'a'), (2, 'c'), (3, NULL)")
    story: list[Signed] = []
    times: list[int] = []
    alive: list[tuple[tuple[int, int], int]] = []
    for cause in range(40):
        now, new = cause * 10, (rng.randrange(5), rng.randrange(2))
        alive = [(row, time) for row, time in alive if time >= now - 10 - HISTORY]  # the boundary at it
        old = alive.pop(rng.randrange(len(alive))) if alive and rng.random() < 0.5 else None
        comes = old is None or rng.random() < 0.5
        kinds = ("-U", "+U") if old and comes else ("-D", "+I")
        some = [(kinds[0], *old)] if old else []
        some += [(kinds[1], new, now)] if comes else []
        alive += [(new, now)] if comes else []
        story += [(cause, kind, row) for kind, row, _ in some]
        times += [time for _, _, time in some]

    def outcome(cuts: list[int]) -> tuple[list[Any], pa.Table]:
        found, places, deltas = [], list[Any](), list[Delta]()
        for start, stop in pairwise([0, *cuts, 40]):
            at = [i for i, (cause, _, _) in enumerate(story) if start <= cause < stop]
            causes = np.arange(start, stop)  # a boundary behind each
            bounds = Bounds((start - 1) * 10, causes, causes * 10)
            k = remembering(database.url, deltas)
            out, delta = k.step(signed("iv", [story[i] for i in at], bounds, [times[i] for i in at]))
            found += changes(out)
            places += list(zip(out.time.tolist(), out.sub.tolist(), strict=True))
            deltas.append(delta)
        return [*found, *places], remembering(database.url, deltas).tables_now()["answers"]

    whole, cut = outcome([]), outcome(sorted({rng.randrange(1, 40) for _ in range(rng.randrange(1, 6))}))
    assert cut[0] == whole[0]
    assert cut[1].equals(whole[1])
    assert sorted(whole[1]["_time"].to_pylist()) == sorted(time for _, time in alive if time >= 390 - HISTORY)


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
