"""Which files of a watched directory became which tuples: a ledger of the files that were taken, in their order.

The file:

1. It begins with its version, then come lines of a checksum and JSON. The first says which directory it is about.
2. Each further line is a file that was taken: its name, size, time of change, and the position of its first row. It is
   synced before any row of it is handed on, so the files of committed rows are always in the ledger.
3. When a file has been read to its end, a line says how many rows it had; it is on disk before the next file is taken.
4. A torn last line is cut off at the next start: nobody has seen a row of that file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from borealis.errors import InputError
from borealis.state.commits import write_whole
from borealis.state.disk import disk
from borealis.state.lines import ANEW, line, lines_of

VERSION = b"BOREALIS-FILES-1\n"


@dataclass
class Taken:
    """A file that was taken, as it was then; `rows` is known when it has been read to its end."""

    name: str
    size: int
    mtime_ns: int
    first: int
    rows: int | None = None


class FilesTaken:
    """One input's ledger; without a path it is kept in memory only. One thread uses it."""

    def __init__(self, directory: Path, path: Path | None) -> None:
        self.directory, self.path = str(directory.absolute()), path
        self.files: list[Taken] = []
        self._names: set[str] = set()
        self._file: BinaryIO | None = None
        if path is None:
            return
        with self._disk("read"):
            if path.exists():
                self._read(path)
            else:
                write_whole(path, VERSION + line({"directory": self.directory}))
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until close

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def behind(self, position: int) -> Iterator[Taken]:
        """The files with rows from this position on, and the last one if nobody knows how many it has."""
        return iter([one for one in self.files if one.rows is None or one.first + one.rows > position])

    def check(self, position: int) -> None:
        """Refuse a position that it does not know."""
        last = self.files[-1] if self.files else Taken("", 0, 0, 0, 0)
        if last.rows is not None and last.first + last.rows < position:
            known = last.first + last.rows
            raise InputError(f"{position:,} rows were committed, but {self.path} knows of {known:,} only", hint=ANEW)

    def take(self, name: str, size: int, mtime_ns: int, first: int) -> Taken:
        """Note a file; when this returns, it will be known at the next start."""
        one = Taken(name, size, mtime_ns, first)
        self._add({"file": name, "size": size, "mtime_ns": mtime_ns, "first": first}, sync=True)
        self.files.append(one)
        self._names.add(name)
        return one

    def done(self, one: Taken, rows: int) -> None:
        """Note that the file has so many rows."""
        if one.rows is None:
            self._add({"rows": rows}, sync=False)
            one.rows = rows

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _add(self, said: dict[str, Any], sync: bool) -> None:
        if self._file is None:
            return
        with self._disk("write"):
            view = memoryview(line(said))
            while len(view):
                view = view[self._file.write(view) or 0 :]
            if sync:
                os.fdatasync(self._file.fileno())

    def _read(self, path: Path) -> None:
        for number, said in enumerate(lines_of(path, VERSION)):
            if not number:
                self._check_directory(said)
            else:
                self._note(path, said)

    def _check_directory(self, said: dict[str, Any]) -> None:
        if said.get("directory") != self.directory:
            raise InputError(
                f"{self.path} is about the directory {said.get('directory')}, not {self.directory}",
                hint="watch the same directory as before, or give another state directory",
            )

    def _note(self, path: Path, said: dict[str, Any]) -> None:
        if "rows" in said:
            if not self.files or self.files[-1].rows is not None:
                raise InputError(f"{path} is damaged", hint=ANEW)
            self.files[-1].rows = said["rows"]
            return
        one = Taken(said["file"], said["size"], said["mtime_ns"], said["first"])
        last = self.files[-1] if self.files else Taken("", 0, 0, 0, 0)
        if last.rows is None or last.first + last.rows != one.first:
            raise InputError(f"{path} is damaged: {one.name} begins at row {one.first:,}", hint=ANEW)
        self.files.append(one)
        self._names.add(one.name)

    def _disk(self, verb: str) -> AbstractContextManager[None]:
        return disk(f"the ledger {self.path}", verb, "start again")
