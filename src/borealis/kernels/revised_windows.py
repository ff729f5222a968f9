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
from borealis.kernels.columns import Columns, concat, distinct_pairs, places_in_blocks, take, to_table
from borealis.kernels.flow import NOTHING, Bounds, Flow
from borealis.kernels.groups import GROUP, GROUPS, like
from borealis.kernels.held_rows import HeldRows, fingerprints, taken_back
from borealis.kernels.revised_panes import ADDS, FOLDED_AT_ONCE, FROM, ROWS, UNTIL, RevisedPanes, Spans, prefixes
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.kernels.undone_windows import UndoneWindows
from borealis.state.delta import Delta, TableSpec
from borealis.tuples import CAUSE, LAST_TIME, SUB, TIME, Int64s

HELD = TableSpec("rows", (CAUSE, SUB), floor=TIME)
DEAD = "dead"  # of a row: the cause that takes it back, or LAST_TIME
WHOLE = "whole"  # the fingerprint of a row's other columns


class RevisedWindows(RevisedPanes):
    """State: `groups` (number to key) and `rows`, of which panes are made.

    Of a row it holds what the functions need, and a fingerprint of the rest: which of two rows is taken back matters
    even where they differ in nothing that is added up, for one may be the first.
    """

    tables = (GROUPS, HELD)
    kept = HELD

    def __init__(
        self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall], history: int
    ) -> None:
        super().__init__(schema, by, size, slide, calls, history)
        self.others = [name for name in schema.names if name not in self.arguments and name not in by]
        empty: Columns = {CAUSE: NOTHING, SUB: NOTHING, TIME: NOTHING, GROUP: NOTHING}
        empty |= {x: pa.nulls(0, schema.field(name).type) for name, x in self.arguments.items()}
        self.held = HeldRows(empty | ({WHOLE: NOTHING} if self.others else {}))
        self.out = NOTHING, NOTHING  # held rows that this train takes back: where they are, and by which cause
        self.stale: list[Columns] = []  # panes whose rows changed while another copy ran

    def _arrived(self, flow: Flow, bounds: Bounds) -> tuple[Columns, list[int]]:
        rows, fresh = super()._arrived(flow, bounds)
        if self.others:
            rows[WHOLE] = fingerprints([flow.rows[name] for name in self.others], len(flow))
        return rows, fresh

    # -- rows into panes

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        """Hold the rows that came to stay, and bring panes up to date; the held rows that came and that went."""
        come = gone = {name: rows[name] for name in self.held.empty}
        adds = rows[ADDS]
        dead = np.full(len(adds), LAST_TIME)  # the cause that takes a row back
        self.out = NOTHING, NOTHING
        if not adds.all():
            come, gone = take(come, np.flatnonzero(adds)), take(gone, np.flatnonzero(~adds))
            self.out, dead[adds] = self._taken_back(come, gone)
        self._bring_up(flow, rows | {DEAD: dead})
        went = self.held.at(self.out[0])
        self.held.remove(self.out[0])
        stay = dead[adds] == LAST_TIME
        come = come if stay.all() else take(come, np.flatnonzero(stay))
        self.held.add(come)
        return come, went

    def _taken_back(self, come: Columns, gone: Columns) -> tuple[tuple[Int64s, Int64s], Int64s]:
        """The places of held rows that are taken back, and by which causes; and of each row that comes the cause that
        takes it back again, or LAST_TIME."""
        place = np.unique(self.held.find(gone[GROUP], gone[TIME], gone[TIME])[1])
        near = np.flatnonzero(np.isin(come[TIME], gone[TIME]))
        at = taken_back(concat([self.held.at(place), take(come, near)]), gone)
        if np.any(at < 0):
            raise self._never_came(take(gone, np.flatnonzero(at < 0)[:1]))
        held = at < len(place)
        dead = np.full(len(come[TIME]), LAST_TIME)
        dead[near[at[~held] - len(place)]] = gone[CAUSE][~held]
        return (place[at[held]], gone[CAUSE][held]), dead

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
            dead = np.concatenate([_looked_up(place, *self.out, LAST_TIME), dead])
        order = stable_order(pool_slot)
        start, count = prefixes(pool_slot[order], pool[CAUSE][order], spans.of, spans.until)
        nothing = np.zeros(len(loses), np.int64)
        new = self._started(heads | {FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        index = len(self.open[PANE]) + np.arange(len(loses))
        index[found & ~loses] = at[found & ~loses]
        entries = take(concat([self.open, new]), index)
        parts = []
        for some, place in places_in_blocks(start, count, FOLDED_AT_ONCE):
            owner = np.repeat(np.arange(some.stop - some.start), count[some])
            place = order[place]
            alive = dead[place] >= spans.until[some][owner]
            if not alive.all():
                owner, place = owner[alive], place[alive]
            parts.append(self._folded(take(entries, spans.of[some]), pool, place, owner))
        return concat(parts) | {FROM: spans.begin, UNTIL: spans.until}

    def _folded(self, entries: Columns, pool: Columns, place: Int64s, owner: Int64s) -> Columns:
        """Entries with the rows at these places of the pool added, each to its owner; the first of an empty one's rows
        is the first it ever saw."""
        first = np.full(len(entries[PANE]), -1)
        first[owner[::-1]] = place[::-1]
        begins = np.flatnonzero((entries[ROWS] == 0) & (first >= 0))
        firsts = {}
        for name, of in ((FIRST_CAUSE, CAUSE), (FIRST_SUB, SUB)):
            firsts[name] = entries[name].copy()
            firsts[name][begins] = pool[of][first[begins]]
        places = pa.array(place)
        columns = {name: pool[x].take(places) for name, x in self.arguments.items()}
        return self._added(entries | firsts, columns.__getitem__, owner, pool[TIME][place])

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
            self.held.raise_floor(change.floor)
        none = change.put.select(HELD.key).slice(0, 0)
        cut = [(none if change.cut is None else change.cut)[name].to_numpy() for name in HELD.key]
        for rows in self.held.merge(cut, like(self.held.empty, change.put)):
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


def _looked_up(wanted: Int64s, known: Int64s, value: Int64s, default: int) -> Int64s:
    """The values of those that are known, each of which is so once."""
    if not len(known):
        return np.full(len(wanted), default)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order][at] == wanted, value[order][at], default)


def make(step: Step) -> RevisedPanes:
    o, calls = step.options, calls_of(step)
    schema = schema_of(o["schema"])
    exact = all(undoable(accumulator(call, schema)) for call in calls)
    return (UndoneWindows if exact else RevisedWindows)(schema, o["by"], o["size"], o["slide"], calls, o["history"])
