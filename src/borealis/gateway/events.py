"""A stream as server-sent events: `id` is the tuple's, `data` its row as JSON.

A thread reads the stream and hands what it has rendered to the loop that serves the client, never more than a few
pieces ahead of it: a slow client slows its own reading, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Literal

import pyarrow as pa

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.naming import find, locate
from borealis.coordinator.nodes import Subscription
from borealis.coordinator.threads import spawn
from borealis.errors import BorealisError, GoneError, StreamError, WireError
from borealis.streams.section import Section
from borealis.tuples import FIRST_TIME, with_header
from borealis.wire.messages import Subscribe
from borealis.wire.problems import problem_of

PIECES_AHEAD = 4
ROWS_AT_ONCE = 1000
HEARTBEAT_SECONDS = 5.0
Start = int | Literal["oldest", "newest"]
RETRY_SECONDS = (0.1, 0.2, 0.5, 1.0)
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

    def wait(self, seconds: float) -> bool:
        """Wait, but not longer than anybody cares; false if nobody does. For the thread."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed, seconds)

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


class Listener:
    """Reads a stream for one client, across moves and broken connections, until it ends, the client has as many rows as
    it wants, or nobody listens.
    """

    def __init__(self, cluster: Cluster, stream: str, start: Start, headers: bool, limit: int | None = None) -> None:
        self._cluster, self._stream, self._headers, self._left = cluster, stream, headers, limit
        self._start: Start = start
        self._boundary = FIRST_TIME
        self._epoch: str | None = None
        self._incarnation = 0  # the highest that was read from
        self._lost = 0
        self._subscription: Subscription | None = None
        self._stopped = False

    def begin(self) -> None:
        """Subscribe for the first time; raises where there is nothing to listen to."""
        self._subscribe()

    def run(self, handoff: Handoff) -> None:
        """Hand over all that comes. For a thread of its own."""
        failures = 0
        try:
            while not self._stopped:
                try:
                    if self._subscription is None:
                        self._subscribe()
                    self._pass_on(handoff)
                    return
                except BorealisError as error:
                    if (last := self._why_over(error)) is not None:
                        raise last from None
                    failures = failures + 1 if self._subscription is None else 0
                    self._subscription = None
                if not handoff.wait(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]):
                    return
        except BorealisError as error:
            handoff.put(b"event: problem\ndata: " + problem_of(error).encode() + b"\n\n")
        finally:
            self.stop()
            handoff.end()

    def stop(self) -> None:
        """Listen no more; from any thread."""
        self._stopped = True
        if (subscription := self._subscription) is not None:
            subscription.cancel()

    def _subscribe(self) -> None:
        location = locate(self._cluster, self._stream)
        wanted = Subscribe(
            stream=location.stream,
            start=self._start,
            boundary=self._boundary,
            epoch=self._epoch,
            incarnation=max(self._incarnation, location.incarnation),  # a primary that was deposed refuses
        )
        self._subscription = self._cluster.nodes.subscribe(location.address, wanted)
        self._epoch, self._lost = self._subscription.epoch, 0
        self._incarnation = max(self._incarnation, self._subscription.incarnation)
        if self._stopped:
            self._subscription.cancel()

    def _why_over(self, error: BorealisError) -> BorealisError | None:
        """Why this is the end; None if the stream is only away for a while: its node is, or it is moving."""
        if isinstance(error, GoneError) or not isinstance(error, StreamError | WireError):
            return error
        try:
            find(self._cluster.catalog.layouts(), self._stream)
        except BorealisError as gone:
            return gone
        return None

    def _pass_on(self, handoff: Handoff) -> None:
        assert self._subscription is not None
        for section in self._subscription:
            if self._subscription.lost > self._lost:
                lost, self._lost = self._subscription.lost - self._lost, self._subscription.lost
                handoff.put(b'event: lost\ndata: {"tuples": %d}\n\n' % lost)
            for piece in rendered(section, self._headers, self._left):
                if not handoff.put(piece):
                    return
            if self._left is not None:
                if len(section) >= self._left:
                    handoff.put(b'event: limit\ndata: {"next_id": %d}\n\n' % (section.first + self._left))
                    return
                self._left -= len(section)
            self._start, self._boundary = section.stop, section.final
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
