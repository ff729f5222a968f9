"""Records of a topic as rows of an input; of one with a key, records may also delete and replace what came before.

1. A row says what it does in `_kind`, like everywhere.
2. A tombstone, a record without a value, deletes the row that the record's key names.
3. A change of Debezium's (`format="debezium"`) is an insertion, a replacement or a deletion, as its `op` says. The
   tombstone that follows its deletions says the same once more, so tombstones count for nothing there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.connectors.records import (
    FORMATS,
    IT,
    RECORD,
    RECORD_BYTES_MOST,
    CsvRecords,
    Decoded,
    JsonRecords,
    Records,
    decode,
    joined,
    parse_object,
    records,
    shown,
)
from borealis.errors import InputError
from borealis.kernels.time_of import TimeOf
from borealis.tuples import KIND, KIND_NAMES, Int64s, Kind
from borealis.values.fit import fit, fit_column
from borealis.values.python import batch_of

DEBEZIUM = "debezium"
OPS = {"c": Kind.INSERTION, "r": Kind.INSERTION, "u": Kind.UPDATE_AFTER, "d": Kind.DELETION}  # r: read for a snapshot
WRAPPER = {"schema", "payload"}  # what Kafka Connect puts around keys and values that carry their schema


class TopicRecords:
    """Reads the records of a topic: their values and, for an input with a key, their keys."""

    def __init__(self, format_: str, schema: pa.Schema, time: TimeOf | None = None, key: Sequence[str] = ()) -> None:
        self._schema, self._time, self._key = schema, time, key
        formats: dict[str, Callable[[pa.Schema], Records]] = FORMATS | {DEBEZIUM: DebeziumRecords}
        self._reader = records(format_, schema, formats | {"csv": CsvChanges} if key else formats)
        self._names = KeyRecords(schema, key) if key else None
        self.reads_keys = self._names is not None

    def decode(self, values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> Decoded:
        """The rows of the records, in their order; `keys` are needed if it `reads_keys`."""
        made = decode(values, self._reader, self._schema, self._time)
        if self._names is None:
            return made
        gone = np.array([i for i, value in enumerate(values) if value is None] if None in values else [], np.int64)
        named = self._nameless(made) if isinstance(self._reader, DebeziumRecords) else gone
        if not len(gone) and not len(named):
            return made
        found = decode([keys[i] for i in named.tolist()], self._names, self._schema, self._time)
        other = ~np.isin(made.record, named)
        record = np.concatenate([made.record[other], named[found.record]])
        rows = joined([made.rows.filter(pa.array(other)), found.rows], self._schema)
        order = np.argsort(record, kind="stable")
        bad = [(i, why) for i, why in made.bad if values[i] is not None]
        bad += [(at := int(named[i]), _reason(keys[at], why)) for i, why in found.bad]
        return Decoded(rows.take(pa.array(order)), record[order], sorted(bad), made.raw, made.hint)

    def _nameless(self, made: Decoded) -> Int64s:
        """The deletions that do not say themselves which row goes."""
        found = pc.equal(made.rows[KIND], KIND_NAMES[Kind.DELETION])
        lacks = [made.rows[name].is_null() for name in self._key]
        some = np.any([np.asarray(one) for one in lacks], axis=0) & np.asarray(found)
        nameless: Int64s = made.record[some]
        return nameless


def _reason(key: bytes | None, why: str) -> str:
    if key is None:
        return f"{IT} deletes a row, and has no key that says which"
    return f"its key{why.removeprefix(IT)}" if why.startswith(f"{IT} ") else f"its key: {why}"


class KeyRecords:
    """Keys as deletions of the rows that they name: a JSON object with the key's columns; or just the value, as text
    or as JSON text, if that is one column. With or without the wrapper of Kafka Connect.
    """

    bytes_most: float = RECORD_BYTES_MOST

    def __init__(self, schema: pa.Schema, key: Sequence[str]) -> None:
        self._schema, self._key = schema, tuple(key)

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """One deletion each; what is not of the key is null."""
        columns = dict(zip(self._key, zip(*map(self._texts, values), strict=True), strict=True))
        arrays = [
            pa.array([KIND_NAMES[Kind.DELETION]] * len(values), field.type)
            if field.name == KIND
            else fit_column(pa.array(columns[field.name], pa.string()), field, RECORD, text=True)
            if field.name in columns
            else pa.nulls(len(values), field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), None

    def _texts(self, key: bytes) -> list[str | None]:
        """The text of each column."""
        try:
            text = key.decode()
        except UnicodeDecodeError:
            raise InputError(f"{IT} is not UTF-8") from None
        found: Any = None
        if text[:1] in ("{", '"'):
            try:
                found = json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
            except (ValueError, RecursionError):
                found = None
        if isinstance(found, dict) and found.keys() == WRAPPER:
            found = found["payload"]
        elif found is None:
            found = text
        if not isinstance(found, dict):
            found = {self._key[0]: found} if len(self._key) == 1 else {}
        for name in self._key:
            if name not in found:
                raise InputError(f"{IT} has no column '{name}': {shown(text)!r}")
        return [_text(found[name], name) for name in self._key]


def _text(value: Any, name: str) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, str):
        return value
    raise InputError(f"column '{name}' is neither text nor a number, but {shown(json.dumps(value))!r}")


class DebeziumRecords:
    """The envelope of Debezium, as JSON, with or without the wrapper of Kafka Connect.

    What comes is `after`; what goes is `before`, as far as it is there.
    """

    bytes_most: float = RECORD_BYTES_MOST

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._columns = pa.schema([field for field in schema if field.name != KIND])
        row = pa.struct(self._columns)
        change = [pa.field("op", pa.string()), pa.field("before", row), pa.field("after", row)]
        self._json = JsonRecords(pa.schema([*change, pa.field("payload", pa.struct(change))]))

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """By Arrow's reader where it can; records with and without the wrapper are not read together."""
        try:
            found, _ = self._json.read(values)
        except InputError:
            if len(values) == 1:
                self._blame(values[0])
            raise
        *bare, payload = found.columns
        if 0 < payload.null_count < len(payload):
            raise InputError("some with a wrapper, some without")
        op, before, after = bare if payload.null_count else payload.flatten()
        kind = np.array([OPS.get(one, -1) for one in op.to_pylist()], np.int8)
        goes = kind == Kind.DELETION
        if (kind < 0).any():
            raise InputError(f"{IT} is no change of a row: `op` is {op[int(np.argmax(kind < 0))]}, not c, r, u or d")
        if (np.asarray(after.is_null()) & ~goes).any():
            raise InputError(f"{IT} is no change of a row: it has no `after`")
        count = len(kind)
        rows = pa.concat_arrays([after, before]).take(pa.array(np.arange(count) + count * goes)) if any(goes) else after
        kinds = pa.array(KIND_NAMES).take(pa.array(kind))
        return pa.RecordBatch.from_arrays([*rows.flatten(), kinds], schema=self._schema), None

    def _blame(self, value: bytes) -> None:
        """Raise what is wrong with a column of a change, if that is it."""
        change = parse_object(value, IT)
        change = change["payload"] if isinstance(change.get("payload"), dict) else change
        for row in (change.get("before"), change.get("after")):
            if isinstance(row, dict):
                batch_of([[row.get(name) for name in self._columns.names]], self._columns, RECORD)


class CsvChanges:
    """A line a record: the declared columns in their order, alone or with the kind in front of them."""

    bytes_most: float = RECORD_BYTES_MOST

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        columns = [field for field in schema if field.name != KIND]
        self._plain, self._kinds = (CsvRecords(pa.schema(some)) for some in (columns, [schema.field(KIND), *columns]))

    def read(self, values: Sequence[bytes]) -> tuple[pa.RecordBatch, Int64s | None]:
        """Lines with and without a kind are not read together."""
        try:
            rows, _ = self._plain.read(values)
        except InputError as error:
            try:
                rows, _ = self._kinds.read(values)
            except InputError:
                raise error from None
        return fit(
            rows.select([name for name in self._schema.names if name in rows.schema.names]), self._schema, RECORD
        ), None
