"""Aggregate over time windows with a timeout: a window is closed so long after its first tuple at the latest.

Tuples of the same window that come after that open it again. So a window of a group is a sequence of *parts*, one after
the other: a part begins with the first tuple that no part has, and takes those less than the timeout after it. At any
time at most one part is open. Windows without a timeout are in `aggregate`, which is faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from borealis.kernels.accumulators import calls_of
from borealis.kernels.columns import Columns, concat, distinct_pairs, take
from borealis.kernels.flow import Flow
from borealis.kernels.groups import END, GROUP, START, inside_windows
from borealis.kernels.open_windows import DUE, OPENED, TIMED_OUT, WINDOW, OpenWindows
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.tuples import TIME, Int64s


class TimedWindows(OpenWindows):
    """State: as all open windows; the number of a window is its start over the slide."""

    timeout_us: int

    def wanted(self, flow: Flow) -> Flow:
        return inside_windows(flow, self.size, self.slide)

    def _overlap(self, rows: int) -> int:
        return -(-self.size // self.slide)

    def _absorb(self, rows: Columns) -> Columns:
        group, time = rows[GROUP], rows[TIME]
        overlap = self._overlap(0)
        index = np.repeat(np.arange(len(group)), overlap)
        window = np.floor_divide(time[index], self.slide) - np.tile(np.arange(overlap), len(group))
        inside = time[index] - window * self.slide < self.size
        index, window = index[inside], window[inside]
        windows, groups, slot = distinct_pairs(window, group[index], self.numbers.capacity)
        order = stable_order(slot)  # window after window, in each as the rows are
        index, slot = index[order], slot[order]
        at, found = self._find(groups, windows)
        stood = np.zeros(len(at), np.int64)
        stood[found] = self.open[OPENED][at[found]]
        parts = self._parts(time, index, slot, stood, found)
        begins = np.flatnonzero(parts)
        # the parts of a window lie side by side, the one that was open first
        new = np.bincount(slot[begins], minlength=len(windows))
        each = new + found
        base = np.cumsum(each) - each
        of = np.repeat(np.arange(len(windows)), each)
        old = np.zeros(len(of), np.bool_)
        old[base[found]] = True
        opened = np.zeros(len(of), np.int64)
        opened[~old] = time[index[begins]]
        source = len(self.open[GROUP]) + np.arange(len(of))
        source[old] = at[found]
        entries = take(concat([self.open, self._entries(groups[of], windows[of], opened)]), source)
        nth = np.cumsum(parts, dtype=np.int64) - (np.cumsum(new) - new)[slot]  # begun in its own window, so far
        entries = self._fold(entries, rows, index, base[slot] + found[slot] + nth - 1)
        newest = np.zeros(len(of), np.bool_)
        newest[base + each - 1] = True
        self._replace(at[found], take(entries, np.flatnonzero(newest)))
        return self._closed(take(entries, np.flatnonzero(~newest)))

    def _parts(
        self, time: Int64s, index: Int64s, slot: Int64s, opened: Int64s, found: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Which of the rows at `index`, in order of (slot, time), begin a part; a slot that was found has one already.

        The only loop: a turn finds one part of every window that has one left, so all turns find what will be emitted.
        """
        distinct, rank = np.unique(time, return_inverse=True)
        many = len(distinct) + 1
        later = np.searchsorted(distinct, distinct + self.timeout_us)[rank]
        code = slot * many + rank[index]  # in order, as the rows are
        # for each row: where the next part begins, if one begins here; this may be behind the end of its slot
        following = np.searchsorted(code, slot * many + later[index])
        least = np.where(found, np.searchsorted(distinct, opened + self.timeout_us), 0)
        at = np.searchsorted(code, np.arange(len(opened)) * many + least)
        end = np.append(np.flatnonzero(slot[1:] != slot[:-1]) + 1, len(slot))
        begins = np.zeros(len(index), np.bool_)
        while len(at):
            left = at < end
            at, end = at[left], end[left]
            begins[at] = True
            at = following[at]
        return begins

    def _expired(self, boundary: int | Int64s) -> Columns:
        return self._closed(self._take_out(self._closing(self.open) <= boundary))

    def _closing(self, entries: Columns) -> Int64s:
        """When each of these is closed: at its end, or earlier by its timeout."""
        end = entries[WINDOW] * self.slide + self.size
        closing: Int64s = np.minimum(end, entries[OPENED] + self.timeout_us)
        return closing

    def _closed(self, entries: Columns) -> Columns:
        start = entries[WINDOW] * self.slide
        due = self._closing(entries)
        more = {START: start, END: start + self.size, TIME: due - 1, DUE: due, TIMED_OUT: due < start + self.size}
        return entries | more


def make(step: Step) -> TimedWindows:
    o = step.options
    return TimedWindows(schema_of(o["schema"]), o["by"], o["size"], o["slide"], o["timeout"], calls_of(step))
