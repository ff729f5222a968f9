"""Records as rows: a list of values in JSON, CSV or Arrow; those that cannot be read are told apart, with the reason.

Whole lists are read at once. Only a list with a bad record in it is looked at more closely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as pt

from borealis.connectors.files.formats.jsonl import parse_line, raw_type, read_block
from borealis.errors import InputError, did_you_mean
from borealis.kernels.time_of import TimeOf
from borealis.tuples import Int64s
from borealis.values.fit import Place, check_type, fit, fit_column, match_columns
from borealis.values.python import batch_of

FORMATS = ("json", "csv", "arrow")
# What libraries raise for a record that nobody foresaw. It is a letter like others: one record must not stop the rest.
UNREADABLE = (InputError, ValueError, ArithmeticError, TypeError, NotImplementedError, RecursionError)
RECORD_BYTES_MOST = 4 << 20  # a larger record is not read
BLANK = re.compile(rb"\n[ \t\r]*\n")
RECORD = Place("the record")
NOT_A_ROW = "the record, row 1"  # how errors of one record name it; there is only one


@dataclass(frozen=True)
class Decoded:
    """The rows of some records: `record[i]` is which one row i came from; `bad` holds the others and their reasons."""

    rows: pa.RecordBatch
    record: Int64s
    bad: list[tuple[int, str]]


class Records(Protocol):
    """A format. Raises InputError if any of the records cannot be read, without saying which."""

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """All rows of some records, and how many each record has; None: one each."""
        ...


def records(format_: str, schema: pa.Schema) -> Records:
    """How to read records of a format into these columns."""
    if format_ not in FORMATS:
        raise InputError(
            f"no record format '{format_}' (has: {', '.join(FORMATS)})", hint=did_you_mean(format_, FORMATS)
        )
    kinds: dict[str, Callable[[pa.Schema], Records]] = {"json": Json, "csv": Csv, "arrow": Arrow}
    return kinds[format_](schema)


def decode(values: Sequence[bytes | None], reader: Records, schema: pa.Schema, time: TimeOf | None = None) -> Decoded:
    """The rows of the records, in their order. A record without a time is bad, where one is asked for."""
    bad: list[tuple[int, str]] = []
    if None in values or max(map(len, values), default=0) > RECORD_BYTES_MOST:  # type: ignore[arg-type]
        good = [i for i, value in enumerate(values) if _is_readable(i, value, bad)]
    else:
        good = list(range(len(values)))
    pieces = list(_read(values, good, reader, bad))
    rows = _joined([rows for rows, _ in pieces], schema)
    record = np.concatenate([at for _, at in pieces]) if pieces else np.empty(0, np.int64)
    if len(pieces) > 1 and (np.diff(record) < 0).any():
        order = np.argsort(record, kind="stable")
        rows, record = rows.take(pa.array(order)), record[order]
    if time is not None and (faults := time.faults(rows)):
        reasons = {int(record[at]): why for at, why in reversed(faults)}
        missing = np.array(sorted(reasons), np.int64)
        bad += [(i, f"it has no time: {why}") for i, why in reasons.items()]
        kept = ~np.isin(record, missing)
        rows, record = rows.filter(pa.array(kept)), record[kept]
    return Decoded(rows, record, sorted(bad))


def _is_readable(index: int, value: bytes | None, bad: list[tuple[int, str]]) -> bool:
    if value is None:
        bad.append((index, "it has no value (a tombstone)"))
    elif len(value) > RECORD_BYTES_MOST:
        bad.append((index, f"it has {len(value):,} bytes, more than {RECORD_BYTES_MOST:,}"))
    else:
        return True
    return False


def _read(values: Sequence[Any], good: list[int], reader: Records, bad: list[tuple[int, str]]) -> Any:
    """The pieces that can be read, in any order; halves what cannot, until single records are left."""
    if not good:
        return
    chosen = [values[i] for i in good] if len(good) < len(values) else values
    try:
        rows, counts = reader.read(chosen)
    except UNREADABLE as error:
        if len(good) == 1:
            bad.append((good[0], _reason(error)))
            return
        alone = reader.doubtful(chosen) if isinstance(reader, Json) else []
        if alone and len(alone) < len(good):
            for i in alone:
                yield from _read(values, [good[i]], reader, bad)
            yield from _read(values, [good[i] for i in sorted(set(range(len(good))) - set(alone))], reader, bad)
            return
        half = len(good) // 2
        yield from _read(values, good[:half], reader, bad)
        yield from _read(values, good[half:], reader, bad)
        return
    at = np.array(good, np.int64)
    yield rows, at if counts is None else np.repeat(at, counts)


def _reason(error: Exception) -> str:
    if not isinstance(error, InputError):
        return f"it cannot be read ({type(error).__name__}: {_said(error)})"
    return error.message.replace(f"{NOT_A_ROW}: ", "").replace(NOT_A_ROW, "it")


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class Json:
    """An object a record; a column that it lacks is null, one that is not declared is ignored. Names must be exact."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._raw = pa.schema([(field.name, raw_type(field.type)) for field in schema])

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """By Arrow's reader, or one by one where that knows less."""
        block = b"\n".join([b"", *values, b""])
        if block.count(b"\n") == len(values) + 1 and not BLANK.search(block):  # one line each, and none without a row
            batch = read_block(block, self._raw, len(values))
            if batch is not None:
                return fit(batch, self._schema, RECORD, text=True), None
        return self._slowly(values), None

    def doubtful(self, values: Sequence[bytes]) -> list[int]:
        """After an error: those that are no objects. There may be others that cannot be read."""
        return [i for i, value in enumerate(values) if not _is_object(value)]

    def _slowly(self, values: Sequence[bytes]) -> pa.RecordBatch:
        rows = [parse_line(value, RECORD, 0) for value in values]
        # a record means the same whatever comes with it: Arrow's reader takes exact names only
        return batch_of([[row.get(name) for name in self._schema.names] for row in rows], self._schema, RECORD)


def _is_object(value: bytes) -> bool:
    try:
        parse_line(value, RECORD, 0)
    except InputError:
        return False
    return True


class Csv:
    """A line a record, without a header: exactly the declared columns, in their order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._names = [f"{index}" for index in range(len(schema))]

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """By Arrow's reader; an unquoted empty field is null."""
        block = b"\n".join(values) + b"\n"
        if len(values) > 1 and (block.count(b"\n") != len(values) or b"\r" in block or BLANK.search(b"\n" + block)):
            raise InputError("a record that is not one line")  # found when they are looked at one by one
        try:
            table = pacsv.read_csv(
                pa.py_buffer(block),
                read_options=pacsv.ReadOptions(column_names=self._names, block_size=len(block) + 1),
                parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(self._names) > 1),
                convert_options=pacsv.ConvertOptions(
                    column_types=dict.fromkeys(self._names, pa.binary()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise InputError(f"it is no CSV of {len(self._names)} fields ({_said(error)})") from None
        if table.num_rows != len(values):
            raise InputError(f"it has {table.num_rows} lines, not one")
        columns = [column.combine_chunks() for column in table.columns]
        texts = [_text(column, field) for column, field in zip(columns, self._schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(texts, names=self._schema.names)
        return fit(batch, self._schema, RECORD, text=True), None


def _text(column: pa.Array, field: pa.Field) -> pa.Array:
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    text = fit_column(column, pa.field(field.name, pa.string()), RECORD)
    if pt.is_string(field.type) or pt.is_binary(field.type):
        return text
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


class Arrow:
    """An Arrow IPC stream a record, of any number of rows; columns go by name."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """One after the other."""
        batches = [self._one(value) for value in values]
        counts = np.array([batch.num_rows for batch in batches], np.int64)
        return _joined(batches, self._schema), counts

    def _one(self, value: bytes) -> pa.RecordBatch:
        try:
            table = pa.ipc.open_stream(value).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise InputError(f"it is no Arrow stream ({_said(error)})") from None
        try:
            names = table.schema.names
        except UnicodeDecodeError:
            raise InputError("it has columns whose names are not UTF-8") from None
        chosen = match_columns(self._schema.names, names, RECORD.source)
        for index, field in zip(chosen, self._schema, strict=True):
            check_type(table.schema.field(index).type, field, RECORD.source)
        whole = table.select(chosen).combine_chunks().to_batches()
        return _joined([fit(batch, self._schema, RECORD) for batch in whole], self._schema)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
