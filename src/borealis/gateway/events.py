"""A stream as server-sent events: `id` is the tuple's, `data` its row as JSON.

The stream is read as any client reads it. A thread hands what it has rendered to the loop that serves the client, never
more than a few pieces ahead of it: a slow client slows its own reading, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator

import pyarrow as pa

from borealis.client.subscriber import Reading, Start, Subscription
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import status_of
from borealis.coordinator.naming import locate
from borealis.coordinator.threads import spawn
from borealis.errors import BorealisError
from borealis.retrying import Retries
from borealis.streams.section import Section
from borealis.tuples import with_header
from borealis.wire.client import Peer
from borealis.wire.endpoints import Location
from borealis.wire.problems import problem_of

PIECES_AHEAD = 4
ROWS_AT_ONCE = 1000
HEARTBEAT_SECONDS = 5.0
FOR_EVER = Retries(most_s=1.0, give_up_s=math.inf)  # as long as the stream is deployed
AHEAD_BYTES = 1 << 20  # read ahead of each client
HELLO = b"retry: 1000\n\n"
STILL_THERE = b": still there\n\n"
END = b"event: end\ndata: {}\n\n"


class Handoff:
    """Pieces from one thread to one coroutine, a few at most at a time."""

    def __init__(self, most: int = PIECES_AHEAD) -> None:
        self._most = most
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._come = asyncio.Event()
        self._closed = self._ended = False

    def put(self, piece: bytes) -> bool:
        """Hand over a piece, when there is room; false if nobody wants it any more. For the thread."""
        with self._changed:
            while len(self._pieces) >= self._most and not self._closed:
                self._changed.wait()
            if self._closed:
                return False
            self._pieces.append(piece)
        self._wake()
        return True

    def end(self) -> None:
        """Nothing follows. For the thread."""
        self._ended = True
        self._wake()

    def close(self) -> None:
        """Nothing is wanted any more. For the coroutine."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._come.set()

    async def get(self, seconds: float) -> bytes | None:
        """The next piece, something to say meanwhile, or None at the end. For the coroutine."""
        while True:
            with self._changed:
                if self._closed:
                    return None
                if self._pieces:
                    piece = self._pieces.popleft()
                    self._changed.notify_all()
                    return piece
                if self._ended:
                    return None
                self._come.clear()
            try:
                await asyncio.wait_for(self._come.wait(), seconds)
            except TimeoutError:
                return STILL_THERE

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._come.set)


class CatalogRoute:
    """How the gateway gets to streams: it asks the coordinator's own catalog, and is answered as any client is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def locate(self, stream: str) -> Location:
        """Which node serves a stream now."""
        try:
            found = locate(self._cluster, stream)
        except BorealisError as error:
            setattr(error, "status", status_of(error))  # noqa: B010 - a client knows by it that the coordinator said so
            raise
        return Location(found.stream, found.address, found.entry, found.fallback)

    def peer(self, address: str) -> Peer:
        """A new connection to a node."""
        return self._cluster.nodes.connect(address)


class Listener:
    """Reads a stream for one client, whatever happens in between, until it ends, the client has as many rows as it
    wants, or nobody listens.
    """

    def __init__(self, cluster: Cluster, stream: str, start: Start, headers: bool, limit: int | None = None) -> None:
        self._route, self._stream, self._headers, self._left = CatalogRoute(cluster), stream, headers, limit
        self._reading = Reading(start=start, retries=FOR_EVER, buffer_bytes=AHEAD_BYTES)
        self._subscription: Subscription | None = None

    def begin(self) -> None:
        """Subscribe; raises where there is nothing to listen to."""
        self._subscription = Subscription(self._route, self._stream, self._reading)

    def run(self, handoff: Handoff) -> None:
        """Hand over all that comes. For a thread of its own."""
        try:
            self._pass_on(handoff)
        except BorealisError as error:
            handoff.put(b"event: problem\ndata: " + problem_of(error).encode() + b"\n\n")
        finally:
            self.stop()
            handoff.end()

    def stop(self) -> None:
        """Listen no more; from any thread."""
        if self._subscription is not None:
            self._subscription.stop()

    def _pass_on(self, handoff: Handoff) -> None:
        assert self._subscription is not None
        told = 0
        for section in self._subscription.sections():
            if (lost := self._subscription.lost) > told:
                handoff.put(b'event: lost\ndata: {"tuples": %d}\n\n' % (lost - told))
                told = lost
            for piece in rendered(section, self._headers, self._left):
                if not handoff.put(piece):
                    return
            if self._left is not None:
                if len(section) >= self._left:
                    handoff.put(b'event: limit\ndata: {"next_id": %d}\n\n' % (section.first + self._left))
                    return
                self._left -= len(section)
            if section.ended:
                handoff.put(END)
                return


def rendered(section: Section, headers: bool, limit: int | None = None) -> Iterator[bytes]:
    """The tuples of a section as events, a few at a time; the first so many only, if there is a limit."""
    from borealis.connectors.files.text import (
        JsonLines,  # here, so that the coordinator starts without all the other sinks
    )

    count = len(section) if limit is None else min(limit, len(section))
    for at in range(0, count, ROWS_AT_ONCE):
        rows = section.rows.slice(at, min(ROWS_AT_ONCE, count - at))
        first = section.first + at
        if headers:
            whole = with_header(pa.Table.from_batches([rows]), first, section.time[at : at + rows.num_rows])
            rows = whole.combine_chunks().to_batches()[0]
        lines = JsonLines().lines(rows).to_pylist()
        yield "".join(f"id: {number}\ndata: {line}\n" for number, line in enumerate(lines, first)).encode()


async def events(listener: Listener, ending: asyncio.Event) -> AsyncIterator[bytes]:
    """What a client gets, until the stream ends, the client goes, or the coordinator does."""
    handoff = Handoff()
    until_end = asyncio.create_task(_close_at(ending, handoff))
    spawn("events", lambda: listener.run(handoff))
    try:
        yield HELLO
        while (piece := await handoff.get(HEARTBEAT_SECONDS)) is not None:
            yield piece
    finally:
        until_end.cancel()
        handoff.close()
        spawn("hang-up", listener.stop)  # it may take a while to reach the other side


async def _close_at(ending: asyncio.Event, handoff: Handoff) -> None:
    await ending.wait()
    handoff.close()
