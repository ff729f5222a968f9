"""Newline-delimited JSON as it comes in: cut into lines, and lines into rows. A bad line is told by its number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from borealis.coordinator.refusals import TooLargeError
from borealis.errors import InputError
from borealis.ingest.sources.fit import Place
from borealis.ingest.sources.python_values import batch_of

LINE_BYTES_MOST = 1 << 20
BOM = b"\xef\xbb\xbf"
SHOWN_BYTES = 60  # of a bad line


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


@dataclass(frozen=True)
class _At(Place):
    """Rows are lines here."""

    lines: tuple[Line, ...] = ()

    def row(self, index: int) -> str:
        return f"line {self.lines[index].number}"


def rows_of(lines: Sequence[Line], schema: pa.Schema) -> Rows:
    """The lines as rows of exactly this schema; every column must be there, `null` where it has no value."""
    rows: list[dict[str, Any]] = []
    error: InputError | None = None
    for line in lines:
        try:
            rows.append(_parsed(line))
        except InputError as bad:
            error = bad
            break
    place = _At("", lines=tuple(lines))
    try:
        return Rows(batch_of(rows, schema, place), error)
    except InputError as bad:
        good, error = _good_before(rows, schema, place), bad
    return Rows(batch_of(rows[:good], schema, place), error)


def _good_before(rows: Sequence[dict[str, Any]], schema: pa.Schema, place: _At) -> int:
    """How many rows from the first on fit."""
    for index, row in enumerate(rows):
        try:
            batch_of([row], schema, place)
        except InputError:
            return index
    return len(rows)


def _parsed(line: Line) -> dict[str, Any]:
    shown = line.text[:SHOWN_BYTES].decode(errors="replace")
    try:
        value = json.loads(line.text, parse_float=Decimal, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"line {line.number} is not JSON ({error}): {shown!r}", hint="write one JSON object per line, in UTF-8"
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f"line {line.number} is not a JSON object: {shown!r}",
            hint="write one JSON object per line, without brackets around or commas between them",
        )
    return value


def _integer(text: str) -> int | Decimal:
    return Decimal(text) if text == "-0" else int(text)
