"""The streams of a node, and for whom they are kept."""

from __future__ import annotations

import pyarrow as pa

from borealis.node.served import Served
from borealis.streams.queue import OutputQueue
from borealis.wire.messages import Reading

SCHEMA = pa.schema([("n", pa.int64())])
NAMES = ["d.u1.c1", "d.u1.c2", "d.u1.c3", "d.u1.2", "d.u11.c2", "client"]


def served() -> tuple[Served, OutputQueue]:
    one, queue = Served("node1"), OutputQueue("d/s", SCHEMA, readers=NAMES)
    one.put(queue)
    return one, queue


def test_nothing_is_kept_for_copies_that_are_no_more() -> None:
    one, queue = served()
    one.reading(Reading(stream="d/s", unit="d.u1", numbers=[2], given=3))
    assert set(queue.acks()) == set(NAMES) - {"d.u1.c1", "d.u1.c3"}


def test_an_order_that_was_under_way_for_long_does_no_harm_to_a_copy_that_came_since() -> None:
    one, queue = served()
    one.reading(Reading(stream="d/s", unit="d.u1", numbers=[1], given=2))
    assert "d.u1.c3" in queue.acks()
