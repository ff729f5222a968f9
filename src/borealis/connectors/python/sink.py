"""Sinks inside the program: a list, a callback, tables, nothing. None of them survives a crash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from borealis.errors import BorealisError, OutputError


class DiscardSink:
    """Counts rows and forgets them. Sinks inside the program are such ones that do something with them in `_take`."""

    durable = False

    def __init__(self) -> None:
        self.rows = 0
        self._schema: pa.Schema = pa.schema([])

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Begin to count; after a crash what was given out before is given out no second time."""
        self._schema = schema
        self.rows = resume or 0

    def write(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        if rows.num_rows:
            self._take(rows)

    def flush(self, sync: bool) -> int:
        """How many rows were taken, those of earlier starts included."""
        return self.rows

    def close(self, complete: bool) -> None:
        """Nothing is left to do."""

    def _take(self, rows: pa.Table) -> None:
        """What becomes of rows, once they are counted."""


class ListSink(DiscardSink):
    """Appends each row as a dict to the user's list, which is never cleared."""

    def __init__(self, target: list[dict[str, Any]]) -> None:
        super().__init__()
        self._target = target

    def _take(self, rows: pa.Table) -> None:
        self._target.extend(rows.to_pylist())


class CallbackSink(DiscardSink):
    """Calls the user's function with one record batch per write, never an empty one. A slow function slows the run."""

    def __init__(self, function: Callable[[pa.RecordBatch], object]) -> None:
        super().__init__()
        self._function = function

    def _take(self, rows: pa.Table) -> None:
        for batch in rows.combine_chunks().to_batches():
            try:
                self._function(batch)
            except BorealisError:
                raise
            except Exception as error:
                name = getattr(self._function, "__name__", repr(self._function))
                raise OutputError(
                    f"the output's function {name} raised {type(error).__name__}: {error}", hint="mend the function"
                ) from error


class TableSink(DiscardSink):
    """Collects everything in memory, for results that fit."""

    def __init__(self) -> None:
        super().__init__()
        self._tables: list[pa.Table] = []

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Start with an empty table, or go on after an earlier start in the same program."""
        super().open(schema, resume)
        if resume is None:
            self._tables = []

    def table(self) -> pa.Table:
        """All rows so far as one table."""
        return pa.concat_tables(self._tables) if self._tables else self._schema.empty_table()

    def _take(self, rows: pa.Table) -> None:
        self._tables.append(rows)
