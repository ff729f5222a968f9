"""Resample: tuples of the first stream wait until the boundary says that all of the second near them have come.

What a result is made of depends on the tuples alone, not on their order: the second stream is sorted by group, time
and values before it is looked at. So copies that merge the two streams differently come to the same values.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import AggregateCall, accumulator, calls_of, seen
from borealis.kernels.columns import Columns, column_numbers, normal_floats, places_in_blocks, take, to_numpy, whole
from borealis.kernels.flow import HEAD, Bounds, Flow, behind, empty_flow, held_schema, merge_bounds, rank_within
from borealis.kernels.groups import Groups
from borealis.kernels.sorting import in_order, newest
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s

PAIRS_AT_ONCE = 1 << 22  # that aggregates are fed at a time: bounds the memory that a wide window costs
CHUNKS_MOST = 32  # that a table lies in: then it is copied into one
FIRST, SECOND = "first", "second"
VALUE = "__v"  # what is interpolated


class Resampling:
    """What is made of tuples of the first stream and those of the second near them.

    The result of a tuple of the first stream has the last instant of its window as its time, `waits` behind its own.
    It is due when the boundary has passed that.
    """

    tables = (TableSpec(FIRST, (CAUSE, SUB), floor=TIME), TableSpec(SECOND, (CAUSE, SUB), floor=TIME))

    def __init__(
        self,
        first: pa.Schema,
        second: pa.Schema,
        by: list[str],
        window: int,
        how: str | None,
        calls: list[AggregateCall],
    ) -> None:
        self.by, self.window, self.how, self.calls = by, window, how, calls
        self.waits = 0 if how == "previous" else window - 1
        self.own = first.names
        self.values = [name for name in second.names if name not in by]
        self.accumulators = [accumulator(c, second) for c in calls]
        added = [(f"__a{i}", c.result) for i, c in enumerate(calls)]
        self.schema = pa.schema([*first, *(added if how is None else [second.field(VALUE)])])
        self._hold(first, second)

    def _hold(self, first: pa.Schema, second: pa.Schema) -> None:
        """Begin to hold tuples of streams with these columns."""
        raise NotImplementedError

    def _that_count(self, rows: pa.Table) -> pa.Table:
        """The rows of the second stream that can count, with floats as SQL compares them."""
        for name in (*self.by, *(() if self.how is None else (VALUE,))):
            if rows[name].null_count:
                rows = rows.filter(rows[name].is_valid())
        return pa.table([normal_floats(whole(column)) for column in rows.columns], schema=rows.schema)

    def _floor(self, boundary: int) -> int:
        """The least time of a tuple of the first stream that is not yet due at this boundary."""
        return behind(boundary, self.waits)

    def _oldest(self, floor: int) -> int:
        """The least time of a tuple of the second stream that counts for any of the first from this floor on."""
        return behind(floor, self.window - 1)

    def _times(self, own: Int64s) -> Int64s:
        """The times of the results of tuples with these."""
        return np.minimum(own, LAST_TIME - 1 - self.waits) + self.waits

    def _look(self, near: Near) -> list[pa.Array]:
        """What is added to rows of the first stream."""
        if self.how is None:
            return self._aggregated(near)
        values, time, before, after = near.columns[VALUE], near.when, near.before(), near.after()
        both = (before >= 0) & (after >= 0)
        if self.how == "linear":
            return [_line(to_numpy(values), near.time, time, before, after, both)]
        if self.how == "nearest":
            behind, ahead = (near.time[at[both]] for at in (before, after))
            chosen = np.maximum(before, after)
            chosen[both] = np.where(time[both] - behind <= ahead - time[both], before[both], after[both])
            before = chosen
        return [values.take(pa.array(before, mask=before < 0))]

    def _aggregated(self, near: Near) -> list[pa.Array]:
        parts: list[list[pa.Array]] = [[] for _ in self.calls]
        for slots, slot, place in near.pairs():
            time = near.time[place]
            for part, call, acc in zip(parts, self.calls, self.accumulators, strict=True):
                columns = [near.columns[name].take(pa.array(place)) for name in call.columns]
                part.append(acc.result(acc.fold(acc.start(slots), seen(acc, columns, slot, time, slots))))
        return [pa.concat_arrays(part) for part in parts]


class ResampleKernel(Resampling):
    """State: `first`, the tuples that wait, and `second`, the tuples that may still count; not those that never do,
    with a null in a key or a null to interpolate.
    """

    def _hold(self, first: pa.Schema, second: pa.Schema) -> None:
        self.first, self.second = _HeldRows(first), _HeldRows(second)

    # -- one train

    def step(self, first: Flow, second: Flow) -> tuple[Flow, Delta]:
        """Take the rows of both streams, and emit what the boundary of both has made due."""
        bounds = merge_bounds([first.bounds, second.bounds])
        waiting, counting = first.held(self.first.schema), self._that_count(second.held(self.second.schema))
        self.first.add(waiting)
        self.second.add(counting)
        out = self._due(bounds)
        floor = self._floor(bounds.final)
        oldest = self._oldest(floor)
        # of the second stream stays what counts for any of the first that is not yet due
        changes = {FIRST: self.first.let_go(waiting, floor), SECOND: self.second.let_go(counting, oldest)}
        return out, {name: change for name, change in changes.items() if change is not None}

    # -- results

    def _due(self, bounds: Bounds) -> Flow:
        due = np.flatnonzero(column_numbers(self.first.rows, TIME) < self._floor(bounds.final))
        if not len(due):
            return empty_flow(self.schema, bounds)
        rows = self.first.rows.take(pa.array(due))
        cause, sub, own = (column_numbers(rows, name) for name in HEAD)
        time = self._times(own)
        reached = np.searchsorted(bounds.time, time, "right")
        order = np.lexsort((sub, cause, own, reached))
        rows, own = rows.take(pa.array(order)), own[order]
        cause = bounds.cause[reached[order]]
        columns = [*(rows[name] for name in self.own), *self._look(self._near(rows, own))]
        return Flow(pa.table(columns, schema=self.schema), time[order], cause, rank_within(cause), bounds)

    def _near(self, rows: pa.Table, time: Int64s) -> Near:
        held = self.second.rows
        groups = Groups([held.schema.field(name).type for name in self.by])
        group, _ = groups.encode([held[name] for name in self.by], len(held))
        mine, _ = groups.encode([rows[name] for name in self.by], len(rows))
        columns = {name: whole(held[name]) for name in self.values}
        return Near(group, column_numbers(held, TIME), columns, mine, time, self.window)

    # -- tables

    def apply(self, delta: Delta) -> None:
        for name, held in ((FIRST, self.first), (SECOND, self.second)):
            if (change := delta.get(name)) is not None:
                if change.floor is not None:
                    held.raise_floor(change.floor)
                held.put(change.put)

    def tables_now(self) -> dict[str, pa.Table]:
        return {FIRST: self.first.rows.combine_chunks(), SECOND: self.second.rows.combine_chunks()}


class _HeldRows:
    """Rows of one stream that still count, in order of (cause, sub)."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = held_schema(schema)
        self.rows = self.schema.empty_table()

    def add(self, rows: pa.Table) -> None:
        """Hold these rows, which come after all others."""
        if len(rows):
            self.rows = pa.concat_tables([self.rows, rows])
        if self.rows[CAUSE].num_chunks > CHUNKS_MOST:
            self.rows = self.rows.combine_chunks()

    def let_go(self, new: pa.Table, floor: int) -> Change | None:
        """Forget what lies before `floor`: what changed, `new` being the rows that were added just now."""
        old = len(self.rows) - len(new)
        self.raise_floor(floor)
        stays = column_numbers(new, TIME) >= floor
        new = new.filter(pa.array(stays)).combine_chunks()
        dropped = len(self.rows) - len(new) < old
        return Change(new, floor=floor if dropped else None) if dropped or len(new) else None

    def raise_floor(self, floor: int) -> None:
        """Forget what lies before it."""
        stays = column_numbers(self.rows, TIME) >= floor
        if not stays.all():
            self.rows = self.rows.filter(pa.array(stays)).combine_chunks()

    def put(self, rows: pa.Table) -> None:
        """Hold rows as they stand in a delta: in any order, in place of those that have the same key."""
        if not len(rows):
            return
        both = pa.concat_tables([self.rows, rows.cast(self.schema)])
        places = newest(column_numbers(both, CAUSE), column_numbers(both, SUB))
        self.rows = both.take(pa.array(places)).combine_chunks()


class Near:
    """Where the second stream, sorted by group, time and values, has what is near in time to rows of the first, which
    have the groups `mine` and the times `when`."""

    def __init__(self, group: Int64s, time: Int64s, columns: Columns, mine: Int64s, when: Int64s, window: int) -> None:
        order = in_order([group, time], list(columns.values()))
        self.time, self.columns = time[order], take(columns, order)
        self._moments = np.unique(self.time)
        self._many = len(self._moments) + 1
        self._codes = group[order] * self._many + np.searchsorted(self._moments, self.time)  # rises
        self._base, self.when = mine * self._many, when
        self._early = np.maximum(when, FIRST_TIME + window) - window
        self._late = np.minimum(when, LAST_TIME - window) + window

    def _place(self, time: Int64s, side: str) -> Int64s:
        """The first place of each row's group with a time of at least this; from the "right": with a greater one."""
        moment = np.searchsorted(self._moments, time, side)  # type: ignore[call-overload]
        places: Int64s = np.searchsorted(self._codes, self._base + moment)
        return places

    def before(self) -> Int64s:
        """The last place at or before each row's time, of the greatest value there; -1 if none is near."""
        place = self._place(self.when, "right") - 1
        return np.where(place >= self._place(self._early, "right"), place, -1)

    def after(self) -> Int64s:
        """The first place at or after each row's time, of the greatest value there; -1 if none is near."""
        place = self._place(self.when, "left")
        near = place < self._place(self._late, "left")
        there = np.where(near, self.time[np.minimum(place, len(self.time) - 1)] if len(self.time) else 0, 0)
        return np.where(near, self._place(there, "right") - 1, -1)

    def pairs(self) -> Iterator[tuple[int, Int64s, Int64s]]:
        """For some rows at a time, in order: how many they are, and the pairs of a row's number and a place near it."""
        start, stop = self._place(self._early, "right"), self._place(self._late, "left")
        count = np.maximum(stop - start, 0)
        for some, place in places_in_blocks(start, count, PAIRS_AT_ONCE):
            rows = some.stop - some.start
            yield rows, np.repeat(np.arange(rows), count[some]), place


def make(step: Step) -> ResampleKernel:
    o, calls = step.options, calls_of(step)
    return ResampleKernel(schema_of(o["first"]), schema_of(o["second"]), o["by"], o["window"], o["how"], calls)


def _line(
    values: NDArray[np.float64], when: Int64s, time: Int64s, before: Int64s, after: Int64s, both: NDArray[np.bool_]
) -> pa.Array:
    """The point at each time of the straight line between two others; null without both."""
    out = np.zeros(len(time))
    here, there = before[both], after[both]
    passed, span = time[both] - when[here], when[there] - when[here]
    with np.errstate(all="ignore"):  # infinity less infinity is NaN, and no news
        share = passed.astype(np.float64) / np.maximum(span, 1).astype(np.float64)
        out[both] = np.where(span == 0, values[here], values[here] + (values[there] - values[here]) * share)
    return pa.array(out, mask=~both)
