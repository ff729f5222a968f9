"""A file as one word, with its options behind a question mark, as topics have them; and `-` for stdin."""

from __future__ import annotations

import atexit
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from borealis.connectors.files.formats.jsonl import BOM
from borealis.connectors.files.source import FileSource, replay
from borealis.connectors.options import flag
from borealis.connectors.python.source import IterableSource, rows
from borealis.connectors.records import parse_object
from borealis.connectors.sorting import SortedSource
from borealis.errors import InputError
from borealis.values.fit import RowOrigin

STDIN = "-"
QUERY = re.compile(r"[a-z_]+=[^&]*(&[a-z_]+=[^&]*)*")
FLAGS = ("header", "sort")


def file_options(text: str) -> tuple[str, dict[str, Any]]:
    """A file's name, and its options. A question mark that has no options behind it is part of the name, or a pattern.

    >>> file_options("a.txt.gz?format=csv&delimiter=%20&header=false&null=NA&null=-")
    ('a.txt.gz', {'format': 'csv', 'delimiter': ' ', 'header': False, 'nulls': ('NA', '-')})
    >>> file_options("packets-?.csv")
    ('packets-?.csv', {})
    """
    name, mark, query = text.rpartition("?")
    if not mark or not QUERY.fullmatch(query) or Path(text).exists():
        return text, {}
    options: dict[str, Any] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key == "null":
            options["nulls"] = (*options.get("nulls", ()), value)
        elif key in options:
            raise InputError(f"{name} has the option '{key}' twice", hint="keep one of them")
        else:
            options[key] = flag(name, key, value) if key in FLAGS else value
    return name, options


def file_at(text: str) -> FileSource | SortedSource | IterableSource:
    """Files by their address; or stdin: JSON lines as they come, another format that is named once it has ended."""
    name, options = file_options(text)
    if name != STDIN:
        return replay(name, **options)
    if options.pop("format", "jsonl") == "jsonl" and not options:
        return rows(_lines)  # type: ignore[return-value]
    return _spooled(dict(file_options(text)[1]))


def _lines() -> Iterator[dict[str, Any]]:
    """Objects from stdin, one a line."""
    number = 0
    for line in sys.stdin.buffer:
        line = line.removeprefix(BOM) if not number else line
        if line.strip():
            yield parse_object(line, RowOrigin("stdin").row(number))
            number += 1


def _spooled(options: dict[str, Any]) -> FileSource | SortedSource:
    """Stdin as a file, which goes with this process."""
    with tempfile.NamedTemporaryFile(prefix="borealis-stdin-", delete=False) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    path = Path(file.name)
    atexit.register(path.unlink, missing_ok=True)
    return replay(path, **({"format": "jsonl"} | options))
