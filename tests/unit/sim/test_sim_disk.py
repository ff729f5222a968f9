"""The simulated disk: what survives a kill and a power cut, and what a disk does wrong."""

from __future__ import annotations

import errno
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from borealis.disk import Disk, LocalDisk
from borealis.sim.disk import BLOCK, SimDisk
from borealis.sim.kernel import Kernel
from borealis.sim.threads import KilledError

ROOT = Path("/state")
LOG = ROOT / "log-1.bin"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    with Kernel(1) as kernel:
        yield kernel
        assert kernel.errors == []


@pytest.fixture
def store() -> SimDisk:
    return SimDisk()


@pytest.fixture
def disk(kernel: Kernel, store: SimDisk) -> Disk:
    disk = kernel.process("one", store).machine.disk
    disk.make_directory(ROOT)
    return disk


def calls(disk: Disk, root: Path) -> list[object]:
    """What a disk answers, errors by their kind."""
    seen: list[object] = []

    def tried(call: object, *args: object) -> None:
        try:
            seen.append(call(*args))  # type: ignore[operator]
        except OSError as error:
            seen.append((type(error).__name__, error.errno))

    log, sub = root / "log", root / "sub"
    for call in (disk.read, disk.size, disk.append_to, disk.sync_directory, disk.hold, disk.remove, disk.remove_all):
        tried(call, root / "no" / "where")
    tried(disk.cut, log, 1)
    tried(disk.write_whole, root / "no" / "where", b"x")
    tried(disk.names, root / "no")
    tried(disk.exists, root / "no")
    disk.make_directory(sub / "below")
    disk.make_directory(sub)
    file = disk.append_to(log)
    seen += [disk.size(log), file.write(b"abc"), file.write(memoryview(b"def")), disk.read(log)]
    file.truncate(4)
    file.write(b"X")
    file.sync()
    again = disk.append_to(log)
    again.write(b"Y")
    seen += [disk.read(log), disk.size(log), disk.exists(log), disk.exists(sub)]
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"z")
    disk.cut(log, 2)
    again.write(b"!")
    disk.write_whole(sub / "b", b"new")
    disk.write_whole(sub / "b", bytearray(b"newer"))
    seen += [disk.read(log), disk.read(sub / "b"), disk.names(root), disk.names(sub)]
    for wrong in (disk.read, disk.append_to, disk.remove):
        tried(wrong, sub)
    held = disk.hold(root / "lock")
    held.note("a long note")
    held.note("mine")
    seen.append(disk.read(root / "lock"))
    tried(disk.hold, root / "lock")
    held.close()
    disk.hold(root / "lock").close()
    disk.remove(log)
    disk.remove(log)
    again.write(b"to nowhere")
    disk.sync_directory(root)
    disk.remove_all(sub)
    seen += [disk.names(root), disk.exists(sub), disk.has_room(root / "no", 1), disk.free_bytes(root / "no") > 0]
    db = disk.database(root / "db")
    db.execute("CREATE TABLE t (a)")
    db.execute("INSERT INTO t VALUES (?)", (1,))
    db.close()
    db = disk.database(root / "db")
    seen += [db.execute("SELECT a FROM t").fetchall(), disk.exists(root / "db")]
    db.close()
    return [answer for answer in seen if not hasattr(answer, "close")]


def test_it_answers_as_a_real_one(disk: Disk, tmp_path: Path) -> None:
    assert calls(disk, ROOT) == calls(LocalDisk(), tmp_path)


def test_a_kill_loses_nothing_and_frees_locks(kernel: Kernel, store: SimDisk, disk: Disk) -> None:
    disk.hold(ROOT / "lock")
    file = disk.append_to(LOG)
    file.write(b"not synced")
    db = disk.database(ROOT / "db")
    db.execute("CREATE TABLE t (a)")
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (1)")
    other = kernel.process("other", store).machine.disk
    with pytest.raises(BlockingIOError):
        other.hold(ROOT / "lock")
    kernel.processes[0].kill()
    other.hold(ROOT / "lock")
    assert other.read(LOG) == b"not synced"
    assert other.database(ROOT / "db").execute("SELECT count(*) FROM t").fetchone() == (0,)
    for call in (
        lambda: file.write(b"x"),
        file.sync,
        lambda: disk.read(LOG),
        lambda: disk.write_whole(LOG, b""),
        lambda: disk.remove(LOG),
        lambda: db.execute("ROLLBACK"),
        lambda: disk.hold(ROOT / "mine"),
    ):
        with pytest.raises(KilledError):
            call()


def test_a_power_cut_takes_what_was_not_synced(kernel: Kernel) -> None:
    synced, later = b"s" * 100, bytes(range(1, 201))
    ends = set()
    for seed in range(200):
        store = SimDisk()
        disk = kernel.process(f"p{seed}", store).machine.disk
        disk.make_directory(ROOT)
        file = disk.append_to(LOG)
        file.write(synced)
        file.sync()
        file.write(later)
        store.crash(random.Random(seed))
        left = disk.read(LOG)
        assert left[:100] == synced
        whole = (synced + later).startswith(left)
        ends.add("none" if left == synced else "all" if left == synced + later else "some" if whole else "torn")
        store.crash(random.Random(seed + 1))
        assert disk.read(LOG) == left
    assert ends == {"none", "all", "some", "torn"}


def test_a_torn_block_is_the_last(kernel: Kernel, store: SimDisk, disk: Disk) -> None:
    file = disk.append_to(LOG)
    file.write(b"x" * (10 * BLOCK))
    store.crash(random.Random(5))
    left = disk.read(LOG)
    assert left[:-BLOCK] == b"x" * max(0, len(left) - BLOCK)


def test_what_is_cut_off_may_come_back_until_it_is_synced(kernel: Kernel) -> None:
    found = set()
    for seed in range(60):
        store = SimDisk()
        disk = kernel.process(f"p{seed}", store).machine.disk
        file = disk.append_to(Path("/log"))
        file.write(b"abcdef")
        file.sync()
        file.truncate(4)
        file.truncate(2)
        if seed % 2:
            file.write(b"X")
            file.sync()
        store.crash(random.Random(seed))
        found.add((seed % 2, disk.read(Path("/log"))))
    assert found == {(0, b"abcdef"), (0, b"ab"), (1, b"abX")}


def test_whole_writes_and_cuts_survive(kernel: Kernel) -> None:
    for seed in range(20):
        store = SimDisk()
        disk = kernel.process(f"p{seed}", store).machine.disk
        disk.make_directory(ROOT / "deep" / "er")
        disk.append_to(LOG).write(b"old")
        disk.write_whole(LOG, b"new one")
        appended = disk.append_to(ROOT / "cut")
        appended.write(b"abcdef")
        disk.cut(ROOT / "cut", 3)
        disk.hold(ROOT / "lock").note("mine")
        disk.database(ROOT / "db").execute("CREATE TABLE t (a)")
        store.crash(random.Random(seed))
        assert [disk.read(path) for path in (LOG, ROOT / "cut", ROOT / "lock")] == [b"new one", b"abc", b"mine"]
        assert disk.exists(ROOT / "deep" / "er")
        assert disk.database(ROOT / "db").execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_names_survive_in_their_order_or_when_they_are_synced(kernel: Kernel) -> None:
    found = set()
    for seed in range(100):
        store = SimDisk()
        disk = kernel.process(f"p{seed}", store).machine.disk
        disk.make_directory(ROOT)
        for name in "ab":
            disk.write_whole(ROOT / name, name.encode())
        disk.remove(ROOT / "a")
        disk.append_to(ROOT / "new")
        if seed % 2:
            disk.sync_directory(ROOT)
        disk.remove(ROOT / "b")
        if seed % 3 == 0:
            disk.append_to(ROOT / "new").sync()
        store.crash(random.Random(seed))
        found.add((seed % 2 == 1, seed % 3 == 0, "".join(disk.names(ROOT))))
    unsynced = {(False, False, names) for names in ("ab", "b", "bnew", "new")}
    file_synced = {(False, True, names) for names in ("abnew", "bnew", "new")}
    assert found == unsynced | file_synced | {
        (True, last, names) for last in (False, True) for names in ("bnew", "new")
    }


def test_a_full_disk_takes_a_part_and_then_nothing(store: SimDisk, disk: Disk) -> None:
    file = disk.append_to(LOG)
    db = disk.database(ROOT / "db")
    db.execute("CREATE TABLE t (a)")
    store.limit = 10
    assert (file.write(b"12345678"), file.write(b"9abc")) == (8, 2)
    for write in (lambda: file.write(b"x"), lambda: disk.write_whole(ROOT / "b", b"x")):
        with pytest.raises(OSError, match="No space") as raised:
            write()
        assert raised.value.errno == errno.ENOSPC
    assert not disk.has_room(ROOT, 1)
    assert disk.free_bytes(ROOT) == 0
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        db.execute("INSERT INTO t VALUES (1)")
    assert disk.read(LOG) == b"123456789a"
    store.limit = None
    assert file.write(b"x") == 1
    db.execute("INSERT INTO t VALUES (1)")
    assert disk.has_room(ROOT, 1 << 30)


def test_calls_fail_as_often_as_they_should(store: SimDisk, disk: Disk) -> None:
    file = disk.append_to(LOG)
    file.write(b"abc")
    store.failing["sync"] = 2
    store.failing["execute"] = 1
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output") as raised:
            file.sync()
        assert raised.value.errno == errno.EIO
    file.sync()
    with pytest.raises(sqlite3.OperationalError, match="disk I/O"):
        disk.database(ROOT / "db").execute("SELECT 1")


def test_one_bit_of_a_file_with_checksums_flips(store: SimDisk, disk: Disk) -> None:
    disk.write_whole(ROOT / "state.json", b"{}")
    disk.append_to(ROOT / "empty.bin")
    assert store.flip(random.Random(1)) is None
    disk.write_whole(LOG, bytes(50))
    assert store.flip(random.Random(1)) == LOG
    assert sum(byte.bit_count() for byte in disk.read(LOG)) == 1
    assert disk.read(ROOT / "state.json") == b"{}"


def test_a_sync_takes_time_and_only_what_was_there_before_it_survives(kernel: Kernel) -> None:
    store = SimDisk(sync_s=0.5)
    process = kernel.process("one", store)
    process.slow = 2.0
    file = process.machine.disk.append_to(Path("/log"))
    file.write(b"before")
    task = process.start("sync", file.sync)
    kernel.at(0.25, lambda: file.write(b"after"))
    kernel.run()
    assert task.result() is None
    assert kernel.now == 1.0
    assert (store.files["/log"].safe, bytes(store.files["/log"].data)) == (6, b"beforeafter")


def test_a_cut_during_a_sync_takes_nothing_from_what_is_before_it(kernel: Kernel) -> None:
    store = SimDisk(sync_s=1.0)
    process = kernel.process("one", store)
    file = process.machine.disk.append_to(Path("/log"))
    file.write(b"before")
    process.start("sync", file.sync)
    kernel.at(0.2, lambda: file.write(b"a part"))
    kernel.at(0.3, lambda: file.truncate(6))
    kernel.at(0.4, lambda: file.write(b"after"))
    process.at(0.5, lambda: process.start("later", file.sync))
    kernel.at(0.6, lambda: file.truncate(8))
    kernel.run(until=1.2)
    assert (store.files["/log"].safe, bytes(store.files["/log"].data)) == (6, b"beforeaf")
    kernel.run()
    assert store.files["/log"].safe == 8
