"""Aggregate over time windows whose input carries revisions: a closed window that changes is given again, signed.

As in `aggregate`, rows are folded into panes and windows put together from panes; panes and rows stay until no window
that has them can change any more. A row *revises* when a window that has it was closed at its cause. All other rows of
a pane came before any window of it closed; so a pane has, within a train, one *version* that these made, and one more
for each cause that revises it. A result is put together from the versions of its panes as of a cause, and what a cause
changes is the difference between the results before and after it.

A pane that loses a row is folded again from the rows it has left, in input order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.errors import TrainError
from borealis.kernels.accumulators import AggregateCall, calls_of
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE, AggregateKernel, oldest_needed
from borealis.kernels.columns import Columns, concat, distinct_pairs, places_in_blocks, take, to_table, whole
from borealis.kernels.flow import NOTHING, Bounds, Flow, rank_within
from borealis.kernels.folding import add_counts, sum_counts
from borealis.kernels.groups import END, GROUP, GROUPS, inside_windows, like
from borealis.kernels.held_rows import HeldRows, fingerprints, identities, taken_back
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, SUB, TIME, Int8s, Int64s, Kind

HELD = TableSpec("rows", (CAUSE, SUB), floor=TIME)
ROWS = "rows"  # of a pane or a window: how many there are
FROM, UNTIL = "from", "until"  # the causes during which a version holds: the first, and the first that is later
ADDS, AT, REVISES = (
    "adds",
    "at",
    "revises",
)  # of a row: its sign, the boundary at it, whether a window with it was closed
DEAD = "dead"  # of a row: the cause that takes it back, or LAST_TIME
WHOLE = "whole"  # the fingerprint of a row's other columns
FOLDED_AT_ONCE = 1 << 20  # pairs of a version and a row, or of a window and a pane


class RevisedWindows(AggregateKernel):
    """State: `groups` (number to key) and `rows`, of which panes are made."""

    tables = (GROUPS, HELD)

    def __init__(
        self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall], history: int
    ) -> None:
        super().__init__(schema, by, size, slide, calls)
        self.history = history
        self.signed = self.schema.append(pa.field(KIND, pa.int8()))  # of the output's rows
        names = dict.fromkeys(name for call in calls for name in call.columns)
        self.arguments = {name: f"x{i}" for i, name in enumerate(names)}  # to the name in a table
        self.others = [name for name in schema.names if name not in names and name not in by]
        empty: Columns = {CAUSE: NOTHING, SUB: NOTHING, TIME: NOTHING, GROUP: NOTHING}
        empty |= {x: pa.nulls(0, schema.field(name).type) for name, x in self.arguments.items()}
        self.held = HeldRows(empty | ({WHOLE: NOTHING} if self.others else {}))
        self.versions: Columns | None = None  # of panes revised in this train, the ones before the last
        self.begin = NOTHING  # where there are such: since when the open entries hold
        self.entries_of = NOTHING  # how many entries each group has, by its number
        self.left: list[Int64s] = []  # groups that lost entries in this train
        self.stale: list[Columns] = []  # panes whose rows changed while another copy ran

    # -- entries, which count their rows

    def _started(self, head: Columns) -> Columns:
        return super()._started(head | {ROWS: np.zeros(len(head[GROUP]), np.int64)})

    def _added(self, entries: Columns, column: Callable[[str], pa.Array], slot: Int64s, time: Int64s) -> Columns:
        entries = super()._added(entries, column, slot, time)
        return entries | {ROWS: add_counts(entries[ROWS], slot, len(entries[GROUP]))}

    def _combined(self, head: Columns, entries: Columns, index: Int64s, slot: Int64s) -> Columns:
        closed = super()._combined(head, entries, index, slot)
        return closed | {ROWS: sum_counts(slot, entries[ROWS][index], len(head[END]))}

    def _replace(self, cut: Int64s, put: Columns) -> None:
        self.entries_of = self.groups.grown(self.entries_of, 0)
        gone = self.open[GROUP][cut]
        np.subtract.at(self.entries_of, gone, 1)
        np.add.at(self.entries_of, put[GROUP], 1)
        self.left.append(gone)
        super()._replace(cut, put)

    def _evict(self, floor: int) -> None:
        for part in self._between(FIRST_TIME, floor):
            np.subtract.at(self.entries_of, part[GROUP], 1)
            self.left.append(part[GROUP])
        super()._evict(floor)

    def _note_groups(self, groups: Int64s, panes: Int64s) -> None:
        """A group is known for as long as it has entries: nothing to note."""

    def _thaw(self, pane: int) -> None:
        """Make the panes from this one on such as can be changed."""
        old = [part for part in self.sealed if part[PANE][-1] < pane]
        if len(old) < len(self.sealed):
            self.open = concat([*self.sealed[len(old) :], self.open])
            self.sealed = old

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Take rows in and back, then emit what closed windows change and every window that closes."""
        bounds = flow.bounds
        self._settle()
        self._seal(bounds.standing)
        self.left, self.versions = [], None
        flow = inside_windows(flow, self.size, self.slide)
        rows, fresh = self._arrived(flow, bounds)
        changes = self._take_in(flow, rows)
        revised = self._revised(rows, bounds)
        closed = self._emit(bounds)
        self.versions = None
        floor_before, floor = self._floor(bounds.standing), self._floor(bounds.final)
        if floor > floor_before:
            self._evict(floor)
        dead = self._dead(fresh)
        delta = self._group_delta(fresh, dead) | self._delta_of(changes, floor if floor > floor_before else None)
        self.groups.cut(dead)
        return self._in_order(revised, closed), delta

    def _arrived(self, flow: Flow, bounds: Bounds) -> tuple[Columns, list[int]]:
        """The rows with their groups and panes, and the numbers of groups that are new."""
        at = np.insert(bounds.time, 0, bounds.standing)[np.searchsorted(bounds.cause, flow.cause, "left")]
        if len(flow) and np.any(flow.time < self._behind(at)):
            late = int(np.max(at - flow.time))
            hint = "everything before this train is committed"
            raise TrainError(f"a row lies {late} us behind the boundary, more than the history has", hint=hint)
        group, fresh = self.groups.encode([flow.rows[c] for c in self.by], len(flow)) if len(flow) else (NOTHING, [])
        pane = np.floor_divide(flow.time, self.width) * self.width
        kind = whole(flow.rows[KIND]).to_numpy()
        rows: Columns = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time, GROUP: group.astype(np.int64, copy=False)}
        rows |= {x: whole(flow.rows[name]) for name, x in self.arguments.items()}
        if self.others:
            rows[WHOLE] = fingerprints([flow.rows[name] for name in self.others], len(flow))
        adds = (kind == Kind.INSERTION) | (kind == Kind.UPDATE_AFTER)
        return rows | {PANE: pane, ADDS: adds, AT: at, REVISES: self._first_end(pane) <= at}, fresh

    def _behind(self, boundary: Int64s) -> Int64s:
        """The least time that a row may have at these boundaries."""
        return np.maximum(boundary, FIRST_TIME + self.history) - self.history

    def _first_end(self, pane: Int64s) -> Int64s:
        """The end of the first window that has this pane."""
        return (np.floor_divide(pane - self.size, self.slide) + 1) * self.slide + self.size

    def _dead(self, fresh: list[int]) -> list[int]:
        self.entries_of = self.groups.grown(self.entries_of, 0)
        candidates = np.unique(np.concatenate([*self.left, np.array(fresh, np.int64)]))
        dead: list[int] = candidates[self.entries_of[candidates] == 0].tolist()
        return dead

    def _floor(self, boundary: int) -> int:
        if boundary != LAST_TIME:
            boundary = max(boundary, FIRST_TIME + self.history) - self.history
        return oldest_needed(boundary, self.size, self.slide)

    # -- rows into panes

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        """Hold the rows that came to stay, and bring panes up to date; the held rows that came and that went."""
        come = gone = {name: rows[name] for name in self.held.empty}
        adds = rows[ADDS]
        dead = np.full(len(adds), LAST_TIME)  # the cause that takes a row back
        out = out_cause = NOTHING
        if not adds.all():
            come, gone = take(come, np.flatnonzero(adds)), take(gone, np.flatnonzero(~adds))
            out, out_cause, dead[adds] = self._taken_back(come, gone)
        self._bring_up(flow, rows | {DEAD: dead}, out, out_cause)
        went = self.held.at(out)
        self.held.remove(out)
        stay = dead[adds] == LAST_TIME
        come = come if stay.all() else take(come, np.flatnonzero(stay))
        self.held.add(come)
        return come, went

    def _taken_back(self, come: Columns, gone: Columns) -> tuple[Int64s, Int64s, Int64s]:
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
        return place[at[held]], gone[CAUSE][held], dead

    def _never_came(self, row: Columns) -> TrainError:
        key = [k.to_pylist()[0] for k in self.groups.keys(row[GROUP])]
        what = f"a row is taken back that never came: group {key}, time {row[TIME][0]}, cause {row[CAUSE][0]}"
        return TrainError(what, hint="the box before this one has a defect; everything before is committed")

    def _bring_up(self, flow: Flow, rows: Columns, out: Int64s, out_cause: Int64s) -> Columns:
        """Fold rows into panes: as a box without revisions does, where a pane neither loses a row nor is revised.

        Returns the panes that changed, as they are now; some may have no rows left."""
        usual = rows[ADDS] & ~rows[REVISES]
        if not len(usual):
            return take(self.open, NOTHING)
        self._thaw(int(rows[PANE].min()))
        if usual.all():
            return self._absorb(flow, rows[GROUP])
        panes, groups, slot = distinct_pairs(rows[PANE] // self.width, rows[GROUP], self.groups.capacity)
        changed = np.zeros(len(panes), np.bool_)
        changed[slot[~usual]] = True
        touched = []
        mine = changed[slot]
        if not mine.all():
            others = np.flatnonzero(~mine)
            needed = flow.with_rows(flow.rows.select([*self.arguments, KIND]))
            touched.append(self._absorb(needed.take(others), rows[GROUP][others]))
            slot, rows = slot[mine], take(rows, np.flatnonzero(mine))
        heads = {PANE: panes[changed] * self.width, GROUP: groups[changed]}
        slot = (np.cumsum(changed) - 1)[slot]
        at, found = self._find(heads[PANE], heads[GROUP])
        spans = _versions(len(heads[PANE]), slot, rows)
        versions = self._versions_of(heads, at, found, slot, rows, spans, out, out_cause)
        touched.append(self._store(versions, at[found]))
        return concat(touched)

    def _versions_of(
        self,
        heads: Columns,
        at: Int64s,
        found: NDArray[np.bool_],
        slot: Int64s,
        rows: Columns,
        spans: _Spans,
        out: Int64s,
        out_cause: Int64s,
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
            dead = np.concatenate([_looked_up(place, out, out_cause, LAST_TIME), dead])
        order = stable_order(pool_slot)
        start, count = _prefixes(pool_slot[order], pool[CAUSE][order], spans.of, spans.until)
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

    def _store(self, versions: Columns, stood: Int64s) -> Columns:
        """Put the last version of each pane in place of what stood there, and have earlier ones at hand for this train;
        the last ones."""
        last = versions[UNTIL] == LAST_TIME
        filled = versions[ROWS] > 0
        final = take({name: versions[name] for name in self.open}, np.flatnonzero(last))
        if filled[last].all():
            self._put(final)
        else:
            self._replace(stood, take(final, np.flatnonzero(filled[last])))
        if not last.all():
            self.versions = take(versions, np.flatnonzero(~last & filled))
            at, found = self._find(final[PANE], final[GROUP])
            self.begin = np.full(len(self.open[PANE]), FIRST_TIME)
            self.begin[at[found]] = versions[FROM][last][found]
        return final

    # -- windows that close

    def _parts(self) -> list[Columns]:
        parts = super()._parts()
        if self.versions is None:
            return parts
        begins = [*(np.full(len(part[PANE]), FIRST_TIME) for part in parts[:-1]), self.begin]
        return [p | {FROM: b, UNTIL: np.full(len(b), LAST_TIME)} for p, b in zip(parts, begins, strict=True)]

    def _closing(self, bounds: Bounds) -> Columns | None:
        entries = super()._closing(bounds)
        if self.versions is None or bounds.final == bounds.standing:
            return entries
        parts = [] if entries is None else [entries]
        return self._with_versions(parts, self.versions[PANE] < bounds.final)

    def _with_versions(self, parts: list[Columns], which: NDArray[np.bool_]) -> Columns | None:
        """Entries together with some earlier versions of them, oldest pane first."""
        assert self.versions is not None
        if which.any():
            parts = [*parts, take(self.versions, np.flatnonzero(which))]
        if not parts:
            return None
        every = concat(parts)
        return take(every, stable_order(every[PANE]))

    def _counting(self, entries: Columns, index: Int64s, end: Int64s, bounds: Bounds) -> tuple[Int64s, Int64s]:
        if FROM not in entries:
            return index, end
        cause = self._closing_cause(end, bounds)
        counts = (entries[FROM][index] <= cause) & (cause < entries[UNTIL][index])
        return index[counts], end[counts]

    # -- closed windows that change

    def _revised(self, rows: Columns, bounds: Bounds) -> Flow | None:
        """What the rows that revise change in closed windows."""
        which = np.flatnonzero(rows[REVISES])
        if not len(which):
            return None
        pane, group = rows[PANE][which], rows[GROUP][which]
        first = self._first_end(pane)
        last = np.minimum(np.floor_divide(pane, self.slide) * self.slide + self.size, rows[AT][which])
        times = np.floor_divide(last - first, self.slide) + 1
        index = np.repeat(np.arange(len(which)), times)
        end = first[index] + (np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)) * self.slide
        group, cause = group[index], rows[CAUSE][which][index]
        # chains: the causes that change one window of one group, in order
        order = np.lexsort((cause, end, group))
        group, end, cause, index = group[order], end[order], cause[order], index[order]
        chain = np.insert((group[1:] != group[:-1]) | (end[1:] != end[:-1]), 0, True)
        begins = chain | np.insert(cause[1:] != cause[:-1], 0, True)
        step = np.flatnonzero(begins)
        seen = index[step]  # the first row of each step
        chain, group, end, cause = chain[step], group[step], end[step], cause[step]
        # states: before the first cause of a chain, then after each of its causes
        after = np.arange(len(step)) + np.cumsum(chain)
        of = np.repeat(np.arange(len(step)), 1 + chain)
        as_of = cause[of]
        as_of[after[chain] - 1] -= 1
        windows = self._windows(group[of], end[of], as_of)
        return self._differences(windows, after, np.lexsort((seen, end, cause)), cause, bounds)

    def _windows(self, group: Int64s, end: Int64s, cause: Int64s) -> Columns:
        """These windows as they are after these causes; some may have no rows."""
        low, high = int(end.min()) - self.size, int(end.max())
        wanted = np.zeros(self.groups.capacity, np.bool_)
        wanted[group] = True
        parts = [take(part, np.flatnonzero(wanted[part[GROUP]])) for part in self._between(low, high)]
        assert self.versions is not None
        pane = self.versions[PANE]
        entries = self._with_versions(parts, (low <= pane) & (pane < high) & wanted[self.versions[GROUP]])
        if entries is None:
            entries = take(self.versions, NOTHING)
        entries = take(entries, stable_order(entries[GROUP]))
        ranks = np.unique(entries[PANE])
        many = len(ranks) + 1
        code = entries[GROUP] * many + np.searchsorted(ranks, entries[PANE])
        start = np.searchsorted(code, group * many + np.searchsorted(ranks, end - self.size))
        count = np.searchsorted(code, group * many + np.searchsorted(ranks, end)) - start
        closed = []
        for some, place in places_in_blocks(start, count, FOLDED_AT_ONCE):
            slot = np.repeat(np.arange(some.stop - some.start), count[some])
            as_of = cause[some][slot]
            counts = (entries[FROM][place] <= as_of) & (as_of < entries[UNTIL][place])
            slot, place = slot[counts], place[counts]
            closed.append(self._combined({GROUP: group[some], END: end[some]}, entries, place, slot))
        return concat(closed)

    def _differences(self, windows: Columns, after: Int64s, order: Int64s, cause: Int64s, bounds: Bounds) -> Flow:
        """The rows that lead from each state before to the one after it, step by step in this order."""
        filled = windows[ROWS] > 0
        place = np.cumsum(filled) - 1
        windows = take(windows, np.flatnonzero(filled))
        results = self._result_rows(windows, self.groups.keys(windows[GROUP]))
        after = after[order]
        was, there = filled[after - 1], filled[after]
        same = was & there
        for i in range(len(self.calls)):
            codes = identities(results[f"__a{i}"])
            both = np.flatnonzero(same)
            same[both] = codes[place[after[both] - 1]] == codes[place[after[both]]]
        both = was & there
        out = was & ~same
        into = there & ~same
        source = np.column_stack([place[after - 1], place[after]]).ravel()
        kind = np.column_stack(
            [
                np.where(both, Kind.UPDATE_BEFORE, Kind.DELETION),
                np.where(both, Kind.UPDATE_AFTER, Kind.INSERTION),
            ]
        ).ravel()
        given = np.flatnonzero(np.column_stack([out, into]).ravel())
        source, kind, causes = source[given], kind[given].astype(np.int8), np.repeat(cause[order], 2)[given]
        rows = results.take(pa.array(source))
        return Flow(self._with_kind(rows, kind), windows[TIME][source], causes, rank_within(causes), bounds)

    def _with_kind(self, rows: pa.Table, kind: Int8s) -> pa.Table:
        return pa.table([*rows.columns, pa.array(kind)], schema=self.signed)

    def _in_order(self, revised: Flow | None, closed: Flow) -> Flow:
        """All results by cause; the rows of a cause come before its boundary."""
        n = len(closed)
        closed = closed.with_rows(self._with_kind(closed.rows, np.full(n, Kind.INSERTION, np.int8)))
        if revised is None or not len(revised):
            return closed
        if not n:
            return revised
        cause = np.concatenate([revised.cause, closed.cause])
        order = stable_order(cause)
        cause = cause[order]
        rows = pa.concat_tables([revised.rows, closed.rows]).take(pa.array(order))
        time = np.concatenate([revised.time, closed.time])[order]
        return Flow(rows, time, cause, rank_within(cause), closed.bounds)

    # -- tables

    def _delta_of(self, changes: tuple[Columns, Columns], floor: int | None) -> Delta:
        come, gone = changes
        if floor is not None:
            self.held.raise_floor(floor)
            come, gone = (take(some, np.flatnonzero(some[TIME] >= floor)) for some in changes)
        if floor is None and not len(come[TIME]) and not len(gone[TIME]):
            return {}
        cut = to_table({name: gone[name] for name in HELD.key}) if len(gone[TIME]) else None
        return {HELD.name: Change(to_table(come), cut=cut, floor=floor)}

    def apply(self, delta: Delta) -> None:
        self._apply_groups(delta)
        if (change := delta.get(HELD.name)) is None:
            return
        if change.floor is not None:
            self._evict(change.floor)
            self.held.raise_floor(change.floor)
        cut = None if change.cut is None else tuple(change.cut[name].to_numpy() for name in HELD.key)
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
        self._thaw(int(panes.min()))
        slot, place = self.held.find(groups, panes, panes + self.width - 1)
        rows = self.held.at(place)
        nothing = np.zeros(len(panes), np.int64)
        new = self._started({PANE: panes, GROUP: groups, FIRST_CAUSE: nothing, FIRST_SUB: nothing})
        entries = self._folded(new, rows, np.arange(len(slot)), slot)
        at, found = self._find(panes, groups)
        self._replace(at[found], take(entries, np.flatnonzero(entries[ROWS] > 0)))

    def tables_now(self) -> dict[str, pa.Table]:
        return {GROUPS.name: self._group_table(self.groups.alive()), HELD.name: to_table(self.held.all())}


@dataclass(frozen=True)
class _Spans:
    """The versions of panes, in order: which pane, the cause from which on each holds, and that of the next."""

    of: Int64s
    begin: Int64s
    until: Int64s


def _versions(slots: int, slot: Int64s, rows: Columns) -> _Spans:
    """What the rows at these slots, some of which revise them, make of each: a version, and one more for each cause."""
    revises = rows[REVISES]
    of, begin = slot[revises], rows[CAUSE][revises]
    order = np.lexsort((begin, of))
    of, begin = of[order], begin[order]
    new = np.append(True, (of[1:] != of[:-1]) | (begin[1:] != begin[:-1]))[: len(of)]
    of = np.concatenate([np.arange(slots), of[new]])
    begin = np.concatenate([np.full(slots, FIRST_TIME), begin[new]])
    order = stable_order(of)
    of, begin = of[order], begin[order]
    until = np.append(begin[1:], LAST_TIME)
    until[np.append(of[1:] != of[:-1], True)] = LAST_TIME
    return _Spans(of, begin, until)


def _prefixes(slot: Int64s, cause: Int64s, of: Int64s, until: Int64s) -> tuple[Int64s, Int64s]:
    """Of rows sorted by slot and cause: where those of a slot start, and how many are before a cause."""
    least = int(cause.min(initial=0))
    many = int(cause.max(initial=0)) - least + 2
    if (int(of.max()) + 1) * many < 2**62:
        moment, until = cause - least, np.minimum(until, least + many - 1) - least
    else:
        ranks, moment = np.unique(cause, return_inverse=True)
        many, until = len(ranks) + 1, np.searchsorted(ranks, until)
    code = slot * many + moment
    start = np.searchsorted(code, of * many)
    return start, np.searchsorted(code, of * many + np.maximum(until, 0)) - start


def _looked_up(wanted: Int64s, known: Int64s, value: Int64s, default: int) -> Int64s:
    """The values of those that are known, each of which is so once."""
    if not len(known):
        return np.full(len(wanted), default)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order][at] == wanted, value[order][at], default)


def make(step: Step) -> RevisedWindows:
    o = step.options
    return RevisedWindows(schema_of(o["schema"]), o["by"], o["size"], o["slide"], calls_of(step), o["history"])
