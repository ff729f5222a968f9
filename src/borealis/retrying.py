"""Trying again: how soon, how often, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass

from borealis.clock import WALL, Clock
from borealis.errors import BorealisError, GoneError, StreamError, WireError

TEMPORARY_STATUS = 503  # the coordinator's word for what may be better in a moment


@dataclass(frozen=True)
class Retries:
    """When to try again after the other side was lost."""

    first_s: float = 0.05
    most_s: float = 2.0
    give_up_s: float = 60.0  # without any success


RETRIES = Retries()


class Backoff:
    """The waits of one connection that is lost and found; `found` after each success."""

    def __init__(self, retries: Retries, clock: Clock = WALL) -> None:
        self._retries = retries
        self._clock = clock
        self._wait = retries.first_s
        self._lost_at: float | None = None

    def found(self) -> None:
        self._wait, self._lost_at = self._retries.first_s, None

    def lost(self, error: BorealisError) -> float:
        """Seconds to wait before the next attempt; raises the error when there were enough of them."""
        now = self._clock.now()
        self._lost_at = now if self._lost_at is None else self._lost_at
        left = self._lost_at + self._retries.give_up_s - now
        if left <= 0:
            raise error
        wait, self._wait = self._wait, min(2 * self._wait, self._retries.most_s)
        return min(wait, left)


def is_temporary(error: BorealisError) -> bool:
    """Whether the same may succeed a moment later: no server there, or the coordinator says so."""
    status = getattr(error, "status", None)
    return status == TEMPORARY_STATUS or (isinstance(error, WireError) and status is None)


def is_elsewhere(error: BorealisError) -> bool:
    """Whether a node says that it does not serve a stream: another does, or will; the coordinator would know."""
    return isinstance(error, StreamError) and not isinstance(error, GoneError) and not hasattr(error, "status")
