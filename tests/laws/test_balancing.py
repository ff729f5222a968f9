"""Laws of balance: moves end, each helps clearly, nothing that is pinned moves, and equal units end up spread."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from borealis.coordinator.balancing import GAIN_LEAST, Move, Resident, fullness, next_move
from borealis.coordinator.spreading import Node

NAMES = [f"node{n}" for n in range(1, 5)]


@st.composite
def clusters(draw: st.DrawFn, equal: bool = False) -> tuple[list[Resident], list[Node]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    nodes = [Node(name, 1 if equal else draw(st.integers(1, 4))) for name in names]
    count = draw(st.integers(0, 12))
    found = []
    for number in range(count):
        one = Resident("d", f"u{number:02}", draw(st.sampled_from(names)))
        if not equal:
            one = replace(
                one,
                load=draw(st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0])),
                home=draw(st.sampled_from([None, None, None, *names])),
                free=draw(st.booleans()),
                beside=frozenset(draw(st.lists(st.sampled_from(names), max_size=1))),
                backup=draw(st.sampled_from([None, *names])),
            )
        found.append(one)
    return found, nodes


def moved(residents: list[Resident], move: Move) -> list[Resident]:
    return [replace(one, node=move.node) if one.unit == move.unit else one for one in residents]


@given(clusters())
def test_moves_end_and_each_is_allowed_and_helps(given_cluster: tuple[list[Resident], list[Node]]) -> None:
    residents, nodes = given_cluster
    for _ in range(200):
        move = next_move(residents, nodes)
        if move is None:
            return
        [one] = [one for one in residents if one.unit == move.unit]
        assert one.free
        assert one.home in (None, move.node)
        assert move.node not in one.beside | {one.node}
        then = moved(residents, move)
        if one.home is None:
            before, after = fullness(residents, nodes), fullness(then, nodes)
            full = before[one.node]
            assert max(after[one.node], after[move.node]) <= full * (1 - GAIN_LEAST) + 1e-6
        residents = then
    raise AssertionError("units move for ever")


@given(clusters(equal=True))
def test_equal_units_end_up_spread(given_cluster: tuple[list[Resident], list[Node]]) -> None:
    """Where all have few, the counts differ by one at most; where they have many, by a third of the fullest."""
    residents, nodes = given_cluster
    while (move := next_move(residents, nodes)) is not None:
        residents = moved(residents, move)
    counts = [sum(one.node == node.name for one in residents) for node in nodes]
    assert max(counts) - min(counts) <= max(1, 2 * GAIN_LEAST * max(counts) + 1)


@given(clusters())
def test_the_same_twice_and_whatever_the_order_of_nodes(given_cluster: tuple[list[Resident], list[Node]]) -> None:
    residents, nodes = given_cluster
    assert next_move(residents, nodes) == next_move(residents, list(reversed(nodes)))


def test_what_wavers_a_little_stays() -> None:
    nodes = [Node("node1"), Node("node2")]
    residents = [Resident("d", f"u{n}", f"node{n % 2 + 1}", load=0.3 + 0.05 * (n % 3)) for n in range(6)]
    assert next_move(residents, nodes) is None


def test_a_node_without_the_backup_is_preferred_but_not_needed() -> None:
    crowd = [Resident("d", f"u{n}", "node1", backup="node2") for n in range(4)]
    assert next_move(crowd, [Node("node1"), Node("node2"), Node("node3")]) == Move("d", "u0", "node3")
    assert next_move(crowd, [Node("node1"), Node("node2")]) == Move("d", "u0", "node2")


def test_one_that_its_user_placed_goes_back_there_and_nowhere_else() -> None:
    nodes = [Node("node1"), Node("node2")]
    away = [Resident("d", "u1", "node2", home="node1"), Resident("d", "u2", "node1", home="node1")]
    assert next_move(away, nodes) == Move("d", "u1", "node1")
    assert next_move([replace(one, node="node1") for one in away], nodes) is None
