"""JSON lines: one object a line; a key that is absent from a line is null there."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.types as pt

from borealis.connectors.files.suffixes import is_gzipped
from borealis.errors import InputError
from borealis.values import decimals
from borealis.values.fit import Place, match_columns
from borealis.values.python import absent, batch_of

BLOCK_BYTES = 4 * 2**20
LINES_SEARCHED = 1000  # for the names of the columns
BOM = b"\xef\xbb\xbf"
NULL = re.compile(rb"[\n}][ \t\r]*null")


def read(path: Path, schema: pa.Schema, skip: int, most_rows: int, notes: list[str]) -> Iterator[int | pa.RecordBatch]:
    """Blocks of whole lines; those before the position are counted, not parsed. `notes`: what a user should know."""
    row = 0
    raw: pa.Schema | None = None
    with open_file(path) as file:
        for block in blocks(file):
            lines = [line for line in block.split(b"\n") if line and not line.isspace()]
            if not lines:
                continue
            if raw is None:
                raw = _raw_schema(lines, schema, path, notes)
            if row + len(lines) <= skip:
                yield len(lines)
            else:
                batch = read_block(block, raw, len(lines))
                yield batch if batch is not None else _slow(lines, raw, schema, Place(str(path), row))
            row += len(lines)


def open_file(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if its name says gzip."""
    return gzip.open(path, "rb") if is_gzipped(path) else open(path, "rb")  # type: ignore[return-value]


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The bytes in blocks of whole lines."""
    rest = file.read(len(BOM))
    rest = b"" if rest == BOM else rest
    while data := file.read(BLOCK_BYTES):
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
    if rest:
        yield rest


def _raw_schema(lines: list[bytes], schema: pa.Schema, path: Path, notes: list[str]) -> pa.Schema:
    """The declared columns under the file's names for them, in the types to read them as."""
    seen: dict[str, None] = {}
    for index, line in enumerate(lines[:LINES_SEARCHED]):
        seen |= dict.fromkeys(parse_line(line, Place(str(path)), index))
    names = list(seen)
    names += absent(schema.names, names, str(path), notes)
    chosen = match_columns(schema.names, names, str(path))
    return pa.schema([(names[index], raw_type(field.type)) for index, field in zip(chosen, schema, strict=True)])


def raw_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's JSON reader reads the type as; our own parsing does the rest."""
    if pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_binary(kind):
        return pa.string()
    if pt.is_list(kind):
        return pa.list_(raw_type(kind.value_type))
    if pt.is_struct(kind):
        return pa.struct([(field.name, raw_type(field.type)) for field in kind])
    return kind


def _has_map(kind: pa.DataType) -> bool:
    if pt.is_map(kind):
        return True
    return bool(pt.is_nested(kind)) and any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def read_block(block: bytes, raw: pa.Schema, rows: int) -> pa.RecordBatch | None:
    """The block by Arrow's reader, or None where that reader knows less than ours ("NaN", maps, text for numbers)."""
    if any(_has_map(field.type) for field in raw):
        return None
    if b"null" in block and (NULL.search(block) or block.lstrip().startswith(b"null")):
        return None  # Arrow's reader takes a bare null for a row, and crashes if it is the first
    if not decimals.is_safe_json(block, raw):
        return None
    try:
        table = pajson.read_json(
            io.BytesIO(block),
            read_options=pajson.ReadOptions(block_size=len(block) + 1),
            parse_options=pajson.ParseOptions(explicit_schema=raw, unexpected_field_behavior="ignore"),
        )
        table = table.select(raw.names).combine_chunks()
        table.validate(full=True)  # the reader takes bytes that are not UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != rows or table.schema != raw:
        return None
    return table.to_batches()[0]


def _slow(lines: list[bytes], raw: pa.Schema, schema: pa.Schema, place: Place) -> pa.RecordBatch:
    rows = [parse_line(line, place, index) for index, line in enumerate(lines)]
    picked = [{name: row.get(key) for name, key in zip(schema.names, raw.names, strict=True)} for row in rows]
    return batch_of(picked, schema, place)


def _integer(text: str) -> int | Decimal:
    return Decimal(text) if text == "-0" else int(text)


def parse_line(line: bytes, place: Place, index: int) -> dict[str, Any]:
    """One object, its numbers exact; an InputError if it is none."""
    try:
        value = json.loads(line, parse_float=decimals.number, parse_int=_integer)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{place.row(index)} is not JSON ({error}): {line[:60].decode(errors='replace')!r}",
            hint="write one JSON object per line, in UTF-8",
        ) from None
    if not isinstance(value, dict):
        raise InputError(
            f"{place.row(index)} is not a JSON object: {line[:60].decode(errors='replace')!r}",
            hint="write one JSON object per line, without brackets around or commas between them",
        )
    return value
