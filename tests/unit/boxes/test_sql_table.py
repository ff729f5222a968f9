"""A table that is kept by its key, on real databases: what stands in it, what is refused, and what is remembered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sql_flows import NOWHERE, TRAIN, Signed, signed, trains

from borealis.databases.database import Database
from borealis.diagram.model import Diagram
from borealis.errors import DiagramError, TrainError
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.remembered import ANSWERS
from borealis.kernels.sql_table import SqlTableKernel
from borealis.kernels.sql_write import REASON
from borealis.state.delta import Delta, pack, unpack
from borealis.tuples import KIND, Kind
from postgres import Embedded, Server

TABLE = "CREATE TABLE t (k BIGINT PRIMARY KEY, n BIGINT CHECK (n <> 3))"
SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64()), (KIND, pa.int8())])
HISTORY = 100


@pytest.fixture
def database(empty_database: Embedded | Server) -> Embedded | Server:
    empty_database.run(TABLE)
    return empty_database


def kernel(url: str, deltas: list[Delta] | None = None, history: int | None = HISTORY) -> SqlTableKernel:
    made = SqlTableKernel("w", "t", ["k"], SCHEMA, Database("w", url, 5_000_000), history)
    made.begin(TRAIN, 0, NOWHERE)
    for delta in deltas or []:
        made.apply(unpack(pack(delta)))
    return made


def refused(out: Flow) -> list[bool]:
    return out.rows[REASON].is_valid().to_pylist()


def table(database: Embedded | Server) -> list[tuple[Any, ...]]:
    return database.run("SELECT k, n FROM t ORDER BY k")


def test_a_row_comes_is_replaced_and_goes(database: Embedded | Server) -> None:
    one = kernel(database.url)
    one.step(signed("kn", [(0, "+I", (1, 10)), (1, "+I", (2, 20)), (2, "+I", (5, 50))]))
    changes: list[Signed] = [(3, "-U", (1, 10)), (3, "+U", (1, 11)), (4, "-D", (2, 20)), (5, "+I", (9, 90))]
    changes += [(6, "-U", (5, 50)), (6, "+U", (6, 60))]  # its key is another one now
    out, _ = one.step(signed("kn", changes))
    assert out.rows.drop_columns([REASON]).equals(signed("kn", changes).rows)
    assert not any(refused(out))
    assert table(database) == [(1, 11), (6, 60), (9, 90)]


@pytest.mark.parametrize("apart", [False, True])  # of one cause, or of two where a unit ended in between
def test_what_comes_before_what_it_replaces_goes_stays(database: Embedded | Server, apart: bool) -> None:
    one = kernel(database.url)
    one.step(signed("kn", [(0, "+I", (1, 10))]))
    one.step(signed("kn", [(3, "+I", (1, 11)), (3 + apart, "-D", (1, 10))]))
    assert table(database) == [(1, 11)]
    one.step(signed("kn", [(7, "-D", (1, 11))]))
    assert table(database) == []


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3, 4, 5)])
def test_a_row_that_was_refused_goes_as_one_that_was(database: Embedded | Server, cuts: tuple[int, ...]) -> None:
    """And what it should have replaced is gone."""
    changes: list[Signed] = [(0, "+I", (1, 10)), (1, "-U", (1, 10)), (1, "+U", (1, 3)), (2, "+I", (2, 20))]
    changes += [(3, "-U", (1, 3)), (3, "+U", (1, 12)), (4, "-U", (1, 12)), (4, "+U", (1, 3)), (5, "-D", (1, 3))]
    told, deltas = [], list[Delta]()
    for train in trains(changes, *cuts):
        out, delta = kernel(database.url, deltas).step(signed("kn", train))
        told += out.rows[REASON].to_pylist()
        deltas.append(delta)
    assert [why is not None for why in told] == [n == 3 for _, _, (_, n) in changes]
    assert len({why for why in told if why}) == 1
    assert table(database) == [(2, 20)]


def story(rng: Random) -> list[Signed]:
    """Changes of rows whose keys differ, with numbers of which 3 is refused."""
    alive: dict[int, int] = {}
    changes: list[Signed] = []
    cause = 0
    for _ in range(rng.randrange(30)):
        cause += rng.randrange(1, 3)
        key = rng.choice([*alive, rng.randrange(4)])
        old, new = (key, alive.pop(key, None)), (key, rng.randrange(5))
        if old[1] is None:
            changes.append((cause, "+I", new))
        else:
            match rng.randrange(6):
                case 0:
                    changes.append((cause, "-D", old))
                    continue
                case 1:
                    changes += [(cause, "+I", new), (cause, "-D", old)]
                case 2:
                    changes += [(cause, "+I", new), (cause + 1, "-D", old)]
                    cause += 1
                case 3:
                    free = next(k for k in range(9) if k not in alive and k != key)
                    new = (free, new[1])
                    changes += [(cause, "-U", old), (cause, "+U", new)]
                case 4:
                    gone = (key, 7)
                    changes += [(cause, "+I", gone), (cause, "-D", old), (cause, "+I", new), (cause, "-D", gone)]
                case _:
                    changes += [(cause, "-U", old), (cause, "+U", new)]
        alive[new[0]] = new[1]
    return changes


@settings(max_examples=3 * settings.default.max_examples)
@given(seed=st.integers(0, 2**32))
def test_what_stands_is_in_the_table_whatever_the_cut_and_however_often_trains_run(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = Random(seed)
    database = Embedded(tmp_path_factory.mktemp("kept") / "a.db")
    database.run(TABLE)
    changes, deltas, told = story(rng), list[Delta](), list[bool]()
    last = changes[-1][0] if changes else 0
    waiting = trains(changes, *sorted({rng.randrange(last + 1) for _ in range(rng.randrange(4))}))
    while waiting:
        train = waiting.pop(0)
        out, delta = kernel(database.url, deltas).step(signed("kn", train))
        if train and rng.random() < 0.3:  # it dies between the two commits, and its rows come again in other trains
            waiting[:0] = trains(train, rng.randrange(train[0][0], train[-1][0] + 1))
            continue
        told += refused(out)
        deltas.append(delta)
    stands: Counter[tuple[tuple[int, int], bool]] = Counter()
    for (_, kind, row), bad in zip(changes, told, strict=True):
        stands[row, bad] += 1 if kind[0] == "+" else -1
        assert stands[row, bad] >= 0, "it goes another way than it came"
    assert all(bad == (row[1] == 3) for row, bad in +stands)
    assert table(database) == sorted(row for row, bad in +stands if not bad)
    held = kernel(database.url, deltas).tables_now()[ANSWERS.name]
    assert held.num_rows == sum(stands.values())


def test_rows_without_a_key_are_refused(database: Embedded | Server) -> None:
    one = kernel(database.url)
    out, _ = one.step(signed("kn", [(0, "+I", (None, 1)), (1, "+I", (1, 1)), (2, "+I", (None, 2))]))
    assert out.rows[REASON].to_pylist() == ["column 'k' of its key is null", None, "column 'k' of its key is null"]
    out, _ = one.step(signed("kn", [(3, "-D", (None, 1)), (4, "-D", (1, 1))]))
    assert refused(out) == [True, False]
    assert table(database) == []


def test_without_corrections_it_is_the_newest_row_of_each_key(database: Embedded | Server) -> None:
    one = kernel(database.url, history=None)
    flow = signed("kn", [(i, "+I", (i % 3, i)) for i in range(8)])
    for _ in range(2):  # a replay changes nothing
        out, delta = one.step(flow.with_rows(flow.rows.drop_columns([KIND])))
        assert (delta, one.tables_now(), refused(out)) == ({}, {}, [False] * 3 + [True] + [False] * 4)
    assert table(database) == [(0, 6), (1, 7), (2, 5)]


def test_what_lies_behind_the_history_is_forgotten(tmp_path: Path) -> None:
    database = Embedded(tmp_path / "a.db")
    database.run(TABLE)
    one, deltas = kernel(database.url), list[Delta]()
    for at in range(0, 1000, 50):
        bounds = Bounds(at - 50 if at else 0, np.array([at]), np.array([at])) if at else Bounds(0)
        deltas.append(one.step(signed("kn", [(at, "+I", (at, 1))], bounds, [at]))[1])
        held = one.tables_now()[ANSWERS.name]
        assert held["_time"].to_pylist() == list(range(max(0, at - HISTORY), at + 1, 50))
    assert kernel(database.url, deltas).tables_now()[ANSWERS.name].equals(held)
    one.step(signed("kn", [(9000, "-D", (850, 1))], Bounds(950), [850]))  # the last that can go
    assert database.run("SELECT count(*) FROM t") == [(19,)]


def test_what_takes_back_a_row_that_was_lost_does_nothing_more(database: Embedded | Server) -> None:
    """The row that comes in its place does, and it is an insertion then."""
    one = kernel(database.url)
    lost = [(0, "+I", (1, 1)), (1, "-D", (7, 1)), (2, "-U", (8, 1)), (2, "+U", (8, 2))]
    out, _ = one.step(signed("kn", [*lost, (3, "-U", (1, 1)), (3, "+U", (1, 4))]))
    rows = [(one["k"], one["n"], one[KIND]) for one in out.rows.to_pylist()]
    assert rows == [
        (1, 1, Kind.INSERTION),
        (8, 2, Kind.INSERTION),
        (1, 1, Kind.UPDATE_BEFORE),
        (1, 4, Kind.UPDATE_AFTER),
    ]
    assert table(database) == [(1, 4), (8, 2)]


def test_a_row_that_the_database_does_not_let_go_is_an_error(database: Embedded | Server) -> None:
    """It was written, and stands there: to pass on that it went would be wrong."""
    hold = "CREATE TRIGGER hold BEFORE DELETE ON t "
    if isinstance(database, Embedded):
        database.run(f"{hold} BEGIN SELECT RAISE(ABORT, 'it stays'); END")
    else:
        database.run("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'it stays'; END$$")
        database.run(f"{hold} FOR EACH ROW EXECUTE FUNCTION no()")
    one = kernel(database.url)
    one.step(signed("kn", [(0, "+I", (1, 1)), (1, "-U", (1, 1)), (1, "+U", (1, 2))]))  # nothing is deleted
    with pytest.raises(TrainError, match="refuses the statement: it stays"):
        one.step(signed("kn", [(2, "+I", (5, 5)), (3, "-D", (1, 2))]))
    assert table(database) == [(1, 2)]


def test_a_table_without_such_a_key_is_an_error(database: Embedded | Server) -> None:
    database.run("DROP TABLE t", "CREATE TABLE t (k BIGINT, n BIGINT)")
    with pytest.raises(TrainError, match=r"refuses the statement: .*ON CONFLICT"):
        kernel(database.url).step(signed("kn", [(0, "+I", (1, 1))]))


# -- drawing


def draw(columns: str = "ts TIMESTAMP, k INT", *args: str, **how: Any) -> Diagram:
    d = Diagram("d")
    d.input("a", columns, key="k", history="1 hour").sql_write(*args, **how).output("out")
    return d


def test_it_is_drawn_and_read_back() -> None:
    d = draw(table="public.t", key="k", database="warehouse")
    assert Diagram.from_yaml(d.to_yaml()).spec == d.spec
    assert d.spec.box("sql_write_1").describe() == "sql_write to warehouse: table public.t by k"


WRONG = [
    ({}, "neither a statement nor a table"),
    ({"statement": "DELETE FROM t", "table": "t"}, "both a statement and a table"),
    ({"table": "t"}, "a table without a key"),
    ({"table": "t", "key": []}, "a table without a key"),
    ({"statement": "DELETE FROM t", "key": "k"}, "a key without a table"),
    ({"table": "t", "key": "q"}, "no column 'q'"),
    ({"table": "t; DROP TABLE u", "key": "k"}, "is no name of a table"),
    ({"table": "t", "key": "k", "database": "mysql://h/d"}, "no table can be kept by a key in 'mysql'"),
    ({"statement": "DELETE FROM t"}, "'a' carries corrections, .*say table= and key= in its place"),
]


@pytest.mark.parametrize(("how", "says"), WRONG, ids=[says for _, says in WRONG])
def test_what_cannot_be_is_refused_when_it_is_drawn(how: dict[str, Any], says: str) -> None:
    with pytest.raises(DiagramError, match=says):
        draw(**how)
