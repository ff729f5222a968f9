"""The only place that knows the time: the wall's, or a test's."""

from __future__ import annotations

import time
from typing import Protocol

EPOCH_S = 1_700_000_000.0  # the wall's time when a manual clock begins


class Clock(Protocol):
    """What time it is, and waiting for a later one."""

    def now(self) -> float:
        """Seconds that never go back; their zero means nothing."""

    def time(self) -> float:
        """Seconds since 1970, for people and for other machines."""

    def sleep(self, seconds: float) -> None: ...


class WallClock:
    def now(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


WALL = WallClock()


class ManualClock:
    """Time that only `advance` moves, and those who sleep.

    >>> clock = ManualClock()
    >>> clock.advance(2.5)
    >>> clock.now()
    2.5
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def time(self) -> float:
        return EPOCH_S + self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    sleep = advance
