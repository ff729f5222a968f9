"""Aggregate over time windows (Hwang's algorithm 5), kept in panes: each row is folded once, however windows overlap.

A pane is the greatest stretch of time that no window's edge cuts. What a train changes is the panes its rows fall
into; a window is put together from its panes when the boundary reaches its end. The time of its result is its last
instant, so that the result lies in the same window of an aggregate further down.
"""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa

from borealis.kernels.accumulators import AggregateCall, calls_of
from borealis.kernels.columns import Columns, concat, distinct_pairs, take, to_table, whole
from borealis.kernels.entries import Entries
from borealis.kernels.flow import NOTHING, Bounds, Flow, empty_flow
from borealis.kernels.groups import END, GROUP, GROUPS, START, Grouped, inside_windows, like
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import FIRST_TIME, LAST_TIME, TIME, Int64s

PANE, FIRST_CAUSE, FIRST_SUB = "pane", "first_cause", "first_sub"
PANES = TableSpec("panes", (PANE, GROUP), floor=PANE)
CHUNKS_MOST = 32  # sealed chunks held apart before they are joined into one


class AggregateKernel(Grouped):
    """State: `groups` (number to key) and `panes` (pane and group to accumulators)."""

    tables = (GROUPS, PANES)
    key = PANE, GROUP

    def __init__(self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall]) -> None:
        super().__init__(schema, by, calls)
        self.size, self.slide = size, slide
        self.width = math.gcd(size, slide)
        self.last_pane = NOTHING  # of each group number: the newest pane that has it
        self.open = self._started({PANE: NOTHING, GROUP: NOTHING, FIRST_CAUSE: NOTHING, FIRST_SUB: NOTHING})
        self.sealed: list[Columns] = []  # panes that can no longer change, oldest first

    @property
    def open(self) -> Columns:
        """The entries of panes that may change, all of them: what only needs some asks `entries`."""
        return self.entries.all()

    @open.setter
    def open(self, entries: Columns) -> None:
        self.entries = Entries(self.key, entries)

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Fold the rows into panes, then emit every window whose end the boundary has reached."""
        bounds = flow.bounds
        self._seal(bounds.standing)
        touched, fresh = self._fold(flow)
        out = self._emit(bounds)
        floor_before, floor = self._floor(bounds.standing), self._floor(bounds.final)
        dead: list[int] = []
        if floor > floor_before:
            self._evict(floor)
            gone = np.flatnonzero((self.last_pane < floor) & (self.last_pane > FIRST_TIME))
            self.last_pane[gone] = FIRST_TIME
            dead = gone.tolist()
        delta = self._delta(touched, fresh, dead, floor if floor > floor_before else None)
        self.groups.cut(dead)
        return out, delta

    def _fold(self, flow: Flow) -> tuple[Columns, list[int]]:
        flow = inside_windows(flow, self.size, self.slide)
        if not len(flow):
            return self.entries.none, []
        group, fresh = self.groups.encode([flow.rows[c] for c in self.by], len(flow))
        return self._absorb(flow, group), fresh

    def _absorb(self, flow: Flow, group: Int64s) -> Columns:
        """Fold rows of these groups into their panes; those panes."""
        panes, groups, slot, first = self._panes_of(flow, group)
        touched = self._stored_or_new(panes, groups, flow, first)
        touched = self._added(touched, lambda name: whole(flow.rows[name]), slot, flow.time)
        self._put(touched)
        self._note_groups(groups, panes)
        return touched

    def _panes_of(self, flow: Flow, group: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Where each pane of each group begins, in order; which group; the place among them of each row; and the first
        row of each."""
        panes, groups, slot = distinct_pairs(np.floor_divide(flow.time, self.width), group, self.groups.capacity)
        first = np.empty(len(panes), np.int64)
        first[slot[::-1]] = np.arange(len(slot) - 1, -1, -1)
        return panes * self.width, groups, slot, first

    def _stored_or_new(self, panes: Int64s, groups: Int64s, flow: Flow, first: Int64s) -> Columns:
        head = {PANE: panes, GROUP: groups, FIRST_CAUSE: flow.cause[first], FIRST_SUB: flow.sub[first]}
        new = self._started(head)
        stored, found = self.entries.stored(panes, groups)
        if not found.any():
            return new
        index = np.arange(len(panes))
        index[found] = len(panes) + np.arange(len(stored[PANE]))
        return take(concat([new, stored]), index)

    def _put(self, entries: Columns) -> None:
        self.entries.put(entries)

    def _note_groups(self, groups: Int64s, panes: Int64s) -> None:
        self.last_pane = self.groups.grown(self.last_pane, FIRST_TIME)
        np.maximum.at(self.last_pane, groups, panes)

    # -- windows

    def _emit(self, bounds: Bounds) -> Flow:
        entries = self._closing(bounds)
        if entries is None:
            return empty_flow(self.schema, bounds)
        pane = entries[PANE]
        # window ends that hold a pane: newest, newest - slide, ...; of these, the ones in (standing, final]
        newest = np.floor_divide(pane, self.slide) * self.slide + self.size
        low = max(bounds.standing, int(newest.min()) - self.size - self.slide)
        high = min(bounds.final, int(newest.max()))
        first = np.maximum(0, -np.floor_divide(high - newest, self.slide))
        last = np.minimum(np.floor_divide(newest - low - 1, self.slide), np.floor_divide(newest - pane - 1, self.slide))
        times = np.maximum(last - first + 1, 0)
        index = np.repeat(np.arange(len(pane)), times)
        nth = np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)
        end = newest[index] - (first[index] + nth) * self.slide
        index, end = self._counting(entries, index, end, bounds)
        if not len(end):
            return empty_flow(self.schema, bounds)
        number = np.floor_divide(end - self.size, self.slide)
        windows, groups, slot = distinct_pairs(number, entries[GROUP][index], self.groups.capacity)
        ends = windows * self.slide + self.size
        order = _by_first(entries, index, slot, ends)
        closed = self._combined({GROUP: groups, END: ends}, entries, index, slot)
        closed = take(closed, order)
        return self._results(closed, self.groups.keys(closed[GROUP]), self._closing_cause(closed[END], bounds), bounds)

    def _closing_cause(self, end: Int64s, bounds: Bounds) -> Int64s:
        """The causes of the boundaries that close windows with these ends."""
        return bounds.cause[np.searchsorted(bounds.time, end, "left")]

    def _counting(self, entries: Columns, index: Int64s, end: Int64s, bounds: Bounds) -> tuple[Int64s, Int64s]:
        """Of entries in windows that close, those that count there: all."""
        return index, end

    def _combined(self, head: Columns, entries: Columns, index: Int64s, slot: Int64s) -> Columns:
        """Windows with these groups and ends, each put together from its panes in order of time."""
        end = head[END]
        closed = head | {START: end - self.size, TIME: end - 1}
        for i, acc in enumerate(self.accumulators):
            whole_windows = acc.combine(take(self._of_call(entries, i), index), slot, len(end))
            closed |= {f"{k}{i}": v for k, v in whole_windows.items()}
        return closed

    def _closing(self, bounds: Bounds) -> Columns | None:
        """The entries of panes in windows that close now, oldest pane first; None when no window closes."""
        oldest = oldest_needed(bounds.standing, self.size, self.slide)
        if oldest_needed(bounds.final, self.size, self.slide) == oldest:
            return None
        parts = self._between(oldest, bounds.final)
        return concat(parts) if parts else None

    def _parts(self) -> list[Columns]:
        """All entries, oldest pane first."""
        return [*self.sealed, self.open]

    def _between(self, start: int, end: int) -> list[Columns]:
        """The entries of panes in a span of time, oldest pane first."""
        parts = []
        for part in self._parts():
            low, high = np.searchsorted(part[PANE], (start, end)).tolist()
            if low < high:
                parts.append(part if high - low == len(part[PANE]) else take(part, np.arange(low, high)))
        return parts

    # -- retention

    def _floor(self, boundary: int) -> int:
        return oldest_needed(boundary, self.size, self.slide)

    def _seal(self, boundary: int) -> None:
        split = self._changeless(boundary)
        if split:
            self.sealed.append(take(self.open, np.arange(split)))
            self.open = take(self.open, np.arange(split, len(self.open[PANE])))
            if len(self.sealed) > CHUNKS_MOST:
                self.sealed = [concat(self.sealed)]

    def _changeless(self, boundary: int) -> int:
        """How many of the open entries are of panes that this boundary has passed."""
        least = self.entries.least()
        if least is None or boundary <= FIRST_TIME + self.width or least > boundary - self.width:
            return 0
        return int(np.searchsorted(self.open[PANE], boundary - self.width, "right"))

    def _evict(self, floor: int) -> None:
        def alive(part: Columns) -> Columns:
            split = int(np.searchsorted(part[PANE], floor, "left"))
            return take(part, np.arange(split, len(part[PANE]))) if split else part

        self.sealed = [part for part in map(alive, self.sealed) if len(part[PANE])]
        self.open = alive(self.open)

    # -- tables

    def _delta(self, touched: Columns, fresh: list[int], dead: list[int], floor: int | None) -> Delta:
        delta = self.group_delta(fresh, dead)
        if floor is not None:
            touched = take(touched, np.flatnonzero(touched[PANE] >= floor))
        if len(touched[PANE]) or floor is not None:
            delta = {PANES.name: Change(to_table(touched), floor=floor)} | delta
        return delta

    def apply(self, delta: Delta) -> None:
        cut = self._apply_groups(delta)
        self.last_pane[[n for n in cut if n < len(self.last_pane)]] = FIRST_TIME  # others were born and died in between
        if (panes := delta.get(PANES.name)) is not None:
            if panes.floor is not None:
                self._evict(panes.floor)
            if panes.put.num_rows:
                entries = like(self.entries.none, panes.put)
                if self.sealed and entries[PANE].min() <= self.sealed[-1][PANE][-1]:
                    # a change that is known in part already: what was sealed is put once more
                    self.open, self.sealed = concat([*self.sealed, self.open]), []
                self._put(entries)
                self._note_groups(entries[GROUP], entries[PANE])

    def tables_now(self) -> dict[str, pa.Table]:
        panes = concat([*self.sealed, self.open])
        return {GROUPS.name: self._group_table(self.groups.alive()), PANES.name: to_table(panes)}


def oldest_needed(boundary: int, size: int, slide: int) -> int:
    """The time before which no window needs anything that is still open at this boundary; rises as windows close.

    >>> oldest_needed(1_999, 1_000, 500), oldest_needed(2_000, 1_000, 500)
    (1000, 1500)
    """
    if boundary <= FIRST_TIME + size + slide or boundary == LAST_TIME:
        return boundary
    return ((boundary - size) // slide + 1) * slide


def make(step: Step) -> AggregateKernel:
    o = step.options
    return AggregateKernel(schema_of(o["schema"]), o["by"], o["size"], o["slide"], calls_of(step))


def _by_first(entries: Columns, index: Int64s, slot: Int64s, ends: Int64s) -> Int64s:
    """The order of results: by window end, then by the first row that each window's group saw."""
    cause, sub = entries[FIRST_CAUSE][index], entries[FIRST_SUB][index]
    most = np.iinfo(np.int64).max
    first = np.full(len(ends), most)
    np.minimum.at(first, slot, cause)
    second = np.full(len(ends), most)
    earliest = cause == first[slot]
    np.minimum.at(second, slot[earliest], sub[earliest])
    return np.lexsort((second, first, ends))
