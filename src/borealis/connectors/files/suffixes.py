"""Which suffix means which file format; sources and sinks agree on it."""

from __future__ import annotations

from pathlib import Path

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


def format_of(path: Path) -> str | None:
    """The format a file's name stands for, or None.

    >>> format_of(Path("a.csv.gz")), format_of(Path("b.Parquet")), format_of(Path("c.xlsx"))
    ('csv', 'parquet', None)
    """
    if is_gzipped(path):
        inner = SUFFIXES.get(Path(path.stem).suffix.lower())
        return inner if inner in TEXT else None
    return SUFFIXES.get(path.suffix.lower())


def is_gzipped(path: Path) -> bool:
    """Whether the name says gzip."""
    return path.suffix.lower() == ".gz"
