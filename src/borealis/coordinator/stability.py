"""For how long the next failure would not be survived: since when, and last time (Hwang: period of instability)."""

from __future__ import annotations

from collections.abc import Sequence

from borealis.wire.status import Instability, Unprotected


class Stability:
    """What was seen of it at each look. One thread notes, any may read.

    >>> seen = Stability()
    >>> one = Unprotected(diagram="d", what="u1", state="alone", since=100.0, seconds=2.0, why="node1 does not answer")
    >>> seen.note([one], now=102.0)
    >>> seen.now(103.0)
    Instability(since=100.0, seconds=3.0, what=1, last_at=0.0, last_s=0.0)
    >>> seen.note([], now=103.5)
    >>> seen.now(110.0)
    Instability(since=None, seconds=0.0, what=0, last_at=100.0, last_s=3.5)
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._what = 0
        self._last_at = self._last_s = self._whole_at = 0.0

    def note(self, exposed: Sequence[Unprotected], now: float) -> None:
        """What is not protected as it was promised, at a time in seconds since 1970."""
        self._what = len(exposed)
        if exposed:
            began = min(one.since for one in exposed)
            self._since = max(began, self._whole_at) if self._since is None else self._since
            return
        if self._since is not None:
            self._last_at, self._last_s = self._since, round(max(0.0, now - self._since), 3)
        self._since, self._whole_at = None, now

    def now(self, now: float) -> Instability:
        """How it stands."""
        seconds = 0.0 if self._since is None else round(max(0.0, now - self._since), 3)
        last = {"last_at": self._last_at, "last_s": self._last_s}
        return Instability(since=self._since, seconds=seconds, what=self._what, **last)
