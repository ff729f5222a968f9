"""The matrix of failures: its cover has every pair; its check finds what is tampered with, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from borealis import Diagram
from borealis.plan.batch import batch

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from history import JUMP, History, Received, check
from matrix import VICTIM, VICTIMS, Case, cover, pairs, rounds, whole
from shapes import SHAPES, START_US, STEP_US, rows

ROWS = 1800


def told(shape: str, guarantee: str, approach: str = "passive") -> History:
    """A history in which all went well."""
    published = dict.fromkeys(SHAPES[shape].inputs, ROWS)
    truth = SHAPES[shape].truth(published)
    last = START_US + ROWS * STEP_US
    received = [Received(number, last, row) for number, row in enumerate(truth)]
    return History("case", shape, approach, guarantee, False, published, ROWS // 2, received, ended=True)


def lose(history: History) -> None:
    del history.received[7]


def lose_quietly(history: History) -> None:
    history.received[:] = [replace(r, id=i) for i, r in enumerate(history.received[:7] + history.received[8:])]


def repeat(history: History) -> None:
    history.received.insert(8, history.received[7])


def repeat_under_new_ids(history: History) -> None:
    twice = history.received[:8] + history.received[7:]
    history.received[:] = [replace(r, id=i) for i, r in enumerate(twice)]


def alter(history: History) -> None:
    one = history.received[7]
    history.received[7] = replace(one, row=(*one.row[:-1], one.row[-1] + 10**7))


def stop_early(history: History) -> None:
    history.received[:] = [replace(r, time=START_US) for r in history.received[:20]]


def never_end(history: History) -> None:
    history.ended = False


def complain(history: History) -> None:
    history.trouble.append("the reader failed")


TAMPERED = (lose, lose_quietly, repeat, repeat_under_new_ids, alter, stop_early, never_end, complain)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("guarantee", ["gap", "no-loss", "precise"])
def test_what_is_right_is_found_right(shape: str, guarantee: str) -> None:
    assert check(told(shape, guarantee)) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("guarantee", ["no-loss", "precise"])
def test_what_is_tampered_with_is_found(shape: str, guarantee: str, tamper: Callable[[History], None]) -> None:
    history = told(shape, guarantee)
    tamper(history)
    assert check(history)


@pytest.mark.parametrize("shape", ["chain", "aggregate", "two"])
def test_another_order_is_found(shape: str) -> None:
    history = told(shape, "precise")
    rows = [r.row for r in history.received]
    rows[0], rows[-1] = rows[-1], rows[0]
    history.received[:] = [replace(r, row=row) for r, row in zip(history.received, rows, strict=True)]
    assert check(history)


@pytest.mark.parametrize("shape", ["join", "union"])
def test_behind_a_jump_rows_may_come_again_and_none_may_be_missing(shape: str) -> None:
    history = told(shape, "no-loss")
    head, tail = history.received[:50], history.received[40:]
    history.received[:] = head + [replace(r, id=JUMP + i) for i, r in enumerate(tail)]
    assert check(history)
    history.struck = True
    assert check(history) == []
    del history.received[60]  # its only copy
    assert check(history)


@pytest.mark.parametrize("shape", SHAPES)
def test_gap_recovery_may_lose_and_may_not_invent(shape: str) -> None:
    history = told(shape, "gap", "amnesia")
    lose(history)
    assert check(history) == []
    alter(history)
    assert check(history)


def test_gap_recovery_may_count_less_and_not_more() -> None:
    history = told("aggregate", "gap", "amnesia")
    one = history.received[3]
    history.received[3] = replace(one, row=(*one.row[:2], one.row[2] - 1))
    assert check(history) == []
    history.received[3] = replace(one, row=(*one.row[:2], one.row[2] + 1))
    assert check(history)


def test_a_stateless_diagram_that_forgets_repeats_nothing() -> None:
    history = told("chain", "gap", "amnesia")
    repeat_under_new_ids(history)
    assert check(history)


def test_the_cover_has_every_pair_and_is_small() -> None:
    everything, few = whole(), cover(whole())
    assert {p for c in everything for p in pairs(c)} == {p for c in few for p in pairs(c)}
    assert len(few) <= 45 < len(everything)
    assert cover(whole()) == few


def test_rounds_have_one_victim_and_lose_no_case() -> None:
    few = cover(whole())
    found = rounds(few, 3)
    assert sorted(c.name for one in found for c in one) == sorted(c.name for c in few)
    assert all(len({c.victim for c in one}) == 1 and len(one) <= 3 for one in found)


@pytest.mark.parametrize("victim", VICTIMS)
def test_only_the_victim_is_on_its_node(victim: str) -> None:
    case = Case("passive", "precise", "chain", victim)
    roles = [role for role, node in [*case.places.items(), *case.backups.items()] if node == VICTIM]
    assert len(roles) == {"coordinator": 0, "backup": 3}.get(victim, 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_have_the_columns_of_their_input(shape: str) -> None:
    for name in SHAPES[shape].inputs:
        assert rows(shape, name, 3, 5).num_rows == 2


@pytest.mark.parametrize("shape", SHAPES)
def test_the_truth_is_that_of_the_batch_form(spark: SparkSession, shape: str) -> None:
    spec = Diagram.from_yaml(Case("passive", "precise", shape, "middle").yaml).spec
    counts = {name: 400 - 30 * number for number, name in enumerate(SHAPES[shape].inputs)}
    frames = {
        name: spark.createDataFrame(pa.Table.from_batches([rows(shape, name, 0, count)]))
        for name, count in counts.items()
    }
    table = batch(spec, spark, frames)["out"].toArrow()
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    found = sorted(zip(*(c.to_pylist() for c in columns), strict=True))
    assert found == sorted(SHAPES[shape].truth(counts))
