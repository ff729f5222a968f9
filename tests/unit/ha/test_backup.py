"""The backup's machine, one message after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from borealis.entry.admission import Cursor
from borealis.ha.backup import Approach, Backup
from borealis.ha.primary import Want
from borealis.trains.commit_point import CommitPoint
from borealis.trains.merging import Replay


def step(train: int) -> CommitPoint:
    return CommitPoint(train, 0, {"a": Cursor(10 * train), "b": Cursor(10 * train)}, {"o": (train, train)})


def want(kind: Any, train: int, *, since: int = 0, start: int | None = None, done: int | None = None) -> Want:
    """A message up to a train, with the orders of all trains behind `since`."""
    orders = tuple((t, (("a", 10 * t, t), ("b", 10 * t, t))) for t in range(since + 1, train + 1))
    begin, end = (None if t is None else step(t) for t in (start, done))
    return Want(kind, train, since, step(train), begin, end, orders)


def backup(approach: Approach = "passive", *, precise: bool = True) -> Backup:
    return Backup(approach, True, True, precise, 1)


def test_only_the_whole_helps_one_that_knows_nothing() -> None:
    one = backup()
    assert one.take_over() is None
    one = backup()
    assert one.receive(1, want("delta", 1)) == "whole"
    assert one.receive(1, want("whole", 1)) == "take"
    assert one.receive(1, want("delta", 2, since=1)) == "take"


def test_what_comes_late_or_again_is_known_or_harmless() -> None:
    one = backup()
    for message in (want("whole", 3), want("delta", 5, since=3)):
        one.receive(1, message)
    assert one.receive(1, want("delta", 4, since=3)) == "known"
    assert one.receive(1, want("whole", 4)) == "known"
    assert one.receive(1, want("delta", 6, since=3)) == "take"  # it overlaps
    assert one.step == step(6)


def test_one_that_was_not_given_all_output_takes_the_whole_again() -> None:
    one = backup()
    one.receive(1, want("whole", 3))
    assert one.receive(1, want("whole", 3)) == "known"
    assert one.receive(1, replace(want("delta", 4, since=3), starts={"o": 4})) == "take"
    assert one.receive(1, want("whole", 4)) == "take"
    assert one.receive(1, want("whole", 4)) == "known"


def test_a_gap_asks_for_the_whole() -> None:
    one = backup()
    one.receive(1, want("whole", 3))
    assert one.receive(1, want("delta", 6, since=5)) == "whole"
    assert one.step == step(3)


def test_it_goes_on_only_where_it_knows_all_that_readers_have() -> None:
    one = backup()
    whole = replace(want("whole", 3), complete=False)
    assert one.receive(1, whole) == "take"
    assert not one.can_take_over
    assert one.receive(1, replace(want("delta", 5, since=3), complete=False)) == "take"
    assert not one.can_take_over
    assert one.receive(1, want("delta", 5, since=5)) == "take"
    assert one.can_take_over
    assert one.receive(1, whole) == "known"  # it was under way for long
    assert one.can_take_over
    early = backup()
    early.receive(1, whole)
    assert early.take_over() is None


def test_a_whole_that_says_that_readers_have_no_more_is_news() -> None:
    one = backup()
    one.receive(1, replace(want("whole", 3), complete=False))
    assert one.receive(1, want("whole", 3)) == "take"
    assert one.can_take_over


def test_a_late_whole_with_the_same_train_takes_nothing_back() -> None:
    one = backup("upstream-backup")
    late = replace(want("whole", 9, start=1, done=2), complete=False)
    for message in (late, want("facts", 9, since=9, start=1, done=2), late):
        assert one.receive(1, message) == "take"
    assert one.can_take_over
    assert one.receive(2, late) == "take"  # of another primary
    assert not one.can_take_over


def test_a_lower_incarnation_is_deposed_and_a_higher_one_begins_with_the_whole() -> None:
    one = Backup("passive", True, True, True, 3)
    assert one.receive(2, want("whole", 1)) == "deposed"
    one.receive(3, want("whole", 9))
    assert one.receive(4, want("delta", 10, since=9)) == "whole"
    assert one.receive(4, want("whole", 2)) == "take"
    assert (one.incarnation, one.step) == (4, step(2))


def test_whoever_took_over_deposes_everybody() -> None:
    one = backup()
    one.receive(1, want("whole", 1))
    assert one.take_over() is not None
    assert one.incarnation == 2
    assert one.receive(1, want("delta", 2, since=1)) == "deposed"
    assert one.receive(2, want("delta", 2, since=1)) == "deposed"


def test_a_late_message_with_an_earlier_start_does_not_take_it_back() -> None:
    one = backup("upstream-backup")
    one.receive(1, want("whole", 9, start=1, done=2))
    assert one.receive(1, want("facts", 9, since=9, start=6, done=7)) == "take"  # inputs before 60 may go now
    assert one.receive(1, want("facts", 9, since=9, start=1, done=2)) == "known"
    assert one.receive(1, want("whole", 9, start=1, done=2)) == "known"
    assert one.start == step(6)


@pytest.mark.parametrize("precise", [True, False])
def test_upstream_reads_again_in_silence_what_readers_have(precise: bool) -> None:
    one = backup("upstream-backup", precise=precise)
    one.receive(1, want("whole", 4, since=1, start=1, done=3))
    resume = one.take_over()
    assert resume is not None
    assert (resume.begin, resume.outputs, resume.jump) == (step(1), {"o": (3, 3)}, not precise)
    if precise:
        orders = {t: (("a", 10 * t, t), ("b", 10 * t, t)) for t in (2, 3, 4)}
        assert resume.replays == (Replay(orders[2], silent=True), Replay(orders[3], silent=True), Replay(orders[4]))
        assert resume.until == {"a": (40, step(4).inputs["a"].boundary), "b": (40, step(4).inputs["b"].boundary)}
    else:
        assert [replay.silent for replay in resume.replays] == [True]
        assert [(name, at) for name, at, _ in resume.replays[0].order] == [("a", 30), ("b", 30)]


def test_orders_are_kept_only_as_far_back_as_they_are_needed() -> None:
    one = backup("upstream-backup")
    one.receive(1, want("whole", 4, start=0, done=0))
    one.receive(1, want("facts", 8, since=4, start=6, done=7))
    assert sorted(one.orders) == [7, 8]
    parallel = backup("active")
    parallel.receive(1, want("whole", 4))
    parallel.receive(1, want("facts", 8, since=4))
    assert not parallel.orders  # they are followed at once


def test_one_that_runs_in_parallel_is_told_each_order_once() -> None:
    one = backup("active")
    assert [replay.order[0][2] for replay in one.follow(want("facts", 6, since=2), 4)] == [5, 6]


@pytest.mark.parametrize(
    ("approach", "precise", "jumps"), [("amnesia", True, True), ("active", False, True), ("active", True, False)]
)
def test_ids_jump_where_nobody_knows_what_they_were(approach: Approach, precise: bool, jumps: bool) -> None:
    one = backup(approach, precise=precise)
    one.receive(1, want("whole", 1))
    resume = one.take_over()
    assert resume is not None
    assert resume.jump is jumps
    assert (resume.begin is None) is (approach == "amnesia")
