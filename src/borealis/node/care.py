"""What a node does without orders: entry points tick, queries that died start again, standbys stay warm."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from borealis.errors import BorealisError
from borealis.node.building import Builder
from borealis.node.running import RunningUnit
from borealis.wire.messages import UnitName

if TYPE_CHECKING:
    from borealis.node.node import Node

WARM_REHEARSALS = 2  # before a standby counts as one
SELDOM = 20  # ticks between looks at what is dear to look at: queries, logs

log = logging.getLogger("borealis.node")


@dataclass(frozen=True)
class CareTimings:
    """How long a node waits for its units, in seconds."""

    freeze_s: float = 30.0  # a unit may take so long to finish its train, and stays frozen so long without news
    warm_s: float = 20.0  # a standby rehearses so long at most before it counts as one
    fit_s: float = 1.0  # and an image waits so long at most for a query of the pool to try it on
    tick_s: float = 0.05  # between two looks at everything


class Care:
    """Looks at everything on a node, many times a second, until it is stopped."""

    def __init__(self, node: Node, builder: Builder, timings: CareTimings) -> None:
        self._node, self._builder, self._timings = node, builder, timings
        self._clock, self._threads = node.machine.clock, node.machine.threads
        self._stopped = self._threads.event()
        self._threads.start("node-tick", self._tick_forever)

    def stop(self) -> None:
        self._stopped.set()

    def warm(self, unit: RunningUnit) -> None:
        """Have a standby rehearse before it counts as one: its first train shall not be the first of its workers."""
        if unit.image:
            return self._node.pool.warm(unit, self._timings.fit_s)  # it protects its unit already
        until = self._clock.now() + self._timings.warm_s
        while unit.run.rehearsals.count < WARM_REHEARSALS and self._clock.now() < until and not self._stopped.is_set():
            if unit.query.failure() is not None or unit.started:
                return
            before = unit.run.rehearsals.count
            unit.rehearse()
            unit.run.rehearsals.wait(before, until - self._clock.now())

    def _restart(self, unit: RunningUnit) -> None:
        """Start a query again that died (its workers were killed, the machine was too busy): from its last commit."""
        failure = unit.wants_restart()
        if failure is None:
            return
        unit.restarts, unit.restart_at, unit.restarting = unit.restarts + 1, None, True
        self._threads.start("restart", partial(_try, partial(self._start_again, unit, failure)))

    def _start_again(self, unit: RunningUnit, failure: BorealisError) -> None:
        key = (unit.order.diagram, unit.order.unit)
        try:
            unit.query.stop()
            fresh = self._builder.query(key, unit.run)
            with self._node.ordering:
                if self._node.units.get(key) is not unit:
                    return
                log.warning("unit %s of %s starts its query again: %s", key[1], key[0], failure)
                unit.query = fresh
            fresh.start()
            if self._node.units.get(key) is not unit:  # dropped meanwhile, perhaps with the old query
                fresh.stop()
        finally:
            unit.restarting = False

    def _tick_forever(self) -> None:
        ticks = 0
        while not self._stopped.wait(self._timings.tick_s):
            ticks += 1
            seldom = not ticks % SELDOM
            for guard in list(self._node.guards.primaries.values()):
                guard.runs()
            for one in list(self._node.entries.values()):
                _try(one.entry.tick)
                if seldom:
                    _try(one.entry.trim)
                    _try(one.entry.log.try_again)
            for unit in list(self._node.units.values()):
                _try(partial(self._thaw_forgotten, unit))
                if seldom:
                    _try(partial(self._restart, unit))
                    if unit.standby and not unit.started and not unit.image:
                        _try(unit.rehearse)

    def _thaw_forgotten(self, unit: RunningUnit) -> None:
        """A unit that was frozen for a node that never took it goes on here."""
        since = unit.frozen_since
        if since is not None and self._clock.now() - since > self._timings.freeze_s:
            log.warning("unit %s stayed frozen too long: it goes on", unit.order.unit)
            self._node.thaw(UnitName(diagram=unit.order.diagram, unit=unit.order.unit))


def _try(work: Callable[[], None]) -> None:
    """What fails for one must not stop the others."""
    try:
        work()
    except BorealisError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("a tick failed")
