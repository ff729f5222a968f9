"""A client's subscription: a stream from a tuple id on, taken up again where it was whatever happens in between.

1. A thread reads the stream into a bounded buffer and knows the place behind what it has read: epoch, id, boundary.
2. When the connection breaks, the stream moves or its node restarts, it subscribes from that place at the stream's
   backup, if there is one, or asks the coordinator where the stream is now. What was buffered stays, and nothing comes
   twice.
3. If the stream is there but cannot go on from that place (another epoch, or tuples that are gone), there is a gap:
   an error, or with `on_gap="continue"` counted, and reading goes on at the oldest tuple held. Where a recovery left
   ids out, that is counted, too, and reading goes on in any case: the unit was deployed with that guarantee.
4. Under a reader's name, what was handed out is acknowledged when more is asked for, so what a crashed program had not
   finished comes again under the same name.
"""

from __future__ import annotations

import contextlib
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from borealis.errors import BorealisError, GoneError, InputError, StreamError, WireError
from borealis.machine import HERE, Machine
from borealis.retrying import RETRIES, Backoff, Retries, is_elsewhere, is_temporary
from borealis.streams.id_gaps import is_jump
from borealis.streams.queue import AwayError, MovedError, StandbyError
from borealis.streams.section import Section
from borealis.wire.client import Peer
from borealis.wire.endpoints import Endpoints, Locator, located
from borealis.wire.follow import Follower
from borealis.wire.follow import Start as Start
from borealis.wire.messages import Ack
from borealis.wire.problems import ReplacedError
from borealis.wire.replicas import watch
from borealis.wire.subscription import WireSubscription
from borealis.wire.view import View

START_WORDS: dict[str, Start] = {"oldest": "oldest", "newest": "newest"}


class Came(NamedTuple):
    """A section, and in which life of the stream it came: each gap begins another, and ids mean nothing across it."""

    section: Section
    life: int
    connection: int  # how many there were before the one it came by


@dataclass(frozen=True)
class ReadOptions:
    start: Start | None = None  # None: the newest; for a named reader where it was, or the oldest
    reader: str | None = None
    headers: bool = False
    insertions_only: bool = False
    tentative: bool = False
    on_gap: Literal["raise", "continue"] = "raise"
    auto_ack: bool = True
    timeout: float | None = None  # seconds without a tuple after which iteration raises TimeoutError
    retries: Retries = RETRIES
    buffer_bytes: int = 16 << 20  # read ahead of the program
    ack_every_s: float = 0.2  # acknowledgements are calls of their own: not one for every section
    first_s: float = 30.0  # for the first connection: a known stream may be on its way to its node, with its state

    def __post_init__(self) -> None:
        is_id = isinstance(self.start, int) and not isinstance(self.start, bool) and self.start >= 0
        if not is_id and self.start not in (None, "oldest", "newest"):
            raise InputError(f"start={self.start!r} is no place", hint="give 'oldest', 'newest' or a tuple id")
        if self.reader is not None:
            check_name("reader", self.reader)
        if self.on_gap not in ("raise", "continue"):
            raise InputError(f"on_gap={self.on_gap!r}", hint="give 'raise' or 'continue'")

    @property
    def view(self) -> View:
        return View(self.headers, self.insertions_only)


def parse_start(text: str) -> Start | None:
    """`oldest`, `newest` or a tuple's id; None for any other text."""
    is_id = text.isascii() and text.isdigit() and int(text) < 2**63
    return int(text) if is_id else START_WORDS.get(text)


def check_name(what: str, name: str) -> None:
    """Refuse a name that cannot travel."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name):
        raise InputError(f"'{name}' cannot name a {what}", hint="letters, digits, _, . and - can, up to 200 of them")


class Buffer:
    """Sections between the thread that reads them and the program that wants them: bounded, then the thread waits."""

    def __init__(self, most_bytes: int, machine: Machine = HERE) -> None:
        self._most = most_bytes
        self._held: deque[Came] = deque()
        self._bytes = 0
        self.closed = False
        self._error: BaseException | None = None
        self._changed = machine.threads.condition()
        self.on_news: Callable[[], None] = lambda: None  # called when there may be something to take

    def put(self, came: Came) -> bool:
        """Add one, when there is room; False if the program wants no more."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or not self._held or self._bytes < self._most)
            if self.closed:
                return False
            self._held.append(came)
            self._bytes += came.section.nbytes
            self._changed.notify_all()
        self.on_news()
        return True

    def close(self, error: BaseException | None = None, drop: bool = False) -> None:
        """No more will come, because of this; what is held can still be taken, unless it is to be dropped."""
        with self._changed:
            if not self.closed:
                self.closed, self._error = True, error
            if drop:
                self._held.clear()
                self._error = None
            self._changed.notify_all()
        self.on_news()

    def take(self, seconds: float | None) -> Came | None:
        """The next one; None at the end. Raises TimeoutError if none came in that time, and why it ended badly."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._held) or self.closed, seconds):
                raise TimeoutError
            if self._held:
                came = self._held.popleft()
                self._bytes -= came.section.nbytes
                self._changed.notify_all()
                return came
            if self._error is not None:
                raise self._error
            return None


class Subscription:
    """A stream that comes in. Iterate for rows, or `batches()`, `pandas()`, `sections()`; they share one position.

    One thread iterates; any thread may `stop()`.
    """

    def __init__(
        self, locator: Locator, stream: str, options: ReadOptions | None = None, machine: Machine = HERE
    ) -> None:
        self.options = options or ReadOptions()
        self.view = self.options.view
        self._clock = machine.clock
        found = located(locator, stream, self._clock)
        self.stream = found.stream
        self.schema: pa.Schema = pa.schema([])  # of what is handed out
        self.columns: list[str] = []  # the same without the header
        self.gaps = 0  # how often the stream did not go on where it was
        self.lost = 0  # tuples that never came, as far as that is known
        self.jumps = 0  # how often a recovery left ids out: tuples are missing, or came again
        self.reconnects = 0
        self.connection = 0  # that by which what was taken last came; with another it may come from another copy
        self.ended = False  # whether the stream itself has ended, and its last section was taken
        self.stable = True  # whether what was taken last is
        self.fork = ""  # by whose name it is tentative, if it is
        self.undone = 0  # how often what was tentative became void: all of it that was handed out before
        self.recovered = 0  # how often all of it was corrected then, by what was handed out before
        self._locator = locator
        self._buffer = Buffer(self.options.buffer_bytes, machine)
        self._peer: Peer | None = None  # the node that serves the stream, in the life that `gaps` counts
        self._feed: WireSubscription
        self._before = (0, 0)  # lost and jumps, in earlier connections
        start, retries = self.options.start, self.options.retries
        self._follower = Follower(
            self.stream,
            Endpoints(lambda: locator.locate(self.stream), found, clock=self._clock),
            self._subscribe,
            self._broken,
            Backoff(replace(retries, give_up_s=min(self.options.first_s, retries.give_up_s)), self._clock),
            start=("oldest" if self.options.reader else "newest") if start is None else start,
            reader=self.options.reader,
            wants="either" if self.options.tentative else "stable",
            machine=machine,
        )
        watch(self._follower, locator, found, machine)
        self._current: Section | None = None
        self._spots = {True: 0, False: 0}  # behind what was handed out, of what is stable and of what is not
        self._had = 0  # the id behind what the program has done with, as it came back for more
        self._life = 0  # of what was handed out; `gaps` is that of what is being read
        self._acked = -1
        self._next_ack = 0.0
        self._reading = machine.threads.start(f"borealis-subscription {self.stream}", self._read)
        self._follower.opened.wait()
        if self._follower.epoch is None:
            self._buffer.take(0)  # raises why

    # -- for the program

    @property
    def epoch(self) -> str:
        """Which life of the stream the ids are of."""
        return self._follower.epoch or ""

    @property
    def position(self) -> int:
        """The id of the stable tuple that will be handed out next: start here to go on."""
        return self._spots[True]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.rows()

    def rows(self) -> Iterator[dict[str, Any]]:
        """Row by row, as dicts."""
        while (section := self.take()) is not None:
            yield from self.hand_out(section)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """As Arrow record batches, as they come."""
        while (section := self.take()) is not None:
            yield self.whole(section)

    def pandas(self) -> Iterator[Any]:
        """As pandas data frames, as they come."""
        for batch in self.batches():
            yield batch.to_pandas()

    def sections(self) -> Iterator[Section]:
        """As sections: tuples with their ids and times, and the boundaries among them."""
        while (section := self.take(boundaries=True)) is not None:
            self.passed(section)
            yield section

    def read(self, timeout: float | None = None, rows_most: int | None = None) -> pa.RecordBatch | None:
        """The next batch; None if none came within so many seconds, or the stream has ended (see `ended`)."""
        try:
            section = self.take(timeout)
        except TimeoutError:
            return None
        if section is None:
            return None
        ids = self.view.ids(section)
        return self.whole(section if rows_most is None or rows_most >= len(ids) else section.until(ids[rows_most]))

    def ack(self, upto: int | None = None) -> None:
        """This named reader needs nothing before `upto` (by default all that was handed out), whatever happens."""
        if self.options.reader is None:
            raise StreamError(
                f"a reader without a name of {self.stream} has nothing to acknowledge", hint="give reader="
            )
        upto = self.position if upto is None else upto
        if upto <= self._acked:
            return
        peer = self._peer
        if peer is None:
            raise WireError(f"not connected to {self.stream} now", hint="acknowledge again later; nothing is lost")
        if self.gaps != self._life:
            raise GoneError(f"{self.stream} is in another epoch now: what came before cannot be acknowledged any more")
        peer.ack(Ack(stream=self.stream, reader=self.options.reader, level=1, upto=upto))
        self._acked = upto

    def stop(self) -> None:
        """End it; iterations end. What was read ahead and not handed out is dropped."""
        self.ack_what_was_had(now=True)
        self._follower.stopped.set()
        self._buffer.close(drop=True)
        self._follower.stop()
        if not self._reading.is_alive():
            self._hang_up()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # -- what other forms of iteration are made of

    @property
    def running(self) -> bool:
        return not self._buffer.closed

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; if not, another one is being tried."""
        return self._follower.feed is not None

    @property
    def address(self) -> str:
        """Of the node that it reads from; empty while there is none."""
        return self._follower.address

    def on_news(self, tell: Callable[[], None]) -> None:
        """Call this from the reading thread when there may be something to take."""
        self._buffer.on_news = tell
        tell()

    def take(self, timeout: float | None = None, *, boundaries: bool = False, ack: bool = True) -> Section | None:
        """What is left of the section that was begun, or the next; None at the end. Asking means: I am done so far."""
        while True:
            current, self._had = self._current, self.position
            if current is not None and self._spots[current.stable] < current.stop:
                rest = current.since(self._spots[current.stable])
                if boundaries or self.view.ids(rest):
                    return rest
                self._spots[rest.stable] = rest.stop  # nothing in it is for this program
                continue
            if ack:
                self.ack_what_was_had()
            seconds = self.options.timeout if timeout is None else timeout
            try:
                came = self._buffer.take(seconds)
            except TimeoutError:
                raise TimeoutError(f"nothing came on {self.stream} for {seconds} s") from None
            if came is None:
                if ack:
                    self.ack_what_was_had(now=True)
                return None
            section = came.section
            if came.life != self._life:
                self._life, self._acked, self._had = came.life, -1, section.first
            self._current, self._spots[section.stable] = section, section.first
            self.ended, self.stable, self.fork = section.ended, section.stable, section.fork
            self.connection = came.connection
            self.undone += section.undo
            self.recovered += section.done
            if boundaries:
                return section

    def whole(self, section: Section) -> pa.RecordBatch:
        """All of a section at once."""
        self.passed(section)
        return self.with_headers(section)

    def passed(self, section: Section) -> None:
        """All of a section is handed out."""
        self._spots[section.stable] = section.stop

    def hand_out(self, section: Section) -> Iterator[dict[str, Any]]:
        """A section's rows, counted as they go."""
        for number, row in zip(self.view.ids(section), self.with_headers(section).to_pylist(), strict=True):
            self._had, self._spots[section.stable] = self.position, number + 1
            yield row

    def with_headers(self, section: Section) -> pa.RecordBatch:
        """A section's tuples as the program wants them, with or without header."""
        return self.view.rows(section)

    @property
    def wants_to_ack(self) -> bool:
        """Whether it is time for an acknowledgement."""
        named = self.options.reader is not None and self.options.auto_ack
        return named and self._had > self._acked and self._clock.now() >= self._next_ack

    def ack_what_was_had(self, now: bool = False) -> None:
        """Acknowledge under the reader's name, now and then. A lost acknowledgement is made good by the next."""
        if now:
            self._next_ack = self._clock.now()
        if not self.wants_to_ack:
            return
        self._next_ack = self._clock.now() + self.options.ack_every_s
        with contextlib.suppress(WireError, StreamError):
            self.ack(self._had)

    # -- the thread that reads

    def _read(self) -> None:
        """Take what comes, until the stream ends or the program wants no more of it."""
        error: BaseException | None = None
        try:
            for section in self._follower:
                self.lost, self.jumps = self._before[0] + self._feed.lost, self._before[1] + self._feed.jumps
                if not self._buffer.put(Came(section, self.gaps, self.reconnects)):
                    break
        except BaseException as failure:
            error = failure
        # a named reader still needs the connection for its last acknowledgements
        if error is not None or self.options.reader is None or self._follower.stopped.is_set():
            self._hang_up()
        self._buffer.close(error)
        self._follower.opened.set()

    def _subscribe(self, address: str) -> WireSubscription:
        place, self._peer = self._follower, self._locator.peer(address)
        feed = self._feed = self._peer.subscribe(place.wanted())
        place.backoff = Backoff(self.options.retries, self._clock)
        self.reconnects += place.epoch is not None
        if feed.epoch == place.epoch and not is_jump(place.next_id, feed.next_id):
            self.lost += max(0, feed.next_id - place.next_id)
        if place.epoch is None:
            self._spots[True] = self._had = feed.next_id
        self._before, self.schema = (self.lost, self.jumps), self.view.schema(feed.schema)
        self.columns = replace(self.view, headers=False).schema(feed.schema).names
        return feed

    def _broken(self, error: BorealisError) -> None:
        """Get ready to try again after this error; raises it where that would be in vain, or wrong."""
        seen = self._follower.epoch is not None
        away = isinstance(error, AwayError | MovedError | StandbyError) or (seen and is_elsewhere(error))
        again = is_temporary(error) or away
        if isinstance(error, GoneError) and self.options.on_gap == "continue" and seen:
            self.gaps += 1
            self._follower.begin("oldest")
        elif isinstance(error, ReplacedError) or not again:
            raise error
        self._hang_up()

    def _hang_up(self) -> None:
        peer, self._peer = self._peer, None
        if peer is not None:
            peer.close()
