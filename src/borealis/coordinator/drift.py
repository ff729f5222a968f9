"""What is, against what shall be. Pure: the catalog and the heartbeats in, differences out.

A node that has sent no heartbeat is asked for nothing, and what shall be on it is neither ordered elsewhere nor again:
after a restart of the coordinator, nodes report what they run before they get any order.

Of protected units and entry points:

1. A node that runs one under a higher incarnation than the catalog's is believed: it took over.
2. A node that runs one under a lower incarnation is deposed, and drops it.
3. A primary that is gone is replaced by its backup, which needs no help; nothing is started from nothing while
   a backup is there that may take over, or a node that is only paused may come back.
4. A primary without its backup gets one, as soon as there is a node for it. A backup that is only silent is left to
   its primary, which says when it goes on alone: until then it is the one that can take over.
5. One that is kept in storage has no backup: any node goes on with it as soon as its own is silent.
6. Of more than two copies a further one becomes the backup where that is missing, and the primary where both are lost:
   of checkpoints as soon as both are silent, since whoever of them lives can give readers nothing that it lacks. One
   that is lost is replaced as soon as there is a node for it, and after the pair is whole.
7. One that failed for good on a node that lives is handed to its backup, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum

from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.membership import Member
from borealis.wire.messages import GuardStatus, called


class DriftKind(Enum):
    """What can differ, in words."""

    UNFINISHED = "diagram {diagram} is being undeployed"
    ENDED = "node {node} has yet to drop diagram {diagram}, which is no more"
    MISSING = "{what} is not on {node}"
    STRAY = "{what} is on {node}, where it shall not be"
    ARRIVED = "{what} has come to {node}"  # though the catalog does not say so: its move was not seen to its end
    STAYED = "{what} has not left {node}"  # it was to move, and is at least not elsewhere
    MISLED = "{what} on {node} does not know that {diagram}/{arrow} is at {address}"
    OVERTAKEN = (
        "{what} was taken over by {node} as incarnation {incarnation}"  # while no coordinator was there to be asked
    )
    NO_BACKUP = "{what} on {node} is without its backup"  # and there is a node that could be
    INCOMPLETE = "{what} on {node} is without some of its further copies"  # or does not know them
    ORPHANED = "primary and backup of {what} are lost, and {node} has a copy"
    FAILED = "{what} failed on {node}, and its backup is ready"
    LOST = "all copies of {what} are lost"
    STORED = "{what} runs nowhere, and is in storage"


@dataclass(frozen=True)
class Difference:
    """Something to be done about a diagram, or a unit or an entry point of it."""

    kind: DriftKind
    diagram: str
    node: str = ""  # the one whose heartbeats show it; empty: none in particular
    unit: str = ""
    arrow: str = ""
    address: str = ""
    incarnation: int = 0

    def __str__(self) -> str:
        return self.kind.value.format(what=called(self.diagram, self.unit), **vars(self))


@dataclass(frozen=True)
class Known:
    """What the differences are made of."""

    layouts: Iterable[Layout]
    alive: Mapping[str, Member]
    gone_s: float  # of silence: the coordinator does not wait for longer for what a node had
    routes: Mapping[tuple[str, str, str], str] = field(default_factory=dict)  # by diagram, unit and arrow
    past: Set[str] = frozenset()
    owed: Set[tuple[str, str]] = frozenset()
    silent: Mapping[str, float] = field(default_factory=dict)  # for how many seconds, of those that are not alive
    fallen: Set[str] = frozenset()  # those of them that were heard before

    def gone(self, node: str) -> bool:
        """Whether it has been silent for so long that the coordinator does not wait for what it had."""
        return node not in self.alive and self.silent.get(node, 0.0) >= self.gone_s

    def silenced(self, node: str) -> bool:
        """Whether it was heard, and is not any more: what another node has as well may go on there."""
        return node in self.fallen or self.gone(node)

    def believed(self, diagram: str) -> dict[str, Member]:
        """The living nodes whose word on a diagram counts; what others have is of an earlier one of that name."""
        return {name: member for name, member in self.alive.items() if (name, diagram) not in self.owed}


@dataclass
class Copies:
    """The copies of a unit or an entry point, by node."""

    primaries: dict[str, str] = field(default_factory=dict)  # and in which state
    standbys: dict[str, str] = field(default_factory=dict)  # and in which state of protection
    further: dict[str, str] = field(default_factory=dict)  # the same of copies that are no backup
    failed: set[str] = field(default_factory=set)  # such copies that stand still
    linked: dict[str, set[str]] = field(default_factory=dict)  # by primary: nodes whose further copies it knows
    misled: set[str] = field(default_factory=set)  # primaries that know copies by other numbers
    deposed: set[str] = field(default_factory=set)
    ahead: dict[str, int] = field(default_factory=dict)  # those of a higher incarnation than the catalog knows
    alone: set[str] = field(default_factory=set)  # primaries that say they have no backup

    def add(self, place: UnitAssignment, node: str, state: str, guard: GuardStatus | None) -> None:
        """What a node reports. Without a guard it has never been anything but a primary."""
        incarnation = place.incarnation if guard is None else guard.incarnation
        if guard is not None and guard.role == "copy":
            if guard.numbers.get(node, 0) not in (0, place.numbers.get(node)):
                self.deposed.add(node)  # of an earlier time: nothing waited for it since
            elif state == "failed":
                self.failed.add(node)
            else:
                self.further[node] = guard.state
        elif state == "standby" or (guard is not None and guard.role == "backup"):
            if guard is not None and guard.standing < place.standing:  # of an earlier pair: its claims are refused
                self.deposed.add(node)
            elif state != "failed" and incarnation <= place.incarnation:
                self.standbys[node] = "watching" if guard is None else guard.state
        elif incarnation > place.incarnation:
            self.ahead[node] = incarnation
        elif incarnation < place.incarnation:
            self.deposed.add(node)
        else:
            self.primaries[node] = state
            if guard is not None:
                self.linked[node] = set(guard.further)
                if any(place.numbers.get(name) != number for name, number in guard.numbers.items()):
                    self.misled.add(node)
            if guard is not None and guard.state == "alone":
                self.alone.add(node)


def copies_of(layout: Layout, place: UnitAssignment, believed: Mapping[str, Member]) -> Copies:
    """Those that nodes report."""
    found = Copies()
    for node, member in believed.items():
        status = member.unit(layout.name, place.unit)
        if status is not None:
            found.add(place, node, status.state, status.guard)
    return found


def differences(known: Known) -> list[Difference]:
    """All of them, in the order in which they are to be mended."""
    found: list[Difference] = []
    layouts = {layout.name: layout for layout in known.layouts}
    for node, member in known.alive.items():
        owed = {diagram for name, diagram in known.owed if name == node}
        dead = {diagram for diagram in member.diagrams() if diagram in known.past and diagram not in layouts}
        found += [Difference(DriftKind.ENDED, diagram, node) for diagram in sorted(owed | dead)]
    for layout in layouts.values():
        if layout.state == "undeploying":
            found.append(Difference(DriftKind.UNFINISHED, layout.name))
        elif layout.state == "running":
            for place in layout.parts():
                found += _part(layout, place, known)
            found += _strays(layout, known)
    return found


def _of(kind: DriftKind, layout: Layout, place: UnitAssignment, *nodes: str) -> Iterable[Difference]:
    return [Difference(kind, layout.name, node, place.unit) for node in sorted(nodes)]


def _part(layout: Layout, place: UnitAssignment, known: Known) -> Iterable[Difference]:
    copies = copies_of(layout, place, known.believed(layout.name))
    has, home = copies.primaries, known.alive.get(place.node)
    running = [name for name, state in has.items() if place.boxes and state in ("running", "ended")]
    if place.protected:
        yield from _guarded(layout, place, copies, known)
    if copies.ahead:
        return
    if place.moving_to is not None:
        if place.moving_to in running:
            yield from _of(DriftKind.ARRIVED, layout, place, place.moving_to)
        elif {place.node, place.moving_to} <= known.alive.keys() and place.moving_to not in has:
            yield from _of(DriftKind.STAYED, layout, place, place.node)
    elif place.node in has:
        yield from _of(DriftKind.STRAY, layout, place, *has.keys() - {place.node})
        yield from _misled(layout, place, known)
    elif home is not None and running:
        yield from _of(DriftKind.ARRIVED, layout, place, running[0])
    elif home is not None and home.status.spark == "ready" and not (place.protected or (place.boxes and has)):
        yield from _of(DriftKind.MISSING, layout, place, place.node)


def _misled(layout: Layout, place: UnitAssignment, known: Known) -> Iterable[Difference]:
    servers = layout.servers()
    for arrow in place.reads:
        member = known.alive.get(servers[arrow].node)
        route = known.routes.get((layout.name, place.unit, arrow))
        if member is not None and route != (address := member.status.address):
            yield Difference(DriftKind.MISLED, layout.name, place.node, place.unit, arrow=arrow, address=address)


def _strays(layout: Layout, known: Known) -> Iterable[Difference]:
    """Units that the diagram does not have: of an earlier one of its name."""
    mine = {part.unit for part in layout.parts()}
    for node, member in known.believed(layout.name).items():
        others = {u.unit for u in member.parts() if u.diagram == layout.name} - mine
        yield from (Difference(DriftKind.STRAY, layout.name, node, unit) for unit in sorted(others))


def _guarded(layout: Layout, place: UnitAssignment, copies: Copies, known: Known) -> Iterable[Difference]:
    """What is to be done about the protection of one that was promised it."""
    if copies.ahead:
        incarnation, node = max((incarnation, name) for name, incarnation in copies.ahead.items())
        yield Difference(DriftKind.OVERTAKEN, layout.name, node, place.unit, incarnation=incarnation)
        return
    strays = set(copies.deposed)
    if place.backup is not None:
        strays |= copies.standbys.keys() - {place.backup, place.node}
    strays |= (copies.further.keys() | copies.failed) - set(place.nodes)
    yield from _of(DriftKind.STRAY, layout, place, *strays)
    if place.stored:
        if _is_nowhere(place, copies, known):
            yield from _of(DriftKind.STORED, layout, place, place.node if place.node in known.alive else "")
        return
    if _is_to_be_handed_over(place, copies):
        yield from _of(DriftKind.FAILED, layout, place, place.node)
        return
    heirs = [node for node in place.nodes if copies.further.get(node) == "watching"]
    if place.node in copies.primaries:
        if _lacks_backup(place, copies, known):
            yield from _of(DriftKind.NO_BACKUP, layout, place, place.node)
        elif (place.further or place.copies) and _lacks_copies(place, copies, known):
            yield from _of(DriftKind.INCOMPLETE, layout, place, place.node)
    elif heirs and (place.node == heirs[0] or _is_orphaned(place, copies, known)):
        yield from _of(DriftKind.ORPHANED, layout, place, heirs[0])
    elif _is_lost(place, copies, known) and all(node in known.alive or known.gone(node) for node in place.copies):
        yield from _of(DriftKind.LOST, layout, place, place.node if place.node in known.alive else "")


def _is_to_be_handed_over(place: UnitAssignment, copies: Copies) -> bool:
    """Whether it stands still on a node that lives, while its backup could go on; or that was decided, and not heard.

    Once: where the backup fails as well it is not the node.
    """
    if place.failed_on and place.backup is None and not copies.primaries:
        return copies.standbys.get(place.node) == "watching"
    failed = copies.primaries.get(place.node) == "failed" and place.moving_to is None
    return failed and not place.failed_on and copies.standbys.get(place.backup or "") == "watching"


def lost_copies(place: UnitAssignment, copies: Copies, known: Known) -> set[str]:
    """Nodes that shall have a further copy, and will not have one again by themselves."""
    missing = set(place.copies) - copies.further.keys()
    return {node for node in missing if node in known.alive or known.gone(node)}


def _lacks_copies(place: UnitAssignment, copies: Copies, known: Known) -> bool:
    if place.moving_to is not None or copies.primaries[place.node] != "running":
        return False
    able = {name for name, member in known.alive.items() if member.status.spark == "ready"}
    free = able - set(place.nodes)
    lost = lost_copies(place, copies, known)
    short = len(place.copies) - len(lost) < place.further
    linked = copies.linked.get(place.node, set())
    return bool(lost or (short and free)) or linked != set(place.copies) or place.node in copies.misled


def _lacks_backup(place: UnitAssignment, copies: Copies, known: Known) -> bool:
    able = {name for name, member in known.alive.items() if member.status.spark == "ready"} - {place.node}
    if not able or place.moving_to is not None or copies.primaries[place.node] != "running":
        return False
    backup = place.backup
    if backup is None or place.node in copies.alone:
        return True
    return backup in able - copies.standbys.keys() or known.gone(backup)


def _is_lost(place: UnitAssignment, copies: Copies, known: Known) -> bool:
    """No node runs it, none will without an order, and it can begin again."""
    home = known.alive.get(place.node)
    return (home is None or home.status.spark == "ready") and _is_headless(place, copies, known.alive, known.gone)


def _is_nowhere(place: UnitAssignment, copies: Copies, known: Known) -> bool:
    """Whether one that is in storage runs nowhere. One that was only held for dead finds there that it is deposed."""
    if copies.primaries or copies.standbys or place.moving_to is not None:
        return False
    home = known.alive.get(place.node)
    if home is not None:
        return home.status.spark == "ready"
    return known.silenced(place.node)


def _is_orphaned(place: UnitAssignment, copies: Copies, known: Known) -> bool:
    """Whether a further copy is to go on. Where it answers, nobody waits for that."""
    return _is_headless(place, copies, known.alive, known.gone if place.replicated else known.silenced)


def _is_headless(place: UnitAssignment, copies: Copies, alive: Collection[str], is_over: Callable[[str], bool]) -> bool:
    """Neither the primary nor the backup will run it without an order; of those that are silent, as far as is asked."""
    if copies.primaries or (place.node not in alive and not is_over(place.node)):
        return False
    if place.node in copies.standbys:  # it was granted, and is about to open; or it never had all of it, and cannot
        return copies.standbys[place.node] == "catching up"
    if place.moving_to is not None:
        return False
    if place.backup is None:
        return True
    if place.backup in alive:  # one that never had all of it cannot take over
        return copies.standbys.get(place.backup, "catching up") == "catching up"
    return is_over(place.backup)
