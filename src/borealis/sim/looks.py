"""Looks at the nodes of a run while it runs: which of them serve what, and from which the readers get it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from borealis.node.node import Node
from borealis.node.running import Running
from borealis.sim.cluster import SimCluster
from borealis.sim.invariants import Fed, ServedSpan, deposed_heard, two_primaries
from borealis.sim.kernel import Process
from borealis.wire.follow import Follower

LOOK_S = 0.05  # between two looks


class Looks:
    """What was seen, several times a second, from the loop of the kernel: nothing happens during a look."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster, self._kernel = cluster, cluster.kernel
        self._over = False
        # by process, diagram, unit and incarnation: from when until when, and the epoch
        self._served: dict[tuple[str, str, str, int], tuple[float, float, str]] = {}
        self._followers: dict[Follower, tuple[int, Any, int]] = {}  # each one's number, its connection, its place
        self._fed: list[Fed] = []

    def begin(self) -> None:
        for host in self._cluster.nodes.values():
            if host.alive and host.node is not None and host.process is not None:
                units: list[Running] = [*host.node.units.values(), *host.node.entries.values()]
                for unit in units:
                    self._look_at(host.process, host.node, unit)
        if not self._over:
            self._kernel.at(LOOK_S, self.begin)

    def end(self) -> None:
        self._over = True

    def faults(self, moved: Collection[str]) -> list[str]:
        """What is wrong. Units that moved keep their incarnation on another node."""
        served = [ServedSpan(*key, *seen) for key, seen in self._served.items() if key[2] not in moved]
        return [*two_primaries(served), *deposed_heard(self._fed)]

    def hear(self, reader: str, follower: Follower) -> None:
        """A reader has got something since the last look if its place has changed, and its connection has not."""
        number, feed, place = self._followers.get(follower, (len(self._followers), None, 0))
        self._followers[follower] = number, follower.feed, follower.next_id
        if feed is not None and feed is follower.feed and place < follower.next_id:
            epoch, incarnation = follower.epoch or "", follower.feed.incarnation
            self._fed.append(Fed(f"{reader} ({number})", follower.stream, epoch, incarnation, self._kernel.now))

    def _look_at(self, process: Process, node: Node, unit: Running) -> None:
        for feed in unit.feeds.values():
            self.hear(f"{unit.title} on {process.name}", feed._follower)
        guard = node.guards.primaries.get(unit.key)
        if guard is None or guard.unit is not unit or unit.standby or not unit.started:
            return
        key, now = (process.name, *unit.key, guard.guard.incarnation), self._kernel.now
        if (known := self._served.get(key)) is not None:
            self._served[key] = known[0], now, known[2]
        else:
            self._served[key] = now, now, next(iter(unit.queues.values())).epoch
