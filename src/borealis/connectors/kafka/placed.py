"""A topic that a process writes from a stream that it follows: a transaction has rows and the position behind them."""

from __future__ import annotations

import pyarrow as pa

from borealis.connectors.kafka.to_topic import sink_at
from borealis.connectors.kafka.writer import Rendering, TopicWriter
from borealis.connectors.placed import Position


class PlacedTopic:
    """Another process that writes the same stream under the same reader's name puts this one out."""

    anew = "give another --reader to forward the new stream from its beginning"

    def __init__(self, url: str) -> None:
        self._sink = sink_at(url)
        self.reader = f"kafka.{self._sink.topic}"
        self._writer: TopicWriter | None = None
        self._rendering: Rendering | None = None

    def open(self, stream: str, reader: str) -> Position | None:
        """How far the topic is, as the broker knows."""
        self._writer = self._sink.writer(f"borealis.{stream}.{reader}")
        return self._writer.open()

    def begin(self, schema: pa.Schema, position: Position) -> None:
        """Rows become records in this way."""
        self._rendering = self._sink.rendering(schema)

    def publish(self, rows: pa.Table, position: Position) -> None:
        """One transaction."""
        assert self._writer is not None
        assert self._rendering is not None
        self._writer.publish(*self._rendering.records(rows), position)

    def close(self, complete: bool) -> None:
        if self._writer is not None:
            self._writer.close()
