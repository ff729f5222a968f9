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

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import AggregateCall
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE, AggregateKernel, oldest_needed
from borealis.kernels.columns import Columns, concat, distinct_pairs, fits, places_in_blocks, room, take
from borealis.kernels.compiled import loops
from borealis.kernels.flow import NOTHING, Bounds, Flow, differs
from borealis.kernels.folding import add_counts, sum_counts
from borealis.kernels.groups import END, GROUP, inside_windows
from borealis.kernels.join_changes import perhaps_among
from borealis.kernels.kinds import signs
from borealis.kernels.signed_rows import ADDS, AT, SignedRows
from borealis.kernels.sorting import stable_order
from borealis.state.delta import Delta
from borealis.state.keys import sorted_with_places
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, SUB, TIME, Int64s

ROWS = "rows"  # of a pane or a window: how many there are
FROM, UNTIL = "from", "until"  # the causes during which a version holds: the first, and the first that is later
REVISES = "revises"  # whether a window that has it was closed
NEAR = "near"  # whether its pane gets late rows, or loses some; perhaps it does neither
PART_ENTRIES = 1 << 12  # of a sealed part, as far as panes allow
FOLDED_AT_ONCE = 1 << 20  # pairs of a version and a row, or of a window and a pane


class RevisedPanes(SignedRows, AggregateKernel):
    """Time windows over signed rows, up to how panes change and what the tables are."""

    def __init__(
        self, schema: pa.Schema, by: list[str], size: int, slide: int, calls: list[AggregateCall], history: int
    ) -> None:
        super().__init__(schema, by, size, slide, calls)
        self._sign(self.schema, calls, history)
        stars = (f"c{i}" for i, call in enumerate(calls) if call.function == "count" and not call.columns)
        self.counted = next(stars, None)  # the column that counts rows anyway: `count(*)`
        self.versions: Columns | None = None  # of panes revised in this train, the ones before the last
        self.open_since = NOTHING  # where there are such: since when the open entries hold
        self.entries_of = NOTHING  # how many entries each group has, by its number
        self.left: list[Int64s] = []  # groups that lost entries in this train

    # -- what differs

    def _settle(self) -> None:
        """Make up for what other copies changed, before a train runs."""

    def _fitting(self, flow: Flow, rows: Columns) -> tuple[Flow, Columns]:
        """Without rows that take back what never came, where these would do harm: what is lost in a gap leaves them."""
        return flow, rows

    def _take_usual(self, flow: Flow, group: Int64s) -> tuple[Columns, Columns]:
        """Take in insertions none of which revises anything; what a delta has to put and to cut."""
        raise NotImplementedError

    def _take_in(self, flow: Flow, rows: Columns) -> tuple[Columns, Columns]:
        """The same for any rows: bring panes up to date."""
        raise NotImplementedError

    def _versions_of(
        self, heads: Columns, at: Int64s, found: NDArray[np.bool_], slot: Int64s, rows: Columns, spans: Spans
    ) -> Columns:
        """All versions of the panes with these heads, which stand at these places if they were found: what becomes of
        them by rows at these slots. A version may have no rows."""
        raise NotImplementedError

    def _versioned(self, rows: Columns, bounds: Bounds) -> NDArray[np.bool_]:
        """Which rows make new versions of their panes: those that revise, of panes of which earlier versions count."""
        revises: NDArray[np.bool_] = rows[REVISES]
        return revises

    def _states(self, rows: Columns, steps: Steps) -> Columns:
        """Closed windows before the first and after each cause that changes them."""
        return self._windows(*steps.states())

    # -- entries, which count their rows

    def _panes_of(self, flow: Flow, group: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        compiled, many = loops(), self.groups.capacity
        least = int(flow.time.min()) // self.width
        span = (int(flow.time.max()) // self.width - least + 1) * many
        if compiled is None or not fits(span, len(flow)):
            return super()._panes_of(flow, group)
        first, slot = np.full(span, -1), room(len(flow))
        compiled.codes_of(flow.time, group, self.width, least, many, first, slot)
        codes, place = np.flatnonzero(first >= 0), np.empty(span, np.int64)
        place[codes] = np.arange(len(codes))
        compiled.GATHER[64](slot, place, slot)
        return (codes // many + least) * self.width, codes % many, slot, first[codes]

    def _started(self, head: Columns) -> Columns:
        return super()._started(head | {ROWS: np.zeros(len(head[GROUP]), np.int64)})

    def _added(self, entries: Columns, column: Callable[[str], pa.Array], slot: Int64s, time: Int64s) -> Columns:
        entries = super()._added(entries, column, slot, time)
        count = None if self.counted is None else entries[self.counted]
        return entries | {ROWS: add_counts(entries[ROWS], slot, len(entries[GROUP])) if count is None else count}

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

    def _put(self, entries: Columns) -> None:
        _, found = self.entries.stored(entries[PANE], entries[GROUP])
        self.entries_of = self.groups.grown(self.entries_of, 0)
        np.add.at(self.entries_of, entries[GROUP][~found], 1)
        super()._put(entries)

    def _evict(self, floor: int) -> None:
        for part in self._between(FIRST_TIME, floor):
            np.subtract.at(self.entries_of, part[GROUP], 1)
            self.left.append(part[GROUP])
        super()._evict(floor)

    def _note_groups(self, groups: Int64s, panes: Int64s) -> None:
        """A group is known for as long as it has entries: nothing to note."""

    def _thaw(self, panes: Int64s) -> None:
        """Make these panes such as can be changed, with the sealed parts that they lie in."""
        if not self.sealed or not len(panes):
            return
        last = np.array([part[PANE][-1] for part in self.sealed])
        first = np.array([part[PANE][0] for part in self.sealed])
        touched = np.zeros(len(last) + 1, np.bool_)
        touched[np.searchsorted(last, panes)] = True
        touched = touched[:-1] & (first <= panes.max())
        if touched.any():
            thawed = [part for part, now in zip(self.sealed, touched, strict=True) if now]
            self.open = in_time(concat([*thawed, self.open]))
            self.sealed = [part for part, now in zip(self.sealed, touched, strict=True) if not now]

    def _seal(self, boundary: int) -> None:
        """Put what seldom changes into parts, each of some panes that no other part has, neither too small nor too
        large: what a revision rewrites is the parts that it touches."""
        split = self._changeless(boundary)
        if not split:
            return
        pane = self.open[PANE]
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
        flow = self._recent(inside_windows(flow, self.size, self.slide))
        group, fresh = self._grouped(flow)
        out, changes = self._fold_and_tell(flow, group)
        floor_before, floor = self._floor(bounds.standing), self._floor(bounds.final)
        if floor > floor_before:
            self._evict(floor)
        dead = self._dead(fresh)
        delta = self.group_delta(fresh, dead) | self._delta_of(*changes, floor if floor > floor_before else None)
        self.groups.cut(dead)
        return out, delta

    def _fold_and_tell(self, flow: Flow, group: Int64s) -> tuple[Flow, tuple[Columns, Columns]]:
        """All results; and what a delta has to put and to cut."""
        revised = None
        if not signs(flow).any() and flow.on_time:
            changes = self._take_usual(flow, group)
        else:
            flow, rows = self._fitting(flow, self._arrived(flow, group))
            changes = self._take_in(flow, rows)
            revised = self._revised(rows, flow.bounds)
        closed = self._emit(flow.bounds)
        self.versions = None
        return self._in_order(revised, closed), changes

    def _arrived(self, flow: Flow, group: Int64s) -> Columns:
        """The rows with their groups and panes."""
        rows = super()._arrived(flow, group)
        number, late = np.floor_divide(flow.time, self.width), flow.time < rows[AT]
        odd = np.flatnonzero(late | ~rows[ADDS])
        pane, code = number * self.width, number * self.groups.capacity + group
        revises, near = np.zeros(len(flow), np.bool_), np.zeros(len(flow), np.bool_)
        revises[odd] = late[odd] & (self._first_end(pane[odd]) <= rows[AT][odd])
        near[perhaps_among(code[odd], code)] = True
        return rows | {PANE: pane, REVISES: revises, NEAR: near}

    def _first_end(self, pane: Int64s) -> Int64s:
        """The end of the first window that has this pane."""
        return (np.floor_divide(pane - self.size, self.slide) + 1) * self.slide + self.size

    def _dead(self, fresh: list[int]) -> list[int]:
        self.entries_of = self.groups.grown(self.entries_of, 0)
        candidates = np.unique(np.concatenate([*self.left, np.array(fresh, np.int64)]))
        dead: list[int] = candidates[self.entries_of[candidates] == 0].tolist()
        return dead

    def _floor(self, boundary: int) -> int:
        return oldest_needed(self._oldest(boundary), self.size, self.slide)

    # -- rows into panes

    def _bring_up(self, flow: Flow, rows: Columns) -> Columns:
        """Fold rows into panes: as a box without revisions does, where a pane neither loses a row nor gets a late one.

        Returns the panes that changed, as they are now; some may have no rows left."""
        mine = rows[NEAR]
        if not len(mine):
            return take(self.open, NOTHING)
        if not mine.any():
            return self._absorb(flow, rows[GROUP])
        self._thaw(rows[PANE][mine])
        touched = []
        if not mine.all():
            others = np.flatnonzero(~mine)
            needed = flow.with_rows(flow.rows.select([*self.arguments, KIND]))
            touched.append(self._absorb(needed.take(others), rows[GROUP][others]))
            rows = take(rows, np.flatnonzero(mine))
        panes, groups, slot = distinct_pairs(rows[PANE] // self.width, rows[GROUP], self.groups.capacity)
        heads = {PANE: panes * self.width, GROUP: groups}
        at, found = self._find(heads[PANE], heads[GROUP])
        rows = rows | {REVISES: self._versioned(rows, flow.bounds)}
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

    def _fold_all(
        self,
        entries: Columns,
        index: Int64s,
        pool: Columns,
        order: Int64s,
        runs: tuple[Int64s, Int64s],
        dead: Int64s,
        spans: Spans,
    ) -> Columns:
        """All versions at once: of each the entry at its place, and a run (start, length) of the pool in this order, up
        to rows that were dead by then."""
        start, count = runs
        parts = []
        for some, place in places_in_blocks(start, count, FOLDED_AT_ONCE):
            owner = np.repeat(np.arange(some.stop - some.start), count[some])
            place = order[place]
            alive = dead[place] >= spans.until[some][owner]
            if not alive.all():
                owner, place = owner[alive], place[alive]
            parts.append(self._folded(take(entries, index[some]), pool, place, owner))
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
        steps = Steps.of(rows, which, self.size, self.slide)
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
        new = steps.after[order]
        old = new - 1
        if not filled.all():
            place = np.where(filled, np.cumsum(filled) - 1, -1)
            windows, old, new = take(windows, np.flatnonzero(filled)), place[old], place[new]
        results = self.result_rows(windows, self.groups.keys(windows[GROUP]))
        return self._leading(results, windows[TIME], old, new, steps.cause[order], bounds)


def in_time(entries: Columns) -> Columns:
    """Entries in order of their panes: what was sealed may lie between what was thawed."""
    pane = entries[PANE]
    return entries if not np.any(pane[1:] < pane[:-1]) else take(entries, stable_order(pane))


@dataclass(frozen=True)
class Steps:
    """Causes that change closed windows, window after window. A *chain* is those of one window, in order; its states
    are the one before all of them, and one after each. What a cause does to a pane of a group is one *change*."""

    row: Int64s  # the rows of all changes
    change: Int64s  # which each belongs to, rising
    alone: bool  # whether no cause makes several changes
    made: Int64s  # the changes of all steps
    step: Int64s  # which each belongs to, rising
    first: Int64s  # of each step: a number that rises with its first change, and with the windows of that
    cause: Int64s
    begin: Int64s  # of each chain: its first step
    group: Int64s
    end: Int64s

    @staticmethod
    def of(rows: Columns, row: Int64s, size: int, slide: int) -> Steps:
        """From rows that revise, in order of their causes."""
        pane, group, cause = (rows[name][row] for name in (PANE, GROUP, CAUSE))
        new = differs(cause) | differs(pane) | differs(group)
        change = np.cumsum(new) - 1
        pane, group, cause, at = pane[new], group[new], cause[new], rows[AT][row[new]]
        least = np.floor_divide(pane - size, slide) + 1  # windows by number: the first that has the pane
        times = np.minimum(np.floor_divide(pane, slide), np.floor_divide(at - size, slide)) - least + 1
        made = np.repeat(np.arange(len(pane)), times)
        window = np.arange(len(made)) + np.repeat(least - np.cumsum(times) + times, times)
        lowest = int(window.min())
        many = int(window.max()) - lowest + 1
        code, first = sorted_with_places(
            group[made] * many + (window - lowest), ((int(group.max()) + 1) * many).bit_length()
        )
        made, begins, alone = made[first], differs(code), not np.any(cause[1:] == cause[:-1])
        cause, step = cause[made], np.arange(len(made))
        if not alone:
            new = begins | differs(cause)
            step, begins, first, cause, code = np.cumsum(new) - 1, begins[new], first[new], cause[new], code[new]
        begin = np.flatnonzero(begins)
        group, window = np.divmod(code[begin], many)
        return Steps(row, change, alone, made, step, first, cause, begin, group, (window + lowest) * slide + size)

    @cached_property
    def length(self) -> Int64s:
        """Of each chain: its steps."""
        return np.diff(np.append(self.begin, len(self.cause)))

    @cached_property
    def after(self) -> Int64s:
        """Where among all states the one after each step is; the one before it is beside that."""
        return np.arange(len(self.cause)) + np.repeat(np.arange(1, len(self.begin) + 1), self.length)

    def states(self) -> tuple[Int64s, Int64s, Int64s]:
        """Of each state: group, end, and the cause after which it is so."""
        group, end = (np.repeat(one, self.length + 1) for one in (self.group, self.end))
        return group, end, np.insert(self.cause, self.begin, self.cause[self.begin] - 1)

    def in_order(self) -> Int64s:
        """The steps as they happen: by cause, then by window, then by the first row."""
        if self.alone:
            order = np.empty(len(self.first), np.int64)
            order[self.first] = np.arange(len(order))
            return order
        order = stable_order(self.first)
        order = order[stable_order(np.repeat(self.end, self.length)[order])]
        return order[stable_order(self.cause[order])]


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
    order = stable_order(of)
    of, begin = of[order], begin[order]
    new = differs(of) | differs(begin)
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
