"""Aggregate over count windows whose input carries revisions.

A row that comes or goes moves all that follow it to other numbers, so windows change from there to the present
(Borealis 3.2); if as many come as go, only up to the last of them. A window is the same one before and after a cause if
it has the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from borealis.kernels.count_windows import COUNTS, CountWindows
from borealis.kernels.count_windows import make as make_plain
from borealis.kernels.flow import differs
from borealis.kernels.groups import GROUPS
from borealis.kernels.held_rows import HELD
from borealis.kernels.open_windows import OPEN, WINDOW
from borealis.kernels.revised_open_windows import (
    AT_LAST,
    BORN,
    ENDLESS,
    SLOT,
    Moments,
    Pool,
    Replay,
    RevisedOpenWindows,
    States,
)
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import TableSpec
from borealis.tuples import FIRST_TIME, TIME, Int64s

FURTHER = 8  # times as far back as before, if there were too few rows


@dataclass(frozen=True)
class _Numbered:
    """A pool whose rows have numbers; `least` is that of each slot's first one."""

    pool: Pool
    least: Int64s

    @cached_property
    def _begin(self) -> Int64s:
        begin: Int64s = np.searchsorted(self.pool.rows[SLOT], np.arange(len(self.least)))
        return begin

    def number(self, place: Int64s, slot: Int64s, cause: Int64s) -> Int64s:
        """The number of a row at this place, after a cause."""
        number: Int64s = self.least[slot] - self._ahead(slot, cause) + self.pool.lives.before(place, cause)
        return number

    def place(self, number: Int64s, slot: Int64s, cause: Int64s, high: Int64s) -> Int64s:
        """Where the row with a number is, or `high`."""
        ahead = self._ahead(slot, cause)
        return self.pool.lives.place(number - self.least[slot] + ahead, cause, self._begin[slot], high)

    def _ahead(self, slot: Int64s, cause: Int64s) -> Int64s:
        return self.pool.lives.before(self._begin[slot], cause)


class RevisedCountWindows(RevisedOpenWindows):
    """State: `groups` (number to key), `rows`, and where the history begins `open` (group and window to accumulators)
    and `counts` (group to how many of its tuples there were)."""

    tables: ClassVar[tuple[TableSpec, ...]] = (GROUPS, HELD, OPEN, COUNTS)
    identity = (WINDOW,)
    base: CountWindows
    front: CountWindows

    def _since(self, groups: Int64s, time: Int64s, standing: int) -> Int64s:
        """As far back as the first window can reach that has one of these times, or is open."""
        floor, time = self._oldest(standing), np.minimum(time, standing)
        since = np.full(len(groups), floor)
        if floor == FIRST_TIME:
            return since
        back, left = np.maximum(standing - time, 1), np.arange(len(groups))
        while len(left):
            since[left] = np.maximum(time[left] - back[left], floor)
            owner, _ = self.held.find(groups[left], since[left], time[left] - 1)
            few = np.bincount(owner, minlength=len(left)) < self.base.size - 1
            left = left[few & (since[left] > floor)]
            back[left] *= FURTHER
        return since

    def _numbered(self, pool: Pool) -> _Numbered:
        stood = (pool.rows[BORN] == FIRST_TIME) & (pool.rows[TIME] < pool.bounds.standing)
        known = self.front.numbers.grown(self.front.counts, 0)[pool.groups]
        return _Numbered(pool, known - np.bincount(pool.rows[SLOT][stood], minlength=len(pool.groups)))

    def _steps(self, pool: Pool) -> States:
        rows, (place, slot, cause, sign) = self._numbered(pool), pool.events.values()
        begin = np.flatnonzero(differs(slot) | differs(cause))
        final = place[np.append(begin[1:], len(place)) - 1] if len(begin) else begin
        moves = np.add.reduceat(sign, begin) != 0 if len(begin) else np.zeros(0, np.bool_)
        place, slot, cause = place[begin], slot[begin], cause[begin]
        boundary = pool.bounds.at(cause)
        number = rows.number(place, slot, cause)
        last = (rows.number(final + 1, slot, cause) - 1) // self.base.slide
        states = self._states(rows, slot, cause, boundary, number)
        end = rows.place(last * self.base.slide + self.base.size, slot, cause, states.end)
        end = np.where(moves, states.end, np.maximum(final + 1, end))
        return replace(states, last=np.where(moves, ENDLESS, last), end=end)

    def _dues(self, pool: Pool, moments: Moments) -> States:
        rows, slot = self._numbered(pool), moments.slot
        number = rows.number(pool.place(slot, moments.since), slot, moments.cause)
        return self._states(rows, slot, moments.cause, moments.boundary, number)

    def _states(self, rows: _Numbered, slot: Int64s, cause: Int64s, boundary: Int64s, number: Int64s) -> States:
        """From the first window that ends behind the row with a number to the present."""
        end = rows.pool.place(slot, boundary)
        first = np.maximum(np.floor_divide(number - self.base.size, self.base.slide) + 1, 0)
        number = np.maximum(np.minimum(first * self.base.slide, number), rows.least[slot])
        start = rows.place(number, slot, cause, end)
        return States(slot, cause, boundary, first, np.full(len(slot), ENDLESS), start, end, number)

    def _spoken_of(self, pool: Pool) -> tuple[Int64s, Int64s]:
        many = len(pool.groups)
        return np.zeros(many, np.int64), np.full(many, ENDLESS)

    def _replayed(self, pool: Pool) -> Replay:
        replay = super()._replayed(pool)
        slot, bounds = np.arange(len(pool.groups)), pool.bounds
        there = pool.place(slot, np.full(len(slot), bounds.final))
        counts = self._numbered(pool).number(there, slot, np.full(len(slot), AT_LAST))
        self.front.counts = self.front.numbers.grown(self.front.counts, 0)
        self.front.counts[pool.groups] = counts
        return replay

    def _dead(self, candidates: Int64s) -> list[int]:
        counts = self.base.numbers.grown(self.base.counts, 0)
        return super()._dead(candidates[counts[candidates] == 0])


def make(step: Step) -> RevisedCountWindows:
    return RevisedCountWindows(make_plain(step), schema_of(step.options["schema"]), step.options["history"])
