"""Seeing to it that what shall run does: once a second, and never in a hurry.

A difference is mended when two heartbeats of its node have shown it, since one may have left the node before the last
order reached it. What cannot be mended is tried again, each time after twice as long, and told in the status.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from borealis.clock import Clock, WallClock
from borealis.coordinator import deployment, moving, protecting
from borealis.coordinator import kinds as d
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.differences import differences
from borealis.coordinator.http_errors import TakenError
from borealis.coordinator.layout import stream_name
from borealis.coordinator.threads import side_by_side, spawn
from borealis.errors import BorealisError
from borealis.wire.messages import EntryName, UnitName
from borealis.wire.status import Trouble

log = logging.getLogger("borealis.coordinator")
BEATS_LEAST = 2
RETRY_SECONDS = 1.0
RETRY_SECONDS_MOST = 30.0


@dataclass
class _Seen:
    """How long a difference is there, and how often mending it failed."""

    incarnation: str
    beats: int
    failures: int = 0
    not_before: float = 0.0
    error: str = ""


class Reconciler:
    """Finds differences and mends them, those of one diagram one after the other."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock | None = None,
        start: Callable[[str, Callable[[], None]], object] = spawn,
    ) -> None:
        self._cluster, self._clock, self._start = cluster, clock or WallClock(), start
        self._seen: dict[d.Difference, _Seen] = {}
        self._at_work: set[str] = set()
        self.looks = 0

    def step(self) -> None:
        """Look once, and begin to mend what has been seen for long enough."""
        found = differences(self._known())
        self._remember(found)
        due: dict[str, list[d.Difference]] = defaultdict(list)
        for difference in found:
            if self._is_due(difference):
                due[difference.diagram].append(difference)
        for diagram, mine in due.items():
            if diagram not in self._at_work:
                self._at_work.add(diagram)
                self._start("mend", partial(self._mend_all, diagram, mine))
        self.looks += 1

    def troubles(self) -> list[Trouble]:
        """What could not be mended so far, and why."""
        seen = sorted(((repr(what), what, s) for what, s in list(self._seen.items()) if s.error), key=lambda t: t[0])
        return [Trouble(diagram=what.diagram, node=what.node, what=_told(what), why=s.error) for _, what, s in seen]

    def _known(self) -> d.Known:
        catalog = self._cluster.catalog
        layouts = catalog.layouts()
        told = {(la.name, *key): address for la in layouts for key, address in catalog.told(la.name).items()}
        alive = {member.name: member for member in self._cluster.members.alive()}
        return d.Known(layouts, alive, told, catalog.past(), catalog.owed(), self._cluster.silences())

    def _remember(self, found: Sequence[d.Difference]) -> None:
        for gone in self._seen.keys() - set(found):
            del self._seen[gone]
        for difference in found:
            member = self._cluster.members.member(difference.node)
            incarnation = member.status.incarnation if member else ""
            seen = self._seen.get(difference)
            if seen is None or seen.incarnation != incarnation:
                self._seen[difference] = _Seen(incarnation, member.beats if member else 0)

    def _is_due(self, difference: d.Difference) -> bool:
        seen = self._seen[difference]
        if self._clock.now() < seen.not_before:
            return False
        member = self._cluster.members.member(difference.node)
        return member is None or member.beats - seen.beats >= BEATS_LEAST - 1

    def _mend_all(self, diagram: str, found: Sequence[d.Difference]) -> None:
        try:
            with self._cluster.at_work(diagram, "mended", wait=0):
                for difference in found:
                    if not isinstance(difference, d.NoBackup):
                        self._mend(difference)
                lonely = [one for one in found if isinstance(one, d.NoBackup)]  # each waits for a query to be warm
                side_by_side([partial(self._mend, one) for one in lonely])
        except TakenError:  # someone is at work on it: what is seen now means nothing
            for difference in found:
                self._seen.pop(difference, None)
        finally:
            self._at_work.discard(diagram)

    def _mend(self, difference: d.Difference) -> None:
        seen = self._seen.get(difference)
        try:
            mend(self._cluster, difference)
        except BorealisError as error:
            log.warning("%s: %s", _told(difference), error)
            if seen is not None:
                seen.error = str(error)
                seen.failures += 1
                wait = min(RETRY_SECONDS * 2**seen.failures, RETRY_SECONDS_MOST)
                seen.not_before = self._clock.now() + wait
            return
        log.info("mended: %s", _told(difference))
        self._seen.pop(difference, None)


def mend(cluster: Cluster, difference: d.Difference) -> None:
    """Do what is to be done about one difference. The diagram is ours meanwhile."""
    name, node = difference.diagram, difference.node
    layout = cluster.catalog.layout(name)
    match difference:
        case d.Gone():
            deployment.settle(cluster, node, name)
        case d.Unfinished():
            deployment.finish(cluster, name)
        case d.StrayEntry(input=entry):
            if protecting.is_stray(cluster, layout, "", entry, node):
                cluster.order(node, "drop_entry", EntryName(stream=stream_name(name, entry)))
        case d.StrayUnit(unit=unit):
            if protecting.is_stray(cluster, layout, unit, "", node):
                cluster.order(node, "drop", UnitName(diagram=name, unit=unit))
        case _ if layout is None:
            return
        case d.NoEntry(input=entry):
            if (entry_place := layout.entry(entry)) is not None:
                deployment.order_place(cluster, layout, entry_place)
        case d.NoUnit(unit=unit):
            if (unit_place := layout.unit(unit)) is not None:
                deployment.order_place(cluster, layout, unit_place)
        case d.Arrived(unit=unit):
            if (unit_place := layout.unit(unit)) is not None:
                moving.arrived(cluster, layout, unit_place, node)
        case d.Stayed(unit=unit):
            moving.stayed(cluster, layout, unit)
        case d.Overtaken(unit=unit, input=entry, incarnation=incarnation):
            if (place := protecting.place_of(layout, unit, entry)) is not None and incarnation > place.incarnation:
                cluster.catalog.believe(name, place, node, incarnation)
        case d.NoBackup(unit=unit, input=entry):
            if (place := protecting.place_of(layout, unit, entry)) is not None and place.node == node:
                protecting.protect(cluster, layout, place)
        case d.Lost(unit=unit, input=entry):
            if (place := protecting.place_of(layout, unit, entry)) is not None:
                protecting.begin_anew(cluster, layout, place)
        case d.Misled(unit=unit, arrow=arrow):
            if (unit_place := layout.unit(unit)) is not None:
                moving.reroute(cluster, layout, unit_place, arrow)


def _told(difference: d.Difference) -> str:
    """A difference in words."""
    name, node = difference.diagram, difference.node
    match difference:
        case d.NoEntry(input=entry):
            return f"entry point {name}/{entry} is not on {node}"
        case d.NoUnit(unit=unit):
            return f"unit {name}.{unit} is not on {node}"
        case d.StrayEntry(input=entry):
            return f"entry point {name}/{entry} is on {node}, too"
        case d.StrayUnit(unit=unit):
            return f"unit {name}.{unit} is on {node}, where it shall not be"
        case d.Arrived(unit=unit):
            return f"unit {name}.{unit} has come to {node}"
        case d.Stayed(unit=unit):
            return f"unit {name}.{unit} has not left {node}"
        case d.Misled(unit=unit, arrow=arrow, address=address):
            return f"unit {name}.{unit} on {node} does not know that {name}/{arrow} is at {address}"
        case d.Overtaken(unit=unit, input=entry, incarnation=incarnation):
            return f"{_called(name, unit, entry)} was taken over by {node} as incarnation {incarnation}"
        case d.NoBackup(unit=unit, input=entry):
            return f"{_called(name, unit, entry)} on {node} is without its backup"
        case d.Lost(unit=unit, input=entry):
            return f"both copies of {_called(name, unit, entry)} are lost"
        case d.Gone():
            return f"node {node} has yet to hear that diagram {name} is no more"
        case _:
            return f"diagram {name} is being undeployed"


def _called(diagram: str, unit: str, entry: str) -> str:
    return f"unit {diagram}.{unit}" if unit else f"entry point {diagram}/{entry}"
