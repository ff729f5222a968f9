"""Files as sources: Parquet, CSV, JSON lines, Arrow IPC; one, several, a directory or a glob."""

from __future__ import annotations

import csv as csv_module
import glob
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.connectors.files.formats import ReadSpec, columnar, csv, jsonl
from borealis.connectors.files.suffixes import HIDDEN, KNOWN, TEXT, check_format, format_of
from borealis.connectors.records import CsvOptions, Decoded, brief_error, decode_columns
from borealis.connectors.source import SortedSource, cut
from borealis.errors import InputError, did_you_mean
from borealis.values.fit import RowOrigin

OTHERS = f"known: {KNOWN}; else name it: 'FILE?format=csv', in Python replay(path, format='csv')"


DAMAGE = (pa.ArrowException, EOFError, zlib.error, csv_module.Error)  # what libraries say of a broken file


def read(path: Path, format_: str, how: ReadSpec) -> Iterator[int | Decoded]:
    """A file's records, in order. Raises InputError if the file as a whole cannot be read further."""
    with reading(path, format_):
        if format_ in TEXT:
            yield from csv.read(path, how) if format_ == "csv" else jsonl.read(path, how)
            return
        for batch in columnar.batches(path, format_, how.schema, how.skip, how.rows_most):
            if isinstance(batch, int):
                yield batch
                continue
            for part in cut(batch, how.rows_most):
                yield decode_columns(part, how.schema, how.time, how.first)


@contextmanager
def reading(path: Path, format_: str) -> Iterator[None]:
    """An InputError for what libraries and the system say of a file that cannot be read."""
    try:
        yield
    except DAMAGE as error:
        raise InputError(
            f"{path} is not a readable {format_} file ({brief_error(error)})",
            hint="the file is damaged, cut short or of another format; name the format with format=",
        ) from error
    except OSError as error:
        raise InputError(
            f"cannot read {path} as {format_} ({brief_error(error)})", hint="check the file and its permissions"
        ) from error


@dataclass
class FileSource:
    """Files read one after the other. Files that appear, vanish or change between starts make resuming wrong."""

    files: tuple[tuple[Path, str, CsvOptions | None], ...]
    finite_and_ordered: bool = True
    notes: list[str] = field(default_factory=list)

    def warnings(self) -> list[str]:
        """Columns that the first lines of a JSON file lack."""
        return self.notes

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on; a row in an error counts from 1 within its file."""
        left = skip
        for path, format_, options in self.files:
            row = 0
            how = ReadSpec(schema, left, most_rows, options=options, notes=self.notes)
            for piece in read(path, format_, how):
                if isinstance(piece, int):
                    row, left = row + piece, left - piece
                    continue
                drop = min(left, piece.rows.num_rows)
                yield from cut(piece.rows.slice(drop), most_rows)
                row, left = row + piece.rows.num_rows, left - drop
                if piece.bad:
                    raise piece.error(RowOrigin(str(path), row).row(0))


def replay(
    path: str | Path | Sequence[str | Path], format: str | None = None, *, sort: bool = False, **options: Any
) -> FileSource | SortedSource:
    """Files as an input, read in order; a directory's or glob's files in the order of their names.

    `format` (parquet, csv, jsonl, arrow, arrows) is needed only where the suffix does not tell. Options for CSV:
    `delimiter`, `header=False` (then the columns are those declared, in order), `quote`, `nulls`. With `sort`, all rows
    are read into memory and sorted by time first.
    """
    check_format(format)
    found = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
    if not found:
        raise InputError("no files to read: the list is empty", hint="name at least one file")
    files = []
    for one in (file for pattern in found for file in resolve(pattern, format)):
        format_ = format or format_of(one)
        if format_ is None:
            raise InputError(f"cannot tell the format of {one} by its suffix", hint=OTHERS)
        files.append((one, format_, reader_options(format_, options)))
    source = FileSource(tuple(files))
    return SortedSource(source) if sort else source


def resolve(path: Path, format_: str | None) -> list[Path]:
    """A file; or those of a directory or a pattern, in the order of their names."""
    if path.is_dir():
        files = [
            one
            for one in sorted(path.iterdir())
            if one.is_file() and not one.name.startswith(HIDDEN) and (format_ or format_of(one))
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


def reader_options(format_: str, options: dict[str, Any]) -> CsvOptions | None:
    """The options of a format, checked; None for one that has none."""
    known = [one.name for one in fields(CsvOptions)] if format_ == "csv" else []
    for name in options:
        if name not in known:
            has = f" (has: {', '.join(known)})" if known else ""
            hint = did_you_mean(name, known) if known else "leave it out"
            raise InputError(f"a {format_} file takes no option '{name}'{has}", hint=hint)
    for name in ("delimiter", "quote"):
        if name in options and len(options[name]) != 1:
            raise InputError(f"{name}={options[name]!r} is not one character", hint="give a single character")
    if "nulls" in options:
        nulls = options["nulls"]
        options = options | {"nulls": (nulls,) if isinstance(nulls, str) else tuple(nulls)}
    return CsvOptions(**options) if known else None
