"""Durable commits: a log on disk from which a run that was killed goes on after its last committed train.

The protocol:

1. The sinks have handed all rows of the train to the disk and told their positions.
2. One record goes to the end of the current segment: header (train, cursors, positions), then the deltas.
3. The segment is synced. The train is committed from here on, and not before.
4. Now and then the whole state is written as a base, in the background; older segments are deleted after that.

A restart takes the newest whole base, then every record behind it up to the first that is torn or damaged; the log is
cut there. Only the newest segment with records can be torn by a crash, so damage before it, or trains that are missing
altogether, are refused. Files: `base-<train>.bin`, `log-<first train>.bin`, `state.json` (what the state belongs to),
`diagram.yaml` (that diagram, to say how another differs), `life` (under which name outsiders know it), `begun.bin` (the
train that was run last, where a replay needs it), `lock`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from borealis.errors import StateError
from borealis.state import claim
from borealis.state.claim import Claim, Kind, OtherOwnerError
from borealis.state.delta import TableSpec, merge_deltas, pack, unpack
from borealis.state.disk import disk, one_line
from borealis.state.log import Key

VERSION = 2
_FILE = b"BOREALIS-LOG-1\n"
_RECORD = struct.Struct("<4sQI")  # mark, length, checksum
_MARK = b"TRN1"
_SIZE = struct.Struct("<I")  # of the JSON that begins a record's body
BASE_BYTES_LEAST = 32 << 20  # log this much before a new base is worth writing
KIND = Kind("state", "state.json", "run")
ANEW = claim.ANEW.format(noun=KIND.noun)


@dataclass(frozen=True)
class Recovered:
    """What a restart finds: the last commit's header, and the whole state of each box and bucket."""

    header: dict[str, Any] | None
    state: dict[Key, bytes]
    torn: bool  # something behind the last commit was cut off


class CommitLog:
    """One unit's commits on disk. One process at a time: a second one is refused."""

    def __init__(
        self,
        root: Path,
        belongs: Mapping[str, Any],
        specs: Mapping[str, Sequence[TableSpec]],
        differs: Callable[[str], str] = lambda kept: "",
        diagram: str = "",
    ) -> None:
        """`diagram` is kept beside the state; `differs` says how a diagram that was kept is another than this one."""
        self.root, self.specs = root, specs
        self._segment: IO[bytes] | None = None
        self._length = 0  # of the segment's whole records
        self._logged = 0  # bytes of records since the base
        self._base_bytes = 0
        self._writer: threading.Thread | None = None
        self._failure: BaseException | None = None
        make_directory(root)
        with _disk(root):
            self._claim = Claim(root, KIND)
        try:
            mine = {"version": VERSION, **belongs}
            new = not self._claim.is_mine(mine, bool(self._numbered("log") or self._numbered("base")))
            with _disk(root):
                if diagram and not self._diagram.exists():
                    write_whole(self._diagram, diagram.encode())
                if new:
                    write_whole(self._claim.path, json.dumps(mine).encode())
        except OtherOwnerError as error:
            self._claim.close()
            if error.what == "diagram" and self._diagram.exists() and (how := differs(self._diagram.read_text())):
                raise StateError(f"the state in {root} is of another diagram: {how}", hint=error.hint) from None
            raise
        except BaseException:
            self._claim.close()
            raise

    @property
    def _diagram(self) -> Path:
        return self.root / "diagram.yaml"

    def life(self, suggested: str) -> str:
        """The name under which the runs of this state are known elsewhere; the first one's suggestion stays."""
        path = self.root / "life"
        with _disk(self.root):
            if not path.exists():
                write_whole(path, suggested.encode())
            return path.read_text()

    def begin(self, train: bytes) -> None:
        """Keep the next train before it is run; `begun` gives it back until another is kept."""
        with _disk(self.root):
            write_whole(self.root / "begun.bin", train)

    def begun(self) -> bytes | None:
        """The last train that was kept, whether it was committed or not."""
        path = self.root / "begun.bin"
        with _disk(self.root, "read"):
            return path.read_bytes() if path.exists() else None

    # -- restart

    def recover(self) -> Recovered:
        """Read what is there, cut off what is damaged, and be ready to append; after an error, closed."""
        try:
            with _disk(self.root, "read"):
                return self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> Recovered:
        for left_over in self.root.glob("*.tmp"):
            left_over.unlink()
        header, parts, damaged = self._read_base()
        base_train = last = int(header["train"]) if header else 0
        torn = False
        segments = self._numbered("log")
        for i, (first, path) in enumerate(segments):
            if first > last + 1:
                raise self._gap(last + 1, first - 1)
            good = 0
            for end, record, deltas in _records(path):
                good = end
                if record is None or record["train"] <= base_train:
                    continue
                if record["train"] != last + 1:
                    raise self._gap(last + 1, record["train"] - 1)
                header, last = record, record["train"]
                for key, data in deltas.items():
                    parts.setdefault(key, []).append(data)
            self._logged += good
            if good < max(path.stat().st_size, len(_FILE)):
                torn = True
                self._cut(path, good, [later for _, later in segments[i + 1 :]])
                break
        if last < damaged:
            raise StateError(f"the base of train {damaged} in {self.root} is damaged", hint=ANEW)
        state = {
            key: pack(merge_deltas(self.specs[key[0]], [unpack(d) for d in p], whole=True)) for key, p in parts.items()
        }
        self._base_bytes = sum(len(d) for d in state.values())
        self._open_segment(last + 1)
        return Recovered(header, state, torn)

    def _cut(self, path: Path, length: int, later: Sequence[Path]) -> None:
        """Leave a segment's whole records; segments behind it must hold nothing, or more than a tail is damaged."""
        for other in later:
            for _, record, _ in _records(other):
                if record is not None:
                    raise StateError(f"{path} is damaged in the midst of the state", hint=ANEW)
        for other in reversed(later):
            other.unlink()
        if not length:  # not even its first line is whole
            path.unlink()
            return
        with open(path, "r+b") as file:
            file.truncate(length)
            os.fsync(file.fileno())

    def _gap(self, first: int, last: int) -> StateError:
        some = f"train {first}" if first == last else f"trains {first} to {last}"
        return StateError(f"{some} missing from the state in {self.root}: files are gone or damaged", hint=ANEW)

    def _numbered(self, kind: str) -> list[tuple[int, Path]]:
        """The files `<kind>-<train>.bin`, in the order of their trains."""
        found = ((re.fullmatch(rf"{kind}-(\d+)\.bin", p.name), p) for p in self.root.iterdir())
        return sorted((int(match[1]), path) for match, path in found if match)

    def _read_base(self) -> tuple[dict[str, Any] | None, dict[Key, list[bytes]], int]:
        """The newest whole base, and the train of the newest one that is damaged: the log must reach as far as that."""
        damaged = 0
        for train, path in reversed(self._numbered("base")):
            for _, header, state in _records(path):
                if header is not None:
                    return header, {k: [v] for k, v in state.items()}, damaged
            damaged = max(damaged, train)
        return None, {}, damaged

    # -- commits

    def append(self, header: Mapping[str, Any], deltas: Mapping[Key, bytes]) -> None:
        """Commit a train: when this returns, it will survive. After an error nothing more can be appended."""
        if self._failure is not None:
            raise StateError(f"cannot write the state: {one_line(self._failure)}", hint="make room on the disk")
        assert self._segment is not None
        data = _record(header, deltas)
        try:
            with _disk(self.root):
                left = memoryview(data)
                while len(left):
                    left = left[self._segment.write(left) :]
                os.fdatasync(self._segment.fileno())
        except BaseException as error:
            self._failure = error
            with contextlib.suppress(OSError):  # what stays is cut off by the next start
                self._segment.truncate(self._length)
            raise
        self._length += len(data)
        self._logged += len(data)

    def wants_base(self) -> bool:
        """Whether the log has grown so long that a restart would rather read a base."""
        idle = self._writer is None or not self._writer.is_alive()
        return idle and self._logged > max(BASE_BYTES_LEAST, 2 * self._base_bytes)

    def write_base(self, header: Mapping[str, Any], whole: Callable[[], Mapping[Key, bytes]]) -> None:
        """Write the state as of the last commit in the background, then drop what it makes needless."""
        header = json.loads(json.dumps(header))  # as it is now: the next train may change what is in it
        train = int(header["train"])
        self._open_segment(train + 1)
        self._logged = 0

        def write() -> None:
            try:
                state = whole()
                write_whole(self.root / f"base-{train}.bin", _FILE + _record(header, state))
                self._base_bytes = sum(len(d) for d in state.values())
                for path in (p for n, p in self._numbered("base") if n < train):
                    path.unlink()
                for path in (p for n, p in self._numbered("log") if n <= train):
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
        self._claim.close()

    def _open_segment(self, first: int) -> None:
        if self._segment is not None:
            self._segment.close()
        path = self.root / f"log-{first}.bin"
        with _disk(self.root):
            self._segment = open(path, "ab", buffering=0)  # noqa: SIM115 - held until the next
            if not self._segment.tell():
                self._segment.write(_FILE)
            self._length = self._segment.tell()
            sync_directory(self.root)


def _record(header: Mapping[str, Any], blobs: Mapping[Key, bytes]) -> bytes:
    index = [[box, bucket, len(data)] for (box, bucket), data in blobs.items()]
    head = json.dumps({"header": header, "blobs": index}).encode()
    body = b"".join([_SIZE.pack(len(head)), head, *blobs.values()])
    return _RECORD.pack(_MARK, len(body), zlib.crc32(body)) + body


def _records(path: Path) -> Iterator[tuple[int, dict[str, Any] | None, dict[Key, bytes]]]:
    """The file's first line (None), then every whole record, each with the offset behind it; stops at damage."""
    with open(path, "rb") as file:
        if file.read(len(_FILE)) != _FILE:
            return
        yield len(_FILE), None, {}
        while len(start := file.read(_RECORD.size)) == _RECORD.size:
            mark, length, checksum = _RECORD.unpack(start)
            if mark != _MARK or not _SIZE.size <= length <= path.stat().st_size:
                return
            body = file.read(length)
            if len(body) < length or zlib.crc32(body) != checksum:
                return
            (size,) = _SIZE.unpack_from(body)
            at = _SIZE.size + size
            head = json.loads(body[_SIZE.size : at])
            blobs = {}
            for box, bucket, n in head["blobs"]:
                blobs[(box, bucket)] = body[at : at + n]
                at += n
            yield file.tell(), head["header"], blobs


def write_whole(path: Path, data: Any) -> None:
    """All of it or nothing, also after a power cut."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make names in a directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _disk(root: Path, verb: str = "write") -> AbstractContextManager[None]:
    return disk(f"state in {root}", verb, "start again")


def make_directory(root: Path) -> None:
    """The directory for a state, or a clear word why there cannot be one."""
    with _disk(root):
        root.mkdir(parents=True, exist_ok=True)
