"""Which suffix means which file format, and what is packed; sources and sinks agree on it."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import IO

from borealis.errors import InputError, did_you_mean

SUFFIXES = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".arrows": "arrows",
}
TEXT = ("csv", "jsonl")
FORMATS = ("parquet", "csv", "jsonl", "arrow", "arrows")
KNOWN = ", ".join(SUFFIXES) + ", and .gz after a text suffix"
HIDDEN = (".", "_")  # how names begin that Spark, pyarrow and our own sources pass over
GZIP_MAGIC = b"\x1f\x8b"


def format_of(path: Path) -> str | None:
    """The format a file's name stands for, or None.

    >>> format_of(Path("a.csv.gz")), format_of(Path("b.Parquet")), format_of(Path("c.xlsx"))
    ('csv', 'parquet', None)
    """
    if is_gzipped(path):
        inner = SUFFIXES.get(Path(path.stem).suffix.lower())
        return inner if inner in TEXT else None
    return SUFFIXES.get(path.suffix.lower())


def check_format(named: str | None) -> None:
    if named is not None and named not in FORMATS:
        raise InputError(f"no format '{named}' (has: {', '.join(FORMATS)})", hint=did_you_mean(named, FORMATS))


def is_gzipped(path: Path) -> bool:
    """Whether the name says gzip."""
    return path.suffix.lower() == ".gz"


def is_packed(path: Path) -> bool:
    """Whether the name or the beginning says gzip."""
    with open(path, "rb") as file:
        return is_gzipped(path) or file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if its name or its beginning says gzip. It is opened once, so it may be a pipe."""
    if is_gzipped(path):
        return gzip.open(path, "rb")  # type: ignore[return-value]
    raw = open(path, "rb")  # noqa: SIM115 - closed with what is around it
    if not raw.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
        return raw
    packed = gzip.GzipFile(fileobj=raw)
    packed.myfileobj = raw  # type: ignore[assignment]  # closed with it
    return packed  # type: ignore[return-value]


def open_text(path: Path, errors: str = "replace") -> IO[str]:
    """The file's text, its line ends as they stand there."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8-sig", errors=errors, newline="")
