"""What aggregates over time windows have in common whose input carries revisions: versions of panes, and differences.

As in `aggregate`, rows are folded into panes and windows put together from panes; panes stay until no window that has
them can change any more. A row *revises* when a window that has it was closed at its cause. All other rows of a pane
came before any window of it closed; so a pane has, within a train, one *version* that these made, and one more for
each cause that revises it. A result is put together from the versions of its panes as of a cause, and what a cause
changes is the difference between the results before and after it.

How a pane gets its versions is the business of `revised_windows` and `undone_windows`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.errors import TrainError
from borealis.kernels.accumulators import AggregateCall
from borealis.kernels.aggregate import PANE, AggregateKernel, oldest_needed
from borealis.kernels.columns import Columns, concat, distinct_pairs, places_in_blocks, take, to_table, whole
from borealis.kernels.flow import NOTHING, Bounds, Flow, rank_within
from borealis.kernels.folding import add_counts, sum_counts
from borealis.kernels.groups import END, GROUP, inside_windows
from borealis.kernels.kinds import adds, identities, signs
from borealis.kernels.sorting import stable_order
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, SUB, TIME, Int8s, Int64s, Kind

ROWS = "rows"  # of a pane or a window: how many there are
FROM, UNTIL = "from", "until"  # the causes during which a version holds: the first, and the first that is later
ADDS = "adds"  # of a row: its sign
AT = "at"  # the boundary at it
REVISES = "revises"  # whether a window that has it was closed
PART_ENTRIES = 1 << 14  # of a sealed part, as far as panes allow
FOLDED_AT_ONCE = 1 << 20  # pairs of a version and a row, or of a window and a pane


class RevisedPanes(AggregateKernel):
    """Time windows over signed rows, up to how panes change and what the tables are."""

    kept: ClassVar[TableSpec]  # beside the groups

    def __init__(
        self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall], history: int
    ) -> None:
        super().__init__(schema, by, size, slide, calls)
        self.history = history
        self.signed = self.schema.append(pa.field(KIND, pa.int8()))  # of the output's rows
        names = dict.fromkeys(name for call in calls for name in call.columns)
        self.arguments = {name: f"x{i}" for i, name in enumerate(names)}  # to the name in a table
        self.versions: Columns | None = None  # of panes revised in this train, the ones before the last
        self.open_since = NOTHING  # where there are such: since when the open entries hold
        self.entries_of = NOTHING  # how many entries each group has, by its number
        self.left: list[Int64s] = []  # groups that lost entries in this train

    # -- what differs

    def _settle(self) -> None:
        """Make up for what other copies changed, before a train runs."""

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        """Bring panes up to date; what a delta has to put and to cut."""
        raise NotImplementedError

    def _versions_of(
        self, heads: Columns, at: Int64s, found: NDArray[np.bool_], slot: Int64s, rows: Columns, spans: Spans
    ) -> Columns:
        """All versions of the panes with these heads, which stand at these places if they were found: what becomes of
        them by rows at these slots. A version may have no rows."""
        raise NotImplementedError

    def _states(self, rows: Columns, steps: Steps) -> Columns:
        """Closed windows before the first and after each cause that changes them."""
        return self._windows(*steps.states())

    def _delta_of(self, put: Columns, cut: Columns, floor: int | None) -> Delta:
        """What changed in the table that is kept beside that of the groups."""
        by = self.kept.floor
        assert by is not None
        if floor is not None:
            put, cut = (take(some, np.flatnonzero(some[by] >= floor)) for some in (put, cut))
        if floor is None and not len(put[by]) and not len(cut[by]):
            return {}
        keys = to_table({name: cut[name] for name in self.kept.key}) if len(cut[by]) else None
        return {self.kept.name: Change(to_table(put), cut=keys, floor=floor)}

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

    def _thaw(self, panes: Int64s) -> None:
        """Make these panes such as can be changed, with the sealed parts that they lie in."""
        if not self.sealed:
            return
        last = np.array([part[PANE][-1] for part in self.sealed])
        first = np.array([part[PANE][0] for part in self.sealed])
        at = np.unique(np.searchsorted(last, panes))
        at = at[at < len(last)]
        touched = np.zeros(len(last), np.bool_)
        touched[at] = first[at] <= panes.max()
        if touched.any():
            thawed = [part for part, now in zip(self.sealed, touched, strict=True) if now]
            self.open = in_time(concat([*thawed, self.open]))
            self.sealed = [part for part, now in zip(self.sealed, touched, strict=True) if not now]

    def _seal(self, boundary: int) -> None:
        """Put what seldom changes into parts, each of some panes that no other part has, neither too small nor too
        large: what a revision rewrites is the parts that it touches."""
        pane = self.open[PANE]
        split = int(np.searchsorted(pane, boundary - self.width, "right")) if boundary > FIRST_TIME + self.width else 0
        if not split:
            return
        edges = np.searchsorted(pane[:split], [part[PANE][0] for part in self.sealed]).tolist()
        sizes = np.searchsorted(pane[:split], pane[0:split:PART_ENTRIES]).tolist()
        cuts = sorted({0, split, *edges, *sizes})
        new = [take(self.open, np.arange(low, high)) for low, high in pairwise(cuts)]
        self.open = take(self.open, np.arange(split, len(pane)))
        sealed: list[Columns] = []
        for part in sorted([*self.sealed, *new], key=lambda part: int(part[PANE][0])):
            if sealed and len(sealed[-1][PANE]) + len(part[PANE]) <= PART_ENTRIES:
                part = concat([sealed.pop(), part])
            sealed.append(part)
        self.sealed = sealed

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
        delta = self._group_delta(fresh, dead) | self._delta_of(*changes, floor if floor > floor_before else None)
        self.groups.cut(dead)
        return self._in_order(revised, closed), delta

    def _arrived(self, flow: Flow, bounds: Bounds) -> tuple[Columns, list[int]]:
        """The rows with their groups and panes, and the numbers of groups that are new."""
        at = bounds.at(flow.cause)
        expired = np.flatnonzero(flow.time < np.maximum(at, FIRST_TIME + self.history) - self.history)
        if len(expired):
            late = int(at[expired[0]] - flow.time[expired[0]])
            what = f"a row lies {late} us behind the boundary, more than the history of {self.history} us"
            raise TrainError(what, hint="the box before this one has a defect; everything before is committed")
        group, fresh = self.groups.encode([flow.rows[c] for c in self.by], len(flow)) if len(flow) else (NOTHING, [])
        pane = np.floor_divide(flow.time, self.width) * self.width
        rows: Columns = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time, GROUP: group.astype(np.int64, copy=False)}
        rows |= {x: whole(flow.rows[name]) for name, x in self.arguments.items()}
        return rows | {PANE: pane, ADDS: adds(signs(flow)), AT: at, REVISES: self._first_end(pane) <= at}, fresh

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

    def _never_came(self, row: Columns) -> TrainError:
        key = [k.to_pylist()[0] for k in self.groups.keys(row[GROUP])]
        what = f"a row is taken back that never came: group {key}, time {row[TIME][0]}, cause {row[CAUSE][0]}"
        return TrainError(what, hint="the box before this one has a defect; everything before is committed")

    def _bring_up(self, flow: Flow, rows: Columns) -> Columns:
        """Fold rows into panes: as a box without revisions does, where a pane neither loses a row nor is revised.

        Returns the panes that changed, as they are now; some may have no rows left."""
        usual = rows[ADDS] & ~rows[REVISES]
        if not len(usual):
            return take(self.open, NOTHING)
        self._thaw(rows[PANE])
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
        spans = _spans_of(len(heads[PANE]), slot, rows)
        versions = self._versions_of(heads, at, found, slot, rows, spans)
        touched.append(self._store(versions, at[found]))
        return concat(touched)

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
            self.open_since = np.full(len(self.open[PANE]), FIRST_TIME)
            self.open_since[at[found]] = versions[FROM][last][found]
        return final

    # -- windows that close

    def _parts(self) -> list[Columns]:
        parts = super()._parts()
        if self.versions is None:
            return parts
        begins = [*(np.full(len(part[PANE]), FIRST_TIME) for part in parts[:-1]), self.open_since]
        return [p | {FROM: b, UNTIL: np.full(len(b), LAST_TIME)} for p, b in zip(parts, begins, strict=True)]

    def _closing(self, bounds: Bounds) -> Columns | None:
        entries = super()._closing(bounds)
        if self.versions is not None:
            return self._with_versions([] if entries is None else [entries], self.versions[PANE] < bounds.final)
        return None if entries is None else in_time(entries)

    def _with_versions(self, parts: list[Columns], which: NDArray[np.bool_]) -> Columns | None:
        """Entries together with some earlier versions of them, oldest pane first."""
        assert self.versions is not None
        if which.any():
            parts = [*parts, take(self.versions, np.flatnonzero(which))]
        if not parts:
            return None
        return in_time(concat(parts))

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
        steps = Steps.of(which[index], group[index], end, rows[CAUSE][which][index])
        return self._differences(self._states(rows, steps), steps, bounds)

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

    def _differences(self, windows: Columns, steps: Steps, bounds: Bounds) -> Flow:
        """The rows that lead from each state to the one after it."""
        order = steps.in_order()
        filled = windows[ROWS] > 0
        place = np.cumsum(filled) - 1
        windows = take(windows, np.flatnonzero(filled))
        results = self._result_rows(windows, self.groups.keys(windows[GROUP]))
        after = steps.after[order]
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
        source, kind, causes = source[given], kind[given].astype(np.int8), np.repeat(steps.cause[order], 2)[given]
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


def in_time(entries: Columns) -> Columns:
    """Entries in order of their panes: what was sealed may lie between what was thawed."""
    pane = entries[PANE]
    return entries if not np.any(pane[1:] < pane[:-1]) else take(entries, stable_order(pane))


@dataclass(frozen=True)
class Steps:
    """Causes that change closed windows, window after window. A *chain* is those of one window, in order; its states
    are the one before all of them, and one after each."""

    row: Int64s  # the rows of all steps
    step: Int64s  # which each belongs to, rising
    group: Int64s  # of each step
    end: Int64s
    cause: Int64s
    begins: NDArray[np.bool_]  # whether it is the first of its chain

    @staticmethod
    def of(row: Int64s, group: Int64s, end: Int64s, cause: Int64s) -> Steps:
        """From rows, each with a window that it changes."""
        order = np.lexsort((cause, end, group))
        row, group, end, cause = row[order], group[order], end[order], cause[order]
        other = np.insert((group[1:] != group[:-1]) | (end[1:] != end[:-1]), 0, True)
        new = other | np.insert(cause[1:] != cause[:-1], 0, True)
        return Steps(row, np.cumsum(new) - 1, group[new], end[new], cause[new], other[new])

    @cached_property
    def after(self) -> Int64s:
        """Where among all states the one after each step is; the one before it is beside that."""
        places: Int64s = np.arange(len(self.cause)) + np.cumsum(self.begins)
        return places

    def states(self) -> tuple[Int64s, Int64s, Int64s]:
        """Of each state: group, end, and the cause after which it is so."""
        of = np.repeat(np.arange(len(self.cause)), 1 + self.begins)
        cause = self.cause[of]
        cause[self.after[self.begins] - 1] -= 1
        return self.group[of], self.end[of], cause

    def in_order(self) -> Int64s:
        """The steps as they happen: by cause, then by window, then by the first row."""
        first = self.row[np.searchsorted(self.step, np.arange(len(self.cause)))]
        return np.lexsort((first, self.end, self.cause))


@dataclass(frozen=True)
class Spans:
    """The versions of panes, in order: which pane, the cause from which on each holds, and that of the next."""

    of: Int64s
    begin: Int64s
    until: Int64s


def _spans_of(slots: int, slot: Int64s, rows: Columns) -> Spans:
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
    return Spans(of, begin, until)


def prefixes(slot: Int64s, cause: Int64s, of: Int64s, until: Int64s) -> tuple[Int64s, Int64s]:
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
