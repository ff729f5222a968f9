"""Revisions: signed rows in; out come those that readers of an output want (Borealis 3.4).

`First` lets insertions pass. `Final` holds what stands until the boundary is the history past it. `Important` holds
back changes that do not matter, and remembers for each row that was changed so what readers have in its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, take, to_table, whole
from borealis.kernels.flow import NOTHING, Bounds, Flow, empty_flow, rank_within
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import HELD, HeldRows
from borealis.kernels.kinds import adds, row_numbers, signs
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta, TableSpec
from borealis.tuples import CAUSE, KIND, LAST_TIME, SUB, TIME, Int8s, Int64s, Kind

IMPORTANT = "__important"  # of a row, whether changes of it matter
HAVE_TIME = "have_time"  # of the row that readers have
NONE = -1  # no row


class First:
    """Each result as it first came: what takes it back or replaces it is left out. No state."""

    tables: ClassVar[tuple[TableSpec, ...]] = ()

    def __init__(self, schema: pa.Schema, history: int) -> None:
        self.schema = schema

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        some = np.flatnonzero(signs(flow) == Kind.INSERTION)
        return flow.with_rows(flow.rows.select(self.schema.names)).take(some), {}

    def apply(self, delta: Delta) -> None:
        """There is nothing to catch up with."""

    def tables_now(self) -> dict[str, pa.Table]:
        return {}


class _Holding:
    """State: `rows`, of which none is older than the boundary less the history; keyed by their (cause, sub)."""

    tables: ClassVar[tuple[TableSpec, ...]] = (HELD,)

    def __init__(self, schema: pa.Schema, history: int, more: Columns) -> None:
        self.schema, self.history = schema, history
        self.columns = {name: f"x{i}" for i, name in enumerate(schema.names)}  # to the name in the table
        empty: Columns = {CAUSE: NOTHING, SUB: NOTHING, TIME: NOTHING, GROUP: NOTHING}
        empty |= {x: pa.nulls(0, schema.field(name).type) for name, x in self.columns.items()}
        self.held = HeldRows(empty | more)

    def _rows(self, flow: Flow) -> Columns:
        """The rows of a flow as they are held."""
        head = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time, GROUP: np.zeros(len(flow), np.int64)}
        return head | {x: whole(flow.rows[name]) for name, x in self.columns.items()}

    def _exchange(self, put: Columns, gone: Int64s) -> Columns:
        """Hold rows, and no longer those at some places: these."""
        cut = self.held.at(gone)
        self.held.remove(gone)
        self.held.add(put)
        return cut

    def _changed(self, put: Columns, cut: Columns, bounds: Bounds) -> Delta:
        """What a train changed. Forgets what the boundary has left behind."""
        change = self.held.change(put, cut, bounds.standing, bounds.final)
        return {} if change is None else {HELD.name: change}

    def apply(self, delta: Delta) -> None:
        if (change := delta.get(HELD.name)) is not None:
            self.held.apply(change)

    def tables_now(self) -> dict[str, pa.Table]:
        return {HELD.name: to_table(self.held.all())}


class Final(_Holding):
    """Each result once, when nothing can change it any more, in order of time; its boundary is the history behind."""

    def __init__(self, schema: pa.Schema, history: int) -> None:
        super().__init__(schema, history, {})

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Take rows in and back, then give those that a boundary makes final, with the cause of that."""
        bounds, put = flow.bounds.behind(self.history), self._rows(flow)
        gone, come = NOTHING, adds(signs(flow))
        if not come.all():
            put, back = (take(put, np.flatnonzero(some)) for some in (come, ~come))
            gone, _, dead = self.held.taken_back(put, back)
            put = take(put, np.flatnonzero(dead == LAST_TIME))
        cut = self._exchange(put, gone)
        out = self._given(self.held.before(bounds.final), bounds)
        return out, self._changed(put, cut, bounds)

    def _given(self, due: Columns, bounds: Bounds) -> Flow:
        if not len(due[TIME]):
            return empty_flow(self.schema, bounds)
        due = take(due, stable_order(due[TIME]))
        cause = bounds.cause[np.searchsorted(bounds.time, due[TIME], "right")]
        rows = pa.table([due[x] for x in self.columns.values()], schema=self.schema)
        return Flow(rows, due[TIME], cause, rank_within(cause), bounds)


class Important(_Holding):
    """All insertions, and of changes those in which the row that goes, or the one that comes, is important.

    A change is held back as a whole. Of a row whose last change was, it holds what it is now and what readers have, and
    when a change of it matters, it takes back what they have. A deletion that is held back leaves them a row for good.
    """

    def __init__(self, schema: pa.Schema, history: int) -> None:
        self.have = {name: f"have{i}" for i, name in enumerate(schema.names)}
        have = {self.have[name]: pa.nulls(0, schema.field(name).type) for name in schema.names}
        super().__init__(schema, history, {HAVE_TIME: NOTHING} | have)
        self.out = schema.append(pa.field(KIND, pa.int8()))

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Let changes that matter pass, as changes of what readers have."""
        bounds, kind = flow.bounds.behind(self.history), signs(flow)
        go = np.flatnonzero((kind == Kind.DELETION) | (kind == Kind.UPDATE_BEFORE))
        if not len(go):
            nothing = self.held.empty
            return flow.with_rows(flow.rows.select(self.out.names)), self._changed(nothing, nothing, bounds)
        near = np.unique(self.held.find(np.zeros(len(go), np.int64), flow.time[go], flow.time[go])[1])
        pool = self._pool(flow, self.held.at(near))
        found = _sifted(flow, kind, go, pool, len(near))
        put = self._held_back(flow, pool, found.held)
        new = np.flatnonzero(kind == Kind.INSERTION)
        place = np.concatenate([np.array(found.place, np.int64), new])
        row = np.concatenate([np.array(found.row, np.int64), new])
        given = np.concatenate([np.array(found.kind, np.int8), kind[new]])
        order = stable_order(place)
        row, cause = row[order], flow.cause[place[order]]
        rows = pool.rows.take(pa.array(row)).append_column(self.out.field(KIND), pa.array(given[order]))
        out = Flow(rows, pool.time[row], cause, rank_within(cause), flow.bounds)
        cut = self._exchange(put, near[np.array(found.gone, np.int64)])
        return out, self._changed(put, cut, bounds)

    def _pool(self, flow: Flow, held: Columns) -> _Pool:
        parts = [flow.rows.select(self.schema.names)]
        for names in (self.columns, self.have):
            parts.append(pa.table([held[names[name]] for name in self.schema.names], schema=self.schema))
        return _Pool(pa.concat_tables(parts), np.concatenate([flow.time, held[TIME], held[HAVE_TIME]]))

    def _held_back(self, flow: Flow, pool: _Pool, held: dict[int, int]) -> Columns:
        """Rows whose last change was held back, given by their places in the flow, with what readers have of them."""
        place = np.array(sorted(held), np.int64)
        have = np.array([held[one] for one in place.tolist()], np.int64)
        theirs = pool.rows.take(pa.array(have))
        rows = take(self._rows(flow), place) | {HAVE_TIME: pool.time[have]}
        return rows | {x: whole(theirs[name]) for name, x in self.have.items()}


@dataclass(frozen=True)
class _Pool:
    """The rows of a flow; behind them rows whose last change was held back; behind these what readers have of them."""

    rows: pa.Table
    time: Int64s


@dataclass
class _Sifted:
    """What comes of a train, and which changes are held back. Rows are places in the pool."""

    place: list[int] = field(default_factory=list)  # in the flow: the row that is the cause
    row: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)  # rows whose last change is held back, and what readers have
    gone: list[int] = field(default_factory=list)  # of those that were held, which are no longer

    def give(self, place: int, row: int, kind: Kind) -> None:
        self.place.append(place)
        self.row.append(row)
        self.kind.append(kind)


def _sifted(flow: Flow, kind: Int8s, go: Int64s, pool: _Pool, held: int) -> _Sifted:
    """Go through a train's changes one by one; the places of its rows that go are `go`."""
    n, found = len(flow), _Sifted()
    after = np.full(n, NONE)  # for each row that goes, the one that comes for it: pairs of a cause are in one order
    after[kind == Kind.UPDATE_BEFORE] = np.flatnonzero(kind == Kind.UPDATE_AFTER)
    important: NDArray[np.bool_] = whole(flow.rows[IMPORTANT]).to_numpy(zero_copy_only=False)
    matters = important | (important[after] & (after != NONE))
    some = np.concatenate([go, after[go][after[go] != NONE], np.arange(n, n + 2 * held)])
    numbers = np.full(n + 2 * held, NONE)
    numbers[some] = row_numbers(pool.rows.take(pa.array(some)), pool.time[some])
    number = numbers.tolist()
    now: dict[int, list[tuple[int, int]]] = {}  # by number, rows whose last change was held back, and what readers have
    for one in range(held):
        now.setdefault(number[n + one], []).append((n + one, n + held + one))
    for place, comes, tells in zip(go.tolist(), after[go].tolist(), matters[go].tolist(), strict=True):
        others = now.get(number[place])
        row, have = others.pop() if others else (NONE, place)
        if row >= n:
            found.gone.append(row - n)
        found.held.pop(row, None)
        if comes == NONE:
            if tells:
                found.give(place, have, Kind.DELETION)
        elif number[have] == number[comes]:
            continue
        elif tells:
            found.give(place, have, Kind.UPDATE_BEFORE)
            found.give(place, comes, Kind.UPDATE_AFTER)
        else:
            found.held[comes] = have
            now.setdefault(number[comes], []).append((comes, have))
    return found


FORMS: dict[str, type[First | Final | Important]] = {"drop": First, "final": Final, "all": Important}


def make(step: Step) -> First | Final | Important:
    o = step.options
    return FORMS[o["revisions"]](schema_of(o["schema"]), o["history"])
