"""A directory as a sink: whole Parquet files that appear one after the other, in the order of their rows."""

from __future__ import annotations

import os
import re
import threading
from contextlib import closing
from pathlib import Path

import pyarrow as pa

from borealis.clock import WALL, Clock
from borealis.connectors.files.sink import Journal, WholeFile, as_schema, writing
from borealis.connectors.files.suffixes import HIDDEN, format_of
from borealis.errors import OutputError

ROWS_MOST = 1_000_000  # committed rows that wait for their file, before it is written
BYTES_MOST = 128 * 2**20  # or so many bytes, where rows are large
SECONDS_MOST = 60.0  # or so long after the first of them was committed
PART = re.compile(r"part-(\d{20})-(\d{12})\.parquet")


def is_directory(place: str | Path) -> bool:
    """Whether an output goes to a directory: the text ends in a slash, or there is one (not one named as text)."""
    return str(place).endswith(os.sep) or (Path(place).is_dir() and format_of(Path(place)) in (None, "parquet"))


class DirectorySink:
    """Parquet files `part-<first row>-<rows>.parquet`; a reader that lists them sees only committed rows, in order.

    1. Rows are appended to a segment of the journal, which `flush` syncs. The position is the number of rows.
    2. When enough of them are committed, or the oldest has waited long enough, they are written to a hidden file,
       synced, and renamed; the directory is synced. So a file is never seen before its rows are committed.
    3. A new segment, which says in its name where it begins, takes the place of the old one.
    4. A restart finds what has been shown by the last file and the newest segment, whichever says more; the rows
       behind that up to the committed position are in the segment, and what comes after them is cut off.

    A reader may take files away. Without a journal a crash loses the rows not yet in a file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        rows: int = ROWS_MOST,
        bytes: int = BYTES_MOST,
        seconds: float = SECONDS_MOST,
        clock: Clock = WALL,
    ) -> None:
        """An output as Parquet files in a directory, each whole from the moment it can be seen.

        A file is written when so many rows or bytes are committed, `seconds` after the first of them, and at the end.
        The directory must be empty when a run begins afresh.

        >>> DirectorySink("out/", rows=100_000, seconds=5).durable  # until a run with a state directory takes it
        False
        """
        for name, value in (("rows", rows), ("bytes", bytes)):
            if value < 1:
                raise OutputError(f"{name}={value} leaves no room for a row", hint=f"give {name} of 1 or more")
        if seconds < 0:
            raise OutputError(f"seconds={seconds:g} lies in the past", hint="give 0 or more")
        self.target = Path(path)
        self.rows_most, self.bytes_most, self.seconds_most = rows, bytes, seconds
        self.journal: Path | None = None
        self.durable = False  # until there is a journal
        self._clock = clock
        self._changed = threading.Condition()
        self._schema: pa.Schema = pa.schema([])
        self._segment: Journal | None = None
        self._rows = self._sure = self._shown = 0  # written, committed, in files
        self._waiting: list[pa.Table] = []  # the rows from _shown on
        self._since = 0.0  # when the first of them was committed
        self._failure: OutputError | None = None
        self._watcher: threading.Thread | None = None  # while the sink is open

    @property
    def note(self) -> str:
        """What keeps rows from being shown just now; the next train will fail of it."""
        return "" if self._failure is None else self._failure.message

    def keep(self, journal: Path | None) -> DirectorySink:
        """Keep what is not in a file yet beside this path."""
        self.journal, self.durable = journal, journal is not None
        return self

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Begin in an empty directory, or go on after the committed rows."""
        self._stop_watching()
        self._let_go_of_segment()
        self._schema = schema
        self._waiting, self._failure = [], None
        self._make_directory()
        if resume is None:
            self._refuse_foreign()
            self._rows = self._sure = self._shown = 0
            self._begin_segment()
        else:
            self._recover(resume)
        self._since = self._clock.now()
        self._watcher = threading.Thread(target=self._watch, name="borealis-directory", daemon=True)
        self._watcher.start()

    def write(self, rows: pa.Table) -> None:
        """Take rows; no reader sees them before they are committed."""
        with self._changed:
            self._check()
            table = as_schema(rows, self._schema)
            if self._segment is not None:
                self._segment.add(table)
            if table.num_rows:
                self._waiting.append(table)
                self._rows += table.num_rows

    def flush(self, sync: bool) -> int:
        """The number of rows, all of them in the journal if there is one."""
        with self._changed:
            self._check()
            if sync and self._segment is not None:
                self._segment.sync()
            return self._rows

    def committed(self, position: int) -> None:
        """So many rows may be shown; they are, if they are enough or have waited long enough."""
        with self._changed:
            if self._sure == self._shown:
                self._since = self._clock.now()
            self._sure = position
            if self._is_due():
                self._show(position)
            self._changed.notify_all()

    def close(self, complete: bool) -> None:
        """Show all rows (after an error those that are committed); a complete output has at least one file."""
        if self._watcher is None:
            return
        self._stop_watching()
        try:
            self._show(self._rows if complete else self._sure)
            if complete and not self._rows and not self._parts():
                self._write_part(0, self._schema.empty_table())  # tells readers the columns
        finally:
            self._let_go_of_segment()

    # -- files

    def _is_due(self) -> bool:
        """Whether there are committed rows to be shown; not in the midst of a train, whose rows stand behind them."""
        if self._sure == self._shown or self._sure != self._rows:
            return False
        enough = self._sure - self._shown >= self.rows_most or sum(t.nbytes for t in self._waiting) >= self.bytes_most
        return enough or self._clock.now() - self._since >= self.seconds_most

    def _show(self, upto: int) -> None:
        """Write the rows up to a position to files, and begin a new segment behind them."""
        if upto == self._shown:
            return
        while self._shown < upto:
            table = pa.concat_tables(self._waiting)
            part = table.slice(0, min(self.rows_most, upto - self._shown))
            self._write_part(self._shown, part)
            self._shown += part.num_rows
            self._waiting = [table.slice(part.num_rows)]
        if upto == self._rows:
            self._begin_segment()

    def _write_part(self, first: int, rows: pa.Table) -> None:
        name = f"part-{first:020d}-{rows.num_rows:012d}.parquet"
        file = WholeFile(self.target / name, "parquet", self._schema)
        file.write(rows)
        file.publish()

    def _make_directory(self) -> None:
        if self.target.exists() and not self.target.is_dir():
            raise OutputError(f"'{self.target}' is a file, not a directory", hint="name another directory")
        with writing(self.target):
            self.target.mkdir(exist_ok=True)
            for name in os.listdir(self.target):
                if name.startswith(".") and PART.fullmatch(name.removeprefix(".").removesuffix(".part")):
                    (self.target / name).unlink(missing_ok=True)

    def _parts(self) -> list[re.Match[str]]:
        """The names of the files that readers see."""
        with writing(self.target):
            return [match for name in os.listdir(self.target) if (match := PART.fullmatch(name))]

    def _refuse_foreign(self) -> None:
        with writing(self.target):
            seen = sorted(name for name in os.listdir(self.target) if not name.startswith(HIDDEN))
        if seen:
            raise OutputError(
                f"the directory {self.target} is not empty: it holds {seen[0]}"
                + (f" and {len(seen) - 1:,} more" if len(seen) > 1 else ""),
                hint="empty it or name another one; to go on where a run was, give its state directory",
            )

    # -- the journal

    def _segments(self) -> list[tuple[int, Path]]:
        """The journal's segments and their first rows, in order."""
        if self.journal is None:
            return []
        name = re.compile(re.escape(self.journal.name) + r"-(\d{20})")
        with writing(self.journal):
            found = [(name.fullmatch(path.name), path) for path in self.journal.parent.iterdir()]
        return sorted((int(match[1]), path) for match, path in found if match)

    def _begin_segment(self) -> None:
        """A new segment for the next row; once it will survive, older ones are needed no more."""
        self._let_go_of_segment()
        if self.journal is None:
            return
        path = self.journal.with_name(f"{self.journal.name}-{self._rows:020d}")
        self._segment = Journal(path, self.target, self._schema)
        self._segment.open(None)
        self._segment.sync()
        for _, older in self._segments():
            if older != path:
                with writing(older):
                    older.unlink(missing_ok=True)

    def _recover(self, resume: int) -> None:
        segments = self._segments()
        ends = [int(match[1]) + int(match[2]) for match in self._parts()]
        shown = max([0, *ends, *(first for first, _ in segments)])
        if shown > resume:
            raise OutputError(
                f"{self.target} holds rows up to {shown:,}, but only {resume:,} were committed",
                hint="it is not of this run, or the state directory is an old copy: start afresh with another one",
            )
        self._rows = self._sure = resume
        self._shown = shown
        if resume == shown:
            self._begin_segment()
        elif segments:
            self._read_back(*segments[-1], shown, resume)
        else:
            raise self._gone(shown, resume)

    def _read_back(self, first: int, path: Path, shown: int, resume: int) -> None:
        """Have the rows from `shown` to `resume` wait again, and the segment go on behind them."""
        segment, at, length = Journal(path, self.target, self._schema), first, 0
        try:
            with closing(segment.tables()) as tables:
                while at < resume:
                    rows, length = next(tables)
                    if at + rows.num_rows > shown:
                        self._waiting.append(rows.slice(max(0, shown - at)))
                    at += rows.num_rows
        except (StopIteration, OSError, pa.ArrowException) as error:
            raise self._gone(max(at, shown), resume) from error
        if at != resume:
            raise self._gone(at, resume)
        segment.open(length)
        self._segment = segment

    def _gone(self, start: int, stop: int) -> OutputError:
        return OutputError(
            f"the rows {start:,} to {stop:,} of {self.target} are not in the journal {self.journal}: it was changed",
            hint="restore the state directory, or delete it and empty the output to start afresh",
        )

    def _let_go_of_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    # -- age

    def _watch(self) -> None:
        """Show rows that have waited long enough although no more come."""
        with self._changed:
            while self._watcher is not None:
                if self._is_due():
                    try:
                        self._show(self._sure)
                    except OutputError as error:
                        self._failure = error
                        return
                left = self._since + self.seconds_most - self._clock.now()
                waits = self._sure == self._rows > self._shown
                self._changed.wait(max(0.0, left) if waits else None)

    def _stop_watching(self) -> None:
        with self._changed:
            watcher, self._watcher = self._watcher, None
            self._changed.notify_all()
        if watcher is not None:
            watcher.join()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._watcher is None:
            raise OutputError(f"{self.target} is not open", hint="open the sink before writing to it")


directory = DirectorySink  # its public name: borealis.directory
