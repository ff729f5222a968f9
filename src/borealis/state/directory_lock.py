"""A directory on disk that belongs to one thing, and to one process at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from borealis.disk import one_line
from borealis.errors import StateError
from borealis.machine import HERE, Machine


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

    def __init__(self, root: Path, kind: DirectoryKind, belongs: Mapping[str, Any], machine: Machine = HERE) -> None:
        self.root, self.kind = root, kind
        disk = self._disk = machine.disk
        disk.make_directory(root)
        try:
            self._held = disk.hold(root / "lock")
        except BlockingIOError as error:
            held = f"{kind.noun} directory {root} is in use by another {kind.other}"
            raise StateError(held, hint="wait for it, or stop it") from error
        try:
            if not self._is_mine(belongs):
                disk.write_whole(root / kind.file, json.dumps(belongs).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._held is not None:
            self._held.close()

    def _is_mine(self, belongs: Mapping[str, Any]) -> bool:
        """Whether the directory is known to belong to this; False if it is new. Raises if it is something else's."""
        noun, path = self.kind.noun, self.root / self.kind.file
        if not self._disk.exists(path):
            if any(fnmatchcase(name, self.kind.used) for name in self._disk.names(self.root)):
                lost = f"nothing says what the {noun} in {self.root} belongs to: {path.name} is gone"
                raise StateError(lost, hint=self.kind.start_over)
            return False
        mine = json.loads(json.dumps(belongs))
        try:
            theirs = json.loads(self._disk.read(path))
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
