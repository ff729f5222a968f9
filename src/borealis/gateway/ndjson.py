"""Newline-delimited JSON as it comes in: cut into lines, and lines into rows. A bad line is told by its number."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from borealis.coordinator.http_errors import TooLargeError
from borealis.errors import InputError

LINE_BYTES_MOST = 1 << 20
BOM = b"\xef\xbb\xbf"
ONE_A_LINE = "write one JSON object per line, in UTF-8"
NO_LINE_ENDS = f"{ONE_A_LINE}; curl sends the line ends of a file with --data-binary, not with -d"
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


def rows_of(lines: Sequence[Line], schema: pa.Schema) -> Rows:
    """The lines as rows of exactly this schema; a column that a line lacks is null there."""
    batch = quickly(lines, schema)
    return slowly(lines, schema) if batch is None else Rows(batch)


def quickly(lines: Sequence[Line], schema: pa.Schema) -> pa.RecordBatch | None:
    """The rows by Arrow's own reader, if they are such that it cannot but agree with ours; ten times as fast.

    It reads what is absent as null, and knows no text for numbers: wherever there is a null, or an error, it is not
    asked. Every line must be one object: with a brace at each end, and as many objects as lines, it is.
    """
    import pyarrow.json as pajson  # here, so that the coordinator starts without

    from borealis.values.decimals import is_safe_json
    from borealis.values.fit import Place, fit

    if not lines or any(pt.is_nested(field.type) for field in schema):
        return None
    texts = [line.text.strip() for line in lines]
    if not all(text.startswith(b"{") and text.endswith(b"}") for text in texts):
        return None
    block = b"\n".join(texts)
    if not is_safe_json(block, schema):
        return None
    try:
        table = pajson.read_json(
            io.BytesIO(block),
            read_options=pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
            parse_options=pajson.ParseOptions(explicit_schema=_raw(schema), unexpected_field_behavior="ignore"),
        ).select(schema.names)
        table.validate(full=True)  # the reader takes bytes that are not UTF-8
        if table.num_rows != len(lines) or any(column.null_count for column in table.columns):
            return None
        return fit(table.combine_chunks().to_batches()[0], schema, Place("the rows"), text=True)
    except (pa.ArrowException, InputError, KeyError):
        return None


def _raw(schema: pa.Schema) -> pa.Schema:
    """What Arrow's reader reads as we do; the rest comes as text, and is parsed by us."""

    def kind(wanted: pa.DataType) -> pa.DataType:
        plain = pt.is_integer(wanted) or pt.is_floating(wanted) or pt.is_boolean(wanted) or pt.is_decimal(wanted)
        return wanted if plain else pa.string()

    return pa.schema([(field.name, kind(field.type)) for field in schema])


def slowly(lines: Sequence[Line], schema: pa.Schema) -> Rows:
    """The rows by Python's reader, one by one: the truth that `quickly` is held to."""
    from borealis.values.decimals import number  # here, so that the coordinator starts without
    from borealis.values.fit import first_misfit
    from borealis.values.python import batch_of

    rows: list[dict[str, Any]] = []
    error: InputError | None = None
    for line in lines:
        try:
            rows.append(_parsed(line, number))
        except InputError as bad:
            error = bad
            break

    def at(first: int) -> Any:
        return _At(tuple(lines[first:]))

    try:
        return Rows(batch_of(rows, schema, at(0)), error)
    except InputError as bad:
        error = bad  # of the first column with a bad value; the first bad row may be another

    def fits(start: int, stop: int) -> bool:
        try:
            batch_of(rows[start:stop], schema, at(start))
        except InputError:
            return False
        return True

    good = first_misfit(len(rows), fits)
    taken = batch_of(rows[:good], schema, at(0))
    try:
        batch_of(rows[good : good + 1], schema, at(good))
    except InputError as bad:
        error = bad
    return Rows(taken, error)


@dataclass(frozen=True)
class _At:
    """A `Place` in which rows are lines."""

    lines: tuple[Line, ...]
    source: str = "the body"

    def row(self, index: int) -> str:
        return f"line {self.lines[index].number}"


def _parsed(line: Line, number: Callable[[str], Decimal]) -> dict[str, Any]:
    shown = line.text[:SHOWN_BYTES].decode(errors="replace")
    try:
        value = json.loads(line.text, parse_float=number, parse_int=_integer)
    except json.JSONDecodeError as error:  # which counts lines and columns of this line alone
        said = f"{error.msg} at character {error.pos + 1}"
        hint = NO_LINE_ENDS if error.msg == "Extra data" else ONE_A_LINE
        raise InputError(f"line {line.number} is not JSON ({said}): {shown!r}", hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"line {line.number} is not JSON ({error}): {shown!r}", hint=ONE_A_LINE) from None
    if not isinstance(value, dict):
        raise InputError(
            f"line {line.number} is not a JSON object: {shown!r}",
            hint="write one JSON object per line, without brackets around or commas between them",
        )
    return value


def _integer(text: str) -> int | Decimal:
    return Decimal(text) if text == "-0" else int(text)
