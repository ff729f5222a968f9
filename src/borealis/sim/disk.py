"""A disk in memory, which outlives the processes that use it, and what goes wrong with disks.

A process that is killed leaves everything that it wrote, and its locks are free. A power cut (`SimDisk.crash`) takes
what was not synced, or some of it: of the bytes behind the last sync a prefix survives, the last block of which may be
torn; of the names that were made and removed since, the first ones.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from borealis.disk import Appended, Disk, HeldFile

if TYPE_CHECKING:
    from borealis.sim.kernel import Process

BLOCK = 4096  # bytes that a disk writes at once
ROOMY = 1 << 40  # bytes free on a disk without a limit
CHECKED = ".bin"  # the end of the names of files in which every record has a checksum
UNSETTLED_MAX = 64  # names: older ones have reached the disk without a sync
CHANGE = re.compile(r"\s*(INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER)\b", re.IGNORECASE)


class _File:
    """A power cut leaves `data[:safe] + tail`, or some of what came instead of the tail."""

    __slots__ = ("data", "safe", "syncs", "tail")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.safe = len(data)
        self.tail = b""  # was synced, then cut off, which is not synced
        self.syncs: list[_Sync] = []

    def truncate(self, length: int) -> None:
        if length < self.safe:
            self.tail = bytes(self.data[length : self.safe]) + self.tail
            self.safe = length
        del self.data[length:]
        self.data.extend(bytes(length - len(self.data)))
        for sync in self.syncs:
            sync.upto, sync.cut = min(sync.upto, length), True

    def settle(self, length: int) -> None:
        """So many bytes are on the disk, as they are."""
        self.safe, self.tail = length, b""

    def begin_sync(self) -> _Sync:
        self.syncs.append(sync := _Sync(len(self.data)))
        return sync

    def end_sync(self, sync: _Sync) -> None:
        self.syncs.remove(sync)
        if sync.upto > self.safe or (sync.upto == self.safe and not sync.cut):
            self.settle(sync.upto)

    def crash(self, drawn: random.Random) -> None:
        if self.tail and drawn.random() < 0.5:
            self.data[self.safe :] = self.tail
        elif written := len(self.data) - self.safe:
            kept = drawn.choice((0, written, drawn.randint(0, written)))
            del self.data[self.safe + kept :]
            torn = min(kept, drawn.randint(1, BLOCK))
            instead = drawn.choice((None, bytes(torn), drawn.randbytes(torn)))
            if instead is not None and torn:
                self.data[-torn:] = instead
        self.settle(len(self.data))
        self.syncs.clear()


class _Sync:
    """A sync under way, of so many bytes: those that were there when it began, and have not been cut off since."""

    __slots__ = ("cut", "upto")

    def __init__(self, upto: int) -> None:
        self.upto, self.cut = upto, False


class _Renamed(NamedTuple):
    """A name that was made or removed, and could be otherwise after a power cut."""

    made: bool
    key: str
    file: _File


class SimDisk:
    """What is on the disk, and its faults. Processes use it through `for_process`.

    `limit`: so many bytes fit, None for no limit. `failing`: how many of the next calls of a method of `Disk` or
    `Appended` raise EIO, by its name. `sync_s`: how long it takes to make something survive a power cut.
    """

    def __init__(self, sync_s: float = 0.0) -> None:
        self.sync_s = sync_s
        self.limit: int | None = None
        self.failing: Counter[str] = Counter()
        self.files: dict[str, _File] = {}
        self.directories: dict[str, dict[str, None]] = {"/": {}}  # the names in each
        self.unsettled: list[_Renamed] = []
        self.holders: dict[str, _SimHeld] = {}
        self.databases: dict[str, _Kept] = {}

    def for_process(self, process: Process) -> Disk:
        return _View(self, process)

    @property
    def used(self) -> int:
        return sum(len(file.data) for file in self.files.values())

    @property
    def free(self) -> int:
        return ROOMY if self.limit is None else max(0, self.limit - self.used)

    def crash(self, drawn: random.Random) -> None:
        """A power cut. The processes that use the disk are dead by now."""
        kept = drawn.randint(0, len(self.unsettled))
        for made, key, file in reversed(self.unsettled[kept:]):
            if made and self.files.get(key) is file:
                self.drop(key)
            elif not made and key not in self.files and key not in self.directories:
                self.make_directory(posixpath.dirname(key))
                self.add(key, file)
        self.unsettled.clear()
        for key in sorted(self.files):
            self.files[key].crash(drawn)
        self.holders.clear()
        for kept_database in self.databases.values():
            kept_database.connection.rollback()

    def flip(self, drawn: random.Random) -> Path | None:
        """One bit of one file that has checksums; says which file, if there is one."""
        keys = [key for key in sorted(self.files) if key.endswith(CHECKED) and self.files[key].data]
        if not keys:
            return None
        key = drawn.choice(keys)
        data = self.files[key].data
        data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
        return Path(key)

    # -- names

    def file(self, key: str) -> _File:
        if key in self.directories:
            raise _refusal(errno.EISDIR, key)
        if key not in self.files:
            raise _refusal(errno.ENOENT, key)
        return self.files[key]

    def add(self, key: str, file: _File) -> None:
        above, name = posixpath.split(key)
        if key in self.directories:
            raise _refusal(errno.EISDIR, key)
        if above not in self.directories:
            raise _refusal(errno.ENOENT, key)
        self.directories[above][name] = None
        self.files[key] = file

    def drop(self, key: str) -> _File:
        above, name = posixpath.split(key)
        del self.directories[above][name]
        self.databases.pop(key, None)
        return self.files.pop(key)

    def unsettle(self, change: _Renamed) -> None:
        self.unsettled.append(change)
        del self.unsettled[:-UNSETTLED_MAX]

    def settle_name(self, file: _File) -> None:
        self.unsettled = [change for change in self.unsettled if not (change.made and change.file is file)]

    def remove(self, key: str) -> None:
        self.unsettle(_Renamed(False, key, self.drop(key)))

    def remove_all(self, key: str) -> None:
        for name in sorted(self.directories[key]):
            below = posixpath.join(key, name)
            if below in self.directories:
                self.remove_all(below)
            else:
                self.remove(below)
        if key != "/":
            above, name = posixpath.split(key)
            del self.directories[key], self.directories[above][name]

    def make_directory(self, key: str) -> None:
        if key in self.directories:
            return
        if key in self.files:
            raise _refusal(errno.EEXIST, key)
        above, name = posixpath.split(key)
        self.make_directory(above)
        self.directories[above][name] = None
        self.directories[key] = {}


class _View:
    """The disk, as one process uses it: not at all once it is dead."""

    def __init__(self, store: SimDisk, process: Process) -> None:
        self._store, self._process = store, process

    def begin(self, kind: str) -> None:
        """A call, which may be one that fails."""
        self._process.check()
        failing = self._store.failing
        if failing[kind] > 0:
            failing[kind] -= 1
            raise _refusal(errno.EIO, kind)

    def wait(self) -> None:
        if self._store.sync_s and self._process.kernel.current is not None:
            self._process.work(self._store.sync_s)

    def append_to(self, path: Path) -> Appended:
        self.begin("append_to")
        store, key = self._store, _key(path)
        if key not in store.files:
            file = _File()
            store.add(key, file)
            store.unsettle(_Renamed(True, key, file))
        return _SimAppended(store, self, store.files[key])

    def read(self, path: Path) -> bytes:
        self.begin("read")
        return bytes(self._store.file(_key(path)).data)

    def write_whole(self, path: Path, data: Any) -> None:
        self.begin("write_whole")
        store, key, file = self._store, _key(path), _File(bytes(data))
        if len(file.data) > store.free:
            raise _refusal(errno.ENOSPC, key)
        self.wait()
        store.add(key, file)
        store.unsettled = [change for change in store.unsettled if change.key != key]

    def cut(self, path: Path, length: int) -> None:
        self.begin("cut")
        file = self._store.file(_key(path))
        self.wait()
        file.truncate(length)
        file.settle(length)
        self._store.settle_name(file)

    def names(self, path: Path) -> list[str]:
        self.begin("names")
        return sorted(self._store.directories.get(_key(path), ()))

    def exists(self, path: Path) -> bool:
        self.begin("exists")
        return (key := _key(path)) in self._store.files or key in self._store.directories

    def size(self, path: Path) -> int:
        self.begin("size")
        return len(self._store.file(_key(path)).data)

    def make_directory(self, path: Path) -> None:
        self.begin("make_directory")
        if (key := _key(path)) not in self._store.directories:
            self.wait()
            self._store.make_directory(key)

    def sync_directory(self, path: Path) -> None:
        self.begin("sync_directory")
        store, key = self._store, _key(path)
        if key not in store.directories:
            raise _refusal(errno.ENOENT, key)
        settled = [change for change in store.unsettled if posixpath.dirname(change.key) == key]
        self.wait()
        store.unsettled = [change for change in store.unsettled if not any(change is one for one in settled)]

    def remove(self, path: Path) -> None:
        self.begin("remove")
        if (key := _key(path)) in self._store.directories:
            raise _refusal(errno.EISDIR, key)
        if key in self._store.files:
            self._store.remove(key)

    def remove_all(self, path: Path) -> None:
        self.begin("remove_all")
        if (key := _key(path)) in self._store.directories:
            self._store.remove_all(key)

    def hold(self, path: Path) -> HeldFile:
        self.begin("hold")
        store, key = self._store, _key(path)
        if (holder := store.holders.get(key)) is not None and not holder.process.dead:
            raise _refusal(errno.EWOULDBLOCK, key)
        if key not in store.files:
            store.add(key, _File())
        store.holders[key] = held = _SimHeld(store, self._process, key)
        return held

    def has_room(self, path: Path, count: int) -> bool:
        self.begin("has_room")
        return count <= self._store.free

    def free_bytes(self, path: Path) -> int:
        self.begin("free_bytes")
        return self._store.free

    def database(self, path: Path) -> sqlite3.Connection:
        self.begin("database")
        store, key = self._store, _key(path)
        if key not in store.files:
            store.add(key, _File())
        if key not in store.databases:
            store.databases[key] = _Kept(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False))
        kept = store.databases[key]
        if kept.process is not None and kept.process.dead:
            kept.connection.rollback()
        kept.process = self._process
        return cast(sqlite3.Connection, _SimDatabase(store, self, kept))

    def scratch(self, name: str) -> Path:
        self.begin("scratch")
        return self._process.kernel.scratch(name)

    def spill(self, data: Any) -> pa.Buffer:
        self.begin("spill")
        if len(memoryview(data)) > self._store.free:
            raise _refusal(errno.ENOSPC, "spill")
        return pa.py_buffer(bytes(data))


class _SimAppended:
    __slots__ = ("_file", "_open", "_store", "_view")

    def __init__(self, store: SimDisk, view: _View, file: _File) -> None:
        self._store, self._view, self._file, self._open = store, view, file, True

    def _begin(self, kind: str) -> None:
        self._view.begin(kind)
        if not self._open:
            raise ValueError("I/O operation on closed file")

    def write(self, data: Any) -> int:
        self._begin("write")
        piece = memoryview(data).cast("B")
        if self._store.limit is not None and len(piece) > (room := self._store.free):
            if not room:
                raise _refusal(errno.ENOSPC, "write")
            piece = piece[:room]
        self._file.data += piece
        return len(piece)

    def sync(self) -> None:
        self._begin("sync")
        file = self._file
        sync = file.begin_sync()
        self._view.wait()
        file.end_sync(sync)
        self._store.settle_name(file)

    def truncate(self, length: int) -> object:
        self._begin("truncate")
        self._file.truncate(length)
        return length

    def close(self) -> None:
        self._open = False


class _SimHeld:
    def __init__(self, store: SimDisk, process: Process, key: str) -> None:
        self._store, self.process, self._key = store, process, key

    def note(self, text: str) -> None:
        self.process.check()
        if self._key in self._store.files:
            self._store.files[self._key] = _File(text.encode())

    def close(self) -> None:
        self.process.check()
        if self._store.holders.get(self._key) is self:
            del self._store.holders[self._key]


class _Kept:
    """A database, and the process that opened it last."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.process: Process | None = None


class _SimDatabase:
    """A connection that can be closed without an end of what is in it. What is committed survives everything."""

    def __init__(self, store: SimDisk, view: _View, kept: _Kept) -> None:
        self._store, self._view, self._kept, self._open = store, view, kept, True

    def _connection(self, changes: bool) -> sqlite3.Connection:
        try:
            self._view.begin("execute")
        except OSError:
            raise sqlite3.OperationalError("disk I/O error") from None
        if not self._open:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
        if changes and not self._store.free:
            raise sqlite3.OperationalError("database or disk is full")
        return self._kept.connection

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self._connection(changes=CHANGE.match(sql) is not None).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        return self._connection(changes=CHANGE.match(sql) is not None).executemany(sql, parameters)

    def executescript(self, sql: str) -> sqlite3.Cursor:
        return self._connection(changes=True).executescript(sql)

    @property
    def in_transaction(self) -> bool:
        return self._kept.connection.in_transaction

    def close(self) -> None:
        self._view.begin("close")
        if self._open and self._kept.connection.in_transaction:
            self._kept.connection.rollback()
        self._open = False


def _key(path: Path) -> str:
    """A relative path begins at the root."""
    return posixpath.normpath(posixpath.join("/", path))


def _refusal(number: int, what: str) -> OSError:
    return OSError(number, os.strerror(number), what)
