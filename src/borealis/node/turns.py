"""Gives units that checkpoint in turns (`ha.min_max`) the idle moments of their node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from borealis.ha.min_max import TURN_SOONEST, MinMax, Turns
from borealis.machine import Machine

if TYPE_CHECKING:
    from borealis.node.guards import Guards
    from borealis.node.primary import PrimaryGuard

LOOK_S = 0.02  # between two looks whether the node is idle


class NodeTurns:
    """The units of a node that checkpoint in turns. Thread-safe; its thread runs as long as there is one."""

    def __init__(self, guards: Guards, machine: Machine) -> None:
        self._guards, self._clock, self._threads = guards, machine.clock, machine.threads
        self._turns, self._lock = Turns(), machine.threads.lock()
        self._running = False

    def join(self, guard: PrimaryGuard) -> None:
        """A unit has a backup from now on."""
        with self._lock:
            soonest_s = guard.guard.interval_s * TURN_SOONEST
            self._turns.join(guard.unit.key, guard.guard.partner, soonest_s, self._clock.now())
            if not self._running:
                self._running = True
                self._threads.start("turns", self._run)

    def leave(self, guard: PrimaryGuard) -> None:
        with self._lock:
            self._turns.leave(guard.unit.key)

    def worked(self, guard: PrimaryGuard, size: int) -> None:
        """A train of a unit was committed, and changed so many bytes."""
        with self._lock:
            self._turns.worked(guard.unit.key, guard.unit.train_ms() / 1000, size)

    def captured(self, guard: PrimaryGuard, seconds: float) -> None:
        with self._lock:
            self._turns.captured(guard.unit.key, self._clock.now(), seconds)

    def ended(self, guard: PrimaryGuard, seconds: float, *, arrived: bool) -> None:
        """What was captured was answered after so long, or was not."""
        with self._lock:
            if arrived:
                self._turns.answered(guard.unit.key, seconds)
            else:
                self._turns.failed(guard.unit.key)

    def _run(self) -> None:
        while True:
            self._clock.sleep(LOOK_S)
            with self._lock:
                if not self._turns.units:
                    self._running = False
                    return
                unit = None if self._is_busy() else self._turns.next(self._clock.now())
            guard = self._guards.primaries.get(unit) if isinstance(unit, tuple) else None
            if guard is not None and isinstance(guard.policy, MinMax):
                guard.take_turn(guard.policy)

    def _is_busy(self) -> bool:
        """Whether some unit of the node is in the midst of a train."""
        return any(guard.unit.busy for guard in list(self._guards.primaries.values()))
