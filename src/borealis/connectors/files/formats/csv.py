"""CSV: an unquoted empty field is null, a quoted one is an empty string."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from borealis.connectors.files.suffixes import is_gzipped
from borealis.errors import InputError
from borealis.values.fit import Place, fit_column, match_columns

BLOCK_BYTES = 4 * 2**20  # a row longer than this cannot be read
BLOCKS_OF_A_ROW = 2  # one that begins in a block and ends in the next can be
FIELD_CHARACTERS_MOST = 2**31 - 1  # as much as a C long holds anywhere: rows are bounded here, not fields by Python
csv.field_size_limit(max(csv.field_size_limit(), FIELD_CHARACTERS_MOST))


@dataclass(frozen=True)
class CsvOptions:
    """How the file is written. Without a header its columns are the declared ones, in their order."""

    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    nulls: tuple[str, ...] = ("",)  # unquoted fields that mean null


def read(
    path: Path, schema: pa.Schema, skip: int, most_rows: int, options: CsvOptions
) -> Iterator[int | pa.RecordBatch]:
    """Blocks of text columns, checked to be UTF-8. In a file of one column an empty line is a null row."""
    lines_before, first = first_row(path, options)
    if first is None:
        if options.header:
            raise InputError(f"{path} is empty", hint="a CSV file begins with a line of column names, or header=False")
        return
    chosen = choose(first, schema, path, options)
    names = [f"{index}" for index in range(len(first))]
    wanted = [names[index] for index in chosen]
    row = 0
    try:
        with _open(path) as file:
            skip_lines = lines_before + 1 if options.header else 0
            reader = pacsv.open_csv(file, **arrow_options(names, wanted, options, BLOCK_BYTES, skip_lines))
            for batch in reader:
                place = Place(str(path), row)
                arrays = [
                    text_column(column, field, place) for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=schema.names)
                row += batch.num_rows
    except pa.ArrowInvalid as error:
        raise _explain(error, path, len(names), options) from None


def arrow_options(
    names: Sequence[str], wanted: Sequence[str], options: CsvOptions, block_bytes: int, skip_lines: int = 0
) -> dict[str, Any]:
    """How Arrow's reader is to read such a file: the wanted columns as bytes."""
    return {
        "read_options": pacsv.ReadOptions(column_names=names, block_size=block_bytes, skip_rows_after_names=skip_lines),
        "parse_options": pacsv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            newlines_in_values=True,
            ignore_empty_lines=len(names) > 1,
        ),
        "convert_options": pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.binary()),
            include_columns=wanted,
            null_values=list(options.nulls),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    }


def _open(path: Path) -> pa.NativeFile:
    return pa.CompressedInputStream(pa.OSFile(str(path)), "gzip") if is_gzipped(path) else pa.OSFile(str(path))


def _lines(path: Path) -> IO[str]:
    opener = gzip.open if is_gzipped(path) else open
    return opener(path, "rt", encoding="utf-8-sig", errors="replace", newline="")


def first_row(path: Path, options: CsvOptions) -> tuple[int, list[str] | None]:
    """How many empty lines come before the first row, and that row."""
    empty = 0
    with _lines(path) as file:
        for row, _ in rows(file, options):
            if row is None:
                raise _too_long(path)
            if row:
                return empty, row
            empty += 1
    return (0, [""]) if empty and not options.header else (empty, None)


def rows(file: IO[str], options: CsvOptions) -> Iterator[tuple[list[str] | None, str]]:
    """Each row by Python's reader: its fields, and its text, which is several lines where line ends are quoted.

    A row that is longer than any that Arrow reads has no fields and is broken off: the next line begins another. Else a
    quote that is never closed would take the rest of the file with it.
    """
    lines = _RowLines(file, BLOCKS_OF_A_ROW * BLOCK_BYTES)
    reader = csv.reader(lines, delimiter=options.delimiter, quotechar=options.quote)
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

    def __init__(self, file: IO[str], characters_most: int) -> None:
        self._file, self._most = file, characters_most
        self.begin()

    def begin(self) -> None:
        """Another row comes."""
        self.taken: list[str] = []
        self._characters = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if self._characters > self._most:
            raise csv.Error("too long a row")
        line = next(self._file)
        self.taken.append(line)
        self._characters += len(line)
        return line


def choose(first: list[str], schema: pa.Schema, path: Path, options: CsvOptions) -> list[int]:
    """Where each declared column stands in a file that begins with this row."""
    if options.header:
        return match_columns(schema.names, first, str(path))
    if len(first) != len(schema):
        raise InputError(
            f"{path} has {len(first)} columns, declared are {len(schema)}: {', '.join(schema.names)}",
            hint="without a header the file holds exactly the declared columns, in their order",
        )
    return list(range(len(first)))


def text_column(column: pa.Array, field: pa.Field, place: Place) -> pa.Array:
    """The bytes of a column as text, with null for nothing where the declared type is not text."""
    text = fit_column(column, pa.field(field.name, pa.string()), place)
    if pt.is_string(field.type) or pt.is_binary(field.type):
        return text
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)  # programs that quote everything


def _explain(error: pa.ArrowInvalid, path: Path, columns: int, options: CsvOptions) -> InputError:
    """Arrow does not say which row; a second, slow reading does."""
    if "straddl" in str(error):
        return _too_long(path)
    with _lines(path) as file:
        number = 0
        for row, _ in rows(file, options):
            if row is None:
                return _too_long(path)
            if not row and columns > 1:
                continue
            number += 1
            if len(row) != columns and (row or columns > 1):
                place = f"{path}, row {number - options.header}"
                return InputError(
                    f"{place} has {len(row)} fields, not {columns}: {options.delimiter.join(row)[:60]!r}",
                    hint="quote fields that hold the delimiter or a line break",
                )
    return InputError(f"{path} is not a readable CSV file ({error})", hint="check the delimiter and the quotes")


def _too_long(path: Path) -> InputError:
    return InputError(f"{path} has a row of more than {BLOCK_BYTES} bytes", hint="look for a quote never closed")
