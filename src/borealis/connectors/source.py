"""What a source is: rows in an order that never changes, from any position; and a source sorted by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from borealis.connectors.dead_letters import DeadLetters
from borealis.errors import InputError
from borealis.kernels.kinds import kinds_of
from borealis.kernels.time_of import TimeOf, note_in
from borealis.tuples import Kind


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

    def begin(self, name: str, time: str | TimeOf, home: Path | None, key: Sequence[str] = ()) -> None:
        """Comes before `batches`: the input, its time (a record without one is dead), the state directory, and the
        columns by which rows can be deleted and replaced.

        Without a directory nothing is remembered: each start begins at the beginning.
        """
        ...

    def warnings(self) -> list[str]:
        """What a user should know although nothing failed; may be asked at any time, from any thread."""
        ...


def cut(batch: pa.RecordBatch, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most `most_rows` rows; none if it is empty."""
    for start in range(0, batch.num_rows, most_rows):
        yield batch.slice(start, most_rows) if batch.num_rows > most_rows else batch


class SortedSource:
    """The rows of another source by time, equal times as they stand there. All of them are held in memory at once.

    What corrects a row comes at the newest time before it.
    """

    finite_and_ordered = True

    def __init__(self, source: Source) -> None:
        if not source.finite_and_ordered:
            raise InputError("only what has an end can be sorted", hint="raise the input's slack instead")
        self._source = source
        self.time: TimeOf | None = None  # set by the run; else as the schema's note says

    def warnings(self) -> list[str]:
        """Those of the other source."""
        return self._source.warnings() if hasattr(self._source, "warnings") else []

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` of the sorted ones on."""
        rows = pa.Table.from_batches(list(self._source.batches(schema, 0, most_rows)), schema)
        time = self.time or note_in(schema)
        if time is None:
            raise InputError("the time to sort by is not known", hint="sort the rows before they are sent")
        times, fault = time.until_fault(rows)
        if fault is not None:
            raise InputError(f"row {len(times) + 1} has no time ({fault})", hint="drop or repair such rows")
        corrects = kinds_of(rows) != Kind.INSERTION
        times = np.where(corrects, np.maximum.accumulate(times), times)  # it stays behind what it corrects
        if (np.diff(times) < 0).any():
            rows = rows.take(pa.array(np.argsort(times, kind="stable")))
        for batch in rows.slice(skip).combine_chunks().to_batches():
            yield from cut(batch, most_rows)
