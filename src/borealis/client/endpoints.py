"""Where to look for a stream when the connection to it broke: at its backup at once, then where the coordinator says.

Each address is tried once without waiting; when all of them failed it is time for a pause, and then to begin again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from borealis.client.coordinator import Location
from borealis.client.retrying import Backoff, is_temporary
from borealis.errors import BorealisError, FullError, GoneError, WireError
from borealis.streams.queue import MovedError, StandbyError

STANDBY_S = 0.05  # the longest pause while there is a backup that may take over at any moment


class Places:
    """The addresses at which one stream may be served, in the order to try them."""

    def __init__(self, found: Location, locate: Callable[[], Location]) -> None:
        self._known, self._locate = found, locate
        self._ahead = deque([found.address])
        self._at = found.address
        self._begin()

    def _begin(self) -> None:
        self._tried: set[str] = set()
        self._asked = self._standby = False
        self._last: BorealisError | None = None

    @property
    def exhausted(self) -> bool:
        """Whether all have failed, and it is time for a pause."""
        return self._last is not None and self._asked and not self._ahead

    @property
    def more(self) -> bool:
        """Whether there is an address to try without asking the coordinator."""
        return bool(self._ahead)

    def next(self) -> str | None:
        """The address to try now; None: there is none that was not tried. Raises what the coordinator says."""
        if not self._ahead and not self._asked:
            self._asked = True
            self._known = self._ask()
            self._plan(self._known.address, self._known.fallback)
        if not self._ahead:
            return None
        self._at = self._ahead.popleft()
        return self._at

    def found(self) -> None:
        """The address that was tried last serves the stream."""
        self._ahead.clear()
        self._begin()

    def lost(self, error: BorealisError) -> None:
        """The address that was tried last does not serve the stream, or no longer; or the coordinator complained."""
        self._last = error
        if isinstance(error, GoneError | FullError):  # it does, but not from there or now: a pause, and once more
            self._asked = True
            self._ahead.clear()
            return
        self._tried.add(self._at)
        self._standby = self._standby or isinstance(error, StandbyError)
        known = self._known
        moved_to = error.moved_to if isinstance(error, MovedError) else None
        other = known.fallback if self._at == known.address else known.address
        self._plan(moved_to, other if known.fallback else None)

    def pause(self, backoff: Backoff) -> float:
        """Seconds to wait; after that every address may be tried again. Raises the last error if that was enough."""
        assert self._last is not None
        wait = backoff.lost(self._last)
        wait = min(wait, STANDBY_S) if self._standby else wait
        self._begin()
        return wait

    def _plan(self, *addresses: str | None) -> None:
        self._ahead += [a for a in dict.fromkeys(addresses) if a and a not in self._tried and a not in self._ahead]

    def _ask(self) -> Location:
        """Where the stream is; while the coordinator is away, where it was."""
        try:
            return self._locate()
        except WireError as error:
            if not is_temporary(error):
                raise
            return self._known
