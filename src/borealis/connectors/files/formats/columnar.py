"""Parquet, and Arrow IPC: the file format and the stream format, distinguished by their first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from borealis.values.fit import choose

ARROW_FILE_MAGIC = b"ARROW1"


def batches(
    path: Path, format_: str, schema: pa.Schema | None, skip: int, rows_most: int
) -> Iterator[int | pa.RecordBatch]:
    """As the file holds them. If no columns are declared: all, behind a batch without rows that has their names."""
    return _parquet(path, schema, skip, rows_most) if format_ == "parquet" else _arrow(path, schema)


def _parquet(path: Path, schema: pa.Schema | None, skip: int, rows_most: int) -> Iterator[int | pa.RecordBatch]:
    """Row groups before the position are never read."""
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


def _arrow(path: Path, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
    with pa.OSFile(str(path)) as source:
        is_file = source.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        chosen = choose(schema, reader.schema, str(path))
        if schema is None:
            yield pa.RecordBatch.from_pylist([], reader.schema)
        for batch in (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader:
            batch.validate()
            yield batch.select(chosen)
