"""What aggregates have in common that take tuples in order of time: rows that wait, and windows that are open.

A row waits until the boundary has passed it. Then no earlier one can come, and it goes into the windows it belongs to,
each of which keeps an accumulator for every aggregate function and no rows. Which windows there are, and when they
close, is the business of `count_windows` and `timed_windows`.

Rows of a group are taken in order of time; those of one time as they came, unless the box says by which arguments they
are put in order, so that it does not matter in which order they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import AggregateCall
from borealis.kernels.columns import Columns, concat, take, to_table, whole
from borealis.kernels.flow import NOTHING, Bounds, Flow, empty_flow
from borealis.kernels.groups import GROUP, GROUPS, Grouped, Numbers, like
from borealis.kernels.sorting import in_order, newest
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, SUB, TIME, Int64s

WINDOW, OPENED, TIMED_OUT = "window", "opened", "timed_out"
CHANGED = "changed"  # whether this train changed an open window; not in the table
DUE = "due"  # the least boundary that closes a window; its result has the instant before it as its time
ENTRIES_MOST = 1 << 20  # pairs of a row and a window at a time: what a train needs of memory does not grow with overlap

WAITING = TableSpec("waiting", (CAUSE, SUB), floor=TIME)
OPEN = TableSpec("open", (GROUP, WINDOW))


class OpenWindows(Grouped):
    """State: `groups` (number to key), `waiting` (rows), `open` (group and window to accumulators)."""

    tables: ClassVar[tuple[TableSpec, ...]] = (GROUPS, WAITING, OPEN)
    key = OPEN.key

    def __init__(
        self,
        schema: pa.Schema,
        by: list[str],
        size: int,
        slide: int,
        timeout_us: int | None,
        calls: list[AggregateCall],
        order: Sequence[str] = (),
    ) -> None:
        super().__init__(schema, by, calls, {} if timeout_us is None else {TIMED_OUT: pa.bool_()})
        self.size, self.slide, self.timeout_us = size, slide, timeout_us
        names = [name for c in calls for name in c.columns]
        self.arguments = {name: f"x{i}" for i, name in enumerate(dict.fromkeys(names))}  # to the name in a table
        self.ties = [self.arguments[name] for name in order]
        self.waiting: Columns = {CAUSE: NOTHING, SUB: NOTHING, TIME: NOTHING, GROUP: NOTHING}
        self.waiting |= {x: pa.nulls(0, schema.field(name).type) for name, x in self.arguments.items()}
        self.open = self._entries(NOTHING, NOTHING, NOTHING)
        self.numbers: Numbers = self.groups  # of groups

    # -- what differs

    def wanted(self, flow: Flow) -> Flow:
        """The rows that can count."""
        return flow

    def _overlap(self, rows: int) -> int:
        """In how many windows a row may be, with so many rows more."""
        raise NotImplementedError

    def _absorb(self, rows: Columns) -> Columns:
        """Put released rows, in order, into open windows; returns the windows that are complete by that."""
        raise NotImplementedError

    def _expired(self, boundary: int | Int64s) -> Columns:
        """Take out the open windows that this boundary, or that of each of them, closes."""
        raise NotImplementedError

    def _dead(self, candidates: Int64s) -> list[int]:
        """Those of these groups that need not be known any more: no row of them waits or is in an open window."""
        needed = self._distinct(self.waiting[GROUP], self.open[GROUP])
        dead: list[int] = np.setdiff1d(candidates, needed, assume_unique=True).tolist()
        return dead

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Take rows in, release those that the boundary has passed, and emit the windows that close by that."""
        bounds = flow.bounds
        arrived, fresh = self._arrived(self.wanted(flow))
        stored = len(self.waiting[TIME])
        rows = concat([self.waiting, arrived])
        due = rows[TIME] < bounds.final
        self.waiting = take(rows, np.flatnonzero(~due)) if due.any() else rows
        released = take(rows, np.flatnonzero(due))
        results, changes = self.advance(released, bounds.final)
        out = self.emit(results, bounds)
        dead = self._dead(self._distinct(released[GROUP], results[GROUP], np.array(fresh, np.int64)))
        delta = self.group_delta(fresh, dead)
        put = take(rows, stored + np.flatnonzero(~due[stored:]))
        if len(put[TIME]) or due[:stored].any():
            delta[WAITING.name] = Change(to_table(put), floor=bounds.final if due[:stored].any() else None)
        self.groups.cut(dead)
        return out, delta | changes

    def advance(self, rows: Columns, boundary: int) -> tuple[Columns, Delta]:
        """Put rows, all before a new boundary, into windows: those that close, and what changed in open ones."""
        before = self.open
        self.open = before | {CHANGED: np.zeros(len(before[GROUP]), np.bool_)}
        results = self.release(take(rows, self.in_turn(rows)), boundary)
        return results, self._open_delta(before) | self._more_delta(self._distinct(rows[GROUP]))

    def fork(self, groups: int, opened: Columns, counted: Int64s) -> Self:
        """A copy with other groups, so many: the windows they have open, and how many rows they had."""
        made = copy(self)
        made.numbers, made.open = Numbers(groups), opened
        return made

    def twin(self) -> Self:
        """A copy with the same groups, which goes its own way."""
        return copy(self)

    def exchange(self, which: NDArray[np.bool_], entries: Columns) -> None:
        """Put open windows in the place of some."""
        self._replace(np.flatnonzero(which), entries)

    def in_turn(self, rows: Columns) -> Int64s:
        """Rows in the order in which windows take them: group after group."""
        return in_order([rows[GROUP], rows[TIME]], [rows[x] for x in self.ties])

    def release(self, rows: Columns, boundary: int | Int64s) -> Columns:
        """Put rows, in turn, into windows, up to a boundary, or one for each group by its number; those that close."""
        closed = [self._absorb(block) for block in self._blocks(rows)]
        closed.append(self._expired(boundary if isinstance(boundary, int) else boundary[self.open[GROUP]]))
        return concat(closed)

    def _arrived(self, flow: Flow) -> tuple[Columns, list[int]]:
        """Rows as they wait, and the numbers of groups that are new."""
        if not len(flow):
            return take(self.waiting, NOTHING), []
        group, fresh = self.groups.encode([flow.rows[c] for c in self.by], len(flow))
        rows: Columns = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time, GROUP: group.astype(np.int64, copy=False)}
        return rows | {x: whole(flow.rows[name]) for name, x in self.arguments.items()}, fresh

    def _blocks(self, rows: Columns) -> Iterator[Columns]:
        n = len(rows[TIME])
        step = max(1, ENTRIES_MOST // max(1, self._overlap(n)))
        for start in range(0, n, step):
            yield rows if n <= step else take(rows, np.arange(start, min(start + step, n)))

    def _fold(self, entries: Columns, rows: Columns, index: Int64s, slot: Int64s) -> Columns:
        """Entries with the rows at `index` added to those at `slot`, in this order."""
        entries = entries | {CHANGED: np.ones(len(entries[GROUP]), np.bool_)}
        places = pa.array(index)
        time = rows[TIME][index]
        return self._added(entries, lambda name: rows[self.arguments[name]].take(places), slot, time)

    def emit(self, closed: Columns, bounds: Bounds) -> Flow:
        """Windows that these boundaries close, as results."""
        if not len(closed[GROUP]):
            return empty_flow(self.schema, bounds)
        cause = bounds.cause[np.searchsorted(bounds.time, closed[DUE], "left")]
        keys = self.groups.keys(closed[GROUP])
        order = in_order([cause, closed[TIME]], [*keys, pa.array(closed[WINDOW])])
        return self._results(take(closed, order), [k.take(pa.array(order)) for k in keys], cause[order], bounds)

    # -- open windows

    def _entries(self, groups: Int64s, windows: Int64s, opened: Int64s) -> Columns:
        changed = np.ones(len(groups), np.bool_)
        return self._started({GROUP: groups, WINDOW: windows, OPENED: opened, CHANGED: changed})

    def _take_out(self, which: NDArray[np.bool_]) -> Columns:
        gone = take(self.open, np.flatnonzero(which))
        if len(gone[GROUP]):
            self.open = take(self.open, np.flatnonzero(~which))
        return gone

    def _distinct(self, *groups: Int64s) -> Int64s:
        """Each of these groups once, rising."""
        seen = np.zeros(self.numbers.capacity, np.bool_)
        for some in groups:
            seen[some] = True
        return np.flatnonzero(seen)

    # -- tables

    def _open_delta(self, before: Columns) -> Delta:
        put = take(self.open, np.flatnonzero(self.open[CHANGED]))
        _, still = self._find(before[GROUP], before[WINDOW])
        gone = to_table({k: before[k][~still] for k in OPEN.key})
        if not len(put[GROUP]) and not gone.num_rows:
            return {}
        return {OPEN.name: Change(_table(put), cut=gone if gone.num_rows else None)}

    def _more_delta(self, groups: Int64s) -> Delta:
        """What a train that released rows of these groups changed in further tables."""
        return {}

    def apply(self, delta: Delta) -> None:
        self._apply_groups(delta)
        if (waiting := delta.get(WAITING.name)) is not None:
            rows = self.waiting
            if waiting.floor is not None:
                rows = take(rows, np.flatnonzero(rows[TIME] >= waiting.floor))
            rows = concat([rows, like(rows, waiting.put)])
            self.waiting = take(rows, newest(rows[CAUSE], rows[SUB]))
        if (windows := delta.get(OPEN.name)) is not None:
            if windows.cut is not None:
                at, found = self._find(*(windows.cut[k].to_numpy() for k in OPEN.key))
                self._replace(at[found], take(self.open, NOTHING))
            put = like({k: v for k, v in self.open.items() if k != CHANGED}, windows.put)
            self._put(put | {CHANGED: np.zeros(len(put[GROUP]), np.bool_)})

    def tables_now(self) -> dict[str, pa.Table]:
        return {
            GROUPS.name: self._group_table(self.groups.alive()),
            WAITING.name: to_table(self.waiting),
            OPEN.name: _table(self.open),
        }


def _table(entries: Columns) -> pa.Table:
    return to_table({k: v for k, v in entries.items() if k != CHANGED})
