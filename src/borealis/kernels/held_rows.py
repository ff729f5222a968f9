"""Rows that a kernel holds because they may be taken back: found by group and time, and told apart by their columns.

They lie in *chunks* in order of (cause, sub), merged as those of a join are, up to some size. A chunk's columns never
change; which of its rows are taken back is written beside them. Nothing is sorted before a row is looked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.kernels.columns import (
    Columns,
    column_numbers,
    concat,
    filtered,
    places_in,
    places_in_blocks,
    take,
    to_table,
    whole,
)
from borealis.kernels.flow import NOTHING
from borealis.kernels.groups import GROUP, like
from borealis.kernels.join_changes import match_taken
from borealis.kernels.join_index import Index
from borealis.kernels.kinds import identities, row_numbers
from borealis.kernels.xxhash import can_hash, xxhash64
from borealis.state.delta import Change, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s

HELD = TableSpec("rows", (CAUSE, SUB), floor=TIME)
NULL = -0x61C8864680B583EB  # the fingerprint of a null among integers; any that hardly anybody uses
WHOLE = "whole"  # of a row: the fingerprint of what else it has

CHUNK_ROWS_MOST = 1 << 19  # so that what is old goes as a whole, and nothing large is copied
PLACES_AT_ONCE = 1 << 22
COUNTS_MOST = 8  # times that the dead of a chunk are counted while the floor passes it


@dataclass
class _Chunk:
    """Rows in order of (cause, sub), and which of them were not taken back."""

    rows: Columns
    alive: NDArray[np.bool_]
    counted_at: int = FIRST_TIME  # the floor at which its dead were counted
    indexes: dict[str, Index] = field(default_factory=dict)  # by columns other than the group
    tops: Int64s | None = None  # the greatest group so far of each row, if that is known
    rising: tuple[Int64s, Int64s, NDArray[np.uint8]] | None = None  # as `risen` has it

    def __len__(self) -> int:
        return len(self.alive)

    @cached_property
    def first(self) -> int:
        return int(self.rows[TIME].min())

    @cached_property
    def last(self) -> int:
        return int(self.rows[TIME].max())

    @cached_property
    def groups(self) -> tuple[int, int]:
        """The least and the largest."""
        return int(self.rows[GROUP].min()), int(self.rows[GROUP].max())

    @cached_property
    def index(self) -> Index:
        return Index([self.rows[GROUP]], self.rows[TIME], self.first, self.last)

    @cached_property
    def index_of_groups(self) -> Index:
        return Index([self.rows[GROUP]], np.zeros(len(self), np.int64), 0, 0)

    def index_by(self, column: str) -> Index:
        """By the numbers in a column, and time."""
        if column == GROUP:
            return self.index
        if column not in self.indexes:
            self.indexes[column] = Index([self.rows[column]], self.rows[TIME], self.first, self.last)
        return self.indexes[column]

    def risen(self, compiled: ModuleType) -> tuple[Int64s, Int64s, NDArray[np.uint8]]:
        """What `look_up` needs: the greatest group so far of each row, and tables of those that are not above all."""
        if self.rising is None:
            group, tops = self.rows[GROUP], self.tops
            if tops is None:
                tops = np.empty(len(group), np.int64)
                compiled.greatest_so_far(group, tops)
            others = int(np.count_nonzero(group[1:] <= tops[:-1]))
            room = 1 << (2 * others).bit_length() if others else 0
            slots, marks = np.full((room, 2), -1), np.zeros(room, np.uint8)
            compiled.note_others(group, tops, slots, marks)
            self.rising = tops, slots, marks
        return self.rising


class HeldRows:
    """Rows with the columns of `empty`, among them CAUSE, SUB, TIME and GROUP."""

    def __init__(self, empty: Columns) -> None:
        self.empty = empty
        self.chunks: list[_Chunk] = []
        self.floor = FIRST_TIME

    @property
    def size(self) -> int:
        """One above the last place."""
        return sum(map(len, self.chunks))

    def add(self, rows: Columns, alive: NDArray[np.bool_] | None = None) -> None:
        """Hold these rows, which come after all that are held; or those that are alive, and the others unseen."""
        if not len(rows[TIME]):
            return
        run, size = [_Chunk(rows, np.ones(len(rows[TIME]), np.bool_) if alive is None else alive)], len(rows[TIME])
        while self.chunks and len(self.chunks[-1]) <= min(2 * size, CHUNK_ROWS_MOST - size):
            size += len(self.chunks[-1])
            run.append(self.chunks.pop())
        if len(run) == 1:
            self.chunks += run
            return
        parts = [take(c.rows, np.flatnonzero(kept)) if not (kept := self._kept(c)).all() else c.rows for c in run[::-1]]
        rows = concat(parts)
        if len(rows[TIME]):  # none may be left that is above the floor
            self.chunks.append(_Chunk(rows, np.ones(len(rows[TIME]), np.bool_)))

    def note_tops(self, group: Int64s, tops: Int64s) -> None:
        """The greatest group so far of each of these rows, if they were the last to be added, and lie as they came."""
        if self.chunks and self.chunks[-1].rows[GROUP] is group:
            self.chunks[-1].tops = tops

    def find(self, group: Int64s, early: Int64s | None = None, late: Int64s | None = None) -> tuple[Int64s, Int64s]:
        """The rows of each of these groups in its span of time, or of all times: which of the spans each is in, rising,
        and its place.

        Of one span, the rows come in order of (cause, sub)."""
        owners, places = [NOTHING], [NOTHING]
        ever = early is None or late is None
        early, late = (np.broadcast_to(0, len(group)) if one is None else one for one in (early, late))
        base = 0
        least, most = self.groups
        near = np.flatnonzero((group >= least) & (group <= most))
        if len(near) < len(group):  # keys that rise are above all that are held
            spans = () if ever else (early[near], late[near])
            owner, place = self.find(group[near], *spans) if len(near) else (NOTHING, NOTHING)
            return near[owner], place
        for chunk in self.chunks:
            first, last = chunk.groups
            inside = np.flatnonzero((group >= first) & (group <= last))
            if not len(inside):
                base += len(chunk)
                continue
            index = chunk.index_of_groups if ever else chunk.index
            who, start, end = index.slices([group[inside]], early[inside], late[inside])
            who = inside[who]
            for some, at in places_in_blocks(start, end - start, PLACES_AT_ONCE):
                owner, place = np.repeat(who[some], (end - start)[some]), index.places[at]
                keep = chunk.alive[place]
                if not index.sure:
                    keep &= chunk.rows[GROUP][place] == group[owner]
                if chunk.first < self.floor:
                    keep &= chunk.rows[TIME][place] >= self.floor
                if not keep.all():
                    owner, place = owner[keep], place[keep]
                owners.append(owner)
                places.append(place + base)
            base += len(chunk)
        if not base:
            return NOTHING, NOTHING
        packed = np.concatenate(owners) * base + np.concatenate(places)
        packed.sort()
        return packed // base, packed % base

    def last_of(self, compiled: ModuleType, group: Int64s) -> tuple[Int64s, Int64s]:
        """The place of the last row of each of these groups, or -1; and its time."""
        place, time, base = np.full(len(group), -1), np.zeros(len(group), np.int64), 0
        order = np.argsort(group)  # so that what is looked up one after the other lies near
        wanted = group[order]
        for chunk in self.chunks:
            first, last = chunk.groups
            low, high = np.searchsorted(wanted, first), np.searchsorted(wanted, last, side="right")
            if low < high:
                rows = chunk.rows[GROUP], *chunk.risen(compiled), chunk.rows[TIME], chunk.alive
                compiled.look_up(wanted[low:high], *rows, self.floor, base, place[low:high], time[low:high])
            base += len(chunk)
        back = places_in(order)
        return place[back], time[back]

    def find_by(self, column: str, number: Int64s, early: Int64s, late: Int64s) -> tuple[Int64s, Int64s]:
        """The same by the numbers in another column than the group, in spans of one length."""
        owners, places, base = [NOTHING], [NOTHING], 0
        for chunk in self.chunks:
            near = np.flatnonzero((early <= chunk.last) & (late >= max(chunk.first, self.floor)))
            who, start, end = (
                chunk.index_by(column).slices([number[near]], early[near], late[near]) if len(near) else 3 * (near,)
            )
            for some, at in places_in_blocks(start, end - start, PLACES_AT_ONCE):
                owner, place = np.repeat(near[who[some]], (end - start)[some]), chunk.index_by(column).places[at]
                keep = chunk.alive[place] & (chunk.rows[column][place] == number[owner])
                keep &= chunk.rows[TIME][place] >= self.floor
                owners.append(owner[keep])
                places.append(place[keep] + base)
            base += len(chunk)
        owner, place = np.concatenate(owners), np.concatenate(places)
        order = np.lexsort((place, owner))
        return owner[order], place[order]

    def count(self, group: Int64s, early: Int64s, late: Int64s) -> Int64s:
        """How many rows `find` gives for each span at most."""
        found = np.zeros(len(group), np.int64)
        for chunk in self.chunks:
            who, start, end = chunk.index.slices([group], early, late)
            found[who] += end - start
        return found

    def between(self, early: int, late: int) -> Int64s:
        """The places of all rows in a span of time, in order."""
        places, base, early = [NOTHING], 0, max(early, self.floor)
        for chunk in self.chunks:
            if chunk.first <= late and chunk.last >= early:
                time = chunk.rows[TIME]
                places.append(np.flatnonzero(chunk.alive & (time >= early) & (time <= late)) + base)
            base += len(chunk)
        return np.concatenate(places)

    def before(self, time: int) -> Columns:
        """All rows that are older."""
        parts = []
        for chunk in self.chunks:
            if chunk.first < time:
                parts.append(take(chunk.rows, np.flatnonzero(self._kept(chunk) & (chunk.rows[TIME] < time))))
        return concat(parts) if parts else self.empty

    def taken_back(self, come: Columns, gone: Columns) -> tuple[Int64s, Int64s, Int64s]:
        """The places of rows that others take back, and the causes of these; and of each row that comes the cause that
        takes it back again, or LAST_TIME. What takes back a row that is not there, lost in a gap, does nothing."""
        place = np.unique(self.find(gone[GROUP], gone[TIME], gone[TIME])[1])
        near = np.flatnonzero(np.isin(come[TIME], gone[TIME]))
        at = taken_back(concat([self.at(place), take(come, near)]), gone)
        held, came = (at >= 0) & (at < len(place)), at >= len(place)
        dead = np.full(len(come[TIME]), LAST_TIME)
        dead[near[at[came] - len(place)]] = gone[CAUSE][came]
        return place[at[held]], gone[CAUSE][held], dead

    @property
    def groups(self) -> tuple[int, int]:
        """The least and the largest that are held; the least is above the largest where nothing is."""
        found = [chunk.groups for chunk in self.chunks]
        return min((least for least, _ in found), default=LAST_TIME), max(
            (most for _, most in found), default=FIRST_TIME
        )

    def at(self, places: Int64s) -> Columns:
        """The rows at places that `find` or `between` gave."""
        order = None
        if np.any(places[1:] < places[:-1]):
            order = np.argsort(places, kind="stable")
            places = places[order]
        parts, base = [], 0
        for chunk in self.chunks:
            low, high = np.searchsorted(places, (base, base + len(chunk))).tolist()
            if low < high:
                parts.append(take(chunk.rows, places[low:high] - base))
            base += len(chunk)
        rows = concat(parts) if parts else self.empty
        if order is None:
            return rows
        return take(rows, places_in(order))

    def remove(self, places: Int64s) -> None:
        """Take back rows at such places, if nothing was added since."""
        base = 0
        for chunk in self.chunks:
            own = places[(places >= base) & (places < base + len(chunk))] - base
            chunk.alive[own] = False
            base += len(chunk)

    def raise_floor(self, floor: int) -> None:
        """Forget the rows before `floor`. They stay inside a chunk until half of it is dead."""
        self.floor = max(self.floor, floor)
        self.chunks = [kept for chunk in self.chunks if (kept := self._compact(chunk)) is not None]

    def change(self, put: Columns, cut: Columns, before: int, floor: int) -> Change | None:
        """What a train did that held some rows and took others back. Forgets what is before the floor, if that rose."""
        self.raise_floor(floor)
        put, cut = (some if np.all(stays := some[TIME] >= floor) else filtered(some, stays) for some in (put, cut))
        if floor == before and not len(put[TIME]) and not len(cut[TIME]):
            return None
        keys = to_table({name: cut[name] for name in (CAUSE, SUB)}) if len(cut[TIME]) else None
        return Change(to_table(put), cut=keys, floor=floor if floor > before else None)

    def apply(self, change: Change) -> tuple[Columns, Columns]:
        """Catch up with what another copy did: the rows that went and that came."""
        if change.floor is not None:
            self.raise_floor(change.floor)
        keys = [NOTHING if change.cut is None else column_numbers(change.cut, name) for name in (CAUSE, SUB)]
        return self.merge(keys, like(self.empty, change.put))

    def merge(self, cut: Sequence[Int64s], put: Columns) -> tuple[Columns, Columns]:
        """Take back the rows with these keys, then hold others unless they are held: those that went and that came."""
        out = self._with_keys(*cut)[1]
        gone = self.at(out)
        self.remove(out)
        known, _ = self._with_keys(put[CAUSE], put[SUB])
        if len(known):
            put = take(put, np.setdiff1d(np.arange(len(put[TIME])), known))
        if not len(put[TIME]):
            return gone, put
        order = np.lexsort((put[SUB], put[CAUSE]))
        put = take(put, order)
        last = self.chunks[-1].rows if self.chunks else None
        if last is None or (last[CAUSE][-1], last[SUB][-1]) < (put[CAUSE][0], put[SUB][0]):
            self.add(put)
        else:
            every = concat([self.all(), put])
            self.chunks = []
            self.add(take(every, np.lexsort((every[SUB], every[CAUSE]))))
        return gone, put

    def _with_keys(self, cause: Int64s, sub: Int64s) -> tuple[Int64s, Int64s]:
        """Which of these keys are held, and the places of their rows."""
        which, places = [NOTHING], [NOTHING]
        base = 0
        for chunk in self.chunks:
            start, end = (np.searchsorted(chunk.rows[CAUSE], cause, side) for side in ("left", "right"))
            for some, place in places_in_blocks(start, end - start, PLACES_AT_ONCE):
                owner = np.arange(some.start, some.stop).repeat((end - start)[some])
                found = (chunk.rows[SUB][place] == sub[owner]) & chunk.alive[place]
                found &= chunk.rows[TIME][place] >= self.floor
                which.append(owner[found])
                places.append(place[found] + base)
            base += len(chunk)
        return np.concatenate(which), np.concatenate(places)

    def all(self) -> Columns:
        """All that is held, in order."""
        parts = [take(chunk.rows, np.flatnonzero(self._kept(chunk))) for chunk in self.chunks]
        return concat(parts) if parts else self.empty

    def _kept(self, chunk: _Chunk) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = chunk.alive & (chunk.rows[TIME] >= self.floor)
        return kept

    def _compact(self, chunk: _Chunk) -> _Chunk | None:
        if chunk.last < self.floor:
            return None
        if self.floor < max(chunk.counted_at, chunk.first) + (chunk.last - chunk.first) // COUNTS_MOST:
            return chunk
        chunk.counted_at = self.floor
        kept = self._kept(chunk)
        many = int(kept.sum())
        if many * 2 >= len(chunk):
            return chunk
        return _Chunk(take(chunk.rows, np.flatnonzero(kept)), np.ones(many, np.bool_)) if many else None


# ---------------------------------------------------------------- which rows are equal


def fingerprints(columns: list[pa.ChunkedArray], rows: int) -> Int64s:
    """64 bits for each row that tell rows apart which differ in these columns; the same in any process. Of a single
    column of integers they are these."""
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        numbers: Int64s = whole(columns[0]).cast(pa.int64()).fill_null(NULL).to_numpy()
        return numbers
    parts = [_bits(column) if can_hash(column.type) else _digests(column) for column in map(whole, columns)]
    found: Int64s = xxhash64(parts, rows).to_numpy().copy()
    for i, part in enumerate(parts):
        if part.null_count:  # the hash alone does not see which of several columns is null
            found[part.is_null().to_numpy(zero_copy_only=False)] ^= 1 << i % 63
    return found


def _bits(column: pa.Array) -> pa.Array:
    """Floats by their bits, for the hash takes the two zeros for one; of NaNs there is only one."""
    if not pa.types.is_floating(column.type):
        return column
    column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan"), column.type), column)
    return column.view(pa.int32() if column.type == pa.float32() else pa.int64())


def looked_up(wanted: Int64s, known: Int64s, value: Int64s, default: int) -> Int64s:
    """The values of those that are known, each of which is so once."""
    if not len(known):
        return np.full(len(wanted), default)
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
    return np.where(known[order][at] == wanted, value[order][at], default)


def _digests(column: pa.Array) -> pa.Array:
    values = column.to_pylist()
    digests = [None if v is None else hashlib.blake2b(repr(v).encode(), digest_size=8).digest() for v in values]
    return pa.array(digests, pa.binary())


@dataclass(frozen=True)
class Takes:
    """What rows of a train take back: `taker[i]` among them takes the row at `place[i]`, a place in what is held or,
    counted on from there, in the train. What is `idle` in the train does nothing: of the same cause, another undoes it.
    """

    place: Int64s
    taker: Int64s
    idle: Int64s


def takes_of(held: HeldRows, rows: Columns, adds: NDArray[np.bool_]) -> Takes:
    """What those rows of a train take back that add none: each the newest that is equal to it."""
    taking = np.flatnonzero(~adds)
    if not len(taking):
        return Takes(NOTHING, NOTHING, NOTHING)
    place = np.unique(held.find(rows[GROUP][taking], rows[TIME][taking], rows[TIME][taking])[1])
    found = takes_among(held.at(place), rows, adds)
    old = found.place < len(place)
    places = held.size - len(place) + found.place
    places[old] = place[found.place[old]]
    return replace(found, place=places)


def takes_among(kept: Columns, rows: Columns, adds: NDArray[np.bool_]) -> Takes:
    """The same, of all rows that may be meant, in order; a place is one among these, or behind them in the train."""
    near = np.flatnonzero(np.isin(rows[TIME], rows[TIME][~adds]))
    many = len(kept[TIME])
    some = concat([kept, take(rows, near)])
    columns = to_table({name: column for name, column in some.items() if name not in (CAUSE, SUB, TIME)})
    taken = match_taken(row_numbers(columns, some[TIME]), np.append(np.ones(many, np.bool_), adds[near]), some[CAUSE])
    places = np.append(np.arange(many), many + near)
    return Takes(places[taken.row], near[taken.taker - many], near[taken.idle - many])


def taken_back(kept: Columns, gone: Columns) -> Int64s:
    """For each row that takes one back, the place of that one: the newest before it that is equal and still there.

    It is -1 where there is none. Both are compared in all columns.
    """
    n = len(gone[CAUSE])
    if not n or not len(kept[CAUSE]):
        return np.full(n, -1)
    code = np.zeros(len(kept[CAUSE]) + n, np.int64)
    candidate = np.arange(len(kept[CAUSE]))
    for name in [name for name in gone if name not in (CAUSE, SUB)]:
        both = concat([{name: take({name: kept[name]}, candidate)[name]}, {name: gone[name]}])[name]
        own = identities(pa.array(both) if isinstance(both, np.ndarray) else both)
        distinct, code = np.unique(code * (int(own.max()) + 1) + own, return_inverse=True)
        wanted = np.zeros(len(distinct), np.bool_)
        wanted[code[len(candidate) :]] = True
        some = wanted[code[: len(candidate)]]
        code = np.concatenate([code[: len(candidate)][some], code[len(candidate) :]])
        candidate = candidate[some]
    cause, sub = (np.concatenate([kept[name][candidate], gone[name]]) for name in (CAUSE, SUB))
    order = np.lexsort((sub, cause))
    taken = match_taken(code[order], order < len(candidate), np.arange(len(order)))  # no two of one cause
    found = np.full(n, -1)
    found[order[taken.taker] - len(candidate)] = candidate[order[taken.row]]
    return found
