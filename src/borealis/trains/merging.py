"""Merge orders: which rows of which inputs go into the next train, and in which order.

`ByTime` is for finite, replayable inputs (files): the tuple whose input had come less far goes first, so that a replay
gives the same order every time. `ByArrival` takes live inputs as they come. `ByReplay` repeats what another copy of the
unit did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from borealis.clock import Clock
from borealis.entry.admission import Admitted
from borealis.threads import Lock
from borealis.trains.intake import Admission, InputSlice, Intake
from borealis.trains.merge_order import Determinant
from borealis.trains.relay import Relayed
from borealis.tuples import FIRST_TIME, LAST_TIME, Int64s

Intakes = Mapping[str, Intake]


@dataclass(frozen=True)
class Merged:
    """What goes into a train: pieces, one behind the other, or their rows in the order that `order` says.

    No pieces: nothing can go into the next train yet.
    """

    pieces: list[InputSlice]
    order: Int64s | None = None
    silent: bool = False  # what comes of it is known downstream already
    free: bool = True  # merged as tuples arrived, not as a replay says


@dataclass(frozen=True)
class Replay:
    """What to read next, in this order, whatever arrives first."""

    order: tuple[Determinant, ...]
    silent: bool = False


class ByArrival:
    """What is pending, each input its share: a fast one must not keep the others waiting."""

    def __init__(self, intakes: Intakes, admission: Admission, clock: Clock) -> None:
        self._intakes, self._admission, self._clock = intakes, admission, clock

    def next(self) -> Merged:
        """Where ids jumped a train begins, whatever the others have: the same place for all copies of a unit."""
        self._write_idle_boundaries()
        rows, size = self._admission.rows_most, self._admission.bytes_most
        pieces: list[InputSlice] = []
        waiting = sorted((not i.at_jump, i.rows, name) for name, i in self._intakes.items() if i.pending)
        for n, (_, _, name) in enumerate(waiting):
            intake, shares = self._intakes[name], len(waiting) - n
            rows_mine, size_mine = max(1, rows // shares), size // shares
            while intake.pending and rows_mine > 0 and not (pieces and intake.at_jump):
                first = intake.pending[0]
                fit = size_mine // max(1, first.nbytes // max(1, len(first)))
                if fit < 1 and pieces and pieces[-1].name == name:
                    break
                piece = _take(name, intake, min(len(first), max(1, min(rows_mine, fit))))
                pieces.append(piece)
                rows_mine, rows = rows_mine - len(piece.rows), rows - len(piece.rows)
                size_mine, size = size_mine - piece.rows.nbytes, size - piece.rows.nbytes
        for name, intake in self._intakes.items():
            ends = intake.idle_tail or intake.source_ended
            if ends and not intake.pending and not intake.done:
                pieces.append(_take(name, intake, 0))
        return Merged(pieces)

    def _write_idle_boundaries(self) -> None:
        now = self._clock.now()
        for name, intake in self._intakes.items():
            spec, cursor = intake.entry.spec, intake.entry.cursor
            if spec.idle_us is None or intake.pending or intake.source_ended or not intake.read.empty():
                continue
            if intake.failure is not None or getattr(intake.source, "finite_and_ordered", False):
                continue  # a file is never silent, only slow: its boundaries must not depend on the clock
            silent_us = int((now - intake.last_arrival) * 1e6)
            if silent_us < spec.idle_us:
                continue
            others = [i.entry.cursor.boundary for n, i in self._intakes.items() if n != name and not i.source_ended]
            upto = max(others, default=FIRST_TIME)
            if cursor.newest > FIRST_TIME:
                upto = max(upto, cursor.newest + silent_us - spec.slack_us)
            if upto > FIRST_TIME and (bound := intake.entry.idle(upto)) is not None:
                intake.idle_tail.append(bound)


class ByTime:
    """All rows that no row still to be read can come before, by (newest time of their input, input, position)."""

    def __init__(self, intakes: Intakes, admission: Admission) -> None:
        self._intakes, self._admission = intakes, admission

    def next(self) -> Merged:
        """Waits until each input has rows, or has ended."""
        if not all(i.pending or i.source_ended for i in self._intakes.values()):
            return Merged([])
        free = {}
        weights = []
        for number, (name, intake) in enumerate(self._intakes.items()):
            whole = intake.joined()
            intake.pending = deque([whole] if whole is not None else [])
            newest = whole.newest if whole is not None else np.empty(0, np.int64)
            free[name] = newest[: self._free(number, intake, newest)]
            weights.append(intake.size / max(1, intake.rows))
        which = np.repeat(np.arange(len(free)), [len(f) for f in free.values()])
        order = np.lexsort((which, np.concatenate(list(free.values()))))[: self._admission.rows_most]
        room = np.searchsorted(np.cumsum(np.array(weights)[which[order]]), self._admission.bytes_most, "right")
        order = order[: max(1, int(room))]
        counts = np.bincount(which[order], minlength=len(free))
        pieces = []
        for (name, intake), count in zip(self._intakes.items(), counts.tolist(), strict=True):
            if count or (intake.source_ended and not intake.rows and not intake.done and self._may_end(intake)):
                pieces.append(_take(name, intake, count))
        taken = np.zeros(len(which), np.int64)
        taken[order] = 1
        return Merged(pieces, (np.cumsum(taken) - 1)[order])

    def _free(self, number: int, intake: Intake, newest: Int64s) -> int:
        """How many of an input's rows no row still to be read can come before.

        Its last row waits until the next one is there, or the end, which stands right behind the last row.
        """
        free = len(newest)
        if free and not intake.source_ended and intake.failure is None:
            free -= 1
        for other, theirs in enumerate(self._intakes.values()):
            if other != number and not theirs.source_ended:
                side: Literal["left", "right"] = "right" if number < other else "left"
                free = min(free, int(np.searchsorted(newest, theirs.entry.cursor.newest, side)))
        return free

    def _may_end(self, intake: Intake) -> bool:
        """Whether no row still to come goes before the end of an input whose rows are all in trains."""
        mine = intake.entry.cursor.newest
        others = [i for i in self._intakes.values() if i is not intake]
        return all(i.source_ended or i.entry.cursor.newest > mine for i in others)


class ByReplay:
    """What is there of the first replay that is not done, in its order; a train does not go beyond a replay."""

    def __init__(self, intakes: Intakes, admission: Admission, lock: Lock) -> None:
        self._intakes, self._admission, self._lock = intakes, admission, lock
        self._scripts: deque[Replay] = deque()
        self.only = False  # without a replay there is nothing to do

    @property
    def active(self) -> bool:
        """Whether trains are made as replays say."""
        return bool(self._scripts) or self.only

    @property
    def unfinished(self) -> bool:
        """Whether there is a replay that is not done, or may come."""
        cuts = {name: (intake.cut.position, intake.cut.boundary) for name, intake in self._intakes.items()}
        return self.only or any(cuts[n] < (at, bound) for s in self._scripts for n, at, bound in s.order)

    def add(self, replays: Iterable[Replay]) -> None:
        self._scripts.extend(replays)

    def next(self) -> Merged:
        """As far as the tuples are there."""
        pieces: list[InputSlice] = []
        room = self._admission.rows_most
        while self._scripts and not pieces:
            replay = self._scripts[0]
            left = deque(replay.order)
            while left and room > 0:
                name, position, boundary = left[0]
                intake = self._intakes[name]
                while (intake.cut.position, intake.cut.boundary) < (position, boundary) and room > 0:
                    if pieces and intake.at_jump and not intake.is_beyond(position):
                        room = 0
                        break
                    taken = intake.take_until(position, boundary)
                    if taken is None:
                        break
                    pieces.append(_cut(name, intake, taken, taken.tail()))
                    room -= len(taken)
                behind = (intake.cut.position, intake.cut.boundary) < (position, boundary)
                if behind and not intake.is_beyond(position):
                    break
                left.popleft()
            with self._lock:
                self._scripts.popleft()
                if left:
                    self._scripts.appendleft(Replay(tuple(left), replay.silent))
            if left:
                break
        return Merged(pieces, silent=replay.silent if pieces else False, free=False)


def _take(name: str, intake: Intake, count: int) -> InputSlice:
    """The next rows of one input, with what stands behind them if they are its last for now."""
    first = intake.take(count) if intake.pending else intake.nothing()
    tail = first.tail()
    if not intake.pending:
        tail, intake.idle_tail = (*tail, *intake.idle_tail), []
        if intake.source_ended and tail[-1:] != (LAST_TIME,):
            tail += (LAST_TIME,)
    return _cut(name, intake, first, tail)


def _cut(name: str, intake: Intake, rows: Admitted | Relayed, tail: tuple[int, ...]) -> InputSlice:
    cut = rows.cursor(len(rows))
    intake.cut = replace(cut, boundary=tail[-1], ended=tail[-1] == LAST_TIME) if tail else cut
    return InputSlice(name, rows, tail)
