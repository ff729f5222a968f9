"""Rows that a kernel holds because they may be taken back: found by group and time, and told apart by their columns.

They lie in *chunks* in order of (cause, sub), merged as those of a join are, up to some size. A chunk's columns never
change; which of its rows are taken back is written beside them. Nothing is sorted before a row is looked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, concat, places_in_blocks, take, whole
from borealis.kernels.flow import NOTHING
from borealis.kernels.groups import GROUP
from borealis.kernels.join_index import Index
from borealis.kernels.kinds import identities
from borealis.kernels.xxhash import can_hash, xxhash64
from borealis.tuples import CAUSE, FIRST_TIME, SUB, TIME, Int64s

CHUNK_ROWS_MOST = 1 << 20  # so that what is old goes as a whole, and nothing large is copied
PLACES_AT_ONCE = 1 << 22
COUNTS_MOST = 8  # times that the dead of a chunk are counted while the floor passes it


@dataclass
class _Chunk:
    """Rows in order of (cause, sub), and which of them were not taken back."""

    rows: Columns
    alive: NDArray[np.bool_]
    counted_at: int = FIRST_TIME  # the floor at which its dead were counted

    def __len__(self) -> int:
        return len(self.alive)

    @cached_property
    def first(self) -> int:
        return int(self.rows[TIME].min())

    @cached_property
    def last(self) -> int:
        return int(self.rows[TIME].max())

    @cached_property
    def index(self) -> Index:
        return Index([self.rows[GROUP]], self.rows[TIME], self.first, self.last)


class HeldRows:
    """Rows with the columns of `empty`, among them CAUSE, SUB, TIME and GROUP."""

    def __init__(self, empty: Columns) -> None:
        self.empty = empty
        self.chunks: list[_Chunk] = []
        self.floor = FIRST_TIME

    def add(self, rows: Columns) -> None:
        """Hold these rows, which come after all that are held."""
        if not len(rows[TIME]):
            return
        run, size = [_Chunk(rows, np.ones(len(rows[TIME]), np.bool_))], len(rows[TIME])
        while self.chunks and len(self.chunks[-1]) <= min(2 * size, CHUNK_ROWS_MOST - size):
            size += len(self.chunks[-1])
            run.append(self.chunks.pop())
        if len(run) > 1:
            parts = [
                take(c.rows, np.flatnonzero(kept)) if not (kept := self._kept(c)).all() else c.rows for c in run[::-1]
            ]
            rows = concat(parts)
        self.chunks.append(_Chunk(rows, np.ones(len(rows[TIME]), np.bool_)))

    def find(self, group: Int64s, early: Int64s, late: Int64s) -> tuple[Int64s, Int64s]:
        """The rows of each of these groups in its span of time: which of the spans each is in, rising, and its place.

        Of one span, the rows come in order of (cause, sub)."""
        owners, places = [NOTHING], [NOTHING]
        base = 0
        for chunk in self.chunks:
            index = chunk.index
            who, start, end = index.slices([group], early, late)
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

    def at(self, places: Int64s) -> Columns:
        """The rows at places that `find` gave."""
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
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return take(rows, back)

    def remove(self, places: Int64s) -> None:
        """Take back rows at places that `find` gave, since which nothing was added."""
        base = 0
        for chunk in self.chunks:
            own = places[(places >= base) & (places < base + len(chunk))] - base
            chunk.alive[own] = False
            base += len(chunk)

    def raise_floor(self, floor: int) -> None:
        """Forget the rows before `floor`. They stay inside a chunk until half of it is dead."""
        self.floor = max(self.floor, floor)
        self.chunks = [kept for chunk in self.chunks if (kept := self._compact(chunk)) is not None]

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
    """64 bits for each row that tell rows apart which differ in these columns; the same in any process."""
    parts = [column if can_hash(column.type) else _digests(column) for column in map(whole, columns)]
    found: Int64s = xxhash64(parts, rows).to_numpy().copy()
    for i, part in enumerate(parts):
        if part.null_count:  # the hash alone does not see which of several columns is null
            found[part.is_null().to_numpy(zero_copy_only=False)] ^= 1 << i % 63
    return found


def _digests(column: pa.Array) -> pa.Array:
    values = column.to_pylist()
    digests = [None if v is None else hashlib.blake2b(repr(v).encode(), digest_size=8).digest() for v in values]
    return pa.array(digests, pa.binary())


def taken_back(kept: Columns, gone: Columns) -> Int64s:
    """For each row that takes one back, the place of that one: the newest before it that is equal and still there.

    It is -1 where there is none. Both are compared in all columns. Seen in order, rows that are equal open and close as
    brackets do.
    """
    n = len(gone[CAUSE])
    if not len(kept[CAUSE]):
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
    order = np.lexsort((sub, cause, code))
    comes = order < len(candidate)
    depth = np.cumsum(np.where(comes, 1, -1))
    begin = np.flatnonzero(np.insert(code[order][1:] != code[order][:-1], 0, True))
    before = np.insert(depth, 0, 0)[begin]
    depth -= np.repeat(before, np.diff(np.append(begin, len(order))))
    if np.any(depth < 0):
        bad = order[depth < 0] - len(candidate)
        found = np.zeros(n, np.int64)
        found[bad[bad >= 0]] = -1
        return found
    level = np.where(comes, depth, depth + 1)
    paired = order[np.lexsort((level, code[order]))]  # stable: at one level they come and go in turn
    closing = np.flatnonzero(paired >= len(candidate))
    found = np.empty(n, np.int64)
    found[paired[closing] - len(candidate)] = candidate[paired[closing - 1]]
    return found
