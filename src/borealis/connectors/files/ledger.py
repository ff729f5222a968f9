"""Which files of a watched directory became which tuples: a ledger of the files that were taken, in their order.

The file is one of records (see state/records.py):

1. The first says which directory it is about.
2. Each further one is a file that was taken: its name, size, time of change, and the position of its first row. It is
   synced before any row of it is handed on, so the files of committed rows are always in the ledger.
3. When a file has been read to its end, a record says how many rows it had; it is on disk before the next is taken.
4. A torn last record is cut off at the next start: no row of that file was handed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from borealis.disk import START_OVER
from borealis.errors import InputError
from borealis.state.records import RecordFile

MARK = b"BFL2"


@dataclass
class TakenFile:
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
        self.files: dict[str, TakenFile] = {}  # by name, in their order
        self._file: RecordFile | None = None
        if path is None:
            return
        file = self._file = RecordFile(path, MARK, f"the ledger {path}")
        if not path.exists():
            file.create({"directory": self.directory})
            return
        for number, (head, _) in enumerate(file.read()):
            if number:
                self._note(path, head)
            elif head.get("directory") != self.directory:
                raise InputError(
                    f"{path} is about the directory {head.get('directory')}, not {self.directory}",
                    hint="watch the same directory as before, or give another state directory",
                )
        file.mend()
        file.resume()

    def behind(self, position: int) -> list[TakenFile]:
        """The files with rows from this position on, and the last one if it is not known how many it has."""
        return [one for one in self.files.values() if one.rows is None or one.first + one.rows > position]

    def check(self, position: int) -> None:
        """Refuse a position that it does not know."""
        known = self._position()
        if known is not None and known < position:
            raise InputError(
                f"{position:,} rows were committed, but {self.path} knows of {known:,} only", hint=START_OVER
            )

    def take(self, name: str, size: int, mtime_ns: int, first: int) -> TakenFile:
        """Note a file; when this returns, it will be known at the next start."""
        if self._file is not None:
            self._file.append({"name": name, "size": size, "mtime_ns": mtime_ns, "first": first})
        one = self.files[name] = TakenFile(name, size, mtime_ns, first)
        return one

    def done(self, one: TakenFile, rows: int) -> None:
        if one.rows is None:
            if self._file is not None:
                self._file.append({"rows": rows}, sync=False)
            one.rows = rows

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _note(self, path: Path, head: dict[str, Any]) -> None:
        if "rows" in head:
            last = self._last()
            if last.rows is not None:
                raise InputError(f"{path} is damaged", hint=START_OVER)
            last.rows = head["rows"]
            return
        one = TakenFile(**head)
        if self._position() != one.first:
            raise InputError(f"{path} is damaged: {one.name} begins at row {one.first:,}", hint=START_OVER)
        self.files[one.name] = one

    def _last(self) -> TakenFile:
        return next(reversed(self.files.values()), TakenFile("", 0, 0, 0, 0))

    def _position(self) -> int | None:
        """Behind the last row, if the last file was read to its end."""
        last = self._last()
        return None if last.rows is None else last.first + last.rows
