"""Deltas in storage that an older Borealis wrote are read; what is none is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from borealis.errors import StateError
from borealis.state.delta import Change, Delta, TableSpec, box_of, merge_deltas, pack, to_stream, unpack

NUMBERS = pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())])
SPECS = (TableSpec("rows", ("k",)),)


def some(put: list[int], cut: list[int] | None, floor: int | None = None) -> Delta:
    rows = pa.table([put, [f"v{n}" for n in put]], schema=NUMBERS)
    return {"rows": Change(rows, None if cut is None else pa.table({"k": pa.array(cut, pa.int64())}), floor)}


def packed_before(delta: Delta) -> bytes:
    """As version 3 was: keys that are cut are an Arrow stream as well, and its columns were those of the table."""
    found, sizes, parts = b"", list[int](), []
    for name, change in delta.items():
        parts.append((name, change.floor, change.cut is not None))
        keys = None if change.cut is None else change.cut.cast(pa.schema([NUMBERS.field("k")]))
        for table in (change.put, keys) if keys is not None else (change.put,):
            data = to_stream(table).to_pybytes()
            sizes.append(len(data))
            found += data + b"\0" * (-len(data) % 64)
    head = json.dumps([parts, sizes, "a box"]).encode()
    begin = b"BDL3" + struct.pack("<I", len(head)) + head
    return begin + b"\0" * (-len(begin) % 64) + found


def packed_whole(delta: Delta) -> bytes:
    """As version 4 was: each column of a table is written out."""
    index, parts = [], []
    for name, change in delta.items():
        put = to_stream(change.put).to_pybytes()
        shape = None if change.cut is None else (change.cut.column_names, change.cut.num_rows)
        index.append((name, change.floor, len(put), shape))
        parts.append((64, put))
        if change.cut is not None:
            parts.append((8, b"".join(column.to_numpy().tobytes() for column in change.cut.columns)))
    head = json.dumps([index, "a box"]).encode()
    found = b"BDL4" + struct.pack("<I", len(head)) + head
    for align, part in parts:
        found += b"\0" * (-len(found) % align) + part
    return found


@pytest.mark.parametrize("packed", [packed_before, packed_whole])
@pytest.mark.parametrize("delta", [some([1, 2], [3, 4]), some([], [5]), some([7], None, 7), some([], []), {}])
def test_what_was_written_before_is_read_and_goes_with_what_is_written_now(
    delta: Delta, packed: Callable[[Delta], bytes]
) -> None:
    before = unpack(packed(delta))
    assert before == delta == unpack(pack(delta))
    assert box_of(packed(delta)) == "a box"
    more = some([9], [1, 2])
    assert merge_deltas(SPECS, [before, unpack(pack(more))]) == merge_deltas(SPECS, [delta, more])


def test_what_is_no_delta_is_refused() -> None:
    with pytest.raises(StateError, match="not a state delta of this version"):
        unpack(b"BDL2" + packed_before(some([1], [2]))[4:])


@pytest.mark.parametrize("values", [[0] * 5_000, [0] * 4_999 + [1], [0, 1] + [0] * 4_998])
def test_a_column_with_one_number_takes_no_room_and_is_read_as_it_was(values: list[int]) -> None:
    fields = [pa.field("one", pa.int64(), nullable=False), ("k", pa.int64()), ("same", pa.int64()), ("v", pa.int32())]
    rows = pa.table([[7] * 5_000, list(range(5_000)), values, [3] * 5_000], schema=pa.schema(fields))
    packed = pack({"rows": Change(rows, None, 5)})
    assert unpack(packed) == {"rows": Change(rows, None, 5)}
    assert len(packed) < 5_000 * (12 if len(set(values)) == 1 else 20) + 2_000
    alone = rows.select(["one"])
    assert unpack(pack({"rows": Change(alone)})) == {"rows": Change(alone)}


def test_few_keys_take_few_bytes() -> None:
    few, many = (len(pack(some([1], list(range(count))))) for count in (0, 10))
    assert many - few < 100
