"""The state log: bounded however long the run, readable while it merges, cut only where it can be."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from borealis.errors import StateError
from borealis.state import log as state_log
from borealis.state.cache import Cache
from borealis.state.delta import Change, Delta, TableSpec, pack, unpack
from borealis.state.log import CROWD_MOST, FORKED, STRETCHES_MOST, StateLog, mapped, stretch_name

SPECS = {"box": (TableSpec("t", ("k",), floor="k"),)}
KEY = ("box", 0)
KEYS = 50  # in the state at any time


def delta(train: int) -> bytes:
    """Train n puts key n and drops all keys below n - KEYS."""
    return pack({"t": Change(pa.table({"k": [train], "v": [10 * train]}), floor=train - KEYS + 1)})


def state(train: int) -> dict[int, int]:
    return {n: 10 * n for n in range(max(1, train - KEYS + 1), train + 1)}


class Kernel:
    """What the deltas add up to."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def apply(self, delta: Delta) -> None:
        change = delta["t"]
        self.rows = {k: v for k, v in self.rows.items() if change.floor is None or k >= change.floor}
        self.rows |= {r["k"]: r["v"] for r in change.put.to_pylist()}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[StateLog]:
    made = StateLog(tmp_path / "state", SPECS)
    yield made
    made.close()


def read(log: StateLog, manifest: dict[str, list[list[int]]]) -> dict[int, int]:
    kernel = Kernel()
    for first, last in manifest.get("box.0", []):
        kernel.apply(unpack(mapped(f"{log.root}/{stretch_name(KEY, first, last)}")))
    return kernel.rows


def test_a_log_that_nothing_needs_has_no_directory_and_no_thread(log: StateLog) -> None:
    for train in range(1, STRETCHES_MOST + 1):
        log.commit(train, {KEY: delta(train)})
    assert not log.root.exists()
    assert log._merger is None
    log.commit(STRETCHES_MOST + 1, {KEY: delta(STRETCHES_MOST + 1)})
    assert log._merger is not None
    assert read(log, log.manifest()) == state(STRETCHES_MOST + 1)


def test_stretches_files_and_bytes_stay_bounded(log: StateLog) -> None:
    most_files = most_bytes = 0
    for train in range(1, 1001):
        log.commit(train, {KEY: delta(train)})
        assert len(log.manifest()["box.0"]) <= CROWD_MOST + 1
        if train % 25 == 0:
            most_files = max(most_files, len(list((log.root / "box.0").iterdir())))
            most_bytes = max(most_bytes, log.size())
    log.merge()
    assert read(log, log.manifest()) == state(1000)
    assert most_files <= 3 * CROWD_MOST
    assert most_bytes <= (CROWD_MOST + KEYS) * len(delta(1))
    assert len(log.manifest()["box.0"]) <= STRETCHES_MOST + 1


def test_commits_wait_for_merging_that_cannot_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, merging = threading.Event(), threading.Event()
    merged = StateLog._merge_one

    def slowly(self: StateLog, *args: object) -> None:
        merging.set()
        go.wait(30)
        merged(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(StateLog, "_merge_one", slowly)
    log = StateLog(tmp_path, SPECS)
    done = threading.Event()

    def commit() -> None:
        for train in range(1, 2 * CROWD_MOST):
            log.commit(train, {KEY: delta(train)})
        done.set()

    threading.Thread(target=commit, daemon=True).start()
    assert merging.wait(10)
    while log.train < CROWD_MOST:
        assert not done.wait(0.001)
    assert not done.wait(0.1)  # it stands still
    assert log.train == CROWD_MOST
    go.set()
    assert done.wait(30)
    assert read(log, log.manifest()) == state(2 * CROWD_MOST - 1)
    log.close()


def test_a_manifest_is_readable_until_the_train_after_it_is_committed(log: StateLog) -> None:
    """As a worker does: it loads from a manifest while merges go on, never longer than one train."""
    failures: list[BaseException] = []
    turn = threading.Semaphore(0)
    ready = threading.Semaphore(0)
    given: list[tuple[int, dict[str, list[list[int]]]]] = []
    cache: Cache[Kernel] = Cache()

    def reader() -> None:
        while turn.acquire() and given[-1][0] >= 0:
            train, manifest = given[-1]
            try:
                assert read(log, manifest) == state(train)
                kernel = cache.take(log.root, KEY, train, manifest.get("box.0", []), Kernel)
                assert kernel.rows == state(train)
                if train % 3:  # every third time, as if another worker ran the train
                    cache.give(log.root, KEY, train, kernel)
            except BaseException as error:
                failures.append(error)
            ready.release()

    thread = threading.Thread(target=reader, daemon=True)
    thread.start()
    for train in range(1, 151):
        given.append((log.train, log.manifest()))
        turn.release()
        log.merge()
        ready.acquire()
        log.commit(train, {KEY: delta(train)})
    given.append((-1, {}))
    turn.release()
    thread.join(10)
    assert not failures


def test_a_worker_that_runs_one_unit_alone_keeps_that_ones_state_and_its_forks() -> None:
    cache: Cache[Kernel] = Cache()
    mine, roots = "/a/state", ("/a/state", f"/a/state{FORKED}1", "/b/state", f"/b/state{FORKED}1")
    for root in roots:
        cache.give(root, KEY, 3, Kernel())
    cache.keep_only(f"{mine}{FORKED}1")
    for root in roots:
        if root.startswith(mine):
            assert isinstance(cache.take(root, KEY, 3, None, Kernel), Kernel)
        else:
            with pytest.raises(StateError):
                cache.take(root, KEY, 3, None, Kernel)


def test_whole_reads_the_state_as_it_was_when_asked(log: StateLog) -> None:
    for train in range(1, 61):
        log.commit(train, {KEY: delta(train)})
    whole = log.whole()
    for train in range(61, 200):
        log.commit(train, {KEY: delta(train)})
        log.merge()
    assert rows_of(whole()[KEY]) == state(60)
    log.commit(200, {KEY: delta(200)})
    assert read(log, log.manifest()) == state(200)
    live = {f"{a}-{b}.delta" for a, b in log.manifest()["box.0"]}
    assert {p.name for p in (log.root / "box.0").iterdir()} == live  # what was kept for the reader is gone


def rows_of(data: bytes) -> dict[int, int]:
    kernel = Kernel()
    kernel.apply(unpack(data))
    return kernel.rows


def test_a_loaded_state_goes_on(log: StateLog) -> None:
    whole = pack({"t": Change(pa.table({"k": list(state(70)), "v": list(state(70).values())}))})
    log.load(70, {KEY: whole})
    for train in range(71, 140):
        log.commit(train, {KEY: delta(train)})
    assert read(log, log.manifest()) == state(139)
    with pytest.raises(ValueError, match="does not follow"):
        log.commit(141, {})


def test_a_train_without_deltas_counts(log: StateLog) -> None:
    log.commit(1, {})
    log.commit(2, {KEY: delta(2)})
    log.commit(3, {})
    assert log.train == 3
    assert log.manifest() == {"box.0": [[2, 2]]}


def test_a_failed_merge_is_told_at_the_next_commit(log: StateLog) -> None:
    for train in range(1, STRETCHES_MOST + 1):
        log.commit(train, {KEY: delta(train)})
    log.manifest()  # in files from here on
    (log.root / stretch_name(KEY, 3, 3)).unlink()
    log.commit(STRETCHES_MOST + 1, {KEY: delta(STRETCHES_MOST + 1)})
    log._merger.join(10)
    assert not log._merger.is_alive()
    with pytest.raises(StateError, match="cannot merge the state"):
        log.commit(STRETCHES_MOST + 2, {})


def test_a_full_disk_is_told(log: StateLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "MEMORY_BYTES_MOST", 0)
    log.commit(1, {KEY: delta(1)})

    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "replace", no_room)
        with pytest.raises(StateError, match=r"No space left.*Hint: make room"):
            log.commit(2, {KEY: delta(2)})
    assert not list(log.root.rglob("*.tmp"))
    log.commit(2, {KEY: delta(2)})
    monkeypatch.undo()
    log.commit(3, {KEY: delta(3)})
    with monkeypatch.context() as full:
        full.setattr(os, "replace", no_room)
        with pytest.raises(StateError, match=r"No space left.*Hint: make room"):
            log.manifest()  # what lay in memory is wanted elsewhere
    assert read(log, log.manifest()) == state(3)
