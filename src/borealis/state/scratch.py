"""Directories in memory, for what need not outlive the process."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

SCRATCH = "borealis-"
SCRATCH_LEAST = 256 << 20  # bytes that must be free in memory


def scratch(name: str) -> Path:
    """A new directory in memory where there is such a thing, for what need not outlive this process.

    What processes that were killed left behind is swept away first: it is memory.
    """
    shm = Path("/dev/shm")
    roomy = shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > SCRATCH_LEAST
    root = shm if roomy else Path(tempfile.gettempdir())
    for left in root.glob(f"{SCRATCH}*"):
        owner = left.name.removeprefix(SCRATCH).split("-")[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-{name}-", dir=root))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
