"""Bytes on a disk: written whole, made to survive a power cut; one sentence for what the disk refuses.

`Disk` is all that durable logs and catalogs ask of one: a machine's own, or one that is simulated.
And directories in memory, and bytes without a name on the disk, for what need not outlive the process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from borealis.errors import FullError, StateError

if TYPE_CHECKING:
    import pyarrow as pa

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SCRATCH = "borealis-"
SCRATCH_LEAST = 256 << 20  # bytes that must be free in memory
ON_DISK = Path("/var/tmp")  # while /tmp may be in memory
START_OVER = "restore the state directory from a copy, or delete it to start over"


class Unbuffered(Protocol):
    def write(self, data: Any, /) -> int:
        """Some of the bytes; says how many."""


class Appended(Unbuffered, Protocol):
    """A file that grows at its end."""

    def sync(self) -> None:
        """Wait until all of it would survive a power cut."""

    def truncate(self, length: int) -> object:
        """Leave so many bytes, for now; what is written next goes behind them."""

    def close(self) -> None: ...


class HeldFile(Protocol):
    """A lock on a file, until it is closed or the process dies. What is in the file says by whom."""

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """Files that outlive a process. Everything raises OSError; what is not synced may be gone after a power cut."""

    def append_to(self, path: Path) -> Appended:
        """Open for appending; a new file if there is none."""

    def read(self, path: Path) -> bytes: ...

    def write_whole(self, path: Path, data: Any) -> None:
        """All of it or nothing, also after a power cut."""

    def cut(self, path: Path, length: int) -> None:
        """Leave so many bytes of a file, for good."""

    def names(self, path: Path) -> list[str]:
        """What is in a directory, in the order of the names; nothing where there is none."""

    def exists(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int: ...

    def make_directory(self, path: Path) -> None:
        """With all above it; for good."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in it survive a power cut."""

    def remove(self, path: Path) -> None:
        """A file, if it is there."""

    def remove_all(self, path: Path) -> None:
        """A directory and all in it, as far as that is possible."""

    def hold(self, path: Path) -> HeldFile | None:
        """Lock a file that no other process has; BlockingIOError where one does. None: nothing can be locked here."""

    def has_room(self, path: Path, count: int) -> bool:
        """Whether the disk under a directory, which need not be there, takes so many bytes."""

    def free_bytes(self, path: Path) -> int:
        """What a user may still write to the disk under a directory, which need not be there."""

    def database(self, path: Path) -> sqlite3.Connection:
        """SQLite in a file, without transactions of its own."""

    def scratch(self, name: str) -> Path:
        """A new directory in memory, for what need not outlive the process; it is one of the system's always."""

    def spill(self, data: Any) -> pa.Buffer:
        """The same bytes, on the disk for as long as they are referred to: in memory only while they are read."""


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


def write_all(file: Unbuffered, data: Any) -> int:
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


def spill(data: Any) -> pa.Buffer:
    """Bytes that are moved out of memory: to a file without a name, which is gone with the last reference to it."""
    import pyarrow as pa  # maps files without keeping them open, and is not needed by who only locks one

    room = None if os.environ.get("TMPDIR") or not os.access(ON_DISK, os.W_OK) else ON_DISK
    with tempfile.NamedTemporaryFile(prefix=SCRATCH, dir=room, buffering=0) as file:
        write_all(file, data)
        with pa.memory_map(file.name) as mapped:
            return mapped.read_buffer()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class _AppendedFile:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - until close

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def sync(self) -> None:
        os.fdatasync(self._file.fileno())

    def truncate(self, length: int) -> object:
        return self._file.truncate(length)

    def close(self) -> None:
        self._file.close()


class _HeldFile:
    def __init__(self, path: Path) -> None:
        self._file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 - until close
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise

    def note(self, text: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(text)
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class LocalDisk:
    """The machine's own."""

    def append_to(self, path: Path) -> Appended:
        return _AppendedFile(path)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def write_whole(self, path: Path, data: Any) -> None:
        write_whole(path, data)

    def cut(self, path: Path, length: int) -> None:
        with open(path, "r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def names(self, path: Path) -> list[str]:
        return sorted(os.listdir(path)) if path.is_dir() else []

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def make_directory(self, path: Path) -> None:
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
            sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        sync_directory(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_all(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def hold(self, path: Path) -> HeldFile:
        return _HeldFile(path)

    def has_room(self, path: Path, count: int) -> bool:
        return has_room(path, count)

    def free_bytes(self, path: Path) -> int:
        return free_bytes(path)

    def database(self, path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def scratch(self, name: str) -> Path:
        return scratch(name)

    def spill(self, data: Any) -> pa.Buffer:
        return spill(data)
