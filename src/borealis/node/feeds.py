"""The streams that a unit reads, wherever they are served: on this node, or on another over the wire.

A feed never gives up by itself. When its upstream moves, breaks or is not there yet, it asks where the stream is served
now, and takes it up at the tuple where it stands.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from borealis.errors import BorealisError, GoneError, StreamError, WireError
from borealis.streams.queue import MovedError, OutputQueue
from borealis.streams.section import Section
from borealis.streams.status import QueueStatus
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.auth import Security
from borealis.wire.client import Peer
from borealis.wire.messages import Ack, Done, SchemaOf, Subscribe
from borealis.wire.subscription import Subscription

LOOK_S = 0.2  # how often a feed looks whether it was stopped
RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)  # between attempts to reach an upstream
ACK_S = 0.1  # acknowledgements that came meanwhile go together: nobody waits for one
ACK_AGAIN_S = 0.5  # until one that could not be delivered is tried again
ACK_TRIES = 20
ACK_S_MOST = 2.0  # for an acknowledgement to arrive: a node that is frozen must not keep the others waiting
KEEP_S = 3.0
GONE_TRIES = 5  # to find the oldest tuple there is, while others let go of it

log = logging.getLogger("borealis.node")


@dataclass(frozen=True)
class Way:
    """Where a stream is served, and where its backup stands by, if it has one."""

    address: str
    fallback: str | None = None


class Routes:
    """Where streams are served, as far as this node knows. Thread-safe."""

    def __init__(self, local: Callable[[str], OutputQueue | None], ask: Callable[[str], Way | None]) -> None:
        self.local = local
        self._ask = ask  # the coordinator; None where it does not know or does not answer
        self._addresses: dict[str, str] = {}
        self._fallbacks: dict[str, str] = {}
        self._incarnations: dict[str, int] = {}
        self._changed = threading.Condition()

    def put(self, stream: str, address: str, incarnation: int = 0) -> None:
        """A stream is served there, as this incarnation; nothing changes if a higher one is known."""
        with self._changed:
            if incarnation and incarnation < self._incarnations.get(stream, 0):
                return
            self._incarnations[stream] = max(incarnation, self._incarnations.get(stream, 0))
            self._addresses[stream] = address
            self._changed.notify_all()

    def put_fallback(self, stream: str, address: str) -> None:
        """The backup of a stream is there."""
        with self._changed:
            self._fallbacks[stream] = address

    def forget(self, diagram: str) -> None:
        """A diagram is no more; the next of its name begins anew."""
        with self._changed:
            for known in (self._addresses, self._fallbacks, self._incarnations):
                for stream in [s for s in known if s.partition("/")[0] == diagram]:
                    del known[stream]

    def incarnation(self, stream: str) -> int:
        """The highest that is known."""
        with self._changed:
            return self._incarnations.get(stream, 0)

    def other(self, stream: str, than: str | None) -> str | None:
        """Where else a stream may be served, without asking anybody."""
        with self._changed:
            known = (self._fallbacks.get(stream), self._addresses.get(stream))
            return next((address for address in known if address not in (None, than)), None)

    def address(self, stream: str) -> str | None:
        """Where to go for a stream, as far as is known."""
        with self._changed:
            return self._addresses.get(stream)

    def look_up(self, stream: str) -> str | None:
        """Where to go for a stream that was not found where it should be."""
        found = self._ask(stream)
        if found is not None:
            self.put(stream, found.address)
            if found.fallback is not None:
                self.put_fallback(stream, found.fallback)
        return self.address(stream)

    def wait(self, stream: str, known: str | None, seconds: float) -> None:
        """Wait until a stream has another address than the known one, but not longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._addresses.get(stream) != known, seconds)


class Peers:
    """Connections to other nodes, one for each address. Thread-safe."""

    def __init__(self, security: Security | None) -> None:
        self._security = security
        self._peers: dict[str, Peer] = {}
        self._lock = threading.Lock()

    def at(self, address: str) -> Peer:
        """The node at an address."""
        with self._lock:
            if address not in self._peers:
                self._peers[address] = Peer(address, self._security)
            return self._peers[address]

    def close(self) -> None:
        """Let go of all connections."""
        with self._lock:
            for peer in self._peers.values():
                peer.close()
            self._peers.clear()


class _Acked(NamedTuple):
    """What is acknowledged, and by whom."""

    stream: str
    reader: str
    level: int


class Acks:
    """Sends acknowledgements upstream, the newest of each kind, a few times a second at most. Thread-safe.

    Those for one node go in one message. One that cannot be delivered is tried again for a while: on a quiet stream
    there may be no later one. A feed that reconnects says it again, too.
    """

    def __init__(self, routes: Routes, peers: Peers) -> None:
        self._routes, self._peers = routes, peers
        self._waiting: dict[_Acked, int] = {}
        self._lock = threading.Lock()
        self._some, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._send_forever, name="acks", daemon=True)
        self._thread.start()

    def put(self, stream: str, reader: str, level: int, upto: int) -> None:
        """Acknowledge all tuples of a stream before `upto`."""
        queue = self._routes.local(stream)
        if queue is not None:
            with suppress(StreamError):  # it was closed or began anew just now
                queue.ack(reader, level, upto)
            return
        key = _Acked(stream, reader, level)
        with self._lock:
            first = not self._waiting
            self._waiting[key] = max(upto, self._waiting.get(key, 0))
        if first:
            self._some.set()

    def stop(self) -> None:
        """Send no more."""
        self._stopped.set()
        self._some.set()
        self._thread.join()

    def _send_forever(self) -> None:
        tries: dict[_Acked, int] = {}
        while True:
            self._some.wait()
            if self._stopped.wait(ACK_AGAIN_S if tries else ACK_S):
                return
            with self._lock:
                waiting, self._waiting = self._waiting, {}
                self._some.clear()
            failed = self._send(waiting)
            tries = {key: tries.get(key, 0) + 1 for key in failed if tries.get(key, 0) < ACK_TRIES}
            for key in tries:
                self.put(*key, failed[key])

    def _send(self, waiting: Mapping[_Acked, int]) -> dict[_Acked, int]:
        """Sends all of them; those that have to be sent again."""
        there: dict[str, dict[_Acked, int]] = {}
        for key, upto in waiting.items():
            if (address := self._routes.address(key.stream)) is not None:
                there.setdefault(address, {})[key] = upto
        failed: dict[_Acked, int] = {}
        for address, keys in there.items():
            acks = [Ack(stream=k.stream, reader=k.reader, level=1 if k.level else 0, upto=u) for k, u in keys.items()]
            try:
                self._peers.at(address).ack(*acks, within=ACK_S_MOST)
            except WireError:
                failed |= {key: upto for key, upto in keys.items() if key.level}  # for the others nobody waits
            except BorealisError as error:
                log.info("an acknowledgement was refused: %s", error)
        return failed


def keep_from(routes: Routes, peers: Peers, stream: str, reader: str, position: int) -> None:
    """Have a stream kept for a reader from a tuple on, before it reads; raises if that cannot be had now.

    Nobody reads the stream here yet, so that nobody has noticed if it is served elsewhere by now.
    """
    tried = routes.address(stream)
    try:
        _keep_at(tried, routes, peers, stream, reader, position)
    except BorealisError:
        there = routes.look_up(stream)
        if there == tried:
            raise
        _keep_at(there, routes, peers, stream, reader, position)


def _keep_at(address: str | None, routes: Routes, peers: Peers, stream: str, reader: str, position: int) -> None:
    queue = routes.local(stream)
    if queue is not None:
        queue.register(reader, position)
        return
    if address is None:
        raise StreamError(f"nobody serves stream {stream} yet")
    peers.at(address).act("keep", Ack(stream=stream, reader=reader, level=1, upto=position), Done, within=KEEP_S)


class StreamFeed:
    """One stream as the source of a unit's input."""

    def __init__(self, stream: str, reader: str, routes: Routes, peers: Peers, acks: Acks, epoch: str | None) -> None:
        self.stream, self.reader = stream, reader
        self.epoch = epoch  # of the ids this unit has seen; None: it has seen none
        self.waiting_for = ""  # why nothing comes, if it is known
        self._routes, self._peers, self._acks = routes, peers, acks
        self.forgetful = False  # what is gone is gone: it goes on at the oldest tuple there is
        self.fresh: Literal["oldest", "newest"] = "oldest"  # where it begins, having seen nothing
        self._anywhere = False
        self.deferred = False  # whoever protects the unit acknowledges (level 1), not the commit
        self._stopped = threading.Event()
        self._open: Subscription | None = None
        self._lock = threading.Lock()
        self._next, self._boundary = 0, FIRST_TIME
        self._acknowledged = 0

    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        """The stream from a tuple id on, across moves and broken connections; ends when the stream does."""
        self._next, self._boundary = start, boundary
        self._acknowledged = min(self._acknowledged, start) if self.deferred else start
        failures, elsewhere = 0, None
        while not self._stopped.is_set() and self._boundary != LAST_TIME:
            address, elsewhere = elsewhere or self._routes.address(self.stream), None
            try:
                for section in self._once(address):
                    failures, self.waiting_for = 0, ""
                    section = section.above(self._boundary)
                    self._next, self._boundary = section.stop, section.final
                    yield section
                    self._acks.put(self.stream, self.reader, 0, self._next)
                continue
            except MovedError as moved:
                if moved.moved_to and moved.moved_to != address:
                    self._routes.put(self.stream, moved.moved_to)
                    continue
                self.waiting_for = str(moved)
            except GoneError:
                if not self.forgetful or failures >= GONE_TRIES:
                    raise
                self._anywhere = True
                failures += 1
                continue
            except (StreamError, WireError) as error:
                self.waiting_for = str(error)
                elsewhere = self._routes.other(self.stream, address) if not failures % 2 else None
            if self._stopped.is_set():
                return
            if elsewhere is not None:  # its backup may open any moment: wait there, not here
                failures += 1
                continue
            before = self._routes.address(self.stream)
            if self._routes.look_up(self.stream) == before:
                self._routes.wait(self.stream, before, RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    def _once(self, address: str | None) -> Iterator[Section]:
        queue = self._routes.local(self.stream)
        if queue is not None:
            yield from self._from_queue(queue)
            return
        if address is None:
            raise StreamError(f"nobody serves stream {self.stream} yet")
        peer = self._peers.at(address)
        ask = Subscribe(
            stream=self.stream,
            start=self._where(lambda: peer.act("stream", SchemaOf(stream=self.stream), QueueStatus)),
            boundary=self._boundary,
            epoch=self._known_epoch(),
            reader=self.reader,
            incarnation=self._routes.incarnation(self.stream) if self._known_epoch() is not None else 0,
        )
        with peer.subscribe(ask) as subscription:
            with self._lock:
                self._open = subscription
            if self._stopped.is_set():
                return
            if subscription.incarnation < ask.incarnation:
                raise StreamError(f"{address} serves stream {self.stream} no more: it was deposed")
            self.epoch, self._next, self._anywhere = subscription.epoch, subscription.next_id, False
            self._acks.put(self.stream, self.reader, 1, self._acknowledged)
            try:
                for section in subscription:
                    self._routes.put(self.stream, address, subscription.incarnation)
                    yield section
            finally:
                with self._lock:
                    self._open = None

    def _where(self, status: Callable[[], QueueStatus]) -> int | Literal["oldest", "newest"]:
        """Where to take it up. "oldest" is where this reader's acknowledgements stand, even if that is gone."""
        if self._anywhere:
            return status().first_id
        return self.fresh if self._is_fresh() else self._next

    def _known_epoch(self) -> str | None:
        """The epoch, if anything of it has been seen; until then a stream may begin anew."""
        return None if self._is_fresh() else self.epoch

    def _is_fresh(self) -> bool:
        """Whether nothing of the stream has been seen."""
        return not self._next and self._boundary == FIRST_TIME

    def _from_queue(self, queue: OutputQueue) -> Iterator[Section]:
        if self._known_epoch() not in (None, queue.epoch):
            raise queue.of_another_life(self.epoch)
        where = self._where(queue.status)
        start = None if where == "oldest" else queue.next_id if where == "newest" else where
        self.epoch = queue.epoch
        self._next, self._anywhere = queue.register(self.reader, start), False
        queue.ack(self.reader, 1, self._acknowledged)  # it may not know: it may have come from another node just now
        while not self._stopped.is_set():
            section = queue.read(self._next, self._boundary, LOOK_S)
            if section is not None:
                yield section
            elif queue.ended:
                return

    def look_again(self) -> None:
        """The stream is served elsewhere now: whoever serves it here does so in vain."""
        with self._lock:
            if self._open is not None:
                self._open.cancel()

    def committed(self, position: int) -> None:
        """Everything before this position is in committed trains."""
        if not self.deferred:
            self.acknowledge(position)

    def acknowledge(self, position: int) -> None:
        """Nothing before this position is needed any more, whatever happens."""
        self._acknowledged = max(position, self._acknowledged)
        self._acks.put(self.stream, self.reader, 1, self._acknowledged)

    def stop(self) -> None:
        """Read no more."""
        self._stopped.set()
        with self._lock:
            if self._open is not None:
                self._open.cancel()
