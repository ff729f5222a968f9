"""What a train changes in the tables of a stateful box, and how such changes add up.

As bytes it is a version, the length of a JSON index, the index, then one Arrow stream per table part, each starting
at a multiple of 64. It has no checksum: what goes to a disk or to another node has one around it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from borealis.errors import StateError
from borealis.tuples import Int64s


@dataclass(frozen=True)
class Change:
    """What happened to one table. Meaning: first drop the rows whose key is in `cut`, then those whose floor column
    is below `floor`, then put the rows of `put` in place of any with the same key.
    """

    put: pa.Table
    cut: pa.Table | None = None  # key columns only
    floor: int | None = None


Delta = dict[str, Change]  # by table name; a table that did not change is absent


@dataclass(frozen=True)
class TableSpec:
    """A state table: its primary key (int64 columns), and the int64 column that `floor` speaks of, if any."""

    name: str
    key: tuple[str, ...]
    floor: str | None = None


def merge(spec: TableSpec, changes: Sequence[Change]) -> Change:
    """One change that does what all do, oldest first. It may also be applied where some of them already were."""
    if len(changes) == 1:
        return changes[0]
    puts = pa.concat_tables([c.put for c in changes])
    put_age = np.repeat(np.arange(len(changes)), [c.put.num_rows for c in changes])
    keep = np.ones(puts.num_rows, np.bool_)
    floors = [c.floor for c in changes if c.floor is not None]
    if spec.floor is not None and floors:
        # a row falls by any floor that came after it
        lowest = np.iinfo(np.int64).min
        newest_first = [lowest, *(lowest if c.floor is None else c.floor for c in reversed(changes))]
        keep &= puts[spec.floor].to_numpy() >= np.maximum.accumulate(newest_first)[::-1][put_age + 1]
    cuts = [c.cut for c in changes if c.cut is not None]
    cut = pa.concat_tables(cuts) if cuts else None
    cut_age = np.repeat(np.arange(len(changes)), [0 if c.cut is None else c.cut.num_rows for c in changes])
    last, distinct = _last_put(spec, puts, put_age, cut, cut_age)
    keep &= last
    return Change(
        puts.filter(pa.array(keep)),
        cut=None if cut is None else cut.take(pa.array(distinct)),
        floor=max(floors) if floors else None,
    )


def _last_put(
    spec: TableSpec, puts: pa.Table, put_age: Int64s, cut: pa.Table | None, cut_age: Int64s
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], Int64s]:
    """Which put rows are the last word on their key, and which cut rows to keep (one per key)."""
    n = puts.num_rows
    columns = [puts[k].to_numpy() for k in spec.key]
    order = 2 * put_age + 1
    if cut is not None:
        columns = [np.concatenate([c, cut[k].to_numpy()]) for c, k in zip(columns, spec.key, strict=True)]
        order = np.concatenate([order, 2 * cut_age])
    if not len(order):
        return np.ones(0, np.bool_), np.empty(0, np.int64)
    sorting = np.lexsort((order, *reversed(columns)))
    same = np.ones(len(sorting) - 1, np.bool_)
    for column in columns:
        ranked = column[sorting]
        same &= ranked[1:] == ranked[:-1]
    final = np.zeros(len(sorting), np.bool_)
    final[sorting[np.append(~same, True)]] = True
    if cut is None:
        return final[:n], np.empty(0, np.int64)
    group = np.concatenate(([0], np.cumsum(~same)))
    cuts = sorting >= n
    _, first = np.unique(group[cuts], return_index=True)
    return final[:n], np.sort(sorting[cuts][first] - n)


def merge_deltas(specs: Sequence[TableSpec], deltas: Sequence[Delta], *, whole: bool) -> Delta:
    """Several trains' deltas as one, oldest first. `whole`: the first starts from nothing, so cuts are done with."""
    merged: Delta = {}
    for spec in specs:
        changes = [d[spec.name] for d in deltas if spec.name in d]
        if changes:
            change = merge(spec, changes)
            merged[spec.name] = Change(change.put) if whole else change
    return merged


_MAGIC = b"BDL2"
_ALIGN = 64


def pack(delta: Delta) -> bytes:
    parts = [(name, change.floor, change.cut is not None) for name, change in delta.items()]
    tables = [table for change in delta.values() for table in (change.put, change.cut) if table is not None]
    blobs = [to_stream(table) for table in tables]
    head = json.dumps([parts, [blob.size for blob in blobs]]).encode()
    out = bytearray(_MAGIC + struct.pack("<I", len(head)) + head)
    for blob in blobs:
        out += b"\0" * (-len(out) % _ALIGN)
        out += memoryview(blob)
    return bytes(out)


def unpack(data: bytes | pa.Buffer) -> Delta:
    """The delta in these bytes, without copying them."""
    buffer = pa.py_buffer(data)
    view = memoryview(buffer)
    if view[:4] != _MAGIC:
        raise StateError("these bytes are not a state delta of this version", hint="start with a new state directory")
    (size,) = struct.unpack("<I", view[4:8])
    at = 8 + size
    parts, sizes = json.loads(bytes(view[8:at]))
    tables = []
    for length in sizes:
        at += -at % _ALIGN
        tables.append(from_stream(buffer.slice(at, length)))
        at += length
    table = iter(tables)
    return {name: Change(next(table), next(table) if cut else None, floor) for name, floor, cut in parts}


def to_stream(table: pa.Table) -> pa.Buffer:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def from_stream(data: bytes | pa.Buffer) -> pa.Table:
    """The table in an Arrow IPC stream, zero-copy."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
