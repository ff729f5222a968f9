"""History: rows with kinds in, signed rows out (Borealis 3.2). It remembers rows by their key while they may change.

Whether a row is still known hangs on the boundary at the change, never on when it is forgotten here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import column_numbers
from borealis.kernels.flow import NOTHING, Bounds, Flow, empty_flow, held_schema, rank_within
from borealis.kernels.groups import Groups
from borealis.kernels.kinds import kinds_of
from borealis.kernels.sorting import without
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, KIND, KIND_NAMES, LAST_TIME, SUB, TIME, Int8s, Int64s, Kind

SIGN, CHANGE, WHY = "__kind", "__change", "__why"  # what it adds to the columns of its input
EXPIRED = "older than the history"
THERE = "there is a row with this key already"
MISSING = "there is no row with this key, or none within the history"
NONE = -1  # the place of no row
CHUNKS_MOST = 32  # that held rows lie in: then they are copied into one
DEAD_LEAST = 1024  # rows that are gone are swept out when they are so many, and more than those that are held


@dataclass
class _Found:
    """What comes of a train: for each row that leaves, which one, as what, and because of which row of the train."""

    place: list[Int64s] = field(default_factory=list)  # among those held, and behind them the train's
    kind: list[Int8s] = field(default_factory=list)
    row: list[Int64s] = field(default_factory=list)
    why: dict[int, str] = field(default_factory=dict)  # of rows of the train that change nothing

    def add(self, place: Int64s, kind: Int8s, row: Int64s) -> None:
        self.place.append(place)
        self.kind.append(kind)
        self.row.append(row)


class HistoryKernel:
    """State: `held`, the rows that may be corrected, keyed by their (cause, sub), with all columns of the input."""

    tables = (TableSpec("held", (CAUSE, SUB), floor=TIME),)

    def __init__(self, schema: pa.Schema, key: list[str], history: int) -> None:
        self.key, self.history = key, history
        names = [name for name in schema.names if name != KIND]
        self.columns = pa.schema([schema.field(name) for name in names])
        self.schema = held_schema(self.columns)
        more = [(SIGN, pa.int8()), (CHANGE, pa.string()), (WHY, pa.string())]
        self.out = pa.schema([*self.columns, *(pa.field(*one) for one in more)])
        self.held: pa.Table
        self.swept: NDArray[np.bool_]  # which of these rows are gone
        self.gone = NOTHING  # places of held rows that the train took back
        self.groups: Groups
        self.place: Int64s  # of the row of each key, by the number of the key; or NONE
        self._load(self.schema.empty_table())

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Each row as the change it makes; what changes nothing says why."""
        found, number = _Found(), NOTHING
        oldest = self._oldest(flow)
        new = flow.held(self.schema)
        kind = kinds_of(flow.rows)
        if self.key:
            number, _ = self.groups.encode([flow.rows[name] for name in self.key], len(flow))
            self.place = self.groups.grown(self.place, NONE)
            self._change(flow, kind, number, oldest, found)
        else:
            fits = flow.time >= oldest
            self._insert(np.flatnonzero(fits), found)
            found.why |= dict.fromkeys(np.flatnonzero(~fits).tolist(), EXPIRED)
        both = pa.concat_tables([self.held, new])
        out = self._out(flow, both, found)
        return out, self._remember(both, number, flow.bounds) if self.key else {}

    def _oldest(self, flow: Flow) -> Int64s:
        """For each row the time before which nothing can be corrected any more when it comes."""
        return self._floors(flow.bounds.at(flow.cause))

    def _floors(self, boundary: Int64s) -> Int64s:
        far = boundary > FIRST_TIME + self.history
        back = np.where(far & (boundary < LAST_TIME), self.history, 0)
        return np.where(far, boundary - back, FIRST_TIME)

    def _insert(self, rows: Int64s, found: _Found) -> None:
        found.add(len(self.held) + rows, np.full(len(rows), Kind.INSERTION, np.int8), rows)

    def _change(self, flow: Flow, kind: Int8s, number: Int64s, oldest: Int64s, found: _Found) -> None:
        """All rows at once that bring a key which is new, and only they; the others one by one."""
        times = np.bincount(number, minlength=self.groups.capacity)
        known = self.place[number] != NONE
        plain = (kind == Kind.INSERTION) & (times[number] == 1) & ~known & (flow.time >= oldest)
        rows = np.flatnonzero(plain)
        self._insert(rows, found)
        self.place[number[rows]] = len(self.held) + rows
        base, since, gone = len(self.held), oldest.tolist(), []
        held_time = column_numbers(self.held, TIME)
        for row in np.flatnonzero(~plain).tolist():
            key, what, time = int(number[row]), Kind(kind[row]), int(flow.time[row])
            was = old = int(self.place[key])
            if old != NONE and int(held_time[old] if old < base else flow.time[old - base]) < since[row]:
                old = NONE  # forgotten
            inserts = what in (Kind.INSERTION, Kind.UPDATE_AFTER)
            if what == Kind.UPDATE_BEFORE:
                continue  # its other half says it all
            if inserts and time < since[row]:
                found.why[row] = EXPIRED
            elif what == Kind.INSERTION and old != NONE:
                found.why[row] = THERE
            elif what != Kind.INSERTION and old == NONE:
                found.why[row] = MISSING
            else:
                places = [*([old] if old != NONE else []), *([base + row] if inserts else [])]
                kinds = [Kind.UPDATE_BEFORE, what] if len(places) == 2 else [what]
                found.add(np.array(places), np.array(kinds, np.int8), np.full(len(places), row))
                self.place[key] = base + row if inserts else NONE
                gone += [was] if NONE < was < base else []
        self.gone = np.array(sorted(gone), np.int64)

    def _out(self, flow: Flow, both: pa.Table, found: _Found) -> Flow:
        aside = np.array(sorted(found.why), np.int64)
        found.add(len(self.held) + aside, np.zeros(len(aside), np.int8), aside)
        place, row = np.concatenate(found.place), np.concatenate(found.row)
        kind = np.concatenate(found.kind)
        if not len(row):
            return empty_flow(self.out, flow.bounds)
        if np.any(row[1:] < row[:-1]):
            order = np.argsort(row, kind="stable")
            place, kind, row = place[order], kind[order], row[order]
        taken = both.take(pa.array(place))
        why: pa.Array = pa.nulls(len(row), pa.string())
        change: pa.Array = why
        if found.why:
            reasons = [found.why.get(one) for one in row.tolist()]
            kinds = kinds_of(flow.rows)[row].tolist()
            why = pa.array(reasons, pa.string())
            names = [KIND_NAMES[k] if reason else None for k, reason in zip(kinds, reasons, strict=True)]
            change = pa.array(names, pa.string())
        columns = [*taken.select(self.columns.names).columns, pa.array(kind), change, why]
        cause = flow.cause[row]
        rows = pa.table(columns, schema=self.out)
        return Flow(rows, column_numbers(taken, TIME), cause, rank_within(cause), flow.bounds)

    # -- what is held

    def _remember(self, both: pa.Table, number: Int64s, bounds: Bounds) -> Delta:
        """Hold what the places say, and nothing that is behind the history; `number` has the keys of the train."""
        base = len(self.held)
        floor_before, floor = (int(self._floors(np.array([b]))[0]) for b in (bounds.standing, bounds.final))
        mine = np.zeros(len(self.place), np.bool_)
        mine[number] = True
        time = column_numbers(both, TIME)
        if floor > floor_before:
            used = np.flatnonzero(self.place != NONE)
            old = used[time[self.place[used]] < floor]
            self.swept[self.place[old][self.place[old] < base]] = True
            self.place[old] = NONE
            mine[old] = True
        gone = self.gone[time[self.gone] >= floor]
        self.swept[self.gone] = True
        touched = np.flatnonzero(mine)
        places = self.place[touched]
        self.groups.cut(touched[places == NONE].tolist())
        fresh = np.sort(places[places >= base])
        put = both.take(pa.array(fresh)).combine_chunks()
        delta: Delta = {}
        if len(put) or len(gone) or floor > floor_before:
            cut = both.select([CAUSE, SUB]).take(pa.array(gone)).combine_chunks() if len(gone) else None
            delta["held"] = Change(put, cut=cut, floor=floor if floor > floor_before else None)
        moved = touched[places >= base]
        self.place[moved] = base + np.searchsorted(fresh, self.place[moved])
        self.held = pa.concat_tables([self.held, put])
        self.swept = np.concatenate([self.swept, np.zeros(len(fresh), np.bool_)])
        self._sweep()
        return delta

    def _sweep(self) -> None:
        dead = int(self.swept.sum())
        if dead > max(DEAD_LEAST, len(self.held) - dead):
            alive, used = np.flatnonzero(~self.swept), np.flatnonzero(self.place != NONE)
            self.held = self.held.take(pa.array(alive)).combine_chunks()
            self.place[used] = np.searchsorted(alive, self.place[used])
            self.swept = np.zeros(len(alive), np.bool_)
        elif self.held[CAUSE].num_chunks > CHUNKS_MOST:
            self.held = self.held.combine_chunks()

    def _load(self, table: pa.Table) -> None:
        """Hold just these rows."""
        order = np.lexsort((column_numbers(table, SUB), column_numbers(table, CAUSE)))
        self.held = table.take(pa.array(order)).combine_chunks()
        self.swept = np.zeros(len(self.held), np.bool_)
        self.groups = Groups([self.schema.field(name).type for name in self.key])
        number, _ = self.groups.encode([self.held[name] for name in self.key], len(self.held))
        self.place = self.groups.grown(NOTHING, NONE)
        self.place[number] = np.arange(len(number))

    def apply(self, delta: Delta) -> None:
        change = delta.get("held")
        if change is None:
            return
        table = self.tables_now()["held"]
        if change.floor is not None:
            table = table.filter(pa.array(column_numbers(table, TIME) >= change.floor))
        for keys in (change.cut, change.put):
            if keys is not None and keys.num_rows:
                table = without(table, keys, (CAUSE, SUB))
        self._load(pa.concat_tables([table, change.put.cast(self.schema)]))

    def tables_now(self) -> dict[str, pa.Table]:
        return {"held": self.held.take(pa.array(np.flatnonzero(~self.swept))).combine_chunks()}


def make(step: Step) -> HistoryKernel:
    o = step.options
    return HistoryKernel(schema_of(o["schema"]), o["key"], o["history"])
