"""Sections on their way into trains: every boundary is an event of its own, and a gap is a gap, not an error."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from borealis.ingest.entry import Cursor
from borealis.ingest.relay import Feed, Relay, Relayed
from borealis.section import Section, section
from borealis.tuples import FIRST_TIME, LAST_TIME


def piece(first: int, rows: int, bounds: list[tuple[int, int]], standing: int = FIRST_TIME) -> Section:
    at, bound = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
    table = pa.table({"n": pa.array(range(first, first + rows), pa.int64())})
    return section(first, table, np.arange(first, first + rows), at, bound, standing)


def test_several_boundaries_before_one_row_are_several_events() -> None:
    relayed = Relayed(Cursor(), piece(0, 3, [(1, 10), (1, 20), (3, 30), (3, 40)]))
    assert relayed.weights().tolist() == [1, 3, 1]
    assert relayed.bounds(np.array([0, 3, 4])) == [(1, 10), (2, 20)]
    assert relayed.tail() == (30, 40)
    assert relayed.cursor(3) == Cursor(position=3, newest=2, boundary=20)


def test_a_split_leaves_boundaries_at_the_cut_to_the_rest() -> None:
    head, rest = Relayed(Cursor(), piece(0, 3, [(1, 10), (2, 20)])).split(1)
    assert (len(head), head.tail(), head.cursor(1).boundary) == (1, (), FIRST_TIME)
    assert rest.start == Cursor(position=1, newest=0)
    assert rest.bounds(np.array([5, 7])) == [(4, 10), (6, 20)]


def test_known_boundaries_are_dropped_and_the_end_is_seen() -> None:
    relay = Relay(Feed("s"), Cursor(position=2, boundary=15))
    admitted = relay.admit(piece(2, 1, [(2, 10), (2, 20), (3, LAST_TIME)]))
    assert admitted.bounds(np.array([1])) == [(0, 20)]
    assert relay.cursor.ended


def test_a_stream_that_drops_goes_on_behind_the_gap_but_never_back() -> None:
    relay = Relay(Feed("s"), Cursor(position=2))
    admitted = relay.admit(piece(7, 2, []))
    assert admitted.start.position == 7
    assert relay.cursor.position == 9
    with pytest.raises(ValueError, match="tuple 8 came after 8"):
        relay.admit(piece(8, 1, []))
