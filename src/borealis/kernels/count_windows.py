"""Aggregate over count windows (Hwang's algorithm 6): tuples of a group are numbered in order of time, from 0.

Window k has the tuples k * slide ... k * slide + size - 1. It closes with its last tuple, or, where there is a timeout,
when the boundary reaches its first tuple's time plus the timeout. Numbering goes on whatever closes, so a group's count
is kept for ever: without it the next window would begin at another tuple.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from borealis.kernels.accumulators import calls_of
from borealis.kernels.columns import Columns, concat, take
from borealis.kernels.flow import NOTHING
from borealis.kernels.groups import END, GROUP, START
from borealis.kernels.open_windows import DUE, OPENED, TIMED_OUT, OpenWindows
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import LAST_TIME, TIME, Int64s

COUNT = "count"
COUNTS = TableSpec("counts", (GROUP,))


class CountWindows(OpenWindows):
    """State: as all open windows, and `counts` (group to how many of its tuples were released)."""

    tables: ClassVar[tuple[TableSpec, ...]] = (*OpenWindows.tables, COUNTS)

    counts = NOTHING  # by group number

    def fork(self, groups: int, opened: Columns, counted: Int64s) -> Self:
        made = super().fork(groups, opened, counted)
        made.counts = counted
        return made

    def twin(self) -> Self:
        made = super().twin()
        made.counts = self.counts.copy()
        return made

    def _overlap(self, rows: int) -> int:
        begun = (int(self.counts.max(initial=0)) + rows) // self.slide + 1
        return min(-(-self.size // self.slide), begun)

    def _absorb(self, rows: Columns) -> Columns:
        group, time = rows[GROUP], rows[TIME]
        self.counts = self.numbers.grown(self.counts, 0)
        # a run: the rows of one group; they get the numbers from `before` up to `after`
        begin = np.flatnonzero(np.insert(group[1:] != group[:-1], 0, True))
        many = np.diff(np.append(begin, len(group)))
        before = self.counts[group[begin]]
        after = before + many
        self.counts[group[begin]] = after
        run = np.repeat(np.arange(len(begin)), many)
        number = np.arange(len(group)) - begin[run] + before[run]
        # the windows that have one of these numbers, run after run
        first = np.maximum(np.floor_divide(before - self.size, self.slide) + 1, 0)
        each = np.maximum((after - 1) // self.slide - first + 1, 0)
        base = np.cumsum(each) - each
        of = np.repeat(np.arange(len(begin)), each)
        window = first[of] + np.arange(len(of)) - base[of]
        place = begin[of] - before[of] + window * self.slide  # of its first row, if it is among these
        begins = window * self.slide >= before[of]
        opened = np.where(begins, time[np.where(begins, place, 0)], 0)
        at, found = self._find(group[begin][of], window)
        fresh = self._entries(group[begin][of], window, opened)
        stood = len(self.open[GROUP])
        entries = take(concat([self.open, fresh]), np.where(found, at, stood + np.arange(len(of))))
        deadline = self._deadline(entries[OPENED])
        takes = begins | found  # others have timed out before
        # pairs of a row and a window, row after row
        overlap = self._overlap(0)
        index = np.repeat(np.arange(len(group)), overlap)
        into = number[index] // self.slide - np.tile(np.arange(overlap), len(group))
        inside = (into >= 0) & (number[index] - into * self.slide < self.size)
        index, into = index[inside], into[inside]
        slot = base[run[index]] + into - first[run[index]]
        counts = takes[slot] & (time[index] < deadline[slot])
        entries = self._fold(entries, rows, index[counts], slot[counts])
        # complete: its last tuple is here, and came in time
        ends = window * self.slide + self.size <= after[of]
        last = time[np.where(ends, place + self.size - 1, 0)]
        full = takes & ends & (last < deadline)
        self._replace(at[found], take(entries, np.flatnonzero(takes & ~full)))
        closed, last = take(entries, np.flatnonzero(full)), last[full]
        return self._closed(closed, end=last, due=last + 1, timed_out=False)

    def _expired(self, boundary: int | Int64s) -> Columns:
        deadline = self._deadline(self.open[OPENED])
        over = (deadline <= boundary) if self.timeout_us is not None else np.zeros(len(deadline), np.bool_)
        return self._closed(self._take_out(over), end=deadline[over], due=deadline[over], timed_out=True)

    def _deadline(self, opened: Int64s) -> Int64s:
        return np.full(len(opened), LAST_TIME) if self.timeout_us is None else opened + self.timeout_us

    def _closed(self, entries: Columns, *, end: Int64s, due: Int64s, timed_out: bool) -> Columns:
        flag = np.full(len(end), timed_out)
        return entries | {START: entries[OPENED], END: end, TIME: due - 1, DUE: due, TIMED_OUT: flag}

    def _dead(self, candidates: Int64s) -> list[int]:
        return []  # the alignment of a group's windows depends on all that it ever had

    # -- tables

    def _more_delta(self, groups: Int64s) -> Delta:
        return {COUNTS.name: Change(self._count_table(groups))} if len(groups) else {}

    def apply(self, delta: Delta) -> None:
        super().apply(delta)
        if (counts := delta.get(COUNTS.name)) is not None:
            self.counts = self.numbers.grown(self.counts, 0)
            self.counts[counts.put[GROUP].to_numpy()] = counts.put[COUNT].to_numpy()

    def tables_now(self) -> dict[str, pa.Table]:
        return super().tables_now() | {COUNTS.name: self._count_table(np.flatnonzero(self.counts))}

    def _count_table(self, groups: Int64s) -> pa.Table:
        return pa.table({GROUP: pa.array(groups), COUNT: pa.array(self.counts[groups])})


def make(step: Step) -> CountWindows:
    o, calls = step.options, calls_of(step)
    return CountWindows(schema_of(o["schema"]), o["by"], o["size"], o["slide"], o["timeout"], calls, o["order"])
