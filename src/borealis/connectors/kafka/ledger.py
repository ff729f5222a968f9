"""Which records of a topic became which tuples: partitions are merged as they arrive, so the order must be remembered.

The file is one of records (see state/records.py):

1. The first is the base: the position it begins at, the offset of each partition there, and where to end, if anywhere.
2. Each further one is a batch: its first position and its parts, each a range of offsets in a partition and how many
   tuples came of it. It is synced before the batch is handed on, so what is committed is always in the ledger.
3. A torn last record is cut off at the next start: that batch was not handed on.
4. When the file is long, batches whose tuples are all committed are folded into a new base; the new file takes the
   place of the old one in one step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from borealis.disk import START_OVER, disk
from borealis.errors import InputError
from borealis.state.records import RecordFile

MARK = b"BKL2"
BYTES_MOST = 1 << 20  # of the file, before it is worth writing a shorter one


class OffsetRange(NamedTuple):
    """Records of one partition that stand together: a range of offsets, and how many tuples came of it."""

    partition: int
    first: int
    next: int
    rows: int


@dataclass(frozen=True)
class Batch:
    """Tuples that were handed on together: their first position, and where they came from."""

    first: int
    parts: tuple[OffsetRange, ...]

    @property
    def stop(self) -> int:
        """The position behind the last tuple."""
        return self.first + sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class Base:
    """Where a ledger begins."""

    topic: str
    position: int = 0
    offsets: dict[int, int] = field(default_factory=dict)  # of each partition
    ends: dict[int, int] | None = None  # None: never

    def after(self, batches: Iterable[Batch]) -> dict[int, int]:
        """The offset of each partition behind these batches."""
        return self.offsets | {part.partition: part.next for batch in batches for part in batch.parts}


_BASE, _BATCH = TypeAdapter(Base), TypeAdapter(Batch)


class Ledger:
    """One input's ledger. Thread-safe: one thread adds batches, another says what is committed.

    Without a path it knows only where it begins: no batch is ever asked for again.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.base: Base | None = None
        self.batches: list[Batch] = []
        self._file: RecordFile | None = None
        self._lock = threading.Lock()
        if path is None:
            return
        self._file = RecordFile(path, MARK, f"the ledger {path}")
        with disk(f"the ledger {path}", "read", "start again"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(path.name + ".tmp").unlink(missing_ok=True)
        if path.exists():
            self._read(self._file)

    @property
    def position(self) -> int:
        """Behind the last tuple."""
        if self.batches:
            return self.batches[-1].stop
        return self.base.position if self.base else 0

    def offsets(self) -> dict[int, int]:
        """The next record of each partition."""
        return self.base.after(self.batches) if self.base else {}

    def begin(self, base: Base) -> Base:
        with self._lock:
            self.base = base
            if self._file is not None:
                self._file.create(vars(base))
        return base

    def add(self, batch: Batch) -> None:
        """Keep a batch; when this returns, it survives."""
        with self._lock:
            if self._file is not None:
                self._file.append(vars(batch))
                self.batches.append(batch)

    def committed(self, position: int) -> None:
        """Tuples before this position are never asked for again."""
        with self._lock:
            if self._file is None or self._file.length < BYTES_MOST or self.base is None:
                return
            done = 0
            while done < len(self.batches) and self.batches[done].stop <= position:
                done += 1
            if done:
                gone, self.batches = self.batches[:done], self.batches[done:]
                self.base = replace(self.base, position=gone[-1].stop, offsets=self.base.after(gone))
                self._file.create(vars(self.base), *map(vars, self.batches))

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()

    def _read(self, file: RecordFile) -> None:
        for head, _ in file.read():
            if self.base is None:
                self.base = _BASE.validate_python(head)
                continue
            batch = _BATCH.validate_python(head)
            if batch.first != self.position:
                raise InputError(f"{self.path} is damaged: batch {batch.first} after {self.position}", hint=START_OVER)
            self.batches.append(batch)
        file.mend()
        file.resume()
