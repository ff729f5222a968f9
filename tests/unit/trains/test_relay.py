"""Sections on their way into trains: every boundary is an event of its own, and a gap is a gap, not an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from borealis.entry.admission import Cursor
from borealis.streams.id_gaps import HOP
from borealis.streams.section import Section, section
from borealis.trains.input_manager import InputManager
from borealis.trains.intake import Admission
from borealis.trains.merging import Replay
from borealis.trains.relay import Relay, Relayed, StreamInput
from borealis.trains.train import Train
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME, Kind


class Given:
    """A stream whose sections are all there at once."""

    def __init__(self, *sections: Section) -> None:
        self._sections = sections

    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        yield from self._sections


def trains_of(folder: Path, feeds: dict[str, Given], rows_most: int, replays: Sequence[Replay] = ()) -> list[Train]:
    """All trains to the end."""
    schemas = dict.fromkeys(feeds, pa.schema([("n", pa.int64())]))
    inputs, paces = [StreamInput(name) for name in feeds], dict.fromkeys(feeds, 1)
    admission = Admission(rows_most=rows_most)
    manager = InputManager(inputs, dict(feeds), schemas, paces, folder, admission=admission)
    manager.replay(replays)
    manager.go_live()
    manager.start()
    found: list[Train] = []
    try:
        while not found or not found[-1].final:
            number = manager.next_train(len(found), 10.0)
            assert number is not None, manager.failure
            found.append(manager.train(number))
            manager.release(number)
    finally:
        manager.stop()
    return found


def piece(first: int, rows: int, bounds: list[tuple[int, int]], standing: int = FIRST_TIME) -> Section:
    at, bound = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
    table = pa.table({"n": pa.array(range(first, first + rows), pa.int64())})
    return section(first, table, np.arange(first, first + rows), at, bound, standing)


def test_several_boundaries_before_one_row_are_several_events() -> None:
    relayed = Relayed(Cursor(), piece(0, 3, [(1, 10), (1, 20), (3, 30), (3, 40)]))
    assert relayed.row_events.tolist() == [0, 3, 4]
    assert [found.tolist() for found in relayed.bound_events] == [[1, 2], [10, 20]]
    assert relayed.tail() == (30, 40)
    assert relayed.cursor(3) == Cursor(position=3, newest=2, boundary=20)


def test_a_split_leaves_boundaries_at_the_cut_to_the_rest() -> None:
    head, rest = Relayed(Cursor(), piece(0, 3, [(1, 10), (2, 20)])).split(1)
    assert (len(head), head.tail(), head.cursor(1).boundary) == (1, (), FIRST_TIME)
    assert rest.start == Cursor(position=1, newest=0)
    assert [found.tolist() for found in rest.bound_events] == [[0, 2], [10, 20]]


def test_known_boundaries_are_dropped_and_the_end_is_seen() -> None:
    relay = Relay(StreamInput("s"), Cursor(position=2, boundary=15))
    admitted = relay.admit(piece(2, 1, [(2, 10), (2, 20), (3, LAST_TIME)]))
    assert [found.tolist() for found in admitted.bound_events] == [[0], [20]]
    assert relay.cursor.ended


def test_a_stream_that_drops_goes_on_behind_the_gap_but_never_back() -> None:
    relay = Relay(StreamInput("s"), Cursor(position=2))
    admitted = relay.admit(piece(7, 2, []))
    assert admitted.start.position == 7
    assert relay.cursor.position == 9
    with pytest.raises(ValueError, match="tuple 8 came after 8"):
        relay.admit(piece(8, 1, []))


def test_a_jump_stands_before_what_comes_next_and_a_loss_is_none() -> None:
    relay = Relay(StreamInput("s"), Cursor(position=2, boundary=15))
    lost = relay.admit(piece(7, 2, []))
    assert (lost.leaps, lost.jumps) == (True, False)
    nothing = relay.admit(piece(HOP, 0, [(HOP, 10)]))  # a boundary that is known: no event of any train
    assert len(nothing.section.bound) == 0
    head, rest = relay.admit(piece(HOP, 3, [])).split(1)
    assert (head.leaps, head.jumps, rest.leaps, rest.jumps) == (True, True, False, False)
    early, late = relay.admit(piece(2 * HOP, 3, [])).part(2 * HOP + 1, 15)
    assert early is not None
    assert late is not None
    assert (early.jumps, late.jumps) == (True, False)
    assert not relay.admit(piece(2 * HOP + 3, 1, [])).jumps


@pytest.mark.parametrize("rows_most", [1, 2, 4, 100])
def test_a_train_begins_where_ids_jumped_whatever_else_is_there(tmp_path: Path, rows_most: int) -> None:
    """By arrival and by the replay of another that arrived so: what comes of it can be told from what came before."""
    jumping = Given(piece(0, 3, []), piece(HOP, 2, []), piece(2 * HOP, 2, [(2 * HOP + 2, LAST_TIME)]))
    steady = Given(piece(0, 50, [(50, LAST_TIME)]))
    trains = trains_of(tmp_path / "free", {"a": jumping, "b": steady}, rows_most)
    assert all(train.order[0][0] == "a" for train in trains if train.jumps)
    assert [t.order[0][1] // HOP for t in trains if t.jumps] == [1, 2]
    before = [train.cursors["a"].position for train in trains if train.cursors["a"].position < HOP]
    assert max(before) == 3  # all before the jump is in trains before it
    order = tuple(place for train in trains for place in train.order)
    again = trains_of(tmp_path / "replay", {"a": jumping, "b": steady}, 7, [Replay(order)])
    assert [t.order[0][1] // HOP for t in again if t.jumps] == [1, 2]
    assert sum(train.rows for train in again) == sum(train.rows for train in trains) == 57


# -- pairs


def signed(first: int, kinds: list[Kind], end: bool = False) -> Section:
    stop = first + len(kinds)
    rows = pa.table({"n": pa.array(range(first, stop), pa.int64()), KIND: pa.array(kinds, pa.int8())})
    bounds = np.array([stop] if end else [], np.int64), np.array([LAST_TIME] if end else [], np.int64)
    return section(first, rows, np.arange(first, stop), *bounds)


PLUS, BEFORE, AFTER = Kind.INSERTION, Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER
STREAM = [PLUS, BEFORE, AFTER, BEFORE, AFTER, PLUS, BEFORE, AFTER]


def test_a_pair_is_one_event_and_is_not_cut() -> None:
    relayed = Relayed(Cursor(), signed(0, STREAM))
    assert relayed.row_events.tolist() == [0, 1, 1, 2, 2, 3, 4, 4]
    assert [relayed.whole(count) for count in range(9)] == [0, 1, 3, 3, 5, 5, 6, 8, 8]


def test_a_half_waits_for_the_other() -> None:
    relay = Relay(StreamInput("s"), Cursor())
    first, second = relay.admit(signed(0, STREAM[:2])), relay.admit(signed(2, STREAM[2:4]))
    assert [(one.section.first, len(one)) for one in (first, second)] == [(0, 1), (1, 2)]
    assert relay.cursor.position == 3
    assert len(relay.admit(signed(HOP, [PLUS]))) == 1, "what the half was of comes again, or is lost"


@pytest.mark.parametrize("rows_most", [1, 2, 3, 100])
@pytest.mark.parametrize("cut", range(1, 8))
def test_no_train_has_half_a_pair(tmp_path: Path, rows_most: int, cut: int) -> None:
    given = Given(signed(0, STREAM[:cut]), signed(cut, STREAM[cut:], end=True))
    stops = [train.cursors["s"].position for train in trains_of(tmp_path, {"s": given}, rows_most)]
    assert stops[-1] == len(STREAM)
    assert not {2, 4, 7}.intersection(stops)
