"""The streams that a unit reads, wherever they are served: on this node, or on another over the wire.

A feed never gives up by itself. When its upstream moves, breaks or is not there yet, it asks where the stream is served
now, and takes it up at the tuple where it stands.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from borealis.errors import BorealisError, GoneError, StreamError, WireError
from borealis.machine import HERE, Machine
from borealis.retrying import Backoff, Retries
from borealis.streams.queue import MovedError, OutputQueue
from borealis.streams.section import Section
from borealis.streams.status import QueueStatus
from borealis.streams.tentative import Wants, fork_place
from borealis.tuples import FIRST_TIME
from borealis.wire.client import Peers
from borealis.wire.endpoints import Endpoints, Location
from borealis.wire.follow import Follower
from borealis.wire.messages import Ack, Done, SchemaOf, Subscribe
from borealis.wire.replicas import Copies, ReplicaWatch
from borealis.wire.subscription import WireSubscription

RETRIES, STATUS_RETRIES = Retries(0.02, 1.0, math.inf), Retries(0.05, 0.05, math.inf)
LOCAL = "here"  # instead of an address: a queue of this node that no other node knows
ACK_TRIES = 20
GONE_TRIES = 5  # to find the oldest tuple there is, while others let go of it

Acked = tuple[str, str, int]  # which stream, by which reader, and the level

log = logging.getLogger("borealis.node")


@dataclass(frozen=True)
class StreamTimings:
    """How a feed waits for its stream."""

    retries: Retries = RETRIES  # to reach an upstream
    status_retries: Retries = STATUS_RETRIES  # to learn how an upstream stands, in a takeover
    status_s: float = 0.5  # for one answer to that
    look_s: float = 0.2  # between looks whether a feed of this node's own queue was stopped


@dataclass(frozen=True)
class AckTimings:
    """How long acknowledgements wait, in seconds."""

    gather_s: float = 0.1  # those that come meanwhile go together: no reader waits for one
    retry_s: float = 0.5  # until one that could not be delivered is tried again
    answer_s: float = 2.0  # for one to arrive: a node that is frozen must not keep the others waiting
    keep_s: float = 3.0  # for a node to answer that it retains a stream


class Routes:
    """Where streams are served, as far as this node knows. Thread-safe."""

    def __init__(
        self,
        local: Callable[[str], OutputQueue | None],
        ask: Callable[[str], Location | None],
        machine: Machine = HERE,
        here: Callable[[], str] = lambda: "",
    ) -> None:
        self.local, self.here = local, here
        self._ask = ask  # the coordinator; None where it does not know or does not answer
        self._streams: dict[str, Location] = {}
        self._cut: set[str] = set()  # streams that are not to be read, in a test
        self._healed = 0  # how often one was to be read again
        self._changed = machine.threads.condition()

    def put(self, stream: str, address: str, incarnation: int = 0) -> None:
        """A stream is served there, as this incarnation; nothing changes if a higher one is known."""
        with self._changed:
            known = self._get(stream)
            if incarnation and incarnation < known.incarnation:
                return
            if address != known.address or incarnation > known.incarnation:
                incarnation = max(incarnation, known.incarnation)
                self._streams[stream] = replace(known.served_at(address), incarnation=incarnation)
                self._changed.notify_all()

    def put_others(
        self, stream: str, fallback: str | None, replicated: bool = False, copies: Iterable[str] = ()
    ) -> None:
        """The backup of a stream is there, if it has one; if replicated, it is read there and at its copies."""
        with self._changed:
            known = self._get(stream)
            self._streams[stream] = replace(known, fallback=fallback, replicated=replicated, copies=tuple(copies))

    def cut(self, stream: str, off: bool) -> None:
        """Be cut off from a stream, or not."""
        with self._changed:
            self._cut = self._cut | {stream} if off else self._cut - {stream}
            self._healed += not off
            self._changed.notify_all()

    def check_way(self, stream: str) -> None:
        """A WireError if there is none to a stream."""
        if stream in self._cut:
            raise WireError(f"this node is cut off from stream {stream}", hint="'borealis heal' ends that")

    def forget(self, diagram: str) -> None:
        """A diagram is no more; the next of its name begins from nothing."""
        with self._changed:
            self._cut = {s for s in self._cut if s.partition("/")[0] != diagram}
            for stream in [s for s in self._streams if s.partition("/")[0] == diagram]:
                del self._streams[stream]

    def incarnation(self, stream: str) -> int:
        """The highest that is known."""
        return self._get(stream).incarnation

    def address(self, stream: str) -> str | None:
        """Where to go for a stream, as far as is known."""
        return self._get(stream).address or None

    def copies(self, stream: str) -> list[str]:
        """Addresses at which a stream is served, as far as is known."""
        return self._get(stream).serving

    def known(self, stream: str) -> Location | None:
        """Where a stream is served, and where its backup stands by, without asking the coordinator."""
        known = self._get(stream)
        if not known.address and self.local(stream) is not None:
            known = replace(known, address=LOCAL)
        return known if known.address else None

    def _get(self, stream: str) -> Location:
        return self._streams.get(stream) or Location(stream, "")

    def look_up(self, stream: str) -> Location:
        """Where to go for a stream that was not found where it should be; raises if no node serves it."""
        found = self._ask(stream)
        if found is not None:
            self.put(stream, found.address)
            if found.others or found.replicated:
                self.put_others(stream, found.fallback, found.replicated, found.copies)
        known = self.known(stream)
        if known is None:
            raise StreamError(f"no node serves stream {stream} yet")
        return known

    def wait(self, stream: str, known: str | None, seconds: float) -> None:
        """Wait until a stream has another address than the known one, but not longer than so many seconds."""
        with self._changed:
            healed = self._healed
            self._changed.wait_for(lambda: self.address(stream) != known or self._healed != healed, seconds)


class AckSender:
    """Sends acknowledgements upstream, the newest of each kind, a few times a second at most. Thread-safe.

    Those for one node go in one message. One that cannot be delivered is tried again for a while: on a quiet stream
    there may be no later one. A feed that reconnects says it again, too.
    """

    def __init__(
        self, routes: Routes, peers: Peers, timings: AckTimings | None = None, machine: Machine = HERE
    ) -> None:
        self._routes, self._peers, self._timings = routes, peers, timings or AckTimings()
        self._waiting: dict[Acked, int] = {}
        threads = machine.threads
        self._lock, self._some, self._stopped = threads.lock(), threads.event(), threads.event()
        self._hurry = threads.event()
        self._thread = threads.start("acks", self._send_forever)

    def put(self, stream: str, reader: str, level: int, upto: int, *, now: bool = False) -> None:
        """Acknowledge all tuples of a stream before `upto`; `now`, with all that waits, or in a moment."""
        queue = self._routes.local(stream)
        if queue is not None:
            with suppress(StreamError):  # it was closed or began again just now
                queue.ack(reader, level, upto)
            return
        key = (stream, reader, level)
        with self._lock:
            first = not self._waiting
            self._waiting[key] = max(upto, self._waiting.get(key, 0))
        if first:
            self._some.set()
        if now:
            self._hurry.set()

    def stop(self) -> None:
        self._stopped.set()
        self._some.set()
        self._hurry.set()
        self._thread.join()

    def _send_forever(self) -> None:
        tries: dict[Acked, int] = {}
        while True:
            self._some.wait()
            self._hurry.wait(self._timings.retry_s if tries else self._timings.gather_s)
            if self._stopped.is_set():
                return
            with self._lock:
                waiting, self._waiting = self._waiting, {}
                self._some.clear()
                self._hurry.clear()
            failed = self._send(waiting)
            tries = {key: tries.get(key, 0) + 1 for key in failed if tries.get(key, 0) < ACK_TRIES}
            for key in tries:
                self.put(*key, failed[key])

    def _send(self, waiting: Mapping[Acked, int]) -> dict[Acked, int]:
        """Sends all of them; those that have to be sent again."""
        there: dict[str, dict[Acked, int]] = {}
        for key, upto in waiting.items():
            if (address := self._routes.address(key[0])) is not None:
                there.setdefault(address, {})[key] = upto
        failed: dict[Acked, int] = {}
        for address, keys in there.items():
            acks = [Ack(stream=s, reader=r, level=1 if level else 0, upto=u) for (s, r, level), u in keys.items()]
            try:
                self._peers.at(address).ack(*acks, within=self._timings.answer_s)
            except WireError:
                failed |= keys
            except BorealisError as error:
                log.info("an acknowledgement was refused: %s", error)
        return failed


def keep_from(routes: Routes, peers: Peers, stream: str, reader: str, position: int) -> None:
    """Have a stream retained for a reader from a tuple on, before it reads; raises if that cannot be had now.

    This node does not read the stream yet, so it may not have noticed that it is served elsewhere by now. Where copies
    serve it, the others are told as well; one that is away will hear of the reader from its primary, or from itself.
    """

    def keep(address: str) -> None:
        queue = routes.local(stream)
        if queue is not None and (len(routes.copies(stream)) < 2 or address in (LOCAL, routes.here())):
            queue.register(reader, position)
        else:
            ack = Ack(stream=stream, reader=reader, level=1, upto=position)
            peers.at(address).act("keep", ack, Done, within=AckTimings.keep_s)

    known = routes.known(stream) or routes.look_up(stream)
    try:
        keep(known.address)
    except BorealisError:
        there = routes.look_up(stream)
        if there.address == known.address:
            raise
        known = there
        keep(known.address)
    for other in known.others if known.replicated else ():
        with suppress(BorealisError):
            keep(other)


class LocalFeed:
    """A queue of this node, read as a subscription is."""

    def __init__(self, queue: OutputQueue, wanted: Subscribe, look_s: float) -> None:
        if wanted.epoch not in (None, queue.epoch):
            raise queue.of_another_life(wanted.epoch)
        start = None if wanted.start == "oldest" else queue.newest() if wanted.start == "newest" else wanted.start
        assert wanted.reader is not None
        self.next_id, self.epoch = queue.register(wanted.reader, start), queue.epoch
        self.incarnation = wanted.incarnation  # this node knows what it serves
        self._queue, self._boundary, self._look_s, self._cancelled = queue, wanted.boundary, look_s, False
        self._at, self._wants = wanted.fork, wanted.wants

    def __iter__(self) -> Iterator[Section]:
        while not self._cancelled:
            section = self._queue.read_any(self.next_id, self._boundary, self._at, self._wants, self._look_s)
            if section is not None:
                self._at = fork_place(self._at, section)
                if section.stable:
                    self.next_id, self._boundary = section.stop, section.final
                yield section
            elif self._queue.ended:
                return

    def cancel(self) -> None:
        self._cancelled = True


class StreamFeed:
    """One stream as the source of a unit's input."""

    def __init__(
        self,
        stream: str,
        reader: str,
        routes: Routes,
        peers: Peers,
        acks: AckSender,
        epoch: str | None,
        timings: StreamTimings | None = None,
        machine: Machine = HERE,
        wants: Wants = "stable",
        replicated: bool = False,
    ) -> None:
        self.stream, self.reader = stream, reader
        self._replicated = replicated  # other nodes serve it as well, and the best is to be read
        self.epoch = epoch  # of the ids this unit has seen; None: it has seen none
        self.seen = (
            epoch is not None
        )  # whether results were made of that epoch, by this copy or by the one it goes on for
        self.waiting_for = ""  # why nothing comes, if it is known
        self.forgetful = False  # what is gone is gone: it goes on at the oldest tuple there is
        self.fresh: Literal["oldest", "newest"] = "oldest"  # where it begins, having seen nothing
        self.deferred = False  # the guard of the unit acknowledges (level 1), not the commit
        self._routes, self._peers, self._acks = routes, peers, acks
        self._timings, self._clock = timings or StreamTimings(), machine.clock
        self._anywhere = False
        self._gone = 0  # how often it was, since something came
        self._acknowledged = 0
        self._address: str | None = None  # where it was looked for
        endpoints = Endpoints(lambda: routes.look_up(stream), recall=self._recall)
        self._follower = Follower(
            stream,
            endpoints,
            self._subscribe,
            self._broken,
            Backoff(self._timings.retries, machine.clock),
            reader=reader,
            wants=wants,
            pause=self._pause,
            machine=machine,
        )
        self._machine = machine

    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        """The stream from a tuple id on, across moves and broken connections; ends when the stream does."""
        self._acknowledged = min(self._acknowledged, start) if self.deferred else start
        self._follower.go_on(start, boundary)
        if self._replicated:
            look_up = partial(self._routes.look_up, self.stream)
            copies = Copies(self._recall, look_up, self._copy, clock=self._clock)
            ReplicaWatch(self._follower, copies, machine=self._machine)
        for section in self._follower:
            self._gone, self.waiting_for, self.seen = 0, "", True
            if isinstance(feed := self._follower.feed, WireSubscription):
                self._routes.put(self.stream, feed.address, feed.incarnation)
            yield section
            if section.stable:
                self._acks.put(self.stream, self.reader, 0, section.stop)

    def _broken(self, error: BorealisError) -> None:
        """Get ready to try again after this error; raises what only a person can mend."""
        if isinstance(error, GoneError) and self.forgetful and self._gone < GONE_TRIES:
            self._anywhere, self._gone = True, self._gone + 1
        elif isinstance(error, MovedError) and error.moved_to:
            self._routes.put(self.stream, error.moved_to)
        elif isinstance(error, StreamError | WireError) and not isinstance(error, GoneError):
            self.waiting_for = str(error)
        else:
            raise error

    def status(self, wanted: Callable[[], bool]) -> QueueStatus:
        """How the stream stands; waits until a node answers, for as long as that is wanted."""
        endpoints = Endpoints(lambda: self._routes.look_up(self.stream), recall=self._recall)
        within, backoff = self._timings.status_s, Backoff(self._timings.status_retries, self._clock)
        return endpoints.call(lambda at: self._status(at, within), lambda _: wanted(), backoff, self._pause)

    def _status(self, address: str, within: float | None = None) -> QueueStatus:
        queue = self._routes.local(self.stream)
        if queue is not None:
            return queue.status()
        return self._peers.at(address).act("stream", SchemaOf(stream=self.stream), QueueStatus, within=within)

    def _recall(self) -> Location | None:
        self._address = self._routes.address(self.stream)
        return self._routes.known(self.stream)

    def _pause(self, seconds: float) -> None:
        self._routes.wait(self.stream, self._address, seconds)

    def _subscribe(self, address: str) -> LocalFeed | WireSubscription:
        place = self._follower
        self._routes.check_way(self.stream)
        if not place.next_id and place.boundary == FIRST_TIME:
            place.begin(self.fresh)  # "oldest" is where this reader's acknowledgements stand, even if that is gone
        if self._anywhere:
            place.start = place.next_id = self._status(address).first_id
        place.epoch = self.epoch
        place.incarnation = self._routes.incarnation(self.stream) if not place.begins and self.epoch is not None else 0
        queue, wanted, look_s = self._local(address), place.wanted(), self._timings.look_s
        if self.seen:  # until then a stream may begin again
            wanted = wanted.model_copy(update={"epoch": self.epoch})
        feed = LocalFeed(queue, wanted, look_s) if queue is not None else self._peers.at(address).subscribe(wanted)
        self.epoch, self._anywhere, self.waiting_for = feed.epoch, False, ""
        self._acks.put(self.stream, self.reader, 1, self._acknowledged)
        return feed

    def _local(self, address: str) -> OutputQueue | None:
        """The queue of this node, but where a better copy is elsewhere."""
        queue = self._routes.local(self.stream)
        return None if self._replicated and address not in (LOCAL, self._routes.here()) else queue

    def look_again(self) -> None:
        """The stream is served elsewhere now: leave the node that serves it here."""
        self._follower.look_again()

    def _copy(self, address: str, within: float) -> QueueStatus:
        """How the copy at an address is."""
        self._routes.check_way(self.stream)
        if (queue := self._local(address)) is not None:
            return queue.status()
        return self._peers.at(address).say("stream", SchemaOf(stream=self.stream), QueueStatus, within=within)

    def committed(self, position: int) -> None:
        """Everything before this position is in committed trains."""
        if not self.deferred:
            self.acknowledge(position)

    def acknowledge(self, position: int, *, now: bool = False) -> None:
        """Nothing before this position is needed any more, whatever happens."""
        self._acknowledged = max(position, self._acknowledged)
        self._acks.put(self.stream, self.reader, 1, self._acknowledged, now=now)

    def stop(self) -> None:
        self._follower.stop()
