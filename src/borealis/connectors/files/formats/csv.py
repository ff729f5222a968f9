"""CSV files: by blocks as long as they are clean, else record by record.

Which records are good depends on the file and the declared columns alone, never on where reading began.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from borealis.connectors.files.formats import EmptyFileError, ReadSpec
from borealis.connectors.files.suffixes import is_packed, open_text
from borealis.connectors.records import UNCLOSED, CsvOptions, CsvRecords, Decoded, decode, dialect, unfit
from borealis.errors import InputError
from borealis.values.fit import match_columns

BLOCK_BYTES = 4 * 2**20
BLOCKS_OF_A_ROW = 2  # a row longer than these cannot be read
RECORDS_AT_ONCE = 10_000  # of a file with a bad one in it
BYTES_AT_ONCE = 16 * 2**20  # of these records
FIELD_CHARACTERS_MOST = 2**31 - 1  # as much as a C long holds anywhere: rows are bounded here, not fields by Python
csv.field_size_limit(max(csv.field_size_limit(), FIELD_CHARACTERS_MOST))


def read(path: Path, how: ReadSpec) -> Iterator[int | Decoded]:
    """In a file of one column an empty line is a null row."""
    options = how.options or CsvOptions()
    empty, first = _first_row(path, options)
    if first is None:
        if options.header:
            hint = "a CSV file begins with a line of column names, or header=False"
            raise EmptyFileError(f"{path} is empty", hint=hint)
        return
    chosen = _choose(first, how.schema, path, options)
    reader = CsvRecords(how.schema, options, len(first), chosen, BLOCKS_OF_A_ROW * BLOCK_BYTES)
    done = 0
    try:
        with pa.input_stream(str(path), "gzip" if is_packed(path) else None) as file:
            skip_lines = empty + 1 if options.header else 0
            for batch in pacsv.open_csv(file, **reader.arrow_options(BLOCK_BYTES, skip_lines)):
                if done + batch.num_rows <= how.skip:
                    done += batch.num_rows
                    yield batch.num_rows
                    continue
                rows = reader.rows(batch.columns)
                if how.time is not None and unfit(rows, how.time):
                    break
                yield Decoded(rows, np.arange(rows.num_rows), [], str)
                done += rows.num_rows
            else:
                return
    except (InputError, pa.ArrowException):
        pass  # found again, and reported, when records are looked at one by one
    head = (empty if len(first) == 1 else 0) + 1 if options.header else 0  # among the records
    with open_text(path, "surrogateescape") as lines:
        for values in _some(islice(_records(lines, len(first), options), done + head, None)):
            yield decode(values, reader, how.schema, how.time, how.first)


def _first_row(path: Path, options: CsvOptions) -> tuple[int, list[str] | None]:
    """How many empty lines come before the first row, and that row."""
    empty = 0
    with open_text(path) as file:
        for row, text in rows(file, options):
            if row is None:
                raise too_long(f"{path}, row 1", text)
            if row:
                return empty, row
            empty += 1
    return (0, [""]) if empty and not options.header else (empty, None)


def too_long(where: str, text: str) -> InputError:
    """The error for a row that was broken off."""
    return InputError(f"{where} has {len(text):,} characters, more than can be read", hint=UNCLOSED)


def _choose(first: list[str], schema: pa.Schema, path: Path, options: CsvOptions) -> list[int]:
    """Where each declared column stands in a file that begins with this row."""
    if options.header:
        return match_columns(schema.names, first, str(path))
    if len(first) != len(schema):
        raise InputError(
            f"{path} has {len(first)} columns, declared are {len(schema)}: {', '.join(schema.names)}",
            hint="without a header the file holds exactly the declared columns, in their order",
        )
    return list(range(len(first)))


def _records(file: IO[str], columns: int, options: CsvOptions) -> Iterator[bytes]:
    """The bytes of each record; one that was broken off is longer than `decode` takes."""
    for row, text in rows(file, options):
        if row is None or row or columns == 1:
            yield text.encode("utf-8", "surrogateescape")


def _some(records: Iterator[bytes]) -> Iterator[list[bytes]]:
    """As many records as are looked at together."""
    values, size = [], 0
    for record in records:
        values.append(record)
        size += len(record)
        if len(values) == RECORDS_AT_ONCE or size >= BYTES_AT_ONCE:
            yield values
            values, size = [], 0
    if values:
        yield values


def rows(file: IO[str], options: CsvOptions) -> Iterator[tuple[list[str] | None, str]]:
    """Each row by Python's reader: its fields, and its text, which is several lines where line ends are quoted.

    A row that is longer than any that Arrow reads has no fields and is broken off: the next line begins another. Else a
    quote that is never closed would take the rest of the file with it.
    """
    lines = _RowLines(file)
    reader = csv.reader(lines, **dialect(options))
    while True:
        lines.begin()
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield None, "".join(lines.taken)
        else:
            yield row, "".join(lines.taken)


class _RowLines:
    """The lines of one row after the other, for as long as the row is not too long."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.begin()

    def begin(self) -> None:
        self.taken: list[str] = []
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._characters > BLOCKS_OF_A_ROW * BLOCK_BYTES:
            raise csv.Error("too long a row")
        line = next(self._file)
        self.taken.append(line)
        self._characters += len(line)
        return line
