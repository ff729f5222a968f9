"""Processes known by pid and start, stopped politely, then not; and never anybody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from borealis.cli import processes
from borealis.client.cluster_config import ClusterProcess

WAIT_S = 20.0
READY = "print('ready', flush=True)\n"
SLEEP = "import signal\n" + READY + "signal.pause()\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + READY + "while True: signal.pause()\n"
WITH_CHILD = (
    "import signal, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import os, signal; os.setpgid(0, 0); signal.pause()'])\n"
    "print(child.pid, flush=True)\n"
    "signal.pause()\n"
)

Start = Callable[[str], tuple[ClusterProcess, subprocess.Popen[str]]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Python programs in sessions of their own, which are gone after the test."""
    made: list[subprocess.Popen[str]] = []

    def run(program: str) -> tuple[ClusterProcess, subprocess.Popen[str]]:
        command = [sys.executable, "-c", program]
        one = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        made.append(one)
        part = ClusterProcess(name=f"part{len(made)}", pid=one.pid, started=processes.moment(one.pid) or "", log="")
        return part, one

    yield run
    for one in made:
        one.kill()
        one.communicate()


def said(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline().strip()


def test_a_process_is_known_by_its_pid_and_its_start(start: Start) -> None:
    part, one = start(SLEEP)
    assert said(one) == "ready"
    assert processes.alive(part)
    assert processes.left_behind(part) == [part.pid]
    assert not processes.alive(part.model_copy(update={"started": "another boot 1"}))
    one.kill()
    assert processes.wait_end(part, WAIT_S)
    assert not processes.alive(part)  # though nobody has waited for it: a zombie does not run
    one.wait()
    assert processes.moment(part.pid) is None


def test_nobody_elses_process_gets_a_signal(start: Start) -> None:
    part, one = start(SLEEP)
    assert said(one) == "ready"
    impostor = part.model_copy(update={"started": f"{part.started}1"})
    assert not processes.send(impostor, signal.SIGKILL)
    assert processes.stop([impostor]) == []
    assert processes.left_behind(impostor) == []
    assert one.poll() is None
    assert processes.alive(part)


def test_the_polite_end_when_asked_and_the_stubborn_are_killed(start: Start) -> None:
    (polite, one), (stubborn, other) = start(SLEEP), start(STUBBORN)
    assert said(one) == said(other) == "ready"
    told: list[str] = []
    assert processes.stop([polite, stubborn], grace_s=0.5, say=told.append) == ["part2"]
    assert (one.wait(WAIT_S), other.wait(WAIT_S)) == (-signal.SIGTERM, -signal.SIGKILL)
    assert told == ["part2 does not end within 0 s: killed"]
    assert processes.stop([polite, stubborn]) == []  # once more is harmless


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are found by /proc")
def test_what_a_killed_process_leaves_behind_is_found_and_ended(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "LEFT_BEHIND_GRACE_S", 0.1)
    part, one = start(WITH_CHILD)
    child = int(said(one))
    one.kill()
    one.wait()
    assert processes.left_behind(part) == [child]
    processes.stop([part])
    deadline = time.monotonic() + WAIT_S
    while processes.moment(child) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert processes.left_behind(part) == []


def test_a_started_part_writes_to_its_log(tmp_path: Path) -> None:
    part, one = processes.start("x", ["--version"], tmp_path / "logs" / "x.log", tmp_path / "cwd")
    assert one.wait(WAIT_S) == 0
    assert (part.name, part.pid) == ("x", one.pid)
    assert processes.last_lines(part.log)[0].startswith("borealis 0.")
    assert os.getsid(0) != part.pid


def test_how_a_log_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert processes.last_lines(log) == []
    log.write_text("\n".join(f"line {i}" for i in range(30)) + "\n\n")
    assert processes.last_lines(log, 2) == ["line 28", "line 29"]
    log.write_bytes(b"x" * 200_000 + b"\n\xfflast\n")
    assert processes.last_lines(log)[-1].endswith("last")
