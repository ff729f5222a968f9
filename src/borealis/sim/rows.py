"""Rows for the inputs of any diagram, drawn from a seed: values that meet each other, and sums that are exact."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from borealis.errors import InputError
from borealis.tuples import KIND

START_US = 1_700_000_000_000_000
STEPS_US = (1, 500, 1_000, 2_000, 5_000)  # from one row's time to the next one's
DISORDERED = 0.3  # of all rows, so many are older than the newest, where the slack lets them
CHUNK_ROWS = 1_000  # drawn at once
VALUES = 5  # different ones in a column
KINDS = ("+I", "+I", "+I", "+U", "-D")  # of an input with a key; with so few keys many rows do not fit what is there


class Drawn:
    """The rows of one input, without an end: each is the same whatever part is asked for.

    Their times rise, and none is late: those out of order are so within the slack. Floats are quarters and decimals
    have few digits, so that no sum of them is rounded, in whatever order. `pace`: how many times longer the steps from
    one row's time to the next one's are than STEPS_US.
    """

    def __init__(self, schema: pa.Schema, time_column: str, seed: str, slack_us: int = 0, pace: int = 1) -> None:
        if time_column not in schema.names or not pa.types.is_timestamp(schema.field(time_column).type):
            hint = "name a TIMESTAMP column as the input's time"
            raise InputError(f"rows with the time '{time_column}' cannot be drawn: it is no such column", hint=hint)
        self._schema, self._time, self._slack_us, self._pace = schema, time_column, slack_us, pace
        self._rng, self._now = Random(seed), START_US
        self._chunks: list[pa.RecordBatch] = []

    def rows(self, first: int, stop: int) -> pa.RecordBatch:
        while len(self._chunks) * CHUNK_ROWS < stop:
            self._chunks.append(self._draw())
        if first >= stop:
            return pa.RecordBatch.from_pylist([], self._schema)
        some = self._chunks[first // CHUNK_ROWS : -(-stop // CHUNK_ROWS)]
        table = pa.Table.from_batches(some, self._schema).slice(first % CHUNK_ROWS, stop - first).combine_chunks()
        return table.to_batches()[0]

    def _draw(self) -> pa.RecordBatch:
        times = pa.array([self._next_time() for _ in range(CHUNK_ROWS)], pa.int64())
        columns = [
            times.cast(pa.timestamp("us", "UTC")).cast(field.type)
            if field.name == self._time
            else pa.array(self._rng.choices(KINDS, k=CHUNK_ROWS))
            if field.name == KIND
            else pa.array([_value(field.type, self._rng) for _ in range(CHUNK_ROWS)], field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _next_time(self) -> int:
        self._now += self._rng.choice(STEPS_US) * self._pace
        return self._now - (self._rng.randint(0, self._slack_us) if self._rng.random() < DISORDERED else 0)


def _value(kind: pa.DataType, rng: Random) -> Any:
    """One of few values of a type; null, where this knows none."""
    n = rng.randrange(VALUES)
    if pa.types.is_integer(kind):
        return n
    if pa.types.is_floating(kind):
        return n / 4
    if pa.types.is_decimal(kind):
        return _decimal(n, kind)
    if pa.types.is_boolean(kind):
        return n % 2 == 0
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "abcde"[n]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return bytes([n])
    if pa.types.is_date(kind):
        return dt.date(2024, 1, 1 + n)
    if pa.types.is_timestamp(kind):
        return dt.datetime(2024, 1, 1 + n, tzinfo=dt.UTC)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_value(kind.value_type, rng) for _ in range(n % 3)]
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, rng) for field in kind}
    if pa.types.is_map(kind):
        return [(_value(kind.key_type, rng), _value(kind.item_type, rng))]
    return None


def _decimal(n: int, kind: pa.DataType) -> Decimal:
    whole = kind.precision > kind.scale
    return Decimal(n) if whole else Decimal(n).scaleb(-kind.scale)
