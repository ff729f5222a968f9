"""Programs that tests start: files beside them that are modules, too, and their sudden end."""

from __future__ import annotations

import importlib.util
import os
import signal
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import psutil


def load(path: Path) -> ModuleType:
    """The program as a module, under the name of its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kill_session(leader: int) -> None:
    """`kill -9` for a program that was started in a session of its own, with its JVM and its workers."""
    others = [pid for pid in psutil.pids() if pid != os.getpid() and _session(pid) == leader]
    for pid in (*others, leader):  # itself last: it may be the one who does this
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _session(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return None
