"""Rows for the inputs of any diagram, drawn from a seed: values that meet each other, and sums that are exact."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from borealis.errors import InputError

START_US = 1_700_000_000_000_000
STEPS_US = (1, 500, 1_000, 2_000, 5_000)  # from one row's time to the next one's
DISORDERED = 0.3  # of all rows, so many are older than the newest, where the slack lets them
VALUES = 5  # different ones in a column


def drawn(schema: pa.Schema, time_column: str, count: int, rng: Random, slack_us: int = 0) -> pa.RecordBatch:
    """So many rows. Their times rise, and none is late: those out of order are so within the slack.

    Floats are quarters and decimals have few digits, so that no sum of them is rounded, in whatever order.
    """
    if time_column not in schema.names or not pa.types.is_timestamp(schema.field(time_column).type):
        hint = "name a TIMESTAMP column as the input's time"
        raise InputError(f"rows with the time '{time_column}' cannot be drawn: it is no such column", hint=hint)
    times = pa.array(_times(count, rng, slack_us), pa.int64())
    columns = [
        times.cast(pa.timestamp("us", "UTC")).cast(field.type)
        if field.name == time_column
        else pa.array([_value(field.type, rng) for _ in range(count)], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _times(count: int, rng: Random, slack_us: int) -> list[int]:
    now, found = START_US, []
    for _ in range(count):
        now += rng.choice(STEPS_US)
        found.append(now - rng.randint(0, slack_us) if rng.random() < DISORDERED else now)
    return found


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
