"""A TCP proxy between clients and one server of this machine, for tests: it lets pass, hangs as a cut network does, or
cuts all connections and refuses others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

from borealis.hosts import LOOPBACK

PIECE_BYTES = 1 << 16  # of each direction of a connection so much is held at most while it hangs
CONNECTIONS_MOST = 512
ANSWER_S = 10.0  # for its own thread to do what it is told

Pipe = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """In front of a port. Its thread ends with the process, or when it is closed."""

    def __init__(self, port: int, to_port: int) -> None:
        self.port, self._to = port, to_port
        self._passes = asyncio.Event()
        self._passes.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=f"proxy {port}", daemon=True).start()
        self._do(self._listen())

    @property
    def address(self) -> str:
        """What a node announces that is to be reached through it."""
        return f"{LOOPBACK}:{self.port}"

    def hang(self) -> None:
        """Nothing is refused and nothing arrives, not even the end of a connection, until it is healed."""
        self._loop.call_soon_threadsafe(self._passes.clear)

    def cut(self) -> None:
        """All connections break, and no other is taken until it is healed."""
        self._do(self._cut())

    def heal(self) -> None:
        """It lets pass, first of all what has waited."""
        self._do(self._listen())
        self._loop.call_soon_threadsafe(self._passes.set)

    def close(self) -> None:
        """For good."""
        self._do(self._cut())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(ANSWER_S)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._take, LOOPBACK, self.port, limit=PIECE_BYTES)

    async def _cut(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError), self._held(writer):
            await self._passes.wait()
            there = await asyncio.open_connection(LOOPBACK, self._to, limit=PIECE_BYTES)
            with self._held(there[1]):
                pumps = [self._pump(reader, there[1]), self._pump(there[0], writer)]
                await asyncio.wait([asyncio.ensure_future(one) for one in pumps])

    def _held(self, writer: asyncio.StreamWriter) -> contextlib.ExitStack:
        """A side of a connection, which `cut` breaks; it is gone behind this."""
        assert len(self._open) < CONNECTIONS_MOST, "a test has more connections than it can have meant"
        held = contextlib.ExitStack()
        for undo in (writer.transport.abort, lambda: self._open.discard(writer)):
            held.callback(undo)
        self._open.add(writer)
        return held

    async def _pump(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Until one of the sides ends; what comes while it hangs waits here, and in the system's own buffers."""
        with contextlib.suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                await self._passes.wait()
                to.write(piece)
                await to.drain()
            await self._passes.wait()
            if to.can_write_eof():
                to.write_eof()
                return
        to.transport.abort()
