"""The rows that a join holds: per side, in chunks that are found by key and time, and what a train adds to them.

A row that is taken back stays in its chunk, marked, until it is swept out with others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from borealis.kernels import kinds
from borealis.kernels.columns import column_numbers
from borealis.kernels.flow import NOTHING, Flow, held_schema
from borealis.kernels.join_changes import (
    GONE,
    NEVER,
    NO_HEIRS,
    Heirs,
    match_taken,
    perhaps_among,
    places_among,
)
from borealis.kernels.join_index import Index, is_text, mixed_numbers, words_of
from borealis.kernels.sorting import newest
from borealis.state.delta import Change
from borealis.tuples import CAUSE, FIRST_TIME, KIND, SUB, TIME, Int64s


@dataclass
class RowChunk:
    """Rows of one side in order of (cause, sub), none with a null key. Never changed, only replaced, but for `end`."""

    rows: pa.Table  # the held columns, without the three below
    time: Int64s
    cause: Int64s
    sub: Int64s
    words: list[Int64s]  # the key, as numbers
    end: Int64s | None = None  # the cause that takes each row back, if there is any
    gone: Int64s = field(default_factory=lambda: NOTHING)  # where the rows stand that earlier trains took back

    def __len__(self) -> int:
        return len(self.time)

    @cached_property
    def first(self) -> int:
        return int(self.time.min())

    @cached_property
    def last(self) -> int:
        return int(self.time.max())

    @cached_property
    def index(self) -> Index:
        return Index(self.words, self.time, self.first, self.last)

    @cached_property
    def _risen(self) -> Int64s:
        return self.time if bool((self.time[1:] >= self.time[:-1]).all()) else np.sort(self.time)

    def count_from(self, floor: int) -> int:
        """How many rows have a time of at least `floor`."""
        dead = int(np.count_nonzero(self.time[self.gone] >= floor)) if len(self.gone) else 0
        return len(self) - dead - (0 if floor <= self.first else int(np.searchsorted(self._risen, floor)))

    def set_end(self, index: Int64s, cause: Int64s | int) -> None:
        if self.end is None:
            self.end = np.full(len(self), NEVER)
        self.end[index] = cause

    def forget(self, index: Int64s) -> None:
        """These rows are no more."""
        self.set_end(index, GONE)
        self.gone = np.concatenate([self.gone, index])

    def take(self, index: Int64s) -> RowChunk:
        """These rows, without their ends."""
        rows = self.rows.take(pa.array(index))
        return RowChunk(rows, self.time[index], self.cause[index], self.sub[index], [w[index] for w in self.words])

    def since(self, floor: int) -> RowChunk:
        """The rows with a time of at least `floor` that nothing has taken back."""
        if not len(self) or (floor <= self.first and self.end is None):
            return self
        alive = self.time >= floor
        return self.take(np.flatnonzero(alive if self.end is None else alive & (self.end == NEVER)))

    def table(self, schema: pa.Schema) -> pa.Table:
        """The chunk as the state log sees it."""
        head = [pa.array(self.cause), pa.array(self.sub), pa.array(self.time)]
        return pa.Table.from_arrays(head + self.rows.columns, schema=schema)


def joined(chunks: list[RowChunk]) -> RowChunk:
    """One chunk of several that follow each other."""
    if len(chunks) == 1:
        return chunks[0]
    time, cause, sub = (np.concatenate([getattr(c, name) for c in chunks]) for name in ("time", "cause", "sub"))
    words = [np.concatenate(parts) for parts in zip(*(c.words for c in chunks), strict=True)]
    return RowChunk(pa.concat_tables([c.rows for c in chunks]).combine_chunks(), time, cause, sub, words)


class Side:
    """What one input has and holds. Held are only the columns that keys or output need, in the order of the input."""

    def __init__(self, name: str, schema: pa.Schema, keys: list[str], wanted: list[str]) -> None:
        self.name = name
        self.keys = keys
        self.text_keys = [is_text(schema.field(key).type) for key in keys]
        self.wanted = list(dict.fromkeys(wanted))
        self.signed = KIND in schema.names
        self.user = pa.schema([field for field in schema if field.name in {*keys, *wanted}])
        self.schema = held_schema(self.user)
        self.chunks: list[RowChunk] = []
        self.floor = FIRST_TIME

    def chunk_of(self, rows: pa.Table, time: Int64s, cause: Int64s, sub: Int64s) -> RowChunk:
        """The rows as a chunk, without those that have a null in a key: they match nothing."""
        columns = [rows.column(name) for name in self.user.names]
        held = pa.Table.from_arrays(columns, schema=self.user) if columns else rows.select([])
        whole = [held.column(key).is_valid() for key in self.keys if held.column(key).null_count]
        if whole:
            mask = np.logical_and.reduce([valid.to_numpy() for valid in whole])
            held = held.filter(pa.array(mask))
            time, cause, sub = time[mask], cause[mask], sub[mask]
        held = held.combine_chunks()
        words = [word for key in self.keys for word in words_of(held.column(key))]
        return RowChunk(held, time, cause, sub, words)

    def pool_of(self, flow: Flow) -> Pool:
        """The rows of a train with those that are held. Nothing is held or marked yet."""
        if not self.signed:
            return Pool(self.chunks, self.chunk_of(flow.rows, flow.time, flow.cause, flow.sub))
        train = self.chunk_of(flow.rows, flow.time, flow.cause, np.arange(len(flow)))
        at = train.sub
        train = replace(train, sub=flow.sub[at])
        kind = kinds.signs(flow)
        adds = kinds.adds(kind)[at]
        if adds.all():
            return Pool(self.chunks, train)
        takes = np.flatnonzero(~adds)
        held, candidates = self._held_like(train.take(takes))
        code = mixed_numbers([train.time, *train.words])
        near = perhaps_among(code[takes], code)
        some = joined([*candidates, train.take(near)])
        adding = np.concatenate([np.ones(len(held), np.bool_), adds[near]])
        taken = match_taken(kinds.row_numbers(some.rows, some.time), adding, some.cause)
        lives = adds.copy()
        lives[near[taken.idle - len(held)]] = False
        pool = Pool(self.chunks, train.take(np.flatnonzero(lives)))
        new_place = np.cumsum(lives) - 1 + pool.before
        old, end = np.concatenate([held, new_place[near]])[taken.row], some.cause[taken.taker]
        pool.take_back(old, end)
        taker = near[taken.taker - len(held)]
        first = (np.isin(at, kinds.pairs(flow, kind)) & np.append(np.diff(at) == 1, False))[taker]
        first[first] = lives[taker[first] + 1]
        if first.any():
            second = taker[first] + 1
            shown = pa.concat_tables([train.rows.select(self.wanted).take(pa.array(i)) for i in (taker[first], second)])
            number = kinds.row_numbers(shown, np.zeros(len(shown), np.int64)).reshape(2, -1)
            pool.heirs = Heirs.of(old[first], new_place[second], end[first], number[0] == number[1])
        return pool

    def _held_like(self, taking: RowChunk) -> tuple[Int64s, list[RowChunk]]:
        """The live rows that have the time and nearly surely the key of any of these: their places, and themselves."""
        places, parts, base = [NOTHING], [], 0
        for chunk in self.chunks:
            found = chunk.index.places_of(taking.words, taking.time)
            if chunk.end is not None:
                found = found[chunk.end[found] == NEVER]
            if len(found):
                places.append(found + base)
                parts.append(chunk.take(found))
            base += len(chunk)
        return np.concatenate(places), parts

    def settle(self, pool: Pool) -> pa.Table | None:
        """Forget the held rows that a train took back: their keys, if there are any."""
        keys = pool.forget()
        if keys is not None:
            self._sweep()
        return keys

    def _sweep(self) -> None:
        alive = [chunk.count_from(self.floor) for chunk in self.chunks]
        self.chunks = [
            c.since(self.floor) if n * 2 < len(c) else c for c, n in zip(self.chunks, alive, strict=True) if n
        ]

    def raise_floor(self, floor: int) -> bool:
        """Forget the rows before `floor`; whether there were any. Dead rows stay inside a chunk until half of it is."""
        if floor <= self.floor:
            return False
        dropped = False
        held = []
        for chunk in self.chunks:
            alive = chunk.count_from(floor)
            dropped |= alive < chunk.count_from(self.floor)
            if alive * 2 < len(chunk):
                chunk = chunk.since(floor)
            if alive:
                held.append(chunk)
        self.chunks, self.floor = held, floor
        return dropped

    def add(self, chunk: RowChunk) -> None:
        """Hold these rows, which come after all that are held."""
        if not len(chunk):
            return
        run = [chunk]
        size = len(chunk)
        while self.chunks and len(self.chunks[-1]) <= 2 * size:
            size += len(self.chunks[-1])
            run.append(self.chunks.pop())
        if len(run) > 1:
            chunk = joined([c.since(self.floor) for c in reversed(run)])
        self.chunks.append(chunk)

    def apply(self, change: Change) -> None:
        """Catch up with what another copy did."""
        if change.cut is not None:
            self._cut(column_numbers(change.cut, CAUSE), column_numbers(change.cut, SUB))
        if change.floor is not None:
            self.raise_floor(change.floor)
        self.put(change.put)

    def _cut(self, cause: Int64s, sub: Int64s) -> None:
        """Forget the rows with these keys."""
        for chunk in self.chunks:
            start, end = np.searchsorted(chunk.cause, cause), np.searchsorted(chunk.cause, cause, "right")
            count = end - start
            place = np.repeat(start - (np.cumsum(count) - count), count) + np.arange(count.sum())
            place = place[chunk.sub[place] == np.repeat(sub, count)]
            if chunk.end is not None:
                place = place[chunk.end[place] == NEVER]
            if len(place):
                chunk.forget(place)
        self._sweep()

    def put(self, table: pa.Table) -> None:
        """Hold rows as they stand in a delta: in any order, and in place of any that have the same key."""
        if not table.num_rows:
            return
        time, cause, sub = (table.column(name).to_numpy() for name in (TIME, CAUSE, SUB))
        chunk = self.chunk_of(table, time, cause, sub)
        last = (int(self.chunks[-1].cause[-1]), int(self.chunks[-1].sub[-1])) if self.chunks else None
        in_order = (cause[1:] > cause[:-1]) | ((cause[1:] == cause[:-1]) & (sub[1:] > sub[:-1]))
        if bool(in_order.all()) and (last is None or last < (int(cause[0]), int(sub[0]))):
            self.add(chunk)
            return
        everything = joined([*(c.since(self.floor) for c in self.chunks), chunk])
        self.chunks = [everything.take(newest(everything.cause, everything.sub))]

    def table(self) -> pa.Table:
        """All that is held, in order."""
        parts = [chunk.since(self.floor).table(self.schema) for chunk in self.chunks]
        return pa.concat_tables(parts).combine_chunks() if parts else self.schema.empty_table()


@dataclass
class Pool:
    """The rows of one side that a train's pairs are made of: places are counted over held chunks, then new rows."""

    held: list[RowChunk]
    new: RowChunk
    died: Int64s = field(default_factory=lambda: NOTHING)  # the places of rows that the train takes back, rising
    ends: Int64s = field(default_factory=lambda: NOTHING)  # and the cause of each
    heirs: Heirs = NO_HEIRS

    def __post_init__(self) -> None:
        self.base = np.cumsum([0, *(len(chunk) for chunk in self.held)])

    @property
    def before(self) -> int:
        """How many rows were held before the train."""
        return int(self.base[-1])

    def gather(self, places: Int64s) -> tuple[RowChunk, Int64s]:
        """A chunk with these rows in it, and where in it they are; no large held chunk is copied for a few rows."""
        before = self.before
        old = np.unique(places[places < before]) if before else NOTHING
        parts = self.held_rows(old)
        if not parts:
            return self.new, places - before
        moved = np.where(places < before, np.searchsorted(old, places), places - (before - len(old)))
        return joined([*parts, self.new]), moved

    def held_rows(self, places: Int64s) -> list[RowChunk]:
        """The held rows at these places, which rise."""
        return [chunk.take(places[some] - base) for chunk, some, base in self._by_chunk(places)]

    def _by_chunk(self, places: Int64s) -> Iterator[tuple[RowChunk, slice, int]]:
        """The held chunks that have any of these places, which rise: which they are, and where the chunk begins."""
        cuts = np.searchsorted(places, self.base).tolist()
        for chunk, base, low, high in zip(self.held, self.base.tolist(), cuts, cuts[1:], strict=False):
            if high > low:
                yield chunk, slice(low, high), base

    # -- what the train takes back

    def take_back(self, places: Int64s, ends: Int64s) -> None:
        order = np.argsort(places)
        self.died, self.ends = places[order], ends[order]

    @property
    def died_held(self) -> Int64s:
        return self.died[: np.searchsorted(self.died, self.before)]

    def mark(self) -> None:
        """Set the ends of the rows."""
        for chunk, some, base in self._by_chunk(self.died):
            chunk.set_end(self.died[some] - base, self.ends[some])
        many = len(self.died_held)
        if many < len(self.died):
            self.new.set_end(self.died[many:] - self.before, self.ends[many:])

    def forget(self) -> pa.Table | None:
        """Let the held rows go that the train took back: their keys, if there are any."""
        keys = []
        for chunk, some, base in self._by_chunk(self.died):
            places = self.died[some] - base
            chunk.forget(places)
            keys.append(pa.table({CAUSE: chunk.cause[places], SUB: chunk.sub[places]}))
        return pa.concat_tables(keys).combine_chunks() if keys else None

    def end_of(self, places: Int64s) -> Int64s:
        """The cause that takes the row at each place back in this train."""
        end = np.full(len(places), NEVER)
        at, found = places_among(self.died, places)
        end[found] = self.ends[at]
        return end
