"""How an input's tuples get their times: from a column, or by an expression over the row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.errors import TrainError
from borealis.kernels.aside import failing
from borealis.kernels.columns import to_numpy
from borealis.kernels.expr import Expr, column, from_json, to_json
from borealis.kernels.kinds import takes_back
from borealis.tuples import FIRST_TIME, TIMESTAMP, Int64s

NOTE, KEY_NOTE = b"borealis.time", b"borealis.key"  # in a schema's metadata


@dataclass(frozen=True)
class TimeOf:
    """`text` as the diagram has it; `expr` is its Arrow twin, None where the text is the name of a column.

    >>> ts = TimeOf("ts")
    >>> ts.faults(pa.table({"ts": pa.array([7, None], TIMESTAMP)}))
    [(1, "column 'ts' is null")]
    """

    text: str
    expr: Expr | None = None

    @classmethod
    def of(cls, time: str | TimeOf) -> TimeOf:
        """A time that may be just the name of its column."""
        return time if isinstance(time, TimeOf) else cls(time)

    def column(self, rows: pa.Table | pa.RecordBatch) -> Any:
        """The time of every row, null where it has none. Raises TrainError where there is a value that is no time."""
        return rows.column(self.text) if self.expr is None else column(self.expr, rows, TIMESTAMP)

    def micros(self, rows: pa.Table | pa.RecordBatch) -> Int64s:
        """The times of rows each of which has one, or needs none."""
        return self.until_fault(rows)[0]

    def until_fault(self, rows: pa.Table | pa.RecordBatch) -> tuple[Int64s, str | None]:
        """The times of the rows before the first that has none, and why that one has none.

        A row that takes another back needs no time, and whatever it has does not count: FIRST_TIME.
        """
        back = takes_back(rows)
        if back is None:
            return self._until_fault(rows)
        if self.expr is None and not (times := self.column(rows)).null_count:
            return np.where(back, FIRST_TIME, to_numpy(times)), None
        own = np.flatnonzero(~back)
        some, fault = self._until_fault(rows.take(pa.array(own)))
        times = np.full(len(back) if fault is None else int(own[len(some)]), FIRST_TIME)
        times[own[: len(some)]] = some
        return times, fault

    def _until_fault(self, rows: pa.Table | pa.RecordBatch) -> tuple[Int64s, str | None]:
        try:
            times = self.column(rows)
        except TrainError:
            at, why = self._faults(rows)[0]
            return to_numpy(self.column(rows.slice(0, at))), why
        if not times.null_count:
            return to_numpy(times), None
        return to_numpy(times.slice(0, pc.index(pc.is_null(times), True).as_py())), self._null

    def faults(self, rows: pa.Table | pa.RecordBatch) -> list[tuple[int, str]]:
        """All rows without a time that need one, in order, and why each has none."""
        back = takes_back(rows)
        if back is None:
            return self._faults(rows)
        own = np.flatnonzero(~back)
        return [(int(own[at]), why) for at, why in self._faults(rows.take(pa.array(own)))]

    def _faults(self, rows: pa.Table | pa.RecordBatch) -> list[tuple[int, str]]:
        """Halves what has a value that is no time."""
        nulls: list[tuple[int, str]] = []

        def look(start: int, stop: int) -> None:
            found = self.column(rows.slice(start, stop - start)).is_null()
            nulls.extend((start + int(at), self._null) for at in np.flatnonzero(np.asarray(found)))

        wrong = [(one.row, str(one.error.args[0])) for one in failing(rows.num_rows, look, TrainError)]
        return sorted(nulls + wrong)

    @property
    def _null(self) -> str:
        return f"column '{self.text}' is null" if self.expr is None else f"`{self.text}` is null"

    def to_text(self) -> str:
        """For one who has no Spark to ask."""
        return json.dumps({"text": self.text, "expr": None if self.expr is None else to_json(self.expr)})

    @classmethod
    def from_text(cls, text: str) -> TimeOf:
        form = json.loads(text)
        return cls(form["text"], None if form["expr"] is None else from_json(form["expr"]))


def noted(schema: pa.Schema, time: TimeOf, key: Sequence[str] = ()) -> pa.Schema:
    """The columns of an input, with notes for those who send to it: its time, and what names a row."""
    return schema.with_metadata({NOTE: time.to_text(), KEY_NOTE: json.dumps(key)})


def note_in(schema: pa.Schema) -> TimeOf | None:
    """What was noted, if anything was."""
    note = (schema.metadata or {}).get(NOTE)
    return None if note is None else TimeOf.from_text(note.decode())


def key_in(schema: pa.Schema) -> tuple[str, ...]:
    """The columns that name a row of an input; none if no key was noted."""
    return tuple(json.loads((schema.metadata or {}).get(KEY_NOTE, b"[]")))
