"""Tuples that a box cannot take, set aside: which ones, in which expression, and why.

A row that fails fails alone, whatever stands beside it, so the same tuples go aside however the input is cut. An error
that comes without any row is the box's own, and goes on.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.errors import BorealisError
from borealis.kernels.flow import Flow
from borealis.tuples import CAUSE, SUB, TIME, TIMESTAMP, Int64s
from borealis.values.fit import sql_name

ERRORS = "errors"  # the flow of a unit's failed tuples; outside it is `<unit>.errors`
RANK = 40  # bits that a failed tuple's own `sub` has; above them stands the number of the step that it failed in
WHEN, BOX, EXPRESSION, REASON, TUPLE = "time", "box", "expression", "reason", "tuple"
SCHEMA = pa.schema([(WHEN, TIMESTAMP), *((name, pa.string()) for name in (BOX, EXPRESSION, REASON, TUPLE))])
DDL = ", ".join(f"{one.name} {sql_name(one.type)}" for one in SCHEMA)
Failures = type[Exception] | tuple[type[Exception], ...]


@dataclass(frozen=True)
class Failed:
    """A row, by its place in the flow, and what came of it."""

    row: int
    error: Exception


def failing(rows: int, run: Callable[[int, int], object], kind: Failures = Exception) -> Iterator[Failed]:
    """The rows on which `run`, given from where to where, fails, in order: what fails is halved."""
    waiting = [(0, rows)]
    while waiting:
        start, stop = waiting.pop()
        try:
            run(start, stop)
        except kind as error:
            if stop - start == 1:
                yield Failed(start, error)
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]


def sift(flow: Flow, run: Callable[[Flow], Flow]) -> tuple[Flow, list[Failed]]:
    """What `run`, which looks at each row alone, makes of the rows it can take; and those it cannot."""
    run(flow.take(np.empty(0, np.int64)))  # what fails without a row is no row's fault
    failed = list(failing(len(flow), lambda start, stop: run(flow.take(np.arange(start, stop)))))
    good = np.delete(np.arange(len(flow)), [f.row for f in failed])
    return run(flow.take(good)), failed


def records(
    flow: Flow, failed: list[Failed], rank: int, box: str, expression: Callable[[Flow], str]
) -> pa.Table | None:
    """Failed rows of a step as rows of the errors' flow; None if there are none."""
    if not failed:
        return None
    index = np.array([one.row for one in failed], np.int64)
    alone = [flow.take(index[i : i + 1]) for i in range(len(index))]
    texts = ([box] * len(index), map(expression, alone), (reason_of(one.error) for one in failed), map(_shown, alone))
    return table(flow.time[index], flow.cause[index], flow.sub[index] + (rank << RANK), *texts)


def table(time: Any, cause: Any, sub: Any, *texts: Iterable[str]) -> pa.Table:
    """Rows of the errors' flow, with the hidden columns behind."""
    when = pa.array(time, pa.int64())
    columns = [when.view(TIMESTAMP), *(pa.array(list(text), pa.string()) for text in texts)]
    hidden = {TIME: when, CAUSE: pa.array(cause, pa.int64()), SUB: pa.array(sub, pa.int64())}
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)) | hidden)


def once(failed: Flow) -> Int64s:
    """The places of failed tuples, each only once however many runs of its box have found it."""
    own = failed.sub & ((1 << RANK) - 1)
    seen: dict[tuple[Any, ...], int] = {}
    texts = zip(failed.rows[BOX].to_pylist(), failed.rows[TUPLE].to_pylist(), strict=True)
    for place, (cause, sub, text) in enumerate(zip(failed.cause.tolist(), own.tolist(), texts, strict=True)):
        seen.setdefault((cause, sub, *text), place)
    return np.fromiter(seen.values(), np.int64, len(seen))


def reason_of(error: BaseException) -> str:
    """Why, on one line."""
    text = error.message if isinstance(error, BorealisError) else str(error)
    line = " ".join(text.split())
    return line if isinstance(error, BorealisError) else f"{type(error).__name__}: {line}".removesuffix(": ")


def _shown(row: Flow) -> str:
    [values] = row.rows.to_pylist() or [{}]
    return json.dumps(values, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    match value:
        case datetime.datetime() | datetime.date():
            return value.isoformat()
        case Decimal() | datetime.timedelta():
            return str(value)
        case bytes():
            return value.hex()
        case _:
            return repr(value)
