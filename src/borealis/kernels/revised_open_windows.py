"""What count windows, and time windows with a timeout, have in common whose input carries revisions.

Three copies of the plain box do the work. The *base* stands where the history begins: no row before it comes or goes
any more. The *front* stands at the boundary and gives what becomes due. The rows between the two are held: the front is
what they make of the base, so base and rows are all that the tables have. The third copy is a *fork* of the base for
one train. Its groups are *states*: the rows of a group as they are before and after a cause that revises it, from the
first window on that can differ. As the plain box folds them all, what stands is, bit for bit, what it gives for the
rows that are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, concat, places_in_blocks, take, to_table
from borealis.kernels.flow import NOTHING, Bounds, Flow, differs
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import HELD, looked_up
from borealis.kernels.lives import Lives
from borealis.kernels.open_windows import DUE, OPENED, WAITING, WINDOW, OpenWindows
from borealis.kernels.signed_rows import ADDS, AT, SignedRows
from borealis.kernels.sorting import in_order
from borealis.state.delta import Delta
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s

SLOT = "slot"  # of a row in a pool: its group, counted among those that are revised
BORN, DEAD = "born", "dead"  # the causes that bring it and take it back: FIRST_TIME and LAST_TIME if none of this train
ENDLESS = LAST_TIME  # the last window, where there is none
AT_LAST = LAST_TIME - 1  # the cause after all causes
FOLDED_AT_ONCE = 1 << 20  # pairs of a state and a row


@dataclass(frozen=True)
class States:
    """Rows to fold: some of a pool, as they are after a cause, up to a boundary and for some windows only."""

    slot: Int64s
    cause: Int64s
    boundary: Int64s
    first: Int64s  # windows, both inclusive
    last: Int64s
    start: Int64s  # places in the pool
    end: Int64s
    number: Int64s  # of the first row in its group, where rows are counted

    def __len__(self) -> int:
        return len(self.slot)

    def take(self, index: Int64s, cause: Int64s) -> States:
        return States(*(cause if one.name == "cause" else getattr(self, one.name)[index] for one in fields(self)))


def joined(parts: Sequence[States]) -> States:
    return States(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(States)))


@dataclass(frozen=True)
class Pool:
    """The rows of revised groups from some time on, as windows take them, with those that this train takes back."""

    rows: Columns
    groups: Int64s  # by slot, rising
    bounds: Bounds

    @cached_property
    def _span(self) -> tuple[int, int]:
        """The first time, and how many there may be."""
        if not len(self.rows[TIME]):
            return 0, 1
        first = int(self.rows[TIME].min())
        return first, int(self.rows[TIME].max()) - first + 2

    @cached_property
    def _ranks(self) -> Int64s | None:
        """The times, if together with slots they do not fit into a word."""
        return np.unique(self.rows[TIME]) if len(self.groups) * self._span[1] >= 2**62 else None

    @cached_property
    def _codes(self) -> Int64s:
        return self._code(self.rows[SLOT], self.rows[TIME])

    def _code(self, slot: Int64s, time: Int64s) -> Int64s:
        if self._ranks is not None:
            return slot * (len(self._ranks) + 1) + np.searchsorted(self._ranks, time)
        first, many = self._span
        return slot * many + np.clip(time, first, first + many - 1) - first

    def place(self, slot: Int64s, time: Int64s) -> Int64s:
        """Where the rows of slots begin that are not before these times."""
        places: Int64s = np.searchsorted(self._codes, self._code(slot, time))
        return places

    @cached_property
    def lives(self) -> Lives:
        return Lives(self.rows[BORN], self.rows[DEAD])

    @cached_property
    def events(self) -> Columns:
        """What revises: a row comes (`sign` 1) or goes (-1) that the boundary has passed. By slot, cause and place."""
        rows = self.rows
        born, dead = np.flatnonzero(rows[BORN] > FIRST_TIME), np.flatnonzero(rows[DEAD] < LAST_TIME)
        place, cause = np.concatenate([born, dead]), np.concatenate([rows[BORN][born], rows[DEAD][dead]])
        sign = np.repeat([1, -1], [len(born), len(dead)])
        some = np.flatnonzero(rows[TIME][place] < self.bounds.at(cause))
        some = some[np.lexsort((place[some], cause[some], rows[SLOT][place[some]]))]
        return {"place": place[some], "slot": rows[SLOT][place[some]], CAUSE: cause[some], "sign": sign[some]}


@dataclass(frozen=True)
class Moments:
    """Between the causes that revise a group its boundary may rise: the rows after a cause, and from where to where."""

    slot: Int64s
    cause: Int64s
    since: Int64s
    boundary: Int64s

    @staticmethod
    def of(pool: Pool) -> Moments:
        """Each slot's moments; the one after all causes is always among them."""
        slot, cause, bounds, many = pool.events["slot"], pool.events[CAUSE], pool.bounds, len(pool.groups)
        new = differs(slot) | differs(cause)
        slot = np.concatenate([slot[new], np.arange(many)])
        boundary = np.concatenate([bounds.at(cause[new]), np.full(many, bounds.final)])
        cause = np.concatenate([cause[new] - 1, np.full(many, AT_LAST)])
        order = np.lexsort((cause, slot))
        slot, cause, boundary = slot[order], cause[order], boundary[order]
        since = np.insert(boundary[:-1], 0, bounds.standing)
        since[np.searchsorted(slot, np.arange(many))] = bounds.standing
        some = (boundary > since) | (cause == AT_LAST)
        return Moments(slot[some], cause[some], since[some], boundary[some])


@dataclass(frozen=True)
class Replay:
    """What revisions of a train came to. What it says of windows holds instead of what the front says of them."""

    changes: Flow
    closed: Columns  # windows that become due
    open: Columns
    low: Int64s  # by group number, the windows it speaks of
    high: Int64s

    def has(self, entries: Columns) -> NDArray[np.bool_]:
        group, window = entries[GROUP], entries[WINDOW]
        found: NDArray[np.bool_] = (self.low[group] <= window) & (window <= self.high[group])
        return found


class RevisedOpenWindows(SignedRows):
    """State: `groups` (number to key), `rows` that may be taken back, and the tables of the base, except rows that
    wait: these are among the others."""

    kept = HELD
    identity: ClassVar[tuple[str, ...]]  # what makes two results of a group, before and after a cause, one that changes

    def __init__(self, plain: OpenWindows, schema: pa.Schema, history: int) -> None:
        self.base, self.front = plain, plain.twin()
        self.by, self.groups = plain.by, plain.groups
        self._sign(plain.schema, plain.calls, history)
        self._hold(schema)
        self.waiting = self.held.empty  # those held rows that the boundary has not passed
        self.rows_of = NOTHING  # how many are held of each group, by its number
        self.reached = FIRST_TIME  # the boundary at which the front stands
        self.changed = False  # whether another copy changed the tables

    # -- what differs

    def _since(self, groups: Int64s, time: Int64s, standing: int) -> Int64s:
        """From which time on the rows of groups are needed, of which these are the first that come or go."""
        raise NotImplementedError

    def _steps(self, pool: Pool) -> States:
        """What can differ by each cause that revises a slot; by slot and cause."""
        raise NotImplementedError

    def _dues(self, pool: Pool, moments: Moments) -> States:
        """What can become due in each moment, and what stays open."""
        raise NotImplementedError

    def _spoken_of(self, pool: Pool) -> tuple[Int64s, Int64s]:
        """For each slot the windows that `_dues` are all of."""
        raise NotImplementedError

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Take rows in and back; emit what that changes in closed windows, and every window that closes."""
        bounds = flow.bounds
        self._settle(bounds.standing)
        flow = self._recent(self.front.wanted(flow))
        group, fresh = self._grouped(flow)
        rows = self._arrived(flow, group)
        come = gone = {name: rows[name] for name in self.held.empty}
        adds = rows[ADDS]
        out, by, dead = NOTHING, NOTHING, np.full(len(adds), LAST_TIME)
        if not adds.all():
            come, gone = take(come, np.flatnonzero(adds)), take(gone, np.flatnonzero(~adds))
            out, by, dead = self.held.taken_back(come, gone)
        revises = rows[TIME] < rows[AT]
        replay = None
        if revises.any():
            here = {name: rows[name][revises] for name in (GROUP, TIME)}
            replay = self._replayed(self._pool(here, come | {DEAD: dead}, (out, by), bounds))
        went = self.held.at(out)
        self.held.remove(out)
        come = take(come, np.flatnonzero(dead == LAST_TIME)) if len(gone[TIME]) else come
        self.held.add(come)
        self._count(come[GROUP], went[GROUP])
        closed = self._to_front(come, went, replay, bounds)
        floor, lost, changes = self._to_base(bounds)
        dead_groups = self._dead(np.unique(np.concatenate([fresh, went[GROUP], *lost]).astype(np.int64)))
        delta = self.base.group_delta(fresh, dead_groups) | self._delta_of(come, went, floor) | changes
        self.groups.cut(dead_groups)
        return self._in_order(None if replay is None else replay.changes, closed), delta

    def _count(self, come: Int64s, went: Int64s) -> None:
        self.rows_of = self.groups.grown(self.rows_of, 0)
        np.add.at(self.rows_of, come, 1)
        np.subtract.at(self.rows_of, went, 1)

    def _dead(self, candidates: Int64s) -> list[int]:
        """Those of these groups of which nothing is left."""
        gone = candidates[self.rows_of[candidates] == 0] if len(candidates) else candidates
        dead: list[int] = np.setdiff1d(gone, self.base.open[GROUP]).tolist()
        return dead

    def _to_front(self, come: Columns, went: Columns, replay: Replay | None, bounds: Bounds) -> Flow:
        """Let the front pass rows, up to the boundary, and give what becomes due."""
        rows = concat([self.waiting, take(come, np.flatnonzero(come[TIME] >= bounds.standing))])
        went = take(went, np.flatnonzero(went[TIME] >= bounds.standing))
        if len(went[TIME]):
            rows = take(rows, np.flatnonzero(~_among(rows, went)))
        due = rows[TIME] < bounds.final
        self.waiting = take(rows, np.flatnonzero(~due)) if due.any() else rows
        if replay is not None:
            due &= replay.high[rows[GROUP]] < ENDLESS
        rows = take(rows, np.flatnonzero(due))
        closed = self.front.release(take(rows, self.front.in_turn(rows)), bounds.final)
        if replay is not None:
            closed = concat([take(closed, np.flatnonzero(~replay.has(closed))), replay.closed])
            self.front.exchange(replay.has(self.front.open), replay.open)
        self.reached = bounds.final
        return self.front.emit(closed, bounds)

    def _to_base(self, bounds: Bounds) -> tuple[int | None, list[Int64s], Delta]:
        """Let the base pass rows that are behind the history now: up to where, groups that lost some, what changed."""
        before, floor = self._oldest(bounds.standing), self._oldest(bounds.final)
        if floor == before:
            return None, [], {}
        rows = self.held.before(floor)
        closed, changes = self.base.advance(rows, floor)
        self.held.raise_floor(floor)
        self._count(NOTHING, rows[GROUP])
        return floor, [rows[GROUP], closed[GROUP]], changes

    # -- revisions

    def _pool(self, revising: Columns, come: Columns, taken: tuple[Int64s, Int64s], bounds: Bounds) -> Pool:
        """The rows that matter for groups and times which are revised."""
        groups, slot = np.unique(revising[GROUP], return_inverse=True)
        first = np.full(len(groups), LAST_TIME)
        np.minimum.at(first, slot, revising[TIME])
        since = self._since(groups, first, bounds.standing)
        owner, place = self.held.find(groups, since, np.full(len(groups), bounds.final - 1))
        stood = self.held.at(place) | {SLOT: owner, BORN: np.full(len(place), FIRST_TIME)}
        stood |= {DEAD: looked_up(place, *taken, LAST_TIME)}
        slots = np.full(self.groups.capacity, -1)
        slots[groups] = np.arange(len(groups))
        slot = slots[come[GROUP]]
        near = (slot >= 0) & (come[TIME] >= since[slot]) & (come[TIME] < bounds.final) & (come[DEAD] > come[CAUSE])
        new = take(come | {SLOT: slot, BORN: come[CAUSE]}, np.flatnonzero(near))
        rows = concat([stood, new])
        return Pool(take(rows, self.front.in_turn(rows)), groups, bounds)

    def _replayed(self, pool: Pool) -> Replay:
        steps, moments = self._steps(pool), Moments.of(pool)
        n = len(steps)
        sides = steps.take(np.repeat(np.arange(n), 2), np.repeat(steps.cause, 2) - np.tile([1, 0], n))
        states = joined([sides, self._dues(pool, moments)])
        closed, still = self._folded(pool, states)
        side = closed[GROUP] < 2 * n
        changes = self._differences(take(closed, np.flatnonzero(side)), steps, pool)
        moment = np.where(side, 0, closed[GROUP] - 2 * n)
        due = take(closed, np.flatnonzero(~side & (closed[DUE] > moments.since[moment])))
        still = take(still, np.flatnonzero(still[GROUP] >= 2 * n))
        still = take(still, np.flatnonzero(moments.cause[still[GROUP] - 2 * n] == AT_LAST))
        for some in (due, still):
            some[GROUP] = pool.groups[states.slot[some[GROUP]]]
        low, high = np.zeros(self.groups.capacity, np.int64), np.full(self.groups.capacity, -1)
        low[pool.groups], high[pool.groups] = self._spoken_of(pool)
        return Replay(changes, due, still, low, high)

    def _folded(self, pool: Pool, states: States) -> tuple[Columns, Columns]:
        """Windows that are closed, and that are open, with the numbers of their states as groups."""
        rows = {name: pool.rows[name] for name in self.held.empty}
        closed, still = list[Columns](), list[Columns]()
        for some, place in places_in_blocks(states.start, states.end - states.start, FOLDED_AT_ONCE):
            n = some.stop - some.start
            owner = np.repeat(np.arange(n), (states.end - states.start)[some])
            cause = states.cause[some][owner]
            alive = (pool.rows[BORN][place] <= cause) & (cause < pool.rows[DEAD][place])
            begun = self._begun(pool.groups[states.slot[some]], states.first[some], states.last[some])
            fork = self.base.fork(n, begun, states.number[some].copy())
            own = take(rows, place[alive]) | {GROUP: owner[alive]}
            for into, entries in ((closed, fork.release(own, states.boundary[some])), (still, fork.open)):
                group, window = entries[GROUP], entries[WINDOW]
                mine = (states.first[some][group] <= window) & (window <= states.last[some][group])
                into.append(take(entries | {GROUP: group + some.start}, np.flatnonzero(mine)))
        return concat(closed), concat(still)

    def _begun(self, groups: Int64s, first: Int64s, last: Int64s) -> Columns:
        """The open windows of the base, group after group, within these; groups are counted from 0."""
        own = self.base.open[GROUP]
        start, end = np.searchsorted(own, groups), np.searchsorted(own, groups, "right")
        many = end - start
        owner = np.repeat(np.arange(len(groups)), many)
        place = np.arange(len(owner)) + np.repeat(start - (np.cumsum(many) - many), many)
        window = self.base.open[WINDOW][place]
        mine = (first[owner] <= window) & (window <= last[owner])
        return take(self.base.open, place[mine]) | {GROUP: owner[mine]}

    def _differences(self, closed: Columns, steps: States, pool: Pool) -> Flow:
        """What leads from windows before a cause, with even groups, to those after it, with odd ones."""
        step, after = closed[GROUP] // 2, closed[GROUP] % 2 == 1
        names = [closed[name] for name in self.identity]
        order = np.lexsort((*reversed(names), step))
        new = np.ones(len(order), np.bool_)
        new[1:] = step[order][1:] != step[order][:-1]
        for name in names:
            new[1:] |= name[order][1:] != name[order][:-1]
        which = np.cumsum(new) - 1
        old, now = np.full(int(new.sum()), -1), np.full(int(new.sum()), -1)
        for side, some in ((old, ~after[order]), (now, after[order])):
            side[which[some]] = order[some]
        keys, slots = self.groups.keys(pool.groups), np.arange(len(pool.groups))
        rank = np.empty(len(slots), np.int64)
        rank[in_order([np.zeros(len(slots), np.int64)], keys)] = slots
        one = order[new]
        cause = steps.cause[step[one]]
        turn = np.lexsort((closed[OPENED][one], closed[WINDOW][one], rank[steps.slot[step[one]]], cause))
        slot = pa.array(steps.slot[step])
        results = self.front.result_rows(closed, [key.take(slot) for key in keys])
        return self._leading(results, closed[TIME], old[turn], now[turn], cause[turn], pool.bounds)

    # -- tables

    def _settle(self, standing: int) -> None:
        """Bring the front to the boundary that stands; if another copy changed the tables, from the base on."""
        if not self.changed and self.reached == standing:
            return
        rows = self.waiting
        if self.changed:
            self.front, rows = self.base.twin(), self.held.all()
            self.rows_of = np.bincount(rows[GROUP], minlength=self.groups.capacity)
        self.changed, self.reached = False, standing
        due = rows[TIME] < standing
        self.waiting = take(rows, np.flatnonzero(~due))
        rows = take(rows, np.flatnonzero(due))
        self.front.release(take(rows, self.front.in_turn(rows)), standing)

    def apply(self, delta: Delta) -> None:
        self.base.apply(delta)
        self.changed |= bool(delta)
        if (change := delta.get(HELD.name)) is not None:
            self.held.apply(change)

    def tables_now(self) -> dict[str, pa.Table]:
        tables = {name: table for name, table in self.base.tables_now().items() if name != WAITING.name}
        return tables | {HELD.name: to_table(self.held.all())}


def _among(rows: Columns, others: Columns) -> NDArray[np.bool_]:
    """Which of these rows are among the others, by cause and sub."""
    near = np.flatnonzero(np.isin(rows[CAUSE], others[CAUSE]))
    known = set(zip(others[CAUSE].tolist(), others[SUB].tolist(), strict=True))
    found = np.zeros(len(rows[TIME]), np.bool_)
    found[near] = [key in known for key in zip(rows[CAUSE][near].tolist(), rows[SUB][near].tolist(), strict=True)]
    return found
