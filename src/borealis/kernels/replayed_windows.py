"""Aggregate over time windows whose input carries revisions, and whose rows are kept by the input's history: it keeps
panes and no rows, whatever its functions are (Borealis 3.3).

A row that comes is folded into its pane behind all others. Only one that goes needs the rest: a pane that loses rows is
folded again, from what `replaying_history` gives: the rows that stood at a cause of the train, not later than the first
that takes one of them here; and from what came in the train since that cause. So it comes to what `revised_windows`
comes to, bit for bit.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import AggregateCall, calls_of
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE
from borealis.kernels.columns import Columns, concat, distinct_pairs, take, to_numpy, to_table
from borealis.kernels.flow import NOTHING, Bounds, Flow, empty_flow, rank_within
from borealis.kernels.groups import GROUP, inside_windows
from borealis.kernels.held_rows import taken_back
from borealis.kernels.kinds import mended, row_numbers
from borealis.kernels.replaying_history import CAME, REPLACED
from borealis.kernels.revised_panes import RevisedPanes, Spans, Steps, prefixes
from borealis.kernels.signed_rows import ADDS
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.kernels.undone_windows import UndoneWindows
from borealis.state.delta import Delta
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s


class ReplayedWindows(UndoneWindows):
    """State: `groups` and `panes`, as there, and no rows."""

    def __init__(
        self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall], history: int
    ) -> None:
        super().__init__(schema, by, size, slide, calls, history)
        self._hold(schema)  # none ever: but it is known what makes two of them the same
        self.nothing = empty_flow(pa.schema([*schema, (CAME, pa.int64()), (REPLACED, pa.int64())]), Bounds())
        self.again, self.again_group = self.nothing, NOTHING  # the rows that this train gives again

    def step(self, flow: Flow, again: Flow | None = None) -> tuple[Flow, Delta]:
        """Take rows in and back; `again`: for each that goes, those that stood before in its pane, and perhaps more."""
        self.again = self.nothing if again is None else inside_windows(again, self.size, self.slide)
        return super().step(mended(flow))

    def _grouped(self, flow: Flow) -> tuple[Int64s, list[int]]:
        group, fresh = super()._grouped(flow)
        self.again_group, more = super()._grouped(self.again)
        return group, fresh + more

    def _fitting(self, flow: Flow, rows: Columns) -> tuple[Flow, Columns]:
        return RevisedPanes._fitting(self, flow, rows)  # what takes back a row that is not there finds none

    def _versioned(self, rows: Columns, bounds: Bounds) -> NDArray[np.bool_]:
        return RevisedPanes._versioned(self, rows, bounds)

    def _states(self, rows: Columns, steps: Steps) -> Columns:
        return RevisedPanes._states(self, rows, steps)

    def _versions_of(
        self, heads: Columns, at: Int64s, found: NDArray[np.bool_], slot: Int64s, rows: Columns, spans: Spans
    ) -> Columns:
        """All versions of these panes, folded at once. Those before a pane loses a row go on as it is stored; those
        after it begin with nothing."""
        slots, adds = len(at), rows[ADDS]
        loses = np.full(slots, LAST_TIME)  # the first cause that takes a row of each
        np.minimum.at(loses, slot[~adds], rows[CAUSE][~adds])
        come, gone = ({name: rows[name] for name in self.held.empty} for _ in range(2))
        come, gone = take(come, np.flatnonzero(adds)), take(gone, np.flatnonzero(~adds))
        stood, mine, given = self._stood(heads, loses)
        theirs = slot[adds]
        before, since = (np.flatnonzero(one) for one in _parted(come[CAUSE], loses[theirs], given[theirs]))
        pool = concat([stood, take(come, before), take(come, since)])
        pool_slot = np.concatenate([mine + slots, theirs[before], theirs[since] + slots])
        dead = _deaths(pool, np.flatnonzero(pool_slot >= slots), gone)
        order = stable_order(pool_slot)
        again = spans.until > loses[spans.of]
        start, count = prefixes(pool_slot[order], pool[CAUSE][order], spans.of + slots * again, spans.until)
        nothing = np.zeros(slots, np.int64)
        new = self._started(heads | {FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        index = np.where(found[spans.of] & ~again, at[spans.of], len(self.open[PANE]) + spans.of)
        entries = concat([self.open, new])
        return self._fold_all(entries, index, pool, order, (start, count), dead, spans)

    def _stood(self, heads: Columns, loses: Int64s) -> tuple[Columns, Int64s, Int64s]:
        """The rows that are given again for panes that lose some, as they came; which pane each is of; and of each pane
        the cause before which they stood. Where none stood, all rows came in this train."""
        slots, again = len(loses), self.again
        pane = np.concatenate([heads[PANE], again.time]) // self.width
        pairs, _, number = distinct_pairs(pane, np.append(heads[GROUP], self.again_group), self.groups.capacity)
        slot_of = np.full(len(pairs), -1)
        slot_of[number[:slots]] = np.arange(slots)
        slot = slot_of[number[slots:]]
        wanted = np.flatnonzero((slot >= 0) & (loses[slot] < LAST_TIME) & (again.cause <= loses[slot]))
        given = np.full(slots, FIRST_TIME)
        given[slot[wanted][::-1]] = again.cause[wanted][::-1]  # the first of each
        wanted = wanted[again.cause[wanted] == given[slot[wanted]]]
        slot, again = slot[wanted], again.take(wanted)
        rows = self._as_columns(again, self.again_group[wanted])
        came, replaced = to_numpy(again.rows[CAME]), to_numpy(again.rows[REPLACED].fill_null(LAST_TIME))
        rows |= {CAUSE: _places(rows, slot, came, replaced)}
        stands = np.flatnonzero(replaced == LAST_TIME)
        stands = stands[np.lexsort((rows[CAUSE][stands], slot[stands]))]
        rows, slot = take(rows, stands), slot[stands]
        return rows | {SUB: rank_within(rows[CAUSE])}, slot, given


def _parted(cause: Int64s, loses: Int64s, given: Int64s) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows come before their pane loses one, and which come since others were given, if it does."""
    return cause < loses, (cause >= given) & (loses < LAST_TIME)


def _deaths(pool: Columns, which: Int64s, gone: Columns) -> Int64s:
    """The cause that takes back each row of a pool, or LAST_TIME; only some of them can be meant."""
    dead = np.full(len(pool[TIME]), LAST_TIME)
    which = which[np.isin(pool[TIME][which], gone[TIME])]
    at = taken_back(take(pool, which), gone)
    dead[which[at[at >= 0]]] = gone[CAUSE][at >= 0]
    return dead


def _places(rows: Columns, slot: Int64s, came: Int64s, replaced: Int64s) -> Int64s:
    """The cause at which each row counts: when it came, or when an equal one did that it replaced. Such a change is
    nothing here, and never came."""
    old = np.flatnonzero(replaced < LAST_TIME)
    if not len(old):
        return came
    every, n = np.append(came, replaced[old]), len(came)
    pairs, _, number = distinct_pairs(every, np.append(slot, slot[old]), int(slot.max()) + 1)
    at = np.full(len(pairs), -1)
    at[number[:n]] = np.arange(n)
    new = at[number[n:]]
    old, new = old[new >= 0], new[new >= 0]
    both = take({k: v for k, v in rows.items() if k not in (CAUSE, SUB)}, np.append(old, new))
    same = row_numbers(to_table({k: v for k, v in both.items() if k != TIME}), both[TIME])
    equal = same[: len(old)] == same[len(old) :]
    before = np.arange(n)
    before[new[equal]] = old[equal]
    while np.any(before[before] != before):
        before = before[before]
    return came[before]


def make(step: Step) -> ReplayedWindows:
    o = step.options
    return ReplayedWindows(schema_of(o["schema"]), o["by"], o["size"], o["slide"], calls_of(step), o["history"])
