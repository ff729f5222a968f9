"""`borealis cat`: look into the files that Borealis reads and writes, without loading more than is shown."""

from __future__ import annotations

import itertools
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.table import Table

from borealis.cli.cells import cell, cells, strings, text, to_stdout
from borealis.cli.ending import told
from borealis.cli.watching import console
from borealis.cli.words import plural, size
from borealis.connectors.addresses import STDIN, file_options
from borealis.connectors.files.formats import columnar, csv
from borealis.connectors.files.formats.columnar import ARROW_FILE_MAGIC
from borealis.connectors.files.source import DAMAGE, reader_options, reading, resolve
from borealis.connectors.files.suffixes import KNOWN, TEXT, check_format, format_of, open_bytes, open_text
from borealis.connectors.files.text import JsonLines, render
from borealis.connectors.records import CsvOptions, parse_json, wrong_fields
from borealis.connectors.source import cut
from borealis.errors import BorealisError, InputError
from borealis.values.fit import RowOrigin, sql_name

DAMAGED = 1  # the exit code when a file could be read in part only
ROWS_AT_ONCE = 1_000  # read, and shown in columns of the same widths
TAIL_ROWS = 10  # unless --limit says otherwise
CELL_LEAST = 4  # characters of a column, however narrow the terminal
GAP = "  "
STREAM_MAGIC = b"\xff\xff\xff\xff"  # how an Arrow stream, such as a journal of ours, begins
PARQUET_MAGIC = b"PAR1"
UNREADABLE = (InputError, OSError, *DAMAGE)

T = TypeVar("T")


@dataclass(frozen=True)
class CatOptions:
    """What to show, as the command line has it."""

    limit: int | None = None
    tail: bool = False
    json: bool = False
    schema: bool = False


def cat_command(paths: Sequence[str], options: CatOptions) -> int:
    """The files one after the other; a damaged one is shown as far as it goes, and told behind that."""
    files = [one for path in paths for one in _files(path)]
    if options.schema:
        return _schemas(files, options.json)
    code = 0
    show: _Json | _Text = _Json() if options.json else _Text()
    rows: Iterable[Rows | InputError] = _tail(files, options.limit or TAIL_ROWS) if options.tail else _all(files)
    left = None if options.tail else options.limit
    for some in rows:
        if isinstance(some, InputError):
            print(told(some)[1], file=sys.stderr)
            code = DAMAGED
            continue
        shown = some if left is None else some.slice(0, left)
        show(shown)
        left = None if left is None else left - len(shown)
        if left == 0:
            break
    return code


# -- what to look at


class File(NamedTuple):
    """A file, and how it is read."""

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


class Rows:
    """Some rows of a file: an Arrow batch, or the objects of JSON lines, which have no columns of their own."""

    def __init__(self, data: pa.RecordBatch | list[dict[str, Any]]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data) if isinstance(self.data, list) else int(self.data.num_rows)

    def slice(self, start: int, count: int) -> Rows:
        if isinstance(self.data, list):
            return Rows(self.data[start : start + count])
        return Rows(self.data.slice(start, count))

    def cells(self) -> tuple[list[str], list[pa.Array]]:
        """The names of the columns, and their values as people read them."""
        if isinstance(self.data, list):
            names = list(dict.fromkeys(name for row in self.data for name in row))
            return names, [strings([cell(row.get(name)) for row in self.data]) for name in names]
        return self.data.schema.names, [cells(column) for column in self.data.columns]

    def json(self) -> bytes:
        if isinstance(self.data, list):
            return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.data).encode("utf-8", "replace")
        rendering = JsonLines()
        rendering.check(self.data.schema)
        return b"".join(bytes(piece) for piece in render(pa.table(self.data), rendering))


def _all(files: Sequence[File], last: int | None = None) -> Iterator[Rows | InputError]:
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


def _rows(file: File, last: int | None) -> Iterator[Rows]:
    """The rows as they stand there, some at a time; the first may be none, to tell the columns."""
    path, format_ = file.path, file.format
    if format_ == "jsonl":
        yield from map(Rows, _chunks(_objects(path)))
    elif format_ == "csv":
        yield from _csv(path, file.options or CsvOptions())
    else:
        skip = pq.read_metadata(path).num_rows - last if format_ == "parquet" and last is not None else 0
        for batch in columnar.batches(path, format_, None, skip, ROWS_AT_ONCE):
            if isinstance(batch, pa.RecordBatch):
                yield from map(Rows, cut(batch, ROWS_AT_ONCE) if batch.num_rows else [batch])


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


def _csv(path: Path, options: CsvOptions) -> Iterator[Rows]:
    """CSV says nothing of types: all of it is text, as it stands there. Without a header, columns are c1, c2, ..."""
    records = _fields(path, options)
    names = next(records, [])
    if not options.header:
        records = itertools.chain([names] if names else [], records)
        names = [f"c{n + 1}" for n in range(len(names))]
    schema = pa.schema([(name, pa.string()) for name in names])
    yield Rows(pa.RecordBatch.from_pylist([], schema))
    for some in _chunks(records):
        columns = [pa.array(column, pa.string()) for column in zip(*some, strict=True)]
        yield Rows(pa.RecordBatch.from_arrays(columns, schema=schema))


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


def _tail(files: Sequence[File], count: int) -> list[Rows | InputError]:
    """The last rows of all files; those before the ones that hold them are not opened."""
    found: list[Rows | InputError] = []
    left = count
    for file in reversed(files):
        mine = _last(_all([file], left), left)
        found = mine + found
        left -= sum(len(some) for some in mine if isinstance(some, Rows))
        if left <= 0:
            break
    return found


def _last(rows: Iterator[Rows | InputError], count: int) -> list[Rows | InputError]:
    """The last rows, in pieces, and all that was wrong on the way, behind them."""
    kept: deque[Rows] = deque()
    wrong: list[Rows | InputError] = []
    held = 0
    for some in rows:
        if isinstance(some, InputError):
            wrong.append(some)
            continue
        kept.append(some)
        held += len(some)
        while len(kept) > 1 and held - len(kept[0]) >= count:
            held -= len(kept.popleft())
    if kept and held > count:
        first = kept.popleft()
        kept.appendleft(first.slice(held - count, len(first)))
    return [*kept, *wrong]


# -- showing them


class _Json:
    """JSON lines."""

    def __call__(self, rows: Rows) -> None:
        to_stdout(rows.json())


class _Text:
    """Columns as wide as their values, all of them within the terminal's width; names again when columns change."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._widths: list[int] = []
        out = console()
        self._width = out.width if out.is_terminal else None

    def __call__(self, rows: Rows) -> None:
        names, columns = rows.cells()
        widths = [max(cell_len(name), _widest(column)) for name, column in zip(names, columns, strict=True)]
        head = names
        if names == self._names:
            head, widths = [], [max(pair) for pair in zip(widths, self._widths, strict=True)]
        self._names, self._widths = names, widths
        if self._width is not None:
            widths = _fitted(widths, self._width)
        if head:
            _print(strings([GAP.join(_cut(name, width) for name, width in zip(head, widths, strict=True))]))
        if columns:
            padded = [_padded(column, width) for column, width in zip(columns, widths, strict=True)]
            _print(pc.binary_join_element_wise(*padded, text(GAP)))


def _print(lines: pa.Array) -> None:
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


def _schemas(files: Sequence[File], as_json: bool) -> int:
    """Columns and counts of each file."""
    code, facts = 0, []
    for file in files:
        path, format_ = file.path, file.format
        fact: dict[str, Any] = {"file": str(path), "format": format_, "bytes": path.stat().st_size}
        try:
            with reading(path, format_):
                fact |= _counted(file)
        except BorealisError as error:
            fact["error"] = error.message
            code = DAMAGED
        facts.append(fact)
    for fact in facts:
        if as_json:
            to_stdout(json.dumps(fact, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        else:
            _tell(fact)
    return code


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


def _tell(fact: dict[str, Any]) -> None:
    out = console()
    head = f"{fact['file']}: {fact['format']}, {size(fact['bytes'])}"
    if "error" in fact:
        print(f"error: {fact['error']}", file=sys.stderr)
        return
    out.print(f"{head}, {plural(fact['rows'], 'row')}", markup=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("column")
    table.add_column("type")
    for name, kind in fact["columns"].items():
        table.add_row(name, kind or ("-" if fact["format"] in TEXT else ""))
    out.print(table)
