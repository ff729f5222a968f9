"""Deltas in storage that an older Borealis wrote are read; what is none is refused."""

from __future__ import annotations

import json
import struct

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


@pytest.mark.parametrize("delta", [some([1, 2], [3, 4]), some([], [5]), some([7], None, 7), some([], []), {}])
def test_what_was_written_before_is_read_and_goes_with_what_is_written_now(delta: Delta) -> None:
    before = unpack(packed_before(delta))
    assert before == delta == unpack(pack(delta))
    assert box_of(packed_before(delta)) == "a box"
    more = some([9], [1, 2])
    assert merge_deltas(SPECS, [before, unpack(pack(more))]) == merge_deltas(SPECS, [delta, more])


def test_what_is_no_delta_is_refused() -> None:
    with pytest.raises(StateError, match="not a state delta of this version"):
        unpack(b"BDL2" + packed_before(some([1], [2]))[4:])


def test_few_keys_take_few_bytes() -> None:
    few, many = (len(pack(some([1], list(range(count))))) for count in (0, 10))
    assert many - few < 100
