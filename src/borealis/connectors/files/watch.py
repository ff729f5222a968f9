"""A directory watched for new files: each is read once, whole, when it is complete."""

from __future__ import annotations

import errno
import glob
import os
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from borealis.clock import WALL, Clock
from borealis.connectors.addresses import file_options
from borealis.connectors.dead_letters import DeadLetters, LetterTarget
from borealis.connectors.files.formats import EmptyFileError, ReadSpec
from borealis.connectors.files.ledger import FilesTaken, TakenFile
from borealis.connectors.files.source import read, reader_options
from borealis.connectors.files.suffixes import HIDDEN, check_format, format_of
from borealis.connectors.records import CsvOptions, Decoded
from borealis.connectors.source import cut
from borealis.diagram.durations import parse
from borealis.disk import one_line
from borealis.errors import InputError, did_you_mean
from borealis.kernels.time_of import TimeOf

Order = Literal["name", "time"]
POLL_S_LEAST = 0.001  # less would only keep a core busy
UNFINISHED = (".tmp", ".part")  # how they end while they are written
NOWHERE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG)
COMMITTED_OR_NOT = "its rows are not all committed"


class WatchSource:
    """Rows of a directory's files, in the order in which the files were taken.

    In a durable run no row is lost or repeated:

    1. A complete file is noted in the ledger, `<input>.files` in the state directory, and synced.
    2. Its rows are handed on. Records that cannot be read become dead letters first, synced; they have no position.
    3. A restart goes on in the midst of the file that holds the committed position, then with the files that were taken
       after it, in the same order, then with those that are new.
    4. A file that has changed or is gone before all of its rows are committed is an error. After that it may go.
    """

    finite_and_ordered = False

    def __init__(
        self,
        path: str | Path,
        pattern: str = "*",
        order: Order = "name",
        poll: str = "1 second",
        settle: str = "1 second",
        until: str | None = None,
        format: str | None = None,
        bad: LetterTarget | None = None,
        **options: Any,
    ) -> None:
        """The files of a directory as an input without an end: those that are there, then those that come.

        Files that are found together go by `name`, or by the `time` they were last changed. A Parquet file is taken
        when its footer can be read, any other when its size and time of change have been the same for `settle`. Names
        that begin with `.` or `_`, or end in `.tmp` or `.part`, are left alone. A name is taken once: change nothing
        that was taken. When a file named `until` appears, the input ends behind the files found with it. What cannot be
        read goes to `bad` (a file, a topic or a function); by default to a file in the state directory. `format` and
        options: see `replay`.

        >>> WatchSource(".", pattern="*.parquet", order="time").finite_and_ordered
        False
        """
        if order not in get_args(Order):
            has = ", ".join(get_args(Order))
            raise InputError(f"no order '{order}' (has: {has})", hint="files go by name or by time")
        check_format(format)
        self.directory = Path(path)
        if self.directory.exists() and not self.directory.is_dir():
            raise InputError(f"'{path}' is a file, not a directory", hint=f"read it with replay('{path}')")
        if not self.directory.is_dir():
            near = [one.name for one in self.directory.parent.iterdir()] if self.directory.parent.is_dir() else []
            hint = did_you_mean(self.directory.name, near) or f"mkdir -p {path}"
            raise InputError(f"no directory '{path}'", hint=hint)
        reader_options(format or "csv", options)  # only these files have any
        self.pattern, self._order, self._until, self._format, self._options = pattern, order, until, format, options
        self._poll_s, self._settle_s = max(parse(poll) / 1e6, POLL_S_LEAST), parse(settle) / 1e6
        self._origin = str(self.directory.absolute())  # the same from wherever the next start is made
        self.dead_letters = DeadLetters(bad, self._origin)
        self._bad = bad
        self._clock: Clock = WALL
        self._home: Path | None = None
        self._name = ""
        self.time: TimeOf | None = None
        self._stop = threading.Event()
        self._seen: dict[str, tuple[Stamp, float]] = {}  # files not taken yet: how each was last, and since when
        self._stuck: tuple[str, ...] = ()  # Parquet files that do not change any more, without a footer

    def begin(self, name: str, time: str | TimeOf, home: Path | None, key: Sequence[str] = ()) -> None:
        """Called by the run: the input, how a row gets its time, and the state directory. Rows say their key."""
        self._name, self.time, self._home = name, TimeOf.of(time), home
        self._stop = threading.Event()  # another run than the one that was stopped

    @property
    def note(self) -> str:
        """What is wrong just now and may pass; empty if nothing is."""
        return self.dead_letters.note

    def stop(self) -> None:
        """Read no more; wakes a reader that waits for a file."""
        self._stop.set()

    def warnings(self) -> list[str]:
        """Records that could not be read, and files that are never complete."""
        found = self.dead_letters.warnings(f"in {self.directory}")
        if stuck := self._stuck:
            more = f" and {len(stuck) - 1:,} more" if len(stuck) > 1 else ""
            found.append(f"{self.directory / stuck[0]}{more} is no whole Parquet file: waiting for the rest of it")
        return found

    def batches(self, schema: pa.Schema, skip: int, most_rows: int) -> Iterator[pa.RecordBatch]:
        """Rows from position `skip` on, of the files in the ledger, then of new ones as they come."""
        if self._home is not None and self._bad is None:
            self.dead_letters = DeadLetters(self._home / f"{self._name}.dead.jsonl", self._origin)
        ledger = FilesTaken(self.directory, None if self._home is None else self._home / f"{self._name}.files")
        try:
            ledger.check(skip)
            reading = _FileReader(self, ledger, schema, skip, most_rows)
            for one in ledger.behind(skip):
                yield from reading.read(one)
            while not self._stop.is_set():
                last = self._until is not None and (self.directory / self._until).exists()
                names = self._complete(ledger)
                for name, stamp in names:
                    if not self._is_still(name, stamp):
                        continue
                    yield from reading.read(ledger.take(name, *stamp, reading.position))
                    if self._stop.is_set():
                        return
                if last and not names and set(self._seen) <= set(self._stuck):  # no file may yet become complete
                    return
                if not names:
                    self._stop.wait(self._poll_s)
        finally:
            ledger.close()
            self.dead_letters.close()

    # -- which files

    def _takes(self, name: str) -> bool:
        if name.startswith(HIDDEN) or name.lower().endswith(UNFINISHED) or name == self._until:
            return False
        return fnmatchcase(name, self.pattern) and self.format_of(name) is not None

    def format_of(self, name: str) -> str | None:
        """How a file of this name is read."""
        return self._format or format_of(Path(name))

    def options_for(self, format_: str) -> CsvOptions | None:
        """The options that this format takes."""
        return reader_options(format_, self._options if format_ in (self._format, "csv") else {})

    def _complete(self, ledger: FilesTaken) -> list[tuple[str, Stamp]]:
        """The new files that can be taken, in their order."""
        now = self._clock.now()
        looked: dict[str, tuple[Stamp, float]] = {}
        complete, stuck = [], []
        for name, stamp in self._listed(ledger):
            before, since = self._seen.get(name, (None, now))
            looked[name] = stamp, since if before == stamp else now
            settled = before == stamp and now - since >= self._settle_s
            if self.format_of(name) == "parquet":
                if _has_footer(self.directory / name):
                    complete.append((name, stamp))
                elif settled:
                    stuck.append(name)
            elif settled or not self._settle_s:
                complete.append((name, stamp))
        self._seen, self._stuck = looked, tuple(sorted(stuck))
        return sorted(complete, key=lambda found: (found[1].mtime_ns if self._order == "time" else 0, found[0]))

    def _listed(self, ledger: FilesTaken) -> Iterator[tuple[str, Stamp]]:
        try:
            for name in os.listdir(self.directory):
                if self._takes(name) and name not in ledger.files and (stamp := _stamp(self.directory / name)):
                    yield name, stamp
        except OSError as error:
            raise InputError(
                f"cannot look into the directory {self.directory}: {one_line(error)}",
                hint="make it again, then start again",
            ) from error

    def _is_still(self, name: str, stamp: Stamp) -> bool:
        """Whether a file is as it was when we looked, which may be long ago if there were many."""
        with suppress(OSError):
            return _stamp(self.directory / name) == stamp
        return False


class _FileReader:
    """Reads files one after the other, and knows the position of the next row."""

    def __init__(self, source: WatchSource, ledger: FilesTaken, schema: pa.Schema, skip: int, most_rows: int) -> None:
        self._source, self._ledger, self._schema = source, ledger, schema
        self._skip, self._most_rows = skip, most_rows
        self.position = skip

    def read(self, one: TakenFile) -> Iterator[pa.RecordBatch]:
        """The rows of a file that was taken, from the committed position on."""
        self._check_unchanged(one)
        at = one.first
        try:
            for rows in self._good(one):
                known = min(max(self._skip - at, 0), rows.num_rows)
                at += rows.num_rows
                yield from cut(rows.slice(known), self._most_rows)
        finally:
            self.position = max(self._skip, at)
        self._check_unchanged(one)
        count = at - one.first
        if one.rows not in (None, count) or at < self._skip:
            known = f"{one.rows:,}" if one.rows is not None else f"at least {self._skip - one.first:,}"
            raise InputError(
                f"{self._path(one)} has {count:,} readable rows, but had {known} when it was taken",
                hint="give the same options and columns as before, or start afresh with another state directory",
            )
        self._ledger.done(one, count)

    def _good(self, one: TakenFile) -> Iterator[pa.RecordBatch]:
        """The rows that can be read; what cannot is kept as dead letters before the rows behind it are given out."""
        letters, at, records = self._source.dead_letters, one.first, 0
        for piece in self._pieces(one):
            if isinstance(piece, str):
                letters.add(one.name, b"", f"behind record {records:,}: {piece}" if records else piece)
                letters.sync()
                return
            for index, reason in piece.bad:
                if at + piece.rows_before(index) >= self._skip:
                    letters.add(f"{one.name}, record {records + index + 1}", piece.raw(index), reason)
            if piece.bad:
                letters.sync()
            at += piece.rows.num_rows
            records += piece.rows.num_rows + len(piece.bad)
            yield piece.rows

    def _pieces(self, one: TakenFile) -> Iterator[Decoded | str]:
        """What came of a file's records, and why there are no more if it cannot be read to its end."""
        format_ = self._source.format_of(one.name) or "parquet"
        how = ReadSpec(self._schema, time=self._source.time, options=self._source.options_for(format_))
        try:
            for piece in read(self._path(one), format_, how):
                if isinstance(piece, Decoded):
                    yield piece
        except EmptyFileError:
            return
        except InputError as error:
            self._check_unchanged(one)
            if isinstance(error.__cause__, OSError) and error.__cause__.errno is not None:
                raise  # the disk's fault, not the file's
            yield error.message

    def _check_unchanged(self, one: TakenFile) -> None:
        path = self._path(one)
        try:
            stamp = _stamp(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}", hint="check its permissions") from error
        if stamp is None:
            raise InputError(f"{path} is gone, but {COMMITTED_OR_NOT}", hint="put it back as it was, or start afresh")
        if stamp != (one.size, one.mtime_ns):
            raise InputError(
                f"{path} has changed since it was taken, but {COMMITTED_OR_NOT}",
                hint="put it back as it was, with its time of change, or start afresh; write new rows to new files",
            )

    def _path(self, one: TakenFile) -> Path:
        return self._source.directory / one.name


def _has_footer(path: Path) -> bool:
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return False
    return True


class Stamp(NamedTuple):
    """What shows that a file has changed."""

    size: int
    mtime_ns: int


def _stamp(path: Path) -> Stamp | None:
    """None if there is no such file: it went while we looked, or a link leads to nothing."""
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in NOWHERE:
            return None
        raise
    return Stamp(status.st_size, status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


watch = WatchSource  # its public name: borealis.watch


def watch_text(text: str) -> WatchSource:
    """What a command line says: a directory, perhaps with a pattern (`incoming/*.csv`) and options of its files."""
    name, options = file_options(text)
    path = Path(name)
    if glob.has_magic(path.name) and not path.is_dir():
        return WatchSource(path.parent, path.name, **options)
    return WatchSource(path, **options)
