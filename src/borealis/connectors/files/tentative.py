"""A file with what is tentative now: rows are added as they come, and an undo puts an empty file in its place.

The columns are those of the stable rows. So these and the file together are what is known at any moment; no row is in
both, for the undo comes first. Whoever has the file open keeps it as it was, and finds the new one by its name.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from borealis.connectors.files.directory import is_directory
from borealis.connectors.files.sink import TextSink, file_sink, writing
from borealis.errors import OutputError

TEXT_ONLY = "name a file such as tentative.jsonl or tentative.csv, which can be read while it grows"


class TentativeFile:
    """Text only: a Parquet file cannot be read before it is whole, and by then its rows may be void."""

    def __init__(self, path: str | Path) -> None:
        if is_directory(path) or not isinstance(file_sink(path), TextSink):
            raise OutputError(f"tentative rows cannot go to {path}", hint=TEXT_ONLY)
        self.target = Path(path)
        self._schema: pa.Schema = pa.schema([])
        self._sink: TextSink | None = None

    def open(self, schema: pa.Schema, next_id: int) -> None:
        """Begin empty, whatever was there: it was of an earlier life."""
        self._schema = schema
        self.undo(next_id)

    def write(self, rows: pa.Table, fork: str) -> None:
        """Add rows; readers see them at once."""
        assert self._sink is not None
        self._sink.write(rows)

    def undo(self, next_id: int) -> None:
        """Nothing is tentative now."""
        self.close()
        empty = file_sink(self.target.with_name(f".{self.target.name}"))
        assert isinstance(empty, TextSink)
        empty.open(self._schema, None)
        self._sink = empty
        with writing(self.target):
            os.replace(empty.target, self.target)

    def done(self, next_id: int) -> None:
        """The file is empty since the undo; that says it all."""

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close(complete=True)
            self._sink = None
