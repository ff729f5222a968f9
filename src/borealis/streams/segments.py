"""The persistent form of a queue: records on disk, in segments, for an entry point that logs before it acknowledges.

The protocol:

1. A record (JSON head, bytes) goes to the end of the newest segment. It says up to where the segment was synced then.
2. The segment is synced. Publishers are told of their batch after that, and not before.
3. When the newest segment has grown large, it is synced, and a new one is written whole beside it, with a record of the
   facts so far as its first, and takes its name. So only the newest segment can be torn, and never its first record.
4. What is not needed any more goes in whole segments, the oldest first. The facts outlive it.

A start reads every record up to the first that is torn or damaged. If a record behind it says that it had been synced,
or a later segment exists, that is damage and not a torn tail, and is refused; otherwise the tail is cut off, for nobody
was told of it. Files: `segment-<number>.bin`, `log.json` (what the log belongs to), `lock`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from borealis.errors import StateError
from borealis.state import claim
from borealis.state.claim import Claim, Kind
from borealis.state.commits import make_directory, sync_directory, write_whole
from borealis.state.disk import disk, one_line

VERSION = 1
SEGMENT_BYTES = 16 << 20  # a segment that has grown beyond this is the last but one
_FILE = b"BOREALIS-SEGMENT-1\n"
_KIND = re.compile(rb"BOREALIS-SEGMENT-\d+\n")
_RECORD = struct.Struct("<4sIQQI")  # mark, size of the head, size of the data, synced up to, checksum
_MARK = b"REC1"
KIND = Kind("log", "log.json", "process")
ANEW = claim.ANEW.format(noun=KIND.noun)
RESTART = "mend the disk, then start the node again"

Head = dict[str, Any]


@dataclass
class _Segment:
    """A file of the log, and the id behind its last tuple."""

    number: int
    path: Path
    stop: int
    length: int  # of its whole records, in bytes


class SegmentLog:
    """An entry point's records on disk. Read `open` to the end before anything else; one process at a time.

    Every head has the ids of the record's tuples as `first` and `stop`; each begins where the one before it ended. What
    must outlive the records goes into a head's `facts`, a mapping: later facts take the place of earlier ones of the
    same name, None takes one away. The facts of all records that are gone come first when the log is opened, with no
    bytes: whoever notes the facts of each head it reads knows all of them.

        log = SegmentLog(Path("entry"), {"stream": "traffic/packets"})
        for head, data in log.open():
            ...
        log.append({"first": 0, "stop": 10, "facts": {"publisher:ann": 7}}, data)
        log.trim(10)
    """

    def __init__(self, root: Path, belongs: Mapping[str, Any], *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.root, self.segment_bytes = root, segment_bytes
        self.facts: dict[str, Any] = {}
        self.next_id = 0
        self.torn = False  # something behind the last record was cut off by `open`
        self._segments: list[_Segment] = []
        self._file: IO[bytes] | None = None  # the newest segment; None: not open yet, or closed
        self._failure: StateError | None = None
        self._written = self._synced = 0  # bytes, since the log was opened
        self._lock = threading.Lock()
        self._syncing = threading.Lock()  # taken before the other one
        with _disk(root):
            if not root.exists():
                make_directory(root)
                sync_directory(root.parent)
            self._claim = Claim(root, KIND)
        try:
            mine = {"version": VERSION, **belongs}
            if not self._claim.is_mine(mine, bool(self._found())):
                with _disk(root):
                    write_whole(self._claim.path, json.dumps(mine).encode())
        except BaseException:
            self._claim.close()
            raise

    @property
    def held_bytes(self) -> int:
        """On disk."""
        return sum(s.length for s in self._segments)

    # -- start

    def open(self) -> Iterator[tuple[Head, bytes]]:
        """Every record that is there, oldest first; then the log is ready to append. After an error it is closed."""
        try:
            with _disk(self.root, "read"):
                yield from self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> Iterator[tuple[Head, bytes]]:
        if self._segments:
            raise ValueError("the log is open already")
        for left_over in self.root.glob("*.tmp"):
            left_over.unlink()
        found = self._found()
        for i, (number, path) in enumerate(found):
            if number != found[0][0] + i:
                raise StateError(f"segment {found[0][0] + i} is missing from {self.root}", hint=ANEW)
            newest = i == len(found) - 1
            data = path.read_bytes()
            good = 0
            for end, head, body in _records(data):
                self._take(path, head, begins=not good, oldest=i == 0)
                if good or i == 0:
                    yield head, body
                good = end
            if good < len(data) or not good:
                self._check_torn(path, data, good, newest)
                self._cut(path, good)
            self._segments.append(_Segment(number, path, self.next_id, good))
        if not found:
            self._roll()
        else:
            self._file = open(found[-1][1], "ab", buffering=0)  # noqa: SIM115 - held until the next
            os.fsync(self._file.fileno())  # what was read is there for good

    def _found(self) -> list[tuple[int, Path]]:
        found = ((re.fullmatch(r"segment-(\d+)\.bin", p.name), p) for p in self.root.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match)

    def _take(self, path: Path, head: Head, *, begins: bool, oldest: bool) -> None:
        """Note what a record says. The first of a segment says how things stood before the others."""
        if begins and oldest:
            self.next_id = head["first"]
        elif head["first"] != self.next_id or (begins and head["facts"] != self.facts):
            raise StateError(
                f"{path} goes on with tuple {head['first']}, but tuple {self.next_id} or facts before it are missing",
                hint=ANEW,
            )
        self._note(head["stop"], head.get("facts", {}))

    def _check_torn(self, path: Path, data: bytes, good: int, newest: bool) -> None:
        """Whether what is wrong behind the good records can be a write that did not end."""
        if _KIND.match(data) and not data.startswith(_FILE):
            raise StateError(f"{path} is of another version of Borealis", hint=ANEW)
        where = f"{path} is damaged at byte {good} of {len(data)}"
        if not newest or not good:
            raise StateError(where, hint=ANEW)
        for at in _marks(data, good + 1):
            _, _, _, synced, _ = _RECORD.unpack_from(data, at)
            if synced > good and _record_at(data, at) is not None:
                raise StateError(f"{where}, and not at its end", hint=ANEW)

    def _cut(self, path: Path, length: int) -> None:
        self.torn = True
        with open(path, "r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    # -- records

    def append(self, head: Mapping[str, Any], data: bytes | memoryview | pa.Buffer, sync: bool = True) -> None:
        """Add a record. With `sync` it will survive when this returns; without, when `sync` does.

        When the disk is full this raises, and the log is as it was before. After any other error it takes nothing more.
        """
        text, facts = json.dumps(head).encode(), json.loads(json.dumps(head.get("facts", {})))
        view = memoryview(data).cast("B")
        with self._lock:
            file = self._ready()
            if head["first"] != self.next_id or head["stop"] < head["first"]:
                raise ValueError(f"tuples {head['first']} to {head['stop']} cannot follow {self.next_id}")
            if self._segments[-1].length >= self.segment_bytes:
                file = self._roll()
            newest = self._segments[-1]
            synced = newest.length - (self._written - self._synced)
            self._write(file, newest, _record(text, view, synced))
            self._note(head["stop"], facts)
            newest.stop = self.next_id
        if sync:
            self.sync()

    def sync(self) -> None:
        """Wait until all that was appended survives. Threads that come together share one sync."""
        upto = self._written
        with self._syncing:
            with self._lock:
                if self._synced >= upto and self._failure is None:
                    return
                upto = self._written
                handle = os.dup(self._ready().fileno())
            try:
                with _disk(self.root):
                    os.fdatasync(handle)
            except StateError as error:
                self._failure = StateError(error.message, hint=RESTART)  # nobody knows what is on the disk now
                raise self._failure from error
            finally:
                os.close(handle)
            with self._lock:
                self._synced = max(self._synced, upto)

    def trim(self, upto: int) -> None:
        """Tuples before `upto` are not needed any more: delete the segments that hold nothing else.

        Boundaries at `upto` stay, save very many of them: of segments that hold nothing else, the last stays.
        """
        with self._lock:
            self._ready()
            old = self._segments[:-1]
            gone = 0
            while gone < len(old) and old[gone].stop <= upto:
                if old[gone].stop == upto and (gone + 1 == len(old) or old[gone + 1].stop > upto):
                    break
                gone += 1
            if not gone:
                return
            with _disk(self.root):
                for segment in old[:gone]:
                    segment.path.unlink()
                    self._segments.pop(0)
                sync_directory(self.root)

    def close(self) -> None:
        """Sync, and let go of the directory."""
        with contextlib.suppress(StateError, ValueError):
            self.sync()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
            self._claim.close()

    # -- inside, under the lock

    def _ready(self) -> IO[bytes]:
        if self._failure is not None:
            raise StateError(self._failure.message, hint=self._failure.hint)
        if self._file is None:
            raise ValueError(f"the log in {self.root} is closed, or was not opened to the end")
        return self._file

    def _note(self, stop: int, facts: Mapping[str, Any]) -> None:
        self.next_id = stop
        for name, fact in facts.items():
            if fact is None:
                self.facts.pop(name, None)
            else:
                self.facts[name] = fact

    def _write(self, file: IO[bytes], newest: _Segment, record: bytes) -> None:
        try:
            with _disk(self.root):
                left = memoryview(record)
                while len(left):
                    left = left[file.write(left) :]
        except StateError as error:
            try:
                file.truncate(newest.length)
            except OSError:
                self._failure = StateError(error.message, hint=RESTART)  # what stays is cut off by the next start
            raise
        newest.length += len(record)
        self._written += len(record)

    def _roll(self) -> IO[bytes]:
        """Begin a new segment with the facts so far; everything before it is synced."""
        number = self._segments[-1].number + 1 if self._segments else 0
        path = self.root / f"segment-{number}.bin"
        head = {"first": self.next_id, "stop": self.next_id, "facts": self.facts}
        begin = _FILE + _record(json.dumps(head).encode(), memoryview(b""), 0)
        with _disk(self.root):
            if self._file is not None:
                try:
                    os.fdatasync(self._file.fileno())
                except OSError as error:
                    self._failure = StateError(f"cannot write the log in {self.root}: {one_line(error)}", hint=RESTART)
                    raise self._failure from error
                self._synced = self._written
            write_whole(path, begin)
            file = open(path, "ab", buffering=0)  # noqa: SIM115 - held until the next
        if self._file is not None:
            self._file.close()
        self._file = file
        self._segments.append(_Segment(number, path, self.next_id, len(begin)))
        return file


def _record(head: bytes, data: memoryview, synced: int) -> bytes:
    begin = _RECORD.pack(_MARK, len(head), len(data), synced, 0)
    checksum = zlib.crc32(data, zlib.crc32(head, zlib.crc32(begin)))
    return b"".join([_RECORD.pack(_MARK, len(head), len(data), synced, checksum), head, data])


def _records(data: bytes) -> Iterator[tuple[int, Head, bytes]]:
    """Every whole record of a segment, each with the offset behind it; stops at damage."""
    if not data.startswith(_FILE):
        return
    at = len(_FILE)
    while (one := _record_at(data, at)) is not None:
        yield one
        at = one[0]


def _record_at(data: bytes, at: int) -> tuple[int, Head, bytes] | None:
    """The record that begins here, if one does and it is whole."""
    if at + _RECORD.size > len(data):
        return None
    mark, size, length, synced, checksum = _RECORD.unpack_from(data, at)
    body = at + _RECORD.size
    end = body + size + length
    if mark != _MARK or end > len(data):
        return None
    begin = _RECORD.pack(_MARK, size, length, synced, 0)
    if zlib.crc32(memoryview(data)[body:end], zlib.crc32(begin)) != checksum:
        return None
    return end, json.loads(data[body : body + size]), data[body + size : end]


def _marks(data: bytes, at: int) -> Iterator[int]:
    """Where records may begin."""
    while (at := data.find(_MARK, at)) >= 0 and at + _RECORD.size <= len(data):
        yield at
        at += 1


def _disk(root: Path, verb: str = "write") -> AbstractContextManager[None]:
    return disk(f"the log in {root}", verb, "try again")
