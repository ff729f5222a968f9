"""Where rows come from: files, directories that are watched, Python iterables, Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from borealis.connectors.files.addresses import file_at
from borealis.connectors.files.source import FileSource, replay
from borealis.connectors.files.watch import watch, watch_text
from borealis.connectors.kafka.brokers import is_topic
from borealis.connectors.python.source import rows
from borealis.connectors.python.tables import table_of
from borealis.connectors.sorting import SortedSource
from borealis.connectors.source import Source
from borealis.errors import InputError, article

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
        return file_at(value)
    if isinstance(value, Path):
        return replay(value)
    if (table := table_of(value)) is not None:
        return rows(table)
    if callable(value) or (isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | dict)):
        return rows(value)
    raise InputError(
        f"{article(type(value).__name__)} cannot be an input",
        hint="give a path, replay(...), a list or generator of rows, or a data frame (pandas, Polars, Arrow, Spark)",
    )
