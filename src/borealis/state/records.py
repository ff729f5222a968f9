"""Logs on disk that only grow: files of records, and directories of such files.

A record is a frame (frame.py): a JSON head, and blobs. The head also says up to where the file was synced when it was
written. So where a record is damaged, those behind it tell whether it can be a write that did not end, that no
writer was answered for, or had been there whole.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from borealis.disk import START_OVER, Appended, disk, refused, write_all
from borealis.errors import FullError, StateError
from borealis.machine import HERE, Machine
from borealis.state import frame
from borealis.state.directory_lock import DirectoryKind, DirectoryLock

RESTART = "mend the disk, then start again"
_SYNCED = "synced"  # in the head of a record: up to where the file was
Head = dict[str, Any]
Blobs = Iterable[bytes | memoryview | pa.Buffer]


def record(mark: bytes, head: Mapping[str, Any], blobs: Blobs = (), synced: int = 0) -> bytes:
    return frame.pack(mark, {**head, _SYNCED: synced}, blobs)


class RecordFile:
    """A file of records. Thread-safe from its first record on; one process at a time.

    1. `create` it, or `read` it to its end, `mend` it, and `resume`.
    2. `append` adds a record behind the last; `sync` makes all of them survive a power cut.
    3. A FullError leaves the file as it was before. After any other error it takes nothing more.
    """

    def __init__(
        self,
        path: Path,
        mark: bytes,
        what: str,
        again: str = "start again",
        start_over: str = START_OVER,
        machine: Machine = HERE,
    ) -> None:
        """`mark`: what kind of records, of which version. Errors say `what` this is, and what to do about it."""
        self.path, self.mark = path, mark
        self.length = self.synced = 0  # bytes of whole records, and of those that survive
        self._what, self._again, self._start_over = what, again, start_over
        self._size = 0  # of the file when it was read
        self._last = 0  # where the last record begins
        self._file: Appended | None = None  # None: not begun, or closed
        self._failure: StateError | None = None
        self._on = machine.disk
        self._lock = machine.threads.lock()
        self._syncing = machine.threads.lock()  # taken before the other one

    # -- start

    def create(self, *heads: Mapping[str, Any]) -> None:
        """Begin with these records, in place of whatever was there: the old file or the new one survives, whole."""
        data = b""
        for head in heads:
            data += record(self.mark, head, synced=len(data))
        with self._disk("write"):
            if heads:
                self._on.write_whole(self.path, data)
            self.close()
            self._file = self._on.append_to(self.path)
            if not heads:
                self._file.truncate(0)
                self._on.sync_directory(self.path.parent)
        self.length = self.synced = len(data)

    def read(self) -> Iterator[tuple[Head, list[pa.Buffer]]]:
        """Every whole record up to the first that is torn or damaged: that begins at `length`."""
        with self._disk("read"):
            buffer = pa.py_buffer(self._on.read(self.path))
        self._size = buffer.size
        while self.length < buffer.size:
            try:
                head, blobs, self.length = frame.unpack_from(self.mark, buffer, self.length)
            except frame.FrameError:
                return
            del head[_SYNCED]
            yield head, blobs

    @property
    def is_torn(self) -> bool:
        """Whether something stands behind the last whole record that was read."""
        return self.length < self._size

    def mend(self, newest: bool = True) -> bool:
        """Cut off a torn tail; says whether there was one. Raises where that cannot be: something was damaged.

        Only the newest file of a log can be torn, and not its first record.
        """
        if 0 < self.length == self._size:
            return False
        where = f"{self.path} is damaged at byte {self.length} of {self._size}"
        if not self.length:
            raise StateError(f"{where}, or of another version of Borealis", hint=self._start_over)
        if not newest or self._was_synced():
            raise StateError(f"{where}, and not at its end" if newest else where, hint=self._start_over)
        self.cut()
        return True

    def _was_synced(self) -> bool:
        """Whether a whole record behind the first damage says that it was written after what is damaged was synced."""
        with self._disk("read"):
            data = self._on.read(self.path)
        buffer, at = pa.py_buffer(data), self.length
        while (at := data.find(self.mark, at + 1)) >= 0:
            with contextlib.suppress(frame.FrameError):
                if frame.unpack_from(self.mark, buffer, at)[0][_SYNCED] > self.length:
                    return True
        return False

    def cut(self) -> None:
        """Leave the whole records that were read, and nothing behind them."""
        with self._disk("write"):
            self._on.cut(self.path, self.length)

    def resume(self) -> None:
        """Go on behind what was read; that is there for good from now on."""
        with self._disk("write"):
            self._file = self._on.append_to(self.path)
            self._file.sync()
        self.synced = self.length

    # -- records

    def append(self, head: Mapping[str, Any], blobs: Blobs = (), sync: bool = True) -> None:
        """Add a record. With `sync` it will survive when this returns; without, when `sync` does."""
        with self._lock:
            file = self.ready()
            data = record(self.mark, head, blobs, self.synced)
            try:
                size = write_all(file, data)
            except OSError as error:
                refusal = refused(error, self._what, "write", self._again)
                self._take_back(self.length, refusal)
                raise refusal from error
            self._last = self.length
            self.length += size
        if sync:
            try:
                self.sync(alone=True)
            except FullError:
                self.retract()
                raise
            except StateError:  # it was not taken: what was done for it is undone, and a start shall not find it
                with self._lock, contextlib.suppress(OSError):
                    if self._file is not None and self.synced == self._last:
                        self._file.truncate(self.synced)
                raise

    def sync(self, alone: bool = False) -> None:
        """Wait until all that was appended survives. Threads that come together share one sync.

        With `alone`, a FullError says that there was no room for the last record, and for that only: `retract` it.
        """
        upto = self.length
        with self._syncing:
            with self._lock:
                if self.synced >= upto and self._failure is None:
                    return
                file, upto = self.ready(), self.length
            try:
                file.sync()
            except OSError as error:
                refusal = refused(error, self._what, "write", self._again)
                with self._lock:  # what is on the disk now is not known
                    self._failure = StateError(refusal.message, hint=RESTART)
                    alone = alone and isinstance(refusal, FullError) and self.synced == self._last
                raise refusal if alone else self._failure from error
            self.synced = upto

    def give_up(self) -> None:
        """After an error: leave what is known to survive, which is all but the last record, and take no more."""
        with self._syncing, self._lock:
            if self._failure is None:
                return
            if self.synced != self._last:  # more than the last record is unsure
                raise StateError(self._failure.message, hint=self._failure.hint)
            if self._file is not None:
                self._file.close()
                self._file = None
            with self._disk("write"):
                self._on.cut(self.path, self.synced)
            self.length, self._failure = self.synced, None

    @property
    def unsure(self) -> bool:
        """Whether more than the last record may be gone, since a sync failed."""
        return self._failure is not None and self.synced != self._last

    @property
    def takes(self) -> bool:
        """Whether it takes records."""
        return self._file is not None and self._failure is None

    def retract(self) -> None:
        """Take back the last record, for which `sync` found no room: what is before it had been synced."""
        with self._lock:
            assert self._failure is not None
            if self.synced != self._last:  # another one came in between
                raise self._failure
            self._take_back(self.synced, self._failure)

    def _take_back(self, length: int, error: StateError) -> None:
        """With the lock held: leave so much of the file, or take no more; a start cuts off what stays."""
        assert self._file is not None
        try:
            self._file.truncate(length)
            self.length, self._failure = length, None
        except OSError:
            self._failure = StateError(error.message, hint=RESTART)

    def ready(self) -> Appended:
        """The file, if it takes records; an error why not."""
        if self._failure is not None:
            raise StateError(self._failure.message, hint=self._failure.hint)
        if self._file is None:
            raise ValueError(f"{self._what} is closed, or was not opened to the end")
        return self._file

    def close(self) -> None:
        """Let go of the file, when no thread syncs it."""
        with self._syncing, self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def _disk(self, verb: str) -> AbstractContextManager[None]:
        return disk(self._what, verb, self._again)


class RecordLog:
    """A directory of record files, `<name>-<number>.bin`, that belongs to one thing and one process at a time."""

    kind: ClassVar[DirectoryKind]
    mark: ClassVar[bytes]
    what: ClassVar[str]  # it is, for errors
    again: ClassVar[str]  # what to do when there is room

    def __init__(self, root: Path, belongs: Mapping[str, Any], machine: Machine = HERE) -> None:
        self.root, self.machine = root, machine
        with self._disk():
            self._claim = DirectoryLock(root, self.kind, belongs, machine)

    def found(self, name: str) -> list[tuple[int, RecordFile]]:
        """The files of a name that are there, in the order of their numbers."""
        with self._disk("read"):
            there = self.machine.disk.names(self.root)
        matches = (re.fullmatch(rf"{name}-(\d+)\.bin", one) for one in there)
        numbered = sorted((int(match[1]), match[0]) for match in matches if match)
        return [(number, self._file(self.root / one)) for number, one in numbered]

    def created(self, name: str, number: int, *heads: Mapping[str, Any]) -> RecordFile:
        file = self._file(self.root / f"{name}-{number}.bin")
        file.create(*heads)
        return file

    def sweep(self) -> None:
        """Delete files that were not written to their end."""
        with self._disk():
            for left_over in self.machine.disk.names(self.root):
                if left_over.endswith(".tmp"):
                    self.machine.disk.remove(self.root / left_over)

    def close(self) -> None:
        self._claim.close()

    def _file(self, path: Path) -> RecordFile:
        what = f"{self.what} in {self.root}"
        return RecordFile(path, self.mark, what, self.again, self.kind.start_over, self.machine)

    def _disk(self, verb: str = "write") -> AbstractContextManager[None]:
        return disk(f"{self.what} in {self.root}", verb, self.again)
