"""Which copy of a stream is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.streams.replicas import RANKS, Choice, ReplicaState


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
