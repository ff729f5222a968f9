"""Units move by themselves, one at a time, so that nodes have alike to do again after some came or went; and backups,
so that what dies is soon taken over.

1. Nothing moves before the cluster was calm for a while: the same nodes, the same diagrams, nothing taken over, nothing
   to mend.
2. Of a diagram nothing moves while any of it is unprotected, recovers, answers tentatively, or is being changed.
3. It is the ordinary move (see moving); a coordinator that dies meanwhile finds it in the catalog.
4. The next one waits until what the last one changed can be measured. After one that failed it has to be calm again.
5. A backup moves where no unit does, and it helps at each look for a while. A further copy is made where it is to go;
   the backup stays until that has all, and the copy takes its place. A coordinator that dies meanwhile finds it in the
   catalog: a copy more than was promised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TypeVar

from borealis.coordinator import moving, protecting
from borealis.coordinator.balancing import Exchange, Move, is_complete, next_exchange, next_move, residents
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.deployment import expectations
from borealis.coordinator.http_errors import AbsentError
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.membership import Member
from borealis.coordinator.spreading import Node
from borealis.errors import BorealisError, ClusterError
from borealis.wire.messages import called
from borealis.wire.status import TroubleView

log = logging.getLogger("borealis.coordinator")
W = TypeVar("W", Move, Exchange)


class Rebalancing:
    """Decides and orders moves; `step` is called at each look, by one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: object = None
        self._calm_since = self._not_before = cluster.clock.now()
        self._busy = False
        self._failed: TroubleView | None = None
        self._wish: Exchange | None = None  # what helps, of backups
        self._wished_since = 0.0
        self._half: Exchange | None = None  # the copy that is to be a backup
        self._half_since = 0.0
        self.moved = 0  # units that were moved
        self.exchanged = 0  # backups

    def step(self, at_work: set[str]) -> None:
        """Begin a move if it is time for one. `at_work` has the diagrams that are being changed, and so this one."""
        now, timings = self._cluster.clock.now(), self._cluster.timings
        if (seen := self._what_is()) != self._seen:
            self._seen, self._calm_since = seen, now
        if self._busy:
            return
        if (half := self._half_done()) is not None:
            self._go_on(*half, at_work)
            return
        if self._half is not None:  # it came to nothing: a node died, or could not reach the other
            self._half, self._calm_since = None, now
        if now < max(self._calm_since + timings.calm_s, self._not_before):
            self._wish = None
            return
        if (move := self._next(at_work)) is not None:
            self._start(move, f"unit {move.diagram}.{move.unit}", self._move, at_work)
        elif (exchange := self._next_exchange(at_work)) is not None:
            self._start_backup(exchange, self._begin, at_work)

    def trouble(self) -> list[TroubleView]:
        """Why the last move failed, if it did."""
        return [] if self._failed is None else [self._failed]

    def _what_is(self) -> object:
        """What is the same as long as all is calm."""
        cluster = self._cluster
        nodes = [(m.name, m.status.incarnation, m.status.spark) for m in cluster.members.alive()]
        layouts = cluster.catalog.layouts()
        parts = [(ly.name, p.unit, p.incarnation, p.lives) for ly in layouts for p in ly.parts()]
        return nodes, [(layout.name, layout.state) for layout in layouts], parts

    def _next(self, at_work: Collection[str]) -> Move | None:
        cluster, (alive, nodes) = self._cluster, self._there()
        if any(layout.state != "running" for layout in cluster.catalog.layouts()):
            return None
        now, restless_s = cluster.clock.time(), cluster.timings.restless_s
        return next_move(residents(cluster.catalog.layouts(), alive, now, restless_s, at_work), nodes)

    def _there(self) -> tuple[dict[str, Member], list[Node]]:
        """The living, and those of them that can run something."""
        alive = {member.name: member for member in self._cluster.members.alive()}
        return alive, [Node(m.name, m.status.cores) for m in alive.values() if m.status.spark == "ready"]

    def _start(self, wish: W, what: str, do: Callable[[W, str], None], at_work: set[str]) -> None:
        """Do this about a diagram, while nothing else is done about it. What fails is shown, and is tried again when
        all was calm for a while."""
        self._busy = True
        at_work.add(wish.diagram)

        def task() -> None:
            try:
                do(wish, what)
                self._failed = None
            except BorealisError as error:
                log.warning("%s was to move to %s: %s", what, wish.node, error)
                self._calm_since = self._cluster.clock.now()
                why = str(error)
                self._failed = TroubleView(diagram=wish.diagram, node=wish.node, what=f"{what} was to move", why=why)
            finally:
                self._not_before = self._cluster.clock.now() + self._cluster.timings.pause_s
                self._busy = False
                at_work.discard(wish.diagram)

        self._cluster.threads.start("borealis-rebalance", task)

    def _move(self, move: Move, what: str) -> None:
        moving.move(self._cluster, move.unit, move.node, move.diagram, by_hand=False)
        log.info("%s has moved to %s, which had less to do", what, move.node)
        self.moved += 1

    # -- backups

    def _next_exchange(self, at_work: Collection[str]) -> Exchange | None:
        """What has helped at each look for a while: what is measured wavers."""
        cluster, (alive, nodes) = self._cluster, self._there()
        wish = next_exchange(cluster.catalog.layouts(), alive, expectations(cluster), nodes, at_work)
        now = cluster.clock.now()
        if wish != self._wish:
            self._wish, self._wished_since = wish, now
        return wish if now - self._wished_since >= cluster.timings.pause_s else None

    def _start_backup(self, wish: Exchange, do: Callable[[Exchange, str], None], at_work: set[str]) -> None:
        self._start(wish, f"the backup of {called(wish.diagram, wish.unit)}", do, at_work)

    def _begin(self, wish: Exchange, what: str) -> None:
        with self._part(wish) as (layout, place):
            if place.next_backup is None and wish.node not in place.nodes:
                protecting.begin_exchange(self._cluster, layout, place, wish.node)
                log.info("%s is to be on %s, which has less to take over", what, wish.node)

    def _half_done(self) -> tuple[Layout, UnitAssignment, str] | None:
        """What has a copy that is to be its backup."""
        parts = [(ly, place) for ly in self._cluster.catalog.layouts() if ly.state == "running" for place in ly.parts()]
        return next(((ly, place, place.next_backup) for ly, place in parts if place.next_backup is not None), None)

    def _go_on(self, layout: Layout, place: UnitAssignment, node: str, at_work: set[str]) -> None:
        """See whether the copy has all; one that does not get it is given up."""
        now, half = self._cluster.clock.now(), Exchange(layout.name, place.unit, node)
        if half != self._half:
            self._half, self._half_since = half, now
        if layout.name in at_work:
            return
        if is_complete(layout, place, node, self._there()[0]):
            self._start_backup(half, self._end, at_work)
        elif now - self._half_since > self._cluster.timings.start_s:
            self._start_backup(half, self._give_up, at_work)

    def _end(self, half: Exchange, what: str) -> None:
        with self._part(half) as (layout, place):
            if place.next_backup == half.node and protecting.end_exchange(self._cluster, layout, place, half.node):
                log.info("%s is on %s now, which has less to take over", what, half.node)
                self._half = None
                self.exchanged += 1

    def _give_up(self, half: Exchange, _: str) -> None:
        with self._part(half) as (layout, place):
            if place.next_backup == half.node:
                protecting.give_up_exchange(self._cluster, layout, place, half.node)
                raise ClusterError(f"it did not get all within {self._cluster.timings.start_s:g} s")

    @contextmanager
    def _part(self, wish: Exchange) -> Iterator[tuple[Layout, UnitAssignment]]:
        """What is to get another backup, as the catalog has it now, while nobody else changes its diagram."""
        with self._cluster.at_work(wish.diagram, "changed", wait=0):
            layout = self._cluster.layout(wish.diagram)
            place = layout.part(wish.unit)
            if place is None:
                raise AbsentError(f"{called(wish.diagram, wish.unit)} is not there any more")
            yield layout, place
