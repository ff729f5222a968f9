"""Commits on disk: what a restart finds after every kind of damage, and what it refuses."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from borealis.errors import FullError, StateError
from borealis.state import commits, frame, train_log
from borealis.state.commits import CommitLog
from borealis.state.delta import Change, TableSpec, pack, unpack

SPECS = {"box": (TableSpec("t", ("k",)),)}
KEY = ("box", 0)
OWNER = {"diagram": "abc", "buckets": 1}


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here, and there are thousands of syncs."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


def delta(key: int, value: int) -> bytes:
    return pack({"t": Change(pa.table({"k": [key], "v": [value]}))})


def header(train: int) -> dict[str, Any]:
    return {"train": train, "cursors": {"in": {"position": 10 * train}}}


def write(root: Path, first: int, last: int, *, bases: tuple[int, ...] = ()) -> None:
    """Commit trains; each sets key (train % 5) to the train."""
    log = CommitLog(root, OWNER, SPECS)
    log.recover()
    for train in range(first, last + 1):
        log.commit(header(train), {KEY: delta(train % 5, train)})
        if train in bases:
            whole = pack({"t": Change(pa.table({"k": list(state(train)), "v": list(state(train).values())}))})
            log.rebase(header(train), lambda whole=whole: {KEY: whole})
            assert log._writer is not None
            log._writer.join()
    log.close()


def state(train: int) -> dict[int, int]:
    """What the state is after a train."""
    return {t % 5: t for t in range(max(1, train - 4), train + 1)}


def recovered(root: Path) -> int:
    """Recover, check that the state belongs to the train that is said to be the last, and return that."""
    log = CommitLog(root, OWNER, SPECS)
    found = log.recover()
    log.close()
    train = found.header["train"] if found.header else 0
    assert found.header in (None, header(train))
    rows = unpack(found.state[KEY])["t"].put.to_pylist() if KEY in found.state else []
    assert {r["k"]: r["v"] for r in rows} == state(train)
    return train


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("log-*.bin"), key=lambda p: int(p.stem.split("-")[1]))


def test_goes_on_after_the_last_commit(tmp_path: Path) -> None:
    for n in range(4):
        assert recovered(tmp_path) == 7 * n
        write(tmp_path, 7 * n + 1, 7 * n + 7)
    assert recovered(tmp_path) == 28


def test_any_cut_of_the_last_record_goes_back_one_train(tmp_path: Path) -> None:
    root, copy = tmp_path / "state", tmp_path / "copy"
    write(root, 1, 2)
    [segment] = segments(root)
    before = segment.stat().st_size
    shutil.copytree(root, copy)
    write(root, 3, 3)
    last = segments(root)[-1]
    good = last.read_bytes()
    for length in [*range(60), *range(60, len(good), 11), len(good) - 1]:
        shutil.rmtree(root)
        shutil.copytree(copy, root)
        (root / last.name).write_bytes(good[:length])
        assert recovered(root) == 2
        assert recovered(root) == 2  # the cut is done once and for all
    assert before == (root / segment.name).stat().st_size
    write(root, 3, 6)
    assert recovered(root) == 6


@pytest.mark.parametrize("tail", [b"garbage" * 99, bytes(5000), b"BCL1", b"BCL1" + bytes(500), b"\xff" * 20])
def test_what_stands_behind_the_last_record_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    write(tmp_path, 1, 4)
    with open(segments(tmp_path)[-1], "ab") as file:
        file.write(tail)
    assert recovered(tmp_path) == 4
    write(tmp_path, 5, 8)
    assert recovered(tmp_path) == 8


def test_a_flipped_byte_anywhere_in_the_newest_segment_never_gives_a_wrong_state(tmp_path: Path) -> None:
    root, copy = tmp_path / "state", tmp_path / "copy"
    write(copy, 1, 3)
    write(copy, 4, 6)
    size = segments(copy)[-1].stat().st_size
    found = set()
    for at in range(0, size, 29):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(copy, root)
        flip(segments(root)[-1], at)
        train = recovered(root)
        found.add(train)
        write(root, train + 1, 9)
        assert recovered(root) == 9
    assert found == {3, 4, 5}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x41
    path.write_bytes(data)


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_segment_that_was_only_begun_is_harmless(tmp_path: Path, length: int) -> None:
    write(tmp_path, 1, 4)
    (tmp_path / "log-5.bin").write_bytes(CommitLog.mark[:length])
    assert recovered(tmp_path) == 4
    write(tmp_path, 5, 6)
    assert recovered(tmp_path) == 6


@pytest.mark.parametrize("first_line", [bytes(15), b"X" * 15, bytes(4096)])
def test_commits_after_a_damaged_first_line_are_not_lost(tmp_path: Path, first_line: bytes) -> None:
    """The next run must not append behind a first line that no reader accepts."""
    write(tmp_path, 1, 4)
    (tmp_path / "log-5.bin").write_bytes(first_line)
    write(tmp_path, 5, 9)
    assert recovered(tmp_path) == 9


# -- damage beyond the tail


def refused(root: Path, *said: str, owner: dict[str, Any] = OWNER) -> None:
    """One line with a hint, and the directory is free again."""
    with pytest.raises(StateError) as error:
        CommitLog(root, owner, SPECS).recover()
    assert error.value.hint
    assert "\n" not in str(error.value)
    for words in said:
        assert words in str(error.value)
    with pytest.raises(StateError) as again:  # not: in use by another run
        CommitLog(root, owner, SPECS).recover()
    assert str(again.value) == str(error.value)


def test_damage_before_the_newest_segment_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, 4)
    write(tmp_path, 5, 8)
    flip(segments(tmp_path)[0], 200)
    refused(tmp_path, "log-1.bin is damaged in the midst of the state")


def test_a_missing_segment_is_refused(tmp_path: Path) -> None:
    for n in range(3):
        write(tmp_path, 4 * n + 1, 4 * n + 4)
    segments(tmp_path)[1].unlink()
    refused(tmp_path, "trains 5 to 8 missing")


def test_a_segment_that_lost_whole_records_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, 4)
    write(tmp_path, 5, 8)
    first = segments(tmp_path)[0]
    data = first.read_bytes()
    os.truncate(first, data.rindex(CommitLog.mark))
    refused(tmp_path, "train 4 missing")


def test_a_missing_base_is_refused_even_if_nothing_was_committed_since(tmp_path: Path) -> None:
    write(tmp_path, 1, 9, bases=(9,))
    [base] = tmp_path.glob("base-*.bin")
    base.unlink()
    refused(tmp_path, "trains 1 to 9 missing")


@pytest.mark.parametrize("at", [0, 20, 200])
def test_a_damaged_base_is_refused(tmp_path: Path, at: int) -> None:
    write(tmp_path, 1, 9, bases=(9,))
    [base] = tmp_path.glob("base-*.bin")
    flip(base, at)
    refused(tmp_path)


def test_a_damaged_base_is_done_without_where_the_log_still_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a crash between the renaming of the base and the deletion of what it replaces."""
    write(tmp_path, 1, 4, bases=(2,))
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)
    write(tmp_path, 5, 9, bases=(7,))
    assert len(list(tmp_path.glob("base-*.bin"))) == 2
    assert recovered(tmp_path) == 9
    flip(tmp_path / "base-7.bin", 100)
    assert recovered(tmp_path) == 9


def test_a_damaged_base_is_refused_where_the_log_does_not_reach_it(tmp_path: Path) -> None:
    write(tmp_path, 1, 4, bases=(2,))
    (tmp_path / "base-7.bin").write_bytes(b"nothing")
    refused(tmp_path, "the base of train 7", "is damaged")


@pytest.mark.parametrize("text", ["", "{", "[]", "5", "null", "\x00\x00", '"version"'])
def test_a_damaged_owner_file_is_refused(tmp_path: Path, text: str) -> None:
    write(tmp_path, 1, 2)
    (tmp_path / "state.json").write_text(text)
    refused(tmp_path, "state.json")


def test_a_state_that_nobody_owns_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    (tmp_path / "state.json").unlink()
    refused(tmp_path, "state.json is gone")


@pytest.mark.parametrize("other", [{"diagram": "xyz"}, {"buckets": 4}])
def test_the_state_of_another_diagram_or_bucket_count_is_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    write(tmp_path, 1, 2)
    refused(tmp_path, f"of another {next(iter(other))}", owner=OWNER | other)
    assert recovered(tmp_path) == 2


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 2)
    monkeypatch.setattr(commits, "VERSION", commits.VERSION + 1)
    refused(tmp_path, f"another version: {commits.VERSION - 1}, not {commits.VERSION}")


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    for name in ("log-x.bin", "base-.bin", "notes.txt", "log-1.bin.bak"):
        (tmp_path / name).write_text("mine")
    assert recovered(tmp_path) == 2
    assert (tmp_path / "log-x.bin").read_text() == "mine"


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(StateError, match="cannot write state in"):
        CommitLog(tmp_path / "state", OWNER, SPECS)


def test_a_directory_in_use_is_refused_until_its_process_dies(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    program = (
        "import sys, pathlib; from borealis.state.commits import CommitLog;"
        f"log = CommitLog(pathlib.Path({str(tmp_path)!r}), {OWNER!r}, {{}});"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(StateError, match="in use by another run"):
            CommitLog(tmp_path, OWNER, SPECS)
        other.send_signal(signal.SIGKILL)
    assert recovered(tmp_path) == 3


# -- growth


def test_files_do_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_log, "BASE_BYTES_LEAST", 10_000)
    log = CommitLog(tmp_path, OWNER, SPECS)
    log.recover()
    most = 0
    for train in range(1, 1001):
        log.commit(header(train), {KEY: delta(train % 5, train)})
        if log.wants_base():
            whole = pack({"t": Change(pa.table({"k": list(state(train)), "v": list(state(train).values())}))})
            log.rebase(header(train), lambda whole=whole: {KEY: whole})
            assert log._writer is not None
            log._writer.join()
        most = max(most, sum(p.stat().st_size for p in tmp_path.iterdir()))
    log.close()
    assert most < 30_000
    assert len(list(tmp_path.iterdir())) <= 4
    assert recovered(tmp_path) == 1000


def test_a_run_killed_again_and_again_still_writes_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What earlier starts have logged counts too."""
    monkeypatch.setattr(train_log, "BASE_BYTES_LEAST", 5_000)
    for start in range(20):
        log = CommitLog(tmp_path, OWNER, SPECS)
        log.recover()
        log.commit(header(start + 1), {KEY: delta((start + 1) % 5, start + 1)})
        if log.wants_base():
            break
        log.close()
    else:
        pytest.fail("the log grew without end")
    log.close()


def test_a_base_says_what_was_so_when_it_was_asked_for(tmp_path: Path) -> None:
    """The header may hold counters that the next train moves while the base is written in the background."""
    log = CommitLog(tmp_path, OWNER, SPECS)
    log.recover()
    ids = {"out": 1}
    log.commit({"train": 1, "ids": ids}, {})
    go = threading.Event()

    def whole() -> dict[Any, bytes]:
        go.wait(10)
        return {}

    log.rebase({"train": 1, "ids": ids}, whole)
    ids["out"] = 99
    go.set()
    log.close()
    found = CommitLog(tmp_path, OWNER, SPECS).recover()
    assert found.header == {"train": 1, "ids": {"out": 1}}


def test_what_a_crash_left_of_a_base_is_cleared_away(tmp_path: Path) -> None:
    write(tmp_path, 1, 3)
    (tmp_path / "base-3.bin.tmp").write_bytes(b"half")
    assert recovered(tmp_path) == 3
    assert not list(tmp_path.glob("*.tmp"))


# -- full disks


def no_room(*_: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_and_the_last_commit_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where only the sync finds out: the record is taken back, and comes again when there is room."""
    write(tmp_path, 1, 3)
    log = CommitLog(tmp_path, OWNER, SPECS)
    log.recover()
    for _ in range(2):
        with monkeypatch.context() as full:
            full.setattr(os, "fdatasync", no_room)
            with pytest.raises(FullError, match=r"No space left on device.*make room"):
                log.commit(header(4), {KEY: delta(4, 4)})
        assert not segments(tmp_path)[-1].stat().st_size
    log.commit(header(4), {KEY: delta(4, 4)})
    log.close()
    assert recovered(tmp_path) == 4
    write(tmp_path, 5, 6)
    assert recovered(tmp_path) == 6


def test_after_another_failure_of_a_sync_nothing_more_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 3)
    log = CommitLog(tmp_path, OWNER, SPECS)
    log.recover()

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", broken)
        with pytest.raises(StateError, match=r"Input/output error.*mend the disk"):
            log.commit(header(4), {KEY: delta(4, 4)})
    with pytest.raises(StateError, match="cannot write state"):  # its tail is in doubt: not another word
        log.commit(header(4), {KEY: delta(4, 4)})
    log.close()
    train = recovered(tmp_path)
    assert train == 3  # what its sinks wrote was taken back
    write(tmp_path, train + 1, 5)
    assert recovered(tmp_path) == 5


def in_small_room(room: int, act: Callable[[], None]) -> int:
    """Run something in a forked child that can write files of so many bytes only; its exit code."""
    import resource

    child = os.fork()
    if child == 0:
        code = 9
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
            act()
            code = 0
        except StateError as error:
            code = 2 if error.hint and "\n" not in str(error) else 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("room", [5, 15, 400, 1500, 3000])
def test_a_write_that_the_system_cuts_short(tmp_path: Path, room: int) -> None:
    """A real limit of the system: part of a record is on disk when the error comes."""

    def act() -> None:
        log = CommitLog(tmp_path, OWNER, SPECS)
        log.recover()
        try:
            for train in range(1, 100):
                log.commit(header(train), {KEY: delta(train % 5, train)})
        finally:
            log.close()  # must not fail again

    (tmp_path / "state.json").write_text('{"version": ' + str(commits.VERSION) + ', "diagram": "abc", "buckets": 1}')
    assert in_small_room(room, act) == 2
    train = recovered(tmp_path)
    assert (train > 0) == (room > 700)
    write(tmp_path, train + 1, train + 9)
    assert recovered(tmp_path) == train + 9


def test_no_room_for_a_base_is_told_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 1, 3)
    log = CommitLog(tmp_path, OWNER, SPECS)
    log.recover()
    log.commit(header(4), {KEY: delta(4, 4)})
    with monkeypatch.context() as full:
        full.setattr(os, "fdatasync", no_room)
        log.rebase(header(4), dict)
        assert log._writer is not None
        log._writer.join()
    with pytest.raises(StateError, match="No space left"):
        log.commit(header(5), {})
    log.close()
    assert not list(tmp_path.glob("*.tmp"))
    assert recovered(tmp_path) == 4


def test_records_are_what_the_protocol_says(tmp_path: Path) -> None:
    """The layout on disk, written down once more: a change of it needs a new version."""
    write(tmp_path, 1, 1)
    data = segments(tmp_path)[0].read_bytes()
    head, [blob] = frame.unpack(b"BCL1", data)
    assert head == {"header": header(1), "keys": [list(KEY)], "synced": 0}
    assert blob.to_pybytes() == delta(1, 1)
