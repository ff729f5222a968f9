"""Aggregate over time windows whose input carries revisions: a closed window that changes is given again, signed.

It keeps rows, of which any function can be made: a pane that loses a row is folded again from the rows it has left, in
input order. Functions whose values can be taken off again are in `undone_windows`, which keeps no rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import AggregateCall, accumulator, calls_of, undoable
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE
from borealis.kernels.columns import Columns, concat, distinct_pairs, take, to_table
from borealis.kernels.flow import NOTHING, Flow
from borealis.kernels.fused_windows import FusedWindows
from borealis.kernels.groups import GROUP, GROUPS
from borealis.kernels.held_rows import HELD, looked_up
from borealis.kernels.revised_panes import ROWS, RevisedPanes, Spans, prefixes
from borealis.kernels.signed_rows import ADDS
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta
from borealis.tuples import CAUSE, LAST_TIME, TIME, Int64s

DEAD = "dead"  # of a row: the cause that takes it back, or LAST_TIME


class RevisedWindows(RevisedPanes):
    """State: `groups` (number to key) and `rows`, of which panes are made."""

    tables = (GROUPS, HELD)
    kept = HELD

    def __init__(
        self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall], history: int
    ) -> None:
        super().__init__(schema, by, size, slide, calls, history)
        self._hold(schema)
        self.out = NOTHING, NOTHING  # held rows that this train takes back: where they are, and by which cause
        self.stale: list[Columns] = []  # panes whose rows changed while another copy ran

    # -- rows into panes

    def _take_usual(self, flow: Flow, group: Int64s) -> tuple[Columns, Columns]:
        self.out = NOTHING, NOTHING
        come = self._as_columns(flow, group)
        if len(flow):
            self._absorb(flow, group)
            self.held.add(come)
        return come, take(come, NOTHING)

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        """Hold the rows that came to stay, and bring panes up to date; the held rows that came and that went."""
        come = gone = {name: rows[name] for name in self.held.empty}
        adds = rows[ADDS]
        dead = np.full(len(adds), LAST_TIME)  # the cause that takes a row back
        self.out = NOTHING, NOTHING
        if not adds.all():
            come, gone = take(come, np.flatnonzero(adds)), take(gone, np.flatnonzero(~adds))
            *out, dead[adds] = self.held.taken_back(come, gone)
            self.out = out[0], out[1]
        self._bring_up(flow, rows | {DEAD: dead})
        went = self.held.at(self.out[0])
        self.held.remove(self.out[0])
        stay = dead[adds] == LAST_TIME
        come = come if stay.all() else take(come, np.flatnonzero(stay))
        self.held.add(come)
        return come, went

    def _versions_of(
        self, heads: Columns, at: Int64s, found: NDArray[np.bool_], slot: Int64s, rows: Columns, spans: Spans
    ) -> Columns:
        """All versions of these panes, folded at once. A pane that loses rows is folded from all it ever had; any other
        goes on as it is stored, with those that came."""
        adds = rows[ADDS]
        loses = np.zeros(len(heads[PANE]), np.bool_)
        loses[slot[~adds]] = True
        come = {name: rows[name] for name in self.held.empty}
        pool, pool_slot, dead = come, slot, rows[DEAD]
        if not adds.all():
            pool, pool_slot, dead = take(come, np.flatnonzero(adds)), slot[adds], dead[adds]
            which = np.flatnonzero(loses)
            start = heads[PANE][which]
            owner, place = self.held.find(heads[GROUP][which], start, start + self.width - 1)
            pool, pool_slot = concat([self.held.at(place), pool]), np.concatenate([which[owner], pool_slot])
            dead = np.concatenate([looked_up(place, *self.out, LAST_TIME), dead])
        order = stable_order(pool_slot)
        start, count = prefixes(pool_slot[order], pool[CAUSE][order], spans.of, spans.until)
        nothing = np.zeros(len(loses), np.int64)
        new = self._started(heads | {FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        index = len(self.open[PANE]) + np.arange(len(loses))
        index[found & ~loses] = at[found & ~loses]
        entries = take(concat([self.open, new]), index)
        return self._fold_all(entries, spans.of, pool, order, (start, count), dead, spans)

    # -- tables

    def _delta_of(self, put: Columns, cut: Columns, floor: int | None) -> Delta:
        if floor is not None:
            self.held.raise_floor(floor)
        return super()._delta_of(put, cut, floor)

    def apply(self, delta: Delta) -> None:
        self._apply_groups(delta)
        if (change := delta.get(HELD.name)) is None:
            return
        if change.floor is not None:
            self._evict(change.floor)
        for rows in self.held.apply(change):
            self.stale.append({PANE: np.floor_divide(rows[TIME], self.width), GROUP: rows[GROUP]})

    def _settle(self) -> None:
        """Fold the panes again whose rows another copy changed."""
        stale = concat(self.stale) if self.stale else {}
        self.stale = []
        if not stale or not len(stale[PANE]):
            return
        panes, groups, _ = distinct_pairs(stale[PANE], stale[GROUP], int(stale[GROUP].max()) + 1)
        panes = panes * self.width
        self._thaw(panes)
        slot, place = self.held.find(groups, panes, panes + self.width - 1)
        rows = self.held.at(place)
        nothing = np.zeros(len(panes), np.int64)
        new = self._started({PANE: panes, GROUP: groups, FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        entries = self._folded(new, rows, np.arange(len(slot)), slot)
        at, found = self._find(panes, groups)
        self._replace(at[found], take(entries, np.flatnonzero(entries[ROWS] > 0)))

    def tables_now(self) -> dict[str, pa.Table]:
        return {GROUPS.name: self._group_table(self.groups.alive()), HELD.name: to_table(self.held.all())}


def make(step: Step) -> RevisedPanes:
    o, calls = step.options, calls_of(step)
    schema = schema_of(o["schema"])
    exact = all(undoable(accumulator(call, schema)) for call in calls)
    return (FusedWindows if exact else RevisedWindows)(schema, o["by"], o["size"], o["slide"], calls, o["history"])
