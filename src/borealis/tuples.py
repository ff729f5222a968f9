"""What a tuple is: the user's columns, and a header that orders, times and classifies it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int8s = NDArray[np.int8]
R = TypeVar("R", pa.RecordBatch, pa.Table)

ID = "_id"  # position in its stream, consecutive from 0
TIME = "_time"  # tuple time, microseconds since 1970 (event time)
KIND = "_kind"
STABLE = "_stable"
HEADER = (ID, TIME, KIND, STABLE)

# Only inside a unit: what caused a tuple (the position of an input event in the unit's merge order) and its rank
# among the tuples of the same cause. (cause, sub) is unique on an arrow and orders it.
CAUSE = "_cause"
SUB = "_sub"

FIRST_TIME = -(2**63)  # the boundary of a stream that has promised nothing yet
LAST_TIME = 2**63 - 1  # the boundary of a stream that has ended

TIMESTAMP = pa.timestamp("us", "UTC")  # Spark's TIMESTAMP, in Arrow


class Kind(IntEnum):
    """What a tuple does to what came before it; `KIND_NAMES` are the words of Flink and Debezium.

    Boundaries, undo and stability are no kinds of tuples: a section carries them.
    """

    INSERTION = 0
    DELETION = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3


KIND_NAMES = ("+I", "-D", "-U", "+U")  # by kind; no array, which would load pandas for every reader


def with_header(
    rows: pa.Table, first_id: int, time: Int64s, kind: Int8s | None = None, stable: bool = True
) -> pa.Table:
    """The rows with header columns in front, as they leave the engine when a user asks for headers."""
    n = rows.num_rows
    columns = {
        ID: pa.array(np.arange(first_id, first_id + n, dtype=np.int64)),
        TIME: pa.array(time, pa.int64()),
        KIND: _names_of(np.full(n, Kind.INSERTION, np.int8) if kind is None else kind),
        STABLE: pa.array(np.full(n, stable, np.bool_)),
    }
    return pa.table(columns | dict(zip(rows.column_names, rows.columns, strict=True)))


def kinds_apart(rows: pa.Table) -> tuple[pa.Table, Int8s | None]:
    """The user's columns, and the kinds of rows that carry revisions; those of an input may be words, or missing.

    >>> kinds_apart(pa.table({"n": [1, 2, 3], "_kind": ["-D", None, "+U"]}))[1].tolist()
    [1, 0, 3]
    """
    if KIND not in rows.column_names:
        return rows, None
    kind = rows[KIND]
    if kind.type == pa.string():
        kind = pc.index_in(kind, pa.array(KIND_NAMES)).fill_null(Kind.INSERTION).cast(pa.int8())
    return rows.drop_columns([KIND]), kind.to_numpy()


def with_kinds(rows: pa.Table, kind: Int8s) -> pa.Table:
    """The rows with their kinds in front, as users see them."""
    return rows.add_column(0, pa.field(KIND, pa.string()), _names_of(kind))


def _names_of(kind: Int8s) -> pa.Array:
    return pa.array(KIND_NAMES).take(pa.array(kind, pa.int8()))


def headed(schema: pa.Schema) -> pa.Schema:
    return with_header(kinds_apart(schema.empty_table())[0], 0, np.empty(0, np.int64)).schema


def halves(rows: R, most_bytes: int) -> Iterator[R]:
    """The rows in parts that are not too large; the same parts for the same rows."""
    if rows.num_rows > 1 and rows.nbytes > most_bytes:
        half = rows.num_rows // 2
        yield from halves(rows.slice(0, half), most_bytes)
        yield from halves(rows.slice(half), most_bytes)
    else:
        yield rows
