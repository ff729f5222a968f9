"""Where rows come from: files, directories that are watched, Python iterables, Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from borealis.errors import InputError, article
from borealis.ingest.sources.base import Source
from borealis.ingest.sources.brokers import is_topic
from borealis.ingest.sources.files import FileSource, replay
from borealis.ingest.sources.rows import rows
from borealis.ingest.sources.watch import watch, watch_text

__all__ = ["FileSource", "Source", "as_source", "replay", "rows", "watch"]

WATCH = "watch:"


def as_source(value: object) -> Source:
    """A source from what a user may give: a path is replayed, anything with rows in it gives its rows.

    `watch:incoming/` is a directory that is watched, `watch:incoming/*.csv` certain files of it.

    >>> as_source([{"n": 1}]).finite_and_ordered
    True
    """
    if isinstance(value, Source):
        return value
    if isinstance(value, str) and is_topic(value):
        from borealis.ingest.sources.kafka import kafka_source

        return kafka_source(value)
    if isinstance(value, str) and value.startswith(WATCH):
        return watch_text(value.removeprefix(WATCH))
    if isinstance(value, str | Path):
        return replay(value)
    if isinstance(value, pa.Table | pa.RecordBatch):
        return rows(value)
    if callable(value) or (isinstance(value, Iterable) and not isinstance(value, bytes | bytearray | dict)):
        return rows(value)
    raise InputError(
        f"{article(type(value).__name__)} cannot be an input",
        hint="give a path, replay(...), a list or generator of rows, or an Arrow table",
    )
