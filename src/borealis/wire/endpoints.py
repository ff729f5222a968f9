"""Where to look for a stream when the connection to it broke: at its backup at once, then where the coordinator says.

Each address is tried once without waiting; when all of them failed it is time for a pause, and then to begin again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from borealis.clock import WALL, Clock
from borealis.errors import BorealisError, GoneError, StateError, WireError
from borealis.message import PROTOCOL
from borealis.retrying import TEMPORARY_STATUS, Backoff, Retries, is_temporary
from borealis.streams.queue import MovedError, StandbyError
from borealis.wire.client import Peer

SOON = Retries(give_up_s=5.0)  # for a stream that the coordinator says will be served soon
STANDBY_S = 0.05  # the longest pause while there is a backup that may take over at any moment

T = TypeVar("T")


@dataclass(frozen=True)
class Location:
    """Where a stream is served."""

    stream: str  # in full, as `traffic/agg`
    address: str  # of a Flight server
    entry: bool = False  # whether it can be published to there
    fallback: str | None = None  # the address of its backup, where it goes on if that node dies
    node: str = ""
    incarnation: int = 0  # of the unit that serves it; 0: it is not protected
    replicated: bool = False  # whether the backup serves it as well
    copies: tuple[str, ...] = ()  # the addresses of further copies that do, where there are more than two
    v: int = PROTOCOL

    @property
    def others(self) -> list[str]:
        """Where it may be found as well, the backup first."""
        return [self.fallback, *self.copies] if self.fallback else [*self.copies]

    @property
    def serving(self) -> list[str]:
        """All addresses at which it can be read."""
        return [one for one in (self.address, *(self.others if self.replicated else ())) if one]

    def served_at(self, address: str) -> Location:
        """The same, with another address in the first place; if that was one of the others, they change places."""
        known = self
        if self.replicated and address == self.fallback:
            known = replace(self, fallback=self.address)
        elif self.replicated and address in self.copies:
            known = replace(self, copies=tuple(self.address if one == address else one for one in self.copies))
        return replace(known, address=address)


class Locator(Protocol):
    """What knows where streams are: a coordinator's client, the gateway, or a job that was given an address."""

    def locate(self, stream: str) -> Location: ...

    def peer(self, address: str) -> Peer: ...


def located(locator: Locator, stream: str, clock: Clock = WALL) -> Location:
    """Where a stream is; waits a little where the coordinator says that it will be somewhere soon."""
    backoff = Backoff(SOON, clock or WALL)
    while True:
        try:
            return locator.locate(stream)
        except BorealisError as error:
            if getattr(error, "status", None) != TEMPORARY_STATUS:
                raise
            clock.sleep(backoff.lost(error))


class Endpoints:
    """The addresses at which one stream may be served, in the order to try them.

    `locate` asks the coordinator. A node hears of moves: `recall` is what it knows without asking, and each round
    begins there. Otherwise it begins with a question.
    """

    def __init__(
        self,
        locate: Callable[[], Location],
        found: Location | None = None,
        recall: Callable[[], Location | None] = lambda: None,
        clock: Clock = WALL,
    ) -> None:
        self._clock = clock
        self._known, self._locate, self._recall = found, locate, recall
        self._ahead = deque([found.address] if found is not None else [])
        self._at = found.address if found is not None else ""  # what was tried last
        self._preferred = ""  # to be tried next, whatever comes then
        self._begin()

    def _begin(self) -> None:
        self._tried: set[str] = set()
        self._asked = self._standby = False
        self._last: BorealisError | None = None

    @property
    def exhausted(self) -> bool:
        """Whether all have failed, and it is time for a pause."""
        return self._last is not None and self._asked and not self._ahead

    def prefer(self, address: str) -> None:
        """Try this one next: a better copy of the stream is there."""
        self._preferred = address

    def next(self) -> str | None:
        """The address to try now; None: there is none that was not tried. Raises what the coordinator says."""
        if self._preferred:
            self._at, self._preferred = self._preferred, ""
            return self._at
        if self._last is None and not self._ahead:  # the caller has given up what was tried before
            self._asked = False
        if not self._ahead and self._last is None and (known := self._recall()) is not None:
            self._known = known
            self._plan(known.address)
        if not self._ahead and not self._asked:
            self._asked = True
            self._known = self._ask()
            self._plan(self._known.address, *self._known.others)
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
        if isinstance(error, GoneError | StateError):  # it does, but not from there or now: a pause, and once more
            self._asked = True
            self._ahead.clear()
            return
        self._tried.add(self._at)
        self._standby = self._standby or isinstance(error, StandbyError)
        recalled = self._recall()
        known = self._known = recalled or self._known
        moved_to = error.moved_to if isinstance(error, MovedError) else None
        others = (*known.others, known.address) if known is not None and known.others else ()
        self._plan(moved_to, *others, recalled.address if recalled is not None else None)

    def pause(self, backoff: Backoff) -> float:
        """Seconds to wait; after that every address may be tried again. Raises the last error if that was enough."""
        assert self._last is not None
        wait = backoff.lost(self._last)
        wait = min(wait, STANDBY_S) if self._standby else wait
        self._begin()
        return wait

    def call(
        self,
        do: Callable[[str], T],
        passing: Callable[[BorealisError], bool],
        backoff: Backoff,
        wait: Callable[[float], object] | None = None,
    ) -> T:
        """Do something at the address that serves the stream; it may be done again where an error passes.

        `wait` is how a caller waits that can be interrupted.
        """
        while True:
            try:
                if (address := self.next()) is not None:
                    done = do(address)
                    self.found()
                    return done
            except BorealisError as error:
                if not passing(error):
                    raise
                self.lost(error)
            if self.exhausted:
                (wait or self._clock.sleep)(self.pause(backoff))

    def _plan(self, *addresses: str | None) -> None:
        self._ahead += [a for a in dict.fromkeys(addresses) if a and a not in self._tried and a not in self._ahead]

    def _ask(self) -> Location:
        """Where the stream is; while the coordinator is away, where it was."""
        try:
            return self._locate()
        except WireError as error:
            if self._known is None or not is_temporary(error):
                raise
            return self._known
