"""What the experiments share: whom they tell how it goes, how they end, and what processes used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

GOODBYE_S = 8.0  # for a job to clear up after an interrupt
Say = Callable[[str], None]
Lines = list[dict[str, Any]]


def part_by_part(parts: Mapping[str, Callable[[], Lines]], say: Say) -> Lines:
    """The figures of all parts; for one that fails a line with its `error`, and the others are measured all the same.

    Ctrl-C or a polite kill end the measuring; the figures that are there are told, and the rest is marked.

    >>> part_by_part({"a": lambda: [{"query": "a", "x": 1 // 1}], "b": lambda: [{"x": 1 // 0}]}, lambda text: None)
    [{'query': 'a', 'x': 1}, {'query': 'b', 'error': 'ZeroDivisionError: integer division or modulo by zero'}]
    """
    found: Lines = []
    for name, part in parts.items():
        try:
            found += part()
        except Exception as error:
            found.append({"query": name, "error": f"{type(error).__name__}: {error}"})
            say(f"{name} failed: {error}")
        except (KeyboardInterrupt, SystemExit):
            left = list(parts)[list(parts).index(name) :]
            return found + [{"query": one, "error": "interrupted before it was measured"} for one in left]
    return found


@contextmanager
def terminable() -> Iterator[None]:
    """A polite kill clears up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_session(process: subprocess.Popen[str]) -> None:
    """The job may still clear up; then its whole session goes, with its JVM and its workers."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GOODBYE_S)


def cpu_times(pids: list[int]) -> dict[int, float]:
    """The seconds that each of these processes and of all their descendants has used so far."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = int(fields[11]) + int(fields[12])
    mine = set(pids)
    while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
        mine |= more
    return {pid: ticks.get(pid, 0) / os.sysconf("SC_CLK_TCK") for pid in mine}


def cpu_seconds(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """What was used between two looks; a process that ended in between is not counted, for nobody can tell any more.

    >>> cpu_seconds({1: 10.0, 2: 50.0}, {1: 12.0, 3: 0.5})
    2.5
    """
    return sum(used - before.get(pid, 0.0) for pid, used in after.items())


def meter(pids: list[int]) -> Callable[[], float]:
    """Call it for the seconds that these processes and their descendants have used since now."""
    before = cpu_times(pids)
    return lambda: cpu_seconds(before, cpu_times(pids))
