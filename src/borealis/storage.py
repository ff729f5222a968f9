"""Storage by URI: a directory of this machine, or an object store or file system that `pyarrow.fs` reaches.

It is a disk like any other to those who write logs. Where files cannot grow (S3), each sync of one is an object of its
own, named after the offset at which it begins; an object is there whole or not at all. Nothing can be locked there:
who writes to storage keeps to a directory of its own, and looks whether another has begun after it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from borealis.disk import Appended, scratch, spill
from borealis.errors import ClusterError
from borealis.machine import HERE, Machine

PART_DIGITS = 20  # of the offset in the name of a part
READERS = 16  # of parts, at once
ROOMY = 1 << 60  # bytes: an object store does not say
PLAIN = ("", "file")  # schemes of directories of this machine


@dataclass(frozen=True)
class Storage:
    """Where it is, and the machine with that in the place of its disk."""

    uri: str
    root: Path
    machine: Machine

    def __str__(self) -> str:
        return self.uri


def storage_at(uri: str, machine: Machine = HERE) -> Storage:
    """The storage at a URI; a ClusterError where there can be none.

    >>> storage_at("/var/lib/borealis").root
    PosixPath('/var/lib/borealis')
    """
    parts = urlsplit(uri)
    if parts.scheme in PLAIN:
        if not uri or parts.netloc not in ("", "localhost"):
            raise ClusterError(f"no storage at '{uri}'", hint="give a directory, or a URI such as s3://bucket/folder")
        return Storage(uri, Path(parts.path if parts.scheme else uri).expanduser().absolute(), machine)
    from pyarrow import fs

    try:
        filesystem, path = fs.FileSystem.from_uri(uri)
    except (ValueError, OSError, NotImplementedError) as error:
        reason = " ".join(str(error).split())
        hint = "a directory, s3://bucket/folder, or what else pyarrow.fs.FileSystem.from_uri takes"
        raise ClusterError(f"no storage at '{uri}': {reason}", hint=hint) from error
    return Storage(uri, Path("/") / path, replace(machine, disk=RemoteDisk(filesystem)))


def placed(uri: str) -> str:
    """The same storage for every process of this machine, wherever it was started.

    >>> placed("s3://bucket/folder"), placed("/var/lib")
    ('s3://bucket/folder', '/var/lib')
    """
    return str(Path(uri).expanduser().absolute()) if urlsplit(uri).scheme in PLAIN[:1] else uri


def _key(path: Path) -> str:
    return str(path).lstrip("/")


@contextmanager
def _as_os_error(path: Path) -> Iterator[None]:
    """What a store says that is no OSError."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise OSError(f"{path}: {' '.join(str(error).split())}") from error


class RemoteDisk:
    """A `Disk` over a file system of Arrow's. A file is one object, or a folder of the parts that it was synced in."""

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="storage")

    # -- whole files

    def read(self, path: Path) -> bytes:
        with _as_os_error(path):
            if self._is_object(path):
                return self._get(_key(path))
            parts = self._parts(path)
            if not parts:
                raise FileNotFoundError(2, "No such file", str(path))
            found, end = [], 0
            for (offset, _), data in zip(parts, self._pool.map(self._get, [key for _, key in parts]), strict=True):
                if offset != end:
                    break  # a part is missing: what is behind it was never answered for, or is damage
                found.append(data)
                end += len(data)
            return b"".join(found)

    def write_whole(self, path: Path, data: Any) -> None:
        with _as_os_error(path):
            for _, key in () if self._is_object(path) else self._parts(path):
                self._fs.delete_file(key)
            self._put(_key(path), data)

    def _get(self, key: str) -> bytes:
        with self._fs.open_input_file(key) as file:
            return bytes(file.read())

    def _put(self, key: str, data: Any) -> None:
        if self._fs.type_name in ("s3", "gcs", "abfs", "py"):  # an object is there when all of it is
            with self._fs.open_output_stream(key) as file:
                file.write(data)
            return
        self._fs.create_dir(key.rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(key + ".tmp") as file:
            file.write(data)
        self._fs.move(key + ".tmp", key)

    # -- files that grow

    def append_to(self, path: Path) -> Appended:
        with _as_os_error(path):
            return _Parts(self, path, self.size(path) if self._parts(path) else 0)

    def cut(self, path: Path, length: int) -> None:
        with _as_os_error(path):
            if self._is_object(path):
                self.write_whole(path, self.read(path)[:length])
                return
            for offset, key in reversed(self._parts(path)):
                if offset >= length:
                    self._fs.delete_file(key)
                elif offset + self._size(key) > length:
                    self._put(key, self._get(key)[: length - offset])

    def put_part(self, path: Path, offset: int, data: bytes) -> None:
        with _as_os_error(path):
            self._put(f"{_key(path)}/{offset:0{PART_DIGITS}d}", data)

    def _parts(self, path: Path) -> list[tuple[int, str]]:
        """The offsets and keys of the parts of a file, in order."""
        from pyarrow import fs

        found = self._fs.get_file_info(fs.FileSelector(_key(path), allow_not_found=True))
        names = [one.base_name for one in found if one.type == fs.FileType.File]
        offsets = sorted(int(name) for name in names if len(name) == PART_DIGITS and name.isdecimal())
        return [(offset, f"{_key(path)}/{offset:0{PART_DIGITS}d}") for offset in offsets]

    def _size(self, key: str) -> int:
        return int(self._fs.get_file_info(key).size)

    def _is_object(self, path: Path) -> bool:
        from pyarrow import fs

        return bool(self._fs.get_file_info(_key(path)).type == fs.FileType.File)

    # -- names

    def names(self, path: Path) -> list[str]:
        from pyarrow import fs

        with _as_os_error(path):
            found = self._fs.get_file_info(fs.FileSelector(_key(path), allow_not_found=True))
            return sorted(one.base_name for one in found)

    def exists(self, path: Path) -> bool:
        with _as_os_error(path):
            return self._is_object(path) or bool(self._parts(path))

    def size(self, path: Path) -> int:
        with _as_os_error(path):
            if self._is_object(path):
                return self._size(_key(path))
            parts = self._parts(path)
            return parts[-1][0] + self._size(parts[-1][1]) if parts else 0

    def remove(self, path: Path) -> None:
        with _as_os_error(path):
            if self._is_object(path):
                self._fs.delete_file(_key(path))
            else:
                self._drop(path)

    def remove_all(self, path: Path) -> None:
        with _as_os_error(path):
            self._drop(path)

    def _drop(self, path: Path) -> None:
        try:
            self._fs.delete_dir(_key(path))
        except FileNotFoundError:
            return

    def make_directory(self, path: Path) -> None:
        with _as_os_error(path):
            self._fs.create_dir(_key(path), recursive=True)

    def sync_directory(self, path: Path) -> None:
        """A name is there with what it names."""

    # -- what a store does not have

    def hold(self, path: Path) -> None:
        return None

    def has_room(self, path: Path, count: int) -> bool:
        return True

    def free_bytes(self, path: Path) -> int:
        return ROOMY

    def database(self, path: Path) -> sqlite3.Connection:
        raise OSError(f"{path}: no database can be kept in such a storage")

    def scratch(self, name: str) -> Path:
        return scratch(name)

    def spill(self, data: Any) -> Any:
        return spill(data)


class _Parts:
    """A file that grows by a part with each sync."""

    def __init__(self, disk: RemoteDisk, path: Path, length: int) -> None:
        self._disk, self._path = disk, path
        self._synced = length
        self._pending = bytearray()

    def write(self, data: Any) -> int:
        self._pending += data
        return len(memoryview(data).cast("B"))

    def sync(self) -> None:
        if self._pending:
            self._disk.put_part(self._path, self._synced, bytes(self._pending))
            self._synced += len(self._pending)
            self._pending.clear()

    def truncate(self, length: int) -> object:
        if length < self._synced:
            self._disk.cut(self._path, length)
            self._synced = length
        del self._pending[length - self._synced :]
        return length

    def close(self) -> None:
        self.sync()
