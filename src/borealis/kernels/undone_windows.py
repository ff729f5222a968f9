"""Aggregate over time windows whose input carries revisions, of functions whose values can be taken off again: counts,
sums of integers and DECIMALs, averages of DECIMALs.

It keeps panes and no rows, so a revision costs the same however many rows a window has: what a cause adds to a pane,
and to each window, is added to all that came before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import Undoable
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE, PANES
from borealis.kernels.columns import Columns, concat, take, to_table
from borealis.kernels.flow import NOTHING, Flow
from borealis.kernels.folding import running_counts, sum_counts
from borealis.kernels.groups import END, GROUP, GROUPS, START, like
from borealis.kernels.revised_panes import ADDS, FROM, ROWS, UNTIL, RevisedPanes, Spans, Steps, in_time, prefixes
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

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        touched = self._bring_up(flow, rows)
        filled = touched[ROWS] > 0
        return take(touched, np.flatnonzero(filled)), take(touched, np.flatnonzero(~filled))

    def _versions_of(
        self, heads: Columns, at: Int64s, found: NDArray[np.bool_], slot: Int64s, rows: Columns, spans: Spans
    ) -> Columns:
        order = stable_order(slot)  # pane after pane, in each as they come
        rows, slot = take(rows, order), slot[order]
        nothing = np.zeros(len(at), np.int64)
        index = len(self.open[PANE]) + np.arange(len(at))
        index[found] = at[found]
        new = self._started(heads | {FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        stored = take(concat([self.open, new]), index)
        base = np.searchsorted(spans.of, np.arange(len(at)))
        since = np.maximum(spans.begin, int(rows[CAUSE].min()) - 1)
        _, begun = prefixes(spans.of, since, slot, rows[CAUSE] + 1)  # versions of its pane at each row
        versions = take(heads, spans.of) | {FROM: spans.begin, UNTIL: spans.until}
        versions |= self._running(stored, base, rows, np.arange(len(slot)), base[slot] + begun - 1, spans.of)
        return versions | self._firsts(stored, rows, slot, spans)

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

    def _firsts(self, stored: Columns, rows: Columns, slot: Int64s, spans: Spans) -> Columns:
        """The first row of each version. A pane that has no rows for a while begins again."""
        count = stored[ROWS][slot] + running_counts(np.where(rows[ADDS], 1, -1), slot)
        if np.any(count < 0):
            lost = np.flatnonzero(count < 0)[:1]
            raise self._never_came({name: rows[name][lost] for name in (GROUP, TIME, CAUSE)})
        empty = np.maximum.accumulate(np.where(count == 0, np.arange(1, len(count) + 1), 0))
        start, many = prefixes(slot, rows[CAUSE], spans.of, spans.until)
        first = np.maximum(start, empty[np.maximum(start + many - 1, 0)])
        again = (first < start + many) & ((first > start) | (stored[ROWS][spans.of] == 0))
        out = {}
        for name, of in ((FIRST_CAUSE, CAUSE), (FIRST_SUB, SUB)):
            out[name] = stored[name][spans.of]
            out[name][again] = rows[of][first[again]]
        return out

    # -- closed windows that change

    def _states(self, rows: Columns, steps: Steps) -> Columns:
        some = steps.begins
        before = self._windows(steps.group[some], steps.end[some], steps.cause[some] - 1)
        group, end, _ = steps.states()
        chain = np.repeat(np.cumsum(some) - 1, 1 + some)
        closed: Columns = {GROUP: group, START: end - self.size, END: end, TIME: end - 1}
        into = steps.after[steps.step]
        return closed | self._running(before, steps.after[some] - 1, rows, steps.row, into, chain)

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
