"""The only place that knows the time: the wall's, or a test's."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds that never go back; their zero means nothing."""

    def now(self) -> float: ...


class WallClock:
    def now(self) -> float:
        return time.monotonic()


class ManualClock:
    """Time that only `advance` moves.

    >>> clock = ManualClock()
    >>> clock.advance(2.5)
    >>> clock.now()
    2.5
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
