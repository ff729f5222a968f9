"""A fork of a unit, from its first train to its last: a state log of its own, and what it has given so far."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field

from borealis.state.log import StateLog
from borealis.trains.progress import Progress


@dataclass
class Fork:
    """What `ForkLine` is for a unit's input, for the rest of it. Nothing of it is kept."""

    name: str  # no other fork has it
    serial: int
    log: StateLog
    since: float  # on the node's own clock; of one that has not begun, since it is ready
    tuples: int = 0  # that it gave
    progress: Progress = field(default_factory=lambda: Progress("fork"))  # of what it counts nothing is told

    def close(self) -> None:
        """Its state is needed no more."""
        self.log.close()
        shutil.rmtree(self.log.root, ignore_errors=True)
