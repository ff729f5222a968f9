"""History that gives rows again (Borealis 3.3): an aggregate that keeps none folds a pane from these when one goes.

At a cause that takes a row back it gives to each of its readers the rows that stood before it in the pane of that row
and, as far as the reader's groups are known here, in its group. Of several such causes in a train it does so at the
first, for what comes later the reader sees itself: otherwise a train with many corrections of one large pane would
bring that as often. A row that was replaced by one of the same time is given along, for the two may be the same to the
reader: then the change never comes to it, and the row that stands has the place of the one before it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, concat, distinct_pairs, filtered, places_in_blocks, take, whole
from borealis.kernels.flow import NOTHING, Bounds, Flow, held_schema, rank_within
from borealis.kernels.held_rows import HeldRows, looked_up
from borealis.kernels.history import HistoryKernel, _Found, key_numbers
from borealis.kernels.sorting import stable_order
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s, Kind

READER = "__reader"  # of a row that is given again: for which of the readers; null of any other
CAME, REPLACED = "__came", "__replaced"  # the causes at which it came, and at which another took its place, if one did
AT = {CAME: "__came_at", REPLACED: "__replaced_at"}  # what these are called before readers are parted
MORE = pa.schema([(READER, pa.int32()), *((name, pa.int64()) for name in AT.values())])
FORMER = TableSpec("former", (CAUSE, SUB), floor=TIME)
BEGAN = "began"  # of a former row: the cause at which it came; that which replaced it is its CAUSE
DEATH, LASTING = "death", "lasting"  # the cause that takes a row back; and whether it is given after that, too
PAIRS_AT_ONCE = 1 << 20


class ReplayingHistory(HistoryKernel):
    """State: `held`, also of panes that began before the history, and `former`: rows replaced by ones of their time,
    keyed by the cause that did it."""

    tables = (*HistoryKernel.tables, FORMER)

    def __init__(
        self, schema: pa.Schema, key: list[str], history: int, read: list[str], replays: list[tuple[int, list[str]]]
    ) -> None:
        self.replays = replays  # of each reader: the length of a pane, and the columns of its groups
        super().__init__(schema, key, history, read)
        self.given = pa.schema([*self.out, *MORE])
        self.former_schema = pa.schema([*held_schema(pa.schema([(BEGAN, pa.int64())])), *self.columns])
        self.former = HeldRows(self._former(self.former_schema.empty_table()))
        self.again: list[Flow] = []
        self.replaced = self.former.empty

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Each row as the change it makes, and behind those that take one back the rows that stood."""
        self.again, self.replaced = [], self.former.empty
        out, delta = super().step(flow)
        blank = [pa.nulls(len(out), field.type) for field in MORE]
        out = out.with_rows(pa.table([*out.rows.columns, *blank], schema=self.given))
        return _merged([out, *self.again]), delta | self._keep_former(flow.bounds)

    def _note(self, rows: Columns, near: Int64s, found: _Found) -> None:
        n = len(rows[TIME])
        place, kind, row = (np.concatenate(some) for some in (found.place, found.kind, found.row))
        goes = (kind == Kind.DELETION) | (kind == Kind.UPDATE_BEFORE)
        if not goes.any():
            return
        come, gone, by = place[~goes], place[goes], row[goes]
        order = np.argsort(rows[CAUSE][by], kind="stable")
        gone, by, replaces = gone[order], by[order], (kind[goes] == Kind.UPDATE_BEFORE)[order]
        new, old = np.flatnonzero(gone < n), np.flatnonzero(gone >= n)
        place = near[gone[old] - n]
        lost = concat([take(rows, gone[new]), self.held.at(place)])
        back = np.argsort(np.concatenate([new, old]))
        lost = take(lost, back) | {DEATH: rows[CAUSE][by]}
        lost[LASTING] = replaces & (lost[TIME] == rows[TIME][by])
        born = rows | {DEATH: np.full(n, LAST_TIME), LASTING: np.zeros(n, np.bool_)}
        for name in (DEATH, LASTING):
            born[name][gone[new]] = lost[name][new]
        born = take(born, np.sort(come))
        for reader in range(len(self.replays)):
            self._give(reader, lost, born, place, take(lost, old))
        replaced = take(lost, np.flatnonzero(lost[LASTING]))
        replaced |= {BEGAN: replaced[CAUSE], CAUSE: replaced[DEATH], SUB: rank_within(replaced[DEATH])}
        self.replaced = {name: replaced[name] for name in self.former.empty}

    def _give(self, reader: int, lost: Columns, born: Columns, place: Int64s, went: Columns) -> None:
        """To one reader, what stood in panes and groups before each lost its first row. Of what is held, the rows at
        these places went."""
        width, column = self.replays[reader][0], _column(reader)
        numbers, group = np.unique(lost[column], return_inverse=True)
        panes, groups, slot = distinct_pairs(np.floor_divide(lost[TIME], width), group, len(numbers))
        start, number = panes * width, numbers[groups]
        mine, at = self.held.find_by(column, number, start, start + (width - 1))
        held = self.held.at(at) | {DEATH: looked_up(at, place, went[DEATH], LAST_TIME)}
        held[LASTING] = looked_up(at, place, went[LASTING].astype(np.int64), 0) > 0
        theirs, at = self.former.find_by(column, number, start, start + (width - 1))
        former = self.former.at(at)
        former = former | {DEATH: former[CAUSE], CAUSE: former[BEGAN], LASTING: np.ones(len(at), np.bool_)}
        inside = (born[TIME] >= start[0]) & (born[TIME] < start[-1] + width)
        born = take(born, np.flatnonzero(inside))  # most rows are newer than those that go
        own = _slots(panes, groups, np.floor_divide(born[TIME], width), _among(numbers, born[column]), len(numbers))
        parts = [held, former, take(born, np.flatnonzero(own >= 0))]
        names = [CAUSE, DEATH, LASTING, TIME, *self.columns.names]
        pool = concat([{name: part[name] for name in names} for part in parts])
        of = np.concatenate([mine, theirs, own[own >= 0]])
        order = np.lexsort((pool[CAUSE], of))
        cause = lost[DEATH][np.unique(slot, return_index=True)[1]]  # the first of each, for they are in order
        slot = stable_order(cause)
        cause = cause[slot]
        first, last = (np.searchsorted(of[order], slot, side) for side in ("left", "right"))
        for some, nth in places_in_blocks(first, last - first, PAIRS_AT_ONCE):
            when, nth = np.repeat(cause[some], (last - first)[some]), order[nth]
            stands = pool[DEATH][nth] >= when
            given = np.flatnonzero((pool[CAUSE][nth] < when) & (stands | pool[LASTING][nth]))
            self.again.append(self._again(reader, pool, nth[given], when[given], stands[given]))

    def _again(self, reader: int, pool: Columns, place: Int64s, when: Int64s, stands: NDArray[np.bool_]) -> Flow:
        rows, n = take(pool, place), len(place)
        own = [rows[one.name] if one.name in self.columns.names else pa.nulls(n, one.type) for one in self.out]
        more = [pa.array(np.full(n, reader, np.int32)), pa.array(rows[CAUSE]), pa.array(rows[DEATH], mask=stands)]
        table = pa.table([*own, *more], schema=self.given)
        return Flow(table, rows[TIME], when, NOTHING, Bounds())

    # -- what is held

    def _held_from(self, boundary: int) -> int:
        floor = self._floor(boundary)
        return max(FIRST_TIME, min(floor // width * width for width, _ in self.replays))

    def _with_words(self, table: pa.Table) -> Columns:
        return super()._with_words(table) | self._numbers_of(table)

    def _numbers_of(self, table: pa.Table) -> Columns:
        """Of each row a number for each reader that is the same in the same group, and seldom in another."""
        n = len(table)
        return {
            _column(i): key_numbers(table, by) if by else np.zeros(n, np.int64)
            for i, (_, by) in enumerate(self.replays)
        }

    def _former(self, table: pa.Table) -> Columns:
        rows: Columns = {name: table[name].to_numpy() for name in (CAUSE, SUB, TIME, BEGAN)}
        return rows | self._numbers_of(table) | {name: whole(table[name]) for name in self.columns.names}

    def _keep_former(self, bounds: Bounds) -> Delta:
        before, floor = self._held_from(bounds.standing), self._held_from(bounds.final)
        put = self.replaced
        if len(put[TIME]) and put[TIME].min() < floor:
            put = filtered(put, put[TIME] >= floor)
        self.former.add(put)
        if floor > before:
            self.former.raise_floor(floor)
        elif not len(put[TIME]):
            return {}
        return {FORMER.name: Change(self._former_table(put), floor=floor if floor > before else None)}

    def _former_table(self, rows: Columns) -> pa.Table:
        return pa.table([rows[name] for name in self.former_schema.names], schema=self.former_schema)

    def apply(self, delta: Delta) -> None:
        super().apply(delta)
        if (change := delta.get(FORMER.name)) is not None:
            if change.floor is not None:
                self.former.raise_floor(change.floor)
            self.former.merge((NOTHING, NOTHING), self._former(change.put.cast(self.former_schema)))

    def tables_now(self) -> dict[str, pa.Table]:
        return super().tables_now() | {FORMER.name: self._former_table(self.former.all())}


def _column(reader: int) -> str:
    return f"by{reader}"


def _among(known: Int64s, numbers: Int64s) -> Int64s:
    """The place of each number among known ones, which rise; -1 where it is none of them."""
    at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    return np.where(known[at] == numbers, at, -1)


def _slots(panes: Int64s, groups: Int64s, pane: Int64s, group: Int64s, many: int) -> Int64s:
    """Which of the pairs of panes and groups each row has, or -1."""
    found, n = np.full(len(pane), -1), len(panes)
    some = np.flatnonzero(group >= 0)
    if len(some):
        every = np.concatenate([panes, pane[some]]), np.concatenate([groups, group[some]])
        pairs, _, number = distinct_pairs(*every, many)
        slot = np.full(len(pairs), -1)
        slot[number[:n]] = np.arange(n)
        found[some] = slot[number[n:]]
    return found


def _merged(flows: list[Flow]) -> Flow:
    """By cause; what changes comes before what is given again."""
    first = flows[0]
    if len(flows) == 1:
        return first
    cause = np.concatenate([flow.cause for flow in flows])
    order = stable_order(cause)
    time = np.concatenate([flow.time for flow in flows])[order]
    rows = pa.concat_tables([flow.rows for flow in flows]).take(pa.array(order))
    return Flow(rows, time, cause[order], rank_within(cause[order]), first.bounds)


def make(step: Step) -> ReplayingHistory:
    o = step.options
    return ReplayingHistory(schema_of(o["schema"]), o["key"], o["history"], o["read"], o["replays"])
