"""What holds of nodes, publishers and readers: each check fires on what is wrong, and only on that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from borealis.sim.invariants import (
    AfterFaults,
    Fed,
    Given,
    Guarded,
    InputRecord,
    ServedSpan,
    acked_and_lost,
    deposed_heard,
    inconsistent,
    stuck,
    two_primaries,
)
from borealis.tuples import LAST_TIME

BATCHES = {"p": {0: [(1,), (2,)], 1: [(3,)]}, "q": {0: [(3,)]}}
PROTECTED = InputRecord("left", BATCHES, approach="passive", guarantee="precise", node_died=True)


def test_what_was_acknowledged_must_be_found() -> None:
    assert acked_and_lost(replace(PROTECTED, found=[(3,), (1,), (2,), (3,), (9,)])) == []
    [fault] = acked_and_lost(replace(PROTECTED, found=[(1,), (2,), (3,)]))  # one of two equal rows
    assert "batch 0 of q" in fault
    [fault] = acked_and_lost(replace(PROTECTED, found=[(2,), (3,), (3,)]))
    assert "batch 0 of p (1 of 2 rows: [(1,)])" in fault
    [fault] = acked_and_lost(replace(PROTECTED, found=[(1,), (2,)]))
    assert "batch 1 of p (1 of 1 rows: [(3,)]), batch 0 of q (1 of 1 rows: [(3,)])" in fault


def test_the_entry_point_must_have_what_was_acknowledged() -> None:
    assert acked_and_lost(replace(PROTECTED, taken={"p": 1, "q": 4})) == []
    [fault] = acked_and_lost(replace(PROTECTED, taken={"p": 0, "q": 0}))
    assert "batch 1 of p" in fault
    [fault] = acked_and_lost(replace(PROTECTED, taken={"p": 1}))
    assert "batch 0 of q" in fault
    [fault] = acked_and_lost(PROTECTED)
    assert fault.startswith("unknown")


@pytest.mark.parametrize(
    ("happened", "excused"),
    [
        ({"approach": "passive", "guarantee": "gap", "node_died": True}, False),
        ({"approach": "passive", "guarantee": "gap", "both_died": True}, True),
        ({"approach": "passive", "guarantee": "precise", "both_died": True}, False),
        ({"approach": "passive", "guarantee": "precise", "both_died": True, "loss_known": True}, True),
        ({"approach": "passive", "guarantee": "precise", "loss_known": True}, False),
        ({"approach": "amnesia", "guarantee": "gap", "node_died": True}, True),
        ({"approach": "amnesia", "guarantee": "gap"}, False),
        ({"approach": "none", "node_died": True}, True),
        ({"approach": "none", "node_died": True, "durable": True}, False),
        ({"approach": "none"}, False),
    ],
)
def test_a_loss_is_excused_only_where_nothing_better_was_promised(happened: dict[str, Any], excused: bool) -> None:
    assert (acked_and_lost(InputRecord("left", BATCHES, found=[], **happened)) == []) is excused


FIRST = ServedSpan("node1", "d", "u1", 1, 0.0, 5.0)


@pytest.mark.parametrize(
    ("second", "right"),
    [
        (ServedSpan("node2", "d", "u1", 2, 4.0, 9.0), True),  # a deposed primary may go on for a while
        (ServedSpan("node2", "d", "u1", 1, 4.0, 9.0), False),
        (ServedSpan("node2", "d", "u1", 1, 6.0, 9.0), False),
        (ServedSpan("node1", "d", "u1", 1, 6.0, 9.0), True),
        (ServedSpan("node2", "d", "u2", 1, 4.0, 9.0), True),
        (ServedSpan("node2", "d", "u1", 1, 4.0, 9.0, epoch="later"), True),
    ],
)
def test_an_incarnation_is_served_by_one_node(second: ServedSpan, right: bool) -> None:
    assert (two_primaries([second, FIRST]) == []) is right


def test_a_unit_that_moves_keeps_its_incarnation() -> None:
    moved = replace(FIRST, handed_over=True)
    assert two_primaries([moved, ServedSpan("node2", "d", "u1", 1, 5.0, 9.0)]) == []
    assert two_primaries([moved, ServedSpan("node2", "d", "u1", 1, 4.0, 9.0)])


def test_a_reader_believes_no_deposed_primary() -> None:
    rising = [Fed("r", "d/x", "e", n, float(n)) for n in (1, 1, 2, 3)]
    others = [Fed("r", "d/x", "f", 1, 5.0), Fed("s", "d/x", "e", 1, 5.0), Fed("r", "d/y", "e", 1, 5.0)]
    assert deposed_heard([*rising, *others, Fed("r", "d/x", "e", 0, 6.0)]) == []
    [fault] = deposed_heard([*rising, Fed("r", "d/x", "e", 2, 6.0)])
    assert fault == "r got tuples of d/x from incarnation 2 behind 3 at 6.000 s"


def test_what_is_tentative_may_be_taken_back() -> None:
    good = [Given(0, 3), Given(3, 7, "f"), Given(7, 8, "f"), Given(3, 3, undo=True), Given(3, 5)]
    good += [Given(5, 5, done=True), Given(5, 6, "g")]
    assert inconsistent(good, ended=False) == []
    [fault] = inconsistent(good, ended=True)
    assert fault == "it has ended, and nobody said that fork g is void"
    [fault] = inconsistent([*good, Given(5, 5, undo=True), Given(5, 6)], ended=True)
    assert fault == "it has ended, and nobody said that recovery is done"


EARLY = [Given(3, 5, "f", bound=50), Given(3, 3, undo=True), Given(3, 4, bound=40), Given(4, 4, done=True, bound=40)]


@pytest.mark.parametrize(
    ("then", "words"),
    [
        ([*EARLY, Given(4, 4, bound=LAST_TIME)], None),
        ([Given(3, 5, "f"), Given(2, 2, undo=True)], "tuples from 2 on were taken back, and stable up to 3"),
        ([Given(3, 5)], None),
        ([Given(2, 5)], "stable tuples 2 to 5 came again"),
        ([Given(0, 5, life=1)], None),
        ([Given(3, 5, "f"), Given(3, 4)], "stable tuples 3 to 4 came, and nobody said that fork f is void"),
        ([Given(3, 5, "f"), Given(3, 4, "g")], "tuples of fork g came, and nobody said that those of f are void"),
        (
            [Given(3, 5, "f"), Given(3, 3, undo=True), Given(5, 6, "f")],
            "tentative tuples 5 to 6 came of a fork that is void",
        ),
        ([Given(3, 3, done=True)], "recovery is done at 3, and of nothing"),
        ([Given(3, 5, "f"), Given(3, 3, done=True)], "recovery is done at 3, and fork f stands"),
        (
            [*EARLY, Given(4, 5, bound=60)],
            "recovery is done at 4, 40: what was void had come to 50",
        ),
    ],
)
def test_what_is_stable_may_not(then: list[Given], words: str | None) -> None:
    assert inconsistent([Given(0, 3), *then], ended=False) == ([words] if words else [])


def test_what_recovers_in_time_is_not_stuck() -> None:
    guarded = (Guarded("d/u1", "protected", since=12.0), Guarded("d/left", "watching", since=9.0))
    assert stuck(AfterFaults(10.0, 30.0, guarded, {"d/out": 14.0}), 5.0, 5.0) == []


@pytest.mark.parametrize(
    ("guarded", "flowing", "words"),
    [
        (Guarded("d/u1", "alone", "no able node"), 11.0, "healed d/u1 is not protected: it is alone (no able node)"),
        (Guarded("d/u1", "protected", since=16.0), 11.0, "d/u1 was protected again only 6.0 s after"),
        (Guarded("d/u1", "watching", since=10.0), None, "d/out gave no row that was published since"),
        (Guarded("d/u1", "watching", since=10.0), 17.5, "d/out gave a row again only 7.5 s after"),
    ],
)
def test_what_does_not_is(guarded: Guarded, flowing: float | None, words: str) -> None:
    [fault] = stuck(AfterFaults(10.0, 30.0, (guarded,), {"d/out": flowing}), 5.0, 5.0)
    assert words in fault


def test_a_look_that_came_too_early_does_not_know() -> None:
    [fault] = stuck(AfterFaults(10.0, 12.0, (Guarded("d/u1", "catching up"),)), 5.0, 5.0)
    assert fault.startswith("unknown")
