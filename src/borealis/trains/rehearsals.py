"""Trains of nothing, so that a unit's workers are ready for the first real one."""

from __future__ import annotations

from borealis.machine import HERE, Machine
from borealis.state.log import StateLog


class Rehearsals:
    """The state that a rehearsal sees stays where it is until that is over. Thread-safe, but for `begin`."""

    def __init__(self, log: StateLog, machine: Machine = HERE) -> None:
        self._log = log
        self.due = self._pinned = False
        self._handed = 0
        self.count = 0  # that are over
        self._over = machine.threads.condition()

    def ask(self) -> None:
        self.due = True

    def next(self) -> int | None:
        """The number of the one that is due, if one is: below zero, so that it is no train's."""
        if not self.due:
            return None
        self.due = False
        self._handed += 1
        return -self._handed

    def begin(self) -> None:
        if not self._pinned:
            self._log.pin()
            self._pinned = True

    def end(self) -> None:
        if self._pinned:
            self._pinned = False
            self._log.unpin()

    def done(self) -> None:
        """One went well."""
        self.end()
        with self._over:
            self.count += 1
            self._over.notify_all()

    def wait(self, before: int, seconds: float) -> None:
        """Wait for one after so many, at most so long."""
        with self._over:
            self._over.wait_for(lambda: self.count > before, max(0.0, seconds))
