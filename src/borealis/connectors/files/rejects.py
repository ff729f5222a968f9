"""Files of which every record that can be read is read; the others are told apart, with the reason.

A clean file is read by blocks, as `replay` does it. The first record that cannot be read makes the rest of the block,
or of a CSV file, be looked at record by record. Which records are good depends on the file and the declared columns
alone, never on where reading began.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from borealis.connectors.files.formats import csv, ipc, jsonl, parquet
from borealis.connectors.files.formats.csv import CsvOptions
from borealis.connectors.files.suffixes import is_gzipped
from borealis.connectors.records import RECORD, Decoded, Json, decode
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf
from borealis.tuples import Int64s
from borealis.values.fit import fit

RECORDS_AT_ONCE = 10_000  # of a CSV file with a bad one in it
BYTES_AT_ONCE = 16 * 2**20  # of these records
ROWS_AT_ONCE = 65_536  # of a Parquet file


@dataclass(frozen=True)
class Bad:
    """A record that could not be read: which one of its file, from 1, and how many rows of the piece come before it."""

    record: int
    rows_before: int
    raw: bytes | str
    reason: str


@dataclass(frozen=True)
class Piece:
    """The next rows of a file, and the records among them that are none."""

    rows: pa.RecordBatch
    bad: list[Bad]


def pieces(
    path: Path, format_: str, schema: pa.Schema, time: TimeOf | None, options: CsvOptions | None
) -> Iterator[Piece]:
    """All of a file. Raises InputError, or what the libraries raise, if the file as a whole cannot be read further."""
    if format_ == "jsonl":
        return _json_lines(path, schema, time)
    if format_ == "csv":
        assert options is not None
        return _csv(path, schema, time, options)
    return _columns(path, parquet.read if format_ == "parquet" else ipc.read, schema, time)


def _piece(decoded: Decoded, values: Sequence[bytes], before: int) -> Piece:
    """What came of some records, of which so many stand before them in the file."""
    bad = [
        Bad(before + index + 1, int(np.searchsorted(decoded.record, index)), values[index], reason)
        for index, reason in decoded.bad
    ]
    return Piece(decoded.rows, bad)


def _json_lines(path: Path, schema: pa.Schema, time: TimeOf | None) -> Iterator[Piece]:
    reader, before = Json(schema), 0
    with jsonl.open_file(path) as file:
        for block in jsonl.blocks(file):
            lines = [line for line in block.split(b"\n") if line and not line.isspace()]
            if lines:
                yield _piece(decode(lines, reader, schema, time), lines, before)
                before += len(lines)


# -- CSV


def _csv(path: Path, schema: pa.Schema, time: TimeOf | None, options: CsvOptions) -> Iterator[Piece]:
    if not path.stat().st_size:
        return
    done = 0
    try:
        for batch in csv.read(path, schema, 0, 0, options):
            assert isinstance(batch, pa.RecordBatch)
            rows = fit(batch, schema, RECORD, text=True)
            if time is not None and time.until_fault(rows)[1] is not None:
                break
            yield Piece(rows, [])
            done += rows.num_rows
        else:
            return
    except (InputError, pa.ArrowException):
        pass  # found again, and told, when records are looked at one by one
    empty, first = csv.first_row(path, options)
    if first is None:
        return
    head = (empty if len(first) == 1 else 0) + 1 if options.header else 0  # among the records
    reader = CsvRecords(len(first), csv.choose(first, schema, path, options), schema, options)
    with _lines(path) as file:
        for values in _some(islice(_csv_records(file, len(first), options), done + head, None)):
            yield _piece(decode(values, reader, schema, time), values, done)
            done += len(values)


def _lines(path: Path) -> IO[str]:
    opener = gzip.open if is_gzipped(path) else open
    return opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")


def _csv_records(file: IO[str], columns: int, options: CsvOptions) -> Iterator[bytes]:
    """The bytes of each record; one that was broken off is longer than `decode` takes."""
    for row, text in csv.rows(file, options):
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


class CsvRecords:
    """Records of a CSV file, their line ends included; `chosen` are the places of the declared columns."""

    def __init__(self, columns: int, chosen: Sequence[int], schema: pa.Schema, options: CsvOptions) -> None:
        self._names = [f"{index}" for index in range(columns)]
        self._wanted = [self._names[index] for index in chosen]
        self._schema, self._options = schema, options

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """By Arrow's reader, one row each."""
        block = b"".join(value if value.endswith((b"\n", b"\r")) else value + b"\n" for value in values)
        try:
            table = pacsv.read_csv(
                pa.py_buffer(block), **csv.arrow_options(self._names, self._wanted, self._options, len(block) + 1)
            )
        except pa.ArrowInvalid as error:
            said = " ".join(str(error).split())[:200]
            raise InputError(f"it is no record of {len(self._names)} fields ({said})") from None
        if table.num_rows != len(values):
            raise InputError(f"it has {table.num_rows} rows, not one")
        columns = [column.combine_chunks() for column in table.columns]
        text = [csv.text_column(column, field, RECORD) for column, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(text, names=self._schema.names)
        return fit(batch, self._schema, RECORD, text=True), None


# -- Parquet and Arrow


def _columns(path: Path, read: Callable[..., Any], schema: pa.Schema, time: TimeOf | None) -> Iterator[Piece]:
    before = 0
    for batch in read(path, schema, 0, ROWS_AT_ONCE):
        if isinstance(batch, pa.RecordBatch) and batch.num_rows:
            rows, bad = _fitting(batch, schema, time, before)
            yield Piece(rows, bad)
            before += batch.num_rows


def _fitting(
    batch: pa.RecordBatch, schema: pa.Schema, time: TimeOf | None, before: int
) -> tuple[pa.RecordBatch, list[Bad]]:
    """The rows whose values fit; halves what does not, until single rows are left."""
    good: list[pa.RecordBatch] = []
    bad: list[Bad] = []

    def walk(start: int, stop: int) -> None:
        try:
            rows = fit(batch.slice(start, stop - start), schema, RECORD)
            if time is not None and (fault := time.until_fault(rows)[1]) is not None:
                raise InputError(f"it has no time: {fault}")
            good.append(rows)
        except InputError as error:
            if stop - start == 1:
                raw = json.dumps(batch.slice(start, 1).to_pylist()[0], default=str, ensure_ascii=False)
                reason = error.message.replace(f"{RECORD.row(0)}: ", "")
                bad.append(Bad(before + start + 1, sum(rows.num_rows for rows in good), raw, reason))
                return
            middle = (start + stop) // 2
            walk(start, middle)
            walk(middle, stop)

    walk(0, batch.num_rows)
    if len(good) == 1:
        return good[0], bad
    table = pa.Table.from_batches(good, schema).combine_chunks()
    return (table.to_batches() or [pa.RecordBatch.from_pylist([], schema)])[0], bad
