"""Rows on their way to an input: what they must say, and what becomes of what they leave out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.connectors.python.source import ROWS, table_of
from borealis.connectors.records import JsonRecords
from borealis.connectors.sources import as_source
from borealis.errors import InputError
from borealis.kernels.kinds import UNKNOWN, kinds_of
from borealis.kernels.time_of import key_in
from borealis.tuples import KIND, KIND_NAMES, Int64s, Kind

BY_KEY = (KIND_NAMES[Kind.DELETION], KIND_NAMES[Kind.UPDATE_BEFORE])  # of which only the key counts
UNKEYED = "give the input a key and a history in its diagram: key: [id], history: 1 hour"


@dataclass(frozen=True)
class RowForm:
    """For rows that all do the same, if a `kind` is given; else each says what it does, by its `_kind`."""

    stream: str
    schema: pa.Schema  # of the input
    kind: str | None = None

    def __post_init__(self) -> None:
        if self.kind is None:
            return
        if self.kind not in KIND_NAMES:
            raise InputError(f"'{self.kind}' is no kind of rows", hint=f"give one of {', '.join(KIND_NAMES)}")
        if self.kind != KIND_NAMES[Kind.INSERTION] and not self.takes_kinds:
            raise InputError(f"rows of {self.stream} cannot be corrected: they have no key", hint=UNKEYED)

    @property
    def takes_kinds(self) -> bool:
        return KIND in self.schema.names

    @property
    def by_key(self) -> bool:
        """Whether only the keys of rows count."""
        return self.kind in BY_KEY

    @cached_property
    def wanted(self) -> pa.Schema:
        """The columns that rows are read with; if the last is `_kind`, they need not have it."""
        if self.by_key:
            return pa.schema([self.schema.field(name) for name in key_in(self.schema)])
        if self.kind is None and not self.takes_kinds:
            return self.schema.append(pa.field(KIND, pa.string()))
        return self.schema

    def batches(self, data: Any, rows_most: int) -> Iterator[pa.RecordBatch]:
        """Whatever holds rows, as batches of rows of the input."""
        if isinstance(data, Mapping):
            data = [data]  # one row
        plain = self.kind is None and not self.takes_kinds and not may_have_kinds(data)
        for batch in as_source(data).batches(self.schema if plain else self.wanted, 0, rows_most):
            yield batch if plain else self.whole(batch)

    def whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the wanted columns as rows of the input."""
        if self.kind is None:
            self._require_fitting_kinds(batch)
        if self.kind is None or not self.takes_kinds:
            return batch.select(self.schema.names)
        if self.by_key:
            self._require_keys(batch)
        have = dict(zip(batch.schema.names, batch.columns, strict=True))
        have[KIND] = pa.repeat(pa.scalar(self.kind, pa.string()), batch.num_rows)
        columns = [have[f.name] if f.name in have else pa.nulls(batch.num_rows, f.type) for f in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _require_fitting_kinds(self, batch: pa.RecordBatch) -> None:
        kinds = kinds_of(batch)
        wrong = np.flatnonzero(kinds == UNKNOWN if self.takes_kinds else kinds != Kind.INSERTION)
        if not len(wrong):
            return
        row = f"a row has the {KIND} '{batch.column(KIND)[int(wrong[0])].as_py()}'"
        if self.takes_kinds:
            raise InputError(row, hint=f"give one of {', '.join(KIND_NAMES)}, or nothing")
        raise InputError(f"{row}, but rows of {self.stream} cannot be corrected: they have no key", hint=UNKEYED)

    def _require_keys(self, batch: pa.RecordBatch) -> None:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count:
                have = ", ".join(batch.schema.names)
                raise InputError(
                    f"a row of kind {self.kind} has no {name}", hint=f"rows of {self.stream} go by: {have}"
                )


def may_have_kinds(data: Any) -> bool:
    """Whether rows in memory say what they do; of those that can be read only once, that is not known.

    >>> may_have_kinds([{"n": 1}]), may_have_kinds([{"n": 1}, {"n": 1, "_kind": "-D"}]), may_have_kinds(iter([]))
    (False, True, True)
    """
    if isinstance(data, list | tuple):
        return any(KIND in row if type(row) is dict else _has_kind(row) for row in data)
    return _has_kind(data) if hasattr(data, "columns") else True


def _has_kind(rows: Any) -> bool:
    """Of a row, or a table: tuples have what is declared, and nothing else."""
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return KIND in rows.schema.names
    return KIND in (rows if isinstance(rows, Mapping) else getattr(rows, "columns", ()))


class JsonRows(JsonRecords):
    """Objects of JSON, each of which says what it does, as rows of an input."""

    def __init__(self, schema: pa.Schema) -> None:
        self._form = RowForm("this stream", schema)
        super().__init__(self._form.wanted, fold=True, bytes_most=math.inf)

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """Raises InputError, too, where a row does what the input cannot."""
        batch, counts = super().read(values)
        return self._form.whole(batch), counts


def key_rows(keys: Any) -> Any:
    """Keys as rows: a value that is no row is the only column of its key.

    >>> key_rows([7, {"id": 8}, (9,)])
    [(7,), {'id': 8}, (9,)]
    >>> key_rows("a")
    [('a',)]
    """
    if isinstance(keys, Mapping) or table_of(keys) is not None:
        return keys
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        return [(keys,)]
    return [key if isinstance(key, ROWS) else (key,) for key in keys]
