"""Seeing to it that what shall run does: once a second or when there is news, and never in a hurry.

A difference is mended when two heartbeats of its node have shown it, since one may have left the node before the last
order reached it; and where the catalog has a backup, two of the node that shall have it. One that the catalog itself
does not have is given at once. What cannot be mended is tried again, each time after twice as long, and shown in the
status.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from borealis.coordinator import deployment, moving, protecting
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.drift import Difference, DriftKind, Known, copies_of, differences, lost_copies
from borealis.coordinator.http_errors import TakenError
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.membership import Member
from borealis.coordinator.rebalance import Rebalancing
from borealis.errors import BorealisError
from borealis.threads import Task
from borealis.wire.status import TroubleView

log = logging.getLogger("borealis.coordinator")
BEATS_LEAST = 2
SIDE_BY_SIDE = (DriftKind.NO_BACKUP, DriftKind.INCOMPLETE, DriftKind.STORED)  # each waits for a node


@dataclass
class _Seen:
    """How long a difference is there, and how often mending it failed."""

    incarnation: str
    beats: int
    of_backup: int = 0  # beats of the node that shall have the backup
    failures: int = 0
    not_before: float = 0.0
    error: str = ""


@dataclass
class _Mending:
    """What is being done about the units of a diagram, side by side."""

    units: set[str] = field(default_factory=set)
    tasks: list[tuple[str, Task[None]]] = field(default_factory=list)


class Reconciler:
    """Finds differences and mends them: those of one diagram one after the other, but for backups that are to warm up.

    While some of a diagram's are warming, what is found of its other units is mended beside them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: dict[Difference, _Seen] = {}
        self._at_work: set[str] = set()
        self._lock = cluster.threads.lock()
        self._mending: dict[str, _Mending] = {}  # diagrams with which something is done now
        self._rebalancing = Rebalancing(cluster)
        self.looks = 0

    def step(self) -> None:
        """Look once, and begin to mend what has been seen for long enough."""
        known = self._known()
        found = differences(known)
        self._remember(found)
        due: dict[str, list[Difference]] = defaultdict(list)
        for difference in found:
            if self._is_due(difference, known):
                due[difference.diagram].append(difference)
        for diagram, mine in due.items():
            if not self._joins(diagram, mine) and diagram not in self._at_work:
                self._at_work.add(diagram)
                self._cluster.threads.start("borealis-mend", partial(self._mend_all, diagram, mine))
        if not found:
            self._rebalancing.step(self._at_work)
        self.looks += 1

    def troubles(self) -> list[TroubleView]:
        """What could not be mended so far, and why."""
        seen = sorted(self._seen.items(), key=repr)
        found = [TroubleView(diagram=d.diagram, node=d.node, what=str(d), why=s.error) for d, s in seen if s.error]
        return found + self._rebalancing.trouble()

    def counts(self) -> dict[str, int]:
        """Of looks, and of what was moved that no user asked for."""
        return {"looks": self.looks, "moves": self._rebalancing.moved, "exchanges": self._rebalancing.exchanged}

    def _known(self) -> Known:
        catalog = self._cluster.catalog
        return Known(
            layouts=catalog.layouts(),
            routes=catalog.routes(),
            alive={member.name: member for member in self._cluster.members.alive()},
            past=catalog.past(),
            owed=catalog.owed(),
            gone_s=self._cluster.timings.gone_s,
            silent=self._cluster.silences(),
            fallen=self._cluster.fallen(),
        )

    def _remember(self, found: Sequence[Difference]) -> None:
        there = set(found)
        for one in list(self._seen):
            if one not in there:
                self._seen.pop(one, None)
        for difference in found:
            member, backup = self._cluster.members.member(difference.node), self._backup(difference)
            incarnation = member.status.incarnation if member else ""
            seen = self._seen.get(difference)
            if seen is None or seen.incarnation != incarnation:
                beats, of_backup = (0 if one is None else one.beats for one in (member, backup))
                self._seen[difference] = _Seen(incarnation, beats, of_backup)

    def _backup(self, difference: Difference) -> Member | None:
        """The node that shall have what is missing: its heartbeats say whether it has."""
        if difference.kind is not DriftKind.NO_BACKUP:
            return None
        place = _place(difference, self._cluster.catalog.layouts())
        return None if place is None else self._cluster.members.if_alive(place.backup)

    def _is_due(self, difference: Difference, known: Known) -> bool:
        seen = self._seen[difference]
        if self._cluster.clock.now() < seen.not_before:
            return False
        if difference.kind is DriftKind.NO_BACKUP and _has_none(difference, known):
            return True
        member, backup = self._cluster.members.member(difference.node), self._backup(difference)
        if backup is not None and backup.beats - seen.of_backup < BEATS_LEAST - 1:
            return False
        return member is None or member.beats - seen.beats >= BEATS_LEAST - 1

    def _joins(self, diagram: str, found: Sequence[Difference]) -> bool:
        """Have units that are not being mended yet mended beside those that are warming, if some are."""
        with self._lock:
            mending = self._mending.get(diagram)
            if mending is None:
                return False
            new = [one for one in found if one.unit and one.unit not in mending.units]
            self._begin(mending, new)
            return True

    def _begin(self, mending: _Mending, found: Sequence[Difference]) -> None:
        """Mend these, each unit's one after the other, different units side by side."""
        units: dict[str, list[Difference]] = defaultdict(list)
        for one in found:
            units[one.unit].append(one)
        mending.units |= units.keys()
        for unit, mine in units.items():
            mending.tasks.append(
                (unit, self._cluster.threads.start("borealis-mend-one", partial(self._mend_some, mine)))
            )

    def _mend_all(self, diagram: str, found: Sequence[Difference]) -> None:
        try:
            with self._cluster.at_work(diagram, "mended", wait=0):
                self._mend_some([one for one in found if one.kind not in SIDE_BY_SIDE])
                with self._lock:  # each waits for a query to be warm
                    mending = self._mending[diagram] = _Mending()
                    self._begin(mending, [one for one in found if one.kind in SIDE_BY_SIDE])
                try:
                    self._await(diagram, mending)
                finally:
                    with self._lock:
                        self._mending.pop(diagram, None)
        except TakenError:  # a user is changing it: what is seen now means nothing
            for difference in found:
                self._seen.pop(difference, None)
        finally:
            self._at_work.discard(diagram)

    def _await(self, diagram: str, mending: _Mending) -> None:
        """Until all is done, also what has joined meanwhile; nothing joins any more then."""
        while True:
            with self._lock:
                if not mending.tasks:
                    del self._mending[diagram]
                    return
                unit, task = mending.tasks.pop(0)
            if (error := task.exception()) is not None:
                raise error
            with self._lock:
                mending.units.discard(unit)

    def _mend_some(self, found: Sequence[Difference]) -> None:
        for one in found:
            self._mend(one)

    def _mend(self, difference: Difference) -> None:
        seen = self._seen.get(difference)
        if difference.kind is DriftKind.NO_BACKUP and (seen is None or not self._is_due(difference, self._known())):
            return  # it has got one meanwhile, and heartbeats are yet to say so
        try:
            mend(self._cluster, difference, self._known)
        except BorealisError as error:
            log.warning("%s: %s", difference, error)
            if seen is not None:
                seen.error = str(error)
                timings = self._cluster.timings
                wait = min(timings.retry_first_s * 2**seen.failures, timings.retry_most_s)
                seen.failures += 1
                seen.not_before = self._cluster.clock.now() + wait
            return
        log.info("mended: %s", difference)
        self._seen.pop(difference, None)


def _has_none(difference: Difference, known: Known) -> bool:
    """Whether the catalog itself says that there is no backup: no old heartbeat does."""
    place = _place(difference, known.layouts)
    return place is not None and place.backup is None


def _place(difference: Difference, layouts: Iterable[Layout]) -> UnitAssignment | None:
    layout = next((one for one in layouts if one.name == difference.diagram), None)
    return None if layout is None else layout.part(difference.unit)


def mend(cluster: Cluster, difference: Difference, known: Callable[[], Known]) -> None:
    """Do what is to be done about one difference. The caller is at work on the diagram."""
    name, node = difference.diagram, difference.node
    layout = cluster.catalog.layout(name)
    place = None if layout is None else layout.part(difference.unit)
    match difference.kind:
        case DriftKind.ENDED:
            cluster.settle(node, name)
        case DriftKind.UNFINISHED:
            deployment.finish(cluster, name)
        case DriftKind.STRAY:
            if protecting.is_stray(cluster, layout, place, node):
                protecting.drop(cluster, name, difference.unit, node)
        case _ if layout is None or place is None:
            return
        case DriftKind.MISSING:
            deployment.order_place(cluster, layout, place)
        case DriftKind.OVERTAKEN:
            if difference.incarnation > place.incarnation:
                cluster.catalog.put(name, place, place.taken_over(node, difference.incarnation))
        case DriftKind.NO_BACKUP:
            if place.node == node:
                protecting.protect(cluster, layout, place)
        case DriftKind.INCOMPLETE:
            if place.node == node:
                seen = known()
                lost = lost_copies(place, copies_of(layout, place, seen.believed(name)), seen)
                protecting.complete(cluster, layout, place, lost)
        case DriftKind.ORPHANED:
            if node in place.nodes:
                protecting.succeed(cluster, layout, place, node)
        case DriftKind.FAILED:
            if place.node == node:
                protecting.hand_over(cluster, layout, place)
        case DriftKind.LOST:
            protecting.restart(cluster, layout, place)
        case DriftKind.STORED:
            protecting.restore(cluster, layout, place)
        case DriftKind.ARRIVED:
            moving.arrived(cluster, layout, place, node)
        case DriftKind.STAYED:
            moving.stayed(cluster, layout, place)
        case DriftKind.MISLED:
            moving.reroute(cluster, layout, place, difference.arrow)
