"""The body of a request as it comes in, newline-delimited JSON: cut into lines, and lines into rows.

It is read ahead a little, while what has come before is worked on. An error names a bad line by its number.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pyarrow as pa
from starlette.requests import ClientDisconnect, Request

from borealis.coordinator.http_errors import TooLargeError
from borealis.errors import InputError

LINE_BYTES_MOST = 1 << 20
PARTS_AHEAD = 16  # of about 64 KB, as the server reads them
DRAINED_BYTES_MOST = 16 << 20  # what is still read of a body that is refused, so that its sender reads the answer
BOM = b"\xef\xbb\xbf"


class NumberedLine(NamedTuple):
    """One line that is not blank, and its number, from 1."""

    number: int
    text: bytes


class Cutter:
    """Cuts a body that comes in pieces into lines.

    >>> cutter = Cutter()
    >>> [line.text for line in (*cutter.feed(b'{"a": 1}\\n{"a"'), *cutter.feed(b': 2}\\n'), *cutter.rest())]
    [b'{"a": 1}', b'{"a": 2}']
    """

    def __init__(self) -> None:
        self._number = 0
        self._tail = b""

    def feed(self, data: bytes) -> list[NumberedLine]:
        """The lines that end in what has come."""
        *whole, self._tail = (self._tail + data).split(b"\n")
        found = self._lines(whole)
        if len(self._tail) > LINE_BYTES_MOST:
            number = self._number + 1
            raise TooLargeError(f"line {number} is longer than {LINE_BYTES_MOST:,} bytes", hint="end each row's line")
        return found

    def rest(self) -> list[NumberedLine]:
        """What comes behind the last line end."""
        tail, self._tail = self._tail, b""
        return self._lines([tail])

    def _lines(self, texts: Sequence[bytes]) -> list[NumberedLine]:
        found = []
        for text in texts:
            if self._number == 0:
                text = text.removeprefix(BOM)
            self._number += 1
            if text and not text.isspace():
                found.append(NumberedLine(self._number, text))
        return found


class Inflow:
    """Reads a request's body ahead of the task that iterates over it."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(PARTS_AHEAD)
        self._ended = False
        self.broken = False  # the sender went away before the end

    async def __aenter__(self) -> Inflow:
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *error: object) -> None:
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

    async def lines(self) -> AsyncIterator[list[NumberedLine]]:
        """The lines that have come since the last time. What was cut off in a line's middle is no line."""
        cutter = Cutter()
        async for part in self.parts():
            if lines := cutter.feed(part):
                yield lines
        if not self.broken and (lines := cutter.rest()):
            yield lines

    async def drain(self) -> None:
        left = DRAINED_BYTES_MOST
        async for part in self.parts():
            left -= len(part)
            if left < 0:
                return


class ParsedRows(NamedTuple):
    """The rows of the lines up to the first bad one, and what is wrong with that one."""

    batch: pa.RecordBatch
    error: InputError | None = None


def rows_of(lines: Sequence[NumberedLine], schema: pa.Schema) -> ParsedRows:
    """The lines as rows of exactly this schema; a column that a line lacks is null there."""
    from borealis.client.row_form import JsonRows  # here, so that the coordinator starts without
    from borealis.connectors.records import decode

    found = decode([line.text for line in lines], JsonRows(schema), schema, first=True)
    if not found.bad:
        return ParsedRows(found.rows)
    error = found.error(f"line {lines[found.bad[0][0]].number}")
    if "(Extra data" in error.message:
        error.hint += "; curl sends the line ends of a file with --data-binary, not with -d"
    return ParsedRows(found.rows, error)
