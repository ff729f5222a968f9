"""Lanes without Spark: who may answer, when a train is committed, and how a lease ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from borealis.clock import ManualClock
from borealis.errors import WireError
from borealis.kernels.program import Packet
from borealis.machine import Machine
from borealis.spark import lane
from borealis.spark.lane import (
    AHEAD,
    ATTEMPT,
    BUCKET,
    FILE_BYTES_LEAST,
    LEASE,
    MORE,
    NUMBER,
    OVER,
    PACKETS,
    TRAIN,
    WAIT,
    TrainResults,
    packets_of,
)
from borealis.spark.lanes import Dress, Lanes, LaneTimings
from borealis.state.delta import Unwritten
from borealis.trains.message import decode, encode
from borealis.trains.results import Arrived


class Unit:
    """Hands out so many trains, and keeps what is committed."""

    def __init__(self, trains: int) -> None:
        self.trains, self.done = trains, 0
        self.results: list[list[bytes]] = []
        self.refuse = self.ahead = False
        self.nudged = threading.Event()

    def committed(self) -> int:
        return self.done

    def next_train(self, after: int, wait: float, *, forks: bool = False) -> int | None:
        if after < self.trains:
            return after + 1
        self.nudged.wait(wait)
        return None

    def next_ahead(self, number: int) -> int | None:
        return number + 1 if self.ahead and number < self.trains else None

    def plan(self, number: int, *, inline: bool = False) -> dict[str, Any]:
        assert inline
        rows = {"rows": pa.py_buffer(b"rows"), "late": None}
        return {"train": number, "inputs": {"a": rows}, "results": "/results", "manifest": None}

    def manifest(self, number: int) -> dict[str, list[list[int]]]:
        return {"box.0": [[0, self.done]]}

    def standing(self, number: int) -> tuple[str, int, int]:
        return "", self.done, 0

    def nudge(self) -> None:
        self.nudged.set()

    def commit(self, arrived: Arrived) -> None:
        if self.refuse:
            raise OSError("the disk is full")
        self.done += 1
        self.results.append([bytes(p.payload) for p in arrived.packets])


class Task:
    """A task that keeps a lane, one turn at a time."""

    def __init__(self, lanes: Lanes, lease: int, bucket: int = 0) -> None:
        self.lanes, self.head = lanes, {LEASE: lease, BUCKET: bucket}

    def ahead(self, number: int) -> dict[str, Any]:
        """It has run this train, and asks for the next before it says what came of it."""
        return self.lanes.turn(self.head | {NUMBER: number, AHEAD: True}, [])[0]

    def turn(self, *payloads: bytes, number: int | None = None, **more: Any) -> dict[str, Any]:
        head = self.head | more
        if number is not None:
            head |= {NUMBER: number, PACKETS: [[1, head[BUCKET], None] for _ in payloads]}
        told, buffers = self.lanes.turn(head, [pa.py_buffer(p) for p in payloads])
        if TRAIN in told:
            assert buffers[told[TRAIN]["inputs"]["a"]["rows"]].to_pybytes() == b"rows"
        if ATTEMPT in told:
            self.head[ATTEMPT] = told[ATTEMPT]
        return told


def lanes_of(unit: Unit, buckets: int = 1, **more: Any) -> Lanes:
    lanes = Lanes(buckets, **({"timings": LaneTimings(turn_s=0.0)} | more))
    assert lanes.dress(Dress(unit, unit.commit))
    return lanes


def test_each_answer_is_met_with_the_next_train() -> None:
    unit = Unit(3)
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    told = task.turn()
    for number in (1, 2, 3):
        assert told[NUMBER] == number
        told = task.turn(b"%d" % number, number=number)
    assert WAIT in told
    assert unit.results == [[b"1"], [b"2"], [b"3"]]


def test_who_holds_the_state_is_not_told_where_it_lies() -> None:
    unit = Unit(9)
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    assert task.turn()[TRAIN]["manifest"] == {"box.0": [[0, 0]]}
    assert task.turn(b"1", number=1)[TRAIN]["manifest"] is None
    instead = Task(lanes, 1)
    assert instead.turn()[TRAIN]["manifest"] == {"box.0": [[0, 1]]}
    instead.turn(b"2", number=2)
    unit.done = 5  # a backup that got the state of another's trains
    assert Task(lanes, lanes.lease(1) or 0).turn()[TRAIN]["manifest"] == {"box.0": [[0, 5]]}


def test_a_train_is_committed_when_all_buckets_have_answered() -> None:
    unit = Unit(2)
    lanes = lanes_of(unit, 2)
    lease = lanes.lease(0) or 0
    one, two = Task(lanes, lease, 0), Task(lanes, lease, 1)
    assert two.turn()[NUMBER] == one.turn()[NUMBER] == 1
    assert WAIT in two.turn(b"two", number=1)
    assert not unit.results
    assert WAIT in two.turn(b"two", number=1)  # told twice
    assert one.turn(b"one", number=1)[NUMBER] == 2
    assert unit.results == [[b"one", b"two"]]
    assert two.turn()[NUMBER] == 2


def test_whoever_comes_instead_finds_the_same_train_and_the_dead_count_no_more() -> None:
    unit = Unit(3)
    lanes = lanes_of(unit)
    lease = lanes.lease(0) or 0
    dead, instead = Task(lanes, lease), Task(lanes, lease)
    assert dead.turn()[NUMBER] == 1
    assert instead.turn()[NUMBER] == 1
    assert OVER in dead.turn(b"late", number=1)
    assert not unit.results
    # what came instead has shown that it can: the next lease begins, in which Spark counts deaths anew
    assert OVER in instead.turn(b"good", number=1)
    assert unit.results == [[b"good"]]
    next_lease = lanes.lease(lease) or 0
    assert next_lease > lease
    assert OVER in instead.turn(b"again", number=2)
    assert Task(lanes, next_lease).turn()[NUMBER] == 2
    assert len(unit.results) == 1


def test_a_lease_ends_when_it_is_old_and_there_is_nothing_to_do() -> None:
    clock = ManualClock()
    unit = Unit(2)
    lanes = lanes_of(unit, timings=LaneTimings(10.0, 0.0), machine=Machine(clock))
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    clock.advance(11.0)
    assert task.turn(b"1", number=1)[NUMBER] == 2  # there is work
    assert OVER in task.turn(b"2", number=2)
    unit.trains = 9
    task = Task(lanes, lanes.lease(1) or 0)
    assert task.turn()[NUMBER] == 3
    clock.advance(21.0)
    assert OVER in task.turn(b"3", number=3)  # in any case
    assert unit.done == 3


@pytest.mark.timeout(20)
def test_an_input_that_has_failed_is_not_asked_all_the_time() -> None:
    asked: list[float] = []

    class Failed(Unit):
        def next_train(self, after: int, wait: float, *, forks: bool = False) -> int | None:
            asked.append(wait)
            return None

    lanes = lanes_of(Failed(0), timings=LaneTimings(turn_s=0.2))
    assert WAIT in Task(lanes, lanes.lease(0) or 0).turn()
    assert 1 <= len(asked) <= 11  # every 20 ms


@pytest.mark.timeout(20)
def test_closing_wakes_who_waits_and_lets_the_last_train_in() -> None:
    unit = Unit(0)
    lanes = lanes_of(unit, 2, timings=LaneTimings(turn_s=60.0))
    lease = lanes.lease(0) or 0
    told: list[dict[str, Any]] = []
    waiting = [threading.Thread(target=lambda b=b: told.append(Task(lanes, lease, b).turn())) for b in (0, 1)]
    for thread in waiting:
        thread.start()
    lanes.close()
    for thread in waiting:
        thread.join()
    assert told == [{OVER: True}] * 2
    assert lanes.lease(lease) is None

    unit = Unit(5)
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    lanes.close()
    assert not lanes.wait_idle(0.0)
    assert OVER in task.turn(b"last", number=1)
    assert lanes.wait_idle(0.0)
    assert unit.done == 1


def test_a_commit_that_is_refused_ends_all() -> None:
    unit = Unit(2)
    unit.refuse = True
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    assert OVER in task.turn(b"1", number=1)
    assert isinstance(lanes.failure, OSError)
    assert lanes.lease(1) is None


def test_the_next_train_is_handed_out_before_the_last_one_is_committed() -> None:
    unit = Unit(4)
    unit.ahead = True
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    told = task.turn(b"1", number=1)
    assert told[NUMBER] == 2
    assert told[TRAIN]["manifest"] is None  # it stands behind train 1 already
    assert not unit.results
    lanes.bring_in()
    assert unit.results == [[b"1"]]
    assert task.turn(b"2", number=2)[NUMBER] == 3
    assert task.turn(b"3", number=3)[NUMBER] == 4  # one train is ahead, and no more
    assert unit.results == [[b"1"], [b"2"]]
    assert WAIT in task.turn(b"4", number=4)
    assert unit.results[2:] == [[b"3"], [b"4"]]
    assert lanes.wait_idle(0.0)


def test_a_lane_may_begin_the_next_train_before_it_says_what_came_of_the_last() -> None:
    unit = Unit(3)
    unit.ahead = True
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    told = task.ahead(1)
    assert (told[NUMBER], told[TRAIN]["manifest"]) == (2, None)
    assert WAIT in task.ahead(2)  # one is ahead, and no more
    assert not lanes.wait_idle(0.0)
    assert task.turn(b"1", number=1, **{MORE: True}) == {}
    lanes.bring_in()
    assert unit.results == [[b"1"]]
    assert task.ahead(2)[NUMBER] == 3
    instead = Task(lanes, 1)  # it died, with two trains under way
    told = instead.turn()
    assert (told[NUMBER], told[TRAIN]["manifest"]) == (2, {"box.0": [[0, 1]]})
    assert task.turn(b"late", number=2, **{MORE: True}) == {}
    told = instead.turn(b"2", number=2)
    assert OVER in told  # a new lease begins, with the train that is left
    lanes.bring_in()
    task = Task(lanes, lanes.lease(1) or 0)
    told = task.turn()
    assert (told[NUMBER], told[TRAIN]["manifest"]) == (3, {"box.0": [[0, 2]]})
    assert WAIT in task.turn(b"3", number=3)
    assert unit.results == [[b"1"], [b"2"], [b"3"]]
    assert lanes.wait_idle(0.0)


def test_lanes_that_are_several_begin_a_train_together() -> None:
    unit = Unit(3)
    unit.ahead = True
    lanes = lanes_of(unit, 2)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    assert WAIT in task.ahead(1)


@pytest.mark.timeout(20)
def test_the_next_train_is_run_while_results_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written, running, told = threading.Event(), [], []

    def run_train(train: Any, bucket: int) -> list[Packet]:
        running.append(train["train"])
        if train["train"] == 2:
            written.set()
        return [Packet(1, bucket, Slow(train["train"]))]

    class Slow(Unwritten):
        size = FILE_BYTES_LEAST

        def __init__(self, number: int) -> None:
            self.number = number

        def write(self, sink: pa.NativeFile) -> None:
            assert written.wait(10.0)  # the first is written only while the second runs
            sink.write(b"%d" % self.number)

    def ask(head: dict[str, Any], buffers: list[Any]) -> tuple[dict[str, Any], list[Any]]:
        number = head.get(NUMBER, 0)
        if PACKETS in head:
            told.append((number, Path(head[PACKETS][0][2]).read_bytes(), MORE in head))
        if MORE in head or number == 3:
            return {OVER: True, WAIT: True, ATTEMPT: 1}, []
        train = {"train": number + 1, "inputs": {}, "results": str(tmp_path / str(number + 1))}
        return {ATTEMPT: 1, NUMBER: number + 1, TRAIN: train}, []

    monkeypatch.setattr(lane, "run_train", run_train)
    lane.run_lane(ask, 1, 0, ahead=True)
    assert running == [1, 2, 3]
    assert [one[:2] for one in told] == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert told[0][2]


def test_who_comes_instead_finds_what_was_before_the_train_committed() -> None:
    unit = Unit(3)
    unit.ahead = True
    lanes = lanes_of(unit, 2)
    lease = lanes.lease(0) or 0
    one, two = Task(lanes, lease, 0), Task(lanes, lease, 1)
    one.turn()
    two.turn()
    one.turn(b"1", number=1)
    assert two.turn(b"1", number=1)[NUMBER] == 2
    assert one.turn()[NUMBER] == 2
    assert not unit.results
    assert Task(lanes, lease, 1).turn()[TRAIN]["manifest"] == {"box.0": [[0, 1]]}
    assert unit.results == [[b"1", b"1"]]
    lanes.close()
    assert OVER in one.turn(b"2", number=2)
    assert not lanes.wait_idle(0.0)  # of the other bucket nothing came


def test_what_was_ahead_of_a_commit_that_is_refused_is_nothing() -> None:
    unit = Unit(3)
    unit.ahead = unit.refuse = True
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    assert task.turn(b"1", number=1)[NUMBER] == 2
    lanes.bring_in()
    assert isinstance(lanes.failure, OSError)
    unit.refuse = False
    assert OVER in task.turn(b"2", number=2)
    assert not unit.results


def test_who_takes_a_unit_off_waits_for_its_last_commit() -> None:
    unit = Unit(2)
    unit.ahead = True
    lanes = lanes_of(unit)
    task = Task(lanes, lanes.lease(0) or 0)
    task.turn()
    task.turn(b"1", number=1)
    assert not lanes.undress(0.0)
    assert WAIT in task.turn(b"2", number=2)  # nothing is fetched any more
    assert lanes.wait_idle(0.0)
    assert unit.results == [[b"1"], [b"2"]]


def test_results_are_read_from_where_they_were_to_be_put_and_nowhere_else() -> None:
    with pytest.raises(WireError, match="not where they belong"):
        packets_of([[1, 0, "/etc/passwd"]], [], "/results")
    with pytest.raises(WireError, match="not where they belong"):
        packets_of([[1, 0, "/results/x"]], [], None)
    assert TrainResults([], None).packed() == ([], [])


def test_messages_that_are_none_are_refused() -> None:
    whole = encode({"a": 1}, [b"x" * 100])
    head, buffers = decode(whole)
    assert head == {"a": 1}
    assert buffers[0].address % 64 == pa.py_buffer(whole).address % 64
    for wrong in (b"", whole[:-1], whole + b"x", b"\0" * 40):
        with pytest.raises(WireError):
            decode(wrong)
    with pytest.raises(WireError):
        decode(encode({}, [])[12:-1])


# -- lanes that are no unit's yet


@pytest.mark.timeout(20)
def test_a_task_that_has_come_before_there_is_a_unit_gets_its_first_train_at_once() -> None:
    unit, told = Unit(1), list[dict[str, Any]]()
    lanes = Lanes(1, timings=LaneTimings(turn_s=60.0))
    lease = lanes.lease(0) or 0
    waiting = threading.Thread(target=lambda: told.append(Task(lanes, lease).turn()))
    waiting.start()
    assert lanes.dress(Dress(unit, unit.commit))
    waiting.join()
    assert told[0][NUMBER] == 1


def test_what_is_worn_must_be_taken_off_first() -> None:
    one, two = Unit(1), Unit(1)
    lanes = Lanes(1, timings=LaneTimings(turn_s=0.0))
    task = Task(lanes, lanes.lease(0) or 0)
    assert WAIT in task.turn()
    assert lanes.dress(Dress(one, one.commit, fitting=True))
    assert not lanes.dress(Dress(two, two.commit))
    assert task.turn()[NUMBER] == 1
    assert not lanes.undress(0.0)  # a train is under way; it is still brought in
    assert WAIT in task.turn(b"1", number=1)
    assert one.results == [[b"1"]]
    assert lanes.wait_idle(0.0)
    assert lanes.dress(Dress(two, two.commit))
    assert task.turn()[NUMBER] == 1


def test_who_runs_one_unit_for_good_forgets_what_it_has_tried_on() -> None:
    tried, worn = Unit(1), Unit(9)
    lanes = Lanes(1, timings=LaneTimings(turn_s=0.0))
    task = Task(lanes, lanes.lease(0) or 0)
    lanes.dress(Dress(tried, tried.commit, fitting=True))
    assert "alone" not in task.turn()[TRAIN]
    task.turn(b"1", number=1)
    assert lanes.undress(0.0)
    lanes.dress(Dress(worn, worn.commit))
    assert task.turn()[TRAIN]["alone"]
    assert "alone" not in task.turn(b"1", number=1)[TRAIN]  # said once


@pytest.mark.timeout(20)
def test_who_is_taken_off_may_wait_for_its_next_train() -> None:
    unit = Unit(0)
    lanes = Lanes(1, timings=LaneTimings(turn_s=60.0))
    lease = lanes.lease(0) or 0
    asking = threading.Event()
    ask = unit.next_train
    unit.next_train = lambda *a, **k: asking.set() or ask(*a, **k)  # type: ignore[method-assign]
    lanes.dress(Dress(unit, unit.commit, fitting=True))
    waiting = threading.Thread(target=Task(lanes, lease).turn, daemon=True)
    waiting.start()
    assert asking.wait(10)
    assert lanes.undress(10.0)
    lanes.close()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_lease_without_a_unit_ends_when_it_is_old_or_a_task_of_it_died() -> None:
    clock = ManualClock()
    lanes = Lanes(1, timings=LaneTimings(10.0, 0.0), machine=Machine(clock))
    lease = lanes.lease(0) or 0
    task = Task(lanes, lease)
    assert WAIT in task.turn()
    clock.advance(11.0)
    assert OVER in task.turn()
    lease = lanes.lease(lease) or 0
    assert WAIT in Task(lanes, lease).turn()
    assert OVER in Task(lanes, lease).turn()  # instead of one that died: Spark counts such deaths by lease


def test_lanes_that_are_over_are_no_units() -> None:
    lanes = Lanes(1)
    lanes.close()
    assert not lanes.dress(Dress(Unit(1), lambda _: None))
