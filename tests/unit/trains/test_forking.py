"""Forks of a unit's input: when they begin, what they read, and when they are over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from borealis.entry.admission import Cursor
from borealis.streams.section import Section
from borealis.streams.status import StreamState
from borealis.trains.forking import NOTICE_S, Arrivals, ForkRelay
from borealis.trains.merging import Merged
from borealis.trains.relay import Relay, StreamInput
from borealis.tuples import FIRST_TIME, LAST_TIME
from forked_input import PATIENCE_S, SCHEMA, ForkedInput


def one_undo() -> Section:
    none = np.empty(0, np.int64)
    return Section(0, pa.record_batch([none], schema=SCHEMA), none, none, none, undo=True)


def test_what_waits_too_long_is_read_without_what_is_missing_and_then_again(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("a", [1, 5, 12], 12)
    unit.give("b", [2, 11], 11)
    assert unit.stable == [1, 2, 5]
    unit.give("a", [31, 33], 33)  # and b is cut off
    unit.wait(PATIENCE_S / 2 - 0.1)
    assert not unit.prepared
    unit.wait(PATIENCE_S / 2)
    assert unit.prepared == [1]  # all is ready for it
    assert not unit.begun  # but a short failure is masked
    unit.wait(0.1)
    assert unit.begun == [1]
    assert unit.fork is not None
    assert unit.fork.order.missing == {"b"}
    assert unit.tentative == [11, 12, 31, 33]
    unit.give("a", [45, 52], 52)  # what comes now does not wait
    assert unit.tentative[4:] == [45]
    unit.give("b", [14], 14)  # of what comes back, what the fork has done without is not for it
    assert (unit.stable, unit.tentative[5:]) == ([1, 2, 5], [])
    assert not unit.recovered
    unit.give("b", [44, 53, 60], 60)
    assert unit.recovered == 1
    assert unit.stable == [1, 2, 5, 11, 12, 14, 31, 33, 44, 45]
    assert unit.tentative[5:] == [-1]  # the fork is over
    unit.give("a", [61], 61)
    assert unit.stable[10:] == [52, 53]
    assert (unit.begun, unit.recovered) == ([1], 1)


def test_recovery_is_not_done_when_a_fork_is_renewed(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    for name in "ab":
        unit.give(name, [], 10)
    unit.give("a", [11, 31, 51], 52)
    unit.wait(PATIENCE_S)
    assert unit.tentative == [11, 31, 51]
    unit.give("b", [21], 22)  # and is cut off again
    assert unit.stable == [11]
    unit.wait(PATIENCE_S)
    assert (unit.begun, unit.recovered) == ([1, 2], 0)
    unit.give("b", [61], 62)
    assert unit.fork is not None, "the fork has read more than that"
    unit.give("a", [], 80)
    unit.give("b", [], 80)
    assert (unit.fork, unit.recovered) == (None, 1)
    assert unit.stable == [11, 21, 31, 51, 61]


def test_recovery_is_done_when_the_trunk_has_what_a_fork_read_that_was_given_up(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("a", [11, 31], 32)
    unit.wait(PATIENCE_S)
    assert unit.begun == [1]
    unit.forks, unit.busy = False, True
    unit.forking.end()
    for bound in (32, 52):
        unit.give("b", [12] if bound == 32 else [], bound)
    unit.give("a", [], 52)
    assert not unit.recovered
    unit.busy = False
    unit.read()
    assert (unit.stable, unit.recovered) == ([11, 12, 31], 1)


def test_recovery_is_done_with_the_trains_that_are_committed(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("a", [11], 32)
    unit.wait(PATIENCE_S)
    unit.forks = False
    unit.forking.end()
    unit.trunk.add(unit.trunk.cut(Merged([])))  # an earlier one is under way
    unit.busy = True
    for bound in (32, 52):
        unit.give("b", [], bound)
    unit.give("a", [], 52)
    unit.trunk.add(unit.trunk.cut(unit.order.next()))
    unit.forking.settle()
    assert not unit.recovered
    for number in (1, 2):
        unit.trunk.release(number)
        unit.trunk.add(unit.trunk.cut(Merged([])))  # what is made meanwhile does not matter
        unit.forking.settle()
        assert unit.recovered == number - 1


def test_recovery_is_done_when_it_is_done_upstream(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    for name in "ab":
        unit.give(name, [], 10)
    unit.give("a", [21], 25, fork="f")
    unit.give("b", [22], 25)
    unit.wait(PATIENCE_S)
    assert unit.tentative == [21, 22]
    unit.mark("a", undo=True)
    for bound in (25, 45):
        unit.give("a", [21] if bound == 25 else [], bound)
        unit.give("b", [], bound)
    assert (unit.stable, unit.fork, unit.recovered) == ([21, 22], None, 0)
    unit.mark("a", done=True)
    assert unit.recovered == 1
    unit.mark("b", undo=True)  # of which nothing was tentative: it read from another copy
    unit.mark("b", done=True)
    assert unit.recovered == 1


def test_a_stream_that_has_ended_is_right(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("a", [21], 25, fork="f")
    assert unit.begun == [1]
    unit.give("a", [21], LAST_TIME)
    unit.trunk.intakes["a"].source_ended = True
    for bound in (25, 45):
        unit.give("b", [], bound)
    assert (unit.stable, unit.fork, unit.recovered) == ([21], None, 1)


def test_a_missing_stream_is_as_far_as_the_others(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b", "c")
    for name in "abc":
        unit.give(name, [], 10)
    unit.give("a", [21], 21)
    unit.give("b", [22], 22)
    unit.wait(PATIENCE_S)
    assert unit.fork is not None
    assert {n: i.cut.boundary for n, i in unit.fork.intakes.items()} == {"a": 21, "b": 22, "c": 21}
    unit.give("c", [15, 20, 25], 25)  # the first two come too late for the fork, and in time for the trunk
    unit.give("a", [], 30)
    unit.give("b", [], 30)
    assert unit.stable == [15]
    assert unit.tentative == [21, 22, 25]
    unit.give("c", [], 30)
    assert unit.stable == [15, 20, 21, 22, 25]


def test_each_tuple_waits_if_that_is_asked(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b", during_failure="delay")
    unit.give("a", [1], 1)
    unit.wait(1.0)
    unit.give("a", [21], 21)
    unit.wait(PATIENCE_S - 1.0)
    assert unit.tentative == [1]
    unit.give("a", [41], 41)
    assert unit.tentative == [1]
    unit.wait(1.0)
    assert unit.tentative == [1, 21]
    assert unit.forking.patience() == pytest.approx(PATIENCE_S / 2 - 1.0)
    unit.wait(PATIENCE_S)
    assert unit.tentative == [1, 21, 41]


@pytest.mark.parametrize("policy", ["process", "delay", "suspend"])
def test_while_the_right_answers_are_made_new_tuples_wait_or_not(tmp_path: Path, policy: str) -> None:
    unit = ForkedInput(tmp_path, "a", "b", during_stabilization=policy)
    unit.give("a", [1], 1)
    unit.wait(PATIENCE_S)
    fork = unit.fork
    assert fork is not None
    unit.busy = True
    unit.give("b", [22], 40)
    unit.give("a", [31], 40)
    assert unit.tentative == {"process": [1, 22, 31], "delay": [1], "suspend": [1]}[policy]
    assert fork.order.stabilizing
    unit.wait(PATIENCE_S)
    assert unit.tentative == {"process": [1, 22, 31], "delay": [1, 22, 31], "suspend": [1]}[policy]


class Other:
    """The other copy of the unit."""

    def __init__(self, state: StreamState | None = None, waiting: bool = False) -> None:
        self.state, self.waiting = state, waiting

    def first(self) -> StreamState | None:
        return self.state

    def waits(self) -> bool:
        return self.waiting


def test_the_copy_that_goes_second_answers_while_the_other_is_corrected(tmp_path: Path) -> None:
    unit, other = ForkedInput(tmp_path, "a", "b"), Other("failure")
    unit.forking.partner = other
    unit.give("a", [1], 1)
    unit.wait(PATIENCE_S)
    unit.give("b", [22], 40)  # what was missing has come; here it is seen first
    unit.give("a", [31], 40)
    assert (unit.stable, unit.tentative, unit.forking.is_waiting) == ([], [1, 22, 31], True)
    other.state = "suspended"
    unit.wait(60.0)
    unit.give("a", [41], 50)
    unit.give("b", [42], 50)
    assert (unit.stable, unit.tentative) == ([], [1, 22, 31, 41, 42])
    other.state = "stable"
    unit.read()
    assert (unit.stable, unit.tentative[5:], unit.forking.is_waiting) == ([1, 22, 31, 41, 42], [-1], False)


@pytest.mark.parametrize("state", ["stable", "failure", None])
def test_nobody_waits_for_a_copy_that_is_not_at_it(tmp_path: Path, state: StreamState | None) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.forking.partner = Other(state)
    unit.give("a", [1], 1)
    unit.wait(PATIENCE_S)
    unit.give("b", [22], 40)
    unit.give("a", [31], 40)
    unit.wait(NOTICE_S)
    assert (unit.stable, unit.fork) == ([1, 22, 31], None)


def test_the_copy_that_goes_first_gives_nothing_new_while_the_other_answers(tmp_path: Path) -> None:
    unit, other = ForkedInput(tmp_path, "a", "b"), Other(waiting=True)
    unit.forking.partner = other
    unit.give("a", [1], 1)
    unit.wait(PATIENCE_S)
    fork = unit.fork
    assert fork is not None
    assert not fork.order.suspended
    unit.busy = True
    unit.give("b", [22], 40)
    unit.give("a", [31], 40)
    assert (unit.tentative, fork.order.suspended) == ([1], True)
    other.waiting = False
    unit.read()
    assert (unit.tentative, fork.order.suspended) == ([1, 22, 31], False)


def test_another_failure_is_waited_for_as_well(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b", "c")
    for name in "abc":
        unit.give(name, [], 10)
    unit.give("a", [21], 25)
    unit.give("b", [22], 25)
    unit.wait(PATIENCE_S)
    unit.give("a", [41], 55)  # now b is missing, too
    assert unit.tentative == [21, 22]
    unit.wait(PATIENCE_S)
    assert unit.tentative == [21, 22, 41]
    assert unit.fork is not None
    assert unit.fork.order.missing == {"b", "c"}


def test_what_is_tentative_upstream_is_read_at_once_by_a_fork_alone(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a")
    unit.give("a", [1, 2], 2)
    unit.order.next()
    unit.give("a", [3, 4], 4, fork="f")
    assert unit.begun == [1]
    assert unit.tentative == [3, 4]
    unit.give("a", [5], 5, fork="f")
    unit.forking.take_in("a", replace(one_undo(), first=2))
    unit.give("a", [3, 4, 5, 6], 6, first=2)  # the truth: the fork has most of it already
    assert (unit.stable, unit.tentative) == ([1, 2, 3, 4, 5, 6], [3, 4, 5, -1])
    unit.give("a", [7], 7)
    assert (unit.stable[6:], unit.begun) == ([7], [1])


def test_a_fork_goes_on_with_what_is_stable_again(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("a", [3], 3, fork="f")
    unit.wait(PATIENCE_S)
    unit.forking.take_in("a", one_undo())
    unit.give("a", [3, 20, 30], 30, first=0)
    unit.wait(PATIENCE_S)
    assert (unit.stable, unit.tentative) == ([], [3, 20, 30])  # b is still missing
    unit.give("b", [4, 50], 50)
    unit.give("a", [], 50)
    assert unit.stable == [3, 4, 20, 30]


def test_the_end_of_a_stream_is_no_failure(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("b", [4], LAST_TIME)
    unit.trunk.intakes["b"].source_ended = True
    unit.give("a", [20, 30], 30)
    unit.wait(2 * PATIENCE_S)
    assert unit.stable == [4, 20]
    assert unit.tentative == [30]  # its bucket is open for too long
    unit.give("a", [41], 41)
    assert (unit.stable, unit.fork) == ([4, 20, 30], None)


def test_no_fork_begins_while_trains_are_under_way_or_repeated(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b")
    unit.give("a", [1], 1)
    unit.clock.at += PATIENCE_S
    unit.trunk.made += 1
    assert not unit.forking.begin(may=True)
    unit.trunk.made -= 1
    assert not unit.forking.begin(may=False)
    assert unit.forking.begin(may=True)


def test_arrivals_remember_when_streams_had_come_how_far() -> None:
    arrivals = Arrivals()
    assert (arrivals.before(9.0), arrivals.when(0)) == (FIRST_TIME, None)
    for at, reached in ((1.0, 10), (2.0, 10), (3.0, 30)):
        arrivals.note(at, reached)
    assert [arrivals.when(n) for n in (5, 10, 11, 31)] == [1.0, 1.0, 3.0, None]
    assert [arrivals.before(at) for at in (0.5, 1.0, 2.9, 3.0, 99.0)] == [FIRST_TIME, 10, 10, 30, 30]


def test_a_relay_into_a_fork_keeps_boundaries_among_what_it_keeps() -> None:
    relay = ForkRelay(Relay(StreamInput("a"), Cursor(5, 20, 20)))
    relay.stand_in(30)
    time = np.array([25, 31, 28, 40], np.int64)
    rows = pa.record_batch([time], schema=SCHEMA)
    one = Section(5, rows, time, np.array([7, 8]), np.array([24, 35]), 20)
    got = relay.admit(one)
    assert got.section.rows["n"].to_pylist() == [31, 40]
    assert (got.section.first, got.section.at.tolist(), got.section.bound.tolist()) == (5, [6], [35])
    assert (relay.seen, relay.cursor.position, relay.cursor.boundary) == (40, 7, 35)
