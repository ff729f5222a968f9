"""The input of a unit that may fork, without threads: what comes is read as soon as it may, by a clock that is set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from borealis.clock import Clock
from borealis.entry.admission import Cursor
from borealis.machine import HERE, Machine
from borealis.streams.section import NOTHING, Section, boundary_only, wire_schema
from borealis.trains.forking import DelayBound, Forking, ForkLine, ForkRelay
from borealis.trains.intake import Admission, Intake
from borealis.trains.keeping import Keeping, KeepLimits
from borealis.trains.line import Line
from borealis.trains.merge_order import numbered
from borealis.trains.merging import ByTime
from borealis.trains.relay import Relay, StreamInput
from borealis.tuples import FIRST_TIME

SCHEMA = pa.schema([("n", pa.int64())])
BUCKET = 10
PATIENCE_S = 3.0


class Hand(Clock):
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 100.0

    def now(self) -> float:
        return self.at

    time = now

    def sleep(self, seconds: float) -> None:
        self.at += seconds


class NoSource:
    def sections(self, start: int, boundary: int) -> Iterator[Section]:
        return iter(())


class ForkedInput:
    """The input of a unit that reads some streams, without threads: what comes is read as soon as it may."""

    def __init__(self, folder: Path, *names: str, keep: KeepLimits | None = None, **policy: Any) -> None:
        self.clock = Hand()
        intakes = {
            name: Intake(
                Relay(StreamInput(name), Cursor()),
                NoSource(),
                wire_schema(SCHEMA),
                Cursor(),
                0.0,
                False,
                HERE.threads.mailbox(2),
            )
            for name in names
        }
        self.trunk = Line(intakes, folder)
        bound, several = DelayBound(PATIENCE_S, keep=keep or KeepLimits(), **policy), len(names) > 1
        self.keeping = Keeping(bound.keep, Machine(self.clock))
        self.begun: list[int | None] = []
        self.prepared: list[int] = []
        bucket = BUCKET if several else None
        self.recovered = 0  # how often recovery was done
        told = self.begun.append, self.prepared.append, self._note_recovery
        self.forking = Forking(self.trunk, Admission(), bucket, bound, self.clock, *told)
        self.order = ByTime(intakes, Admission(), BUCKET if several else 1)
        self.busy = False  # the trunk reads nothing
        self.forks = True  # there may be some
        self._next: dict[tuple[str, str], int] = {}
        self.stable: list[int] = []  # the values that the trunk has read
        self.causes: dict[int, tuple[str, int, int]] = {}  # of these: its stream, its id and the value
        self.tentative: list[int] = []  # and those that the fork has

    def give(
        self, name: str, times: list[int], bound: int | None = None, fork: str = "", first: int | None = None
    ) -> None:
        """Tuples with these times, which are their values, and a boundary behind them."""
        key = name, fork
        start = self._next.get(key, self._next.get((name, ""), 0)) if first is None else first
        self._next[key] = start + len(times)
        time = np.array(times, np.int64)
        at, bounds = np.array([start + len(times)]), np.array([bound])
        rows = pa.record_batch([time], schema=SCHEMA)
        self.forking.take_in(name, Section(start, rows, time, at, bounds, FIRST_TIME, fork))
        if not fork:
            self.keeping.note(name, start)
        self.read()
        self.has_room(name)

    def mark(self, name: str, **what: bool) -> None:
        """Say on a stream that what was tentative is void (`undo`), or corrected (`done`)."""
        first = self._next.get((name, ""), 0)
        self.forking.take_in(name, replace(boundary_only(first, SCHEMA, NOTHING, FIRST_TIME), **what))
        self.read()

    def _note_recovery(self) -> None:
        self.recovered += 1

    def has_room(self, name: str) -> bool:
        """Whether more may come of a stream; what is too much for memory goes to the disk."""
        fork = None if self.fork is None else self.fork.intakes[name]
        trunk, held = self.trunk.intakes[name], self.forking.holds(name)
        if not self.keeping.has_room(name, trunk, fork, held=held) and self.keeping.limits.gives_up and held:
            self.keeping.give_up(name, trunk)
        return self.keeping.has_room(name, trunk, fork, held=held)

    def floor(self, name: str) -> int:
        """Before which a row of a stream comes too late for the fork, if there is one."""
        entry = FIRST_TIME if self.fork is None else self.fork.intakes[name].entry
        return entry.floor if isinstance(entry, ForkRelay) else FIRST_TIME

    def wait(self, seconds: float) -> None:
        self.clock.at += seconds
        self.read()

    def read(self) -> None:
        """All that may be read now, in the trunk and in the fork; which is over when it is corrected."""
        while True:
            self.forking.settle()
            if not self.busy and not self.forking.waits() and (merged := self.order.next()).pieces:
                self.stable += self._taken(self.trunk, merged)
                if self.fork is not None and self.fork.is_corrected_by(self.trunk):
                    self.forking.end()
                    self.tentative.append(-1)
            elif (merged := self.forking.next()).pieces:
                assert self.fork is not None
                self.tentative += self._taken(self.fork, merged)
            elif self.forking.prepare(may=self.forks) is None and not self.forking.begin(may=self.forks):
                return

    @property
    def fork(self) -> ForkLine | None:
        return self.forking.fork

    def _taken(self, line: Line, merged: Any) -> list[int]:
        if line is self.trunk:
            for piece, cause in zip(merged.pieces, numbered(merged.pieces, merged.order, line.next_cause), strict=True):
                rows = piece.rows.section
                ids, values = range(rows.first, rows.stop), rows.rows["n"].to_pylist()
                found = zip(cause[piece.rows.row_events].tolist(), ids, values, strict=True)
                self.causes |= {at: (piece.name, n, value) for at, n, value in found}
        cut = line.cut(merged)
        line.add(cut)
        line.release(cut.train.number)
        return sorted(n for piece in merged.pieces for n in piece.rows.rows["n"].to_pylist())
