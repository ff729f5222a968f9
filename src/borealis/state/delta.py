"""What a train changes in the tables of a stateful box, and how such changes add up.

As bytes it is a version, the length of a JSON index, the index, then for each table an Arrow stream of what is put,
from a multiple of 64 on, and the keys that are cut, as plain numbers, one column after the other, from a multiple of 8
on. It has no checksum: what goes to a disk or to another node has one around it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from borealis.errors import StateError
from borealis.state.keys import by_key_and_age
from borealis.tuples import FIRST_TIME, Int64s


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
    once: bool = False  # a key is put once in the life of a state: never again, whether it is there or was cut


def merge(spec: TableSpec, changes: Sequence[Change], *, closed: bool = False) -> Change:
    """One change that does what all do, oldest first. It may also be applied where some of them already were.

    Not so if it is `closed`: then it is for those who have none of them, or all, and tells nothing of a row that came
    and went meanwhile.
    """
    if len(changes) == 1:
        return changes[0]
    puts = pa.concat_tables([c.put for c in changes])
    put_age = np.repeat(np.arange(len(changes)), [c.put.num_rows for c in changes])
    keep = np.ones(puts.num_rows, np.bool_)
    floors = [c.floor for c in changes if c.floor is not None]
    if spec.floor is not None and floors:
        # a row falls by any floor that came after it
        lowest = FIRST_TIME
        newest_first = [lowest, *(lowest if c.floor is None else c.floor for c in reversed(changes))]
        keep &= puts[spec.floor].to_numpy() >= np.maximum.accumulate(newest_first)[::-1][put_age + 1]
    cuts = [c.cut for c in changes if c.cut is not None]
    cut = pa.concat_tables(cuts) if cuts else None
    cut_age = np.repeat(np.arange(len(changes)), [0 if c.cut is None else c.cut.num_rows for c in changes])
    last, distinct = _last_put(spec, puts, put_age, cut, cut_age, leave_out=closed and spec.once)
    keep &= last
    return Change(
        puts.filter(pa.array(keep)),
        cut=None if cut is None else cut.take(pa.array(distinct)),
        floor=max(floors) if floors else None,
    )


def _last_put(
    spec: TableSpec, puts: pa.Table, put_age: Int64s, cut: pa.Table | None, cut_age: Int64s, *, leave_out: bool
) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], Int64s]:
    """Which put rows are the last word on their key, and which cut rows to keep (one per key; `leave_out`: none of a
    key that is put as well)."""
    n = puts.num_rows
    columns = [puts[k].to_numpy() for k in spec.key]
    order = 2 * put_age + 1
    if cut is not None:
        columns = [np.concatenate([c, cut[k].to_numpy()]) for c, k in zip(columns, spec.key, strict=True)]
        order = np.concatenate([order, 2 * cut_age])
    if cut is None and np.all(columns[0][1:] > columns[0][:-1]):  # as of rows that only come
        return np.ones(n, np.bool_), np.empty(0, np.int64)
    sorting, same = by_key_and_age(columns, order)
    final = np.zeros(len(sorting), np.bool_)
    final[sorting[np.append(~same, True)]] = True
    if cut is None:
        return final[:n], np.empty(0, np.int64)
    group = np.concatenate(([0], np.cumsum(~same)))
    cuts = sorting >= n
    if leave_out:
        is_put = np.zeros(len(group), np.bool_)  # by group
        is_put[group[~cuts]] = True
        cuts &= ~is_put[group]
    first = np.flatnonzero(np.diff(group[cuts], prepend=-1))
    return final[:n], np.sort(sorting[cuts][first] - n)


def merge_deltas(
    specs: Sequence[TableSpec], deltas: Sequence[Delta], *, whole: bool = False, closed: bool = False
) -> Delta:
    """Several trains' deltas as one, oldest first. `whole`: the first starts from nothing, so cuts are done with.
    `closed`: what came and went meanwhile is left out, as `merge` says."""
    merged: Delta = {}
    for spec in specs:
        changes = [d[spec.name] for d in deltas if spec.name in d]
        if changes:
            change = merge(spec, changes, closed=closed)
            merged[spec.name] = Change(change.put) if whole else change
    return merged


_MAGIC = b"BDL5"
_WHOLE = b"BDL4"  # in which each column was written out
_BEFORE = b"BDL3"  # in which keys were Arrow streams, too, and all sizes stood together
_ALIGN, _ALIGN_KEYS = 64, 8
_KEY_BYTES = 8
_NO_KEYS = np.empty(0, np.int64)
SMALL_ROWS = 1_000  # of a table: up to there it is written to memory that grows, beyond into as much as it takes
WRITE = pa.ipc.IpcWriteOptions()  # given, since Arrow asks the environment otherwise


class Unwritten:
    """What has a size, but is no bytes yet: those are made where they go, and once."""

    size: int

    def write(self, sink: pa.NativeFile) -> None:
        """All of it, from the beginning of a file or a buffer on."""
        raise NotImplementedError

    def buffer(self) -> pa.Buffer:
        buffer = pa.allocate_buffer(self.size)
        with pa.FixedSizeBufferWriter(buffer) as sink:
            self.write(sink)
        return buffer


class TableStream(Unwritten):
    """A table as one Arrow IPC stream."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        sink = pa.MockOutputStream()
        self.write(sink)
        self.size = int(sink.size())

    def write(self, sink: pa.NativeFile) -> None:
        with pa.ipc.new_stream(sink, self._table.schema, options=WRITE) as writer:
            writer.write_table(self._table)


class BoxDelta(Unwritten):
    """What a train changed in the tables of a box."""

    def __init__(self, box: str, delta: Delta) -> None:
        self._parts: list[tuple[int, pa.Buffer | TableStream]] = []  # from a multiple of which they begin
        index = []
        for name, change in delta.items():
            same = _constants(change.put)
            put = unwritten(change.put.drop_columns([column for _, column, _, _ in same]))
            self._parts.append((_ALIGN, put))
            shape = None if change.cut is None else _shape(change.cut)
            index.append((name, change.floor, put.size, shape, same))
            if change.cut is not None:
                self._parts.append((_ALIGN_KEYS, _numbers(change.cut)))
        head = json.dumps([index, box], separators=(",", ":")).encode()
        self._head = _MAGIC + struct.pack("<I", len(head)) + head
        self.size = len(self._head)
        for align, part in self._parts:
            self.size += -self.size % align + part.size

    def write(self, sink: pa.NativeFile) -> None:
        sink.write(self._head)
        for align, part in self._parts:
            sink.write(b"\0" * (-sink.tell() % align))
            if isinstance(part, TableStream):
                part.write(sink)
            else:
                sink.write(part)


def _constants(table: pa.Table) -> list[tuple[int, str, bool, int]]:
    """Columns of a large table that have the same number in all rows: where they stand, what they are called, whether
    they may have nulls, and the number."""
    found: list[tuple[int, str, bool, int]] = []
    if len(table) <= SMALL_ROWS or len(table.columns) < 2:
        return found
    for place, (field, column) in enumerate(zip(table.schema, table.columns, strict=True)):
        plain = field.type == pa.int64() and field.metadata is None and not column.null_count
        if plain and column[0] == column[-1]:
            parts = [part.to_numpy() for part in column.chunks]
            number = column[0].as_py()
            if len(found) + 1 < len(table.columns) and all(np.all(part == number) for part in parts):
                found.append((place, field.name, field.nullable, number))
    return found


def _shape(cut: pa.Table) -> tuple[list[str], int]:
    return cut.column_names, cut.num_rows


def _numbers(cut: pa.Table) -> pa.Buffer:
    """The keys, one column after the other."""
    columns = [column.to_numpy() for column in cut.columns]
    return pa.py_buffer(np.concatenate([_NO_KEYS, *columns]).astype("<i8", copy=False))


def _keys(data: pa.Buffer, names: Sequence[str], count: int) -> pa.Table:
    columns = np.frombuffer(data, "<i8", len(names) * count).reshape(len(names), count)
    return pa.table([pa.array(column) for column in columns], names=list(names))


def pack(delta: Delta) -> bytes:
    return bytes(BoxDelta("", delta).buffer().to_pybytes())


def box_of(data: bytes | pa.Buffer) -> str:
    """The box whose delta this is."""
    return str(json.loads(_head_of(memoryview(data)))[-1])


def _head_of(view: memoryview) -> bytes:
    if view[:4] not in (_MAGIC, _WHOLE, _BEFORE):
        raise StateError("these bytes are not a state delta of this version", hint="start with a new state directory")
    (size,) = struct.unpack("<I", view[4:8])
    return bytes(view[8 : 8 + size])


def unpack(data: bytes | pa.Buffer) -> Delta:
    """The delta in these bytes, without copying them."""
    buffer = pa.py_buffer(data)
    head = _head_of(memoryview(buffer))
    at = 8 + len(head)
    if buffer[:4] == _BEFORE:
        return _unpacked_before(buffer, at, head)
    found: Delta = {}
    for name, floor, size, cut, *same in json.loads(head)[0]:
        at += -at % _ALIGN
        put = from_stream(buffer.slice(at, size))
        for place, column, nullable, number in same[0] if same else ():
            values = pa.array(np.full(len(put), number))
            put = put.add_column(place, pa.field(column, pa.int64(), nullable), values)
        at += size
        keys = None
        if cut is not None:
            at += -at % _ALIGN_KEYS
            keys = _keys(buffer.slice(at), *cut)
            at += _KEY_BYTES * len(cut[0]) * cut[1]
        found[name] = Change(put, keys, floor)
    return found


def _unpacked_before(buffer: pa.Buffer, at: int, head: bytes) -> Delta:
    """What is in storage from before."""
    parts, sizes, _ = json.loads(head)
    tables = []
    for size in sizes:
        at += -at % _ALIGN
        tables.append(from_stream(buffer.slice(at, size)))
        at += size
    table, found = iter(tables), dict[str, Change]()
    for name, floor, is_cut in parts:
        put, cut = next(table), next(table) if is_cut else None
        found[name] = Change(put, None if cut is None else pa.table(cut.columns, names=cut.column_names), floor)
    return found


def unwritten(table: pa.Table) -> pa.Buffer | TableStream:
    """A table as one Arrow IPC stream: a small one as bytes, of a large one how many they are."""
    if len(table) > SMALL_ROWS:  # a buffer that grows is copied again and again
        return TableStream(table)
    grown = pa.BufferOutputStream()
    with pa.ipc.new_stream(grown, table.schema, options=WRITE) as writer:
        writer.write_table(table)
    return grown.getvalue()


def to_stream(table: pa.Table) -> pa.Buffer:
    """A table as one Arrow IPC stream."""
    found = unwritten(table)
    return found.buffer() if isinstance(found, TableStream) else found


def from_stream(data: bytes | pa.Buffer) -> pa.Table:
    """The table in an Arrow IPC stream, zero-copy."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
