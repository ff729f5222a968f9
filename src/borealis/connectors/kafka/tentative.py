"""A topic of tentative rows, each with the headers `tentative` (true) and `fork`, by whose name it is.

An undo is a record without key and value, with the headers `undo` (true) and `next_id`, in each partition of the topic:
all rows before it in its partition are void, and stable ones go on at this id. The brokers have it before the stable
topic gets what follows. A life begins with an undo, for it does not know what the one before it has left. When all
that was void is corrected there is another such record, with `done` (true): then the brokers have all of it.
"""

from __future__ import annotations

import pyarrow as pa

from borealis.connectors.kafka.sender import TopicSender
from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.kafka.writer import Rendering
from borealis.errors import OutputError


class TentativeTopic:
    """Not in transactions: rows are worth nothing unless they are there soon."""

    def __init__(self, url: str) -> None:
        self._sink = sink_at(url)
        self.topic = self._sink.topic
        if self._sink.table:
            raise OutputError(
                f"topic {self.topic} cannot be a table of tentative rows: an undo is no change of a row",
                hint="leave out table",
            )
        self._sender = TopicSender(self._sink.brokers, self.topic, f"tentative topic {self.topic}", OutputError)
        self._rendering: Rendering | None = None

    def open(self, schema: pa.Schema, next_id: int) -> None:
        """Begin with an undo."""
        self._rendering = self._sink.rendering(schema)
        self.undo(next_id)

    def write(self, rows: pa.Table, fork: str) -> None:
        """Hand rows to the brokers, without waiting for an answer."""
        assert self._rendering is not None
        values, keys = self._rendering.records(rows)
        for i, value in enumerate(values):
            self._sender.send(value, None if keys is None else keys[i], (("tentative", "true"), ("fork", fork)))

    def undo(self, next_id: int) -> None:
        """All partitions have it when this returns."""
        self._mark("undo", next_id)
        self._sync()

    def done(self, next_id: int) -> None:
        self._mark("done", next_id)

    def close(self) -> None:
        self._sync()

    def _mark(self, what: str, next_id: int) -> None:
        for partition in self._sender.partitions():
            self._sender.send(None, None, ((what, "true"), ("next_id", str(next_id))), partition)

    def _sync(self) -> None:
        if why := self._sender.sync():
            raise OutputError(
                f"topic {self.topic} takes no tentative rows: {why}", hint="check the brokers, start again"
            )
