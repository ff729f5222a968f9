"""Which copy of a replicated stream a reader reads (DPC 3.3), as pure machines: states come in, a choice comes out.

A copy that gives what is right is better than one that corrects itself, that is better than one that lacks something,
and any is better than one that does not answer. One that gives nothing before it has corrected itself is good for
readers that take nothing else, and bad for those that take tentative tuples. A reader stays where it is unless another
copy was better whenever it looked, several times in a row: copies find out about one failure at slightly different
moments.

A copy that dies, freezes or is cut off gives nothing before anybody knows why. So a reader that hears nothing looks
whether another copy has what it lacks, and does not wait for a reason.
"""

from __future__ import annotations

import math
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


@dataclass
class Silence:
    """When a reader that hears nothing asks the other copies, and when it goes to one that has more; in seconds.

    1. It asks when nothing has come for `quiet_s`, and again when the silence is half as long again; once in `every_s`
       at least.
    2. If a copy has what the reader lacks, and it still has not come `again_s` later, the reader goes there.
    3. Then it stays for `rest_s`, and twice as long after each further time within `calm_s`: where all copies come to a
       halt by turns, as on a machine with too much to do, there is nothing to gain.
    """

    quiet_s: float = 0.03
    again_s: float = 0.02
    every_s: float = 0.25
    rest_s: float = 1.0
    rest_most_s: float = 30.0
    calm_s: float = 60.0
    _since: float = -math.inf  # when the silence that was asked about began
    _asked: float = -math.inf
    _lacking: float | None = None  # since when another copy is known to have more
    _went: float = -math.inf
    _rest: float = 0.0

    def due(self, now: float, since: float | None) -> float:
        """In how many seconds to ask, where nothing has come since then; None: the reader has no time to read."""
        if since is None:
            return self.quiet_s
        if now < self._went + self._rest:
            return self._went + self._rest - now
        if since != self._since:
            return max(0.0, since + self.quiet_s - now)
        if self._lacking is not None:
            return max(0.0, self._lacking + self.again_s - now)
        pause = min(max((self._asked - since) / 2, self.again_s), self.every_s)
        return max(0.0, self._asked + pause - now)

    def goes(self, now: float, since: float, lacks: bool) -> bool:
        """Whether the reader goes to the copy that was asked and has more, if it `lacks` something."""
        if since != self._since:
            self._since, self._lacking = since, None
        self._asked = now
        if not lacks:
            self._lacking = None
            return False
        if self._lacking is None:
            self._lacking = now
        if now < self._lacking + self.again_s:
            return False
        again = now < self._went + self.calm_s
        self._rest = min(2 * self._rest, self.rest_most_s) if again else self.rest_s
        self._went, self._lacking = now, None
        return True
