"""Rows as people and programs read them: values as text, columns that fit a terminal, JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from rich.cells import cell_len, set_cell_size

from borealis.cli.ending import PipeClosedError
from borealis.connectors.files.text import JsonLines, render

CELL_MOST = 40  # characters, before a value is cut for people
CELL_LEAST = 4  # characters of a column, however narrow the terminal
GAP = "  "
NULL = "-"
ODD = rf"^\s|\s$|\s\s|[^\x20-\x7e]|.{{{CELL_MOST + 1}}}"  # blanks but single spaces between words, not ASCII, too long
FIRST_US, LAST_US = -30_610_224_000_000_000, 253_402_300_799_999_999  # the years 1000 to 9999


def cell(value: Any) -> str:
    """A value as people read it, not longer than a column should be. Times with a zone are in UTC, and end in Z."""
    if value is None:
        return NULL
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        there = value if value.tzinfo is None else value.astimezone(UTC)
        return there.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".") + zone
    text = f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
    return text if len(text) <= CELL_MOST else text[: CELL_MOST - 1] + "…"


def cells(column: pa.Array) -> pa.Array:
    """A column as strings, each as `cell` has it."""
    kind = column.type
    if pt.is_dictionary(kind):
        return cells(column.dictionary_decode())
    if pt.is_floating(kind):
        return strings([NULL if value is None else f"{value:.6g}" for value in column.to_pylist()])
    if pt.is_integer(kind):
        return _filled(column.cast(pa.string()))
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _texts(column.cast(pa.string()))
    if pt.is_timestamp(kind) and kind.unit != "ns" and (found := _times(column)) is not None:
        return found
    return _one_by_one(column)


def _texts(column: pa.Array) -> pa.Array:
    odd = pc.match_substring_regex(column, ODD)
    if not pc.any(odd, min_count=0).as_py():
        return _filled(column)
    mask = pc.and_kleene(odd, pc.is_valid(column))  # no null among them
    return _filled(pc.replace_with_mask(column, mask, _one_by_one(column.filter(mask))))


def _filled(column: pa.Array) -> pa.Array:
    return pc.fill_null(column, text(NULL))


def _times(column: pa.Array) -> pa.Array | None:
    """None where years have not four digits."""
    try:
        times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    ends = pc.min_max(times).as_py()
    if ends["min"] is not None and not FIRST_US <= ends["min"] <= ends["max"] <= LAST_US:
        return None
    shown = times.cast(pa.timestamp("us")).cast(pa.string())
    zone = "" if column.type.tz is None else "Z"
    return _filled(pc.replace_substring_regex(shown, r"\.?0*$", zone, max_replacements=1))


def _one_by_one(column: pa.Array) -> pa.Array:
    return strings([_shown(value) for value in column])


def _shown(value: pa.Scalar) -> str:
    try:
        return cell(value.as_py())
    except (ValueError, OverflowError):  # a time that Python's datetime cannot hold
        return str(value.value)


def strings(texts: Sequence[str]) -> pa.Array:
    """An array of them; halves of surrogate pairs become question marks. Unlike `pa.array` it imports no pandas, which
    takes longer than to show many rows.
    """
    encoded = [text.encode("utf-8", "replace") for text in texts]
    ends = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum([len(text) for text in encoded], out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def text(value: str) -> pa.Scalar:
    return strings([value])[0]


def to_stdout(data: bytes | pa.Buffer) -> None:
    """Print, and notice when its reader has gone."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        raise PipeClosedError("stdout has no reader any more") from error


def print_json(rows: pa.Table | pa.RecordBatch) -> None:
    """Rows as JSON lines, whose schema `JsonLines` has checked."""
    for piece in render(pa.table(rows), JsonLines()):
        to_stdout(piece)


PLAIN = "\x1b[0m"  # what ends a style


class TextRows:
    """Rows in columns that grow as they must, but not beyond a terminal's `width`.

    Names of columns come first, and again when they have changed; where rows are `followed`, when widths have, too.
    """

    def __init__(self, width: int | None = None, followed: bool = False) -> None:
        self._width, self._followed = width, followed
        self.style = ""  # of rows: how a terminal is told of it
        self.note = ""  # behind each row
        self._names: Sequence[str] = ()
        self._widths: list[int] = []

    def __call__(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Print columns of strings, as `cells` makes them."""
        if padded := self._laid_out(names, columns):
            self._print(pc.binary_join_element_wise(*padded, text(GAP)))

    def _laid_out(self, names: Sequence[str], columns: Sequence[pa.Array]) -> list[pa.Array]:
        """The columns as wide as they are printed. Prints their names, if it is time."""
        before = self._widths if names == self._names else [0] * len(names)
        needed = [max(cell_len(name), _widest(column)) for name, column in zip(names, columns, strict=True)]
        widths = [max(pair) for pair in zip(before, needed, strict=True)]
        changed = names != self._names or (self._followed and widths != before)
        self._names, self._widths = names, widths
        if self._width is not None:
            widths = _fitted(widths, self._width)
        if changed and names:
            print_lines(strings([GAP.join(_cut(name, width) for name, width in zip(names, widths, strict=True))]))
        return [_padded(column, width) for column, width in zip(columns, widths, strict=True)]

    def _print(self, lines: pa.Array) -> None:
        if self.style or self.note:
            end = (f"{GAP}{self.note}" if self.note else "") + (PLAIN if self.style else "")
            lines = strings([f"{self.style}{line}{end}" for line in pc.utf8_rtrim(lines, " ").to_pylist()])
        print_lines(lines)

    def batch(self, rows: pa.RecordBatch) -> None:
        self(rows.schema.names, [cells(column) for column in rows.columns])


def print_lines(lines: pa.Array) -> None:
    to_stdout("".join(line + "\n" for line in pc.utf8_rtrim(lines, " ").to_pylist()).encode())


def _widest(column: pa.Array) -> int:
    """In cells of a terminal, of which an ASCII character takes one."""
    if _is_ascii(column):
        return int(pc.max(pc.binary_length(column)).as_py() or 0)
    return max(map(cell_len, column.to_pylist()), default=0)


def _padded(column: pa.Array, width: int) -> pa.Array:
    """All values as wide as that: filled up, or cut."""
    if _is_ascii(column) and _widest(column) <= width:
        return pc.ascii_rpad(column, width)
    return strings([_cut(value, width) for value in column.to_pylist()])


def _is_ascii(column: pa.Array) -> bool:
    return bool(pc.all(pc.string_is_ascii(column), min_count=0).as_py())


def _fitted(widths: list[int], most: int) -> list[int]:
    """Widths that fit into a line: the widest columns give way first.

    >>> _fitted([3, 40, 10], 30)
    [3, 13, 10]
    """
    widths = list(widths)
    room = most - len(GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > CELL_LEAST:
        widest = max(range(len(widths)), key=widths.__getitem__)
        second = max([w for i, w in enumerate(widths) if i != widest], default=0)
        widths[widest] = max(CELL_LEAST, min(widths[widest] - 1, max(second, widths[widest] - (sum(widths) - room))))
    return widths


def _cut(text: str, width: int) -> str:
    return set_cell_size(text, width) if cell_len(text) <= width else set_cell_size(text, width - 1) + "…"
