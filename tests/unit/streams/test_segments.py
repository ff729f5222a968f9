"""Records on disk: what a start finds after every kind of damage, what it refuses, and what may go."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from borealis.disk import LocalDisk
from borealis.errors import FullError, StateError
from borealis.streams.segments import SegmentLog

OWNER = {"stream": "d/x", "columns": ["v"]}
Found = list[tuple[dict[str, Any], list[bytes]]]


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here, and there are thousands of syncs."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


def head(i: int) -> dict[str, Any]:
    return {"first": 2 * i, "stop": 2 * i + 2, "facts": {f"p{i % 2}": i}}


def body(i: int) -> list[bytes]:
    return [bytes([i % 256]) * 30, bytes([i % 256]) * 20]


def opened(root: Path, segment_bytes: int = 1 << 20) -> tuple[SegmentLog, Found]:
    log = SegmentLog(root, OWNER, segment_bytes=segment_bytes)
    return log, list(log.open())


def write(root: Path, first: int, stop: int, *, segment_bytes: int = 1 << 20, sync: bool = True) -> None:
    log, _ = opened(root, segment_bytes)
    for i in range(first, stop):
        log.append(head(i), body(i), sync)
    log.close()


def count(root: Path) -> int:
    """Open, check what is found, and say how many records there are (none was trimmed)."""
    log, found = opened(root)
    facts = log.facts
    log.close()
    n = max(0, len(found) - 1)
    if found:
        assert found[0] == ({"first": 0, "stop": 0, "facts": {}}, [])
    assert found[1:] == [(head(i), body(i)) for i in range(n)]
    assert facts == {f"p{i % 2}": i for i in range(max(0, n - 2), n)}
    return n


def files(root: Path) -> list[Path]:
    return sorted(root.glob("segment-*.bin"), key=lambda p: int(p.stem.split("-")[1]))


def test_goes_on_after_the_last_record(tmp_path: Path) -> None:
    root = tmp_path / "some" / "log"
    assert count(root) == 0
    for n in range(4):
        assert count(root) == 7 * n
        write(root, 7 * n, 7 * n + 7, sync=n % 2 == 0)
    assert count(root) == 28


def test_many_segments_are_one_log(tmp_path: Path) -> None:
    write(tmp_path, 0, 50, segment_bytes=400)
    assert len(files(tmp_path)) > 10
    assert count(tmp_path) == 50
    write(tmp_path, 50, 60, segment_bytes=400)
    assert count(tmp_path) == 60


def test_records_must_follow_one_another(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    log.append({"first": 0, "stop": 3}, [b"x"])
    log.append({"first": 3, "stop": 3}, [b""])  # boundaries only
    for bad in ({"first": 4, "stop": 5}, {"first": 2, "stop": 4}, {"first": 3, "stop": 2}):
        with pytest.raises(ValueError, match="cannot follow 3"):
            log.append(bad, [b""])
    with pytest.raises(KeyError):
        log.append({"first": 3}, [b""])
    with pytest.raises(TypeError):
        log.append({"first": 3, "stop": 4, "what": {1}}, [b""])
    log.append({"first": 3, "stop": 4}, [pa.py_buffer(b"yz")])
    log.append({"first": 4, "stop": 5}, [memoryview(b"abc")[1:]])
    log.close()
    log, found = opened(tmp_path)
    assert [data for _, data in found] == [[], [b"x"], [b""], [b"yz"], [b"bc"]]
    log.close()


def test_must_be_opened_to_the_end(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    log = SegmentLog(tmp_path, OWNER)
    with pytest.raises(ValueError, match="not opened to the end"):
        log.append(head(3), [b""])
    reading = log.open()
    next(reading)
    with pytest.raises(ValueError, match="not opened to the end"):
        log.append(head(3), [b""])
    with pytest.raises(ValueError, match="not opened to the end"):
        log.trim(0)
    list(reading)
    log.append(head(3), body(3))
    with pytest.raises(ValueError, match="open already"):
        list(log.open())
    log.close()
    assert count(tmp_path) == 4


# -- damage


def test_any_cut_of_the_last_record_loses_only_that(tmp_path: Path) -> None:
    root = tmp_path / "log"
    write(root, 0, 3)
    [segment] = files(root)
    before = segment.stat().st_size
    write(root, 3, 4)
    good = segment.read_bytes()
    for length in range(before + 1, len(good)):
        segment.write_bytes(good[:length])
        log, _ = opened(root)
        assert log.torn
        log.close()
        assert segment.stat().st_size == before
        assert count(root) == 3
    write(root, 3, 6)
    assert count(root) == 6


@pytest.mark.parametrize("tail", [b"garbage" * 99, bytes(5000), b"BSG2", b"BSG2" * 50, b"\xff" * 20])
def test_what_stands_behind_the_last_record_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    write(tmp_path, 0, 4)
    with open(files(tmp_path)[-1], "ab") as file:
        file.write(tail)
    assert count(tmp_path) == 4
    write(tmp_path, 4, 8)
    assert count(tmp_path) == 8


def test_a_flipped_bit_in_the_last_record_is_found(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    [segment] = files(tmp_path)
    before = segment.stat().st_size
    write(tmp_path, 3, 4)
    good = segment.read_bytes()
    for at in range(before, len(good)):
        segment.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        assert count(tmp_path) == 3


def test_a_flipped_bit_before_what_was_synced_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    [segment] = files(tmp_path)
    before = segment.stat().st_size
    write(tmp_path, 3, 5)
    good = segment.read_bytes()
    for at in range(before):
        segment.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(StateError, match=r"damaged at byte \d+ of \d+|another version"):
            count(tmp_path)
    segment.write_bytes(good)  # and nothing was changed meanwhile
    assert count(tmp_path) == 5


def test_damage_among_records_that_were_not_synced_is_a_torn_tail(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    for i in range(2):
        log.append(head(i), body(i))
    [segment] = files(tmp_path)
    before = segment.stat().st_size
    for i in range(2, 6):
        log.append(head(i), body(i), sync=False)
    good = segment.read_bytes()
    log.close()
    segment.write_bytes(good[: before + 30] + bytes(40) + good[before + 70 :])  # a page that did not get there
    assert count(tmp_path) == 2


def test_damage_in_an_older_segment_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, 20, segment_bytes=400)
    for segment in files(tmp_path)[:-1]:
        good = segment.read_bytes()
        for bad in (good[:-1], good[:10], b"", good + b"x", good[:-5] + b"!" + good[-4:]):
            segment.write_bytes(bad)
            with pytest.raises(StateError, match=f"{segment.name} is damaged"):
                count(tmp_path)
        segment.write_bytes(good)
    assert count(tmp_path) == 20


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    root, copy = tmp_path / "log", tmp_path / "copy"
    write(copy, 0, 20, segment_bytes=400)
    for i, segment in enumerate(files(copy)[1:-1], start=1):
        shutil.copytree(copy, root)
        (root / segment.name).unlink()
        with pytest.raises(StateError, match=f"segment {i} is missing"):
            count(root)
        shutil.rmtree(root)


def test_a_foreign_segment_is_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, 0, 10, segment_bytes=400)
    write(two, 0, 12, segment_bytes=500)
    shutil.copy(two / "segment-1.bin", one / "segment-1.bin")
    with pytest.raises(StateError, match=r"segment-1.bin goes on with tuple \d+, but tuple \d+ or facts"):
        count(one)


def test_the_start_of_a_segment_is_never_torn(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    [segment] = files(tmp_path)
    good = segment.read_bytes()
    for length in range(60):
        segment.write_bytes(good[:length])
        with pytest.raises(StateError, match="is damaged at byte 0"):
            count(tmp_path)
    segment.write_bytes(good.replace(b"BSG2", b"BSG3"))
    with pytest.raises(StateError, match="another version"):
        count(tmp_path)


def test_a_segment_that_got_no_name_is_forgotten(tmp_path: Path) -> None:
    write(tmp_path, 0, 3)
    (tmp_path / "segment-1.bin.tmp").write_bytes(b"half")
    assert count(tmp_path) == 3
    assert not list(tmp_path.glob("*.tmp"))


# -- trimming


def test_whole_segments_go_and_facts_stay(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, 400)
    for i in range(40):
        log.append({**head(i), "facts": {f"p{i % 2}": i, "once": i if i < 5 else None}}, body(i))
    before, names = log.held_bytes, files(tmp_path)
    assert before == sum(p.stat().st_size for p in names)
    log.trim(0)
    assert files(tmp_path) == names
    for upto in range(0, 81, 7):
        log.trim(upto)
        log.trim(upto // 2)  # backwards is harmless
        log.close()
        log, found = opened(tmp_path, 400)
        assert found[0][0]["first"] <= upto
        assert found[0][1] == []
        ids = [i for h, _ in found for i in range(h["first"], h["stop"])]
        assert ids == list(range(found[0][0]["first"], 80))
        assert log.facts == {"p0": 38, "p1": 39}
        assert log.next_id == 80
    assert len(files(tmp_path)) <= 2  # the newest, and one whose boundaries may stand at its end
    assert log.held_bytes < before
    log.append(head(40), body(40))
    log.close()


def test_what_holds_tuples_that_are_needed_stays(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, 1)  # a segment for each record
    for i in range(5):
        log.append(head(i), body(i))
    log.trim(5)  # 0 to 4 are not needed, 4 and 5 are in one record
    log.close()
    _, found = opened(tmp_path)
    assert [h["first"] for h, data in found if data] == [4, 6, 8]


def test_boundaries_at_the_edge_stay_but_not_without_end(tmp_path: Path) -> None:
    log, _ = opened(tmp_path, 1)
    log.append({"first": 0, "stop": 4}, [b"tuples"])
    for i in range(20):
        log.append({"first": 4, "stop": 4, "facts": {"boundary": i}}, [b"boundary"])
        log.trim(4)
        assert len(files(tmp_path)) <= 3
        if i == 0:
            assert len(files(tmp_path)) == 2
    log.close()
    log, found = opened(tmp_path)
    assert (log.next_id, log.facts) == (4, {"boundary": 19})
    assert [data for _, data in found] == [[], [b"boundary"], [b"boundary"]]
    log.close()


# -- owners and errors


def test_one_at_a_time(tmp_path: Path) -> None:
    log, _ = opened(tmp_path)
    with pytest.raises(StateError, match="in use by another process"):
        SegmentLog(tmp_path, OWNER)
    log.close()
    log.close()
    count(tmp_path)


def test_only_for_its_owner(tmp_path: Path) -> None:
    write(tmp_path, 0, 1)
    with pytest.raises(StateError, match="of another stream: d/x, not d/y"):
        SegmentLog(tmp_path, {**OWNER, "stream": "d/y"})
    with pytest.raises(StateError, match="of another more: None, not 1"):
        SegmentLog(tmp_path, {**OWNER, "more": 1})
    assert count(tmp_path) == 1
    (tmp_path / "log.json").write_text("[]")
    with pytest.raises(StateError, match="damaged"):
        SegmentLog(tmp_path, OWNER)
    (tmp_path / "log.json").write_text("{")
    with pytest.raises(StateError, match="cannot be read"):
        SegmentLog(tmp_path, OWNER)
    (tmp_path / "log.json").unlink()
    with pytest.raises(StateError, match=r"log.json is gone"):
        SegmentLog(tmp_path, OWNER)


def test_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="cannot write"):
        SegmentLog(tmp_path / "file" / "log", OWNER)


class _Full:
    """A file on a disk with little room."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, data: memoryview) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = min(self.room, len(data))
        self.room -= n
        return int(self.file.write(data[:n]))


@pytest.mark.parametrize("room", [0, 1, 30, 100])
def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path, room: int) -> None:
    log, _ = opened(tmp_path)
    log.append(head(0), body(0))
    newest = log.segments[-1]
    real, newest._file = newest._file, _Full(newest._file, room)  # type: ignore[assignment]
    with pytest.raises(StateError, match=r"cannot write the log.*No space.*make room"):
        log.append(head(1), body(1))
    assert (log.next_id, log.facts) == (2, {"p0": 0})
    newest._file = real  # somebody made room
    log.append(head(1), body(1))
    log.close()
    assert count(tmp_path) == 2


def test_a_full_disk_when_a_segment_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened(tmp_path, 1)
    log.append(head(0), body(0))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LocalDisk, "write_whole", full)
        with pytest.raises(StateError, match="No space"):
            log.append(head(1), body(1))
    log.append(head(1), body(1))
    log.close()
    assert count(tmp_path) == 2


def test_a_full_disk_that_only_the_sync_finds_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = opened(tmp_path)
    log.append({**head(0), "facts": {"p0": 0, "gone": 1}}, body(0))
    log.append({**head(1), "facts": {"gone": None}}, body(1))
    size, facts = log.held_bytes, dict(log.facts)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", full)
            with pytest.raises(FullError, match=r"cannot write the log.*No space.*make room"):
                log.append({**head(2), "facts": {"p0": 2, "gone": 3}}, body(2))
        assert (log.next_id, log.facts, log.held_bytes) == (4, facts, size)
        assert files(tmp_path)[-1].stat().st_size == size
    log.append(head(2), body(2), sync=False)
    with monkeypatch.context() as patch:  # here it is in doubt which of them are there
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(StateError, match=r"No space.*start again"):
            log.append(head(3), body(3))
    with pytest.raises(StateError, match="No space"):
        log.append(head(4), body(4))
    log.close()
    log, found = opened(tmp_path)
    assert [data for _, data in found] == [[], *(body(i) for i in range(4))]
    log.close()


def test_after_a_failed_sync_nothing_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened(tmp_path)
    log.append(head(0), body(0))

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(StateError, match="Input/output error"):
        log.append(head(1), body(1))
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    with pytest.raises(StateError, match="Input/output error"):
        log.append(head(2), body(2))
    with pytest.raises(StateError, match="Input/output error"):
        log.sync()
    with pytest.raises(StateError, match="Input/output error"):
        log.trim(2)
    log.close()
    assert count(tmp_path) == 2  # it may be there: a publisher is told so by number when it comes again


def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = opened(tmp_path, 500)
    sizes: list[int] = []
    monkeypatch.setattr(os, "fdatasync", lambda handle: sizes.append(os.fstat(handle).st_size))
    for i in range(20):
        log.append(head(i), body(i))
        assert sizes[-1] == files(tmp_path)[-1].stat().st_size
    synced = len(sizes)
    log.sync()  # nothing is owed
    assert len(sizes) == synced
    log.append(head(20), body(20), sync=False)
    assert len(sizes) - synced <= 1  # at most when a new segment begins
    log.sync()
    assert sizes[-1] == files(tmp_path)[-1].stat().st_size
    log.close()


def test_threads_share_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one sync is under way others append; all of them are served by the next one."""
    log, _ = opened(tmp_path)
    begun, go, syncs = threading.Event(), threading.Event(), []

    def slow(handle: int) -> None:
        syncs.append(os.fstat(handle).st_size)
        begun.set()
        assert go.wait(30)

    monkeypatch.setattr(os, "fdatasync", slow)
    log.append(head(0), body(0), sync=False)
    threads = [threading.Thread(target=log.sync)]
    threads[0].start()
    assert begun.wait(30)
    for i in range(1, 6):
        log.append(head(i), body(i), sync=False)  # not held up
        threads.append(threading.Thread(target=log.sync))
        threads[-1].start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert syncs[-1] == files(tmp_path)[-1].stat().st_size
    assert len(syncs) == 2
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    log.close()
    assert count(tmp_path) == 6


KILLED = """
import itertools, sys
from pathlib import Path
from borealis.streams.segments import SegmentLog
log = SegmentLog(Path(sys.argv[1]), {"stream": "d/x", "columns": ["v"]}, segment_bytes=2000)
found = list(log.open())
for i in itertools.count(log.next_id // 2):
    blobs = [bytes([i % 256]) * 30, bytes([i % 256]) * 20]
    log.append({"first": 2 * i, "stop": 2 * i + 2, "facts": {f"p{i % 2}": i}}, blobs)
    print(i, flush=True)
"""


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    said = -1
    for lines in (1, 40, 100):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(lines):
            said = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split(b"\n")
        process.wait()
        process.stdout.close()
        said = max([said, *(int(line) for line in rest[:-1])])
        assert count(tmp_path) in (said + 1, said + 2)
    assert len(files(tmp_path)) > 3
