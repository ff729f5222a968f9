"""Files that a process writes from a stream that it follows, exactly once across its restarts.

1. `open` takes a state directory, `.<name>.state` beside the files, and reads how far they are: None the first time.
2. `begin` writes down where it begins, the first time, and opens the files.
3. `publish` writes rows and syncs them. Then it writes down the position behind them, with the length of the files.
4. A restart cuts the files back to that length: what is behind it comes again.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa

from borealis.connectors.files.directory import DirectorySink, is_directory
from borealis.connectors.files.sink import JournalSink, TextSink, WholeFileSink, file_sink
from borealis.connectors.placed import Position
from borealis.connectors.sink import FollowingSink
from borealis.disk import START_OVER, disk, write_whole
from borealis.errors import OutputError
from borealis.state.directory_lock import DirectoryKind, DirectoryLock

POSITION = "position.json"
STATE = DirectoryKind("state", "reads.json", "writer of the same files", POSITION)
VERSION = 1


class PlacedFile:
    """A file, or a directory of Parquet files, with the position of the last row beside it."""

    def __init__(self, place: str) -> None:
        self.target = Path(place)
        self.state = self.target.with_name(f".{self.target.name}.state")
        journal = self.state / "journal"
        self._sink: DirectorySink | TextSink | JournalSink | WholeFileSink
        self._sink = DirectorySink(place).keep(journal) if is_directory(place) else file_sink(place, journal)
        self.reader = f"file.{re.sub(r'[^A-Za-z0-9_.-]', '_', self.target.name)}"
        self.anew = f"move {self.target} away and delete {self.state} to write the new stream from its beginning"
        self._lock: DirectoryLock | None = None
        self._length: int | None = None  # of the files, as the sink counts; None: they are not begun for sure
        self._known: Position | None = None
        self._columns: list[str] = []

    def open(self, stream: str, reader: str) -> Position | None:
        """How far the files are. Another process that writes them is refused."""
        parent = self.target.absolute().parent
        if not parent.is_dir():
            raise OutputError(
                f"cannot write {self.target}: no directory '{parent}'", hint=f"make it: mkdir -p {parent}"
            )
        begun = (self.state / POSITION).exists()
        if not begun and self.target.is_file() and self.target.stat().st_size:
            raise OutputError(f"{self.target} is there already", hint="move it away, or name another file")
        self._lock = DirectoryLock(self.state, STATE, {"stream": stream, "reader": reader})
        self._read()
        return self._known

    def begin(self, schema: pa.Schema, position: Position) -> None:
        """Open the files, of these columns, at the length that is known."""
        if self._known is None:
            self._columns = schema.names
            self._write(position, None)
        elif schema.names != self._columns:
            raise OutputError(
                f"{self.target} has the columns {', '.join(self._columns)}, not {', '.join(schema.names)}",
                hint="give the same options as before, or another file",
            )
        self._sink.open(schema, self._length)

    def publish(self, rows: pa.Table, position: Position) -> None:
        """Write rows, and then the position."""
        self._sink.write(rows)
        length = self._sink.flush(sync=True)
        self._write(position, length)
        if isinstance(self._sink, FollowingSink):
            self._sink.committed(length)

    def close(self, complete: bool) -> None:
        """Leave the files with all that was published; after this another process may go on."""
        try:
            self._sink.close(complete)
        finally:
            if self._lock is not None:
                self._lock.close()

    def _read(self) -> None:
        path = self.state / POSITION
        if not path.exists():
            return
        with disk(f"{path}", "read", "start again"):
            text = path.read_bytes()
        try:
            found = json.loads(text)
            if found["v"] != VERSION:
                raise ValueError
            self._known = Position(found["upto"], found["epoch"])
            self._length, self._columns = found["length"], found["columns"]
        except (ValueError, TypeError, KeyError):
            raise OutputError(f"{path} is damaged, or of another version", hint=START_OVER) from None

    def _write(self, position: Position, length: int | None) -> None:
        made = {
            "v": VERSION, "upto": position.upto, "epoch": position.note, "length": length, "columns": self._columns,
        }  # fmt: skip
        with disk(f"the position of {self.target}", "write", "start again"):
            write_whole(self.state / POSITION, json.dumps(made).encode())
