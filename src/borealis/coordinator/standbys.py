"""What heartbeats tell of protected units and entry points, against what shall be. Pure.

1. Whoever runs one under a higher incarnation than the catalog's is believed: it took over.
2. Whoever runs one under a lower incarnation is deposed, and drops it.
3. A primary that is gone is replaced by its backup, which needs nobody's help; nothing is started from nothing while
   a backup is there that may take over, or a node that is only paused may come back.
4. A primary without its backup gets one, as soon as there is a node for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from borealis.coordinator.kinds import Difference, Known, Lost, NoBackup, Overtaken, StrayEntry, StrayUnit
from borealis.coordinator.layout import EntryPlace, Layout, Place, UnitPlace, stream_name
from borealis.coordinator.membership import Member
from borealis.wire.messages import GuardStatus


@dataclass
class Copies:
    """Who has a unit or an entry point, by node."""

    primaries: dict[str, str] = field(default_factory=dict)  # and in which state
    standbys: dict[str, str] = field(default_factory=dict)  # and in which state of protection
    deposed: set[str] = field(default_factory=set)
    ahead: dict[str, int] = field(default_factory=dict)  # those of a higher incarnation than the catalog knows
    alone: set[str] = field(default_factory=set)  # primaries that say they have no backup

    def add(self, place: Place, node: str, state: str, guard: GuardStatus | None) -> None:
        """What a node tells. Without a guard it has never been anything but a primary."""
        incarnation = place.incarnation if guard is None else guard.incarnation
        if state == "standby" or (guard is not None and guard.role == "backup"):
            if state != "failed" and incarnation <= place.incarnation:
                self.standbys[node] = "watching" if guard is None else guard.state
        elif incarnation > place.incarnation:
            self.ahead[node] = incarnation
        elif incarnation < place.incarnation:
            self.deposed.add(node)
        else:
            self.primaries[node] = state
            if guard is not None and guard.state == "alone":
                self.alone.add(node)


def unit_copies(layout: Layout, unit: UnitPlace, believed: Mapping[str, Member]) -> Copies:
    """Those of a unit."""
    found = Copies()
    for node, member in believed.items():
        status = member.unit(layout.name, unit.unit)
        if status is not None:
            found.add(unit, node, status.state, status.guard)
    return found


def entry_copies(layout: Layout, entry: EntryPlace, believed: Mapping[str, Member]) -> Copies:
    """Those of an entry point. One that says it is the primary and does not serve has stepped down."""
    found = Copies()
    stream = stream_name(layout.name, entry.input)
    for node, member in believed.items():
        guard = member.entry(stream)
        serves = stream in member.status.entries
        if serves or (guard is not None and (guard.role == "backup" or guard.incarnation < entry.incarnation)):
            found.add(entry, node, "running" if serves else "standby" if _backs(guard) else "closed", guard)
    return found


def _backs(guard: GuardStatus | None) -> bool:
    return guard is not None and guard.role == "backup"


def guarded(layout: Layout, place: Place, copies: Copies, known: Known) -> Iterable[Difference]:
    """What is to be done about a protected unit or entry point."""
    unit, entry = (place.unit, "") if isinstance(place, UnitPlace) else ("", place.input)
    if copies.ahead:
        node = max(copies.ahead, key=lambda name: (copies.ahead[name], name))
        yield Overtaken(layout.name, node, unit, entry, copies.ahead[node])
        return
    strays = set(copies.deposed)
    if place.backup is not None:
        strays |= copies.standbys.keys() - {place.backup, place.node}
    for node in sorted(strays):
        yield StrayUnit(layout.name, node, unit) if unit else StrayEntry(layout.name, node, entry)
    if place.node in copies.primaries:
        if _lacks_backup(place, copies, known):
            yield NoBackup(layout.name, place.node, unit, entry)
    elif _is_lost(place, copies, known):
        yield Lost(layout.name, place.node if place.node in known.alive else "", unit, entry)


def _lacks_backup(place: Place, copies: Copies, known: Known) -> bool:
    if isinstance(place, UnitPlace) and (place.moving_to is not None or copies.primaries[place.node] != "running"):
        return False
    able = {name for name, member in known.alive.items() if member.status.spark == "ready"} - {place.node}
    if not able:
        return False
    backup = place.backup
    if backup is None or place.node in copies.alone:
        return True
    return backup in able - copies.standbys.keys() or (backup not in known.alive and backup in known.silent)


def _is_lost(place: Place, copies: Copies, known: Known) -> bool:
    """Nobody runs it, and nobody will by himself."""
    home = known.alive.get(place.node)
    if copies.primaries or (home is None and not known.gone(place.node)):
        return False
    if place.node in copies.standbys:  # it was granted, and is about to open; or it never had all of it, and cannot
        return copies.standbys[place.node] == "catching up"
    if home is not None and home.status.spark != "ready":
        return False
    if isinstance(place, UnitPlace) and place.moving_to is not None:
        return False
    if place.backup is None:
        return True
    if place.backup in known.alive:  # one that never had all of it cannot take over
        return copies.standbys.get(place.backup, "catching up") == "catching up"
    return known.gone(place.backup)
