"""Durable commits: a log on disk from which a run that was killed goes on after its last committed train.

The protocol:

1. The sinks have handed all rows of the train to the disk and have given their positions.
2. One record goes to the end of the current segment: header (train, cursors, positions), then the deltas.
3. The segment is synced. The train is committed from here on, and not before.
4. Now and then the whole state is written as a base, in the background; older segments are deleted after that.

A restart takes the newest whole base, then every record behind it up to the first that is torn or damaged; the log is
cut there. Only the newest segment with records can be torn by a crash, so damage before it, or trains that are missing
altogether, are refused. Files: `base-<train>.bin`, `log-<first train>.bin`, `state.json` (what the state belongs to),
`diagram.yaml` (that diagram, to say how another differs), `writer_id` (under which outsiders know it), `begun.bin` (the
train that was run last, where a replay needs it), `lock`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from borealis.disk import one_line
from borealis.errors import StateError
from borealis.machine import HERE, Machine
from borealis.state.delta import TableSpec, merge_deltas, pack, unpack
from borealis.state.directory_lock import DirectoryKind, OtherOwnerError
from borealis.state.log import Key
from borealis.state.records import Head, RecordFile, RecordLog, record
from borealis.threads import Task

VERSION = 4
BASE_BYTES_LEAST = 32 << 20  # log this much before a new base is worth writing
State = Mapping[Key, Any]  # the bytes of each box and bucket


@dataclass(frozen=True)
class Recovered:
    """What a restart finds: the last commit's header, and the whole state of each box and bucket."""

    header: dict[str, Any] | None
    state: dict[Key, bytes]


class CommitLog(RecordLog):
    """One unit's commits on disk. One process at a time: a second one is refused."""

    kind = DirectoryKind("state", "state.json", "run", "*-[0-9]*.bin")
    mark = b"BCL1"
    what, again = "state", "start again"

    def __init__(
        self,
        root: Path,
        belongs: Mapping[str, Any],
        specs: Mapping[str, Sequence[TableSpec]],
        differs: Callable[[str], str] = lambda before: "",
        diagram: str = "",
        machine: Machine = HERE,
    ) -> None:
        """`diagram` is kept beside the state; `differs` says how a diagram that was kept is another than this one."""
        self.specs = specs
        self._segment: RecordFile | None = None
        self._logged = 0  # bytes of records since the base
        self._base_bytes = 0
        self._writer: Task[None] | None = None
        self._failure: BaseException | None = None
        drawing, on = root / "diagram.yaml", machine.disk
        try:
            super().__init__(root, {"version": VERSION, **belongs}, machine)
        except OtherOwnerError as error:
            if error.what == "diagram" and on.exists(drawing) and (how := differs(on.read(drawing).decode())):
                raise StateError(f"the state in {root} is of another diagram: {how}", hint=error.hint) from None
            raise
        try:
            if diagram and not on.exists(drawing):
                with self._disk():
                    on.write_whole(drawing, diagram.encode())
        except BaseException:
            self.close()
            raise

    def writer_id(self, suggested: str) -> str:
        """The name under which the runs of this state are known elsewhere; the first one's suggestion stays."""
        path, on = self.root / "writer_id", self.machine.disk
        with self._disk():
            if not on.exists(path):
                on.write_whole(path, suggested.encode())
            return on.read(path).decode()

    def begin(self, train: bytes) -> None:
        """Keep the next train before it is run; `begun` gives it back until another is kept."""
        with self._disk():
            self.machine.disk.write_whole(self.root / "begun.bin", train)

    def begun(self) -> bytes | None:
        """The last train that was kept, whether it was committed or not."""
        path, on = self.root / "begun.bin", self.machine.disk
        with self._disk("read"):
            return on.read(path) if on.exists(path) else None

    # -- restart

    def recover(self) -> Recovered:
        """Read what is there, cut off what is damaged, and be ready to append; after an error, closed."""
        try:
            with self._disk("read"):
                return self._recover()
        except BaseException:
            self.close()
            raise

    def _recover(self) -> Recovered:
        self.sweep()
        header, parts, damaged = self._read_base()
        base_train = last = int(header["train"]) if header else 0
        segments = self.found("log")
        for i, (first, segment) in enumerate(segments):
            if first > last + 1:
                raise self._gap(last + 1, first - 1)
            for head, blobs in segment.read():
                train = head["header"]["train"]
                if train <= base_train:
                    continue
                if train != last + 1:
                    raise self._gap(last + 1, train - 1)
                header, last = head["header"], train
                for key, data in _state(head, blobs).items():
                    parts.setdefault(key, []).append(data)
            self._logged += segment.length
            if segment.is_torn:  # segments behind it must hold nothing, or more than a tail is damaged
                later = [other for _, other in segments[i + 1 :]]
                if any(True for other in later for _ in other.read()):
                    raise StateError(f"{segment.path} is damaged in the midst of the state", hint=self.kind.start_over)
                for other in reversed(later):
                    self.machine.disk.remove(other.path)
                segment.cut()
                break
        if last < damaged:
            raise StateError(f"the base of train {damaged} in {self.root} is damaged", hint=self.kind.start_over)
        state = {
            key: pack(merge_deltas(self.specs[key[0]], [unpack(d) for d in p], whole=True)) for key, p in parts.items()
        }
        self._base_bytes = sum(len(d) for d in state.values())
        self._segment = self.created("log", last + 1)
        return Recovered(header, state)

    def _gap(self, first: int, last: int) -> StateError:
        some = f"train {first}" if first == last else f"trains {first} to {last}"
        gone = f"{some} missing from the state in {self.root}: files are gone or damaged"
        return StateError(gone, hint=self.kind.start_over)

    def _read_base(self) -> tuple[dict[str, Any] | None, dict[Key, list[Any]], int]:
        """The newest whole base, and the train of the newest one that is damaged: the log must reach as far as that."""
        damaged = 0
        for train, base in reversed(self.found("base")):
            for head, blobs in base.read():
                return head["header"], {k: [v] for k, v in _state(head, blobs).items()}, damaged
            damaged = max(damaged, train)
        return None, {}, damaged

    # -- commits

    def append(self, header: Mapping[str, Any], deltas: State) -> None:
        """Commit a train: when this returns, it will survive. A FullError leaves the log as it was before."""
        if self._failure is not None:
            raise StateError(f"cannot write the state: {one_line(self._failure)}", hint="make room on the disk")
        assert self._segment is not None
        before = self._segment.length
        self._segment.append(_head(header, deltas), deltas.values())
        self._logged += self._segment.length - before

    def wants_base(self) -> bool:
        """Whether the log has grown so long that a restart would rather read a base."""
        idle = self._writer is None or not self._writer.is_alive()
        return idle and self._logged > max(BASE_BYTES_LEAST, 2 * self._base_bytes)

    def write_base(self, header: Mapping[str, Any], whole: Callable[[], State]) -> None:
        """Write the state as of the last commit in the background, then drop what it makes needless."""
        header = json.loads(json.dumps(header))  # as it is now: the next train may change what is in it
        train = int(header["train"])
        assert self._segment is not None
        old, self._segment = self._segment, self.created("log", train + 1)
        old.close()
        self._logged = 0

        def write() -> None:
            try:
                state = whole()
                base = record(self.mark, _head(header, state), state.values())
                self.machine.disk.write_whole(self.root / f"base-{train}.bin", base)
                self._base_bytes = sum(len(d) for d in state.values())
                older = [base for n, base in self.found("base") if n < train]
                older += [segment for n, segment in self.found("log") if n <= train]
                for file in older:
                    self.machine.disk.remove(file.path)
            except BaseException as error:
                self._failure = error

        self._writer = self.machine.threads.start("state-base", write)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.join()
        if self._segment is not None:
            self._segment.close()
        super().close()


def _head(header: Mapping[str, Any], state: State) -> Head:
    return {"header": header, "keys": list(state)}


def _state(head: Head, blobs: Sequence[Any]) -> dict[Key, Any]:
    return {(box, bucket): blob for (box, bucket), blob in zip(head["keys"], blobs, strict=True)}
