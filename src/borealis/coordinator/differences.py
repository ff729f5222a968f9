"""What is, against what shall be. Pure: the catalog and the heartbeats in, differences out.

A node that has not been heard of is asked for nothing, and what shall be on it is neither ordered elsewhere nor again:
after a restart of the coordinator, nodes tell what they run before anybody tells them to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from borealis.coordinator.layout import Layout, UnitPlace, stream_name
from borealis.coordinator.membership import Member


@dataclass(frozen=True)
class Difference:
    """Something to be done about a diagram; `node` is the one whose heartbeats show it."""

    diagram: str
    node: str


@dataclass(frozen=True)
class Unfinished(Difference):
    """A diagram that is being undeployed; no node in particular."""


@dataclass(frozen=True)
class Gone(Difference):
    """The node has parts of a diagram that is no more, or has yet to hear that it is no more."""


@dataclass(frozen=True)
class NoEntry(Difference):
    """An entry point is not where it shall be."""

    input: str


@dataclass(frozen=True)
class NoUnit(Difference):
    """A unit is not where it shall be, nor anywhere else."""

    unit: str


@dataclass(frozen=True)
class StrayEntry(Difference):
    """An entry point is where it shall not be, too."""

    input: str


@dataclass(frozen=True)
class StrayUnit(Difference):
    """A unit is where it shall not be, too."""

    unit: str


@dataclass(frozen=True)
class Arrived(Difference):
    """A unit runs on this node, though the catalog does not say so: its move was not seen to its end."""

    unit: str


@dataclass(frozen=True)
class Stayed(Difference):
    """A unit that was to move is still, or at least not elsewhere than, on this node."""

    unit: str


@dataclass(frozen=True)
class Misled(Difference):
    """A unit on this node was told another address of an arrow than it has now."""

    unit: str
    arrow: str
    address: str


@dataclass(frozen=True)
class Known:
    """What the differences are made of."""

    layouts: Iterable[Layout]
    alive: Mapping[str, Member]
    told: Mapping[tuple[str, str, str], str] = field(default_factory=dict)  # by diagram, unit and arrow
    past: Set[str] = frozenset()
    owed: Set[tuple[str, str]] = frozenset()

    def believed(self, diagram: str) -> dict[str, Member]:
        """The living nodes whose word on a diagram counts; what others have is of an earlier one of that name."""
        return {name: member for name, member in self.alive.items() if (name, diagram) not in self.owed}


def differences(known: Known) -> list[Difference]:
    """All of them, in the order in which they are to be mended."""
    found: list[Difference] = []
    layouts = {layout.name: layout for layout in known.layouts}
    for node, member in known.alive.items():
        owed = {diagram for name, diagram in known.owed if name == node}
        dead = {diagram for diagram in member.diagrams() if diagram in known.past and diagram not in layouts}
        found += [Gone(diagram, node) for diagram in sorted(owed | dead)]
    for layout in layouts.values():
        if layout.state == "undeploying":
            found.append(Unfinished(layout.name, ""))
        elif layout.state == "running":
            found += _entries(layout, known)
            for unit in layout.units:
                found += _unit(layout, unit, known)
            found += _strays(layout, known)
    return found


def _entries(layout: Layout, known: Known) -> Iterable[Difference]:
    for entry in layout.entries:
        stream = stream_name(layout.name, entry.input)
        has = {name for name, m in known.believed(layout.name).items() if stream in m.status.entries}
        home = known.alive.get(entry.node)
        if home is not None and entry.node not in has and home.status.spark == "ready":
            yield NoEntry(layout.name, entry.node, entry.input)
        elif entry.node in has:
            yield from (StrayEntry(layout.name, node, entry.input) for node in sorted(has - {entry.node}))


def _unit(layout: Layout, unit: UnitPlace, known: Known) -> Iterable[Difference]:
    believed = known.believed(layout.name)
    has = {name: s for name, m in believed.items() if (s := m.unit(layout.name, unit.unit)) is not None}
    running = [name for name, status in has.items() if status.state in ("running", "ended")]
    home = known.alive.get(unit.node)
    if unit.moving_to is not None:
        yield from _moving(layout, unit, known, set(has), running)
    elif unit.node in has:
        yield from (StrayUnit(layout.name, node, unit.unit) for node in sorted(has) if node != unit.node)
        yield from _misled(layout, unit, known)
    elif home is not None and running:
        yield Arrived(layout.name, running[0], unit.unit)
    elif home is not None and not has and home.status.spark == "ready":
        yield NoUnit(layout.name, unit.node, unit.unit)


def _moving(layout: Layout, unit: UnitPlace, known: Known, has: set[str], running: list[str]) -> Iterable[Difference]:
    target = unit.moving_to
    if target is not None and target in running:
        yield Arrived(layout.name, target, unit.unit)
    elif unit.node in known.alive and target in known.alive and target not in has:
        yield Stayed(layout.name, unit.node, unit.unit)


def _misled(layout: Layout, unit: UnitPlace, known: Known) -> Iterable[Difference]:
    served = layout.served()
    for arrow in unit.reads:
        member = known.alive.get(served[arrow])
        told = known.told.get((layout.name, unit.unit, arrow))
        if member is not None and told != member.status.address:
            yield Misled(layout.name, unit.node, unit.unit, arrow, member.status.address)


def _strays(layout: Layout, known: Known) -> Iterable[Difference]:
    """Units that the diagram does not have: of an earlier one of its name."""
    mine = {unit.unit for unit in layout.units}
    for node, member in known.believed(layout.name).items():
        others = {u.unit for u in member.status.units if u.diagram == layout.name} - mine
        yield from (StrayUnit(layout.name, node, unit) for unit in sorted(others))
