"""The state log: every train's deltas, in order. It is the truth; what workers hold is a cache of it.

Stretches of trains lie in memory until a worker wants to read them. Then they are files in one directory, one
per stateful box and bucket and stretch: `<box>.<bucket>/<first>-<last>.delta`.
The stretch that starts at train 0 holds the whole state. Stretches are merged in the background, small ones first, so
that their number stays small and their bytes stay within a few times the state's own size; where trains are faster than
merging, they wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa

from borealis.disk import write_whole
from borealis.errors import StateError
from borealis.machine import HERE, Machine
from borealis.state.delta import Delta, TableSpec, merge_deltas, pack, unpack
from borealis.threads import Task

STRETCHES_MOST = 64  # of one box and bucket, before neighbours are merged
CROWD_MOST = 4 * STRETCHES_MOST  # of one box and bucket, before a commit waits for the merging
MEMORY_BYTES_MOST = 256 << 10  # of a stretch that is kept in memory
FORKED = "-fork"  # between the root of a log and the number of a fork of it
PIN_S = 5.0  # how long a load waits for those who still read
Key = tuple[str, int]  # box, bucket
Bytes: TypeAlias = bytes | pa.Buffer


@dataclass(frozen=True)
class Stretch:
    """The merged deltas of trains `first` to `last`, in a file of `size` bytes."""

    key: Key
    first: int
    last: int
    size: int

    @property
    def name(self) -> str:
        return stretch_name(self.key, self.first, self.last)


def stretch_name(key: Key, first: int, last: int) -> str:
    """Where a stretch lies under the log's root, on whichever machine that is."""
    return f"{key[0]}.{key[1]}/{first}-{last}.delta"


def mapped(path: str) -> pa.Buffer:
    """A file's bytes, without reading them."""
    with pa.memory_map(path) as file:
        return file.read_buffer()


class StateLog:
    """Append with `commit`, hand `manifest` to workers that must catch up, then `close`. Safe to use from threads.

    No directory is made before the first file or manifest, and no thread before there is something to merge.
    """

    def __init__(self, root: Path, specs: Mapping[str, Sequence[TableSpec]], machine: Machine = HERE) -> None:
        self.root = root
        self.specs = specs
        self.train = 0
        self.loads = 0  # how often it began from a whole state
        self._stretches: dict[Key, list[Stretch]] = {}
        self._unwritten: dict[str, bytes] = {}  # by the names of their stretches
        self._machine, self._threads = machine, machine.threads
        self._lock = machine.threads.condition(machine.threads.rlock())
        self._merging = machine.threads.lock()  # taken before the other one
        self._work = machine.threads.event()
        self._closed = False
        # merged away while that was the last train; its successor may read them
        self._doomed: list[tuple[int, str]] = []
        self._failure: BaseException | None = None
        self._pins = 0  # readers of older stretches
        self._merger: Task[None] | None = None

    def commit(self, train: int, deltas: Mapping[Key, Bytes], files: Mapping[Key, str] | None = None) -> None:
        """Append a train. Trains come in order; one without deltas still counts. Files that large deltas are in already
        become the log's own."""
        if train != self.train + 1:
            raise ValueError(f"train {train} does not follow train {self.train}")
        with self._lock:
            self._lock.wait_for(lambda: self._failure is not None or self._closed or self._longest() < CROWD_MOST)
        if self._failure is not None:
            raise StateError(
                f"cannot merge the state: {type(self._failure).__name__}: {self._failure}",
                hint=f"is there room in {self.root}?",
            ) from self._failure
        self._append(train, train, deltas, files or {})

    def _append(self, first: int, last: int, deltas: Mapping[Key, Bytes], files: Mapping[Key, str]) -> None:
        """All of it or nothing: what can fail comes first."""
        stretches = [(Stretch(key, first, last, len(data)), data) for key, data in deltas.items()]
        for stretch, data in stretches:
            if stretch.size > MEMORY_BYTES_MOST:
                self._write(stretch.name, data, files.get(stretch.key))
        with self._lock:
            for stretch, data in stretches:
                if stretch.size <= MEMORY_BYTES_MOST:
                    self._unwritten[stretch.name] = bytes(data)
                self._stretches.setdefault(stretch.key, []).append(stretch)
            self.train = last
            if not self._pins:
                for _, name in (d for d in self._doomed if d[0] < last):
                    self._unlink(name)
                self._doomed = [d for d in self._doomed if d[0] >= last]
            if self._longest() > STRETCHES_MOST and not self._closed:
                self._work.set()
                if self._merger is None:
                    self._merger = self._threads.start("state-merge", self._merge_forever)

    def _longest(self) -> int:
        return max((len(s) for s in self._stretches.values()), default=0)

    def load(self, train: int, whole: Mapping[Key, bytes]) -> None:
        """Start from the whole state as of a train, whatever was here before."""
        with self._merging:
            for key, data in whole.items():
                self._write(stretch_name(key, 0, train), data)
            with self._lock:
                self._lock.wait_for(lambda: not self._pins, PIN_S)
                old = [stretch.name for parts in self._stretches.values() for stretch in parts]
                self._stretches = {key: [Stretch(key, 0, train, len(data))] for key, data in whole.items()}
                self.train = train
                self.loads += 1
                new = {stretch_name(key, 0, train) for key in whole}
                for name in old:
                    if name not in new:
                        self._unlink(name)

    def extend(self, train: int, deltas: Mapping[Key, bytes]) -> None:
        """Append several trains at once: their merged deltas, up to this train. Some of them may be here already."""
        if train < self.train:
            raise ValueError(f"train {train} is before train {self.train}")
        if train == self.train:
            return
        self._append(self.train + 1, train, deltas, {})

    def manifest(self) -> dict[str, list[list[int]]]:
        """For each `box.bucket`, the stretches that make up its state, oldest first, as [first, last] pairs.

        They are all in files then.
        """
        with self._lock:
            for name, data in self._unwritten.items():
                self._write(name, data)
            self._unwritten.clear()
            self.root.mkdir(parents=True, exist_ok=True)  # where it is gone, workers take the run to be over
            return {f"{k[0]}.{k[1]}": [[s.first, s.last] for s in v] for k, v in self._stretches.items()}

    def whole(self) -> Callable[[], dict[Key, bytes]]:
        """A way to the whole state as of now, one delta per box and bucket; to be called once, from any thread."""
        with self._lock:
            stretches = {k: list(v) for k, v in self._stretches.items()}
            self.pin()

        def read() -> dict[Key, bytes]:
            try:
                return {key: pack(self._merged(parts, whole=True)) for key, parts in stretches.items()}
            finally:
                self.unpin()

        return read

    def fork(self, serial: int) -> StateLog:
        """A log of its own that begins with all that is in this one; not a byte is copied."""
        root = Path(f"{self.root}{FORKED}{serial}")
        other = StateLog(root, self.specs, self._machine)
        with self._lock:
            self.manifest()
            for stretch in (one for parts in self._stretches.values() for one in parts):
                (root / stretch.name).parent.mkdir(parents=True, exist_ok=True)
                os.link(self.root / stretch.name, root / stretch.name)
            other._stretches = {key: list(parts) for key, parts in self._stretches.items()}
            other.train, other.loads = self.train, self.loads
        return other

    def pin(self) -> None:
        """Delete no stretch that is in the manifest now, until `unpin`."""
        with self._lock:
            self._pins += 1

    def unpin(self) -> None:
        """One of those who pinned is done."""
        with self._lock:
            self._pins -= 1
            self._lock.notify_all()

    def size(self) -> int:
        """Bytes of all stretches: the state, and what is not merged yet."""
        with self._lock:
            return sum(s.size for parts in self._stretches.values() for s in parts)

    def close(self) -> None:
        """Stop merging. The files stay."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._work.set()
        if self._merger is not None:
            self._merger.join()

    # -- merging

    def _merge_forever(self) -> None:
        while True:
            self._work.wait()
            self._work.clear()
            if self._closed:
                return
            try:
                self.merge()
            except BaseException as error:  # the next commit raises it: a log that cannot merge must not grow silently
                with self._lock:
                    self._failure = error
                    self._lock.notify_all()
                return

    def merge(self) -> None:
        """Merge neighbours in every crowded box and bucket: as many of the newest as the one before does not dwarf."""
        with self._merging:
            with self._lock:
                crowded = {k: list(v) for k, v in self._stretches.items() if len(v) > STRETCHES_MOST}
            for key, parts in crowded.items():
                # leave the newest alone: workers that are one train behind want just that
                self._merge_one(key, parts[:-1])

    def _merge_one(self, key: Key, parts: list[Stretch]) -> None:
        start = len(parts) - 1
        total = parts[start].size
        while start > 0 and (parts[start - 1].size <= 2 * total or len(parts) - start < STRETCHES_MOST // 2):
            start -= 1
            total += parts[start].size
        group = parts[start:]
        whole = start == 0
        data = pack(self._merged(group, whole=whole))
        joined = Stretch(key, 0 if whole else group[0].first, group[-1].last, len(data))
        in_memory = not whole and len(data) <= MEMORY_BYTES_MOST
        if not in_memory:  # without the lock: commits do not wait for it
            self._write(joined.name, data)
        with self._lock:
            if in_memory:
                self._unwritten[joined.name] = data
            now = self._stretches[key]  # it may have grown, but not changed: a load waits until merging is over
            self._stretches[key] = [*now[:start], joined, *now[start + len(group) :]]
            self._doomed += [(self.train, gone.name) for gone in group if gone.name != joined.name]
            self._lock.notify_all()

    def _merged(self, parts: Sequence[Stretch], *, whole: bool) -> Delta:
        return merge_deltas(self.specs[parts[0].key[0]], [self._read(part.name) for part in parts], whole=whole)

    def _read(self, name: str) -> Delta:
        with self._lock:
            data = self._unwritten.get(name)
        return unpack(mapped(f"{self.root}/{name}") if data is None else data)

    def _unlink(self, name: str) -> None:
        """With the lock held: this stretch is not needed any more."""
        if self._unwritten.pop(name, None) is None:
            (self.root / name).unlink(missing_ok=True)

    def _write(self, name: str, data: Bytes, file: str | None = None) -> None:
        path = self.root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if file is None:
                write_whole(path, data, durable=False)
            else:
                os.replace(file, path)
        except OSError as error:
            raise StateError(
                f"cannot write state to {path}: {error.strerror or error}", hint="make room there"
            ) from error
