"""Which unit of a node is to make a checkpoint in an idle moment: that which shortens the worst expected recovery most.

Hwang's algorithm 1, for captures. A segment is what has its backups on one node, which would do again what its units
have done since their last checkpoints, one after the other; the worst segment decides how long a death of this node is
felt. A paste is no task to choose here: a backup takes a checkpoint in as it comes, and what that costs it counts
against the checkpoint. Costs are learnt from what was measured, by bytes. Pure.

Laws:
1. The unit that is named is of the worst segment that has one to name.
2. Of that segment none would take off more recovery time for each second that its capture costs.
3. None is named that has a checkpoint under way, has done nothing since, or had one less than `soonest_s` ago.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from borealis.ha.checkpoints import LATEST
from borealis.ha.primary import Passive, Want

TURN_SOONEST = 0.2  # intervals between two checkpoints
FADES = 0.98  # what an older measurement counts, beside the one after it
LEAST_S = 1e-6  # that anything costs


@dataclass
class Costs:
    """What something takes that has so many bytes: a line through what was measured, by least squares.

    >>> costs = Costs()
    >>> costs.seconds(100)
    0.0
    >>> for size in (100, 300, 200):
    ...     costs.learn(size, 0.5 + size / 1000)
    >>> round(costs.seconds(1000), 6)
    1.5
    """

    _weight: float = 0.0
    _sizes: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _products: float = 0.0

    def learn(self, size: int, seconds: float) -> None:
        self._weight = self._weight * FADES + 1
        self._sizes = self._sizes * FADES + size
        self._seconds = self._seconds * FADES + seconds
        self._squares = self._squares * FADES + size * size
        self._products = self._products * FADES + size * seconds

    def seconds(self, size: int) -> float:
        if not self._weight:
            return 0.0
        spread = self._weight * self._squares - self._sizes**2
        slope = (self._weight * self._products - self._sizes * self._seconds) / spread if spread > 1e-9 else 0.0
        slope = max(0.0, slope)  # more is never cheaper
        return max(0.0, (self._seconds - slope * self._sizes) / self._weight + slope * size)


@dataclass
class _Covered:
    """A unit, and what its backup would have to do again."""

    backup: str  # the node
    soonest_s: float
    at: float  # of the last checkpoint
    work_s: float = 0.0  # of trains since then
    size: int = 0  # bytes of state that changed in those
    away_s: float = 0.0  # of trains that are in a checkpoint under way
    away_size: int = 0
    under_way: bool = False
    capture: Costs = field(default_factory=Costs)
    paste: Costs = field(default_factory=Costs)

    def recovery_s(self, later_s: float, now: float) -> float:
        """What the backup would take to come to where the unit will be."""
        pace = self.work_s / max(now - self.at, LEAST_S)
        return self.work_s + self.away_s + pace * later_s

    @property
    def capture_s(self) -> float:
        return max(LEAST_S, self.capture.seconds(self.size))

    @property
    def gain_s(self) -> float:
        """How much sooner the backup would be there after a checkpoint."""
        return self.work_s - self.paste.seconds(self.size)


class Turns:
    """The units of a node that have a backup, by name."""

    def __init__(self) -> None:
        self.units: dict[Hashable, _Covered] = {}

    def join(self, unit: Hashable, backup: str, soonest_s: float, now: float) -> None:
        """It has a backup from now on."""
        self.units[unit] = _Covered(backup, soonest_s, now)

    def leave(self, unit: Hashable) -> None:
        self.units.pop(unit, None)

    def worked(self, unit: Hashable, seconds: float, size: int) -> None:
        """A train of it took so long, and changed so many bytes."""
        if (one := self.units.get(unit)) is not None:
            one.work_s, one.size = one.work_s + seconds, one.size + size

    def captured(self, unit: Hashable, now: float, seconds: float) -> None:
        """A checkpoint of all that it did is under way; to make it took so long."""
        if (one := self.units.get(unit)) is not None:
            one.capture.learn(one.size, seconds)
            one.at, one.under_way = now, True
            one.away_s, one.away_size = one.away_s + one.work_s, one.away_size + one.size
            one.work_s, one.size = 0.0, 0

    def answered(self, unit: Hashable, seconds: float) -> None:
        """Its backup has it, so long after it was sent."""
        if (one := self.units.get(unit)) is not None and one.under_way:
            one.paste.learn(one.away_size, seconds)
            one.away_s, one.away_size, one.under_way = 0.0, 0, False

    def failed(self, unit: Hashable) -> None:
        """It may not have arrived: what it was about goes with the next."""
        if (one := self.units.get(unit)) is not None and one.under_way:
            one.work_s, one.size = one.work_s + one.away_s, one.size + one.away_size
            one.away_s, one.away_size, one.under_way = 0.0, 0, False

    def next(self, now: float) -> Hashable | None:
        """Whose checkpoint is worth an idle moment most; None if no one's is."""
        ready = {
            name: one
            for name, one in self.units.items()
            if not one.under_way and one.gain_s > 0 and now - one.at >= one.soonest_s
        }
        segments: dict[str, list[Hashable]] = defaultdict(list)
        for name, one in ready.items():
            segments[one.backup].append(name)
        if not segments:
            return None
        worst = max(segments, key=lambda backup: self.recovery_s(backup, now))
        return max(segments[worst], key=lambda name: ready[name].gain_s / ready[name].capture_s)

    def recovery_s(self, backup: str, now: float) -> float:
        """What a node would take to come to where all units are that have their backups there."""
        mine = [one for one in self.units.values() if one.backup == backup]
        later = min((one.capture_s for one in mine), default=0.0)
        return sum(one.recovery_s(later, now) for one in mine)


@dataclass
class MinMax(Passive):
    """A checkpoint in the turns that its node gives it, and by the clock where it gives none."""

    in_turns: ClassVar[bool] = True
    _has_turn: bool = False

    def take_turn(self) -> None:
        self._has_turn = True

    def _is_due(self, now: float, received: object) -> bool:
        intervals = (now - self._sent_at) / self.interval_s
        if self._has_turn and intervals >= TURN_SOONEST:
            return True
        return intervals >= (1.0 if self.holding else LATEST)

    def _compose(self, now: float, received: object) -> Want:
        self._has_turn = False
        return super()._compose(now, {})
