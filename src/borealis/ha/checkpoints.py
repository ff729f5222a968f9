"""When a unit with a passive standby makes a checkpoint, and how much output goes along, as machines. Pure.

`ha.primary.Passive` goes by the clock, and sends all output since the last checkpoint. `Sweeping` waits until readers
have let go of output: then what they have made durable need not travel, and the checkpoint lets go of input in turn, so
that checkpoints sweep from the last unit to the first (Gu 3.1).

Laws, for every order of events, beside those of `ha.primary`:
1. A backup has each tuple that a reader may still ask for and that was given before its checkpoint; so any set of units
   may die at once (Gu 3.2): each goes on from its own checkpoint, and finds upstream what it has not acknowledged.
2. A checkpoint comes at the latest after `LATEST` intervals, whether readers acknowledge or not; where none did for so
   long, and where output waits for it, after one.
3. One that readers cause comes at once when they have let go of output, or not at all: `SOONEST` intervals after the
   last one at least, and a whole interval where they let go of output all the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from borealis.ha.primary import Effects, Passive, Want
from borealis.streams.readers import PASSING_S
from borealis.streams.section import Place

LATEST = 2.0  # intervals without a checkpoint, where readers let go of output
SOONEST = 0.5  # intervals until one that they cause


@dataclass
class Sweeping(Passive):
    """A checkpoint as soon as readers have let go of output; by the clock where they do not."""

    sweeps: ClassVar[bool] = True
    _has_trimmed: bool = False  # readers have let go of output just now
    _trimmed_at: float = float("-inf")  # when they did so last
    _received: Mapping[str, int] = field(default_factory=dict)  # what named readers need
    _swept: bool = False  # it is time for a checkpoint because they did
    _given: Mapping[str, Place] = field(default_factory=dict)  # up to where the backup has the outputs
    _first: dict[str, int] = field(default_factory=dict)  # and from where on, for lack of readers of what is before
    _looks: deque[tuple[float, Mapping[str, int]]] = field(default_factory=deque)  # what was pushed to whom, and when

    def trimmed(self) -> None:
        self._has_trimmed = True

    def pushed(self, now: float, passing: Mapping[str, int]) -> None:
        """Passing readers, of the outputs that have any, were given what is before these tuples."""
        self._looks.append((now, passing))
        while len(self._looks) > 1 and self._looks[1][0] <= now - PASSING_S:
            self._looks.popleft()

    def want(self, now: float, received: Mapping[str, int]) -> Want | None:
        self._received = received
        self._swept = self._has_trimmed and self._is_time(now)
        if self._has_trimmed:
            self._has_trimmed, self._trimmed_at = False, now
        return super().want(now, received)

    def _is_time(self, now: float) -> bool:
        """Whether what readers have just let go of is to be followed by a checkpoint."""
        all_the_time = now - self._trimmed_at < SOONEST * self.interval_s
        return now - self._sent_at >= (1.0 if all_the_time else SOONEST) * self.interval_s

    def acknowledged(self, number: int) -> Effects:
        sent = self._under_way
        if sent is not None and sent.number == number and self.joined:
            self._given = sent.step.outputs
            self._first = {} if sent.kind == "whole" else self._first | dict(sent.starts)
        return super().acknowledged(number)

    def failed(self) -> None:
        super().failed()
        self._trimmed_at = float("-inf")  # by the clock, then

    def _is_due(self, now: float, received: Mapping[str, int]) -> bool:
        if self._swept or any(upto < self._first.get(name, 0) for name, upto in self._needed().items()):
            return True  # or a reader went back, or is new
        waits = now - self._trimmed_at < LATEST * self.interval_s and not self.holding
        return now - self._sent_at >= (LATEST if waits else 1.0) * self.interval_s

    def _compose(self, now: float, received: Mapping[str, int]) -> Want:
        want = super()._compose(now, received)
        return want if want.kind == "whole" else replace(want, starts=self._starts())

    def _starts(self) -> dict[str, int]:
        """Outputs of which less is needed than what came since the last checkpoint, or more."""
        found = {}
        for name, upto in self._needed().items():
            if upto > self._given[name][0]:
                found[name] = upto
                self._first[name] = max(upto, self._first.get(name, 0))  # from now on: the answer may be lost
            elif upto < self._first.get(name, 0):
                found[name] = upto
        return found

    def _needed(self) -> dict[str, int]:
        """The first tuple of each output that a reader may still ask for, or has not got yet."""
        return {name: min(self._lacked(name), place[0]) for name, place in self.last.outputs.items()}

    def _lacked(self, name: str) -> int:
        """What a passing reader was given a moment ago may be under way still."""
        return min([self._received[name], *(look[name] for _, look in self._looks if name in look)])
