"""A unit as bytes: what is sent is what arrives, and anything else is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from borealis.errors import WireError
from borealis.streams.queue import OutputQueue
from borealis.streams.section import section
from borealis.trains.handover import Handover

SCHEMA = pa.schema([("n", pa.int64())])


def handover() -> Handover:
    queue = OutputQueue("d/a", SCHEMA, readers=["d.u2"])
    at, bound = np.array([1, 3]), np.array([5, 9])
    queue.append(section(0, pa.table({"n": [1, 2, 3]}), np.array([1, 6, 7]), at, bound))
    header = {"train": 7, "cursors": {"x": {"position": 3}}, "next_cause": 12, "ids": {"a": 3}}
    return Handover(header, {("box", 0): b"state", ("box", 1): b""}, {"a": queue.snapshot()})


def test_there_and_back() -> None:
    one = handover()
    two = Handover.from_bytes(one.to_bytes())
    assert (two.header, two.state) == (one.header, one.state)
    assert two.queues["a"].to_bytes() == one.queues["a"].to_bytes()


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b + b"x", lambda b: b"XXXX" + b[4:], lambda b: b[:6]])
def test_damage_is_refused(spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(WireError):
        Handover.from_bytes(spoil(handover().to_bytes()))


def test_a_bit_that_changed_anywhere_is_noticed() -> None:
    whole = handover().to_bytes()
    for place in range(len(whole)):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << place % 8
        with pytest.raises(WireError):
            Handover.from_bytes(bytes(spoilt))
