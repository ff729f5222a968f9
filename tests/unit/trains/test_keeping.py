"""What a unit keeps while it has a fork: some in memory, more on the disk, and then no more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from borealis.diagram.protection import WhenFull
from borealis.disk import LocalDisk
from borealis.machine import Machine
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Section
from borealis.trains.forking import FORKS, DelayBound
from borealis.trains.input_manager import InputManager
from borealis.trains.keeping import AGAIN_S, Keeping, KeepLimits
from borealis.trains.relay import Relayed, StreamInput
from borealis.trains.train import Train
from forked_input import PATIENCE_S, SCHEMA, ForkedInput

ROWS = 100
MEMORY = KeepLimits(1 << 30, memory_bytes=8_000)


class FullDisk(LocalDisk):
    """A disk that a test fills."""

    def __init__(self) -> None:
        self.room, self.asked = True, 0

    def spill(self, data: Any) -> pa.Buffer:
        self.asked += 1
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().spill(data)


def forked(folder: Path, keep: KeepLimits, **policy: Any) -> ForkedInput:
    """A unit that has read the first of both its streams, and has waited for the second for too long."""
    unit = ForkedInput(folder, "a", "b", keep=keep, **policy)
    unit.give("a", [1], 10)
    unit.give("b", [2], 10)
    unit.give("a", [11], 20)
    unit.wait(PATIENCE_S)
    return unit


def fill(unit: ForkedInput, name: str, begin: int, pieces: int) -> list[int]:
    """Some pieces of a stream, with a row at each moment; returns these."""
    for at in range(begin, begin + pieces * ROWS, ROWS):
        unit.give(name, list(range(at, at + ROWS)), at + ROWS)
    return list(range(begin, begin + pieces * ROWS))


def test_what_the_trunk_waits_with_goes_to_the_disk_and_is_read_from_there(tmp_path: Path) -> None:
    unit = forked(tmp_path, MEMORY)
    given = fill(unit, "a", 20, 30)
    assert unit.tentative == [11, *given]  # the fork has read it before
    kept = unit.trunk.intakes["a"]
    assert kept.in_memory < 10_000 < kept.on_disk <= kept.size
    assert kept.rows == len(given) + 1
    assert len(kept.pending) < 15  # small pieces are few on disk
    unit.give("b", [3000], 3030)
    unit.give("a", [], 3030)
    assert unit.stable == [1, 2, 11, *sorted([*given, 3000])]
    assert (kept.on_disk, kept.rows, len(kept.pending)) == (0, 0, 1)  # a boundary


def test_a_fork_that_reads_later_has_its_own_on_disk_and_a_new_one_reads_what_is_there(tmp_path: Path) -> None:
    unit = forked(tmp_path, MEMORY, during_failure="delay")
    given = fill(unit, "a", 20, 30)
    assert unit.fork is not None
    assert unit.tentative == [11, *given[:10]]
    assert unit.fork.intakes["a"].in_memory < 10_000 < unit.fork.intakes["a"].on_disk
    unit.give("b", [15], 25)  # not as far as the fork will be
    unit.wait(PATIENCE_S)
    assert unit.begun == [1, 2]  # another one, from where the trunk is
    assert unit.stable == [1, 2, 11, 15, 20]
    assert unit.tentative[-len(given) + 1 :] == given[1:]


def test_beyond_the_limit_both_lines_wait(tmp_path: Path) -> None:
    unit = forked(tmp_path, KeepLimits(40_000, memory_bytes=8_000))
    given = fill(unit, "a", 20, 10)
    assert unit.has_room("a")
    given += fill(unit, "a", 1020, 20)
    assert not unit.has_room("a")
    assert unit.has_room("b")
    unit.give("b", [], 3030)  # it is read
    assert unit.has_room("a")
    assert unit.stable == [1, 2, 11, *given]


def test_beyond_the_limit_the_oldest_may_be_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unit = forked(tmp_path, KeepLimits(40_000, memory_bytes=8_000, when_full="drop-oldest"))
    given = fill(unit, "a", 20, 60)
    assert unit.has_room("a")
    assert unit.tentative == [11, *given], "the fork has it all"
    kept, gone = unit.trunk.intakes["a"], unit.keeping.given_up["a"]
    assert 20_000 < kept.size < 40_000
    assert kept.size == sum(part.nbytes for part in kept.pending)
    assert kept.rows == len(given) + 1 - gone
    assert [text.count("'a'") for text in caplog.messages] == [1]
    hole = kept.pending[0]
    assert isinstance(hole, Relayed)
    assert (hole.leaps, hole.jumps, hole.section.first) == (True, True, 1 + gone)
    assert hole.start.reached == 10, "what was given up has not been read"
    assert not any(part.jumps for part in list(kept.pending)[1:] if isinstance(part, Relayed))
    for bound in (6030, 6060):
        unit.give("b", [15, 25] if bound == 6030 else [], bound)
        unit.give("a", [], bound)
    assert unit.stable == [1, 2, 15, 25, *given[gone - 1 :]], "it goes on behind the hole"
    assert (unit.fork, unit.recovered) == (None, 1)


def test_only_what_the_trunk_cannot_read_is_given_up(tmp_path: Path) -> None:
    unit = forked(tmp_path, KeepLimits(40_000, memory_bytes=8_000, when_full="drop-oldest"))
    unit.busy = True
    unit.give("b", [], 6030)  # it is back, and there is much to read
    given = fill(unit, "a", 20, 30)
    assert not unit.has_room("a")
    assert not unit.keeping.given_up
    unit.busy = False
    unit.read()
    assert unit.stable == [1, 2, 11, *given]


@pytest.mark.parametrize("when_full", ["wait", "drop-oldest"])
def test_what_is_kept_for_too_long_is_too_much(tmp_path: Path, when_full: WhenFull) -> None:
    unit = forked(tmp_path, KeepLimits(seconds_most=10.0, when_full=when_full))
    given = []
    for at in range(20, 40):
        assert unit.has_room("a") or (when_full, at > 26) == ("wait", True)
        unit.give("a", [at], at)
        unit.wait(1.0)
        given.append(at)
    assert unit.has_room("a") == (when_full == "drop-oldest")
    assert unit.has_room("b")
    unit.give("b", [], 60)
    assert unit.has_room("a"), "the end of its last bucket is still to come"
    unit.give("a", [], 60)
    kept = unit.stable[2:]
    if when_full == "wait":
        assert kept == [11, *given]
    else:
        assert 9 <= len(kept) <= 11
        assert kept == given[-len(kept) :]
    assert len(given) + 1 - len(kept) == unit.keeping.given_up["a"]


def test_streams_that_have_come_equally_far_do_not_hold_each_other_up(tmp_path: Path) -> None:
    unit = ForkedInput(tmp_path, "a", "b", keep=KeepLimits(seconds_most=PATIENCE_S))
    unit.give("a", [11], 11)
    unit.give("b", [12], 12)  # of the same bucket, which is not over
    unit.wait(PATIENCE_S)
    assert unit.fork is not None
    unit.wait(10 * PATIENCE_S)
    assert unit.has_room("a")
    assert unit.has_room("b")
    unit.give("a", [21], 21)
    unit.wait(2 * PATIENCE_S)
    assert not unit.has_room("a")  # b is missing now
    assert unit.has_room("b")
    unit.give("b", [22], 22)
    assert unit.stable == [11, 12]


def test_boundaries_alone_leave_no_hole(tmp_path: Path) -> None:
    unit = forked(tmp_path, KeepLimits(seconds_most=10.0, when_full="drop-oldest"))
    unit.give("b", [], 25)
    unit.give("a", [], 30)
    assert unit.stable == [1, 2, 11]
    unit.give("a", [41], 41)
    unit.wait(PATIENCE_S)
    for at in range(50, 70):
        unit.give("a", [], at)
        unit.wait(1.0)
        unit.has_room("a")
    assert unit.keeping.given_up == {"a": 1}
    unit.wait(20.0)
    unit.has_room("a")
    assert unit.keeping.given_up == {"a": 1}
    unit.give("b", [], 80)
    unit.give("a", [75], 80)
    assert unit.stable == [1, 2, 11, 75]


def test_a_disk_that_is_full_is_tried_again(tmp_path: Path) -> None:
    unit, disk = forked(tmp_path, MEMORY), FullDisk()
    unit.keeping = keeping = Keeping(MEMORY, Machine(unit.clock, disk=disk))
    disk.room = False
    given = fill(unit, "a", 20, 30)
    assert not unit.has_room("a")
    assert keeping.trouble == "No space left on device"
    assert disk.asked == 1
    unit.wait(AGAIN_S)
    assert not unit.has_room("a")
    disk.room = True
    unit.wait(AGAIN_S)
    assert unit.has_room("a")
    assert (keeping.trouble, disk.asked > 2) == ("", True)
    unit.give("b", [], 3030)
    assert unit.stable == [1, 2, 11, *given]


class Feed:
    """A queue, read as a unit of the same node reads it."""

    def __init__(self, queue: OutputQueue) -> None:
        self.queue, self.stopped = queue, False

    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        while not self.stopped:
            if (section := self.queue.read(start, boundary, 0.05)) is not None:
                start, boundary = section.stop, section.final
                yield section
                self.queue.ack("r", 0, start)

    def committed(self, position: int) -> None:
        self.queue.ack("r", 1, position)

    acknowledge = committed

    def stop(self) -> None:
        self.stopped = True


def test_upstream_goes_on_while_the_trunk_waits(tmp_path: Path) -> None:
    limits = QueueLimits(40_000, memory_bytes=8_000, keep_bytes=0)
    queues = {name: OutputQueue(f"d/{name}", SCHEMA, limits, readers=["r"]) for name in "ab"}
    feeds = {name: Feed(queue) for name, queue in queues.items()}
    inputs, schemas = [StreamInput(name) for name in queues], dict.fromkeys(queues, SCHEMA)
    bound = DelayBound(0.2, keep=MEMORY)
    unit = InputManager(inputs, feeds, schemas, {}, tmp_path / "trains", bucket_us=10, bound=bound)
    read, tentative = 0, 0

    def put(name: str, begin: int, count: int) -> None:
        time = np.arange(begin, begin + count)
        queue, rows = queues[name], pa.record_batch([time], schema=SCHEMA)
        at, bounds = np.array([queue.next_id + count]), np.array([begin + count])
        queue.append(Section(queue.next_id, rows, time, at, bounds, queue.boundary))

    def run(rows: int) -> None:
        """Trains of both lines, until the trunk has read so many rows, or waits."""
        nonlocal read, tentative
        while read < rows and (number := unit.next_train(0, 0.3, forks=True)) is not None:
            if number % FORKS == 0:  # a train of nothing
                continue
            count = unit.train(number).rows
            unit.release(number)
            read, tentative = (read + count, tentative) if number < FORKS else (read, tentative + count)
            if unit.is_corrected():
                unit.end_fork()

    unit.start()
    put("b", 0, 10)
    put("a", 0, 20)
    run(1000)
    assert 0 < read < 30
    for begin in range(20, 10_020, 100):
        while not queues["a"].has_room(0.0):  # until the reader has it, not until it is done with it
            run(100_000)
        put("a", begin, 100)
    for _ in range(100):
        if tentative < 10_000:
            run(100_000)
    kept = unit.kept()
    assert kept.rows + read == 10_030
    assert kept.memory_bytes < 10_000 < 100_000 < kept.disk_bytes
    assert tentative >= 10_000
    assert queues["a"].status().held_bytes > 100_000
    put("b", 10_030, 20)
    put("a", 10_020, 30)
    for _ in range(100):
        run(10_080)
    unit.stop()
    assert read == 10_080
    assert unit.kept().disk_bytes == 0
    assert queues["a"].status().held_bytes < 10_000
    assert unit.failure is None


def test_what_is_given_up_is_let_go_of_upstream_and_stated_as_a_jump(tmp_path: Path) -> None:
    limits = QueueLimits(200_000, keep_bytes=0, disk_bytes=0)  # not all of it
    queues = {name: OutputQueue(f"d/{name}", SCHEMA, limits, readers=["r"]) for name in "ab"}
    feeds = {name: Feed(queue) for name, queue in queues.items()}
    inputs, schemas = [StreamInput(name) for name in queues], dict.fromkeys(queues, SCHEMA)
    bound = DelayBound(0.05, keep=KeepLimits(3_000, when_full="drop-oldest"))
    unit = InputManager(inputs, feeds, schemas, {}, tmp_path / "trains", bucket_us=10, bound=bound)
    trains: list[Train] = []

    def run() -> None:
        while (number := unit.next_train(0, 0.06, forks=True)) is not None:
            if number % FORKS:
                trains.extend([unit.train(number)] if number < FORKS else [])
                unit.release(number)
            if unit.is_corrected():
                unit.end_fork()

    def put(name: str, time: int) -> None:
        queue, rows = queues[name], pa.record_batch([np.array([time])], schema=SCHEMA)
        at, bounds = np.array([queue.next_id + 1]), np.array([time])
        queue.append(Section(queue.next_id, rows, np.array([time]), at, bounds, queue.boundary))

    unit.start()
    for time in range(0, 5000, 10):
        if time % 200 == 0:
            run()
        assert queues["a"].has_room(5.0)
        put("a", time)
    run()
    given_up = unit.given_up()["a"]
    assert given_up > 300
    assert queues["a"].first_id == given_up
    put("b", 6000)
    put("a", 6000)
    run()
    given_up = unit.given_up()["a"]  # a little more, if the last of it came before the other stream
    unit.stop()
    assert sum(train.rows for train in trains) == 500 - given_up
    assert [train.jumps for train in trains] == [True] + [False] * (len(trains) - 1)
    assert trains[0].leaps
    assert unit.failure is None


def test_what_is_spilled_has_no_name_and_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [LocalDisk().spill(bytes([n]) * 5_000) for n in range(20)]
    assert [bytes(one) for one in kept] == [bytes([n]) * 5_000 for n in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    assert list(tmp_path.iterdir()) == []
