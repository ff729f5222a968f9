"""Following a stream over moves, gaps and failovers: the same for units, clients, the gateway and jobs of Spark.

1. A follower knows the place behind what it has read: epoch, id, boundary, and the highest incarnation of the stream's
   unit that it has read from. Its reader's `subscribe` asks the node at an address for what is `wanted` from there.
2. When the connection breaks or the stream moves, the next of its `Endpoints` is asked. When all of them have failed,
   it pauses, longer each time.
3. Of each error the reader's `broken` hears first, and raises what it cannot bear. Where the stream cannot go on from
   this place (another epoch, or tuples that are gone), it may say from where: `begin`, `go_on`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from borealis.errors import BorealisError, StreamError
from borealis.machine import HERE, Machine
from borealis.retrying import Backoff
from borealis.streams.section import Section
from borealis.streams.tentative import ForkPlace, Wants, fork_place
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.endpoints import Endpoints
from borealis.wire.messages import Subscribe

Start = int | Literal["oldest", "newest"]


class IncomingFeed(Protocol):
    """A stream as it comes in: a subscription over the wire, or to a queue of this process."""

    epoch: str
    next_id: int
    incarnation: int

    def __iter__(self) -> Iterator[Section]: ...

    def cancel(self) -> None: ...


class Follower:
    """Where one reader stands in a stream; iterate for what comes. One thread does, any may `stop` it."""

    def __init__(
        self,
        stream: str,
        endpoints: Endpoints,
        subscribe: Callable[[str], IncomingFeed],
        broken: Callable[[BorealisError], None],
        backoff: Backoff,
        *,
        start: Start = "oldest",
        stop: int | None = None,
        reader: str | None = None,
        wants: Wants = "stable",
        pause: Callable[[float], object] | None = None,
        machine: Machine = HERE,
    ) -> None:
        self.stream, self.backoff = stream, backoff
        self.epoch: str | None = None
        self.incarnation = 0  # the highest seen in this epoch
        self.next_id, self.boundary = 0, FIRST_TIME
        self.start, self.begins = start, True  # whether to subscribe at `start`, not behind what was read
        self.stopped, self.opened = machine.threads.event(), machine.threads.event()
        self.feed: IncomingFeed | None = None  # None: there is no connection now, another one is being tried
        self.address = ""  # of the node that it reads from, while there is one
        self.silent_since: float | None = None  # it waits for the next section since then; None: it does not wait
        self.over = False  # nobody iterates any more
        self._endpoints, self._subscribe, self._broken = endpoints, subscribe, broken
        self._stop, self._reader, self.wants, self._pause = stop, reader, wants, pause or self.stopped.wait
        self._clock = machine.clock
        self.at: ForkPlace | None = None  # among tentative tuples

    def begin(self, start: Start) -> None:
        """Take the stream up there, in whichever epoch it is by now."""
        self.start, self.begins, self.boundary = start, True, FIRST_TIME

    def go_on(self, next_id: int, boundary: int = FIRST_TIME) -> None:
        """Take the stream up at this place, of the epoch that is known."""
        self.begins, self.next_id, self.boundary = False, next_id, boundary

    def wanted(self) -> Subscribe:
        return Subscribe(
            stream=self.stream,
            start=self.start if self.begins else self.next_id,
            boundary=self.boundary,
            epoch=None if self.begins else self.epoch,
            incarnation=self.incarnation,
            reader=self._reader,
            stop=self._stop,
            wants=self.wants,
            fork=self.at,
        )

    def __iter__(self) -> Iterator[Section]:
        try:
            yield from self._follow()
        finally:
            self.over = True

    def _follow(self) -> Iterator[Section]:
        while not self.stopped.is_set() and not self._ended():
            try:
                if (address := self._endpoints.next()) is not None:
                    yield from self._once(address)
                    continue
            except BorealisError as error:
                if self.stopped.is_set():
                    return
                self._broken(error)
                self._endpoints.lost(error)
            if self._endpoints.exhausted:
                self._pause(self._endpoints.pause(self.backoff))

    def stop(self) -> None:
        """End it, from any thread."""
        self.stopped.set()
        self.look_again()

    def go_to(self, address: str) -> None:
        """Read from a better copy of the stream, from this place on."""
        self._endpoints.prefer(address)
        self.look_again()

    def look_again(self) -> None:
        """The stream is served elsewhere now: leave the node that serves it here."""
        if (feed := self.feed) is not None:
            feed.cancel()

    def _ended(self) -> bool:
        """Whether all was read: up to the end of the stream, or of what was asked for."""
        return self.boundary == LAST_TIME or (self._stop is not None and not self.begins and self.next_id >= self._stop)

    def _once(self, address: str) -> Iterator[Section]:
        feed = self.feed = self._subscribe(address)
        try:
            if self.stopped.is_set():  # `stop` may have come when there was nothing to cancel
                return
            same = feed.epoch == self.epoch
            if same and not self.begins and feed.incarnation < self.incarnation:
                raise StreamError(f"{address} serves stream {self.stream} no more: it was deposed")
            self.incarnation = max(self.incarnation, feed.incarnation) if same else feed.incarnation
            self.epoch, self.next_id, self.begins = feed.epoch, feed.next_id, False
            self._endpoints.found()
            self.address = address
            self.opened.set()
            for section in self._listened(feed):
                self.backoff.found()  # not before: what opens and then breaks, over and over, is tried less and less
                self.at = fork_place(self.at, section)
                if section.stable:
                    self.next_id, self.boundary = section.stop, section.final
                yield section
        finally:
            self.feed, self.address = None, ""
            feed.cancel()

    def _listened(self, feed: IncomingFeed) -> Iterator[Section]:
        """What comes, and meanwhile since when nothing has."""
        sections = iter(feed)
        try:
            while True:
                self.silent_since = self._clock.now()
                section = next(sections, None)
                self.silent_since = None
                if section is None:
                    return
                yield section
        finally:
            self.silent_since = None
