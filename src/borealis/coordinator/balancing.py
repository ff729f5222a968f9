"""Which unit is to move so that nodes have alike to do, or which backup so that deaths are soon over. Pure: what runs
where and how busy it is in, one change out.

A unit goes only where it helps clearly: the fuller of the two nodes is less full afterwards by a sixth at least, so
that no unit goes to and fro as its load wavers. One that its user has placed goes back there, and nowhere else.

>>> nodes = [Node("node1"), Node("node2")]
>>> next_move([Resident("d", f"u{n}", "node1") for n in (1, 2, 3)], nodes)
Move(diagram='d', unit='u1', node='node2')
>>> next_move([Resident("d", "u1", "node1"), Resident("d", "u2", "node1"), Resident("d", "u3", "node2")], nodes)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from borealis.coordinator.drift import copies_of
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.membership import Member
from borealis.coordinator.recovery import Expected
from borealis.coordinator.spreading import Node, rechosen

IDLE = 0.1  # what a query that reads nothing is taken to cost, of a core
GAIN_LEAST = 0.15  # of how full a node is


@dataclass(frozen=True)
class Resident:
    """A unit where it runs."""

    diagram: str
    unit: str
    node: str
    load: float = 0.0  # of each second the part that its trains take
    home: str | None = None  # where its user placed it
    free: bool = True  # it may move now
    beside: frozenset[str] = frozenset()  # nodes where it cannot go: they have another copy of it, or it failed there
    backup: str | None = None  # where it can, but the backup has to make room

    @property
    def weight(self) -> float:
        return IDLE + self.load


@dataclass(frozen=True)
class Move:
    """Bring a unit to another node."""

    diagram: str
    unit: str
    node: str


def next_move(residents: Sequence[Resident], nodes: Sequence[Node]) -> Move | None:
    """The one that helps most; None if all is well."""
    names = {node.name for node in nodes}
    for one in residents:
        if one.free and one.home in names - {one.node} - one.beside:
            return Move(one.diagram, one.unit, one.home or "")
    full = fullness(residents, nodes)
    cores = {node.name: max(1, node.cores) for node in nodes}
    for source in sorted(full, key=lambda name: (-full[name], name)):
        found = []
        for one in residents:
            if one.node != source or not one.free or one.home is not None:
                continue
            left = full[source] - one.weight / cores[source]
            for target in sorted(names - {source} - one.beside):
                after = max(left, full[target] + one.weight / cores[target])
                if full[source] - after >= GAIN_LEAST * full[source]:
                    found.append((round(after, 6), target == one.backup, one.diagram, one.unit, target))
        if found:
            _, _, diagram, unit, target = min(found)
            return Move(diagram, unit, target)
    return None


def fullness(residents: Iterable[Resident], nodes: Iterable[Node]) -> dict[str, float]:
    """What each node has to do, for its cores."""
    cores = {node.name: max(1, node.cores) for node in nodes}
    full = dict.fromkeys(cores, 0.0)
    for one in residents:
        if one.node in full:
            full[one.node] += one.weight / cores[one.node]
    return full


def residents(
    layouts: Iterable[Layout], alive: Mapping[str, Member], now: float, restless_s: float, excepted: Collection[str]
) -> list[Resident]:
    """All units. Those of a diagram move only if all of it runs and is protected as it was promised.

    `now` is in seconds since 1970. A unit that a user has moved stays for `restless_s`; `excepted` are diagrams at
    which somebody is at work.
    """
    found = []
    for layout in layouts:
        whole = _is_whole(layout, alive, excepted)
        for unit in layout.units:
            home = alive.get(unit.node)
            load = home.load(layout.name, unit.unit) if home is not None else 0.0
            free = whole and now - unit.moved_at >= restless_s
            beside, backup = frozenset(unit.copies) | {unit.failed_on or ""}, unit.backup
            found.append(Resident(layout.name, unit.unit, unit.node, load, unit.home, free, beside, backup))
    return found


@dataclass(frozen=True)
class Exchange:
    """Another backup for a unit."""

    diagram: str
    unit: str
    node: str


def next_exchange(
    layouts: Iterable[Layout],
    alive: Mapping[str, Member],
    deaths: Iterable[Expected],
    nodes: Sequence[Node],
    excepted: Collection[str],
) -> Exchange | None:
    """The one that helps most, of units that are sent checkpoints; None if all is well.

    `deaths` is what they would cost. A backup that its user has placed goes back there, and nowhere else. That of an
    input stays where its reader's was.
    """
    whole = {layout.name for layout in layouts if _is_whole(layout, alive, excepted)}
    known, works, names = {}, [], {node.name for node in nodes}
    for one in deaths:
        place, work = one.place, one.work
        free = one.diagram in whole and place.checkpointed and not place.input
        beside = frozenset(place.nodes[2:]) | {place.failed_on or ""}
        wanted = place.backup_home
        if free and wanted in names - beside - {place.node, place.backup}:
            return Exchange(one.diagram, place.unit, wanted or "")
        known[work.unit] = one
        works.append(replace(work, fixed=not free or wanted == place.backup, beside=beside))
    change = rechosen(works, nodes)
    if change is None:
        return None
    found = known[change.unit]
    return Exchange(found.diagram, found.place.unit, change.to)


def _is_whole(layout: Layout, alive: Mapping[str, Member], excepted: Collection[str]) -> bool:
    """Whether all of it runs, is protected as it was promised, and may be changed."""
    if layout.state != "running" or layout.pinned or layout.name in excepted:
        return False
    return all(_is_well(layout, place, alive) for place in layout.parts())


def is_complete(layout: Layout, place: UnitAssignment, node: str, alive: Mapping[str, Member]) -> bool:
    """Whether a further copy says that it has all, and the primary that it knows it."""
    copies = copies_of(layout, place, alive)
    return copies.further.get(node) == "watching" and node in copies.linked.get(place.node, ())


def _is_well(layout: Layout, place: UnitAssignment, alive: Mapping[str, Member]) -> bool:
    """Whether a unit or an entry point runs, answers stably, and could be taken over."""
    home = alive.get(place.node)
    status = None if home is None else home.unit(layout.name, place.unit)
    if status is None or status.state != "running" or place.moving_to is not None:
        return False
    if status.fork is not None or status.condition != "stable":
        return False
    if not place.protected:
        return True
    guard = status.guard
    if guard is None or guard.state != "protected":
        return False
    if place.stored:
        return True
    if guard.partner != place.backup:
        return False
    other = alive.get(place.backup or "")
    there = None if other is None else other.unit(layout.name, place.unit)
    watching = there is not None and there.guard is not None and there.guard.state == "watching"
    return watching and len(place.copies) == place.further
