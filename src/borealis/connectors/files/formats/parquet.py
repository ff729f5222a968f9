"""Parquet: row groups before the position are never read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from borealis.values.fit import choose


def batches(path: Path, schema: pa.Schema | None, skip: int, rows_most: int) -> Iterator[int | pa.RecordBatch]:
    """Of at most `rows_most` rows. If no columns are declared: all, behind a batch without rows, for their names."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        have = file.schema_arrow
        chosen = choose(schema, have, str(path))
        if schema is None:
            yield pa.RecordBatch.from_pylist([], have)
        first, skipped = 0, 0
        while first < file.num_row_groups and skipped + file.metadata.row_group(first).num_rows <= skip:
            skipped += file.metadata.row_group(first).num_rows
            first += 1
        yield skipped
        groups = list(range(first, file.num_row_groups))
        if not groups:
            return
        names = [have.names[index] for index in chosen]
        for batch in file.iter_batches(batch_size=rows_most, row_groups=groups, columns=names):
            yield batch.select(names)
