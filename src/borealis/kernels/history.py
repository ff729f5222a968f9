"""History: rows with kinds in, signed rows out (Borealis 3.2). It remembers rows by their key while they may change.

Whether a row is still known hangs on the boundary at the change, never on when it is forgotten here. A train of
insertions whose keys rise above all that are held is given on and held as it is: nothing of it is copied, and nothing
looked up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, filtered, normal_floats, room, take, to_numpy, to_table, whole
from borealis.kernels.flow import HEAD, NOTHING, Bounds, Flow, differs, empty_flow, held_schema, rank_within
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import HeldRows
from borealis.kernels.join_index import mixed_numbers, words_of
from borealis.kernels.kinds import kinds_of, row_numbers
from borealis.kernels.sorting import stable_order
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, KIND, KIND_NAMES, LAST_TIME, SUB, TIME, Int8s, Int64s, Kind

SIGN, CHANGE, WHY = "__kind", "__change", "__why"  # what it adds to the columns of its input
EXPIRED = "older than the history"
THERE = "there is a row with this key already"
MISSING = "there is no row with this key, or none within the history"
WHYS = (EXPIRED, THERE, MISSING)
NONE = -1  # the place of no row, and the number of no reason
NEVER = FIRST_TIME  # the time in a delta of a row that is not held
AWAY_MOST = 8  # if one row in so many does not stay, the others are copied
TOGETHER_LEAST = 16  # changes of one key each that are made at once; fewer are made one by one

Bools = NDArray[np.bool_]


@dataclass
class _Found:
    """What comes of a train: for each row that leaves, which one, as what, and because of which row of the train."""

    why: Int64s  # of each row of the train: why it changes nothing, a place in WHYS
    stays: Bools  # of each row of the train: whether it is held from now on
    place: list[Int64s] = field(default_factory=list)  # in the train, and behind its rows among the old ones
    kind: list[Int8s] = field(default_factory=list)
    row: list[Int64s] = field(default_factory=list)

    @staticmethod
    def of(rows: int) -> _Found:
        """Nothing yet."""
        return _Found(np.full(rows, NONE), np.zeros(rows, np.bool_))

    def add(self, place: Int64s, kind: Int8s, row: Int64s) -> None:
        self.place.append(place)
        self.kind.append(kind)
        self.row.append(row)

    def in_order(self) -> tuple[Int64s, Int64s, Int8s]:
        """Place, row and kind of all that leaves, by row: most are insertions, which came first and are in order."""
        come, row = self.row[0], np.concatenate(self.row[1:])
        order = stable_order(row)
        row = row[order]
        at = np.searchsorted(come, row) + np.arange(len(row))
        others = np.ones(len(come) + len(row), np.bool_)
        others[at] = False
        place, kind = np.empty(len(others), np.int64), np.full(len(others), Kind.INSERTION, np.int8)
        place[others] = come
        rows = place.copy()
        place[at], rows[at], kind[at] = np.concatenate(self.place[1:])[order], row, np.concatenate(self.kind[1:])[order]
        return place, rows, kind

    def insert(self, rows: Int64s, late: Bools) -> None:
        """Rows whose keys nothing else has."""
        come = rows
        if late.any():
            self.why[rows[late[rows]]] = WHYS.index(EXPIRED)
            come = rows[~late[rows]]
        self.stays[come] = True
        self.add(come, np.full(len(come), Kind.INSERTION, np.int8), come)


class HistoryKernel:
    """State: `held`, the rows that may be corrected, keyed by their (cause, sub): their keys, and the columns of the
    input that are `read` behind it. Changes have these alone; what changes nothing leaves with all columns."""

    tables: ClassVar[tuple[TableSpec, ...]] = (TableSpec("held", (CAUSE, SUB), floor=TIME),)

    def __init__(self, schema: pa.Schema, key: list[str], history: int, read: list[str]) -> None:
        self.key, self.history = key, history
        self.every = [name for name in schema.names if name != KIND]
        self.columns = pa.schema([schema.field(name) for name in self.every if name in read or name in key])
        self.schema = held_schema(self.columns)
        more = [(SIGN, pa.int8()), (CHANGE, pa.string()), (WHY, pa.string())]
        self.out = pa.schema([*(schema.field(name) for name in self.every), *(pa.field(*one) for one in more)])
        self.blanks: dict[pa.DataType, pa.Array] = {}  # nulls of a type, as many as the longest train has rows
        self.held = HeldRows(self._with_words(self.schema.empty_table()))

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Each row as the change it makes; what changes nothing says why."""
        n, kind, late = len(flow), kinds_of(flow.rows), self._late(flow)
        usual = not kind.any() and not late.any()
        if usual and not self.key:
            return self._unchanged(flow), {}
        if not self.key:
            found = _Found.of(n)
            found.insert(np.arange(n), late)
            return self._out(flow, kind, self.held.empty, found), {}
        rows = self._with_words(flow.held(self.schema))
        word = rows[GROUP]
        near, place = self.held.find(word)
        if usual and not len(near) and np.all(word[1:] > word[:-1]):
            return self._unchanged(flow), self._remember(rows, NOTHING, self.held.empty, flow.bounds)
        found = _Found.of(n)
        apart = (kind != Kind.INSERTION) | _repeated(word, self.held.groups[1])
        apart[near] = True
        found.insert(np.flatnonzero(~apart), late)
        place = np.sort(place)
        place = place[differs(place)]
        old = self.held.at(place)
        gone = self._change(flow, kind, np.flatnonzero(apart & (kind != Kind.UPDATE_BEFORE)), old, found)
        self._note(rows, place, found)
        out = self._out(flow, kind, old, found)
        cut = {name: old[name][gone] for name in HEAD}
        return out, self._remember(rows, place[gone], cut, flow.bounds, found.stays)

    def _note(self, rows: Columns, near: Int64s, found: _Found) -> None:
        """Look at what a train changes, before it is done to what is held."""

    def _late(self, flow: Flow) -> Bools:
        """Which rows are older than the history when they come."""
        if not len(flow) or flow.time.min() >= self._floor(flow.bounds.final):
            return np.zeros(len(flow), np.bool_)
        return flow.time < self._oldest(flow.bounds, flow.cause)

    def _oldest(self, bounds: Bounds, cause: Int64s) -> Int64s:
        """The time before which nothing can be corrected any more, at each of these causes."""
        boundary = bounds.at(cause)
        far = boundary > FIRST_TIME + self.history
        back = np.where(far & (boundary < LAST_TIME), self.history, 0)
        return np.where(far, boundary - back, FIRST_TIME)

    def _floor(self, boundary: int) -> int:
        return int(self._oldest(Bounds(boundary), np.zeros(1, np.int64))[0])

    def _held_from(self, boundary: int) -> int:
        """The time from which on rows are held."""
        return self._floor(boundary)

    def _change(self, flow: Flow, kind: Int8s, rows: Int64s, old: Columns, found: _Found) -> Int64s:
        """What rows change whose keys others have, in the train or before it; which of the old ones go.

        The first of each key are looked at together, then the second, and so on: they do not know of each other.
        """
        n = len(flow)
        number = self._numbers(flow.rows.select(self.key).take(pa.array(rows)), old)
        number, mine = number[: len(rows)], number[len(rows) :]
        keys = _Keys(np.full(len(rows) + len(mine), NONE), np.zeros(len(rows) + len(mine), np.int64))
        keys.place[mine], keys.time[mine] = n + np.arange(len(mine)), old[TIME]
        order = stable_order(number)
        turn = np.empty(len(rows), np.int64)
        turn[order] = rank_within(number[order])
        order = stable_order(turn)
        oldest = self._oldest(flow.bounds, flow.cause[rows])[order]
        rows, number = rows[order], number[order]
        gone: list[Int64s] = [NOTHING]
        done = 0
        for many in np.bincount(turn).tolist():
            if many < TOGETHER_LEAST:
                break
            some = slice(done, done + many)
            gone.append(_together(keys, rows[some], number[some], kind, flow.time, oldest[some], found))
            done += many
        gone.append(_one_by_one(keys, rows[done:], number[done:], kind, flow.time, oldest[done:], found))
        places: Int64s = np.sort(np.concatenate(gone)) - n
        return places

    def _numbers(self, rows: pa.Table, old: Columns) -> Int64s:
        """A number for each key: equal for keys that are."""
        columns = [pa.concat_arrays([normal_floats(whole(rows[name])), normal_floats(old[name])]) for name in self.key]
        keys = pa.table(columns, names=self.key)
        return row_numbers(keys, np.zeros(len(keys), np.int64))

    # -- what leaves

    def _unchanged(self, flow: Flow) -> Flow:
        """All rows as insertions."""
        n = len(flow)
        blank = self._blank(pa.string(), n)
        kind = pa.array(np.zeros(n, np.int8))
        columns = [*flow.rows.select(self.every).columns, kind, blank, blank]
        return flow.with_rows(pa.table(columns, schema=self.out))

    def _out(self, flow: Flow, kind: Int8s, old: Columns, found: _Found) -> Flow:
        aside = np.flatnonzero(found.why != NONE)
        found.add(aside, np.zeros(len(aside), np.int8), aside)
        place, row, sign = found.in_order()
        if not len(row):
            return empty_flow(self.out, flow.bounds)
        n, many = len(flow), len(row)
        held = np.flatnonzero(place >= n)
        old = take(old, place[held] - n)
        own = place.copy()  # where each stands in the train; those that were held, in the place of what changes them
        own[held] = row[held]
        none = np.ones(many, np.bool_)
        change = why = self._blank(pa.string(), many)
        if len(aside):
            none = found.why[row] == NONE
            why = pa.array(WHYS).take(pa.array(found.why[row], mask=none))
            change = pa.array(KIND_NAMES).take(pa.array(kind[row], mask=none))
        columns = []
        for name in self.every:
            if name in self.columns.names:
                columns.append(_taken(whole(flow.rows[name]), own, held, old[name]))
            elif len(aside):  # changes that are not made are shown with all that they say
                columns.append(whole(flow.rows[name]).take(pa.array(own, mask=none)))
            else:
                columns.append(self._blank(self.out.field(name).type, many))
        cause, time = flow.cause[row], flow.time[own]
        time[held] = old[TIME]
        out = pa.table([*columns, pa.array(sign), change, why], schema=self.out)
        return Flow(out, time, cause, rank_within(cause), flow.bounds)

    def _blank(self, kind: pa.DataType, n: int) -> pa.Array:
        """So many nulls, which are made seldom."""
        if kind not in self.blanks or n > len(self.blanks[kind]):
            self.blanks[kind] = pa.nulls(n, kind)
        return self.blanks[kind].slice(0, n)

    # -- what is held

    def _with_words(self, table: pa.Table) -> Columns:
        """Rows as they are held: each with a number that is the same for the same key, and seldom for another."""
        rows: Columns = {name: table[name].to_numpy() for name in HEAD}
        rows |= {GROUP: key_numbers(table, self.key)}
        return rows | {name: whole(table[name]) for name in self.columns.names}

    def _remember(self, rows: Columns, gone: Int64s, old: Columns, bounds: Bounds, stays: Bools | None = None) -> Delta:
        """Hold rows, if not all those that stay, and not those old ones at some places, nor what is behind the history.
        A few that do not stay cost less than to copy all others: they are held unseen, and put with no time."""
        floor_before, floor = self._held_from(bounds.standing), self._held_from(bounds.final)
        held: Bools = np.ones(len(rows[TIME]), np.bool_) if stays is None else stays
        if len(held) and rows[TIME].min() < floor:
            held = held & (rows[TIME] >= floor)
        away = np.flatnonzero(~held)
        if len(away) * AWAY_MOST > len(held):
            rows, held, away = filtered(rows, held), held[held], NOTHING
        cut = np.flatnonzero(old[TIME] >= floor)
        self.held.remove(gone)
        self.held.add(rows, held)
        if len(away):
            time = room(len(held))
            np.copyto(time, rows[TIME])
            time[away] = NEVER
            rows = rows | {TIME: time}
        if floor > floor_before:
            self.held.raise_floor(floor)
        if not len(rows[TIME]) and not len(cut) and floor <= floor_before:
            return {}
        keys = to_table({name: old[name][cut] for name in (CAUSE, SUB)}) if len(cut) else None
        return {"held": Change(self._table(rows), cut=keys, floor=floor if floor > floor_before else None)}

    def _table(self, rows: Columns) -> pa.Table:
        return pa.table([rows[name] for name in self.schema.names], schema=self.schema)

    def apply(self, delta: Delta) -> None:
        change = delta.get("held")
        if change is None:
            return
        if change.floor is not None:
            self.held.raise_floor(change.floor)
        none = change.put.select((CAUSE, SUB)).slice(0, 0)
        cut = [(none if change.cut is None else change.cut)[name].to_numpy() for name in (CAUSE, SUB)]
        put = change.put.cast(self.schema)
        self.held.merge(cut, self._with_words(put.filter(pc.not_equal(put[TIME], NEVER))))

    def tables_now(self) -> dict[str, pa.Table]:
        return {"held": self._table(self.held.all())}


def _taken(column: pa.Array, index: Int64s, places: Int64s, values: pa.Array) -> pa.Array:
    """A column in this order, with other values at some places."""
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
    if plain and not column.null_count and not values.null_count:
        numbers, others = to_numpy(column), to_numpy(values)
        made = numbers[index]
        made[places] = others
        return pa.array(made).view(kind)
    index = index.copy()
    index[places] = len(column) + np.arange(len(places))
    return pc.take(pa.concat_arrays([column, values]), pa.array(index), boundscheck=False)


# -- changes of keys


@dataclass(frozen=True)
class _Keys:
    """Of each key the row that has it now: its place, as `_Found` counts them, and its time."""

    place: Int64s
    time: Int64s


def _together(
    keys: _Keys, row: Int64s, key: Int64s, kinds: Int8s, times: Int64s, oldest: Int64s, found: _Found
) -> Int64s:
    """Make changes of different keys; the places of old rows that go."""
    n, kind, time, was = len(times), kinds[row], times[row], keys.place[key]
    known = (was != NONE) & (keys.time[key] >= oldest)  # otherwise it is forgotten
    inserts, adds = kind == Kind.INSERTION, kind != Kind.DELETION
    why = np.select([adds & (time < oldest), inserts & known, ~inserts & ~known], range(len(WHYS)), NONE)
    found.why[row] = why
    made = why == NONE
    goes, comes = made & known, made & adds
    found.add(was[goes], np.where(adds, Kind.UPDATE_BEFORE, Kind.DELETION).astype(np.int8)[goes], row[goes])
    found.add(row[comes], kind[comes], row[comes])
    found.stays[row[comes]] = True
    found.stays[was[goes & (was < n)]] = False  # what was forgotten stands, though its key is another row's now
    keys.place[key[made]] = np.where(adds, row, NONE)[made]
    keys.time[key[made]] = time[made]
    gone: Int64s = was[goes & (was >= n)]
    return gone


def _one_by_one(
    keys: _Keys, row: Int64s, key: Int64s, kinds: Int8s, times: Int64s, oldest: Int64s, found: _Found
) -> Int64s:
    """The same for few keys with many changes each."""
    n, gone = len(times), []
    columns = (row, key, kinds[row], times[row], oldest)
    for place, number, what, time, since in zip(*(column.tolist() for column in columns), strict=True):
        was = int(keys.place[number])
        known = was != NONE and keys.time[number] >= since
        adds = what != Kind.DELETION
        if adds and time < since:
            found.why[place] = WHYS.index(EXPIRED)
        elif known == (what == Kind.INSERTION):
            found.why[place] = WHYS.index(THERE if known else MISSING)
        else:
            places = [*([was] if known else []), *([place] if adds else [])]
            signs = [Kind.UPDATE_BEFORE, what] if len(places) == 2 else [what]
            found.add(np.array(places), np.array(signs, np.int8), np.full(len(places), place))
            if known and was >= n:
                gone.append(was)
            elif known:
                found.stays[was] = False
            found.stays[place] = adds
            keys.place[number], keys.time[number] = place if adds else NONE, time
    return np.array(gone, np.int64)


def _repeated(word: Int64s, most: int) -> Bools:
    """Which of these are there more than once. Most rise above `most`, the largest so far, and all before them: only
    the few that do not are looked for."""
    found = np.zeros(len(word), np.bool_)
    top = np.maximum.accumulate(np.maximum(word, most))
    few = np.flatnonzero(word <= np.insert(top[:-1], 0, most)[: len(word)])
    if not len(few):
        return found
    first = np.minimum(np.searchsorted(top, word[few]), len(word) - 1)  # the one that rose so far, if any did
    both = first != few
    both &= word[first] == word[few]
    found[first[both]] = found[few[both]] = True
    order = few[stable_order(word[few])]
    same = np.append(word[order[1:]] == word[order[:-1]], False)
    found[order] |= same | np.insert(same, 0, False)[: len(order)]
    return found


def key_numbers(table: pa.Table, key: list[str]) -> Int64s:
    """A number for each row that is the same for the same key, and seldom for another."""
    words = [word for name in key for word in _words(table[name])]
    return words[0] if len(words) == 1 else mixed_numbers(words) if words else NOTHING


def _words(column: pa.ChunkedArray) -> list[Int64s]:
    if not column.null_count:
        return words_of(column)
    there = whole(column.is_valid()).to_numpy(zero_copy_only=False)
    words = []
    for some in words_of(column.drop_null()):
        word = np.zeros(len(column), np.int64)
        word[there] = some
        words.append(word)
    return words
