"""A directory on disk that belongs to one thing, and to one process at a time."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from borealis.errors import StateError
from borealis.state.disk import one_line

ANEW = "delete the {noun} directory to start anew, or restore it from a copy"


@dataclass(frozen=True)
class Kind:
    """What lies in a directory: a noun for errors, the file that says whose it is, and who else might hold it."""

    noun: str
    file: str
    other: str


class OtherOwnerError(StateError):
    """A directory belongs to something else; `what` of it is another."""

    def __init__(self, message: str, hint: str, what: str) -> None:
        super().__init__(message, hint=hint)
        self.what = what


class Claim:
    """Holds the directory until `close`. A second process is refused, and so is anything it does not belong to.

    Whoever finds that it is new writes `path`, whole, before anything else.
    """

    def __init__(self, root: Path, kind: Kind) -> None:
        self.root, self.kind = root, kind
        self._lock = open(root / "lock", "w")  # noqa: SIM115 - held until close
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise StateError(
                f"{kind.noun} directory {root} is in use by another {kind.other}", hint="wait for it, or stop it"
            ) from error

    @property
    def path(self) -> Path:
        """The file that says what the directory belongs to."""
        return self.root / self.kind.file

    def is_mine(self, belongs: Mapping[str, Any], is_used: bool) -> bool:
        """Whether the directory is known to belong to this; False if it is new. Raises if it is something else's.

        `is_used`: something lies there, so that it cannot be new.
        """
        noun, anew = self.kind.noun, ANEW.format(noun=self.kind.noun)
        if not self.path.exists():
            if is_used:
                missing = f"{self.path.name} is gone"
                raise StateError(f"nothing says what the {noun} in {self.root} belongs to: {missing}", hint=anew)
            return False
        mine = json.loads(json.dumps(belongs))
        try:
            theirs = json.loads(self.path.read_bytes())
        except (ValueError, OSError) as error:
            raise StateError(f"{self.path} cannot be read: {one_line(error)}", hint=anew) from error
        if not isinstance(theirs, dict):
            raise StateError(f"{self.path} is damaged", hint=anew)
        for what in {**mine, **theirs}:
            if theirs.get(what) != mine.get(what):
                raise OtherOwnerError(
                    f"the {noun} in {self.root} is of another {what}: {theirs.get(what)}, not {mine.get(what)}",
                    hint=f"give another {noun} directory, or delete this one to start anew",
                    what=what,
                )
        return True

    def close(self) -> None:
        """Let go of it."""
        self._lock.close()
