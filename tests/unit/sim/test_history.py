"""Histories of outputs that no list of shapes knows: what is judged, what is left alone. See also test_matrix.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from borealis.sim.history import History, Received, Row, Shape, check, plain
from borealis.streams.id_gaps import JUMP

TRUTH: list[Row] = [("a", 1), ("a", 1), ("b", None), ("c", 2)]
SHAPE = Shape(lambda _: TRUTH, ("s", "n"))


def history(rows: Sequence[Row] = TRUTH, guarantee: str = "precise", **facts: Any) -> History:
    received = [Received(number, number, row) for number, row in enumerate(rows)]
    usual = {"approach": "passive", "received": received, "ended": True, "shape": SHAPE}
    return History("case", "out", guarantee=guarantee, **usual | facts)


@pytest.mark.parametrize("guarantee", ["gap", "no-loss", "precise"])
def test_equal_rows_are_right_as_often_as_they_are_true(guarantee: str) -> None:
    assert check(history(guarantee=guarantee)) == []


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (TRUTH[1:], "1 missing: [('a', 1)]"),
        ([*TRUTH, ("a", 1)], "1 too often: [('a', 1)]"),
        ([*TRUTH, ("c", 3)], "1 wrong: [('c', 3)]"),
        ([*TRUTH[:2], ("b", 0), TRUTH[3]], "1 missing: [('b', None)]"),
    ],
)
def test_lost_twice_and_wrong_are_found(rows: list[Row], words: str) -> None:
    assert words in check(history(rows))


def test_holes_and_disorder_are_found() -> None:
    apart = history()
    apart.received[3] = replace(apart.received[3], id=9)
    assert check(apart) == ["1 ids that do not follow each other: [(2, 9)]"]
    mixed = history([TRUTH[3], *TRUTH[:3]], shape=replace(SHAPE, order=0))
    assert check(mixed) == ["1 out of order: [(('c', 2), ('a', 1))]"]


def test_equal_rows_may_come_again_behind_a_jump_only() -> None:
    shape = replace(SHAPE, arbitrary=True)
    again = [Received(JUMP + n, n, row) for n, row in enumerate(TRUTH)]
    struck = history(shape=shape, guarantee="no-loss", struck=True)
    struck.received += again
    assert check(struck) == []
    before = history([*TRUTH, ("a", 1)], shape=shape, guarantee="no-loss", struck=True)
    assert check(before) == ["1 too often: [('a', 1)]"]


def test_what_diverges_is_judged_until_it_is_struck() -> None:
    shape = replace(SHAPE, arbitrary=True, diverges=True)
    other = [*TRUTH[:3], ("c", 4)]
    assert check(history(other, "no-loss", shape=shape))
    assert check(history(other, "no-loss", shape=shape, struck=True)) == []
    assert check(history(other, "precise", shape=shape, struck=True))


def test_rows_that_cannot_be_known_are_not_judged_but_their_ids_are() -> None:
    shape = replace(SHAPE, known=False)
    assert check(history([("x", 9)], shape=shape)) == []
    assert check(history([("x", 9)], "gap", shape=shape)) == []
    hole = history([("x", 9)], shape=shape)
    hole.received[0] = replace(hole.received[0], id=3)
    assert check(hole)


def test_nothing_that_is_said_to_flow_on_is_judged_where_no_moment_is_known() -> None:
    assert check(history(moment=None)) == []
    assert check(history(moment=2)) == []
    [fault] = check(history(moment=3))
    assert "nothing that was published after the failure came" in fault


def test_a_check_changes_nothing() -> None:
    one = history(gaps=1)
    assert check(one) == check(one) == ["1 gaps"]


def test_a_history_is_written_as_lines(tmp_path: Path) -> None:
    one = history(events=[{"at": 1.5, "what": "killed"}])
    one.write(tmp_path / "one.jsonl")
    facts, event, *rows = map(json.loads, (tmp_path / "one.jsonl").read_text().splitlines())
    assert (facts["output"], event["what"], rows[0]["row"]) == ("out", "killed", ["a", 1])


def test_rows_are_plain_whatever_their_types() -> None:
    times = pa.array([1_700_000_000_000_001], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"t": times, "s": [{"a": [1], "b": None}], "f": [1.5], "x": ["y"]})
    assert plain(batch, ("t", "s", "f")) == [(1_700_000_000_000_001, (("a", (1,)), ("b", None)), 1.5)]
    assert plain(batch, ()) == [()]
