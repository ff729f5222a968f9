"""One input of a unit: what its source has read, what is admitted, and what of it is in no train yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from borealis.connectors.source import Source
from borealis.disk import Disk
from borealis.entry.admission import Admitted, Cursor, EntryPoint
from borealis.streams.held import HELD_BYTES
from borealis.streams.section import Section, empty_rows
from borealis.streams.spill import PIECE_BYTES, spilled
from borealis.threads import Mailbox
from borealis.trains.relay import Relay, Relayed, SectionSource

Taken = TypeVar("Taken", bound=Admitted | Relayed)

READ_AHEAD = 2  # batches a source may be ahead of the trains


@dataclass(frozen=True)
class Admission:
    """How large a train may be, in rows and in bytes; one row of each input always has room.

    Tuples of which nothing can come yet wait a moment for company, unless they are many. Where a trunk and its fork
    take turns, trains are shorter: what the fork has to answer in time waits behind one of the trunk's.
    """

    rows_most: int = 500_000
    turn_rows: int = 20_000
    bytes_most: int = 64 << 20
    company_s: float = 0.1
    company_rows: int = 4096
    company_bytes: int = 1 << 20


@dataclass
class Intake:
    """One input: its entry point, what its source has read, and what is admitted but in no train yet."""

    entry: EntryPoint | Relay
    source: Source | SectionSource
    schema: pa.Schema
    cut: Cursor  # as of the last train
    last_arrival: float
    source_ended: bool
    read: Mailbox  # of batches or sections, then None or an error
    pending: deque[Admitted | Relayed] = field(default_factory=deque)
    idle_tail: list[int] = field(default_factory=list)  # boundaries written while nothing arrived
    failure: BaseException | None = None  # what stands behind the last row that could be read
    rows: int = 0  # pending
    size: int = 0  # of pending rows, in bytes
    on_disk: int = 0  # of these
    pieces: int = 0  # that are on disk, of what is pending

    def add(self, admitted: Admitted | Relayed) -> None:
        """Keep admitted rows until a train takes them."""
        if len(admitted) or admitted.tail():
            self.pending.append(admitted)
            self.rows += len(admitted)
            self.size += admitted.nbytes
            self.on_disk += _bytes_on_disk(admitted)
            self.pieces += _is_on_disk(admitted)

    @property
    def in_memory(self) -> int:
        """About how much memory takes what is pending."""
        return self.size - self.on_disk + HELD_BYTES * (len(self.pending) - self.pieces)

    def spill(self, disk: Disk, least: int) -> None:
        """Move the oldest of what is in memory to the disk, so many bytes at least; after an OSError, fewer.

        What is read, and in which order, stays the same. What another line has not read stays in memory for it.
        """
        left, kept = deque(self.pending), deque[Admitted | Relayed]()
        try:
            while left and least > 0:
                run = _run(left)
                if run:
                    kept.append(replace(run[0], section=spilled([part.section for part in run], disk)))
                    least -= sum(part.nbytes + HELD_BYTES for part in run)
                for _ in run:
                    left.popleft()
                if not run:
                    kept.append(left.popleft())
        finally:
            self.pending = kept + left
            self.size = sum(part.nbytes for part in self.pending)
            self.on_disk, self.pieces = (sum(map(one, self.pending)) for one in (_bytes_on_disk, _is_on_disk))

    def leave_out(self) -> int:
        """Forget the first section that is pending, of a stream that has more; says how many tuples it had."""
        first, then = self.pending[0], self.pending[1]
        assert isinstance(first, Relayed)
        assert isinstance(then, Relayed)
        self._take(first, None)
        self.pending[0] = instead = then.instead_of(first)
        self.size += instead.nbytes - then.nbytes
        self.on_disk += _bytes_on_disk(instead) - _bytes_on_disk(then)
        return len(first)

    def take(self, count: int) -> Admitted | Relayed:
        """The next rows, so many of them, all from the first batch that is pending; one more, not to cut a pair."""
        first = self.pending[0]
        count = first.whole(count)
        return self._take(*first.split(count)) if count < len(first) else self._take(first, None)

    def nothing(self) -> Admitted | Relayed:
        """No rows, as of the last train."""
        none = np.empty(0, np.int64)
        if isinstance(self.entry, Relay):
            rows = empty_rows(self.schema.remove(len(self.schema) - 1))
            return Relayed(self.cut, Section(self.cut.position, rows, none, none, none, self.cut.boundary))
        return Admitted(self.cut, self.schema.empty_table(), none, none, none, none, np.empty(0, np.bool_))

    def take_until(self, position: int, boundary: int) -> Relayed | None:
        """The next tuples and boundaries, but nothing behind that place; None if there are none, so far."""
        if not self.pending:
            return None
        first = self.pending[0]
        assert isinstance(first, Relayed)
        early, late = first.part(position, boundary)
        return None if early is None else self._take(early, late)

    def ends_with_row(self, count: int) -> bool:
        """Whether the first so many events can be taken as they are."""
        for part in self.pending:
            if count <= len(part.reached):
                return part.ends_with_row(count)
            count -= len(part.reached)
        return True

    @property
    def ends_silently(self) -> bool:
        """Whether it has ended and no train knows; a stream says so itself."""
        return self.source_ended and not self.done and isinstance(self.entry, EntryPoint)

    @property
    def crowded(self) -> bool:
        """Whether its source waits for room."""
        return self.read.full() or self.source_ended

    @property
    def at_jump(self) -> bool:
        """Whether ids were left out before what comes next: whatever comes of that gets ids behind a hole, too."""
        first = self.pending[0] if self.pending else None
        return isinstance(first, Relayed) and first.jumps

    @property
    def urgent(self) -> bool:
        """Whether something is pending beside tuples that came in time, and boundaries among them."""
        if self.failure is not None or self.idle_tail or self.at_jump or (self.source_ended and not self.done):
            return True
        return any(isinstance(part, Admitted) and part.late.any() for part in self.pending)

    def is_beyond(self, position: int) -> bool:
        """Whether what comes next lies behind this place: ids were left out, or tuples dropped, in between."""
        first = self.pending[0] if self.pending else None
        return isinstance(first, Relayed) and first.section.first > position

    def full(self, admission: Admission) -> bool:
        """Whether this is a train's worth. A single row is not: it may have to wait for the one behind it."""
        return self.rows > 1 and (self.rows >= admission.rows_most or self.size >= admission.bytes_most)

    def take_events(self, count: int) -> Admitted | Relayed:
        """The next events, so many of them, or all of the first batch that is pending."""
        first = self.pending[0]
        return self._take(*first.part_at(count)) if count < len(first.reached) else self._take(first, None)

    def _take(self, early: Taken, late: Admitted | Relayed | None) -> Taken:
        """Of the first batch that is pending, `early`; the rest stays."""
        self.pending.popleft()
        if late is not None:
            self.pending.appendleft(late)
        else:
            self.pieces -= _is_on_disk(early)
        self.rows -= len(early)
        self.size = max(0, self.size - early.nbytes) if self.pending else 0
        self.on_disk = max(0, self.on_disk - _bytes_on_disk(early)) if self.pending else 0
        return early

    @property
    def done(self) -> bool:
        return self.cut.ended


def _is_on_disk(part: Admitted | Relayed) -> bool:
    return isinstance(part, Relayed) and part.section.on_disk


def _bytes_on_disk(part: Admitted | Relayed) -> int:
    return part.nbytes if _is_on_disk(part) else 0


def _run(parts: Iterable[Admitted | Relayed]) -> list[Relayed]:
    """The first of them, if they are in memory and can be one piece on disk."""
    run, size = list[Relayed](), 0
    for part in parts:
        if not isinstance(part, Relayed) or part.section.on_disk or size >= PIECE_BYTES:
            break
        if run and not part.goes_on(run[-1]):
            break
        run.append(part)
        size += part.nbytes
    return run


@dataclass(frozen=True)
class InputSlice:
    """Consecutive rows of one input within a train, then boundaries that stand behind them."""

    name: str
    rows: Admitted | Relayed
    tail: tuple[int, ...]

    def __len__(self) -> int:
        """How many events it is."""
        return (int(self.rows.row_events[-1]) + 1 if len(self.rows) else 0) + len(self.tail)
