"""Resample where an input carries revisions: a result that stands and changes is given again, signed.

A result *stands* from the cause that makes it due, or that brings its tuple if this comes late, to the cause that takes
its tuple back. While it stands, only rows of the second stream can change it that come or go behind the boundary and
near it, its *events*. So it has one state when it begins, and one more for each cause of such events; what comes out is
the differences. Of the second stream a state is made of the rows that lived after its cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels import resample
from borealis.kernels.accumulators import AggregateCall, calls_of
from borealis.kernels.columns import Columns, column_numbers, concat, normal_floats, take, to_table, whole
from borealis.kernels.flow import (
    HEAD,
    NOTHING,
    Bounds,
    Flow,
    behind,
    differs,
    empty_flow,
    held_schema,
    merge_bounds,
    rank_within,
)
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import HeldRows, Takes, fingerprints, takes_of
from borealis.kernels.kinds import adds, mended, pairs
from borealis.kernels.resample import FIRST, SECOND, Near, Resampling
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, SUB, TIME, Int64s, Kind

Bools = NDArray[np.bool_]
NEVER = LAST_TIME  # the cause that ends a row which nothing takes back, or makes a result due that is not
BEGIN, END = "begin", "end"  # of a row or a result: the cause from which on it stands, and the first when it does not


class RevisedResample(Resampling):
    """State: `first` and `second`, the tuples that may count for a result which is not yet due or can still change."""

    def __init__(
        self,
        first: pa.Schema,
        second: pa.Schema,
        by: list[str],
        window: int,
        how: str | None,
        calls: list[AggregateCall],
        history: int,
    ) -> None:
        plain = [pa.schema([field for field in one if field.name != KIND]) for one in (first, second)]
        super().__init__(plain[0], plain[1], by, window, how, calls)
        self.read = [held_schema(one) for one in (first, second)]
        self.signed = [KIND in one.names for one in (first, second)]
        self.history = history
        self.out = self.schema.append(pa.field(KIND, pa.int8()))

    def _hold(self, first: pa.Schema, second: pa.Schema) -> None:
        self.names = [{name: f"x{i}" for i, name in enumerate(self.own)}, {name: name for name in self.values}]
        self.first, self.second = (HeldRows(_no_rows(*one)) for one in zip((first, second), self.names, strict=True))

    # -- one train

    def step(self, first: Flow, second: Flow) -> tuple[Flow, Delta]:
        """Take rows of both streams in and back, and emit what is due and what changes."""
        bounds = merge_bounds([first.bounds, second.bounds])
        asked = _Side(self.first, *self._arrived(first.held(self.read[0]), self.names[0]))
        given = _Side(self.second, *self._arrived(self._that_count(second.held(self.read[1])), self.names[1]))
        gone = _held(given.gone())
        given_put, given_cut = given.settle()
        results = self._results(asked, given.events(bounds), bounds, first)
        asked_put, asked_cut = asked.settle()
        out = self._changes(results, gone, bounds)
        before, after = (self._least(first.bounds, second.bounds, final=final) for final in (False, True))
        changes = {
            FIRST: self.first.change(asked_put, asked_cut, before, after),
            SECOND: self.second.change(given_put, given_cut, self._oldest(before), self._oldest(after)),
        }
        return out, {name: change for name, change in changes.items() if change is not None}

    def _arrived(self, rows: pa.Table, names: Mapping[str, str]) -> tuple[Columns, Bools]:
        """The rows as they are held with these columns, and which of them add one."""
        signed = KIND in rows.column_names
        come = adds(whole(rows[KIND]).to_numpy()) if signed else np.ones(len(rows), np.bool_)
        keys = [normal_floats(whole(rows[name])) for name in self.by]
        group = fingerprints(keys, len(rows)) if keys else np.zeros(len(rows), np.int64)
        held: Columns = {name: column_numbers(rows, name) for name in HEAD} | {GROUP: group}
        return held | {x: whole(rows[name]) for name, x in names.items()}, come

    def _least(self, first: Bounds, second: Bounds, *, final: bool) -> int:
        """The least time of a tuple of the first stream whose result is not due, can be taken back, or can change."""
        own, other = ((one.final if final else one.standing) for one in (first, second))
        floor = self._floor(min(own, other))
        if self.signed[0]:
            floor = min(floor, behind(own, self.history))
        if self.signed[1]:
            floor = min(floor, self._floor(behind(other, self.history)))
        return floor

    # -- which results there are

    def _results(self, asked: _Side, events: Columns, bounds: Bounds, flow: Flow) -> _Results:
        """The results that begin, change or end in this train, and some that do not."""
        held, time = asked.held, events[TIME]
        near = held.find(events[GROUP], _less(time, self.waits), _more(time, self.window - 1))[1]
        due = held.between(self._floor(bounds.standing), self._floor(bounds.final) - 1)
        places = np.unique(np.concatenate([near, due, asked.ended_held]))
        new = asked.that_live
        rows = concat([held.at(places), take(asked.rows, new)])
        at = np.append(places, held.size + new)
        rows[END] = asked.end_of(at)
        boundary = self._due_at(self._times(rows[TIME]), bounds)
        rows[BEGIN] = np.maximum(rows[CAUSE], boundary)
        heir = np.full(len(at), -1)
        if self.signed[0] and len(asked.takes.taker):
            second = asked.takes.taker + 1
            paired = np.isin(asked.takes.taker, pairs(flow, whole(flow.rows[KIND]).to_numpy())) & np.isin(second, new)
            old, later = (np.searchsorted(at, some[paired]) for some in (asked.takes.place, held.size + second))
            fit = (rows[BEGIN][old] < rows[END][old]) & (rows[BEGIN][later] == rows[END][old])
            fit &= boundary[later] < rows[BEGIN][later]
            heir[old[fit]] = later[fit]
        return _Results(
            rows, boundary, np.append(np.zeros(len(places), np.bool_), np.ones(len(new), np.bool_)), heir, events
        )

    def _due_at(self, time: Int64s, bounds: Bounds) -> Int64s:
        """The causes of the boundaries that make results of these times due; FIRST_TIME if it was before the train."""
        causes = np.append(bounds.cause, NEVER)[np.searchsorted(bounds.time, time, "right")]
        return np.where(bounds.standing > time, FIRST_TIME, causes)

    # -- what they are

    def _changes(self, found: _Results, gone: HeldRows, bounds: Bounds) -> Flow:
        rows, time = found.rows, found.rows[TIME]
        events = _held(found.events)
        owner, place = events.find(rows[GROUP], _less(time, self.window - 1), _more(time, self.waits))
        cause = found.events[CAUSE][place]
        later = rows[BEGIN][owner] < cause
        disturbed = np.zeros(len(time), np.bool_)
        disturbed[owner[later]] = True
        changes = later & (cause < rows[END][owner])
        states = found.states(owner[changes], cause[changes])
        if not len(states.of):
            return empty_flow(self.out, bounds)
        calm = (found.due & ~disturbed)[states.of]
        many, few = np.flatnonzero(calm), np.flatnonzero(~calm)
        parts = [self._in_bulk(take(rows, states.of[many]))] if len(many) else []
        parts += [self._one_by_one(take(rows, states.of[few]), states.after[few], gone)] if len(few) else []
        back = pa.array(np.argsort(np.concatenate([many, few])))
        values = [pa.concat_arrays(some).take(back) for some in zip(*parts, strict=True)]
        return self._flow(found, states, values, bounds)

    def _in_bulk(self, rows: Columns) -> list[pa.Array]:
        """What is added to rows whose results were not touched since they came due."""
        time = rows[TIME]
        near = self.second.between(int(_less(time.min(), self.window)), int(_more(time.max(), self.window)))
        given = self.second.at(near)
        _, group = np.unique(np.concatenate([given[GROUP], rows[GROUP]]), return_inverse=True)
        columns = {name: given[name] for name in self.values}
        return self._look(Near(group[: len(near)], given[TIME], columns, group[len(near) :], time, self.window))

    def _one_by_one(self, rows: Columns, after: Int64s, gone: HeldRows) -> list[pa.Array]:
        """What is added to rows after these causes, each with rows of the second stream of its own."""
        spans = rows[GROUP], _less(rows[TIME], self.window - 1), _more(rows[TIME], self.window - 1)
        block = np.cumsum(self.second.count(*spans)) // resample.PAIRS_AT_ONCE
        parts = []
        for some in np.split(np.arange(len(after)), np.flatnonzero(np.diff(block)) + 1):
            owners, given = [], []
            for held in (self.second, gone):
                owner, place = held.find(*(one[some] for one in spans))
                found = held.at(place)
                lives = (found[CAUSE] <= after[some][owner]) & (after[some][owner] < found.get(END, np.array(NEVER)))
                owners.append(owner[lives])
                given.append(take({name: found[name] for name in (TIME, *self.values)}, np.flatnonzero(lives)))
            near = concat(given)
            columns = {name: near[name] for name in self.values}
            own = Near(np.concatenate(owners), near[TIME], columns, np.arange(len(some)), rows[TIME][some], self.window)
            parts.append(self._look(own))
        return [pa.concat_arrays(part) for part in zip(*parts, strict=True)]

    def _flow(self, found: _Results, states: _States, values: list[pa.Array], bounds: Bounds) -> Flow:
        """What leads from each state to the next, by cause; a pair stands where its first half would alone."""
        state, kind, cause, key, half, late = states.differences(found)
        head = [found.rows[name][key] for name in (SUB, CAUSE, TIME)]
        order = np.lexsort((half, *head, ~late, cause))
        state, kind, cause = state[order], kind[order], cause[order]
        of = states.of[state]
        own = take({name: found.rows[x] for name, x in self.names[0].items()}, of)
        columns = [*own.values(), *(one.take(pa.array(state)) for one in values), pa.array(kind)]
        time = self._times(found.rows[TIME][of])
        out = mended(Flow(pa.table(columns, schema=self.out), time, cause, state, bounds))
        return replace(out, sub=rank_within(out.cause))

    # -- tables

    def apply(self, delta: Delta) -> None:
        for name, held in ((FIRST, self.first), (SECOND, self.second)):
            if (change := delta.get(name)) is not None:
                held.apply(change)

    def tables_now(self) -> dict[str, pa.Table]:
        return {FIRST: to_table(self.first.all()), SECOND: to_table(self.second.all())}


class _Side:
    """What a train does to the rows of one stream."""

    def __init__(self, held: HeldRows, rows: Columns, adds: Bools) -> None:
        self.held, self.rows = held, rows
        self.takes: Takes = takes_of(held, rows, adds)
        self.idle = np.zeros(len(adds), np.bool_)
        self.idle[self.takes.idle] = True
        self.that_live = np.flatnonzero(adds & ~self.idle)  # rows of the train

    @property
    def ended_held(self) -> Int64s:
        """The places of held rows that go."""
        return np.sort(self.takes.place[self.takes.place < self.held.size])

    @property
    def _ended_new(self) -> Int64s:
        return np.sort(self.takes.place[self.takes.place >= self.held.size]) - self.held.size

    def gone(self) -> Columns:
        """All rows that go, and when."""
        rows = concat([self.held.at(self.ended_held), take(self.rows, self._ended_new)])
        return rows | {END: self.end_of(np.append(self.ended_held, self.held.size + self._ended_new))}

    def end_of(self, places: Int64s) -> Int64s:
        """The causes that take these rows back."""
        end = np.full(len(places), NEVER)
        order = np.argsort(self.takes.place)
        known = self.takes.place[order]
        if len(known):
            at = np.minimum(np.searchsorted(known, places), len(known) - 1)
            found = known[at] == places
            end[found] = self.rows[CAUSE][self.takes.taker[order][at[found]]]
        return end

    def events(self, bounds: Bounds) -> Columns:
        """The rows, adding or taking, that lie behind the boundary."""
        late = ~self.idle & (self.rows[TIME] < bounds.at(self.rows[CAUSE]))
        return {name: self.rows[name][late] for name in (CAUSE, SUB, TIME, GROUP)}

    def settle(self) -> tuple[Columns, Columns]:
        """Hold what came to stay and nothing that went; both."""
        ended = self.ended_held
        went = self.held.at(ended)
        stay = take(self.rows, np.setdiff1d(self.that_live, self._ended_new))
        self.held.remove(ended)
        self.held.add(stay)
        return stay, went


@dataclass(frozen=True)
class _Results:
    """Results, each with its row of the first stream."""

    rows: Columns
    boundary: Int64s  # the cause of the boundary that makes each due, or FIRST_TIME
    new: Bools  # whether the train brought its row
    heir: Int64s  # the result that comes for it when it ends, or -1
    events: Columns  # what may change them

    @property
    def stands(self) -> Bools:
        """Whether it does at all."""
        found: Bools = self.rows[BEGIN] < self.rows[END]
        return found

    @property
    def begins(self) -> Bools:
        return self.stands & (self.new | (self.boundary > FIRST_TIME))

    @property
    def due(self) -> Bools:
        """Whether it begins by a boundary."""
        due: Bools = self.begins & (self.boundary == self.rows[BEGIN])
        return due

    @property
    def ends(self) -> Bools:
        ends: Bools = self.stands & (self.rows[END] < NEVER)
        return ends

    def states(self, of: Int64s, cause: Int64s) -> _States:
        """All states of results that begin, end, or are changed by events of these causes."""
        shown = self.begins | self.ends
        shown[of] = True
        first = np.flatnonzero(shown)
        if not len(first):
            return _States(NOTHING, NOTHING, np.empty(0, np.bool_))
        before = int(np.concatenate([self.rows[CAUSE][self.new], self.rows[END], cause]).min()) - 1
        of = np.concatenate([first, of])
        cause = np.concatenate([np.where(self.begins[first], self.rows[BEGIN][first], before), cause])
        order = np.lexsort((cause, of))
        of, cause = of[order], cause[order]
        other = differs(of)
        fresh = other | differs(cause)
        return _States(of[fresh], cause[fresh], other[fresh])


@dataclass(frozen=True)
class _States:
    """What results are one after the other: which result, the cause after which it is so, and if that is its first."""

    of: Int64s
    after: Int64s
    first: Bools

    def differences(self, found: _Results) -> tuple[Int64s, NDArray[np.int8], Int64s, Int64s, Int64s, Bools]:
        """Of each row that comes out: its state, kind and cause; the result in whose place it stands, which half of a
        pair it is, and whether it is no matter of a boundary."""
        begun = np.flatnonzero(self.first & found.begins[self.of])
        changed = np.flatnonzero(~self.first)
        last = np.append(self.first[1:], True)
        ended = np.flatnonzero(last & found.ends[self.of])
        came_for = np.full(len(found.new), -1)
        old = np.flatnonzero(found.heir >= 0)
        came_for[found.heir[old]] = old
        stead, has_heir = came_for[self.of[begun]], found.heir[self.of[ended]] >= 0
        parts = [
            (begun, np.where(stead >= 0, Kind.UPDATE_AFTER, Kind.INSERTION), self.after[begun]),
            (changed - 1, np.full(len(changed), Kind.UPDATE_BEFORE), self.after[changed]),
            (changed, np.full(len(changed), Kind.UPDATE_AFTER), self.after[changed]),
            (ended, np.where(has_heir, Kind.UPDATE_BEFORE, Kind.DELETION), found.rows[END][self.of[ended]]),
        ]
        state, kind, cause = (np.concatenate(some) for some in zip(*parts, strict=True))
        key = self.of[state]
        key[: len(begun)] = np.where(stead >= 0, stead, key[: len(begun)])
        half = np.repeat([1, 0, 1, 0], [len(part[0]) for part in parts])
        late = np.ones(len(state), np.bool_)
        late[: len(begun)] = ~found.due[self.of[begun]]
        return state, kind.astype(np.int8), cause, key, half, late


def _held(rows: Columns) -> HeldRows:
    held = HeldRows(take(rows, NOTHING))
    held.add(take(rows, np.lexsort((rows[SUB], rows[CAUSE]))))
    return held


def _no_rows(schema: pa.Schema, names: Mapping[str, str]) -> Columns:
    """No rows, with these columns under names that no other column has."""
    return dict.fromkeys((*HEAD, GROUP), NOTHING) | {
        x: pa.nulls(0, schema.field(name).type) for name, x in names.items()
    }


def _less(time: Int64s, by: int) -> Int64s:
    return np.maximum(time, FIRST_TIME + by) - by


def _more(time: Int64s, by: int) -> Int64s:
    return np.minimum(time, LAST_TIME - by) + by


def make(step: Step) -> RevisedResample:
    o, calls = step.options, calls_of(step)
    schemas = schema_of(o["first"]), schema_of(o["second"])
    return RevisedResample(*schemas, o["by"], o["window"], o["how"], calls, o["history"])
