"""Laws of spreading: no backup is with its primary, shares are near the best there is, and it is always the same."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from borealis.coordinator.spreading import GAIN_LEAST, Node, Work, rechosen, shares_of, spread, worst

NAMES = [f"node{n}" for n in range(1, 5)]


@st.composite
def clusters(draw: st.DrawFn, cores: int = 4) -> tuple[list[Work], list[Node]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=4, unique=True))
    nodes = [Node(name, draw(st.integers(1, cores))) for name in names]
    count = draw(st.integers(1, 6))
    works = [Work(f"u{n}", draw(st.sampled_from(names)), draw(st.integers(1, 1_000))) for n in range(count)]
    return works, nodes


def slowest(works: list[Work], nodes: list[Node]) -> Fraction:
    found = worst(shares_of(works), nodes)
    return Fraction(0) if found is None else found[2]


def assigned(works: list[Work], nodes: list[Node]) -> list[Work]:
    found = spread(works, nodes)
    return [work.backed_by(found[work.unit]) for work in works]


def best_of_all(works: list[Work], nodes: list[Node]) -> Fraction:
    """By trying everything."""
    choices = [[node.name for node in nodes if node.name != work.node] for work in works]
    tried = ([w.backed_by(name) for w, name in zip(works, names, strict=True)] for names in product(*choices))
    return min(slowest(one, nodes) for one in tried)


@given(clusters())
def test_a_backup_is_there_and_never_with_its_primary(given_cluster: tuple[list[Work], list[Node]]) -> None:
    works, nodes = given_cluster
    names = {node.name for node in nodes}
    assert all(one.backup in names - {one.node} for one in assigned(works, nodes))


@given(clusters(cores=1))
def test_shares_of_equal_nodes_are_at_most_a_third_above_the_best(
    given_cluster: tuple[list[Work], list[Node]],
) -> None:
    works, nodes = given_cluster
    assert slowest(assigned(works, nodes), nodes) <= Fraction(4, 3) * best_of_all(works, nodes)


@given(clusters())
def test_shares_of_unequal_nodes_are_at_most_twice_the_best(given_cluster: tuple[list[Work], list[Node]]) -> None:
    works, nodes = given_cluster
    assert slowest(assigned(works, nodes), nodes) <= 2 * best_of_all(works, nodes)


@given(clusters(), st.randoms(use_true_random=False))
def test_the_order_of_nodes_does_not_matter(
    given_cluster: tuple[list[Work], list[Node]], chance: random.Random
) -> None:
    works, nodes = given_cluster
    shuffled = list(nodes)
    chance.shuffle(shuffled)
    assert spread(works, nodes) == spread(works, shuffled)


@given(clusters())
def test_equal_units_of_one_node_are_parted_evenly(given_cluster: tuple[list[Work], list[Node]]) -> None:
    works, nodes = given_cluster
    equal = [replace(work, us=100) for work in works]
    shares = shares_of(assigned(equal, [Node(node.name) for node in nodes]))
    for dying in {work.node for work in works}:
        parts = [shares.get((dying, node.name), 0) for node in nodes if node.name != dying]
        assert max(parts) - min(parts) <= 100


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[Work], list[Node]]:
    """Backups anywhere but with their primaries; some stay."""
    works, nodes = draw(clusters())
    found = []
    for work in works:
        others = [node.name for node in nodes if node.name != work.node]
        beside = frozenset(draw(st.lists(st.sampled_from(NAMES), max_size=1)))
        grown = replace(work, us=work.us * 1_000, fixed=draw(st.booleans()), beside=beside)
        found.append(grown.backed_by(draw(st.sampled_from([None, *others]))))
    return found, nodes


@given(assignments())
def test_a_backup_that_is_chosen_again_helps_the_slowest_and_the_choice_ends(
    given_cluster: tuple[list[Work], list[Node]],
) -> None:
    works, nodes = given_cluster
    for _ in range(100):
        change = rechosen(works, nodes)
        if change is None:
            return
        [work] = [one for one in works if one.unit == change.unit]
        assert work.backup == change.of
        assert change.to not in (work.node, change.of)
        assert not work.fixed
        assert change.to not in work.beside
        shares, cores = shares_of(works), {node.name: node.cores for node in nodes}
        before = Fraction(shares[work.node, change.of], cores[change.of])
        there = Fraction(shares.get((work.node, change.to), 0) + work.us, cores[change.to])
        assert before - there >= before * GAIN_LEAST, "it is clearly sooner done there"
        works = [one.backed_by(change.to) if one is work else one for one in works]
    raise AssertionError("it does not end")


@given(st.integers(1, 20), st.integers(2, 4))
def test_many_small_ones_of_one_node_are_parted_evenly_in_the_end(count: int, others: int) -> None:
    """However little each of them is of the whole."""
    nodes = [Node("dying"), *(Node(f"node{n}") for n in range(others))]
    works = [Work(f"u{n:02}", "dying", 50_000, "node0") for n in range(count)]
    while (change := rechosen(works, nodes)) is not None:
        works = [one.backed_by(change.to) if one.unit == change.unit else one for one in works]
    shares = [shares_of(works).get(("dying", node.name), 0) for node in nodes[1:]]
    fair = 50_000 * count / others
    assert max(shares) <= fair / (1 - GAIN_LEAST) + 50_000


@given(clusters(cores=1))
def test_what_is_spread_well_is_not_chosen_again_and_again(given_cluster: tuple[list[Work], list[Node]]) -> None:
    """What spreads at once leaves nothing, or one unit that is moved away, to gain."""
    works, nodes = given_cluster
    grown = assigned([replace(work, us=work.us * 1_000) for work in works], nodes)
    change = rechosen(grown, nodes)
    if change is not None:
        grown = [one.backed_by(change.to) if one.unit == change.unit else one for one in grown]
        assert slowest(grown, nodes) <= slowest(assigned(works, nodes), nodes) * 1_000
