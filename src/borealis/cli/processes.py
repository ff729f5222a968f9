"""Processes of a cluster on this machine: started apart from the terminal, known again later, stopped as a whole.

A pid alone says little: the system gives it to another process one day. So a process is known by its pid and the moment
it started, and no signal goes to one whose moment differs. Each part leads a session of its own; whatever a part leaves
behind when it dies (a JVM, Python workers) is found by that session.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from borealis.client.cluster_config import CA, COORDINATOR, TOKEN, ClusterProcess, ClusterRecord, register, split
from borealis.clock import WALL
from borealis.errors import MachineError

GRACE_S = 10.0  # between asking a process to end and ending it
LEFT_BEHIND_GRACE_S = 2.0  # for the children of a process that has ended
LOG_SHOWN_LINES = 12
LOG_READ_BYTES = 1 << 16
PROC = Path("/proc")
SPARK_LOG = "BOREALIS_SPARK_LOG"  # see spark/quiet.py
OURS = (COORDINATOR, TOKEN, CA)  # a part has these from its arguments


def start(
    name: str, arguments: Sequence[str], log: Path, cwd: Path, *, again: bool = False
) -> tuple[ClusterProcess, subprocess.Popen[bytes]]:
    """`borealis ARGUMENTS` in a session of its own; what it prints goes to its log, `again` behind what is there."""
    log.parent.mkdir(parents=True, exist_ok=True)
    cwd.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "borealis.cli", *arguments]
    spark_log = log.with_suffix(".spark.log")
    spark_log.unlink(missing_ok=True)
    with log.open("ab" if again else "wb") as out:
        made = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={SPARK_LOG: str(spark_log)} | {k: v for k, v in os.environ.items() if k not in OURS},
            start_new_session=True,
        )
    started = moment(made.pid) or ""
    return ClusterProcess(name=name, pid=made.pid, started=started, log=str(log), arguments=list(arguments)), made


def moment(pid: int) -> str | None:
    """When the process with this pid started, in a form that is only good for comparing; None if there is none."""
    if PROC.is_dir():
        fields = _stat(pid)
        if fields is None or fields[0] in ("Z", "X"):  # ended, and only waits for its parent to notice
            return None
        return f"{_boot()} {fields[19]}"
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, began = done.stdout.strip().partition(" ")
    return None if not began or state.startswith("Z") else began.strip()


def alive(part: ClusterProcess) -> bool:
    """Whether this very process still runs."""
    return bool(part.started) and moment(part.pid) == part.started


def left_behind(part: ClusterProcess) -> list[int]:
    """What still runs of a part's session: itself, its JVM, its workers."""
    if not PROC.is_dir():
        return [part.pid] if alive(part) else []
    leader = moment(part.pid)
    if leader is not None and leader != part.started:
        return []  # the pid belongs to another process now, and so does the session of that number
    boot, _, began = part.started.partition(" ")
    if boot != _boot():
        return []
    found = []
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and fields[0] not in ("Z", "X"):
            own_session, ticks = int(fields[3]), int(fields[19])
            if int(entry.name) == part.pid or (own_session == part.pid and ticks >= int(began)):
                found.append(int(entry.name))  # itself, too, where a shell leads its session
    return found


@contextmanager
def _held(part: ClusterProcess) -> Iterator[int | None]:
    """A handle of this very process, whose pid cannot pass to another one unnoticed from here on; None on a system
    without such handles. A ProcessLookupError if it has ended.
    """
    handle = os.pidfd_open(part.pid) if hasattr(os, "pidfd_open") else None
    try:
        if not alive(part):
            raise ProcessLookupError
        yield handle
    finally:
        if handle is not None:
            os.close(handle)


def send(part: ClusterProcess, number: int) -> bool:
    """A signal for this very process; False if it has ended."""
    try:
        with _held(part) as handle:
            if handle is not None:
                signal.pidfd_send_signal(handle, number)
            else:
                os.kill(part.pid, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        raise MachineError(
            f"{part.name} (pid {part.pid}) belongs to another user", hint="stop it as that user"
        ) from None
    return True


def join(host: str, port: int, name: str, arguments: Sequence[str]) -> None:
    """Where this process, run by hand, belongs to this home's cluster, have `down` and `restart` know of it.

    What `up` and `restart` start they note themselves; and a living part keeps its name.
    """
    me = os.getpid()

    def joins(record: ClusterRecord) -> bool:
        lives = any(one.pid == me or (one.name == name and alive(one)) for one in record.parts)
        return split(record.coordinator)[:2] == (host, port) and not lives

    register(ClusterProcess(name=name, pid=me, started=moment(me) or "", log="", arguments=list(arguments)), joins)


def stop(
    parts: Iterable[ClusterProcess], grace_s: float = GRACE_S, say: Callable[[str], None] | None = None
) -> list[str]:
    """End all of them, politely first; the names of those that had to be killed."""
    parts = list(parts)
    asked = [part for part in parts if send(part, signal.SIGTERM)]
    deadline = WALL.now() + grace_s
    killed = []
    for part in asked:
        if not wait_end(part, max(0.0, deadline - WALL.now())):
            if say is not None:
                say(f"{part.name} does not end within {grace_s:.0f} s: killed")
            killed.append(part.name)
    if killed or any(left_behind(part) for part in parts):
        _sweep(parts, killed)
    return killed


def wait_end(part: ClusterProcess, seconds: float) -> bool:
    """Wait until it has ended; False if it has not by then."""
    with suppress(ProcessLookupError), _held(part) as handle:
        if handle is not None:
            return bool(select.select([handle], [], [], seconds)[0])
        deadline = WALL.now() + seconds
        while alive(part) and WALL.now() < deadline:
            WALL.sleep(0.05)
        return not alive(part)
    return True


def last_lines(log: str | Path, most: int = LOG_SHOWN_LINES) -> list[str]:
    try:
        with Path(log).open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_READ_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-most:]


def _sweep(parts: Sequence[ClusterProcess], killed: Sequence[str]) -> None:
    deadline = WALL.now() + LEFT_BEHIND_GRACE_S
    _kill_all(part for part in parts if part.name in killed)
    rest = [part for part in parts if left_behind(part)]
    while rest and WALL.now() < deadline:  # a JVM ends by itself when its Python has; there is no handle for it
        WALL.sleep(0.05)
        rest = [part for part in rest if left_behind(part)]
    _kill_all(rest)


def _kill_all(parts: Iterable[ClusterProcess]) -> None:
    for pid in (pid for part in parts for pid in left_behind(part)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def _boot() -> str:
    try:
        return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    except OSError:
        return "-"
