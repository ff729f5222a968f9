"""What is kept of a unit's input while a fork goes on: some of it in memory, more on the disk, and then no more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from borealis.disk import one_line
from borealis.machine import Machine
from borealis.trains.intake import Intake

KEEP_BYTES = 512_000_000  # of an input, where nothing is said
MEMORY_BYTES = 64 << 20
AGAIN_S = 1.0  # until a disk that took nothing is tried again

log = logging.getLogger("borealis.trains")


@dataclass(frozen=True)
class KeepLimits:
    """How much a unit keeps of each input, for each line, while it has a fork."""

    bytes_most: int = KEEP_BYTES  # in all; then both lines wait
    memory_bytes: int = MEMORY_BYTES  # in memory; the oldest of what is more goes to the disk


class Keeping:
    """Moves what is too much for memory to the disk. Not thread-safe."""

    def __init__(self, limits: KeepLimits, machine: Machine) -> None:
        self.limits, self._disk, self._clock = limits, machine.disk, machine.clock
        self.trouble = ""  # why the disk takes nothing
        self._again = 0.0  # when it is tried again

    def has_room(self, intakes: Iterable[Intake]) -> bool:
        """Whether more of an input can be kept, by each line that reads it."""
        return all(self._fits(intake) for intake in intakes)

    def _fits(self, intake: Intake) -> bool:
        if self.is_full(intake):
            return False
        return intake.in_memory < self.limits.memory_bytes or self._spill(intake)

    def is_full(self, intake: Intake) -> bool:
        """Whether all is kept that may be."""
        return intake.size >= self.limits.bytes_most

    def _spill(self, intake: Intake) -> bool:
        if self.trouble and self._clock.now() < self._again:
            return False
        try:
            intake.spill(self._disk, intake.in_memory - self.limits.memory_bytes // 2)
        except OSError as error:
            if not self.trouble:
                log.warning("what is kept for the right answers stays in memory: %s", one_line(error))
            self.trouble, self._again = one_line(error), self._clock.now() + AGAIN_S
            return False
        self.trouble = ""
        return True
