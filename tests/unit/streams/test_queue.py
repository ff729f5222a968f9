"""Output queues: reading from any place, acknowledging, being full, moving."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from borealis.disk import LocalDisk
from borealis.errors import GoneError, StateError, StreamError
from borealis.machine import Machine
from borealis.streams import held
from borealis.streams.queue import MovedError, OutputQueue, QueueLimits
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.section import NOTHING, Section
from borealis.streams.snapshot import QueueSnapshot
from borealis.streams.tentative import Wants, fork_place
from borealis.tuples import FIRST_TIME, LAST_TIME

SCHEMA = pa.schema([("v", pa.int64())])
Told = tuple[list[int], list[tuple[int, int]]]


def put(queue: OutputQueue, n: int, *bounds: tuple[int, int]) -> None:
    """Append tuples with their ids as values, and boundaries as (at, time)."""
    ids = np.arange(queue.next_id, queue.next_id + n, dtype=np.int64)
    at, bound = (np.array([b[i] for b in bounds], np.int64) for i in (0, 1))
    queue.append(Section(queue.next_id, pa.record_batch([ids], schema=SCHEMA), ids * 10, at, bound, queue.boundary))


def told(one: Section | None) -> Told:
    assert one is not None
    assert one.rows.schema == SCHEMA
    ids = one.rows["v"].to_pylist()
    assert ids == list(range(one.first, one.stop))
    return ids, list(zip(one.at.tolist(), one.bound.tolist(), strict=True))


def new(full: Any = "wait", most: int = 1 << 20, keep: int = 0, readers: tuple[str, ...] = ("r",)) -> OutputQueue:
    return OutputQueue("d/x", SCHEMA, QueueLimits(most, full, keep), readers=readers)


def lost(queue: OutputQueue, reader: str) -> int:
    return queue.snapshot().readers[reader][2]


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to happen in another thread."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0)


class Doing(threading.Thread):
    """Something done in a thread; `result` waits for it, and raises what it raised."""

    def __init__(self, what: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.what, self.value, self.error = what, None, None
        self.start()

    def run(self) -> None:
        try:
            self.value = self.what()
        except BaseException as error:
            self.error = error  # type: ignore[assignment]

    def result(self) -> Any:
        self.join(30)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error
        return self.value


def waiting(condition: threading.Condition, n: int = 1) -> Callable[[], bool]:
    return lambda: len(condition._waiters) == n  # type: ignore[attr-defined]


# -- reading


def test_reads_what_follows_a_place() -> None:
    queue = new()
    put(queue, 2, (0, 1), (2, 3))
    put(queue, 2, (2, 4), (3, 6))
    everything = ([0, 1, 2, 3], [(0, 1), (2, 3), (2, 4), (3, 6)])
    assert told(queue.read(0, FIRST_TIME, 0)) == everything
    assert told(queue.read(0, FIRST_TIME, 0)) == everything  # as often as one likes
    assert told(queue.read(2, FIRST_TIME, 0)) == ([2, 3], [(2, 3), (2, 4), (3, 6)])
    assert told(queue.read(2, 3, 0)) == ([2, 3], [(2, 4), (3, 6)])
    assert told(queue.read(3, 4, 0)) == ([3], [(3, 6)])
    assert queue.read(4, 6, 0) is None


def test_says_which_boundary_was_in_force() -> None:
    queue = new()
    put(queue, 4, (0, 1), (2, 3))
    assert [queue.read(i, FIRST_TIME, 0).standing for i in range(4)] == [FIRST_TIME, 1, 1, 3]  # type: ignore[union-attr]
    assert queue.read(1, 2, 0).standing == 2  # type: ignore[union-attr]


def test_boundaries_at_one_id_all_survive() -> None:
    queue = new()
    put(queue, 3, (3, 1))
    for bound in range(2, 40):
        put(queue, 0, (3, bound))
    put(queue, 1, (3, 40), (4, 41))
    assert told(queue.read(3, FIRST_TIME, 0)) == ([3], [*((3, b) for b in range(1, 41)), (4, 41)])
    assert told(queue.read(3, 17, 0)) == ([3], [*((3, b) for b in range(18, 41)), (4, 41)])
    queue.ack("r", 1, 3)
    assert queue.first_id == 3
    assert told(queue.read(3, FIRST_TIME, 0)) == ([3], [*((3, b) for b in range(1, 41)), (4, 41)])
    queue.ack("r", 1, 4)
    assert queue.first_id == 4
    assert told(queue.read(4, 40, 0)) == ([], [(4, 41)])


def test_a_newcomer_at_the_end_learns_the_boundary() -> None:
    queue = new(readers=())
    put(queue, 2, (1, 5))
    assert told(queue.read(2, FIRST_TIME, 0)) == ([], [])
    assert queue.read(2, FIRST_TIME, 0).final == 5  # type: ignore[union-attr]
    assert queue.read(2, 5, 0) is None


def test_small_sections_come_together() -> None:
    queue = new(most=64 << 20)
    for _ in range(1000):
        put(queue, 1)
    sizes, at = [], 0
    while (one := queue.read(at, FIRST_TIME, 0)) is not None:
        sizes.append(len(told(one)[0]))
        at = one.stop
    assert sum(sizes) == 1000
    assert len(sizes) <= 3


def test_large_sections_are_cut() -> None:
    queue = new(most=64 << 20)
    put(queue, 1000, (0, 1), (999, 2), (1000, 3))
    sizes, bounds, place = [], [], (0, FIRST_TIME)
    while (one := queue.read(*place, 0, 1600)) is not None:
        ids, some = told(one)
        sizes.append(len(ids))
        bounds += some
        place = (one.stop, one.final)
        assert one.nbytes <= 1600
    assert sum(sizes) == 1000
    assert bounds == [(0, 1), (999, 2), (1000, 3)]
    assert len(told(queue.read(7, FIRST_TIME, 0, 1))[0]) == 1  # one tuple always fits


def test_rows_of_very_different_size_are_cut_by_bytes() -> None:
    schema = pa.schema([("s", pa.string())])
    queue = OutputQueue("d/x", schema)
    texts = ["x" * 100_000] + ["y"] * 999
    rows = pa.record_batch([pa.array(texts)], schema=schema)
    queue.append(Section(0, rows, np.arange(1000), NOTHING, NOTHING))
    sizes, at = [], 0
    while (one := queue.read(at, FIRST_TIME, 0, 10_000)) is not None:
        sizes.append(one.nbytes)
        at = one.stop
    assert sizes[0] > 100_000  # the one large row
    assert max(sizes[1:]) <= 10_000
    assert len(sizes) <= 5


def test_a_reader_waits_for_a_tuple_or_a_boundary() -> None:
    queue = new()
    reading = Doing(lambda: queue.read(0, FIRST_TIME, 300))
    until(waiting(queue._more))
    put(queue, 0, (0, 7))
    assert told(reading.result()) == ([], [(0, 7)])
    reading = Doing(lambda: queue.read(0, 7, 300))
    until(waiting(queue._more))
    put(queue, 1)
    assert told(reading.result()) == ([0], [])


def test_places_that_are_not_there() -> None:
    queue = new(readers=())
    put(queue, 2)
    put(queue, 2)
    assert queue.first_id == 4
    with pytest.raises(GoneError, match=r"d/x is held from id 4 on: 3 is gone.*from 4"):
        queue.read(3, FIRST_TIME, 0)
    with pytest.raises(GoneError, match="no tuple 5 yet: the next is 4"):
        queue.read(5, FIRST_TIME, 0)
    with pytest.raises(GoneError, match="held from id 4"):
        queue.register("late", 3)
    with pytest.raises(GoneError, match="no tuple 5"):
        queue.register("early", 5)


# -- writing


def test_only_what_follows_can_be_appended() -> None:
    queue = new()
    put(queue, 2, (2, 5))
    ids = np.arange(2, 4, dtype=np.int64)
    rows = pa.record_batch([ids], schema=SCHEMA)
    other = pa.record_batch([ids], names=["w"])

    def bad(what: str, *section: Any) -> None:
        with pytest.raises(ValueError, match=what):
            queue.append(Section(*section))

    bad("cannot follow", 3, rows, ids, NOTHING, NOTHING, 5)
    bad("cannot follow", 2, rows, ids, NOTHING, NOTHING, 4)
    bad("2 rows and 1 times", 2, rows, ids[:1], NOTHING, NOTHING, 5)
    bad("1 boundaries at 0 ids", 2, rows, ids, NOTHING, np.array([6]), 5)
    bad("out of place", 2, rows, ids, np.array([1]), np.array([6]), 5)
    bad("out of place", 2, rows, ids, np.array([5]), np.array([6]), 5)
    bad("out of place", 2, rows, ids, np.array([3, 2]), np.array([6, 7]), 5)
    bad("do not rise", 2, rows, ids, np.array([2]), np.array([5]), 5)
    bad("do not rise", 2, rows, ids, np.array([2, 2]), np.array([6, 6]), 5)
    bad("a section of w: int64", 2, other, ids, NOTHING, NOTHING, 5)
    assert (queue.next_id, queue.boundary, queue.ended) == (2, 5, False)
    put(queue, 0, (2, LAST_TIME))
    assert queue.ended
    bad("has ended", 2, rows, ids, NOTHING, NOTHING, LAST_TIME)


def test_nothing_at_all_is_not_held() -> None:
    queue = new()
    put(queue, 0)
    assert queue.status().held_bytes == 0
    assert queue.read(0, FIRST_TIME, 0) is None


def test_a_full_queue_stops_the_writer_until_the_reader_comes() -> None:
    queue = new(most=1)
    queue.limits = dataclasses.replace(queue.limits, disk_bytes=0)
    assert queue.has_room()
    put(queue, 3)  # one always has room
    assert not queue.has_room()
    assert not queue.has_room(0)
    writing = Doing(lambda: put(queue, 2))
    until(waiting(queue._room))
    queue.ack("r", 0, 3)
    queue.ack("r", 1, 2)  # not enough
    assert (queue.next_id, writing.is_alive()) == (3, True)
    queue.ack("r", 1, 3)
    writing.result()
    assert (queue.first_id, queue.next_id) == (3, 5)


def test_what_readers_have_and_need_yet_is_on_disk_and_stops_the_writer_later() -> None:
    queue = OutputQueue("d/x", SCHEMA, QueueLimits(40_000, memory_bytes=20_000, disk_bytes=100_000), readers=["r"])
    while queue.has_room():  # a reader that does not come stops it soon
        put(queue, 100)
    here = queue.next_id
    assert told(queue.read(0, FIRST_TIME, 0))[0] == list(range(here))
    queue.ack("r", 0, here)
    while queue.has_room():
        put(queue, 100)
        queue.ack("r", 0, queue.next_id)
    assert 3 * here < queue.next_id < 9_000
    assert queue._held.in_memory < 25_000
    assert len(queue.snapshot().sections) < 30  # small ones are one on disk
    assert told(queue.read(7, FIRST_TIME, 0))[0] == list(range(7, queue.next_id))  # should the reader die
    queue.ack("r", 1, here)
    assert queue.has_room()


def test_a_disk_that_refuses_leaves_a_queue_as_full_as_without_one() -> None:
    class Refusing(LocalDisk):
        def spill(self, data: Any) -> pa.Buffer:
            raise OSError(28, "No space left on device")

    limits = QueueLimits(40_000, memory_bytes=20_000)
    queue = OutputQueue("d/x", SCHEMA, limits, readers=["r"], machine=Machine(disk=Refusing()))
    while queue.has_room():
        put(queue, 100)
        queue.ack("r", 0, queue.next_id)
    assert 40_000 <= queue.status().held_bytes < 45_000
    assert told(queue.read(0, FIRST_TIME, 0))[0] == list(range(queue.next_id))


def test_the_slowest_reader_counts_until_it_is_forgotten() -> None:
    queue = new(most=1, readers=("fast", "slow"))
    put(queue, 3)
    queue.ack("fast", 1, 3)
    waiter = Doing(lambda: queue.has_room(300))
    until(waiting(queue._room))
    queue.forget("slow")
    queue.forget("nobody")
    assert waiter.result() is True
    assert queue.has_room()


def test_boundaries_alone_never_stop_the_writer() -> None:
    queue = new(most=1)
    put(queue, 1)
    queue.ack("r", 1, 1)
    for bound in range(100):
        put(queue, 0, (1, bound))
    assert queue.has_room()


def test_what_is_acknowledged_makes_room_for_what_is_not() -> None:
    queue = new(most=10_000, keep=10_000)
    for i in range(30):
        put(queue, 1)
        queue.ack("r", 1, i)
    assert queue.status().held_bytes <= 10_000
    assert told(queue.read(29, FIRST_TIME, 0)) == ([29], [])


def test_a_slow_reader_loses_the_oldest_where_the_stream_says_so() -> None:
    queue = new("drop", most=5 * 1400, readers=("slow", "fast"))
    for i in range(20):
        put(queue, 10, (10 * i + 10, i))
        queue.ack("fast", 1, 10 * i + 10)
    first = queue.first_id
    assert 150 <= first < 190
    assert first % 10 == 0
    assert (queue.dropped, lost(queue, "slow"), lost(queue, "fast")) == (first, first, 0)
    one = queue.read(0, FIRST_TIME, 0)
    assert one is not None
    assert one.first == first  # from which a reader knows how many it lost
    assert told(one)[1][0] == (first, first // 10 - 1)  # boundaries at the edge are there
    assert queue.register("slow") == 0
    queue.ack("slow", 1, 200)
    assert lost(queue, "slow") == first
    assert queue.has_room()
    assert queue.has_room(0)


def test_only_what_somebody_needed_counts_as_dropped() -> None:
    queue = new("drop", most=1, readers=("r", "s"))
    put(queue, 10)
    queue.ack("r", 1, 4)
    queue.ack("s", 1, 7)
    put(queue, 10)
    assert (queue.first_id, queue.dropped) == (10, 6)
    assert (lost(queue, "r"), lost(queue, "s")) == (6, 3)
    queue.ack("r", 1, 20)
    queue.ack("s", 1, 20)
    put(queue, 10)
    assert (queue.first_id, queue.dropped) == (20, 6)


def test_the_newest_tuples_are_not_dropped_for_a_boundary() -> None:
    queue = new("drop", most=1)
    put(queue, 5)
    put(queue, 0, (5, 1))
    assert told(queue.read(0, FIRST_TIME, 0)) == ([0, 1, 2, 3, 4], [(5, 1)])
    put(queue, 1)
    assert (queue.first_id, queue.dropped) == (5, 5)
    assert told(queue.read(5, FIRST_TIME, 0)) == ([5], [(5, 1)])


def test_without_readers_the_newest_is_kept_for_latecomers() -> None:
    queue = new(keep=5000, readers=())
    for _ in range(100):
        put(queue, 10)
    assert 0 < queue.status().held_bytes <= 5000
    assert 960 <= queue.first_id < 1000
    assert (queue.dropped, queue.has_room()) == (0, True)
    assert queue.register("late") == queue.first_id


def test_an_idle_stream_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held, "BOUNDARIES_MOST", 64)
    queue = new()
    put(queue, 1, (0, 1))
    for bound in range(2, 1000):
        put(queue, 0, (1, bound))
    assert len(queue._held.sections) < 12
    ids, bounds = told(queue.read(0, FIRST_TIME, 0))
    assert ids == [0]
    assert bounds[0] == (0, 1)
    assert 32 <= len(bounds) <= 128
    assert bounds[1:] == [(1, b) for b in range(1001 - len(bounds), 1000)]  # the newest of them
    assert told(queue.read(1, 990, 0)) == ([], [(1, b) for b in range(991, 1000)])
    assert queue.boundary == 999
    one = queue.read(1, 1, 0)
    assert one is not None
    assert one.standing == one.bound[0] - 1


def test_long_streams_leave_nothing_behind() -> None:
    queue = new(keep=20_000)
    for i in range(6_000):
        put(queue, 1)
        queue.ack("r", 1, i)
    assert queue.status().held_bytes <= 22_000
    assert len(queue._held.sections) == len(queue._held.places) == len(queue._held.ends) < 4000
    assert sum(len(s) for s in queue._held.sections) == queue.next_id - queue.first_id < 20


# -- readers


def test_where_a_reader_begins() -> None:
    queue = new(keep=1 << 20)
    put(queue, 5)
    assert queue.register("r") == 0
    queue.ack("r", 1, 3)
    assert queue.register("r") == 3
    assert queue.register("r", 4) == 4  # ahead of what it acknowledged, which stays
    assert queue.acks()["r"] == ReaderPlace(3, 3)
    assert queue.register("r", 1) == 1  # back: it needs that again
    assert queue.acks()["r"] == ReaderPlace(1, 1, back=1)
    assert queue.register("new") == 0
    assert queue.register("newest", queue.next_id) == 5
    assert queue.acks()["newest"][1] == 5


def test_acknowledgements_may_come_again_and_out_of_order() -> None:
    queue = new()
    put(queue, 5)
    queue.ack("r", 0, 4)
    queue.ack("r", 0, 2)
    queue.ack("r", 1, 3)
    queue.ack("r", 1, 1)
    assert queue.acks()["r"] == ReaderPlace(4, 3)
    queue.ack("r", 1, 3)
    assert queue.acks()["r"] == ReaderPlace(4, 3)
    with pytest.raises(StreamError, match="acknowledged 6, but the next tuple is 5"):
        queue.ack("r", 1, 6)
    queue.ack("rr", 1, 2)  # one that is not known, or was forgotten: nothing is kept for it because of that
    assert list(queue.acks()) == ["r"]


def test_status() -> None:
    queue = OutputQueue("d/x", SCHEMA, QueueLimits(1 << 20, "wait", 0), readers=["r"], epoch="e", next_id=7, standing=2)
    put(queue, 3, (10, 4))
    put(queue, 3)
    queue.ack("r", 1, 11)
    status = queue.status()
    assert (status.stream, status.epoch, status.first_id, status.next_id) == ("d/x", "e", 10, 13)
    assert (status.boundary, status.held_rows, status.dropped, status.readers) == (4, 3, 0, {"r": 11})
    assert status.held_bytes == queue.status().held_bytes > 0
    assert OutputQueue("d/x", SCHEMA).epoch != OutputQueue("d/x", SCHEMA).epoch


# -- closing and moving


def test_a_moved_stream_sends_everybody_on() -> None:
    queue = new(most=1)
    put(queue, 1)
    threads = [
        Doing(lambda: queue.read(1, FIRST_TIME, 300)),
        Doing(lambda: put(queue, 1)),
        Doing(lambda: queue.has_room(300)),
    ]
    until(waiting(queue._more))
    until(waiting(queue._room, 2))
    queue.close(moved_to="grpc://there:1")
    for thread in threads:
        with pytest.raises(MovedError, match="d/x has moved to grpc://there:1") as caught:
            thread.result()
        assert caught.value.moved_to == "grpc://there:1"
    for act in (lambda: queue.read(0, FIRST_TIME, 0), lambda: queue.register("x"), lambda: put(queue, 1)):
        with pytest.raises(MovedError):
            act()
    queue.close()  # changes nothing
    with pytest.raises(MovedError):
        queue.read(0, FIRST_TIME, 0)
    queue.ack("r", 1, 1)
    queue.forget("r")
    assert queue.snapshot().next_id == 1


def test_a_closed_stream() -> None:
    queue = new()
    queue.close()
    with pytest.raises(StreamError, match="d/x is closed here"):
        queue.read(0, FIRST_TIME, 30)


def test_a_snapshot_is_the_queue() -> None:
    queue = new("drop", most=6000, keep=1400, readers=("r", "s"))
    for i in range(6):
        put(queue, 4, (4 * i + 4, 10 * i))
    queue.ack("s", 1, 22)
    queue.ack("s", 0, 23)
    queue.register("~passing")
    before = queue.status()
    assert before.dropped > 0
    data = queue.snapshot().to_bytes()
    put(queue, 3)  # the snapshot does not see it
    again = OutputQueue.restore(QueueSnapshot.from_bytes(data), queue.limits)
    after = again.status()
    assert set(after.readers) == {"r", "s"}
    assert after.held_bytes <= before.held_bytes  # in fewer sections
    assert after == before.model_copy(update={"readers": after.readers, "held_bytes": after.held_bytes})
    assert (again.acks()["s"], lost(again, "r")) == (ReaderPlace(23, 22), before.dropped)
    assert again.snapshot().to_bytes() == data
    assert again.schema == SCHEMA
    put(again, 3)
    assert told(again.read(20, FIRST_TIME, 0)) == told(queue.read(20, FIRST_TIME, 0))


def test_an_empty_queue_moves_too() -> None:
    queue = OutputQueue("d/x", SCHEMA, next_id=5, standing=3)
    again = OutputQueue.restore(QueueSnapshot.from_bytes(queue.snapshot().to_bytes()))
    assert again.status() == queue.status()
    put(again, 1)
    assert told(again.read(5, 3, 0)) == ([5], [])


def test_many_heartbeats_are_restored_as_few_sections() -> None:
    """As an entry point does from its log, where each is a record."""
    queue = new()
    put(queue, 1)
    none = pa.record_batch([pa.array([], pa.int64())], schema=SCHEMA)
    beats = [Section(1, none, NOTHING, np.array([1]), np.array([b]), b - 1 if b else FIRST_TIME) for b in range(500)]
    whole = queue.snapshot()
    snapshot = dataclasses.replace(whole, boundary=499, sections=(*whole.sections, *beats))
    again = OutputQueue.restore(snapshot)
    assert len(again._held.sections) < 12
    assert told(again.read(0, FIRST_TIME, 0)) == ([0], [(1, b) for b in range(500)])


def test_all_kinds_of_columns_move() -> None:
    schema = pa.schema(
        [
            pa.field("d", pa.dictionary(pa.int32(), pa.string())),
            pa.field("n", pa.struct([("x", pa.list_(pa.int8()))]), nullable=False, metadata={"k": "v"}),
        ],
        metadata={"what": "this"},
    )
    queue = OutputQueue("d/x", schema)
    for texts in (["a", None], ["b"], []):
        nested = pa.array([{"x": [1, None]}] * len(texts), schema.field("n").type)
        columns = [pa.array(texts, pa.string()).dictionary_encode(), nested]
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        queue.append(Section(queue.next_id, rows, np.zeros(len(texts), np.int64), NOTHING, NOTHING))
    again = OutputQueue.restore(QueueSnapshot.from_bytes(queue.snapshot().to_bytes()))
    assert again.schema.equals(schema, check_metadata=True)
    one, two = again.read(0, FIRST_TIME, 0), queue.read(0, FIRST_TIME, 0)
    assert one is not None
    assert two is not None
    assert one.rows.to_pylist() == two.rows.to_pylist()
    assert one.rows["d"].to_pylist() == ["a", None, "b"]


@pytest.mark.parametrize("data", [b"", b"BQS", b"BDL2" + bytes(100), b"BQS1" + bytes(100), b"\xff" * 64])
def test_other_bytes_are_no_snapshot(data: bytes) -> None:
    with pytest.raises(StateError, match="not a queue of this version, or damaged"):
        QueueSnapshot.from_bytes(data)


# -- tentative tuples


def a_section(first: int, n: int, fork: str = "") -> Section:
    ids = np.arange(first, first + n)
    return Section(first, pa.record_batch([ids], schema=SCHEMA), ids * 10, NOTHING, NOTHING, fork=fork)


def seen(queue: OutputQueue, wants: Wants, place: list[Any]) -> list[tuple[str, int, int]]:
    """What a reader gets that goes on until there is nothing more: fork, `undo` or `done`, first id, rows."""
    found = []
    while (one := queue.read_any(*place, wants, 0)) is not None:
        place[2] = fork_place(place[2], one)
        if one.stable:
            place[:2] = one.stop, one.final
        found.append(("undo" if one.undo else "done" if one.done else one.fork, one.first, len(one)))
    return found


def test_tentative_tuples_are_for_those_who_want_them_until_they_are_void() -> None:
    queue = OutputQueue("s", SCHEMA)
    readers: dict[Wants, list[Any]] = {wants: [0, FIRST_TIME, None] for wants in ("stable", "either", "both")}

    def now() -> list[list[tuple[str, int, int]]]:
        return [seen(queue, wants, place) for wants, place in readers.items()]

    queue.append(a_section(0, 3))
    assert now() == [[("", 0, 3)]] * 3
    queue.fork("f")
    queue.append_tentative(a_section(3, 2, "f"))
    assert now() == [[], [("f", 3, 2)], [("f", 3, 2)]]
    queue.append(a_section(3, 4))  # the truth comes, while the fork goes on
    queue.append_tentative(a_section(5, 1, "f"))
    assert now() == [[("", 3, 4)], [("f", 5, 1)], [("", 3, 4), ("f", 5, 1)]]
    queue.drop_fork()
    assert now() == [[], [("undo", 3, 0), ("", 3, 4)], [("undo", 7, 0)]]
    queue.fork("g")
    queue.append_tentative(a_section(7, 1, "g"))
    queue.fork("h")  # of the one before, they had nothing
    assert now() == [[], [], []]


def test_who_comes_back_from_a_fork_that_is_over_hears_that_first() -> None:
    queue = OutputQueue("s", SCHEMA)
    queue.append(a_section(0, 3))
    heard = [("undo", 2, 0), ("", 2, 1), ("done", 3, 0)]
    assert seen(queue, "either", [2, FIRST_TIME, ("gone", 9, FIRST_TIME)]) == heard


def bounded(one: Section, bound: int, standing: int = FIRST_TIME) -> Section:
    """The section with a boundary behind it."""
    return one.bounded(np.array([one.stop]), np.array([bound]), standing)


def test_recovery_is_done_when_all_is_there_that_corrects_what_was_void() -> None:
    queue = OutputQueue("s", SCHEMA)
    readers: dict[Wants, list[Any]] = {wants: [0, FIRST_TIME, None] for wants in ("stable", "either", "both")}

    def now() -> list[list[tuple[str, int, int]]]:
        return [seen(queue, wants, place) for wants, place in readers.items()]

    queue.append(a_section(0, 3))
    queue.recover()
    assert now() == [[("", 0, 3)]] * 3, "who was not told of an undo is not told that it is over"
    queue.fork("f")
    queue.append_tentative(a_section(3, 2, "f"))
    now()
    queue.append(a_section(3, 1))
    queue.fork("g")  # renewed
    queue.append_tentative(a_section(4, 1, "g"))
    assert now() == [[("", 3, 1)], [("undo", 3, 0), ("", 3, 1), ("g", 4, 1)], [("undo", 3, 0), ("", 3, 1), ("g", 4, 1)]]
    queue.drop_fork()
    assert now() == [[], [("undo", 4, 0)], [("undo", 4, 0)]]
    queue.append(a_section(4, 2))
    assert now() == [[("", 4, 2)]] * 3
    queue.recover()
    queue.append(a_section(6, 1))
    assert now() == [[("", 6, 1)], [("", 6, 1), ("done", 7, 0)], [("", 6, 1), ("done", 7, 0)]]
    assert now() == [[], [], []]
    assert [place[2] for place in readers.values()] == [None] * 3


def test_a_reader_hears_from_another_copy_that_recovery_is_done() -> None:
    one, other = OutputQueue("s", SCHEMA), OutputQueue("s", SCHEMA)
    one.fork("f")
    one.append_tentative(bounded(a_section(0, 2, "f"), 20))
    place: list[Any] = [0, FIRST_TIME, None]
    assert seen(one, "either", place) == [("f", 0, 2)]
    other.append(bounded(a_section(0, 1), 10))
    assert seen(other, "either", place) == [("undo", 0, 0), ("", 0, 1)]
    assert seen(other, "either", place) == [], "this copy has not come as far as the tentative tuples had"
    other.append(bounded(a_section(1, 1), 25, 10))
    assert seen(other, "either", place) == [("", 1, 1), ("done", 2, 0)]


def test_recovery_is_done_before_a_stream_ends() -> None:
    queue = OutputQueue("s", SCHEMA)
    queue.fork("f")
    queue.append_tentative(bounded(a_section(0, 2, "f"), 30))
    place: list[Any] = [0, FIRST_TIME, None]
    seen(queue, "either", place)
    queue.drop_fork()
    queue.append(bounded(a_section(0, 1), 10))
    queue.append(bounded(a_section(1, 2), LAST_TIME, 10))
    assert seen(queue, "either", place) == [("undo", 0, 0), ("", 0, 3), ("done", 3, 0), ("", 3, 0)]
    assert place[1] == LAST_TIME


def test_who_comes_late_begins_behind_what_was_corrected_by_then() -> None:
    queue = OutputQueue("s", SCHEMA)
    queue.fork("f")
    for n in range(3):
        standing = n * 10 - 10 if n else FIRST_TIME
        queue.append_tentative(a_section(n, 1, "f").bounded(np.array([n + 1]), np.array([n * 10]), standing))
    queue.append(a_section(0, 1).bounded(np.array([1]), np.array([10]), FIRST_TIME))
    assert seen(queue, "either", [0, FIRST_TIME, None]) == [("", 0, 1), ("f", 2, 1)]


def test_slow_readers_lose_the_oldest_tentative_tuples() -> None:
    queue = OutputQueue("s", SCHEMA, QueueLimits(bytes_most=8 << 10))
    queue.fork("f")
    for n in range(100):
        queue.append_tentative(a_section(n, 1, "f"))
    assert queue.tail is not None
    assert queue.tail.held.bytes < 10 << 10
    got = seen(queue, "either", [0, FIRST_TIME, ("f", 0, FIRST_TIME)])
    assert got[0][1] > 50
    assert sum(rows for _, _, rows in got) == 100 - got[0][1]


def test_a_stream_does_not_end_tentatively() -> None:
    queue = OutputQueue("s", SCHEMA)
    queue.fork("f")
    queue.append_tentative(a_section(0, 2, "f").bounded(np.array([2, 2]), np.array([15, LAST_TIME]), FIRST_TIME))
    one = queue.read_any(0, FIRST_TIME, None, "either", 0)
    assert one is not None
    assert (one.final, one.ended) == (15, False)


def test_nothing_tentative_is_among_stable_tuples() -> None:
    queue = OutputQueue("s", SCHEMA)
    for wrong in (dataclasses.replace(a_section(0, 2), undo=True), a_section(0, 2, "f")):
        with pytest.raises(ValueError, match="not stable among the stable ones of stream s"):
            queue.append(wrong)
