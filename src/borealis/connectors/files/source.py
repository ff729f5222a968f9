"""Files as sources: Parquet, CSV, JSON lines, Arrow IPC; one, several, a directory or a glob."""

from __future__ import annotations

import csv as csv_module
import glob
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from borealis.connectors.files.formats import csv, ipc, jsonl, parquet
from borealis.connectors.files.suffixes import FORMATS, KNOWN, TEXT, format_of
from borealis.connectors.sorting import SortedSource
from borealis.connectors.source import cut
from borealis.errors import InputError, did_you_mean
from borealis.values.fit import Place, fit

OTHERS = f"known: {KNOWN}; else name it: 'FILE?format=csv', in Python replay(path, format='csv')"


class Reader(Protocol):
    """How one format is read; see `formats`."""

    def __call__(self, path: Path, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[int | pa.RecordBatch]: ...


@dataclass
class FileSource:
    """Files read one after the other. Files that appear, vanish or change between starts make resuming wrong."""

    files: tuple[tuple[Path, str, Reader], ...]
    finite_and_ordered: bool = True
    notes: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        """Columns that the first lines of a JSON file lack."""
        return self.notes

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order in which they are read."""
        return tuple(path for path, _, _ in self.files)

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on; a row in an error counts from 1 within its file."""
        left = skip
        for path, format_, read in self.files:
            row = 0
            for piece in _tell(path, format_, read(path, schema, left, most_rows)):
                if isinstance(piece, int):
                    row, left = row + piece, left - piece
                    continue
                drop = min(left, piece.num_rows)
                row, left = row + drop, left - drop
                for part in cut(piece.slice(drop), most_rows):
                    yield fit(part, schema, Place(str(path), row), text=format_ in TEXT)
                    row += part.num_rows


def _tell(path: Path, format_: str, pieces: Iterator[Any]) -> Iterator[Any]:
    """The same pieces, with what libraries and the system raise told in our words."""
    try:
        yield from pieces
    except (pa.ArrowException, EOFError, zlib.error, csv_module.Error) as error:
        raise InputError(
            f"{path} is not a readable {format_} file ({_one_line(error)})",
            hint="the file is damaged, cut short or of another format; name the format with format=",
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot read {path} as {format_} ({_one_line(error)})", hint="check the file and its permissions"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def replay(
    path: str | Path | Sequence[str | Path], format: str | None = None, *, sort: bool = False, **options: Any
) -> FileSource | SortedSource:
    """Files as an input, read in order; a directory's or glob's files in the order of their names.

    `format` (parquet, csv, jsonl, arrow, arrows) is needed only where the suffix does not tell. Options for CSV:
    `delimiter`, `header=False` (then the columns are those declared, in order), `quote`, `nulls`. With `sort`, all rows
    are read into memory and sorted by time first.
    """
    if format is not None and format not in FORMATS:
        raise InputError(f"no format '{format}' (has: {', '.join(FORMATS)})", hint=did_you_mean(format, FORMATS))
    found = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    if not found:
        raise InputError("no files to read: the list is empty", hint="name at least one file")
    files = []
    for one in (file for pattern in found for file in _resolve(pattern, format)):
        format_ = format or format_of(one)
        if format_ is None:
            raise InputError(f"cannot tell the format of {one} by its suffix", hint=OTHERS)
        files.append((one, format_))
    notes: list[str] = []
    source = FileSource(tuple((one, format_, _reader(format_, options, notes)) for one, format_ in files), notes=notes)
    return SortedSource(source) if sort else source


def _resolve(path: Path, format_: str | None) -> list[Path]:
    if path.is_dir():
        files = [
            one
            for one in sorted(path.iterdir())
            if one.is_file() and not one.name.startswith((".", "_")) and (format_ or format_of(one))
        ]
        if not files:
            raise InputError(f"no readable files in the directory {path}", hint=OTHERS)
        return files
    if path.exists():
        return [path]
    if glob.has_magic(str(path)):
        files = [Path(name) for name in sorted(glob.glob(str(path), recursive=True)) if Path(name).is_file()]
        if not files:
            raise InputError(f"no file matches '{path}'", hint="check the pattern and the directory you are in")
        return files
    near = [one.name for one in path.parent.iterdir()] if path.parent.is_dir() else []
    raise InputError(f"no file '{path}'", hint=did_you_mean(path.name, near) or "check the path")


def _reader(format_: str, options: dict[str, Any], notes: list[str]) -> Reader:
    chosen = reader_options(format_, options)
    if format_ in TEXT:
        return partial(csv.read, options=chosen) if format_ == "csv" else partial(jsonl.read, notes=notes)
    return parquet.read if format_ == "parquet" else ipc.read


def reader_options(format_: str, options: dict[str, Any]) -> Any:
    """The options of a format, checked; None for one that has none."""
    if format_ == "csv":
        return _options(csv.CsvOptions, format_, options)
    if options:
        raise InputError(f"a {format_} file takes no option '{next(iter(options))}'", hint="leave it out")
    return None


def _options(kind: type[Any], format_: str, options: dict[str, Any]) -> Any:
    known = [one.name for one in fields(kind)]
    for name in options:
        if name not in known:
            raise InputError(
                f"a {format_} file takes no option '{name}' (has: {', '.join(known)})", hint=did_you_mean(name, known)
            )
    for name in ("delimiter", "quote"):
        if name in options and len(options[name]) != 1:
            raise InputError(f"{name}={options[name]!r} is not one character", hint="give a single character")
    if "nulls" in options:
        nulls = options["nulls"]
        options = options | {"nulls": (nulls,) if isinstance(nulls, str) else tuple(nulls)}
    return kind(**options)
