"""The body of a request as it comes in: read ahead a little, while what has come before is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request

from borealis.gateway.ndjson import Cutter, Line

PARTS_AHEAD = 16  # of about 64 KB, as the server reads them
DRAINED_BYTES_MOST = 16 << 20  # what is still read of a body that is refused, so that its sender reads the answer


class Inflow:
    """Reads a request's body beside whoever iterates over it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(PARTS_AHEAD)
        self._reader: asyncio.Task[None] | None = None
        self._ended = False
        self.broken = False  # the sender went away before the end

    async def __aenter__(self) -> Inflow:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        try:
            async for part in self._request.stream():
                if part:
                    await self._parts.put(part)
        except ClientDisconnect:
            self.broken = True
        await self._parts.put(None)

    async def parts(self) -> AsyncIterator[bytes]:
        """All that has come since the last time, joined."""
        while not self._ended:
            found = [await self._parts.get()]
            while not self._parts.empty():
                found.append(self._parts.get_nowait())
            self._ended = found[-1] is None
            if joined := b"".join(part for part in found if part is not None):
                yield joined

    async def lines(self) -> AsyncIterator[list[Line]]:
        """The lines that have come since the last time. What was cut off in a line's middle is no line."""
        cutter = Cutter()
        async for part in self.parts():
            if lines := cutter.feed(part):
                yield lines
        if not self.broken and (lines := cutter.rest()):
            yield lines

    async def drain(self) -> None:
        """Read the rest, and throw it away."""
        left = DRAINED_BYTES_MOST
        async for part in self.parts():
            left -= len(part)
            if left < 0:
                return
