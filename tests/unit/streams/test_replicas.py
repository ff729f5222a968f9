"""Which copy of a stream is read, and when a silent one is left."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.streams.replicas import RANKS, Choice, ReplicaState, Silence


@pytest.mark.parametrize(
    ("mine", "other", "goes"),
    [
        ("failure", "stable", True),
        ("stabilization", "stable", True),
        ("unreachable", "failure", True),
        ("failure", "stabilization", True),
        ("failure", "failure", False),
        ("failure", "unreachable", False),
        ("stabilization", "failure", False),
    ],
)
def test_a_reader_goes_to_a_better_copy(mine: ReplicaState, other: ReplicaState, goes: bool) -> None:
    choice = Choice()
    assert choice.best("a", {"a": mine, "b": other}) == "a"  # it may find out about the same failure in a moment
    assert choice.best("a", {"a": mine, "b": other}) == ("b" if goes else "a")


def test_a_copy_that_gives_nothing_new_yet_is_good_for_those_who_want_what_is_right() -> None:
    states: dict[str, ReplicaState] = {"a": "failure", "b": "suspended"}
    for tentative, goes in ((False, "b"), (True, "a")):
        choice = Choice(tentative)
        assert [choice.best("a", states) for _ in range(2)] == ["a", goes]


def test_looks_in_a_row_count() -> None:
    choice = Choice()
    choice.best("a", {"a": "failure", "b": "stable"})
    choice.stay()
    assert choice.best("a", {"a": "failure", "b": "stable"}) == "a"
    assert choice.best("a", {"a": "failure", "b": "failure"}) == "a"
    assert choice.best("a", {"a": "failure", "b": "stable"}) == "a"
    assert choice.best("a", {"a": "failure", "b": "stable"}) == "b"


STATES = st.dictionaries(st.sampled_from("abc"), st.sampled_from(RANKS), min_size=1)


@given(st.lists(STATES.map(lambda found: {"a": "failure"} | found), max_size=20))
def test_nobody_goes_to_a_copy_that_is_no_better(looks: list[dict[str, ReplicaState]]) -> None:
    choice, at = Choice(), "a"
    for states in looks:
        states = {at: "failure"} | states
        went = choice.best(at, states)
        assert went == at or RANKS.index(states[went]) < RANKS.index(states[at])
        assert RANKS.index(states[went]) == min(map(RANKS.index, states.values())) or went == at
        at = went


def asked_in(silence: Silence, seconds: float, since: float = 0.0) -> list[float]:
    """When others are asked in so many seconds of silence, none of which has more."""
    now, times = since, list[float]()
    while (now := now + silence.due(now, since)) < since + seconds:
        times.append(round(now - since, 3))
        assert not silence.goes(now, since, lacks=False)
    return times


def test_the_longer_a_silence_the_less_often_others_are_asked() -> None:
    silence = Silence()
    assert asked_in(silence, 0.2) == [0.03, 0.05, 0.075, 0.113, 0.169]
    assert len(asked_in(silence, 10.0)) <= 10.0 / silence.every_s + 8
    assert asked_in(silence, 0.04, since=100.0) == [0.03]  # another silence


def test_a_reader_that_has_no_time_to_read_asks_nobody() -> None:
    assert Silence().due(5.0, None) > 0


def test_who_still_lacks_what_another_has_goes_there() -> None:
    silence = Silence()
    assert silence.due(0.01, 0.0) == pytest.approx(0.02)
    assert not silence.goes(0.03, 0.0, lacks=True)  # it may be under way
    assert silence.due(0.03, 0.0) == pytest.approx(0.02)
    assert not silence.goes(0.04, 0.0, lacks=True)
    assert silence.goes(0.051, 0.0, lacks=True)


def test_what_comes_meanwhile_is_another_silence() -> None:
    silence = Silence()
    assert not silence.goes(0.03, 0.0, lacks=True)
    assert not silence.goes(0.07, 0.04, lacks=True)
    assert not silence.goes(0.08, 0.04, lacks=False)
    assert not silence.goes(0.10, 0.04, lacks=True)
    assert silence.goes(0.125, 0.04, lacks=True)


def leave(silence: Silence, now: float) -> float:
    """Have a reader leave a silent copy at that time, or as soon as it may; when it does."""
    since = now
    while True:
        now += silence.due(now, since)
        if silence.goes(now, since, lacks=True):
            return now


def test_where_all_copies_come_to_a_halt_by_turns_a_reader_moves_less_and_less() -> None:
    silence, times = Silence(), [0.0]
    while times[-1] < 300:
        times.append(leave(silence, times[-1]))
    between = [after - before for before, after in pairwise(times[1:])]
    assert between[:5] == pytest.approx([1.02, 2.02, 4.02, 8.02, 16.02])
    assert max(between) < silence.rest_most_s + 0.1
    last = times[-1] + silence.calm_s + 1
    assert leave(silence, last) - last < 0.1  # after a minute of peace it is quick again
    assert leave(silence, last + 0.1) - last < 1.2
