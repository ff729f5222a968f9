"""Sinks inside the program."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from borealis.connectors.python.sink import CallbackSink, DiscardSink, ListSink, TableSink
from borealis.connectors.sink import Sink
from borealis.connectors.sinks import as_sink
from borealis.errors import OutputError

SCHEMA = pa.schema([("n", pa.int32())])


def some(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int32())})


def feed(sink: Sink) -> int:
    sink.open(SCHEMA, None)
    sink.write(some(1, 2))
    sink.write(some())
    sink.write(pa.concat_tables([some(3), some(4)]))
    position = sink.flush(sync=True)
    sink.close(complete=True)
    return position


def test_a_list_gets_dicts() -> None:
    rows: list[dict[str, Any]] = [{"n": 0}]
    assert feed(as_sink(rows)) == 4
    assert rows == [{"n": n} for n in range(5)]


def test_a_callback_gets_one_batch_per_write() -> None:
    got: list[pa.RecordBatch] = []
    feed(as_sink(got.append))
    assert [batch.to_pydict()["n"] for batch in got] == [[1, 2], [3, 4]]


def test_a_callback_that_fails_is_named() -> None:
    def fussy(batch: pa.RecordBatch) -> None:
        raise KeyError("x")

    with pytest.raises(OutputError, match="function fussy raised KeyError"):
        feed(CallbackSink(fussy))


def test_tables_are_collected() -> None:
    sink = TableSink()
    feed(sink)
    assert sink.table().to_pydict() == {"n": [1, 2, 3, 4]}
    sink.open(SCHEMA, None)
    assert sink.table() == SCHEMA.empty_table()


def test_discard_only_counts() -> None:
    sink = as_sink("discard:")
    assert isinstance(sink, DiscardSink)
    assert feed(sink) == 4


def test_a_sink_is_itself_and_a_number_is_none() -> None:
    sink = ListSink([])
    assert as_sink(sink) is sink
    with pytest.raises(OutputError, match="an int cannot be an output"):
        as_sink(3)
