"""A stream as a Spark sink: each micro-batch enters the stream once, however often Spark repeats it.

1. Executors hand their rows to the driver, as Arrow, when their tasks are done. A micro-batch that fails before all of
   them are has no effect.
2. The driver orders the rows by the input's time: neither rows nor partitions of a DataFrame have an order, and what
   is too far behind would be late. Rows that correct others come behind all that insert.
3. It publishes them as one batch, with the number of the micro-batch, under a name that the checkpoint has in it (the
   query's id). The entry point takes a number once, and the batch whole or not at all. So a repeated micro-batch is
   known by its number, and a new checkpoint, which counts from 0 again, by its name.
4. Micro-batches without rows are not published; the next one sends empty batches for the numbers in between.
5. What is too large for one batch is cut into parts. All but the last go first, under a name of their own for this
   micro-batch, numbered from 0; then the last, with the number of the micro-batch. If that is there, all is; if not,
   the count of the parts that are there tells where to go on. For this the parts must be the same every time: rows are
   put in order by all their columns.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from borealis.client.publisher import schema_of
from borealis.errors import InputError, OutputError, StateError, StreamError, did_you_mean
from borealis.kernels.kinds import kinds_of
from borealis.kernels.time_of import TimeOf, note_in
from borealis.retrying import RETRIES
from borealis.spark.frames import in_order
from borealis.spark.stream_client import ADDRESS, StreamAddress, StreamClient, check_options, whole_number
from borealis.state.delta import from_stream, to_stream
from borealis.streams.section import empty_rows
from borealis.tuples import KIND, LAST_TIME, Kind, halves
from borealis.values.fit import RowOrigin, fit, match_columns
from borealis.wire.client import Peer
from borealis.wire.messages import BatchHead, Publish
from borealis.wire.service import BATCH_BYTES_MOST

OPTIONS = (*ADDRESS, "publisher", "time", "partBytes", "checkpointLocation")
PART_BYTES = 32 << 20  # well below what the wire takes at most
PATIENT = replace(RETRIES, give_up_s=300.0)  # a full stream keeps its publishers waiting
QUERY_ID = "sql.streaming.queryId"  # Spark's name for a property of its tasks
SOURCE = "the DataFrame"

log = logging.getLogger("borealis.spark")


@dataclass(frozen=True)
class WriteOptions:
    """What a job wants to write, and how."""

    address: StreamAddress
    publisher: str = "spark"  # the first part of the name that it publishes under
    time: str | None = None  # the column that the input takes for a tuple's time; None: as its node says
    part_bytes: int = PART_BYTES

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        check_options(options, OPTIONS)
        publisher = options.get("publisher", "spark")
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", publisher):
            raise OutputError(
                f"option publisher cannot be {publisher!r}",
                hint="letters, digits and _.- are good, 100 of them at most",
            )
        part_bytes = whole_number(options, "partBytes", 1) or PART_BYTES
        if part_bytes > BATCH_BYTES_MOST:
            raise OutputError(f"option partBytes cannot be {part_bytes}", hint=f"{BATCH_BYTES_MOST} at most")
        return cls(replace(StreamAddress.of(options), retries=PATIENT), publisher, options.get("time"), part_bytes)


@dataclass(frozen=True)
class TaskRows(WriterCommitMessage):
    """What one task hands to the driver."""

    query: str  # the query's id, which its checkpoint keeps
    data: bytes  # an Arrow stream


class StreamWriter(DataSourceStreamArrowWriter):
    """`writeStream`: see the head of this file."""

    def __init__(self, writing: WriteOptions) -> None:
        self.writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskRows:
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        if query is None:
            raise OutputError("this is no streaming query", hint="write with df.writeStream")
        batches = [batch for batch in iterator if batch.num_rows]
        return TaskRows(query, to_stream(pa.Table.from_batches(batches)).to_pybytes() if batches else b"")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        rows = [m for m in messages if isinstance(m, TaskRows) and m.data]
        if rows:
            tables = [from_stream(m.data) for m in rows]
            publish(self.writing, rows[0].query, batchId, pa.concat_tables(tables))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        log.info("micro-batch %d is not published: a task failed", batchId)


def publish(writing: WriteOptions, query: str, number: int, rows: pa.Table) -> None:
    """Publish a micro-batch, if it is not in the stream yet."""
    name = f"{writing.publisher}.{query}"
    with closing(StreamClient(writing.address, entry=True)) as client:
        schema = client.call(input_schema)
        time = time_of(writing, schema, client.stream)
        parts = cut(as_stream(rows, schema), time, writing.part_bytes)
        client.call(lambda peer, stream: _send(peer, Publish(stream=stream, publisher=name), number, parts))


def _send(peer: Peer, to: Publish, number: int, parts: list[pa.RecordBatch]) -> None:
    """May be done again, whatever it has done before."""
    schema = parts[0].schema
    with peer.publish(to, schema) as publication:
        last = publication.known.number
        if last == number:
            log.info("micro-batch %d is in %s already", number, to.stream)
            return
        if last > number:
            raise StateError(
                f"micro-batch {number} for {to.stream} comes after micro-batch {last} of the same query",
                hint="this checkpoint is an old copy: start with a new one",
            )
        if parts[:-1]:
            own = to.model_copy(update={"publisher": f"{to.publisher}.{number}"})
            with peer.publish(own, schema) as before:
                for i in range(before.known.number + 1, len(parts) - 1):
                    before.send(parts[i], BatchHead(number=i))
        nothing = empty_rows(schema)
        for i in range(last + 1, number):
            publication.send(nothing, BatchHead(number=i))
        publication.send(parts[-1], BatchHead(number=number))


def as_stream(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """The rows with the stream's columns, by name and of its types."""
    try:
        found = match_columns(schema.names, rows.column_names, SOURCE)
    except InputError as error:
        hint = f"give it all columns of the stream: {', '.join(schema.names)}"
        raise OutputError(error.message, hint=hint) from None
    rows = rows.select(found)
    at, fitted = 0, []
    for batch in rows.to_batches():
        fitted.append(fit(batch, schema, RowOrigin(SOURCE, at)))
        at += batch.num_rows
    return pa.Table.from_batches(fitted, schema)


def cut(rows: pa.Table, time: str | TimeOf, most_bytes: int) -> list[pa.RecordBatch]:
    """The rows in the order of their times, in parts that are not too large; the same parts for the same rows."""
    times = TimeOf.of(time).column(rows)
    if KIND in rows.column_names:
        times = pc.if_else(pa.array(kinds_of(rows) == Kind.INSERTION), times.cast(pa.int64()), LAST_TIME)
    [whole] = in_order(rows, times, []).to_batches()
    if whole.nbytes <= most_bytes:
        return [whole]
    [whole] = in_order(rows, times, rows.column_names).to_batches()
    return list(halves(whole, most_bytes))


def input_schema(peer: Peer, stream: str) -> pa.Schema:
    """The columns of an input, with its node's note of their times. What is none may be on its way there: ask again."""
    schema = schema_of(peer, stream)
    if note_in(schema) is None:
        raise StreamError(f"stream {stream} is computed: it takes no publisher", hint="publish to an input")
    return schema


def time_of(writing: WriteOptions, schema: pa.Schema, stream: str) -> TimeOf:
    """How an input's tuples get their times: as the writer says, or as the input's node has noted."""
    if writing.time is None:
        noted = note_in(schema)
        assert noted is not None
        return noted
    if writing.time not in schema.names:
        hint = did_you_mean(writing.time, schema.names)
        raise OutputError(f"no column '{writing.time}' in stream {stream}", hint=hint)
    return TimeOf(writing.time)
