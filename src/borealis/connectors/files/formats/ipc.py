"""Arrow IPC: the file format and the stream format, told apart by their first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from borealis.values.fit import choose

FILE_MAGIC = b"ARROW1"


def batches(path: Path, schema: pa.Schema | None, skip: int = 0, rows_most: int = 0) -> Iterator[pa.RecordBatch]:
    """As the file holds them. If no columns are declared: all, behind a batch without rows that has their names."""
    with pa.OSFile(str(path)) as source:
        is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        chosen = choose(schema, reader.schema, str(path))
        if schema is None:
            yield pa.RecordBatch.from_pylist([], reader.schema)
        for batch in (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader:
            batch.validate()
            yield batch.select(chosen)
