"""The frame of all that is written or sent as bytes: what goes in comes out, and nothing else does."""

from __future__ import annotations

import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.state.frame import DamagedFrameError, FrameError, pack, unpack

MARK = b"TST1"
HEADS = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


@given(HEADS, st.lists(st.binary(max_size=100), max_size=4))
def test_there_and_back(head: dict[str, object], blobs: list[bytes]) -> None:
    found, back = unpack(MARK, pack(MARK, head, blobs))
    assert (found, [blob.to_pybytes() for blob in back]) == (head, blobs)


def test_every_damaged_byte_and_every_cut_is_found_out() -> None:
    data = pack(MARK, {"n": 7}, [b"abc", b"", b"defg"])
    for at in range(len(data)):
        for flip in (1, 128, 255):
            with pytest.raises(FrameError):
                unpack(MARK, data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
        with pytest.raises(FrameError):
            unpack(MARK, data[:at])
    with pytest.raises(FrameError):
        unpack(MARK, data + b"\0")


def test_a_damaged_blob_leaves_the_head_and_a_damaged_head_nothing() -> None:
    data = bytearray(pack(MARK, {"n": 7}, [b"abc"]))
    data[-8] ^= 1
    with pytest.raises(DamagedFrameError) as caught:
        unpack(MARK, bytes(data))
    assert caught.value.head == {"n": 7}
    data[data.index(b"7")] ^= 1
    with pytest.raises(DamagedFrameError) as caught:
        unpack(MARK, bytes(data))
    assert caught.value.head is None


def test_another_kind_is_no_damage() -> None:
    with pytest.raises(FrameError, match=r"begins with b'TST1', not b'TST2'") as caught:
        unpack(b"TST2", pack(MARK, {}))
    assert not isinstance(caught.value, DamagedFrameError)


@pytest.mark.parametrize("sizes", [[], [9], [3, 1], [-1, 4]])
def test_sizes_that_do_not_fit_are_refused(sizes: list[int]) -> None:
    text = json.dumps([{}, sizes]).encode()
    data = struct.pack("<4sIIIQ", MARK, zlib.crc32(text), zlib.crc32(b"abcdefgh"), len(text), 8) + text + b"abcdefgh"
    with pytest.raises(FrameError):
        unpack(MARK, data)
