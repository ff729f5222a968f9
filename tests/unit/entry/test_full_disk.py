"""A disk that fills under a durable entry point, or its peer: told by name, nothing lost, and gone on by itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from borealis.clock import ManualClock
from borealis.diagram.protection import Protection
from borealis.diagram.spec import Input
from borealis.disk import Appended, LocalDisk, has_room
from borealis.entry.point import Entry, EntryTimings, StreamConfig
from borealis.errors import FullError, StateError
from borealis.machine import Machine
from borealis.node.metrics import families
from borealis.node.node import Node
from borealis.streams.queue import QueueLimits
from borealis.wire.messages import BatchHead, Guard
from borealis.wire.server import WireServer
from entry_pair import guard_of, protect, running, take_over

SECOND = 1_000_000
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int32())])
SPEC = Input.model_validate(
    {"name": "a", "columns": "ts TIMESTAMP, n INT", "slack": "1 second", "durable": True, "idle": "5 seconds"}
)


class Disks(LocalDisk):
    """Folders that are disks of their own, each of which may be full."""

    def __init__(self) -> None:
        self.full: set[Path] = set()

    def has_room(self, path: Path, count: int) -> bool:
        return not any(full in (path, *path.parents) for full in self.full)

    def check(self, path: Path) -> None:
        if not self.has_room(path, 1):
            raise OSError(errno.ENOSPC, "No space left on device")

    def write_whole(self, path: Path, data: Any) -> None:
        self.check(path)
        super().write_whole(path, data)

    def append_to(self, path: Path) -> Appended:
        file: Any = _File(super().append_to(path), lambda: self.check(path))
        return file


class _File:
    def __init__(self, file: Appended, check: Callable[[], None]) -> None:
        self._file, self._check = file, check

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: memoryview) -> int:
        self._check()
        return int(self._file.write(data))


@pytest.fixture
def disks() -> Disks:
    return Disks()


def place(node: str) -> StreamConfig:
    return StreamConfig("d/a", SCHEMA, QueueLimits(), ["d.u1"], [], epoch="e", node=node)


def batch(second: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([second * SECOND], SCHEMA.field(0).type), pa.array([second], pa.int32())], SCHEMA)


def take(entry: Entry, number: int) -> int:
    return entry.take("p", BatchHead(number=number), batch(10 + number)).next_id


def test_the_node_and_its_disk_are_named_and_it_goes_on_when_there_is_room(disks: Disks, tmp_path: Path) -> None:
    clock = ManualClock()
    one = Entry(SPEC, SECOND, place("node1"), tmp_path / "one", machine=Machine(clock, disk=disks))
    two = Entry(SPEC, SECOND, place("node2"), standby=True)
    host = protect(guard_of(one), two)
    assert take(one, 0) == 1
    disks.full.add(tmp_path / "one")
    told = f"the disk of node1 is full: cannot write the log in {tmp_path / 'one'}: No space left on device"
    for _ in range(2):
        with pytest.raises(FullError) as full:
            take(one, 1)
        assert full.value.message == told
        assert "make room there" in full.value.hint
    assert len(host.sent) == 2, "a whole one and a step: what the log refused is not sent"
    status = one.log.status()
    assert status is not None
    assert (status.stream, status.error, status.full) == ("d/a", told, True)
    one.log.try_again()
    clock.advance(60)
    one.tick()  # no boundary is written for silence, and no error raised, while nothing can be written
    assert one.log.failure is not None
    assert one.queue.next_id == 1
    disks.full.clear()
    one.log.try_again()
    assert one.log.failure is None, "also where no publisher comes any more"
    assert take(one, 1) == 2
    take_over(host)
    assert two.queue.next_id == 2
    one.log.close()
    again = Entry(SPEC, SECOND, place("node1"), tmp_path / "one")
    assert (again.queue.next_id, again.known("p").number) == (2, 1)
    again.log.close()


def test_a_backup_about_to_claim_has_all_of_it_synced_or_written_again(
    disks: Disks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Entry(SPEC, SECOND, place("node1"))
    two = Entry(SPEC, SECOND, place("node2"), tmp_path / "two", standby=True, machine=Machine(disk=disks))
    protect(guard_of(one), two)
    take(one, 0)
    segments = two.log._segments
    assert segments is not None
    newest = segments.segments[-1]
    assert newest.synced < newest.length, "as long as it stands by, its primary's log is the one that counts"
    two.make_durable()
    assert newest.synced == newest.length
    take(one, 1)
    assert newest.synced == newest.length, "what comes behind that is synced before it is answered"

    def fails() -> None:
        raise StateError("a sync failed")

    monkeypatch.setattr(segments, "sync", fails)
    disks.full.add(tmp_path / "two")
    for _ in range(2):
        with pytest.raises(FullError):
            two.make_durable()
    disks.full.clear()
    two.make_durable()
    two.log.close()
    again = Entry(SPEC, SECOND, place("node2"), tmp_path / "two")
    assert (again.queue.next_id, again.known("p").number) == (2, 1)
    again.log.close()


def test_a_backup_whose_disk_is_full_keeps_what_it_has(disks: Disks, tmp_path: Path) -> None:
    one = Entry(SPEC, SECOND, place("node1"))
    one.timings = EntryTimings(refusal_s=0.0)
    two = Entry(SPEC, SECOND, place("node2"), tmp_path / "two", standby=True, machine=Machine(disk=disks))
    host = protect(guard_of(one), two)
    take(one, 0)
    disks.full.add(tmp_path / "two")
    for _ in range(3):
        with pytest.raises(FullError, match="the disk of node2 is full"):
            take(one, 1)
        assert host.standby is not None
        assert host.standby.ready
    assert one.queue.read(1, one.queue.boundary, 0) is None, "it is not shown"
    with pytest.raises(FullError, match="the disk of node2 is full"):
        one.take("q", BatchHead(number=0), batch(15))
    assert (one.queue.next_id, two.queue.next_id) == (2, 1)
    disks.full.clear()
    assert take(one, 1) == 2
    assert two.log.failure is None
    disks.full.add(tmp_path / "two")
    with pytest.raises(FullError):
        take(one, 2)
    disks.full.clear()
    take_over(host)
    assert (two.queue.next_id, two.known("p").number) == (2, 1)
    two.log.close()
    again = Entry(SPEC, SECOND, place("node2"), tmp_path / "two")
    assert (again.queue.next_id, again.known("p").number) == (2, 1)
    again.log.close()


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    made = Node("node1"), Node("node2")
    servers = [WireServer(node).start() for node in made]
    for node, server in zip(made, servers, strict=True):
        node.address, node.http = server.address, "http://127.0.0.1:1"
    yield made
    for node, server in zip(made, servers, strict=True):
        node.close()
        server.close()


def figures(node: Node, name: str) -> list[float]:
    return [
        sample.value
        for metric in families([node.status()], by_node=False)
        for sample in metric.samples
        if sample.name == name
    ]


def test_a_publisher_hears_which_disk_of_the_backup_is_full(
    nodes: tuple[Node, Node], disks: Disks, tmp_path: Path
) -> None:
    one, two = nodes
    guard = Guard(protection=Protection(ha="passive"))
    backup = guard.model_copy(update={"role": "backup", "partner": one.address, "partner_node": "node1"})
    primary = guard.model_copy(update={"partner": two.address, "partner_node": "node2"})
    machine = Machine(disk=disks)
    entry = Entry(SPEC, SECOND, place("node1"), tmp_path / "one", machine=machine)
    entry.timings = EntryTimings(refusal_s=0.0)
    standby = Entry(SPEC, SECOND, place("node2"), tmp_path / "two", standby=True, machine=machine)
    for node, made, how in ((two, standby, backup), (one, entry, primary)):
        node._begin(running(made, how))
    take(entry, 0)
    disks.full.add(tmp_path / "two")
    with pytest.raises(
        FullError, match=r"the backup of entry point d/a takes nothing.*the disk of node2 is full.*No space left"
    ):
        take(entry, 1)
    [log] = two.status().logs
    assert (log.full, log.path) == (True, str(tmp_path / "two"))
    assert (figures(two, "borealis_log_full"), figures(one, "borealis_log_full")) == ([1.0], [0.0])
    assert figures(one, "borealis_log_bytes")[0] > 0
    disks.full.clear()
    entry.timings = EntryTimings(refusal_s=60.0)  # until the next message has found room
    assert take(entry, 1) == 2
    assert figures(two, "borealis_log_full") == [0.0]


def test_room_is_asked_for(tmp_path: Path) -> None:
    assert has_room(tmp_path / "not" / "there", 1000)
    assert not has_room(tmp_path, 1 << 60)
    assert list(tmp_path.iterdir()) == []
