"""`borealis cat`: look into the files that Borealis reads and writes, without loading more than is shown."""

from __future__ import annotations

import itertools
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from json import dumps
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from typer import Argument, Option

from borealis.cli.cells import TextRows, cell, cells, print_json, strings, to_stdout
from borealis.cli.ending import code_and_line
from borealis.cli.options import JsonRows
from borealis.cli.screen import console, plural, size, table
from borealis.connectors.addresses import STDIN, file_options
from borealis.connectors.files.formats import columnar, csv
from borealis.connectors.files.formats.columnar import ARROW_FILE_MAGIC
from borealis.connectors.files.source import DAMAGE, reader_options, reading, resolve
from borealis.connectors.files.suffixes import KNOWN, TEXT, check_format, format_of, open_bytes, open_text
from borealis.connectors.files.text import JsonLines
from borealis.connectors.records import CsvOptions, parse_json, wrong_fields
from borealis.connectors.source import cut
from borealis.errors import BorealisError, InputError
from borealis.values.fit import RowOrigin, sql_name

DAMAGED = 1  # the exit code when a file could be read in part only
ROWS_AT_ONCE = 1_000  # read, and shown in columns of the same widths
TAIL_ROWS = 10  # unless --limit says otherwise
STREAM_MAGIC = b"\xff\xff\xff\xff"  # how an Arrow stream, such as a journal of ours, begins
PARQUET_MAGIC = b"PAR1"
UNREADABLE = (InputError, OSError, *DAMAGE)

T = TypeVar("T")


def cat(
    path: Annotated[
        list[str], Argument(metavar="PATH...", help="Files, or folders of them: Parquet, CSV, JSON lines, Arrow.")
    ],
    limit: Annotated[int | None, Option(min=1, help="So many rows; all if left out.")] = None,
    tail: Annotated[bool, Option("--tail", help="The last rows: 10, or as --limit says.")] = False,
    json: JsonRows = False,
    schema: Annotated[bool, Option("--schema", help="Only columns and counts.")] = False,
) -> int:
    files = [one for text in path for one in _files(text)]
    if schema:
        return _schemas(files, json)
    code = 0
    out = console()
    show = TextRows(out.width if out.is_terminal else None)
    left = None if tail else limit
    for some in _tail(files, limit or TAIL_ROWS) if tail else _all(files):
        if isinstance(some, InputError):  # of a damaged file, behind the rows that could be read
            print(code_and_line(some)[1], file=sys.stderr)
            code = DAMAGED
            continue
        shown = some if left is None else some.slice(0, left)
        if json:
            shown.print_json()
        else:
            show(*shown.cells())
        left = None if left is None else left - len(shown)
        if left == 0:
            break
    return code


# -- what to look at


class File(NamedTuple):
    path: Path
    format: str
    options: CsvOptions | None


def _files(text: str) -> list[File]:
    """A file and its format, or those of a directory in the order of their names; options stand behind a `?`."""
    name, options = file_options(text)
    options.pop("sort", None)
    path, named = Path("/dev/stdin" if name == STDIN else name), options.pop("format", None)
    check_format(named)
    files = resolve(path, named)
    if name == STDIN:
        named = named or "jsonl"
    known = [(one, named or format_of(one) or _by_content(one)) for one in files]
    return [File(one, format_, reader_options(format_, options)) for one, format_ in known]


def _by_content(path: Path) -> str:
    """The format of a file whose name does not tell, by its first bytes."""
    with open(path, "rb") as file:
        start = file.read(len(ARROW_FILE_MAGIC))
    if start.startswith(PARQUET_MAGIC):
        return "parquet"
    if start.startswith((ARROW_FILE_MAGIC, STREAM_MAGIC)):
        return "arrow"
    try:
        with open_bytes(path) as unpacked:
            if unpacked.read(1) == b"{":
                return "jsonl"
    except UNREADABLE:
        pass
    raise InputError(
        f"cannot tell the format of {path}",
        hint=f"by suffix known: {KNOWN}; else name it: '{path}?format=csv&delimiter=%20&header=false'",
    )


# -- rows of any format


class FileRows:
    """Some rows of a file: an Arrow batch, or the objects of JSON lines, which have no columns of their own."""

    def __init__(self, data: pa.RecordBatch | list[dict[str, Any]]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def slice(self, start: int, count: int) -> FileRows:
        return FileRows(self.data[start : start + count])

    def cells(self) -> tuple[list[str], list[pa.Array]]:
        """The names of the columns, and their values as people read them."""
        if isinstance(self.data, list):
            names = list(dict.fromkeys(name for row in self.data for name in row))
            return names, [strings([cell(row.get(name)) for row in self.data]) for name in names]
        return self.data.schema.names, [cells(column) for column in self.data.columns]

    def print_json(self) -> None:
        if isinstance(self.data, list):
            to_stdout("".join(map(_json_line, self.data)).encode("utf-8", "replace"))
        else:
            JsonLines().check(self.data.schema)
            print_json(self.data)


def _all(files: Sequence[File], last: int | None = None) -> Iterator[FileRows | InputError]:
    """All rows (those before the last so many may miss), and behind those of a damaged file what is wrong with it."""
    for file in files:
        any_rows, none, wrong = False, None, None
        try:
            with reading(file.path, file.format):
                for rows in _rows(file, last):
                    any_rows = any_rows or len(rows) > 0
                    if len(rows):
                        yield rows
                    else:
                        none = rows
        except InputError as error:
            error.hint = "rows before it are shown" if any_rows else "no row of it can be read"
            wrong = error
        yield from [none] if none is not None and not any_rows else []  # for the names of its columns
        yield from [wrong] if wrong is not None else []


def _rows(file: File, last: int | None) -> Iterator[FileRows]:
    """The rows as they stand there, some at a time; the first may be none, to tell the columns."""
    path, format_ = file.path, file.format
    if format_ == "jsonl":
        yield from map(FileRows, _chunks(_objects(path)))
    elif format_ == "csv":
        yield from _csv(path, file.options or CsvOptions())
    else:
        skip = pq.read_metadata(path).num_rows - last if format_ == "parquet" and last is not None else 0
        for batch in columnar.batches(path, format_, None, skip, ROWS_AT_ONCE):
            if isinstance(batch, pa.RecordBatch):
                yield from map(FileRows, cut(batch, ROWS_AT_ONCE) if batch.num_rows else [batch])


def _chunks(items: Iterator[T]) -> Iterator[list[T]]:
    """Some at a time; those before damage come before the damage."""
    some: list[T] = []
    try:
        for item in items:
            some.append(item)
            if len(some) == ROWS_AT_ONCE:
                yield some
                some = []
    except UNREADABLE:
        if some:
            yield some
        raise
    if some:
        yield some


def _csv(path: Path, options: CsvOptions) -> Iterator[FileRows]:
    """CSV says nothing of types: all of it is text, as it stands there. Without a header, columns are c1, c2, ..."""
    records = _fields(path, options)
    names = next(records, [])
    if not options.header:
        records = itertools.chain([names] if names else [], records)
        names = [f"c{n + 1}" for n in range(len(names))]
    schema = pa.schema([(name, pa.string()) for name in names])
    yield FileRows(pa.RecordBatch.from_pylist([], schema))
    for some in _chunks(records):
        columns = [pa.array(column, pa.string()) for column in zip(*some, strict=True)]
        yield FileRows(pa.RecordBatch.from_arrays(columns, schema=schema))


def _fields(path: Path, options: CsvOptions) -> Iterator[list[str]]:
    """The fields of each row, as many as the first has."""
    with open_text(path) as file:
        place, columns, number = RowOrigin(str(path), -options.header), 0, 0
        for row, text in csv.rows(file, options):
            if row is None:
                raise csv.too_long(place.row(number), text)
            columns = columns or len(row)
            if row and len(row) != columns:
                raise wrong_fields(place.row(number), len(row), columns, text)
            if row:
                yield row
                number += 1


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    with open_text(path) as file:
        number = 0
        for line in file:
            if not line.isspace():
                row = parse_json(line.rstrip("\r\n"), RowOrigin(str(path)).row(number))
                yield row if isinstance(row, dict) else {"value": row}
                number += 1


def _tail(files: Sequence[File], count: int) -> list[FileRows | InputError]:
    """The last rows of all files, and what was wrong on the way; files before the ones that hold them stay closed."""
    found: list[FileRows | InputError] = []
    for file in reversed(files):
        rows: deque[FileRows] = deque()
        wrong: list[InputError] = []
        held = 0
        for some in _all([file], count):
            if isinstance(some, InputError):
                wrong.append(some)
                continue
            rows.append(some)
            held += len(some)
            while len(rows) > 1 and held - len(rows[0]) >= count:
                held -= len(rows.popleft())
        if held > count:
            rows[0] = rows[0].slice(held - count, len(rows[0]))
        found = [*rows, *wrong, *found]
        count -= held
        if count <= 0:
            break
    return found


def _schemas(files: Sequence[File], json: bool) -> int:
    """Columns and counts of each file."""
    facts = [_fact(file) for file in files]
    for fact in facts:
        if json:
            to_stdout(_json_line(fact).encode("utf-8", "replace"))
        elif "error" in fact:
            print(f"error: {fact['error']}", file=sys.stderr)
        else:
            out = console()
            head = f"{fact['file']}: {fact['format']}, {size(fact['bytes'])}"
            out.print(f"{head}, {plural(fact['rows'], 'row')}", markup=False, soft_wrap=True)
            columns = table("column", "type")
            for name, kind in fact["columns"].items():
                columns.add_row(name, kind or ("-" if fact["format"] in TEXT else ""))
            out.print(columns)
    return DAMAGED if any("error" in fact for fact in facts) else 0


def _fact(file: File) -> dict[str, Any]:
    fact: dict[str, Any] = {"file": str(file.path), "format": file.format, "bytes": file.path.stat().st_size}
    try:
        with reading(file.path, file.format):
            return fact | _counted(file)
    except BorealisError as error:
        return fact | {"error": error.message}


def _json_line(value: dict[str, Any]) -> str:
    return dumps(value, ensure_ascii=False) + "\n"


def _counted(file: File) -> dict[str, Any]:
    if file.format == "parquet":
        with pq.ParquetFile(file.path) as whole:
            return {"rows": whole.metadata.num_rows, "columns": _typed(whole.schema_arrow)}
    count = 0
    columns: dict[str, str] = {}
    for rows in _rows(file, None):
        count += len(rows)
        if isinstance(rows.data, list):
            columns |= dict.fromkeys((name for row in rows.data for name in row), "")
        else:
            columns = _typed(rows.data.schema)
    return {"rows": count, "columns": columns}


def _typed(schema: pa.Schema) -> dict[str, str]:
    return {field.name: sql_name(field.type) for field in schema}
