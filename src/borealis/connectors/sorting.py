"""A finite source in the order of its times, however it was written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from borealis.connectors.source import Source, cut
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf, note_in


class SortedSource:
    """The rows of another source by time, equal times as they stand there. All of them are held in memory at once."""

    finite_and_ordered = True

    def __init__(self, source: Source) -> None:
        if not source.finite_and_ordered:
            raise InputError("only what has an end can be sorted", hint="raise the input's slack instead")
        self._source = source
        self.time: TimeOf | None = None  # told by the run; else as the schema's note says

    def warnings(self) -> list[str]:
        """Those of the other source."""
        return self._source.warnings() if hasattr(self._source, "warnings") else []

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` of the sorted ones on."""
        rows = pa.Table.from_batches(list(self._source.batches(schema, 0, most_rows)), schema)
        time = self.time or note_in(schema)
        if time is None:
            raise InputError("nobody knows which time to sort by", hint="sort the rows before they are sent")
        times, fault = time.until_fault(rows)
        if fault is not None:
            raise InputError(f"row {len(times) + 1} has no time ({fault})", hint="drop or repair such rows")
        if (np.diff(times) < 0).any():
            rows = rows.take(pa.array(np.argsort(times, kind="stable")))
        for batch in rows.slice(skip).combine_chunks().to_batches():
            yield from cut(batch, most_rows)
