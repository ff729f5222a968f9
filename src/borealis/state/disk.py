"""What a disk refuses, told in one sentence."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from borealis.errors import FullError, StateError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks."""
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


@contextlib.contextmanager
def disk(what: str, verb: str, again: str) -> Iterator[None]:
    """Raises a StateError for an OSError: cannot `verb` `what`; `again` is what to do once there is room.

    It is a FullError where room is all that is missing.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in FULL
        hint = f"make room on the disk, then {again}" if full else "check the directory and its permissions"
        kind = FullError if full else StateError
        raise kind(f"cannot {verb} {what}: {one_line(error)}", hint=hint) from error


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
