"""The machines of further copies: what may be acknowledged with regard to all of them."""

from __future__ import annotations

from functools import partial

from borealis.entry.admission import Cursor
from borealis.ha.backup import Backup
from borealis.ha.copies import FurtherCopies
from borealis.ha.primary import Active, Want
from borealis.trains.commit_point import CommitPoint


def step(train: int) -> CommitPoint:
    return CommitPoint(train, 0, {"a": Cursor(10 * train)}, {"o": (train, train)})


def copies() -> FurtherCopies:
    return FurtherCopies(partial(Active, 0.1, False, False, True, asks=True))


def sent(some: FurtherCopies, node: str, now: float = 0.0) -> Want:
    want = some.machines[node].want(now, {})
    assert want is not None
    return want


def committed(some: FurtherCopies, train: int) -> int:
    """Up to where the input is acknowledged by a primary that would, but for the copies."""
    some.committed(step(train))
    return some.least(step(train).positions()).ack["a"]


def test_without_copies_nothing_is_held_back() -> None:
    assert [committed(copies(), train) for train in (1, 2)] == [10, 20]


def test_an_input_is_kept_for_a_copy_until_that_reads_for_itself() -> None:
    some = copies()
    assert committed(some, 1) == 10
    some.are(["n3"], step(1))
    assert [committed(some, train) for train in (2, 3)] == [10, 10]
    asked = sent(some, "n3")
    assert asked.kind == "facts", "it may run already"
    some.machines["n3"].rejected()
    whole = sent(some, "n3")
    assert (whole.kind, whole.step) == ("whole", step(3))
    assert committed(some, 4) == 10
    assert some.acknowledged("n3", whole.number).ack == {"a": 30}, "from there on it reads"
    assert committed(some, 5) == 50


def test_the_slowest_of_several_counts_and_one_that_is_gone_does_not() -> None:
    some = copies()
    some.are(["n3", "n4"], step(0))
    quick = sent(some, "n3")
    assert committed(some, 1) == 0
    assert some.acknowledged("n3", quick.number).ack == {"a": 0}
    assert committed(some, 2) == 0
    assert some.are(["n3"], step(2)).ack == {"a": 20}
    assert some.acknowledged("n4", 1).ack == {"a": 20}, "it is no more"


def test_one_that_loses_the_thread_is_waited_for_again() -> None:
    some = copies()
    some.are(["n3"], step(0))
    some.acknowledged("n3", sent(some, "n3").number)
    assert committed(some, 3) == 30
    sent(some, "n3", now=1.0)
    some.machines["n3"].rejected()
    assert committed(some, 4) == 30
    assert sent(some, "n3", now=2.0).kind == "whole"


def facts(train: int, since: int = 0) -> Want:
    return Want("facts", train, since, step(train))


def test_a_copy_by_time_goes_on_with_another_primary() -> None:
    """It comes to the same by itself, however the trains of the other were cut, and whatever it has missed of them."""
    one = Backup("replicas", False, False, True, 1)
    assert one.receive(1, facts(5)) == "whole"
    assert one.receive(1, Want("whole", 1, 0, step(5))) == "take"
    assert one.receive(2, facts(2, since=1)) == "take"
    assert (one.incarnation, one.step) == (2, step(2))
    assert one.receive(1, facts(9)) == "deposed"
    assert one.receive(2, facts(1)) == "known"
    one.follow_on(4)
    assert one.receive(3, facts(9)) == "deposed"
    assert one.receive(4, facts(1)) == "take", "the first word of the primary that it was given"
    assert one.receive(4, facts(9, since=7)) == "take"
    assert one.take_over() is not None
    assert one.incarnation == 5


def test_a_standby_of_streams_as_they_arrive_begins_again_with_another_primary() -> None:
    one = Backup("active", True, True, True, 1)
    assert one.receive(1, Want("whole", 1, 0, step(5))) == "take"
    assert one.receive(2, facts(6, since=5)) == "whole"
