"""What is, against what shall be. Pure: the catalog and the heartbeats in, differences out.

A node that has not been heard of is asked for nothing, and what shall be on it is neither ordered elsewhere nor again:
after a restart of the coordinator, nodes tell what they run before anybody tells them to.
"""

from __future__ import annotations

from collections.abc import Iterable

from borealis.coordinator.kinds import (
    Arrived,
    Difference,
    Gone,
    Known,
    Misled,
    NoEntry,
    NoUnit,
    Stayed,
    StrayEntry,
    StrayUnit,
    Unfinished,
)
from borealis.coordinator.layout import Layout, UnitPlace
from borealis.coordinator.standbys import entry_copies, guarded, unit_copies


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
        copies = entry_copies(layout, entry, known.believed(layout.name))
        home = known.alive.get(entry.node)
        if entry.protected:
            yield from guarded(layout, entry, copies, known)
        elif home is not None and entry.node not in copies.primaries and home.status.spark == "ready":
            yield NoEntry(layout.name, entry.node, entry.input)
        if entry.node in copies.primaries and not copies.ahead:
            others = sorted(copies.primaries.keys() - {entry.node})
            yield from (StrayEntry(layout.name, node, entry.input) for node in others)


def _unit(layout: Layout, unit: UnitPlace, known: Known) -> Iterable[Difference]:
    copies = unit_copies(layout, unit, known.believed(layout.name))
    has, home = copies.primaries, known.alive.get(unit.node)
    running = [name for name, state in has.items() if state in ("running", "ended")]
    if unit.protected:
        yield from guarded(layout, unit, copies, known)
    if copies.ahead:
        return
    if unit.moving_to is not None:
        yield from _moving(layout, unit, known, set(has), running)
    elif unit.node in has:
        yield from (StrayUnit(layout.name, node, unit.unit) for node in sorted(has) if node != unit.node)
        yield from _misled(layout, unit, known)
    elif home is not None and running:
        yield Arrived(layout.name, running[0], unit.unit)
    elif not unit.protected and home is not None and not has and home.status.spark == "ready":
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
