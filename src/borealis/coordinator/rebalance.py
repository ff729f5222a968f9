"""Units move by themselves, one at a time, so that nodes have alike to do again after some came or went.

1. Nothing moves before the cluster was calm for a while: the same nodes, the same diagrams, nothing taken over, nothing
   to mend.
2. Of a diagram nothing moves while any of it is unprotected, recovers, answers tentatively, or is being changed.
3. It is the ordinary move (see moving); a coordinator that dies meanwhile finds it in the catalog.
4. The next one waits until what the last one changed can be measured. After one that failed it has to be calm again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

from borealis.coordinator import moving
from borealis.coordinator.balancing import Move, next_move, residents
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.spreading import Node
from borealis.errors import BorealisError
from borealis.wire.status import TroubleView

log = logging.getLogger("borealis.coordinator")


class Rebalancing:
    """Decides and orders moves; `step` is called at each look, by one thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._seen: object = None
        self._calm_since = self._not_before = cluster.clock.now()
        self._moves = False
        self._failed: TroubleView | None = None
        self.count = 0  # units that were moved

    def step(self, at_work: set[str]) -> None:
        """Begin a move if it is time for one. `at_work` has the diagrams that are being changed, and so this one."""
        now, timings = self._cluster.clock.now(), self._cluster.timings
        if (seen := self._what_is()) != self._seen:
            self._seen, self._calm_since = seen, now
        if self._moves or now < max(self._calm_since + timings.calm_s, self._not_before):
            return
        if (move := self._next(at_work)) is not None:
            self._moves = True
            at_work.add(move.diagram)
            self._cluster.threads.start("borealis-rebalance", partial(self._do, move, at_work))

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
        cluster = self._cluster
        if any(layout.state != "running" for layout in cluster.catalog.layouts()):
            return None
        alive = {member.name: member for member in cluster.members.alive()}
        nodes = [Node(m.name, m.status.cores) for m in alive.values() if m.status.spark == "ready"]
        now, restless_s = cluster.clock.time(), cluster.timings.restless_s
        return next_move(residents(cluster.catalog.layouts(), alive, now, restless_s, at_work), nodes)

    def _do(self, move: Move, at_work: set[str]) -> None:
        what = f"unit {move.diagram}.{move.unit}"
        try:
            moving.move(self._cluster, move.unit, move.node, move.diagram, by_hand=False)
        except BorealisError as error:
            log.warning("%s was to move to %s: %s", what, move.node, error)
            self._calm_since = self._cluster.clock.now()
            self._failed = TroubleView(diagram=move.diagram, node=move.node, what=f"{what} was to move", why=str(error))
        else:
            log.info("%s has moved to %s, which had less to do", what, move.node)
            self.count += 1
            self._failed = None
        finally:
            self._not_before = self._cluster.clock.now() + self._cluster.timings.pause_s
            self._moves = False
            at_work.discard(move.diagram)
