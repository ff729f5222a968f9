"""Files as sinks: text that grows in place, and Parquet or Arrow files that appear when they are whole."""

from __future__ import annotations

import errno
import gzip
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from borealis.connectors.files.suffixes import KNOWN, TEXT, format_of, is_gzipped
from borealis.connectors.files.text import CsvLines, JsonLines, TextFormat, render
from borealis.disk import sync_directory, write_all
from borealis.errors import OutputError

GROUP_ROWS = 131_072  # of a Parquet row group or an Arrow file's batch, however small the writes
GROUP_BYTES = 128 * 2**20  # or so many bytes, where rows are large
JOURNAL_VERSION = {b"borealis.journal": b"1"}
WRITERS = {"parquet": pq.ParquetWriter, "arrow": pa.ipc.new_file, "arrows": pa.ipc.new_stream}


def file_sink(path: str | Path, journal: Path | None = None) -> TextSink | JournalSink | WholeFileSink:
    """A sink for a file, by its suffix; `journal` makes Parquet and Arrow files survive a crash of the run."""
    target = Path(path)
    format_ = format_of(target)
    if format_ is None:
        hint = f"known: {KNOWN}; a directory ends in a slash"
        raise OutputError(f"cannot tell the format of '{target}' by its suffix", hint=hint)
    if target.is_dir():
        raise OutputError(f"'{target}' is a directory", hint="name a file in it")
    if format_ in TEXT:
        return TextSink(target, CsvLines() if format_ == "csv" else JsonLines())
    return WholeFileSink(target, format_) if journal is None else JournalSink(target, format_, journal)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OutputError for what the system refuses while a file is written."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise OutputError(f"cannot write {path} ({' '.join(str(error).split())})", hint=_hint(path, error)) from error


def _hint(path: Path, error: BaseException) -> str:
    number = getattr(error, "errno", None)
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error):
        return "the disk is full: make room and start again"
    if not path.parent.is_dir():
        return f"make the directory first: mkdir -p {path.parent}"
    return "check that the place exists and may be written"


class AppendFile:
    """A file that only grows, and can be cut back to a length it had.

    1. `open` cuts it to the committed length, or to nothing; a file shorter than that is an error.
    2. `append` hands bytes to the operating system; `length` counts only appends that were whole.
    3. `sync` makes them survive a power cut; the first one makes the file's name survive as well.
    4. `close` cuts off what a failed append left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.length = 0
        self._file: BinaryIO | None = None
        self._name_synced = False

    def open(self, resume: int | None) -> None:
        """Keep the first `resume` bytes, or none of them."""
        with writing(self.path):
            size = self.path.stat().st_size if self.path.exists() else None
            if resume and (size is None or size < resume):
                seen = f"has {size:,} bytes" if size is not None else "is gone"
                raise OutputError(
                    f"{self.path} {seen}, but {resume:,} bytes were committed: it was changed since",
                    hint="restore the file, or delete the state directory to start afresh",
                )
            self._file = open(self.path, "r+b" if resume else "w+b", buffering=0)  # noqa: SIM115
            if resume:
                self._file.truncate(resume)
                self._file.seek(resume)
            self.length = resume or 0

    def append(self, data: Any) -> None:
        """Write all of the bytes, or raise with `length` unchanged."""
        file = self._opened()
        with writing(self.path):
            self.length += write_all(file, data)

    def sync(self) -> None:
        """Have what was appended survive a power cut."""
        with writing(self.path):
            os.fsync(self._opened().fileno())
            if not self._name_synced:
                sync_directory(self.path.parent)
                self._name_synced = True

    def close(self) -> None:
        """Leave whole appends only."""
        if self._file is None:
            return
        with writing(self.path):
            if self._file.seek(0, os.SEEK_END) > self.length:
                self._file.truncate(self.length)
            self._file.close()
            self._file = None

    def _opened(self) -> BinaryIO:
        if self._file is None:
            raise OutputError(f"{self.path} is not open", hint="open the sink before writing to it")
        return self._file


class Journal(AppendFile):
    """Rows that are in no file of the `target` yet, as an Arrow IPC stream without an end.

    One schema message, then one message a batch, so that after any of them more can follow.
    """

    def __init__(self, path: Path, target: Path, schema: pa.Schema) -> None:
        super().__init__(path)
        self.target, self.schema = target, schema

    def open(self, resume: int | None) -> None:
        """Begin with the schema, or go on after the first `resume` bytes."""
        super().open(resume)
        if not self.length:
            self.append(self.schema.with_metadata(JOURNAL_VERSION).serialize())

    def add(self, rows: pa.Table) -> None:
        """Append rows of any schema that can be cast to the journal's own."""
        for batch in as_schema(rows, self.schema).combine_chunks().to_batches():
            if batch.num_rows:
                self.append(batch.serialize())

    def tables(self) -> Generator[tuple[pa.Table, int]]:
        """What was added, piece by piece, each with the journal's length behind it."""
        with pa.OSFile(str(self.path)) as source:
            reader = pa.ipc.open_stream(source)
            if reader.schema.metadata != JOURNAL_VERSION or not reader.schema.equals(self.schema):
                raise OutputError(
                    f"the journal {self.path} of {self.target} holds other columns",
                    hint="delete the state directory to start afresh",
                )
            for batch in reader:
                yield pa.Table.from_batches([batch]).cast(self.schema), int(source.tell())


class TextSink:
    """CSV or JSON lines, appended to the target itself: another reader of it may see part of a train.

    With `.gz` every write is a gzip member of its own, so the file can be cut between them (the text is the same
    however it was cut into writes, the compressed bytes are not).
    """

    durable = True

    def __init__(self, target: Path, rendering: TextFormat) -> None:
        self.target = target
        self._file = AppendFile(target)
        self._rendering = rendering
        self._schema: pa.Schema = pa.schema([])

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Begin with the header, or go on after the committed bytes."""
        self._rendering.check(schema)
        self._schema = schema
        self._file.open(resume)
        if not self._file.length:
            self._append([self._rendering.head(schema)])

    def write(self, rows: pa.Table) -> None:
        self._append(render(as_schema(rows, self._schema), self._rendering))

    def flush(self, sync: bool) -> int:
        """The length of the file, all of it handed to the operating system."""
        if sync:
            self._file.sync()
        return self._file.length

    def close(self, complete: bool) -> None:
        """Leave a file of whole writes."""
        self._file.close()

    def _append(self, pieces: list[Any]) -> None:
        data = b"".join(pieces)
        if data:
            self._file.append(gzip.compress(data, compresslevel=6, mtime=0) if is_gzipped(self.target) else data)


def as_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return rows if rows.schema == schema else rows.select(schema.names).cast(schema)


class WholeFile:
    """A file under a temporary, hidden name beside its target, until it is whole. Small writes are gathered."""

    def __init__(self, target: Path, format_: str, schema: pa.Schema) -> None:
        self._target = target
        self._part = target.with_name(f".{target.name}.part")
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        with writing(target):
            self._writer: Any = WRITERS[format_](str(self._part), schema)

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= GROUP_ROWS or self._waiting_bytes >= GROUP_BYTES:
            self._write_groups(all_rows=self._waiting_rows < GROUP_ROWS)

    def publish(self) -> None:
        """Finish the file, make it durable, and let it take the target's place in one step."""
        try:
            self._write_groups(all_rows=True)
            with writing(self._target):
                self._writer.close()
                with open(self._part, "rb") as file:
                    os.fsync(file.fileno())
                os.replace(self._part, self._target)
                sync_directory(self._target.parent)
        except BaseException:
            self._part.unlink(missing_ok=True)
            raise

    def _write_groups(self, all_rows: bool) -> None:
        if not self._waiting_rows:
            return
        table = pa.concat_tables(self._waiting)
        whole = table.num_rows if all_rows else table.num_rows - table.num_rows % GROUP_ROWS
        rest = table.slice(whole)
        self._waiting, self._waiting_rows, self._waiting_bytes = [rest], rest.num_rows, rest.nbytes
        with writing(self._target):
            for start in range(0, whole, GROUP_ROWS):
                self._writer.write_table(table.slice(start, min(GROUP_ROWS, whole - start)).combine_chunks())


class WholeFileSink:
    """A Parquet or Arrow file written straight; it is not durable, and not visible before `close`."""

    durable = False

    def __init__(self, target: Path, format_: str) -> None:
        self.target = target
        self._format = format_
        self._file: WholeFile | None = None
        self._schema: pa.Schema = pa.schema([])
        self._rows = 0

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Start afresh; such a file cannot be continued."""
        if resume is not None:
            raise OutputError(
                f"{self.target} cannot be continued: its run kept no journal", hint="start the run afresh"
            )
        self._schema = schema
        self._rows = 0
        self._file = WholeFile(self.target, self._format, schema)

    def write(self, rows: pa.Table) -> None:
        if self._file is None:
            raise OutputError(f"{self.target} is not open", hint="open the sink before writing to it")
        self._file.write(as_schema(rows, self._schema))
        self._rows += rows.num_rows

    def flush(self, sync: bool) -> int:
        """How many rows were written; they stay in memory until a group is full."""
        return self._rows

    def close(self, complete: bool) -> None:
        """Put the file in the target's place, after an error with the rows it got until then."""
        file, self._file = self._file, None
        if file is not None:
            file.publish()


class JournalSink:
    """A Parquet or Arrow file of a durable run.

    1. Rows are appended to the journal. Its length is the position.
    2. After a crash the journal is cut to the committed length.
    3. `close` copies the journal to the target, whole or not at all. The journal stays: a run that is started again
       after its end, or goes on after an error, makes the target again from all of it.
    """

    durable = True

    def __init__(self, target: Path, format_: str, journal: Path) -> None:
        self.target = target
        self._format = format_
        self._journal = Journal(journal, target, pa.schema([]))
        self._open = False

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Begin the journal, or go on after the committed bytes."""
        if not self.target.parent.is_dir():
            raise OutputError(f"no directory '{self.target.parent}'", hint=f"make it: mkdir -p {self.target.parent}")
        if not os.access(self.target.parent, os.W_OK):
            raise OutputError(f"'{self.target.parent}' may not be written", hint="choose another place for the output")
        self._journal.schema = schema
        self._journal.open(resume)
        self._open = True
        with writing(self._journal.path):
            next(self._journal.tables(), None)  # checks the columns

    def write(self, rows: pa.Table) -> None:
        self._journal.add(rows)

    def flush(self, sync: bool) -> int:
        """The length of the journal, all of it handed to the operating system."""
        if sync:
            self._journal.sync()
        return self._journal.length

    def close(self, complete: bool) -> None:
        """Copy the journal to the target."""
        if not self._open:
            return
        self._open = False
        self._journal.close()
        file = WholeFile(self.target, self._format, self._journal.schema)
        with writing(self._journal.path):
            for rows, _ in self._journal.tables():
                file.write(rows)
        file.publish()
