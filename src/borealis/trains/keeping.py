"""What is kept of a unit's input while a fork goes on: some of it in memory, more on the disk, and then no more.

Then the unit waits; or, if that is asked, the oldest of what its trunk waits with is given up for what is newer. What
it was is not known any more, so the trunk goes on behind a hole, and so do the ids of all that comes of it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass

from borealis.diagram.protection import WhenFull
from borealis.disk import one_line
from borealis.machine import Machine
from borealis.trains.intake import Intake
from borealis.trains.relay import Relayed

KEEP_BYTES = 512_000_000  # of an input, where nothing is said
MEMORY_BYTES = 64 << 20
AGAIN_S = 1.0  # until a disk that took nothing is tried again
SAMPLES = 64  # in the time for which something is kept: so exactly it is known how old that is

log = logging.getLogger("borealis.trains")


@dataclass(frozen=True)
class KeepLimits:
    """How much a unit keeps of each input, for each line, while it has a fork."""

    bytes_most: int = KEEP_BYTES  # in all
    memory_bytes: int = MEMORY_BYTES  # in memory; the oldest of what is more goes to the disk
    seconds_most: float | None = None  # since it came
    when_full: WhenFull = "wait"  # both lines do; or the trunk goes without the oldest

    @property
    def gives_up(self) -> bool:
        """Whether the oldest goes for what is newer."""
        return self.when_full == "drop-oldest"


class Keeping:
    """Moves what is too much for memory to the disk. Not thread-safe."""

    def __init__(self, limits: KeepLimits, machine: Machine) -> None:
        self.limits, self._disk, self._clock = limits, machine.disk, machine.clock
        self.trouble = ""  # why the disk takes nothing
        self._again = 0.0  # when it is tried again
        self.given_up = Counter[str]()  # tuples of each input
        self._came: dict[str, deque[tuple[float, int]]] = {}  # when each input had come to which tuple

    def note(self, name: str, first: int) -> None:
        """Tuples of an input from this one on have just come."""
        if self.limits.seconds_most is None:
            return
        came, now = self._came.setdefault(name, deque()), self._clock.now()
        if not came or now - came[-1][0] >= self.limits.seconds_most / SAMPLES:
            came.append((now, first))
        self._old(name)

    def _old(self, name: str) -> int:
        """What of an input is before this tuple has been kept for too long."""
        came, most = self._came.get(name), self.limits.seconds_most
        if not came or most is None:
            return 0
        since = self._clock.now() - most
        while len(came) > 1 and came[1][0] <= since:
            came.popleft()
        return came[0][1] if came[0][0] <= since else 0

    def has_room(self, name: str, trunk: Intake, fork: Intake | None = None, *, held: bool) -> bool:
        """Whether more of an input can be kept, by each line that reads it; the trunk is held up by another, or not."""
        return not self.is_full(name, trunk, held) and self.fits(trunk) and (fork is None or self.fits(fork))

    def fits(self, intake: Intake) -> bool:
        if intake.size >= self.limits.bytes_most:
            return False
        return intake.in_memory < self.limits.memory_bytes or self._spill(intake)

    def is_full(self, name: str, trunk: Intake, held: bool) -> bool:
        """Whether the trunk keeps as much of an input as it may, or has been held up with some of it for as long."""
        first = trunk.pending[0] if trunk.pending else None
        is_old = held and isinstance(first, Relayed) and first.section.stop <= self._old(name)
        return is_old or trunk.size >= self.limits.bytes_most

    def give_up(self, name: str, trunk: Intake) -> int | None:
        """Have the trunk go without the oldest of an input, so that there is room for what is newer.

        Says before which tuple nothing of it is needed now; None: nothing went. The newest section always has room.
        """
        count = 0
        while len(trunk.pending) > 1 and not self.has_room(name, trunk, held=True):
            count += trunk.leave_out()
        if not count:
            return None
        first = trunk.pending[0]
        assert isinstance(first, Relayed)
        if not self.given_up[name]:
            log.warning("no more of '%s' can be kept: its oldest tuples are given up for newer ones", name)
        self.given_up[name] += count
        return first.section.first

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
