"""Parcels: what goes in comes out, and what was damaged on the way is found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from borealis.entry.admission import Cursor
from borealis.errors import WireError
from borealis.ha.primary import Want
from borealis.node.parcel import MARK, DamagedError, Parcel
from borealis.state import frame
from borealis.streams.reader_place import ReaderPlace
from borealis.trains.commit_point import CommitPoint


def step(train: int) -> CommitPoint:
    inputs = {"a": Cursor(10 * train, train, train), "b": Cursor(ended=True)}
    return CommitPoint(train, 7, inputs, {"o": (train, -(2**63))}, (("a", 10 * train, train), ("b", 3, 2)))


def parcel(*, blobs: tuple[bytes, bytes] = (b"state", b"queue")) -> Parcel:
    orders = ((8, step(8).order), (9, ()))
    want = Want("delta", 4, 7, step(9), step(3), step(5), orders)
    acks = {"o": {"d.u2": ReaderPlace(5, 3), "d.u2.2": ReaderPlace(4, 0, back=2)}}
    return Parcel("d", "u1", 2, want, acks, {"a": "e0", "b": None}, {("box", 3): blobs[0]}, {"o": blobs[1]})


def test_what_goes_in_comes_out() -> None:
    assert Parcel.decode(parcel().encode()) == parcel()


def test_facts_alone_make_a_parcel() -> None:
    bare = Parcel("d", "u1", 1, Want("facts", 1, 0, step(0)))
    assert Parcel.decode(bare.encode()) == bare


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_blobs_of_any_size_and_content(state: bytes, queue: bytes) -> None:
    sent = parcel(blobs=(state, queue))
    assert Parcel.decode(sent.encode()) == sent


def test_every_damaged_byte_is_found_out() -> None:
    data = parcel().encode()
    for at in range(len(data)):
        for flip in (1, 128, 255):
            with pytest.raises(WireError):
                Parcel.decode(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


def test_every_cut_is_found_out() -> None:
    data = parcel().encode()
    for size in range(len(data)):
        with pytest.raises(WireError):
            Parcel.decode(data[:size])
    with pytest.raises(WireError):
        Parcel.decode(data + b"\0")


def test_damage_to_a_blob_tells_whose_it_was() -> None:
    data = parcel().encode()
    with pytest.raises(DamagedError) as caught:
        Parcel.decode(data[:-1] + bytes([data[-1] ^ 1]))
    assert caught.value.of == ("d", "u1")


def test_damage_to_the_head_tells_nothing() -> None:
    data = bytearray(parcel().encode())
    data[data.index(b"diagram")] ^= 1
    with pytest.raises(DamagedError) as caught:
        Parcel.decode(bytes(data))
    assert caught.value.of is None


@pytest.mark.parametrize("change", [{"step": None}, {"step": {}}, {"orders": [[1]]}])
def test_a_message_that_is_none_is_refused(change: dict[str, object]) -> None:
    head, blobs = frame.unpack(MARK, parcel().encode())
    with pytest.raises(WireError, match="a bad parcel"):
        Parcel.decode(frame.pack(MARK, head | {"want": head["want"] | change}, blobs))


@pytest.mark.parametrize("change", [{"want": None}, {"state": [["box"]]}, {"queues": []}, {"incarnation": "one"}])
def test_a_head_that_is_none_is_refused(change: dict[str, object]) -> None:
    head, blobs = frame.unpack(MARK, parcel().encode())
    with pytest.raises(WireError, match="a bad parcel"):
        Parcel.decode(frame.pack(MARK, head | change, blobs))


def test_time_and_silence_of_a_train_stay_at_home() -> None:
    want = Want("facts", 1, 0, replace(step(1), at=17.5, silent=True))
    assert Parcel.decode(Parcel("d", "u1", 1, want).encode()).want.step == step(1)
