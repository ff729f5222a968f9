"""Where an output's rows go: files, lists, callbacks, nowhere."""

from __future__ import annotations

from pathlib import Path

from borealis.connectors.addresses import is_topic
from borealis.connectors.files.directory import DirectorySink, is_directory
from borealis.connectors.files.sink import file_sink
from borealis.connectors.kafka.to_topic import KafkaSink, sink_at
from borealis.connectors.python.sink import CallbackSink, DiscardSink, ListSink
from borealis.connectors.sink import Sink
from borealis.errors import OutputError, article

DISCARD = "discard:"


def as_sink(value: object, journal: Path | None = None) -> Sink:
    """A sink from what a user may give; a path that ends in a slash is a directory.

    Without a `journal` a Parquet or Arrow file does not survive a crash.

    >>> as_sink("out.csv").durable, as_sink("out.parquet").durable, as_sink([]).durable
    (True, False, False)
    """
    if isinstance(value, str) and is_topic(value):
        value = sink_at(value)
    if isinstance(value, DirectorySink | KafkaSink):
        return value.keep(journal)
    if isinstance(value, Sink):
        return value
    if value == DISCARD:
        return DiscardSink()
    if isinstance(value, str | Path) and is_directory(value):
        return DirectorySink(value).keep(journal)
    if isinstance(value, str | Path):
        return file_sink(value, journal)
    if isinstance(value, list):
        return ListSink(value)
    if callable(value):
        return CallbackSink(value)
    raise OutputError(
        f"{article(type(value).__name__)} cannot be an output", hint="give a path, a list, a function or 'discard:'"
    )
