"""Any PySpark streaming DataFrame as a source.

Its rows arrive through a query of their own, micro-batch by micro-batch. A micro-batch is acknowledged to Spark only
when every row of it is in a committed train, so a restart from its checkpoint repeats at most one, which is skipped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from borealis.errors import InputError
from borealis.ingest.sources.base import cut

WAIT_S = 0.1


def is_frame(value: object) -> bool:
    """Whether this is a PySpark DataFrame."""
    return isinstance(value, DataFrame)


def as_frame_source(frame: DataFrame) -> FrameSource:
    """A source that reads a streaming DataFrame."""
    if not frame.isStreaming:
        raise InputError("this DataFrame is not a streaming one", hint="use spark.readStream, or diagram.batch(...)")
    return FrameSource(frame)


class FrameSource:
    """Rows of a streaming DataFrame, as they arrive; ends when its query ends."""

    finite_and_ordered = False

    def __init__(self, frame: DataFrame) -> None:
        self.frame = frame
        self._arrived: queue.Queue[pa.Table] = queue.Queue(1)
        self._committed = 0
        self._handed = 0
        self._changed = threading.Condition()
        self._query: Any = None

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """What arrives from now on."""
        missing = [n for n in schema.names if n not in self.frame.columns]
        if missing:
            raise InputError(
                f"no column '{missing[0]}' in the streaming DataFrame (has: {', '.join(self.frame.columns)})"
            )
        self._handed = self._committed = skip
        wanted = self.frame.select(*(f"`{n}`" for n in schema.names))
        self._query = wanted.writeStream.foreachBatch(self._take).start()
        while True:
            try:
                table = self._arrived.get(timeout=WAIT_S)
            except queue.Empty:
                if self._query.isActive:
                    continue
                if self._query.exception() is not None:
                    raise InputError(f"the streaming DataFrame failed: {self._query.exception()}") from None
                if self._arrived.empty():
                    return
                continue
            for batch in table.cast(schema).combine_chunks().to_batches():
                yield from cut(batch, most_rows)

    def _take(self, frame: DataFrame, _: int) -> None:
        table = frame.toArrow()
        if not table.num_rows:
            return
        self._handed += table.num_rows
        upto = self._handed
        self._arrived.put(table)
        with self._changed:
            self._changed.wait_for(lambda: self._committed >= upto)

    def committed(self, position: int) -> None:
        """Everything before this position is in committed trains."""
        with self._changed:
            self._committed = position
            self._changed.notify_all()

    def stop(self) -> None:
        """Let the query go."""
        with self._changed:
            self._committed = 2**63
            self._changed.notify_all()
        if self._query is not None:
            self._query.stop()
