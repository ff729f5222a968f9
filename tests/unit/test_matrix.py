"""The matrix of failures: its cover has every pair; its check finds what is tampered with, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from borealis import Diagram
from borealis.diagram.boxes import BOXES
from borealis.diagram.cut import cut
from borealis.diagram.protection import CHECKPOINTS
from borealis.sim.history import History, Received, check
from borealis.sim.shapes import ALL_GROUPS, GROUPS, SHAPES, START_US, STEP_US
from borealis.streams.id_gaps import HOP

sys.path.insert(0, str(Path(__file__).parents[1] / "chaos"))

from matrix import (
    BACKUPS,
    BLOWS,
    KILLED,
    Case,
    Deployed,
    Strike,
    box_strike,
    brief,
    brief_boxes,
    by_the_clock,
    cover,
    other_checkpoints,
    pairs,
    rounds,
    straight,
    whole,
)

pytestmark = pytest.mark.long
ROWS = 1800


def told(shape: str, guarantee: str, approach: str = "passive") -> History:
    """A history in which all went well."""
    published = dict.fromkeys(("left", "right", "other", "fixed"), ROWS)
    last = START_US + ROWS * STEP_US
    received = [Received(number, last, row) for number, row in enumerate(SHAPES[shape].truth(published))]
    moment = START_US + ROWS // 2 * STEP_US
    return History(
        "case",
        shape,
        SHAPES[shape],
        approach,
        guarantee,
        published=published,
        moment=moment,
        received=received,
        ended=True,
    )


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
    history.received[:] = head + [replace(r, id=HOP + i) for i, r in enumerate(tail)]
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
    history.received[3] = replace(one, row=(*one.row[:-1], one.row[-1] - 1))
    assert check(history) == []
    history.received[3] = replace(one, row=(*one.row[:-1], one.row[-1] + 1))
    assert check(history)


def test_a_stateless_diagram_that_forgets_repeats_nothing() -> None:
    history = told("chain", "gap", "amnesia")
    repeat_under_new_ids(history)
    assert check(history)


@pytest.mark.parametrize("shape", SHAPES)
def test_where_both_copies_died_a_loss_must_be_told(shape: str) -> None:
    history = told(shape, "precise")
    lose(history)
    history.both_died = True
    assert check(history)
    history.gaps = 1
    assert check(history) == []
    history.both_died = False
    assert check(history)


def test_the_cover_has_every_pair_and_is_small() -> None:
    everything = by_the_clock(whole())
    few = cover(everything)
    assert {p for c in everything for p in pairs(c)} == {p for s in few for c in s.cases for p in pairs(c)}
    assert len(few) <= 16 < len(everything)
    assert cover(everything) == few


def test_the_brief_form_has_every_blow_once_and_kills_under_every_approach() -> None:
    found = brief(rounds(cover(by_the_clock(whole()))))
    assert sorted(strike.blow for one in found for strike in one) == sorted(BLOWS)
    strict = [one for one in (*found, [brief_boxes(box_strike())]) if "rejoin" not in {s.blow for s in one}]
    killed = {d.approach for one in strict for s in one if s.blow in ("upstream", "last") for d in s.diagrams}
    assert killed == set(KILLED)
    assert {d.checkpoint for one in strict for s in one if s.blow == "upstream" for d in s.diagrams} == set(CHECKPOINTS)


def test_the_whole_matrix_has_every_case_once() -> None:
    assert sorted(map(str, whole())) == sorted(str(case) for strike in straight(whole()) for case in strike.cases)
    sorts = {(case.approach, case.checkpoint) for case in whole()}
    assert sorts == {(approach, "interval") for approach in KILLED} | {("passive", when) for when in CHECKPOINTS}


@pytest.mark.parametrize("some", [cover, straight], ids=lambda f: f.__name__)
def test_rounds_share_deployments_and_lose_no_strike(some: Callable[[list[Case]], list[Strike]]) -> None:
    cases = by_the_clock(whole()) if some is cover else whole()
    found = rounds(some(cases))
    assert sorted(map(str, some(cases))) == sorted(str(strike) for one in found for strike in one)
    for one in found:
        assert len({strike.diagrams for strike in one}) == 1
        assert len({strike.blow for strike in one}) == len(one)


@pytest.mark.parametrize("group", GROUPS)
def test_a_diagram_falls_into_three_units_whose_backups_are_elsewhere(group: str) -> None:
    deployed = Deployed("passive", "precise", group, "sweeping")
    pieces = cut(Diagram.from_yaml(deployed.yaml).spec, (), deployed.places)
    assert [(piece.name, piece.boxes) for piece in pieces] == list(zip(BACKUPS, GROUPS[group].units, strict=True))
    assert all(piece.place != BACKUPS[piece.name] for piece in pieces)


def test_each_box_dies_under_each_approach() -> None:
    strike = box_strike()
    found = {(one.approach, one.group): one.guarantee for one in strike.diagrams}
    ways = {"amnesia": "gap", "passive": "precise", "active": "precise", "upstream-backup": "gap"}
    assert found == {(approach, "all"): best for approach, best in ways.items()} | {
        ("upstream-backup", "light"): "precise",
        ("passive", "corrected"): "precise",
    }
    few = [(one.approach, one.group, one.checkpoint) for one in brief_boxes(strike).diagrams]
    others = [("amnesia", "all"), ("upstream-backup", "light"), ("passive", "corrected")]
    assert sorted(few) == sorted([*((*one, "interval") for one in others), ("passive", "all", "min-max")])
    assert {one.checkpoint for one in (*strike.diagrams, *other_checkpoints().diagrams)} == set(CHECKPOINTS)
    drawn = [Diagram.from_yaml(Deployed("amnesia", "gap", group).yaml).validate() for group in ALL_GROUPS]
    rest = {"revisions"}  # of an output, which simulated runs have
    assert {box.kind for spec in drawn for box in spec.boxes} >= BOXES.keys() - rest
