"""Whether a node is dead, by its answers to pings. Pure: times come in, the node's health goes out.

A node whose machine refuses connections (or cannot be reached at all) is dead after a few misses in a row; behind a
refusal the next pings may come faster, since it is an answer, if not the node's. One that accepts connections and does
not answer is slow: busy, paused, swapping. It gets far more time, since a takeover is in vain if it is back in a
moment. Only time in which an answer was waited for counts: the node that asks may have been slow itself.

A death is certain if the machine itself says that the process is gone: it refuses connections, or another process is
there. Otherwise the node may live behind a network that is cut, and a third must say who goes on. So it must where the
last answer is long past: the node that asks was paused, or cut off, and the other may have gone on without it before it
died.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Health = Literal["alive", "suspect", "dead"]


@dataclass(frozen=True)
class Pace:
    """How often to ping, and how many misses make a death; seconds."""

    every_s: float = 0.1
    misses: int = 3
    patience_s: float = 5.0


class Detector:
    """One node's answers. `dead` is the last word: a process that comes back is another incarnation."""

    def __init__(self, pace: Pace, now: float) -> None:
        self.pace = pace
        self.last_answer = now
        self.died: float | None = None
        self.certain = False  # that the process is gone, not only out of reach, and was a partner until then
        self._misses = 0
        self._waited = 0.0

    def answered(self, asked: float) -> Health:
        """It has answered what it was asked then: the answer may have lain here while this node was paused."""
        if self.died is None:
            self.last_answer, self._misses, self._waited = asked, 0, 0.0
        return self.health()

    def refused(self, now: float, certain: bool = False) -> Health:
        """The machine refuses the connection, which is certain, or cannot be reached."""
        if self.died is None:
            self.certain = certain and now - self.last_answer <= self.pace.misses * self.pace.every_s
            self._misses += 1
            if self._misses >= self.pace.misses:
                self.died = now
        return self.health()

    def silent(self, now: float, waited: float) -> Health:
        """The node took the connection, and has not answered for so many seconds."""
        if self.died is None:
            self._misses = max(1, self._misses)
            self._waited += waited
            if self._waited >= max(self.pace.patience_s, self.pace.misses * self.pace.every_s):
                self.died = now
        return self.health()

    def health(self) -> Health:
        if self.died is not None:
            return "dead"
        return "suspect" if self._misses else "alive"

    def detection_s(self) -> float:
        """From the last question that it answered until it is held to be dead."""
        return 0.0 if self.died is None else self.died - self.last_answer
