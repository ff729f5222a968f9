"""Flows for kernels that aggregate, written as a reader would say them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from borealis.kernels.accumulators import AggregateCall as Call
from borealis.kernels.flow import Bounds, Flow
from borealis.tuples import FIRST_TIME

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
CALLS = [Call("count", None, pa.int64()), Call("sum", "v", pa.int64()), Call("last", "v", pa.int64())]


class Feed:
    """Trains for a kernel: `train((time, key, value) ..., bound)`; causes and boundaries go on from one to the next."""

    def __init__(self) -> None:
        self.standing, self.cause = FIRST_TIME, 0

    def train(self, *events: tuple[int, str | None, int | None] | int) -> Flow:
        """Rows and boundaries in the order in which they come."""
        rows = [(self.cause + i, e) for i, e in enumerate(events) if isinstance(e, tuple)]
        bounds = [(self.cause + i, e) for i, e in enumerate(events) if isinstance(e, int)]
        self.cause += len(events)
        table = pa.table([[e[1] for _, e in rows], [e[2] for _, e in rows]], schema=SCHEMA)
        cause = np.array([at for at, _ in rows], np.int64)
        promised = Bounds(self.standing, *(np.array([b[i] for b in bounds], np.int64) for i in (0, 1)))
        self.standing = promised.final
        return Flow(table, np.array([e[0] for _, e in rows], np.int64), cause, np.zeros(len(rows), np.int64), promised)


def told(out: Flow) -> list[tuple[Any, ...]]:
    """Results as (cause, time, key, start, end, ...), times in microseconds."""
    table = out.rows
    for i, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(i, field.name, table[field.name].cast(pa.int64()))
    columns = [column.to_pylist() for column in table.columns]
    assert out.sub.tolist() == [out.cause.tolist()[:i].count(c) for i, c in enumerate(out.cause.tolist())]
    return list(zip(out.cause.tolist(), out.time.tolist(), *columns, strict=True))


def sizes(kernel: Any) -> dict[str, int]:
    """How many rows each of its tables has."""
    return {name: table.num_rows for name, table in kernel.tables_now().items()}
