"""Merge orders: which rows of which inputs go into the next train, and in which order.

`ByTime` is for what gives the same whenever it is read (files, and streams where that is asked for): the tuple whose
input had come less far goes first, so that every copy of a unit has the same order. `ByArrival` takes live inputs as
they come. `ByReplay` repeats what another copy of the unit did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from borealis.clock import Clock
from borealis.entry.admission import Admitted
from borealis.streams.section import Place
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
        self.rows_most = admission.rows_most  # of a train

    def next(self) -> Merged:
        """Where ids jumped a train begins, whatever the others have: the same place for all copies of a unit."""
        self._write_idle_boundaries()
        rows, size = self.rows_most, self._admission.bytes_most
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
    """SUnion (DPC 4.2): tuples and boundaries of all inputs by (how far their input has come, input, place in it).

    The order is a function of the streams: whoever reads them has the same. What no event still to come can go before
    is free: all before the bucket of time in which the slowest input is, or, where a bucket is more than a train can
    take, all before what the slowest input may still give.
    """

    def __init__(self, intakes: Intakes, admission: Admission, bucket_us: int = 1) -> None:
        self._intakes, self._admission, self._bucket = intakes, admission, bucket_us
        self.rows_most = admission.rows_most  # of a train

    def next(self, until: Mapping[str, Place] | None = None) -> Merged:
        """What is free of what is there, and not behind some places. Where ids jumped, a train begins."""
        intakes = self._intakes.values()
        exactly = self._bucket == 1 or any(i.failure is not None or i.full(self._admission) for i in intakes)
        limits = self._limits(1 if exactly else self._bucket)
        found: list[Int64s] = []  # how far the inputs have come with each event that may go
        ends = [0]  # of each input's among them
        jumps: list[int] = []  # which of them are the first behind a jump
        for number, (name, intake) in enumerate(self._intakes.items()):
            limit, other = self._limit_of(number, limits, exactly)
            side: Literal["left", "right"] = "right" if number < other else "left"
            total = ends[-1]
            for part in intake.pending:
                count = int(np.searchsorted(part.reached, limit, side))
                if isinstance(part, Relayed):
                    count = min(count, part.events_until(until[name])) if until and name in until else count
                    jumps += [total] if count and part.jumps else []
                found.append(part.reached[:count])
                total += count
                if count < len(part.reached) or total - ends[-1] >= self.rows_most:
                    break
            else:
                if intake.ends_silently and (intake.entry.cursor.newest, number) < (limit, other):
                    found.append(np.array([intake.entry.cursor.newest]))
                    total += 1
            ends.append(total)
        if not total:
            return Merged([])
        free = np.diff(ends)
        which = np.repeat(np.arange(len(free)), free)
        order = self._cut(np.lexsort((which, np.concatenate(found))), which, jumps)
        counts = np.bincount(which[order], minlength=len(free)).tolist()
        pieces = [piece for name, count in zip(self._intakes, counts, strict=True) for piece in self._take(name, count)]
        taken = np.zeros(len(which), np.int64)
        taken[order] = 1
        return Merged(pieces, (np.cumsum(taken) - 1)[order])

    def _limit_of(self, number: int, limits: list[tuple[int, int]], exactly: bool) -> tuple[int, int]:
        """Before what an input is free, and which one may give that."""
        all_limits = (one for n, one in enumerate(limits) if n != number or not exactly)
        return min(all_limits, default=(LAST_TIME, number + 1))

    def held_up_by(self) -> list[str]:
        """The inputs that the others wait for, if there is something that waits."""
        limits = self._limits(self._bucket)
        slowest = min(limit for limit, _ in limits)
        found = [name for (limit, _), name in zip(limits, self._intakes, strict=True) if limit == slowest]
        others = [i for name, i in self._intakes.items() if name not in found]
        return found if any(i.pending for i in others) and slowest < LAST_TIME else []

    def _limits(self, bucket: int) -> list[tuple[int, int]]:
        """For each input what goes before all that it may still give, in whole buckets."""
        found = []
        for number, intake in enumerate(self._intakes.values()):
            reached = LAST_TIME if intake.source_ended else intake.entry.cursor.reached
            found.append((reached if reached in (FIRST_TIME, LAST_TIME) else reached // bucket * bucket, number))
        return found

    def _cut(self, order: Int64s, which: Int64s, jumps: list[int]) -> Int64s:
        """The beginning of the order that goes into a train."""
        size = np.array([i.size / max(1, i.rows) for i in self._intakes.values()])
        room = int(np.searchsorted(np.cumsum(size[which[order]]), self._admission.bytes_most, "right"))
        stop = max(1, min(len(order), self.rows_most, room))
        if jumps:
            behind = np.flatnonzero(np.isin(order, jumps))
            stop = min([stop, *behind[behind > 0].tolist()])
        last = int(which[order[stop - 1]])
        intake = list(self._intakes.values())[last]
        if not intake.ends_with_row(int((which[order[:stop]] == last).sum())):
            stop += 1
        return order[:stop]

    def _take(self, name: str, count: int) -> list[InputSlice]:
        intake, pieces = self._intakes[name], []
        while count:
            rows = intake.take_events(count) if intake.pending else intake.nothing()
            tail = rows.tail()
            count -= len(rows.reached)
            if count and not intake.pending:  # the end of a source
                tail, count = (LAST_TIME,), count - 1
            pieces.append(cut_off(name, intake, rows, tail))
        return pieces


class ByReplay:
    """What is there of the first replay that is not done, in its order; a train does not go beyond a replay.

    Where all copies read by time, the order is known, and a replay says only up to where.
    """

    def __init__(self, intakes: Intakes, admission: Admission, lock: Lock, by_time: ByTime | None = None) -> None:
        self._intakes, self._admission, self._lock, self._by_time = intakes, admission, lock, by_time
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
        if self._by_time is not None:
            return self._next_by_time(self._by_time)
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
                    pieces.append(cut_off(name, intake, taken, taken.tail()))
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

    def _next_by_time(self, by_time: ByTime) -> Merged:
        merged = Merged([], free=False)
        while self._scripts and not merged.pieces:
            replay = self._scripts[0]
            until = {name: (position, boundary) for name, position, boundary in replay.order}
            merged = replace(by_time.next(until), silent=replay.silent, free=False)
            intakes = [(self._intakes[name], place) for name, place in until.items()]
            if any((i.cut.position, i.cut.boundary) < place and not i.is_beyond(place[0]) for i, place in intakes):
                break
            with self._lock:
                self._scripts.popleft()
        return merged


def _take(name: str, intake: Intake, count: int) -> InputSlice:
    """The next rows of one input, with what stands behind them if they are its last for now."""
    first = intake.take(count) if intake.pending else intake.nothing()
    tail = first.tail()
    if not intake.pending:
        tail, intake.idle_tail = (*tail, *intake.idle_tail), []
        if intake.source_ended and tail[-1:] != (LAST_TIME,):
            tail += (LAST_TIME,)
    return cut_off(name, intake, first, tail)


def cut_off(name: str, intake: Intake, rows: Admitted | Relayed, tail: tuple[int, ...]) -> InputSlice:
    """These rows of an input and what stands behind them, as a part of the next train."""
    cut = rows.cursor(len(rows))
    intake.cut = replace(cut, boundary=tail[-1], ended=tail[-1] == LAST_TIME) if tail else cut
    return InputSlice(name, rows, tail)
