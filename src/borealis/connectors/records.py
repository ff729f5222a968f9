"""Records as rows, by one decoder a format, wherever the records come from: topics, files, requests.

Whole lists are read at once, by Arrow's readers where these mean the same as we. Only a list with a bad record in it is
looked at more closely: the bad ones are found, with the reason.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.json as pajson
import pyarrow.types as pt

from borealis.errors import InputError, did_you_mean
from borealis.kernels.kinds import NO_KIND, UNKNOWN, kinds_of
from borealis.kernels.time_of import TimeOf
from borealis.tuples import KIND, Int64s
from borealis.values import decimals
from borealis.values.fit import RowOrigin, choose, fit, fit_column
from borealis.values.python import batch_of

# What libraries raise for a record that is not foreseen. It is a letter like others: one record must not stop the rest.
UNREADABLE = (InputError, ValueError, ArithmeticError, TypeError, NotImplementedError, RecursionError)
RECORD_BYTES_MOST = 4 << 20  # a larger record is not read
SHOWN = 60  # characters of a bad record
NULL, NULL_FIRST = re.compile(rb"[\n}][ \t\r]*null"), re.compile(rb"[ \t\r\n]*null")
UNCLOSED = "look for a quote never closed"
HANDFUL = 8  # records, for which it does not pay to set up Arrow's reader
FEW = 256  # records that are read one by one where Arrow refuses them together
THREADS_BYTES = 1 << 16  # less than this is read sooner by the thread that has it
RECORD = RowOrigin("the record")
IT = "it"  # how reasons name the record, where they begin with it

Fault = tuple[int, str, str]  # which record, why, and how to mend it


@dataclass(frozen=True)
class Decoded:
    """The rows of some records: `record[i]` is which one row i came from; `bad` holds the others and their reasons."""

    rows: pa.RecordBatch
    record: Int64s
    bad: list[tuple[int, str]]
    raw: Callable[[int], bytes | str]  # a record as it came
    hint: str = ""  # how to mend the first of the bad

    def rows_before(self, index: int) -> int:
        """How many of the rows are of records before this one."""
        return int(np.searchsorted(self.record, index))

    def error(self, place: str) -> InputError:
        """The first of the bad records, which stands there, for those who stop at it."""
        reason = self.bad[0][1]
        own = reason.startswith(f"{IT} ")
        return InputError(place + (reason.removeprefix(IT) if own else f": {reason}"), hint=self.hint)


class Records(Protocol):
    """A format. Raises InputError if any of the records cannot be read; of a single one it says why."""

    bytes_most: float  # of a record

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """All rows of some records, and how many each record has; None: one each."""
        ...


def records(
    format_: str, schema: pa.Schema, formats: Mapping[str, Callable[[pa.Schema], Records]] | None = None
) -> Records:
    formats = FORMATS if formats is None else formats
    if format_ not in formats:
        raise InputError(
            f"no record format '{format_}' (has: {', '.join(formats)})", hint=did_you_mean(format_, formats)
        )
    return formats[format_](schema)


def decode(
    values: Sequence[bytes | None], reader: Records, schema: pa.Schema, time: TimeOf | None = None, first: bool = False
) -> Decoded:
    """The rows of the records, in their order. A record without a time is bad, where one is asked for.

    With `first`, only the first bad record is reported, and nothing behind it is given out.
    """
    given: Any = values
    is_json = isinstance(reader, JsonRecords)
    bad: list[Fault] = []
    good = np.arange(len(given))
    if reader.bytes_most < math.inf and (None in given or max(map(len, given), default=0) > reader.bytes_most):
        hint = UNCLOSED if isinstance(reader, CsvRecords) else ""
        bad = [(i, why, hint) for i, value in enumerate(given) if (why := _unreadable(value, reader.bytes_most))]
        good = np.arange(bad[0][0]) if first else np.setdiff1d(good, [i for i, _, _ in bad])

    def read(some: Int64s) -> tuple[pa.RecordBatch, Int64s | None]:
        return reader.read(given if len(some) == len(given) else [given[i] for i in some.tolist()])

    def doubtful(some: Int64s) -> Int64s:
        """After an error: those that are no objects. There may be others that cannot be read."""
        return np.array([i for i in some.tolist() if is_json and not _is_object(given[i])], np.int64)

    return _sifted(good, read, doubtful, bad, schema, time, first, lambda index: given[index] or b"")


def decode_columns(batch: pa.RecordBatch, schema: pa.Schema, time: TimeOf | None, first: bool) -> Decoded:
    """The rows of a batch whose values fit. Each row is a record here, JSON where it is shown raw."""

    def read(some: Int64s) -> tuple[pa.RecordBatch, Int64s | None]:
        return fit(batch.slice(int(some[0]), len(some)), schema, RECORD), None

    def raw(index: int) -> str:
        return json.dumps(batch.slice(index, 1).to_pylist()[0], default=str, ensure_ascii=False)

    return _sifted(np.arange(batch.num_rows), read, lambda some: some[:0], [], schema, time, first, raw)


def _unreadable(value: bytes | None, bytes_most: float) -> str:
    if value is None:
        return f"{IT} has no value (a tombstone)"
    return f"{IT} has {len(value):,} bytes, more than {bytes_most:,}" if len(value) > bytes_most else ""


def _sifted(
    good: Int64s,
    read: Callable[[Int64s], tuple[pa.RecordBatch, Int64s | None]],
    doubtful: Callable[[Int64s], Int64s],
    bad: list[Fault],
    schema: pa.Schema,
    time: TimeOf | None,
    first: bool,
    raw: Callable[[int], bytes | str],
) -> Decoded:
    """Halves what cannot be read, until single records are left."""
    pieces: list[tuple[pa.RecordBatch, Int64s]] = []
    found: list[Fault] = []

    def walk(some: Int64s, is_whole: bool = False) -> None:
        if not len(some) or (first and found):
            return
        try:
            rows, counts = read(some)
        except UNREADABLE as error:
            if len(some) == 1:
                found.append((int(some[0]), *_reason(error)))
                return
            alone = doubtful(some) if is_whole and not first else some[:0]
            if 0 < len(alone) < len(some):
                parts = [*np.split(alone, len(alone)), np.setdiff1d(some, alone)]
            else:
                parts = np.array_split(some, 2)
            for part in parts:
                walk(part)
            return
        pieces.append((rows, some if counts is None else np.repeat(some, counts)))

    walk(good, is_whole=True)
    rows = joined([rows for rows, _ in pieces], schema)
    record = np.concatenate([at for _, at in pieces]) if pieces else np.empty(0, np.int64)
    if len(pieces) > 1 and (np.diff(record) < 0).any():
        order = np.argsort(record, kind="stable")
        rows, record = rows.take(pa.array(order)), record[order]
    if time is not None and (faults := unfit(rows, time)):
        reasons = {int(record[at]): why for at, why in reversed(faults)}
        found += [(i, f"{IT} has {why}", "") for i, why in reasons.items()]
        timed = ~np.isin(record, np.array(sorted(reasons), np.int64))
        rows, record = rows.filter(pa.array(timed)), record[timed]
    every = sorted([*bad, *found])[: 1 if first else None]
    return Decoded(rows, record, [(i, why) for i, why, _ in every], raw, every[0][2] if every else "")


def unfit(rows: pa.RecordBatch, time: TimeOf) -> list[tuple[int, str]]:
    """The rows that an input does not take, and what they have: no time that needs one, or a kind that is none."""
    unknown = np.flatnonzero(kinds_of(rows) == UNKNOWN) if KIND in rows.schema.names else ()
    return sorted(
        [*((int(at), NO_KIND) for at in unknown), *((at, f"no time: {why}") for at, why in time.faults(rows))]
    )


def _reason(error: Exception) -> tuple[str, str]:
    if not isinstance(error, InputError):
        return f"{IT} cannot be read ({type(error).__name__}: {brief_error(error)})", ""
    return error.message.removeprefix(f"{RECORD.row(0)}: "), error.hint


def joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    batches = [batch for batch in batches if batch.num_rows] or batches[:1]
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_pylist([], schema)
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def brief_error(error: BaseException) -> str:
    """What a library says of a record or a file, in one line that is not too long."""
    return " ".join(str(error).split())[:200] or type(error).__name__


class Lines(list[bytes]):
    """Lines of a block, which has no others with anything in them."""

    def __init__(self, block: bytes) -> None:
        super().__init__(line for line in block.split(b"\n") if line and not line.isspace())
        self.block = block


def _lines(values: Sequence[bytes]) -> bytes | None:
    """The records as a block of lines; None if one of them is not one line with something in it."""
    if isinstance(values, Lines):
        return values.block
    block = b"\n".join([*values, b""])
    is_whole = block.count(b"\n") == len(values) and all(values) and not any(map(bytes.isspace, values))
    return block if is_whole else None


# -- JSON


class JsonRecords:
    """An object a record; a column that it lacks is null, one that is not declared is ignored.

    The columns stand under `keys`, or under their own names: exactly so, or with `fold` in any case.
    """

    def __init__(
        self, schema: pa.Schema, keys: Sequence[str] = (), *, fold: bool = False, bytes_most: float = 0
    ) -> None:
        self._schema, self._fold = schema, fold
        named = zip(keys or schema.names, schema, strict=True)
        self._raw = pa.schema([(key, _raw_type(field.type)) for key, field in named])
        self._has_map = decimals.has(pt.is_map, schema)
        self.bytes_most = bytes_most or RECORD_BYTES_MOST

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """By Arrow's reader, ten times as fast, or one by one: of many, only those around what Arrow refuses."""
        batch = self.by_arrow(values) if len(values) > HANDFUL else None
        if batch is None and len(values) > FEW:
            raise InputError(f"{len(values):,} records are too many to be read one by one")
        return (self.one_by_one(values) if batch is None else batch), None

    def by_arrow(self, values: Sequence[bytes]) -> pa.RecordBatch | None:
        """The rows by Arrow's reader, or None where that may know less than ours ("NaN", maps, text for numbers)."""
        block = None if self._has_map else _lines(values)
        if block is None:
            return None
        if b"null" in block and (NULL.search(block) or NULL_FIRST.match(block)):
            return None  # Arrow's reader takes a bare null for a row, and crashes if it is the first
        if not decimals.is_safe_json(block, self._raw):
            return None
        try:
            table = pajson.read_json(
                io.BytesIO(block),
                read_options=pajson.ReadOptions(use_threads=len(block) > THREADS_BYTES, block_size=len(block) + 1),
                parse_options=pajson.ParseOptions(explicit_schema=self._raw, unexpected_field_behavior="ignore"),
            )
            table = table.select(self._raw.names).combine_chunks()
            table.validate(full=True)  # the reader takes bytes that are not UTF-8
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
            return None
        if table.num_rows != len(values) or table.schema != self._raw:
            return None
        if self._fold and any(table[name].null_count for name in self._raw.names if name != KIND):
            return None  # perhaps it stands there under another name
        return fit(table.to_batches()[0], self._schema, RECORD, text=True)

    def one_by_one(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """The rows by Python's reader: the truth that Arrow's is held to."""
        rows: Sequence[Any] = [parse_object(value, IT) for value in values]
        if not self._fold:  # a record means the same whatever comes with it: Arrow's reader takes exact names only
            rows = [[row.get(key) for key in self._raw.names] for row in rows]
        return batch_of(rows, self._schema, RECORD)


def parse_json(line: bytes | str, where: str, **numbers: Any) -> Any:
    """What a line holds; an InputError if it is no JSON. `numbers`: how to read them, as for `json.loads`."""
    try:
        return json.loads(line, **numbers)
    except (ValueError, RecursionError) as error:
        known = isinstance(error, json.JSONDecodeError)  # which counts lines and columns of this line alone
        why = f"{error.msg} at character {error.pos + 1}" if known else error  # type: ignore[union-attr]
        raise InputError(
            f"{where} is not JSON ({why}): {shown(line)!r}", hint="write one JSON object per line, in UTF-8"
        ) from None


def parse_object(line: bytes, where: str) -> dict[str, Any]:
    """One object, its numbers exact; an InputError if it is none."""
    value = parse_json(line, where, parse_float=decimals.number, parse_int=_integer)
    if not isinstance(value, dict):
        raise InputError(
            f"{where} is not a JSON object: {shown(line)!r}",
            hint="write one JSON object per line, without brackets around or commas between them",
        )
    return value


def shown(record: bytes | str) -> str:
    """The beginning of a record, for an error."""
    return (record[:SHOWN].decode(errors="replace") if isinstance(record, bytes) else record[:SHOWN]).rstrip("\r\n")


def _integer(text: str) -> int | Decimal:
    return Decimal(text) if text == "-0" else int(text)


def _is_object(value: bytes) -> bool:
    try:
        parse_object(value, IT)
    except InputError:
        return False
    return True


def _raw_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's JSON reader reads the type as; our own parsing does the rest."""
    if pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_binary(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(_raw_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(field.name, _raw_type(field.type)) for field in kind])
    return kind


# -- CSV


@dataclass(frozen=True)
class CsvOptions:
    """How CSV is written. Without a header its columns are the declared ones, in their order."""

    delimiter: str = ","
    header: bool = True
    quote: str = '"'
    nulls: tuple[str, ...] = ("",)  # unquoted fields that mean null


class CsvRecords:
    """A line a record: an unquoted empty field is null, a quoted one is an empty string.

    Without more it holds exactly the declared columns, in their order, and no line end. Records that are cut from a
    file hold their line ends; `chosen` says which of how many `columns` are the declared ones.
    """

    def __init__(
        self,
        schema: pa.Schema,
        options: CsvOptions | None = None,
        columns: int = 0,
        chosen: Sequence[int] = (),
        bytes_most: float = 0,
    ) -> None:
        self._schema, self._options = schema, options or CsvOptions()
        self._names = [f"{index}" for index in range(columns or len(schema))]
        self._wanted = [self._names[index] for index in chosen] or self._names
        self._ended = columns > 0  # they hold their line ends
        self.bytes_most = bytes_most or RECORD_BYTES_MOST

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """By Arrow's reader, one row each."""
        block = b"".join(values) if self._ended else _lines(values)
        if not self._ended and len(values) > 1 and (block is None or b"\r" in block):
            raise InputError("a record that is not one line")  # found when they are looked at one by one
        if block is None or not block.endswith((b"\n", b"\r")):
            block = (block or values[0]) + b"\n"
        try:
            table = pacsv.read_csv(pa.py_buffer(block), **self.arrow_options(len(block) + 1))
        except pa.ArrowInvalid as error:
            raise self._no_row(block, error) from None
        if table.num_rows != len(values):
            raise InputError(f"{IT} has {table.num_rows} lines, not one")
        return self.rows([column.combine_chunks() for column in table.columns]), None

    def arrow_options(self, block_bytes: int, skip_lines: int = 0) -> dict[str, Any]:
        """How Arrow's reader is to read such records: the wanted columns as bytes."""
        many, options = len(self._names) > 1, self._options
        return {
            "read_options": pacsv.ReadOptions(
                column_names=self._names, block_size=block_bytes, skip_rows_after_names=skip_lines
            ),
            "parse_options": pacsv.ParseOptions(
                delimiter=options.delimiter,
                quote_char=options.quote,
                newlines_in_values=True,
                ignore_empty_lines=many,
            ),
            "convert_options": pacsv.ConvertOptions(
                column_types=dict.fromkeys(self._names, pa.binary()),
                include_columns=self._wanted,
                null_values=list(options.nulls),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        }

    def rows(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """What Arrow's reader has read, as the declared types."""
        fields = list(self._schema)[: len(columns)]  # a file need not have kinds, which come last
        texts = [_text(column, field) for column, field in zip(columns, fields, strict=True)]
        batch = pa.RecordBatch.from_arrays(texts, names=[field.name for field in fields])
        return fit(batch, self._schema, RECORD, text=True)

    def _no_row(self, record: bytes, error: pa.ArrowInvalid) -> InputError:
        text = record.decode(errors="replace")
        row = next(csv.reader(io.StringIO(text, newline=""), **dialect(self._options)), [])
        if len(row) == len(self._names):
            return InputError(f"{IT} is not CSV ({brief_error(error)})", hint="check the delimiter and the quotes")
        return wrong_fields(IT, len(row), len(self._names), text)


def dialect(options: CsvOptions) -> dict[str, Any]:
    """The options for Python's reader."""
    return {"delimiter": options.delimiter, "quotechar": options.quote}


def wrong_fields(where: str, count: int, columns: int, text: str) -> InputError:
    return InputError(
        f"{where} has {count} fields, not {columns}: {shown(text)!r}",
        hint="quote fields that hold the delimiter or a line break",
    )


def _text(column: pa.Array, field: pa.Field) -> pa.Array:
    """The bytes of a column as text, with null for nothing where the declared type is not text."""
    text = fit_column(column, pa.field(field.name, pa.string()), RECORD)
    if pt.is_string(field.type) or pt.is_binary(field.type):
        return text
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)  # programs that quote everything


# -- Arrow


class ArrowRecords:
    """An Arrow IPC stream a record, of any number of rows; columns go by name."""

    bytes_most: float = RECORD_BYTES_MOST

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        batches = [self._one(value) for value in values]
        counts = np.array([batch.num_rows for batch in batches], np.int64)
        return joined(batches, self._schema), counts

    def _one(self, value: bytes) -> pa.RecordBatch:
        try:
            table = pa.ipc.open_stream(value).read_all()
            table.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise InputError(f"{IT} is no Arrow stream ({brief_error(error)})") from None
        try:
            chosen = choose(self._schema, table.schema, RECORD.source)
        except UnicodeDecodeError:
            raise InputError(f"{IT} has columns whose names are not UTF-8") from None
        whole = table.select(chosen).combine_chunks().to_batches()
        return joined([fit(batch, self._schema, RECORD) for batch in whole], self._schema)


FORMATS: dict[str, Callable[[pa.Schema], Records]] = {"json": JsonRecords, "csv": CsvRecords, "arrow": ArrowRecords}
