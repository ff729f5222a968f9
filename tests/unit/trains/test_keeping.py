"""What a unit keeps while it has a fork: some in memory, more on the disk, and then no more."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from borealis.disk import LocalDisk
from borealis.machine import Machine
from borealis.streams.queue import OutputQueue, QueueLimits
from borealis.streams.section import Section
from borealis.trains.forking import FORKS, DelayBound
from borealis.trains.input_manager import InputManager
from borealis.trains.keeping import AGAIN_S, Keeping, KeepLimits
from borealis.trains.relay import StreamInput
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
    put("b", 10_030, 10)
    put("a", 10_020, 30)
    for _ in range(100):
        run(10_050)
    unit.stop()
    assert read >= 10_050
    assert unit.kept().disk_bytes == 0
    assert queues["a"].status().held_bytes < 10_000
    assert unit.failure is None


def test_what_is_spilled_has_no_name_and_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    kept = [LocalDisk().spill(bytes([n]) * 5_000) for n in range(20)]
    assert [bytes(one) for one in kept] == [bytes([n]) * 5_000 for n in range(20)]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2
    assert list(tmp_path.iterdir()) == []
