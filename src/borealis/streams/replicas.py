"""Which copy of a replicated stream a reader reads (DPC 3.3), as a pure machine: states come in, a choice comes out.

A copy that gives what is right is better than one that corrects itself, that is better than one that lacks something,
and any is better than one that does not answer. One that gives nothing before it has corrected itself is good for
readers that take nothing else, and bad for those that take tentative tuples. A reader stays where it is unless another
copy was better whenever it looked, several times in a row: copies find out about one failure at slightly different
moments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from borealis.streams.status import StreamState

ReplicaState = StreamState | Literal["unreachable"]
RANKS: tuple[ReplicaState, ...] = ("stable", "stabilization", "suspended", "failure", "unreachable")
RANKS_TENTATIVE: tuple[ReplicaState, ...] = ("stable", "stabilization", "failure", "suspended", "unreachable")


@dataclass
class Choice:
    """One reader's choice among the copies of one stream, by their addresses."""

    tentative: bool = False  # whether it takes tentative tuples
    looks: int = 2  # at which another was better, before the reader goes there
    _better: int = 0

    def stay(self) -> None:
        """The copy that is read is as good as can be."""
        self._better = 0

    def best(self, at: str, states: Mapping[str, ReplicaState]) -> str:
        """From which copy to read, where it reads from `at` now."""
        ranks = RANKS_TENTATIVE if self.tentative else RANKS
        found = min(states, key=lambda address: (ranks.index(states[address]), address != at))
        self._better = 0 if found == at else self._better + 1
        if self._better < self.looks:
            return at
        self._better = 0
        return found
