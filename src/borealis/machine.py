"""What a process stands on: its clock, its threads, its disk, and chance. The wall's and the system's, or simulated.

Everything that a node, an entry point, a queue or a coordinator waits for comes from here, or from the `Peers` that it
is given: so a simulation can run many of them in one thread, and a seed decides what happens.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Protocol

from borealis.clock import WALL, Clock
from borealis.disk import Disk, LocalDisk
from borealis.threads import SystemThreads, Threads


class Chance(Protocol):
    """Names that are not there yet."""

    def token(self, length: int = 16) -> str:
        """So many hexadecimal digits that nobody has drawn before."""


class SystemChance:
    def token(self, length: int = 16) -> str:
        return secrets.token_hex((length + 1) // 2)[:length]


@dataclass(frozen=True)
class Machine:
    """One process's own; passed down from where the process starts."""

    clock: Clock = WALL
    threads: Threads = field(default_factory=SystemThreads)
    disk: Disk = field(default_factory=LocalDisk)
    chance: Chance = field(default_factory=SystemChance)


HERE = Machine()
