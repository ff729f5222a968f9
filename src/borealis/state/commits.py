"""Durable commits: a log on disk from which a run that was killed goes on after its last committed train.

The protocol:

1. The sinks have handed all rows of the train to the disk and told their positions.
2. One record goes to the end of the current segment: header (train, cursors, positions), then the deltas.
3. The segment is synced. The train is committed from here on, and not before.
4. Now and then the whole state is written as a base, in the background; older segments are deleted after that.

A restart takes the newest whole base, then every record behind it up to the first that is torn or damaged; the log is
cut there. Files: `base-<train>.bin`, `log-<first train>.bin`, `state.json` (what the state belongs to), `lock`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from borealis.errors import StateError
from borealis.state.delta import TableSpec, merge_deltas, pack, unpack
from borealis.state.log import Key

VERSION = 1
_FILE = b"BOREALIS-LOG-1\n"
_RECORD = struct.Struct("<4sQI")  # mark, length, checksum
_MARK = b"TRN1"
BASE_BYTES_LEAST = 32 << 20  # log this much before a new base is worth writing


@dataclass(frozen=True)
class Recovered:
    """What a restart finds: the last commit's header, and the whole state of each box and bucket."""

    header: dict[str, Any] | None
    state: dict[Key, bytes]
    torn: bool  # something behind the last commit was cut off


class CommitLog:
    """One unit's commits on disk. One process at a time: a second one is refused."""

    def __init__(self, root: Path, belongs: Mapping[str, Any], specs: Mapping[str, Sequence[TableSpec]]) -> None:
        self.root, self.specs = root, specs
        with _disk(root):
            root.mkdir(parents=True, exist_ok=True)
            self._lock = open(root / "lock", "w")  # noqa: SIM115 - held until close
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(
                f"state directory {root} is in use by another run", hint="wait for it, or stop it"
            ) from error
        self._check_owner(belongs)
        self._segment: IO[bytes] | None = None
        self._logged = 0
        self._base_bytes = 0
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None

    def _check_owner(self, belongs: Mapping[str, Any]) -> None:
        path, mine = self.root / "state.json", {"version": VERSION, **belongs}
        if path.exists():
            try:
                theirs = json.loads(path.read_text())
            except ValueError as error:
                raise StateError(f"{path} is damaged", hint="delete the state directory to start anew") from error
            for what, value in mine.items():
                if theirs.get(what) != value:
                    raise StateError(
                        f"the state in {self.root} is of another {what}: {theirs.get(what)}, not {value}",
                        hint="give another state directory, or delete this one to start anew",
                    )
            return
        with _disk(self.root):
            _write_whole(path, json.dumps(mine).encode())

    # -- restart

    def recover(self) -> Recovered:
        """Read what is there, cut off what is damaged, and be ready to append."""
        header, parts, base_train = self._read_base()
        torn = False
        segments = sorted(self.root.glob("log-*.bin"), key=_number)
        for i, path in enumerate(segments):
            good = len(_FILE)
            for end, record, deltas in _records(path):
                good = end
                if record["train"] > base_train:
                    header = record
                    for key, data in deltas.items():
                        parts.setdefault(key, []).append(data)
            if good < path.stat().st_size:
                torn = True
                os.truncate(path, good)
                for later in segments[i + 1 :]:
                    later.unlink()
                break
        state = {
            key: pack(merge_deltas(self.specs[key[0]], [unpack(d) for d in p], whole=True)) for key, p in parts.items()
        }
        self._base_bytes = sum(len(d) for d in state.values())
        self._open_segment((header or {"train": 0})["train"] + 1)
        return Recovered(header, state, torn)

    def _read_base(self) -> tuple[dict[str, Any] | None, dict[Key, list[bytes]], int]:
        bases = sorted(self.root.glob("base-*.bin"), key=_number, reverse=True)
        for path in bases:
            for _, header, state in _records(path):
                return header, {k: [v] for k, v in state.items()}, int(header["train"])
        if bases:
            raise StateError(f"no whole base in {self.root}", hint="delete the state directory to start anew")
        return None, {}, 0

    # -- commits

    def append(self, header: Mapping[str, Any], deltas: Mapping[Key, bytes]) -> None:
        """Commit a train: when this returns, it will survive."""
        if self._failure is not None:
            raise StateError(f"cannot write the state's base: {self._failure}", hint="make room on the disk")
        assert self._segment is not None
        with _disk(self.root):
            data = _record(header, deltas)
            self._segment.write(data)
            self._segment.flush()
            os.fdatasync(self._segment.fileno())
        self._logged += len(data)

    def wants_base(self) -> bool:
        """Whether the log has grown so long that a restart would rather read a base."""
        idle = self._writer is None or not self._writer.is_alive()
        return idle and self._logged > max(BASE_BYTES_LEAST, 2 * self._base_bytes)

    def write_base(self, header: Mapping[str, Any], whole: Callable[[], Mapping[Key, bytes]]) -> None:
        """Write the state as of the last commit in the background, then drop what it makes needless."""
        train = int(header["train"])
        self._open_segment(train + 1)
        self._logged = 0

        def write() -> None:
            try:
                state = whole()
                _write_whole(self.root / f"base-{train}.bin", _FILE + _record(header, state))
                self._base_bytes = sum(len(d) for d in state.values())
                for path in self.root.glob("*-*.bin"):
                    if _number(path) <= train and path.name != f"base-{train}.bin":
                        path.unlink()
            except BaseException as error:
                self._failure = error

        self._writer = threading.Thread(target=write, name="state-base", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """Let go of the directory."""
        if self._writer is not None:
            self._writer.join()
        if self._segment is not None:
            self._segment.close()
        self._lock.close()

    def _open_segment(self, first: int) -> None:
        if self._segment is not None:
            self._segment.close()
        path = self.root / f"log-{first}.bin"
        with _disk(self.root):
            fresh = not path.exists() or path.stat().st_size < len(_FILE)
            self._segment = open(path, "wb" if fresh else "ab")  # noqa: SIM115 - held until the next
            if fresh:
                self._segment.write(_FILE)
                self._segment.flush()
            _sync_directory(self.root)


def _number(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _record(header: Mapping[str, Any], blobs: Mapping[Key, bytes]) -> bytes:
    index = [[box, bucket, len(data)] for (box, bucket), data in blobs.items()]
    head = json.dumps({"header": header, "blobs": index}).encode()
    body = b"".join([struct.pack("<I", len(head)), head, *blobs.values()])
    return _RECORD.pack(_MARK, len(body), zlib.crc32(body)) + body


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[Key, bytes]]]:
    """Every whole record of a file with the offset behind it; stops at the first that is not whole."""
    with open(path, "rb") as file:
        if file.read(len(_FILE)) != _FILE:
            return
        while len(start := file.read(_RECORD.size)) == _RECORD.size:
            mark, length, checksum = _RECORD.unpack(start)
            if mark != _MARK or length > path.stat().st_size:
                return
            body = file.read(length)
            if len(body) < length or zlib.crc32(body) != checksum:
                return
            (size,) = struct.unpack("<I", body[:4])
            head = json.loads(body[4 : 4 + size])
            blobs, at = {}, 4 + size
            for box, bucket, n in head["blobs"]:
                blobs[(box, bucket)] = body[at : at + n]
                at += n
            yield file.tell(), head["header"], blobs


def _write_whole(path: Path, data: bytes) -> None:
    """All of it or nothing, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _disk(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "make room on the disk" if error.errno == errno.ENOSPC else "check the directory and its permissions"
        raise StateError(f"cannot write state in {root}: {error.strerror or error}", hint=hint) from error
