"""Durable commits: a log on disk from which a run that was killed goes on after its last committed train.

The protocol:

1. The sinks have handed all rows of the train to the disk and have given their positions.
2. One record goes to the end of the current segment: header (train, cursors, positions), then the deltas.
3. The segment is synced. The train is committed from here on, and not before.
4. Now and then the whole state is written as a base (train_log.py).

Files beside bases and segments: `state.json` (what the state belongs to), `diagram.yaml` (that diagram, to say how
another differs), `writer_id` (under which outsiders know it), `begun.bin` (the train that was run last, where a replay
needs it), `lock`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from borealis.errors import StateError
from borealis.machine import HERE, Machine
from borealis.state.delta import TableSpec, merge_deltas, pack, unpack
from borealis.state.directory_lock import DirectoryKind, OtherOwnerError
from borealis.state.log import Key
from borealis.state.records import Head
from borealis.state.train_log import Pieces, TrainLog

VERSION = 4
State = Mapping[Key, Any]  # the bytes of each box and bucket


@dataclass(frozen=True)
class Recovered:
    """What a restart finds: the last commit's header, and the whole state of each box and bucket."""

    header: dict[str, Any] | None
    state: dict[Key, bytes]


class CommitLog(TrainLog):
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

    def keep(self, train: bytes) -> None:
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
        found = self.read()
        header, parts = None, dict[Key, list[Any]]()
        for head, blobs in (*found.base, *found.records):
            header = head["header"]
            for key, data in _state(head, blobs).items():
                parts.setdefault(key, []).append(data)
        state = {
            key: pack(merge_deltas(self.specs[key[0]], [unpack(d) for d in p], whole=True)) for key, p in parts.items()
        }
        self.begin()
        return Recovered(header, state)

    @staticmethod
    def stretch(head: Head) -> tuple[int, int]:
        train = int(head["header"]["train"])
        return train - 1, train

    # -- commits

    def commit(self, header: Mapping[str, Any], deltas: State) -> None:
        """Commit a train: when this returns, it will survive. A FullError leaves the log as it was before."""
        self.append(_head(header, deltas), deltas.values())

    def rebase(self, header: Mapping[str, Any], whole: Callable[[], State]) -> None:
        """Write the state as of the last commit in the background."""
        header = json.loads(json.dumps(header))  # as it is now: the next train may change what is in it

        def pieces() -> Pieces:
            state = whole()
            yield _head(header, state), list(state.values())

        self.write_base(int(header["train"]), pieces)


def _head(header: Mapping[str, Any], state: State) -> Head:
    return {"header": header, "keys": list(state)}


def _state(head: Head, blobs: Sequence[Any]) -> dict[Key, Any]:
    return {(box, bucket): blob for (box, bucket), blob in zip(head["keys"], blobs, strict=True)}
