"""What a source is: rows in an order that never changes, from any position."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import pyarrow as pa

from borealis.connectors.dead_letters import DeadLetters
from borealis.kernels.time_of import TimeOf


@runtime_checkable
class Source(Protocol):
    """Where an input's rows come from. Position `n` must mean the same row at every start, or resuming is wrong."""

    finite_and_ordered: bool  # True for files and in-memory sequences: several such inputs may be merged by time

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows in order from position `skip`: each batch exactly `schema`'s columns, at most `most_rows` rows."""
        ...


@runtime_checkable
class LiveSource(Source, Protocol):
    """A source whose rows were nowhere counted before: what it gave out under which position, it must remember."""

    dead_letters: DeadLetters  # what it could not read

    def begin(self, name: str, time: str | TimeOf, home: Path | None) -> None:
        """Told before `batches`: the input, its time (a record without one is dead), and the state directory.

        With None nothing is remembered: each start begins anew.
        """
        ...

    def warnings(self) -> list[str]:
        """What a user should know although nothing failed; may be asked at any time, from any thread."""
        ...


def cut(batch: pa.RecordBatch, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most `most_rows` rows; none if it is empty."""
    for start in range(0, batch.num_rows, most_rows):
        yield batch.slice(start, most_rows) if batch.num_rows > most_rows else batch
