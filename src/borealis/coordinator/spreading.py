"""Which node stands by for which unit, so that all others take over a share when one dies. Pure, and the same twice.

A death is over when the slowest of those that take over has done its share (Hwang 4.8): the largest share of any death
is what is kept small. Work is in microseconds of one core, as whole numbers: equal shares are equal.

>>> nodes = [Node("node1"), Node("node2"), Node("node3")]
>>> works = [Work("d/u1", "node1", 300), Work("d/u2", "node1", 200), Work("d/u3", "node1", 100)]
>>> spread(works, nodes)
{'d/u1': 'node2', 'd/u2': 'node3', 'd/u3': 'node3'}
>>> worst(shares_of([work.backed_by("node2") for work in works]), nodes)
('node1', 'node2', Fraction(600, 1))
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

Shares = Mapping[tuple[str, str], int]  # by the node that dies and the one that takes over
Rank = Callable[[str], Any]  # what decides among nodes that are equal otherwise

GAIN_LEAST = Fraction(1, 4)  # of a share, or a backup stays where it is
GAIN_LEAST_US = 50_000  # and this: what nobody notices is worth no state that travels


@dataclass(frozen=True)
class Node:
    """One that is able to stand by."""

    name: str
    cores: int = 1


@dataclass(frozen=True)
class Work:
    """A protected unit or entry point, and what it takes to go on with it on another node."""

    unit: str
    node: str
    us: int
    backup: str | None = None
    fixed: bool = False  # its backup stays where it is
    beside: frozenset[str] = frozenset()  # nodes where its backup cannot go

    def backed_by(self, node: str | None) -> Work:
        return replace(self, backup=node)


def shares_of(works: Iterable[Work]) -> dict[tuple[str, str], int]:
    """What each node would have to do if another died."""
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for work in works:
        if work.backup is not None:
            found[work.node, work.backup] += work.us
    return dict(found)


def share(node: Node, of: str, shares: Shares, more_us: int = 0) -> Fraction:
    """How long a node would be at it if another died."""
    return Fraction(shares.get((of, node.name), 0) + more_us, max(1, node.cores))


def best(work: Work, nodes: Iterable[Node], shares: Shares, rank: Rank = str) -> str | None:
    """The node that would be done first with its share and this; None if there is no other."""
    found = by_share(work, nodes, shares, rank)
    return found[0].name if found else None


def by_share(work: Work, nodes: Iterable[Node], shares: Shares, rank: Rank = str) -> list[Node]:
    """Those that could stand by, the one that would be done first with its share and this before the others."""
    others = [node for node in nodes if node.name != work.node]
    return sorted(others, key=lambda node: (share(node, work.node, shares, work.us), rank(node.name)))


def spread(
    works: Sequence[Work], nodes: Sequence[Node], shares: Shares | None = None, rank: Rank = str
) -> dict[str, str | None]:
    """A backup for each, beside what is assigned already: what takes longest first."""
    given, found = dict(shares or {}), dict.fromkeys(work.unit for work in works)
    for work in sorted(works, key=lambda one: -one.us):
        chosen = found[work.unit] = best(work, nodes, given, rank)
        if chosen is not None:
            given[work.node, chosen] = given.get((work.node, chosen), 0) + work.us
    return found


def worst(shares: Shares, nodes: Sequence[Node]) -> tuple[str, str, Fraction] | None:
    """The largest share: whose death, on which node, and how long it takes; None if nothing is taken over."""
    known = {node.name: node for node in nodes}
    found = [(share(known[to], of, shares), of, to) for of, to in shares if to in known]
    longest = max(found, default=None)
    return None if longest is None else (longest[1], longest[2], longest[0])


@dataclass(frozen=True)
class Change:
    """Another backup for a unit."""

    unit: str
    of: str
    to: str


def rechosen(works: Sequence[Work], nodes: Sequence[Node]) -> Change | None:
    """The one change that helps the slowest death that can be helped (after Hwang's algorithm 2).

    A backup goes from the node with the largest share of it to the one that would be done first with it. With it that
    has to be done earlier than the other was, by a quarter, and by what can be noticed: what was changed is not changed
    back.
    """
    shares, known = shares_of(works), {node.name: node for node in nodes}
    slowest = [(share(known[to], of, shares), of, to) for of, to in shares if to in known]
    changes = (_relieved(works, nodes, shares, of, to) for _, of, to in sorted(slowest, reverse=True))
    return next((change for change in changes if change is not None), None)


def _relieved(works: Sequence[Work], nodes: Sequence[Node], shares: Shares, dying: str, loaded: str) -> Change | None:
    """The change that leaves least of what a node would be at if another died, if it is worth it."""
    known = {node.name: node for node in nodes}
    before = share(known[loaded], dying, shares)
    found: list[tuple[Fraction, str, str]] = []
    for work in works:
        if (work.node, work.backup) != (dying, loaded) or work.fixed:
            continue
        others = [node for node in nodes if node.name not in work.beside | {loaded}]
        target = best(work, others, shares)
        if target is None:
            continue
        there = share(known[target], dying, shares, work.us)
        if before - there >= max(before * GAIN_LEAST, Fraction(GAIN_LEAST_US)):
            found.append((max(share(known[loaded], dying, shares, -work.us), there), work.unit, target))
    if not found:
        return None
    _, unit, target = min(found)
    return Change(unit, loaded, target)
