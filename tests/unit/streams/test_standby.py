"""Queues of protected units: held, released, mirrored, jumping."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from borealis.clock import ManualClock
from borealis.errors import GoneError, StateError, StreamError
from borealis.machine import Machine
from borealis.streams.id_gaps import JUMP, Jumps, above
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.readers import PASSING_S
from borealis.streams.section import Section
from borealis.streams.snapshot import QueueSnapshot
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("v", pa.int64())])


def new(limits: QueueLimits | None = None, readers: tuple[str, ...] = ("r",), incarnation: int = 1) -> OutputQueue:
    return OutputQueue("d/x", SCHEMA, limits, readers=readers, epoch="e", incarnation=incarnation)


def put(queue: OutputQueue, n: int, *bounds: tuple[int, int]) -> None:
    """Append tuples with their ids as values, and boundaries as (at, time)."""
    ids = np.arange(queue.next_id, queue.next_id + n, dtype=np.int64)
    at, bound = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
    queue.append(Section(queue.next_id, pa.record_batch([ids], schema=SCHEMA), ids * 10, at, bound, queue.boundary))


def read(queue: OutputQueue, start: int, boundary: int = FIRST_TIME) -> tuple[list[int], list[tuple[int, int]]] | None:
    one = queue.read(start, boundary, 0)
    if one is None:
        return None
    assert one.rows["v"].to_pylist() == list(range(one.first, one.stop))
    return list(range(one.first, one.stop)), list(zip(one.at.tolist(), one.bound.tolist(), strict=True))


# -- holding


def test_nothing_is_read_from_a_held_queue_until_it_is_released() -> None:
    queue = new()
    queue.hold()
    put(queue, 3, (3, 30))
    assert (queue.held, queue.standby, read(queue, 0), read(queue, 3)) == (True, True, None, None)
    queue.release((2, FIRST_TIME))
    assert (queue.held, queue.standby, queue._limit) == (True, False, (2, FIRST_TIME))
    assert read(queue, 0) == ([0, 1], [])
    assert read(queue, 2) is None
    queue.release((3, FIRST_TIME))
    assert read(queue, 2) == ([2], [])
    assert read(queue, 3) is None
    queue.release((3, 30))
    assert read(queue, 2) == ([2], [(3, 30)])
    assert read(queue, 3, 30) is None
    put(queue, 2)
    assert read(queue, 0) == ([0, 1, 2], [(3, 30)])
    queue.release((1, 0))  # an old word changes nothing
    assert queue._limit == (3, 30)
    queue.release()
    assert (queue.held, queue._limit) == (False, None)
    assert read(queue, 3, 30) == ([3, 4], [])


def test_a_held_queue_is_appended_to_acknowledged_and_trimmed_as_ever() -> None:
    queue = new(QueueLimits(keep_bytes=0))
    queue.hold()
    queue.register("s", 0)
    put(queue, 4)
    put(queue, 4)
    there = {"r": ReaderPlace(8, 5), "s": ReaderPlace(6, 4)}
    queue.raise_acks(there)
    assert queue.acks() == there
    assert (queue.first_id, queue.pushed()) == (4, 4)
    status = queue.status()
    assert (status.held, status.incarnation, status.held_rows) == (True, 1, 4)


def test_readers_that_another_copy_met_are_kept_for_and_those_that_were_forgotten_stay_so() -> None:
    queue = new(QueueLimits(keep_bytes=0))
    put(queue, 4)
    put(queue, 4)
    for reader in ("r", "gone"):
        queue.register(reader, 0)
    told = queue.acks()
    queue.forget("gone")  # while the other copy answers
    queue.raise_acks({"r": ReaderPlace(6, 6), "gone": ReaderPlace(2, 2), "met": ReaderPlace(5, 4)}, told)
    assert queue.acks() == {"r": ReaderPlace(6, 6), "met": ReaderPlace(5, 4)}
    assert queue.first_id == 4
    there = {"r": ReaderPlace(6, 6), "gone": ReaderPlace(7, 7), "met": ReaderPlace(5, 5)}
    queue.raise_acks(there, queue.acks())  # it has come again, over there
    assert queue.acks() == there
    other = new(QueueLimits(keep_bytes=0))
    other.register("met", 0)
    other.raise_acks({"r": ReaderPlace(6, 6)})  # it does not know of that one yet
    assert set(other.acks()) == {"r", "met"}


def test_a_reader_that_went_back_needs_what_another_copy_remembers_it_has() -> None:
    """Each copy is told by the other where the reader stood; it is heard of the latest life of the reader only."""
    one, other = (new(QueueLimits(keep_bytes=0)) for _ in range(2))
    for copy in (one, other):
        put(copy, 4)
        put(copy, 4)
        copy.register("waits", 0)  # for whom the tuples are still here
        copy.register("r", 0)
    one.ack("r", 1, 8)
    other.raise_acks(one.acks())
    told = one.acks()
    assert one.register("r", 2) == 2
    one.raise_acks(other.acks(), told)  # the answer was under way
    for copy in (one, other):
        copy.forget("waits")
    for copy, answers in ((one, other), (other, one)):
        copy.raise_acks(answers.acks(), copy.acks())
        assert copy.acks() == {"r": ReaderPlace(2, 2, back=1)}
    assert one.first_id <= 2
    assert read(one, 2)[0] == [2, 3, 4, 5, 6, 7]
    one.ack("r", 1, 5)
    other.raise_acks(one.acks())
    assert other.acks() == one.acks() == {"r": ReaderPlace(5, 5, back=1)}
    assert OutputQueue.restore(one.snapshot()).acks() == one.acks()


def test_a_reader_that_waits_gets_what_is_released_at_once() -> None:
    queue = new()
    queue.hold()
    put(queue, 2)
    thread = threading.Thread(target=queue.read, args=(0, FIRST_TIME, 90))
    thread.start()
    time.sleep(0.02)
    queue.release()
    thread.join(30)
    assert not thread.is_alive()


def test_a_backup_that_is_behind_waits_for_what_the_primary_had_delivered() -> None:
    queue = new()
    put(queue, 3)
    assert queue.register("r", 5) == 5
    assert read(queue, 5) is None
    queue.ack("r", 1, 7)
    assert queue.acks()["r"][1] == 7
    put(queue, 5)
    assert read(queue, 5) == ([5, 6, 7], [])
    plain = new(incarnation=0)
    for act in (lambda: plain.register("r", 1), lambda: plain.read(1, FIRST_TIME, 0)):
        with pytest.raises(GoneError, match="has no tuple 1 yet"):
            act()
    with pytest.raises(StreamError, match="acknowledged 1"):
        plain.ack("r", 1, 1)


def test_what_is_gone_is_said_when_the_queue_is_open() -> None:
    queue = OutputQueue("d/x", SCHEMA, next_id=10, incarnation=1)
    queue.hold()
    assert queue.register("s", 3) == 3
    assert read(queue, 3) is None
    queue.release()
    with pytest.raises(GoneError, match="3 is gone"):
        read(queue, 3)


# -- passing readers, acknowledgements


def test_passing_readers_count_as_pushed_but_are_not_passed_on() -> None:
    queue = new()
    put(queue, 9)
    queue.ack("r", 1, 7)
    queue.ack("r", 0, 9)  # what it only has in memory may be asked for again
    assert queue.pushed() == 7
    queue.register("~p", 4)
    assert (queue.pushed(), queue.acks()) == (4, {"r": ReaderPlace(9, 7)})
    assert new(readers=()).pushed() == 0


# -- jumps


def test_a_reader_goes_on_behind_a_jump() -> None:
    queue = new()
    put(queue, 3, (3, 30))
    queue.jump_to(above(queue.next_id))
    assert (queue.next_id, read(queue, 3, 30), read(queue, 77)) == (JUMP, None, None)
    assert queue.register("s", 77) == 77
    put(queue, 2, (JUMP + 2, 50))
    assert read(queue, 1) == ([1, 2], [(3, 30)])  # never joined across it
    assert read(queue, 3) == ([], [(3, 30)])
    behind = ([JUMP, JUMP + 1], [(JUMP + 2, 50)])
    assert (read(queue, 3, 30), read(queue, 77), read(queue, JUMP)) == (behind, behind, behind)
    assert (queue.lost_between(3, JUMP), queue.lost_between(1, JUMP)) == (0, 2)
    assert (queue.status().held_rows, queue.dropped) == (5, 0)
    with pytest.raises(ValueError, match="cannot jump"):
        queue.jump_to(JUMP + 2)


def test_a_boundary_that_follows_a_jump_is_told() -> None:
    queue = new()
    put(queue, 1)
    queue.jump_to(JUMP)
    put(queue, 0, (JUMP, 5))
    one = queue.read(1, FIRST_TIME, 0)
    assert one is not None
    assert (one.first, len(one), one.final) == (JUMP, 0, 5)
    put(queue, 0, (JUMP, LAST_TIME))
    assert read(queue, 500, 5) == ([], [(JUMP, LAST_TIME)])


def test_an_empty_queue_jumps_and_several_jumps_are_one_or_more() -> None:
    queue = new()
    queue.jump_to(JUMP)
    queue.jump_to(2 * JUMP)
    assert queue.first_id == 2 * JUMP
    put(queue, 1)
    queue.jump_to(3 * JUMP)
    put(queue, 1)
    assert read(queue, 5) == ([2 * JUMP], [])
    assert read(queue, 2 * JUMP + 1) == ([3 * JUMP], [])
    assert list(queue.snapshot().jumps) == [(0, 2 * JUMP), (2 * JUMP + 1, 3 * JUMP)]


def test_boundaries_before_a_jump_stay_where_they_are_when_tuples_go() -> None:
    queue = new(QueueLimits(keep_bytes=0))
    put(queue, 3, (3, 30))
    queue.jump_to(JUMP)
    put(queue, 2)
    queue.ack("r", 1, 3)
    assert queue.first_id == 3
    assert read(queue, 3) == ([], [(3, 30)])
    assert read(queue, 3, 30) == ([JUMP, JUMP + 1], [])
    put(queue, 1)
    queue.ack("r", 1, JUMP + 2)
    assert queue.first_id == JUMP + 2
    assert not queue.snapshot().jumps
    with pytest.raises(GoneError):
        read(queue, JUMP)


def test_who_comes_from_before_a_jump_that_is_forgotten_goes_on_with_what_is_held() -> None:
    queue = new(QueueLimits(keep_bytes=0))
    put(queue, 3)
    queue.jump_to(JUMP)
    put(queue, 2)
    queue.ack("r", 1, JUMP + 2)
    put(queue, 1)
    assert (queue.first_id, list(queue.snapshot().jumps)) == (JUMP + 2, [])
    assert read(queue, 3) == ([JUMP + 2], [])
    assert queue.lost_between(3, JUMP + 2) == 2


def test_a_slow_reader_loses_tuples_but_no_ids() -> None:
    queue = new(QueueLimits(bytes_most=2500, full="drop", keep_bytes=0))
    put(queue, 5)
    queue.jump_to(JUMP)
    for _ in range(5):
        put(queue, 5)
    first = queue.first_id
    assert first > JUMP
    assert queue.dropped == queue.snapshot().readers["r"][2] == queue.lost_between(0, first) == first - JUMP + 5
    assert read(queue, 0) is not None


def test_intervals_of_ids() -> None:
    jumps = Jumps([(3, 10), (20, 30)])
    assert (jumps.over(2), jumps.over(3), jumps.over(9), jumps.over(10)) == (None, (3, 10), (3, 10), None)
    assert (jumps.back(10), jumps.back(11), jumps.tuples(0, 25), jumps.tuples(9, 4)) == (3, 11, 13, 0)
    jumps.forget(10)
    assert len(list(jumps)) == 2
    jumps.forget(11)
    assert list(jumps) == [(20, 30)]


# -- mirrors


def test_an_increment_is_what_is_behind_a_place() -> None:
    queue, mirror = new(), new()
    mirror.hold()
    put(queue, 3, (2, 20), (3, 30))
    mirror.apply(queue.since((0, FIRST_TIME)))
    put(queue, 0, (3, 31))
    put(queue, 2)
    queue.ack("r", 1, 1)
    news = QueueSnapshot.from_bytes(queue.since((3, 30)).to_bytes())
    assert sum(len(s) for s in news.sections) == 2
    mirror.apply(news)
    mirror.apply(news)
    assert (mirror.next_id, mirror.boundary, mirror.acks()) == (5, 31, {"r": ReaderPlace(1, 1)})
    mirror.release()
    for place in ((0, FIRST_TIME), (3, 20), (3, 30), (3, 31), (4, 31)):
        assert read(mirror, *place) == read(queue, *place)


def test_a_mirror_lets_go_of_what_the_primary_let_go_of() -> None:
    limits = QueueLimits(keep_bytes=0)
    queue, mirror = new(limits), new(limits)
    for _ in range(4):
        put(queue, 5)
    mirror.apply(queue.since((0, FIRST_TIME)))
    queue.ack("r", 1, 12)
    put(queue, 5)
    mirror.apply(queue.since((20, FIRST_TIME)))
    assert (queue.first_id, mirror.first_id) == (10, 10)
    queue.ack("r", 1, 25)
    put(queue, 5)
    queue.ack("r", 1, 30)
    put(queue, 5)
    mirror.apply(queue.since((25, FIRST_TIME)))  # some of what it did not hear of is gone already
    assert (queue.first_id, mirror.first_id, mirror.next_id) == (30, 30, 35)
    assert mirror.status().held_bytes == queue.status().held_bytes


def test_readers_that_are_forgotten_are_forgotten_by_the_mirror_but_not_its_own() -> None:
    queue, mirror = new(), new()
    queue.register("client")
    mirror.register("~waiting")
    mirror.register("early")
    mirror.apply(queue.since((0, FIRST_TIME)))
    queue.forget("client")
    mirror.apply(queue.since((0, FIRST_TIME)))
    assert set(mirror.status().readers) == {"r", "~waiting", "early"}


def test_news_of_something_else_and_damaged_ones_are_refused() -> None:
    queue = new()
    put(queue, 5)
    other = OutputQueue("d/x", SCHEMA, epoch="f")
    with pytest.raises(StateError, match="news of stream d/x"):
        other.apply(queue.snapshot())
    with pytest.raises(StateError, match="tuples 0 to 2 of stream d/x are missing"):
        new().apply(queue.since((2, FIRST_TIME)))
    queue.jump_to(JUMP)
    put(queue, 2)
    data = queue.snapshot().to_bytes()
    again = OutputQueue.restore(QueueSnapshot.from_bytes(data))
    assert again.snapshot().to_bytes() == data
    assert read(again, 5) == ([JUMP, JUMP + 1], [])
    damaged = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]
    with pytest.raises(StateError, match="damaged"):
        QueueSnapshot.from_bytes(damaged)


# -- what is needed yet


def test_of_what_all_readers_have_let_go_of_a_mirror_needs_nothing() -> None:
    queue, mirror = new(), new()
    mirror.hold()
    put(queue, 2)
    mirror.apply(queue.snapshot())
    put(queue, 8, (8, 75), (10, 95))
    queue.ack("r", 1, 7)
    mirror.apply(QueueSnapshot.from_bytes(queue.needed(queue.acknowledged()).to_bytes()))
    assert (mirror.first_id, mirror.next_id, mirror.boundary) == (7, 10, 95)
    mirror.release()
    assert read(mirror, 7) == ([7, 8, 9], [(8, 75), (10, 95)])
    queue.ack("r", 1, 10)
    mirror.apply(queue.needed(10))
    assert read(mirror, 10) == ([], [(10, 95)])


def test_a_mirror_that_lacks_what_a_new_reader_needs_takes_it_in_again() -> None:
    queue, mirror = new(), new()
    put(queue, 4)
    queue.ack("r", 1, 4)
    mirror.apply(queue.needed(4))
    assert mirror.first_id == 4
    assert queue.register("late") == 0
    put(queue, 1)
    mirror.apply(queue.needed(queue.acknowledged()))
    assert (mirror.first_id, mirror.next_id) == (0, 5)
    assert read(mirror, 0) == ([0, 1, 2, 3, 4], [])


def test_it_says_when_named_readers_let_go_of_something() -> None:
    queue, told = new(readers=("r", "slow")), list[int]()
    queue.on_trim = lambda: told.append(len(told))
    put(queue, 4)
    queue.register("~p", 0)
    for reader, level, upto in (("r", 1, 4), ("slow", 0, 4), ("slow", 1, 2), ("slow", 1, 1), ("~p", 1, 3)):
        queue.ack(reader, level, upto)
    assert told == []  # one that passes still needs the first tuple
    queue.ack("slow", 1, 3)
    assert told == [0]


def test_what_a_passing_reader_was_given_just_now_may_be_under_way() -> None:
    clock = ManualClock()
    queue = OutputQueue("d/x", SCHEMA, incarnation=1, machine=Machine(clock))
    assert queue.passing() is None
    put(queue, 5)
    queue.register("~p", 1)
    queue.ack("~p", 1, 4)
    assert (queue.passing(), queue.acknowledged()) == (1, 5)
    clock.advance(PASSING_S + 0.1)
    assert queue.passing() == 4
