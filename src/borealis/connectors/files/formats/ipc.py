"""Arrow IPC: the file format and the stream format, told apart by their first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from borealis.values.fit import check_type, match_columns

FILE_MAGIC = b"ARROW1"


def read(path: Path, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[int | pa.RecordBatch]:
    """One batch at a time, as the file holds them."""
    with pa.OSFile(str(path)) as source:
        is_file = source.read(len(FILE_MAGIC)) == FILE_MAGIC
        source.seek(0)
        reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
        chosen = match_columns(schema.names, reader.schema.names, str(path))
        for index, field in zip(chosen, schema, strict=True):
            check_type(reader.schema.field(index).type, field, str(path))
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else iter(reader)
        for batch in batches:
            batch.validate()
            yield batch.select(chosen)
