"""What a disk refuses, told in one sentence."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from borealis.errors import StateError


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks."""
    return (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())


@contextlib.contextmanager
def disk(what: str, verb: str, again: str) -> Iterator[None]:
    """Raises a StateError for an OSError: cannot `verb` `what`; `again` is what to do once there is room."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        hint = f"make room on the disk, then {again}" if full else "check the directory and its permissions"
        raise StateError(f"cannot {verb} {what}: {one_line(error)}", hint=hint) from error
