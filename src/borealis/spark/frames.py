"""Any PySpark DataFrame as a source: the rows of a streaming one arrive through a query of their own."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from borealis.connectors.source import cut
from borealis.disk import START_OVER, write_whole
from borealis.errors import BorealisError, InputError
from borealis.kernels.kinds import kinds_of
from borealis.kernels.time_of import TimeOf
from borealis.state.delta import from_stream, to_stream
from borealis.tuples import LAST_TIME, Kind
from borealis.values.fit import RowOrigin, fit, match_columns

LOOK_S = 0.1  # how often to see whether the query is still there
SOURCE = "the streaming DataFrame"
FINITE = "the DataFrame"


def is_frame(value: object) -> bool:
    return isinstance(value, DataFrame)


def as_frame_source(
    frame: DataFrame, name: str = "frame", keep: Path | None = None, time: str | TimeOf | None = None
) -> FrameSource | FiniteFrameSource:
    """A source that reads a DataFrame; `keep` is where a durable run keeps what is not committed of a streaming one."""
    if frame.isStreaming:
        return FrameSource(frame, name, keep)
    if time is None:
        raise InputError("this DataFrame is not a streaming one", hint="use spark.readStream, or say what its time is")
    return FiniteFrameSource(frame, TimeOf.of(time))


class FiniteFrameSource:
    """All rows of a finite DataFrame, collected into this process; Spark gives them no order, so they go by time.

    Those that correct others come behind all of them.
    """

    finite_and_ordered = True

    def __init__(self, frame: DataFrame, time: TimeOf) -> None:
        self.frame, self._time = frame, time

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on; rows of one time go by their values, so that each start has the same order."""
        try:
            table = _selected(self.frame, schema, FINITE).toArrow()
        except PySparkException as error:
            raise InputError(f"the DataFrame cannot be computed: {_reason(error)}", hint="try df.collect()") from error
        parts = [fit(batch, schema, RowOrigin(FINITE, 0)) for batch in table.combine_chunks().to_batches()]
        rows = pa.Table.from_batches(parts, schema)
        times, fault = self._time.until_fault(rows)
        if fault is not None:
            raise InputError(f"a row of the DataFrame has no time ({fault})", hint="df.dropna() leaves such rows out")
        times = np.where(kinds_of(rows) == Kind.INSERTION, times, LAST_TIME)
        for batch in in_order(rows, pa.array(times), rows.column_names).slice(skip).to_batches():
            yield from cut(batch, most_rows)


def in_order(rows: pa.Table, times: pa.ChunkedArray | pa.Array, by: list[str]) -> pa.Table:
    """Sorted by time, then by these columns; rows without a time come first."""
    keys = [pc.is_valid(times), times, *(_sortable(rows.column(name)) for name in by)]
    names = [str(i) for i in range(len(keys))]
    order = pc.sort_indices(pa.table(keys, names=names), sort_keys=[(name, "ascending") for name in names])
    return rows.take(order).combine_chunks()


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Arrow does not sort what is nested; any order will do."""
    if pt.is_nested(column.type):
        return pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])
    return column


def _selected(frame: DataFrame, schema: pa.Schema, what: str) -> DataFrame:
    """The schema's columns of a DataFrame."""
    wanted = [frame.columns[i].replace("`", "``") for i in match_columns(schema.names, frame.columns, what)]
    return frame.select(*(f"`{name}`" for name in wanted))


@dataclass(frozen=True)
class BatchFile:
    """A micro-batch in a file: the position of its first row, its number, and the position behind its last row."""

    path: Path
    first: int
    batch: int
    last: int


class FrameSource:
    """Rows of a streaming DataFrame, as they arrive; ends when its query (`borealis input <name>`) ends.

    In a durable run no row is lost or repeated, and not even a micro-batch that comes out differently when Spark
    repeats it does harm:

    1. A micro-batch is collected and written to `rows-<first position>-<batch>-<position behind>.arrow`, whole and
       synced. An empty one leaves no trace.
    2. Only then it is acknowledged to Spark, which notes that in the `checkpoint` beside these files.
    3. Its rows go to trains. A file is deleted when all its rows are committed, but never the newest: it tells which
       micro-batch was the last.
    4. A restart first reads the files from the committed position on, then lets the query go on from its checkpoint.
       Spark repeats at most the micro-batch that it has no acknowledgement of; if that is in a file, it is skipped.
    5. Rows that are in no file any more although the commits still need them, or a checkpoint that knows less than the
       files, are refused.
    """

    finite_and_ordered = False

    def __init__(self, frame: DataFrame, name: str = "frame", keep: Path | None = None) -> None:
        self.frame, self.name, self.keep = frame, name, keep
        self._changed = threading.Condition()
        self._arrived: pa.Table | None = None
        self._files: list[BatchFile] = []
        self._position = 0  # behind the last row that arrived
        self._stopped = False
        self._failure: BorealisError | None = None
        self._query: Any = None

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """What was kept, from position `skip` on, then what arrives."""
        frame = _selected(self.frame, schema, SOURCE)
        self._position = at = skip
        if self.keep is not None:
            self._look_up(skip)
            for file in [f for f in self._files if f.last > skip]:
                table = _read(file).slice(at - file.first)
                yield from _pieces(table, schema, at, most_rows)
                at = file.last
        self._start(frame)
        while (table := self._next()) is not None:
            yield from _pieces(table, schema, at, most_rows)
            at += table.num_rows

    def committed(self, position: int) -> None:
        """Everything before this position is in committed trains."""
        with self._changed:
            done = [f for f in self._files[:-1] if f.last <= position]
            self._files = [f for f in self._files if f not in done]
        for file in done:
            file.path.unlink(missing_ok=True)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            query = self._query
        if query is not None:
            with contextlib.suppress(Exception):  # its JVM may be gone
                query.stop()

    # -- the query

    def _start(self, frame: DataFrame) -> None:
        writer = frame.writeStream.queryName(f"borealis input {self.name}").foreachBatch(self._take)
        if self.keep is not None:
            writer = writer.option("checkpointLocation", str(self.keep / "checkpoint"))
        query = writer.start()
        with self._changed:
            self._query = query
            stopped = self._stopped
        if stopped:
            self.stop()

    def _take(self, frame: DataFrame, batch: int) -> None:
        """A micro-batch; returning acknowledges it."""
        if self._files and batch <= self._files[-1].batch:
            return
        try:
            table = frame.toArrow()
        except Exception as error:
            self._failure = self._failed(error)
            raise
        if not table.num_rows:
            return
        first, last = self._position, self._position + table.num_rows
        if self.keep is not None:
            file = BatchFile(self.keep / f"rows-{first}-{batch}-{last}.arrow", first, batch, last)
            try:
                write_whole(file.path, to_stream(table))
            except OSError as error:
                self._failure = InputError(
                    f"cannot keep rows of input '{self.name}': {error}", hint="make room on the disk, then start again"
                )
                raise
            with self._changed:
                self._files.append(file)
        with self._changed:
            self._position = last
            self._changed.wait_for(lambda: self._arrived is None or self._stopped)
            self._arrived = table
            self._changed.notify_all()

    def _next(self) -> pa.Table | None:
        """The next micro-batch, or None when no more comes."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._arrived is not None or self._stopped, LOOK_S)
                if self._stopped:
                    return None
                if self._arrived is not None:
                    table, self._arrived = self._arrived, None
                    self._changed.notify_all()
                    return table
            if not self._query.isActive:
                with self._changed:
                    if self._arrived is not None:
                        continue  # type: ignore[unreachable]  # Spark's thread may have brought one
                if (error := self._query.exception()) is not None:
                    raise (self._failure or self._failed(error)) from error
                return None

    def _failed(self, error: BaseException) -> InputError:
        return InputError(
            f"the streaming DataFrame of input '{self.name}' failed: {_reason(error)}",
            hint="everything before it is committed",
        )

    # -- what is kept

    def _look_up(self, skip: int) -> None:
        assert self.keep is not None
        self.keep.mkdir(parents=True, exist_ok=True)
        for left_over in self.keep.glob("*.tmp"):
            left_over.unlink()
        found = [(re.fullmatch(r"rows-(\d+)-(\d+)-(\d+)\.arrow", p.name), p) for p in self.keep.iterdir()]
        files = sorted((BatchFile(p, int(m[1]), int(m[2]), int(m[3])) for m, p in found if m), key=lambda f: f.first)
        whole = all(a.last == b.first for a, b in itertools.pairwise(files))
        if not whole or (files[0].first if files else 0) > skip or (files[-1].last if files else 0) < skip:
            raise InputError(
                f"rows of input '{self.name}' behind row {skip} are gone from {self.keep}", hint=START_OVER
            )
        offsets = self.keep / "checkpoint" / "offsets"
        known = [int(p.name) for p in offsets.iterdir() if p.name.isdigit()] if offsets.is_dir() else []
        if files and max(known, default=-1) < files[-1].batch:
            raise InputError(f"the checkpoint of input '{self.name}' is gone from {self.keep}", hint=START_OVER)
        self._files = files
        self._position = files[-1].last if files else skip


def _read(file: BatchFile) -> pa.Table:
    try:
        table = from_stream(file.path.read_bytes())
        if table.num_rows == file.last - file.first:
            return table
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{file.path} cannot be read: {' '.join(str(error).split())}", hint=START_OVER) from error
    raise InputError(f"{file.path} is damaged", hint=START_OVER)


def _pieces(table: pa.Table, schema: pa.Schema, position: int, most_rows: int) -> Iterator[pa.RecordBatch]:
    for batch in table.combine_chunks().to_batches():
        for part in cut(batch, most_rows):
            yield fit(part, schema, RowOrigin(SOURCE, position))
            position += part.num_rows


def _reason(error: BaseException) -> str:
    """One line of what Spark says of a query that failed."""
    text = re.sub(r"^.*?terminated with exception:\s*", "", str(error), flags=re.DOTALL)
    return " ".join(re.split(r"SQLSTATE|=== |\n\s*at |\nJVM stack", text)[0].split())[:300]
