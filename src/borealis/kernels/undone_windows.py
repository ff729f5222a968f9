"""Aggregate over time windows whose input carries revisions, of functions whose values can be taken off again: counts,
sums of integers and DECIMALs, averages of DECIMALs.

It keeps panes and no rows, so a revision costs the same however many rows a window has: what a cause adds to a pane,
and to each window, is added to all that came before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import Count, Undoable
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE, PANES
from borealis.kernels.columns import Columns, concat, distinct_pairs, take, to_table
from borealis.kernels.flow import NOTHING, Bounds, Flow, differs
from borealis.kernels.folding import running_counts, sum_counts, unmatched
from borealis.kernels.groups import END, GROUP, GROUPS, START, like
from borealis.kernels.join_changes import perhaps_among
from borealis.kernels.revised_panes import (
    FROM,
    NEAR,
    REVISES,
    ROWS,
    UNTIL,
    RevisedPanes,
    Spans,
    Steps,
    in_time,
)
from borealis.kernels.signed_rows import ADDS
from borealis.kernels.sorting import stable_order
from borealis.state.delta import Delta
from borealis.tuples import CAUSE, SUB, TIME, Int64s


class UndoneWindows(RevisedPanes):
    """State: `groups` (number to key) and `panes` (pane and group to accumulators, and how many rows there are).

    The first row of a pane, which orders results, is the first since it last had none, even if that was taken back.
    """

    tables = (GROUPS, PANES)
    kept = PANES
    accumulators: Sequence[Undoable]

    # -- rows into panes

    def _take_usual(self, flow: Flow, group: Int64s) -> tuple[Columns, Columns]:
        none = take(self.open, NOTHING)
        return (self._absorb(flow, group) if len(flow) else none), none

    def _fitting(self, flow: Flow, rows: Columns) -> tuple[Flow, Columns]:
        takes = np.flatnonzero(~rows[ADDS])
        if not len(takes):
            return flow, rows
        slot, had = self._stored(rows, takes)
        short = takes[(np.bincount(slot) > had)[slot]]  # of panes that lose more than was stored
        if not len(short):
            return flow, rows
        some = np.flatnonzero(rows[NEAR])
        code = rows[PANE] * self.groups.capacity + rows[GROUP]
        some = some[perhaps_among(code[short], code[some])]
        slot, had = self._stored(rows, some)
        order = stable_order(slot)
        step = np.where(rows[ADDS][some], 1, -1)[order]
        lost = some[order[unmatched(step, slot[order], had[slot[order]])]]
        if not len(lost):
            return flow, rows
        fits = np.setdiff1d(np.arange(len(flow)), lost)
        return flow.take(fits), take(rows, fits)

    def _stored(self, rows: Columns, some: Int64s) -> tuple[Int64s, Int64s]:
        """The panes of some rows by number, and how many rows each has that is stored."""
        number, group = np.floor_divide(rows[PANE][some], self.width), rows[GROUP][some]
        panes, groups, slot = distinct_pairs(number, group, self.groups.capacity)
        self._thaw(panes * self.width)
        at, found = self._find(panes * self.width, groups)
        had = np.zeros(len(panes), np.int64)
        had[found] = self.open[ROWS][at[found]]
        return slot, had

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        touched = self._bring_up(flow, rows)
        filled = touched[ROWS] > 0
        return take(touched, np.flatnonzero(filled)), take(touched, np.flatnonzero(~filled))

    def _versioned(self, rows: Columns, bounds: Bounds) -> NDArray[np.bool_]:
        """Only windows that close in this train are put together from versions."""
        newest = np.floor_divide(rows[PANE], self.slide) * self.slide + self.size
        versioned: NDArray[np.bool_] = rows[REVISES] & (newest > bounds.standing)
        return versioned

    def _versions_of(
        self, heads: Columns, at: Int64s, found: NDArray[np.bool_], slot: Int64s, rows: Columns, spans: Spans
    ) -> Columns:
        order = stable_order(slot)  # pane after pane, in each as they come
        needed = (CAUSE, SUB, TIME, ADDS, REVISES, *self.arguments.values())
        rows, slot = take({name: rows[name] for name in needed}, order), slot[order]
        nothing = np.zeros(len(at), np.int64)
        index = len(self.open[PANE]) + np.arange(len(at))
        index[found] = at[found]
        new = self._started(heads | {FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        stored = take(concat([self.open, new]), index)
        base = np.searchsorted(spans.of, np.arange(len(at)))
        into = slot + np.cumsum(rows[REVISES] & (differs(slot) | differs(rows[CAUSE])))  # the version of each row
        versions = take(heads, spans.of) | {FROM: spans.begin, UNTIL: spans.until}
        versions |= self._running(stored, base, rows, np.arange(len(slot)), into, spans.of)
        return versions | self._firsts(stored, rows, slot, into, spans)

    def _running(
        self, stored: Columns, at: Int64s, rows: Columns, index: Int64s, into: Int64s, chain: Int64s
    ) -> Columns:
        """Accumulators along chains: what is stored at some places, and rows that come into others, each of which
        counts there and in all that follow in its chain."""
        n = len(chain)
        adds = rows[ADDS][index]
        plus, minus = (self._gathered(rows, index[some], into[some], n) for some in (adds, ~adds))
        slot = np.concatenate([at, np.arange(n), np.arange(n)])
        count = np.concatenate([stored[ROWS], plus[ROWS], -minus[ROWS]])
        out: Columns = {ROWS: running_counts(sum_counts(slot, count, n), chain)}
        for i, acc in enumerate(self.accumulators):
            old, more, less = (self._of_call(entries, i) for entries in (stored, plus, minus))
            every = acc.combine(concat([old, more, acc.negative(less)]), slot, n)
            out |= {f"{k}{i}": v for k, v in acc.running(every, chain).items()}
        return out

    def _gathered(self, rows: Columns, index: Int64s, into: Int64s, n: int) -> Columns:
        """So many entries, with rows added to them."""
        places = pa.array(index)
        columns = {name: rows[x].take(places) for name, x in self.arguments.items()}
        return self._added(self._started({GROUP: np.zeros(n, np.int64)}), columns.__getitem__, into, rows[TIME][index])

    def _firsts(self, stored: Columns, rows: Columns, slot: Int64s, into: Int64s, spans: Spans) -> Columns:
        """The first row of each version. A pane that has no rows for a while begins again."""
        count = stored[ROWS][slot] + running_counts(np.where(rows[ADDS], 1, -1), slot)
        empty = np.maximum.accumulate(np.where(count == 0, np.arange(1, len(count) + 1), 0))
        upto = np.cumsum(np.bincount(into, minlength=len(spans.of)))
        start = np.searchsorted(slot, spans.of)
        first = np.maximum(start, empty[np.maximum(upto - 1, 0)])
        again = (first < upto) & ((first > start) | (stored[ROWS][spans.of] == 0))
        out = {}
        for name, of in ((FIRST_CAUSE, CAUSE), (FIRST_SUB, SUB)):
            out[name] = stored[name][spans.of]
            out[name][again] = rows[of][first[again]]
        return out

    # -- closed windows that change

    def _states(self, rows: Columns, steps: Steps) -> Columns:
        """What a window is now, and was before: taken off are the steps of its chain, the last one first."""
        chains, n = len(steps.begin), len(steps.cause)
        now, off = self._now(steps.group, steps.end), self._off(rows, steps)
        place = np.insert(chains + np.arange(n), np.append(steps.begin[1:], n), np.arange(chains))[::-1]
        group, end, chain = (np.repeat(one, steps.length + 1) for one in (steps.group, steps.end, np.arange(chains)))
        closed: Columns = {GROUP: group, START: end - self.size, END: end, TIME: end - 1}
        for acc, names in self._counted():
            every = concat([{k: some[name] for k, name in names.items()} for some in (now, off)])
            running = acc.running(take(every, place), chain[::-1])
            closed |= {name: running[k][::-1] for k, name in names.items()}
        return closed | {ROWS: closed[self.counted or ROWS]}

    def _off(self, rows: Columns, steps: Steps) -> Columns:
        """What takes each step off again."""
        n = int(steps.change[-1]) + 1
        adds = rows[ADDS][steps.row]
        plus, minus = (self._gathered(rows, steps.row[some], steps.change[some], n) for some in (adds, ~adds))
        out: Columns = {}
        for acc, names in self._counted():
            more, less = ({k: some[name] for k, name in names.items()} for some in (plus, minus))
            off = take(_less(acc, less, more, n), steps.made)
            off = off if steps.alone else acc.combine(off, steps.step, len(steps.cause))
            out |= {name: off[k] for k, name in names.items()}
        return out

    def _now(self, group: Int64s, end: Int64s) -> Columns:
        """These windows as they are: all up to their ends, less all before they start."""
        low, high = int(end.min()) - self.size, int(end.max())
        wanted = np.zeros(self.groups.capacity, np.bool_)
        wanted[group] = True
        parts = [take(part, np.flatnonzero(wanted[part[GROUP]])) for part in self._between(low, high)]
        entries = in_time(concat(parts)) if parts else take(self.open, NOTHING)
        entries = take(entries, stable_order(entries[GROUP]))
        ranks = np.unique(entries[PANE])
        many = len(ranks) + 1
        code = entries[GROUP] * many + np.searchsorted(ranks, entries[PANE])
        upto, before = (
            np.searchsorted(code, group * many + np.searchsorted(ranks, at)) for at in (end, end - self.size)
        )
        out: Columns = {}
        for acc, names in self._counted():
            mine = concat([acc.start(1), {k: entries[name] for k, name in names.items()}])
            sums = acc.running(mine, np.zeros(len(code) + 1, np.int64))
            now = _less(acc, take(sums, upto), take(sums, before), len(end))
            out |= {name: now[k] for k, name in names.items()}
        return out

    def _counted(self) -> Iterator[tuple[Undoable, dict[str, str]]]:
        """The accumulators, and what their columns are called in entries; the number of rows may be one more."""
        for i, (acc, names) in enumerate(zip(self.accumulators, self._state, strict=True)):
            yield acc, {k: f"{k}{i}" for k in names}
        if self.counted is None:
            yield Count(), {"c": ROWS}

    # -- tables

    def apply(self, delta: Delta) -> None:
        self._apply_groups(delta)
        if (change := delta.get(PANES.name)) is None:
            return
        if change.cut is not None:
            panes, groups = (change.cut[name].to_numpy() for name in PANES.key)
            self._thaw(panes)
            at, found = self._find(panes, groups)
            self._replace(at[found], take(self.open, NOTHING))
        if change.floor is not None:
            self._evict(change.floor)
        if change.put.num_rows:
            entries = like(self.open, change.put)
            self._thaw(entries[PANE])
            self._put(entries)

    def tables_now(self) -> dict[str, pa.Table]:
        panes = in_time(concat([*self.sealed, self.open]))
        return {GROUPS.name: self._group_table(self.groups.alive()), PANES.name: to_table(panes)}


def _less(acc: Undoable, some: Columns, others: Columns, n: int) -> Columns:
    """Some values, each less another."""
    return acc.combine(concat([some, acc.negative(others)]), np.concatenate([np.arange(n)] * 2), n)
