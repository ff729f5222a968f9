"""Where rows come from: files, directories that are watched, Python iterables, Arrow tables."""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from borealis.connectors.addresses import STDIN, file_options, is_topic
from borealis.connectors.files.formats.jsonl import BOM
from borealis.connectors.files.source import FileSource, replay
from borealis.connectors.files.watch import watch, watch_text
from borealis.connectors.python.source import rows
from borealis.connectors.records import parse_object
from borealis.connectors.source import SortedSource, Source
from borealis.values.fit import RowOrigin

__all__ = ["FileSource", "SortedSource", "Source", "as_source", "replay", "rows", "watch"]

WATCH = "watch:"


def as_source(value: object) -> Source:
    """A source from what a user may give: a path is replayed, anything with rows in it gives its rows.

    `watch:incoming/` is a directory that is watched, `watch:incoming/*.csv` certain files of it; `-` is stdin. Options
    of files stand behind a question mark: `a.txt?format=csv&delimiter=%20&header=false`.

    >>> as_source([{"n": 1}]).finite_and_ordered
    True
    """
    if isinstance(value, Source):
        return value
    if isinstance(value, str) and is_topic(value):
        from borealis.connectors.kafka.from_topic import source_at

        return source_at(value)
    if isinstance(value, str) and value.startswith(WATCH):
        return watch_text(value.removeprefix(WATCH))
    if isinstance(value, str):
        return _file_at(value)
    if isinstance(value, Path):
        return replay(value)
    return rows(value)


def _file_at(text: str) -> Source:
    """Files by their address; or stdin: JSON lines as they come, another format that is named once it has ended."""
    name, options = file_options(text)
    if name != STDIN:
        return replay(name, **options)
    if options in ({}, {"format": "jsonl"}):
        return rows(_lines)
    with tempfile.NamedTemporaryFile(prefix="borealis-stdin-", delete=False) as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    path = Path(file.name)
    atexit.register(path.unlink, missing_ok=True)
    return replay(path, **({"format": "jsonl"} | options))


def _lines() -> Iterator[dict[str, Any]]:
    """Objects from stdin, one a line."""
    number = 0
    for line in sys.stdin.buffer:
        line = line.removeprefix(BOM) if not number else line
        if line.strip():
            yield parse_object(line, RowOrigin("stdin").row(number))
            number += 1
