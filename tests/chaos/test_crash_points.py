"""A crash at every step that touches the disk, one after the other: each restart ends with the same outputs.

A forked child runs the unit without Spark and kills itself at its n-th step: before a write, in the middle of one,
before a sync, a rename or a deletion. `BOREALIS_CHAOS=full` takes every step, otherwise some of them, evenly spread.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from borealis import disk
from borealis.compile.unit import Compiled, compile_unit
from borealis.connectors.files import sink as files
from borealis.connectors.sinks import as_sink
from borealis.connectors.sources import as_source
from borealis.errors import BorealisError
from borealis.spark.plan import level_schema
from borealis.spark.worker import read_train
from borealis.state import train_log
from borealis.trains.intake import Admission
from borealis.trains.unit import UnitOptions, UnitRun

ROWS = 400
ROWS_MOST = 90
STEPS_ASKED = 40  # of all crash points, without BOREALIS_CHAOS=full


@pytest.fixture(scope="module")
def compiled(workload: ModuleType, spark: SparkSession) -> Compiled:
    made = compile_unit(workload.diagram().validate(), spark, 1)
    assert len(made.program.levels) == 1  # so that it runs without Spark
    return made


@pytest.fixture
def drive(
    workload: ModuleType, compiled: Compiled, home: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path], UnitRun]:
    """Runs the workload to its end in this process; the outputs and the state are in the given directory."""
    workload.write_inputs(home, ROWS)
    numbers = itertools.count()

    def scratch(prefix: str) -> Path:
        made = home / f"{prefix}{os.getpid()}-{next(numbers)}"
        made.mkdir()
        return made

    monkeypatch.setattr(disk, "scratch", scratch)
    monkeypatch.setattr(train_log, "BASE_BYTES_LEAST", 30_000)  # a base every few trains
    spec = workload.diagram().validate()
    schema = to_arrow_schema(level_schema(compiled, 0), timezone="UTC")

    def run(to: Path) -> UnitRun:
        state = to / "state"
        state.mkdir(parents=True, exist_ok=True)
        sinks = {n: as_sink(p, state / f"{n}.journal") for n, p in workload.outputs(to).items()}
        sources = {n: as_source(p) for n, p in workload.inputs(home).items()}
        one = UnitRun("u1", spec, compiled, sources, sinks, UnitOptions(Admission(rows_most=ROWS_MOST), state / "u1"))
        complete = False
        try:
            if not one.done.is_set():
                one.start()
            while not one.done.is_set():
                number = one.next_train(one.committed(), 20.0)
                if number is None:
                    raise one.manager.failure or AssertionError("no train, and no failure")
                one.commit(pa.Table.from_batches(list(read_train(one.plan(number), 0, schema))))
            complete = True
        finally:
            one.close(complete)
        return one

    return run


@pytest.fixture
def truth(workload: ModuleType, drive: Callable[[Path], UnitRun], home: Path) -> dict[str, Any]:
    drive(home / "never-killed")
    found: dict[str, Any] = workload.contents(home / "never-killed")
    assert all(found.values())  # a comparison of nothing would prove nothing
    return found


class Steps:
    """Counts what touches the disk; at a chosen step the process dies, or the disk is full from then on."""

    def __init__(self, fatal: int, tear: float | None = None, *, full: bool = False) -> None:
        self.fatal, self.tear, self.full, self.count = fatal, tear, full, 0
        self._lock = threading.Lock()

    def step(self, write: Callable[[memoryview], object] | None = None, data: Any = b"") -> None:
        with self._lock:
            self.count += 1
            if self.count == self.fatal and write is not None and self.tear is not None:
                view = memoryview(data).cast("B")
                write(view[: int(len(view) * self.tear)])
            if self.count == self.fatal and not self.full:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.count >= self.fatal and self.full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def watch(self) -> None:
        """Wrap whatever writes; only in a forked child."""
        for name in ("fsync", "fdatasync", "replace", *(() if self.full else ("unlink",))):
            setattr(os, name, self._before(getattr(os, name)))
        steps = self

        class Raw(io.FileIO):
            def write(self, data: Any) -> int:
                steps.step(super().write, data)
                return super().write(data)

        def opened(path: Any, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
            return Raw(path, mode) if buffering == 0 else open(path, mode, buffering, **more)

        disk.open = files.open = opened  # type: ignore[attr-defined]

    def _before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            self.step()
            return call(*args, **named)

        return wrapped


def crash(drive: Callable[[Path], UnitRun], to: Path, fatal: int, tear: float | None) -> bool:
    """Whether a forked run died at that step; False when it had fewer steps and ended well."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            Steps(fatal, tear).watch()
            drive(to)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0
    return False


def steps_of(drive: Callable[[Path], UnitRun], to: Path) -> int:
    """How many steps a run has, told by a forked run through a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            steps = Steps(2**62)
            steps.watch()
            drive(to)
            os.write(write, str(steps.count).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read) as pipe:
        return int(pipe.read())


def chosen(count: int) -> Iterator[int]:
    """The steps to crash at."""
    every = 1 if os.environ.get("BOREALIS_CHAOS") == "full" else max(1, count // STEPS_ASKED)
    return iter(range(1, count + 1, every))


def test_a_crash_at_any_step_changes_nothing(
    workload: ModuleType, drive: Callable[[Path], UnitRun], truth: dict[str, Any], home: Path
) -> None:
    count = steps_of(drive, home / "counted")
    assert count > 100
    died = 0
    for fatal in chosen(count):
        to = home / f"crash-{fatal}"
        died += crash(drive, to, fatal, (None, 0.0, 0.5, 1.0)[fatal % 4])
        drive(to)
        assert workload.contents(to) == truth, f"killed at step {fatal} of {count}"
    assert died > 0.8 * len(list(chosen(count)))


def test_crash_after_crash_still_ends_the_same(
    workload: ModuleType, drive: Callable[[Path], UnitRun], truth: dict[str, Any], home: Path
) -> None:
    """Each restart dies a little later into itself than the one before, in the middle of a write."""
    crashes = 0
    while crash(drive, home / "again", 9 + 4 * crashes, 0.3):
        crashes += 1
    assert crashes > 3
    assert workload.contents(home / "again") == truth


def test_a_full_disk_is_told_and_a_restart_with_room_goes_on(
    workload: ModuleType, drive: Callable[[Path], UnitRun], truth: dict[str, Any], home: Path
) -> None:
    """From some write on there is no room: one line with a hint, and every commit before it is still there."""
    count = steps_of(drive, home / "counted")
    resumed = []
    for fatal in list(chosen(count))[::3]:
        to = home / f"full-{fatal}"
        child = os.fork()
        if child == 0:
            code = 3
            try:
                Steps(fatal, 0.5, full=True).watch()
                drive(to)
                code = 0
            except BorealisError as error:
                code = 2 if error.hint and "\n" not in str(error) else 4
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break  # fewer steps than counted: deletions need no room
        assert code == 2, f"full from step {fatal} of {count}"
        resumed.append(drive(to).progress.resumed_after)
        assert workload.contents(to) == truth, f"full from step {fatal} of {count}"
    assert resumed[0] == 0
    assert resumed[-1] > 3
