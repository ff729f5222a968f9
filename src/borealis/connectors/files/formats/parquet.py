"""Parquet: row groups before the position are never read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from borealis.values.fit import check_type, match_columns


def read(path: Path, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[int | pa.RecordBatch]:
    """Batches of at most `most_rows` rows of the declared columns."""
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        have = file.schema_arrow
        chosen = match_columns(schema.names, have.names, str(path))
        for index, field in zip(chosen, schema, strict=True):
            check_type(have.field(index).type, field, str(path))
        first, skipped = 0, 0
        while first < file.num_row_groups and skipped + file.metadata.row_group(first).num_rows <= skip:
            skipped += file.metadata.row_group(first).num_rows
            first += 1
        yield skipped
        groups = list(range(first, file.num_row_groups))
        if not groups:
            return
        names = [have.names[index] for index in chosen]
        for batch in file.iter_batches(batch_size=most_rows, row_groups=groups, columns=names):
            yield batch.select(names)
