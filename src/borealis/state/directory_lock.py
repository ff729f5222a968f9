"""A directory on disk that belongs to one thing, and to one process at a time."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from borealis.disk import one_line, sync_directory, write_whole
from borealis.errors import StateError


@dataclass(frozen=True)
class DirectoryKind:
    """What lies in a directory: a noun for errors, the file that says whose it is, who else might hold it, and a
    pattern of the files that are there once it is in use.
    """

    noun: str
    file: str
    other: str
    used: str

    @property
    def start_over(self) -> str:
        """What to do where the directory is of no use."""
        return f"delete the {self.noun} directory to start over, or restore it from a copy"


class OtherOwnerError(StateError):
    """A directory belongs to something else; `what` of it is another."""

    def __init__(self, message: str, hint: str, what: str) -> None:
        super().__init__(message, hint=hint)
        self.what = what


class DirectoryLock:
    """Holds the directory until `close`. A second process is refused, and so is anything it does not belong to.

    A new one is made, and says what it belongs to before anything else lies in it.
    """

    def __init__(self, root: Path, kind: DirectoryKind, belongs: Mapping[str, Any]) -> None:
        self.root, self.kind = root, kind
        if not root.exists():
            root.mkdir(parents=True, exist_ok=True)
            sync_directory(root.parent)
        self._lock = open(root / "lock", "w")  # noqa: SIM115 - held until close
        try:
            self._hold()
            if not self._is_mine(belongs):
                write_whole(root / kind.file, json.dumps(belongs).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lock.close()

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            held = f"{self.kind.noun} directory {self.root} is in use by another {self.kind.other}"
            raise StateError(held, hint="wait for it, or stop it") from error

    def _is_mine(self, belongs: Mapping[str, Any]) -> bool:
        """Whether the directory is known to belong to this; False if it is new. Raises if it is something else's."""
        noun, path = self.kind.noun, self.root / self.kind.file
        if not path.exists():
            if any(self.root.glob(self.kind.used)):
                lost = f"nothing says what the {noun} in {self.root} belongs to: {path.name} is gone"
                raise StateError(lost, hint=self.kind.start_over)
            return False
        mine = json.loads(json.dumps(belongs))
        try:
            theirs = json.loads(path.read_bytes())
        except (ValueError, OSError) as error:
            raise StateError(f"{path} cannot be read: {one_line(error)}", hint=self.kind.start_over) from error
        if not isinstance(theirs, dict):
            raise StateError(f"{path} is damaged", hint=self.kind.start_over)
        for what in {**mine, **theirs}:
            if theirs.get(what) != mine.get(what):
                raise OtherOwnerError(
                    f"the {noun} in {self.root} is of another {what}: {theirs.get(what)}, not {mine.get(what)}",
                    hint=f"give another {noun} directory, or delete this one to start over",
                    what=what,
                )
        return True
