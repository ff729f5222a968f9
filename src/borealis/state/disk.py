"""Bytes on a disk: written whole, made to survive a power cut; one sentence for what the disk refuses.

And directories in memory, for what need not outlive the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from borealis.errors import FullError, StateError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SCRATCH = "borealis-"
SCRATCH_LEAST = 256 << 20  # bytes that must be free in memory
START_OVER = "restore the state directory from a copy, or delete it to start over"


def one_line(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


@contextlib.contextmanager
def disk(what: str, verb: str, again: str) -> Iterator[None]:
    """Raises a StateError for an OSError: see `refused`."""
    try:
        yield
    except OSError as error:
        raise refused(error, what, verb, again) from error


def refused(error: OSError, what: str, verb: str, again: str) -> StateError:
    """The disk cannot `verb` `what`; `again` is what to do once there is room. A FullError where it lacks only that."""
    full = error.errno in FULL
    hint = f"make room on the disk, then {again}" if full else "check the directory and its permissions"
    kind = FullError if full else StateError
    return kind(f"cannot {verb} {what}: {one_line(error)}", hint=hint)


def write_all(file: IO[bytes], data: Any) -> int:
    """All bytes to a file without a buffer, which may take them piece by piece; says how many."""
    left = memoryview(data).cast("B")
    size = len(left)
    while len(left):
        left = left[file.write(left) :]
    return size


def write_whole(path: Path, data: Any, durable: bool = True) -> None:
    """All of it or nothing; if `durable`, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(root: Path) -> None:
    """The directory for a state, or a clear word why there cannot be one."""
    with disk(f"state in {root}", "write", "start again"):
        root.mkdir(parents=True, exist_ok=True)


def has_room(root: Path, count: int) -> bool:
    """Whether the disk under a directory, which need not be there, has room for so many bytes; they are asked for."""
    if not hasattr(os, "posix_fallocate"):
        return free_bytes(root) >= count
    try:
        with tempfile.TemporaryFile(dir=_existing(root)) as file:
            os.posix_fallocate(file.fileno(), 0, count)
    except OSError as error:
        return error.errno not in FULL
    return True


def free_bytes(root: Path) -> int:
    """What a user may still write to the disk under a directory, which need not be there; quotas are not known."""
    return shutil.disk_usage(_existing(root)).free


def _existing(root: Path) -> Path:
    while not root.exists():
        root = root.parent
    return root


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
        pass
    return True
