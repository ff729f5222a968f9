"""A stream as server-sent events: `id` is the tuple's, `data` its row as JSON.

The stream is read as any client reads it, and never far ahead: a slow client slows its own reading, and nothing else.
Tentative rows, for who wants them, have no `id`: a client that comes back goes on behind the last stable one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import TYPE_CHECKING

from borealis.client.subscriber import ReadOptions, Start, Subscription
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import status_of
from borealis.coordinator.naming import locate
from borealis.coordinator.threads import THREADS, in_thread
from borealis.errors import BorealisError
from borealis.retrying import Retries
from borealis.streams.section import Section
from borealis.threads import Threads
from borealis.wire.client import Peer
from borealis.wire.endpoints import Location
from borealis.wire.problems import problem_of
from borealis.wire.view import View, tentative_rows

if TYPE_CHECKING:
    from borealis.client.aio import AsyncSubscription

ROWS_AT_ONCE = 1000
HEARTBEAT_S = 5.0
FOR_EVER = Retries(most_s=1.0, give_up_s=math.inf)  # as long as the stream is deployed
AHEAD_BYTES = 1 << 20  # read ahead of each client
HELLO = b"retry: 1000\n\n"
STILL_THERE = b": still there\n\n"
END = b"event: end\ndata: {}\n\n"


class CatalogRoute:
    """How the gateway gets to streams: it asks the coordinator's own catalog, and is answered as any client is."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def locate(self, stream: str) -> Location:
        try:
            return locate(self._cluster, stream)
        except BorealisError as error:
            setattr(error, "status", status_of(error))  # noqa: B010 - so a client knows that the coordinator says it
            raise

    def peer(self, address: str) -> Peer:
        return self._cluster.nodes.connect(address)


def rendered(under: Subscription, section: Section, limit: int | None) -> Iterator[bytes]:
    """The tuples of a section as events, a few at a time; the first so many only, if there is a limit."""
    from borealis.connectors.files.text import JsonLines  # here: the coordinator starts without all the other sinks

    ids = under.view.ids(section)[:limit]
    for at in range(0, len(ids), ROWS_AT_ONCE):
        some = ids[at : at + ROWS_AT_ONCE]
        rows = under.with_headers(section.since(some[0]).until(some[-1] + 1))
        lines = JsonLines().lines(rows if section.stable else tentative_rows(rows)).to_pylist()
        heads = [f"id: {number}\n" if section.stable else "" for number in some]
        yield "".join(f"{head}data: {line}\n" for head, line in zip(heads, lines, strict=True)).encode()


def listening(cluster: Cluster, stream: str, start: Start, view: View, tentative: bool = False) -> AsyncSubscription:
    """A client's subscription, whatever happens in between. Opening it raises where there is nothing to listen to."""
    from borealis.client.aio import AsyncSubscription  # here, so that the coordinator starts without publishers

    options = ReadOptions(
        start, **vars(view), tentative=tentative, timeout=HEARTBEAT_S, retries=FOR_EVER, buffer_bytes=AHEAD_BYTES
    )
    return AsyncSubscription(THREADS, lambda: Subscription(CatalogRoute(cluster), stream, options))


async def events(
    listener: AsyncSubscription, limit: int | None, ending: asyncio.Event, room: asyncio.Semaphore, threads: Threads
) -> AsyncIterator[bytes]:
    """What a client gets, until the stream ends, it has so many rows, it goes, or the coordinator does."""
    await room.acquire()
    under = await listener.open()
    until_end = asyncio.create_task(_stop_at(ending, under, threads))
    try:
        yield HELLO
        async for piece in _pieces(listener, under, limit):
            yield piece
    except BorealisError as error:
        yield b"event: problem\ndata: " + problem_of(error).encode() + b"\n\n"
    finally:
        room.release()
        until_end.cancel()
        threads.start("borealis-hang-up", under.stop)  # it may take a while to reach the other side


async def _stop_at(ending: asyncio.Event, under: Subscription, threads: Threads) -> None:
    await ending.wait()
    threads.start("borealis-hang-up", under.stop)


async def _pieces(listener: AsyncSubscription, under: Subscription, left: int | None) -> AsyncIterator[bytes]:
    lost, tentative, undone, now = 0, 0, False, asyncio.get_running_loop().time
    wrote = now()
    while True:
        try:
            async for section in listener.sections():
                if now() - wrote >= HEARTBEAT_S:  # only boundaries came, of which the other side hears nothing
                    yield STILL_THERE
                    wrote = now()
                if (more := under.lost - lost) > 0:
                    yield b'event: lost\ndata: {"tuples": %d}\n\n' % more
                    lost += more
                if section.undo and tentative:
                    yield b'event: undo\ndata: {"_undo": %d}\n\n' % tentative
                    tentative, undone = 0, True
                if section.done and undone:
                    yield b'event: done\ndata: {"_done": true}\n\n'
                    undone = False
                pieces = rendered(under, section, left)
                while (piece := await in_thread(partial(next, pieces, None))) is not None:
                    yield piece
                    wrote = now()
                ids = under.view.ids(section)
                tentative += 0 if section.stable else len(ids)
                if left is not None and len(ids) >= left:
                    next_id = ids[left - 1] + 1 if section.stable else under.position
                    yield b'event: limit\ndata: {"next_id": %d}\n\n' % next_id
                    return
                left = None if left is None else left - len(ids)
                if section.ended:
                    yield END
                    return
            return
        except TimeoutError:  # nothing came for a while; the next iteration goes on where this one was
            yield STILL_THERE
            wrote = now()
