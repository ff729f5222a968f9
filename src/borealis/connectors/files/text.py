"""Rows as CSV or JSON lines: rendered by whole columns, and read back by our sources exactly.

CSV: nulls are empty, empty strings are quoted, quotes only where needed. JSON lines: nulls are written, decimals are
numbers with all their digits, NaN and the infinities are the strings "NaN", "Infinity", "-Infinity", maps are objects.
Both: times are ISO 8601 with microseconds, in UTC with a Z, or without a zone if they have none; bytes are base64.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from borealis.errors import OutputError
from borealis.values.fit import is_binary, is_string

ROWS_AT_ONCE = 65_536  # keeps a rendered column well below the 2 GiB that Arrow strings can hold
FIRST_TIME, LAST_TIME = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, in microseconds
CSV_QUOTED = r'^$|[",\r\n]|^\s|\s$'
JSON_ESCAPED = r'["\\\x00-\x1f]'
BARE = (pt.is_integer, pt.is_decimal, pt.is_boolean, pt.is_null)  # types that JSON writes without quotes
FLOAT_NAMES = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"', "-0": "-0.0"}


def render(rows: pa.Table, rendering: TextFormat) -> list[pa.Buffer]:
    return [
        _bytes_of(rendering.lines(batch))
        for batch in rows.combine_chunks().to_batches(max_chunksize=ROWS_AT_ONCE)
        if batch.num_rows
    ]


def _bytes_of(lines: pa.Array) -> pa.Buffer:
    """The strings' own memory, end to end."""
    _, offsets, data = lines.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(lines) + 1, [None, offsets], offset=lines.offset)
    start, stop = ends[0].as_py(), ends[len(lines)].as_py()
    return data.slice(start, stop - start)


class CsvLines:
    """RFC 4180 with a header line and bare line feeds."""

    def check(self, schema: pa.Schema) -> None:
        """Nested columns have no place in CSV."""
        for field in schema:
            if pt.is_nested(field.type):
                raise OutputError(
                    f"column '{field.name}' is {field.type}, which a CSV file cannot hold",
                    hint="write JSON lines, Parquet or Arrow, or take it apart in a map",
                )
        if not schema.names:
            raise OutputError("a CSV file needs at least one column", hint="add a column in a map")

    def head(self, schema: pa.Schema) -> bytes:
        """What a file begins with."""
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(schema.names)
        return line.getvalue().encode()

    def lines(self, rows: pa.RecordBatch) -> pa.Array:
        """One string a row, its line end included."""
        pieces: list[Any] = []
        for index, column in enumerate(rows.columns):
            pieces += ([","] if index else []) + [pc.fill_null(_csv_column(column), "")]
        return pc.binary_join_element_wise(*pieces, "\n", "")


def _csv_column(column: pa.Array) -> pa.Array:
    text = plain(column)
    if not is_string(column.type) and not is_binary(column.type):
        return text
    quoted = pc.match_substring_regex(text, CSV_QUOTED)
    if not pc.any(quoted).as_py():
        return text
    doubled = pc.replace_substring(text, '"', '""')
    return pc.if_else(quoted, pc.binary_join_element_wise('"', doubled, '"', ""), text)


class JsonLines:
    """One object a line, keys in column order, nothing escaped that need not be."""

    def check(self, schema: pa.Schema) -> None:
        """Keys of objects are text, so a map's keys must be."""
        for field in schema:
            _check_keys(field.type, field.name)

    def head(self, schema: pa.Schema) -> bytes:
        return b""

    def lines(self, rows: pa.RecordBatch) -> pa.Array:
        """One string a row, its line end included."""
        return _objects(rows.schema.names, rows.columns, rows.num_rows, "}\n")


TextFormat = CsvLines | JsonLines


def _objects(names: Sequence[str], columns: Sequence[pa.Array], count: int, end: str) -> pa.Array:
    pieces: list[Any] = ["{"]
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        pieces += [("," if index else "") + json.dumps(name, ensure_ascii=False) + ":", _json_column(column)]
    if len(pieces) == 1:
        return pa.array(["{" + end] * count, pa.string())
    return pc.binary_join_element_wise(*pieces, end, "")


def _check_keys(kind: pa.DataType, name: str) -> None:
    if pt.is_map(kind) and pt.is_nested(kind.key_type):
        raise OutputError(
            f"column '{name}' is a map with {kind.key_type} keys, which JSON cannot hold",
            hint="write Parquet or Arrow, or make the keys plain in a map",
        )
    for index in range(kind.num_fields):
        _check_keys(kind.field(index).type, name)


def _json_column(column: pa.Array) -> pa.Array:
    """Each value as JSON, null included."""
    kind = column.type
    if pt.is_nested(kind):
        shown = _json_nested(column)
        return pc.if_else(column.is_null(), "null", shown) if column.null_count else shown
    text = plain(column)
    if is_string(kind):
        quoted = pc.binary_join_element_wise('"', text, '"', "")
        hard = pc.match_substring_regex(text, JSON_ESCAPED)
        text = _rewritten(quoted, text, hard, lambda value: json.dumps(value, ensure_ascii=False))
    elif pt.is_floating(kind):
        for plain_name, json_name in FLOAT_NAMES.items():
            text = pc.if_else(pc.equal(text, plain_name), json_name, text)
    elif not any(is_a(kind) for is_a in BARE):
        text = pc.binary_join_element_wise('"', text, '"', "")
    return pc.fill_null(text, "null")


def _json_nested(column: pa.Array) -> pa.Array:
    """Structs and maps as objects, lists as arrays; something, where there is null."""
    kind = column.type
    if pt.is_struct(kind):
        return _objects([field.name for field in kind], column.flatten(), len(column), "}")
    if not pt.is_map(kind) and not pt.is_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    column = column.take(pa.array(range(len(column)), pa.int64()))  # compact: a slice's children reach beyond the slice
    if pt.is_map(kind):
        keys, ends = _json_column(column.keys), "{}"
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, pc.binary_join_element_wise('"', keys, '"', ""))
        items = pc.binary_join_element_wise(keys, _json_column(column.items), ":")
    else:
        items, ends = _json_column(column.values), "[]"
    joined = pc.binary_join(pa.ListArray.from_arrays(column.offsets, items), ",")
    return pc.binary_join_element_wise(ends[0], joined, ends[1], "")


def plain(column: pa.Array) -> pa.Array:
    """A column of plain values as strings that read back as the same values."""
    kind = column.type
    if pt.is_dictionary(kind):
        return plain(column.dictionary_decode())
    if pt.is_timestamp(kind):
        return _plain_times(column.cast(pa.timestamp("us", "UTC")), "" if kind.tz is None else "Z")
    if pt.is_decimal(kind):
        text = column.cast(pa.string())  # small ones as 1E-10; we write every digit
        return _rewritten(text, text, pc.match_substring(text, "E"), lambda value: format(Decimal(value), "f"))
    if is_binary(kind):
        texts = [None if raw is None else base64.b64encode(raw).decode() for raw in column.to_pylist()]
        return pa.array(texts, pa.string())
    return column.cast(pa.string())


def _plain_times(times: pa.Array, zone: str) -> pa.Array:
    """2024-05-01T12:00:00.000000Z. Not by strftime or with the zone: those are twenty times slower."""
    ends = pc.min_max(times.cast(pa.int64())).as_py()
    if ends["min"] is not None and (ends["min"] < FIRST_TIME or ends["max"] > LAST_TIME):
        raise OutputError(
            "a time before the year 1 or after 9999 cannot be written as text", hint="write Parquet or Arrow"
        )
    text = times.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise(pc.binary_replace_slice(text, 10, 11, "T"), zone, "")


def _rewritten(column: pa.Array, text: pa.Array, hard: pa.Array, write: Callable[[str], str]) -> pa.Array:
    """The column, with those of the texts that are hard for Arrow written by Python."""
    if not pc.any(hard).as_py():
        return column
    hard = pc.fill_null(hard, False)
    return pc.replace_with_mask(column, hard, pa.array(map(write, text.filter(hard).to_pylist()), pa.string()))
