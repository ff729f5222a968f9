"""Aggregate over time windows with a timeout whose input carries revisions.

A row touches the windows of time that it lies in, and no others; in each, parts may begin and end elsewhere. A part is
the same one before and after a cause if it begins at the same time.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from borealis.kernels.flow import NOTHING, differs
from borealis.kernels.groups import GROUPS
from borealis.kernels.held_rows import HELD
from borealis.kernels.open_windows import OPEN, OPENED, WINDOW
from borealis.kernels.revised_open_windows import Moments, Pool, RevisedOpenWindows, States
from borealis.kernels.step import Step, schema_of
from borealis.kernels.timed_windows import make as make_plain
from borealis.state.delta import TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, TIME, Int64s


class RevisedTimedWindows(RevisedOpenWindows):
    """State: `groups` (number to key), `rows`, and where the history begins `open` (group, window to accumulators)."""

    tables: ClassVar[tuple[TableSpec, ...]] = (GROUPS, HELD, OPEN)
    identity = (WINDOW, OPENED)

    def _since(self, groups: Int64s, time: Int64s, standing: int) -> Int64s:
        return np.maximum(self._first(time) * self.base.slide, self._oldest(standing))

    def _first(self, time: Int64s) -> Int64s:
        """The first window that ends after a time."""
        least = FIRST_TIME + self.base.size + self.base.slide
        first: Int64s = np.floor_divide(np.maximum(time, least) - self.base.size, self.base.slide) + 1
        return first

    def _steps(self, pool: Pool) -> States:
        place, slot, cause = (pool.events[name] for name in ("place", "slot", CAUSE))
        time = pool.rows[TIME][place]
        first, last = self._first(time), np.floor_divide(time, self.base.slide)
        new = np.ones(len(slot), np.bool_)  # what lies far apart is looked at one by one
        new[1:] = (slot[1:] != slot[:-1]) | (cause[1:] != cause[:-1]) | (first[1:] > last[:-1] + 1)
        begin = np.flatnonzero(new)
        last = last[np.append(begin[1:], len(slot)) - 1] if len(slot) else NOTHING
        return self._states(pool, slot[begin], cause[begin], pool.bounds.at(cause[begin]), first[begin], last)

    def _dues(self, pool: Pool, moments: Moments) -> States:
        low, high = self._spoken_of(pool)
        first = np.maximum(low[moments.slot], self._first(moments.since))
        return self._states(pool, moments.slot, moments.cause, moments.boundary, first, high[moments.slot])

    def _states(self, pool: Pool, slot: Int64s, cause: Int64s, boundary: Int64s, first: Int64s, last: Int64s) -> States:
        start = pool.place(slot, first * self.base.slide)
        end = pool.place(slot, np.minimum(last * self.base.slide + self.base.size, boundary))
        return States(slot, cause, boundary, first, last, start, np.maximum(start, end), np.zeros(len(slot), np.int64))

    def _spoken_of(self, pool: Pool) -> tuple[Int64s, Int64s]:
        slot, time = pool.events["slot"], pool.rows[TIME][pool.events["place"]]
        low, high = np.full(len(pool.groups), 1), np.zeros(len(pool.groups), np.int64)  # none
        begin = np.flatnonzero(differs(slot))
        if len(begin):
            low[slot[begin]] = np.minimum.reduceat(self._first(time), begin)
            high[slot[begin]] = np.maximum.reduceat(np.floor_divide(time, self.base.slide), begin)
        return low, high


def make(step: Step) -> RevisedTimedWindows:
    return RevisedTimedWindows(make_plain(step), schema_of(step.options["schema"]), step.options["history"])
