"""Newline-delimited JSON as it comes in: cut into lines, and lines into rows. A bad line is told by its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from borealis.coordinator.http_errors import TooLargeError
from borealis.errors import InputError

LINE_BYTES_MOST = 1 << 20
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
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

    def feed(self, data: bytes) -> list[Line]:
        """The lines that end in what has come."""
        *whole, self._tail = (self._tail + data).split(b"\n")
        found = self._lines(whole)
        if len(self._tail) > LINE_BYTES_MOST:
            number = self._number + 1
            raise TooLargeError(f"line {number} is longer than {LINE_BYTES_MOST:,} bytes", hint="end each row's line")
        return found

    def rest(self) -> list[Line]:
        """What comes behind the last line end."""
        tail, self._tail = self._tail, b""
        return self._lines([tail])

    def _lines(self, texts: Sequence[bytes]) -> list[Line]:
        found = []
        for text in texts:
            if self._number == 0:
                text = text.removeprefix(BOM)
            self._number += 1
            if text and not text.isspace():
                found.append(Line(self._number, text))
        return found


@dataclass(frozen=True)
class Rows:
    """The rows of the lines up to the first bad one, and what is wrong with that one."""

    batch: pa.RecordBatch
    error: InputError | None = None


def rows_of(lines: Sequence[Line], schema: pa.Schema) -> Rows:
    """The lines as rows of exactly this schema; a column that a line lacks is null there."""
    from borealis.connectors.records import JsonRecords, decode  # here, so that the coordinator starts without

    found = decode(
        [line.text for line in lines], JsonRecords(schema, fold=True, bytes_most=math.inf), schema, first=True
    )
    if not found.bad:
        return Rows(found.rows)
    error = found.error(f"line {lines[found.bad[0][0]].number}")
    if "(Extra data" in error.message:
        error.hint += "; curl sends the line ends of a file with --data-binary, not with -d"
    return Rows(found.rows, error)
