"""Join: pairs of tuples of two streams that are near in time and equal in their keys (Hwang 5.3.5, algorithm 4).

Each side holds its recent rows in *chunks*: immutable, in order of (cause, sub), merged when a younger one has grown
to half the size of the older, so that there are O(log n) of them and a small train seldom touches a large one. Rows
are found by one sorted array per chunk, of `code * span + time`, where `code` is the key itself or some bits of its
hash, and `time` is counted from the chunk's first: the partners of a row are one slice of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels.columns import places_in_blocks
from borealis.kernels.flow import NOTHING, Flow, empty_flow, held_schema, merge_bounds, rank_within
from borealis.kernels.join_index import Index, is_text, pairs_in_order, words_of
from borealis.kernels.sorting import newest
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, LAST_TIME, SUB, TIME, Int64s

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")

CANDIDATES_AT_ONCE = 1 << 22  # pairs made before their keys are compared: bounds the memory that a bad hash costs
ROWS_PER_TAKE = 1 << 20  # output rows gathered into one Arrow chunk: a string chunk holds at most 2 GiB


# ---------------------------------------------------------------- finding partners


@dataclass(frozen=True)
class _Chunk:
    """Rows of one side in order of (cause, sub), none with a null key. Never changed, only replaced."""

    rows: pa.Table  # the held columns, without the three below
    time: Int64s
    cause: Int64s
    sub: Int64s
    words: list[Int64s]  # the key, as numbers

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
        return len(self) if floor <= self.first else len(self) - int(np.searchsorted(self._risen, floor))

    def take(self, index: Int64s) -> _Chunk:
        rows = self.rows.take(pa.array(index))
        return _Chunk(rows, self.time[index], self.cause[index], self.sub[index], [w[index] for w in self.words])

    def since(self, floor: int) -> _Chunk:
        """The rows with a time of at least `floor`."""
        if not len(self) or floor <= self.first:
            return self
        return self.take(np.flatnonzero(self.time >= floor))

    def table(self, schema: pa.Schema) -> pa.Table:
        """The chunk as the state log sees it."""
        head = [pa.array(self.cause), pa.array(self.sub), pa.array(self.time)]
        return pa.Table.from_arrays(head + self.rows.columns, schema=schema)


def _joined(chunks: list[_Chunk]) -> _Chunk:
    """One chunk of several that follow each other."""
    if len(chunks) == 1:
        return chunks[0]
    time, cause, sub = (np.concatenate([getattr(c, name) for c in chunks]) for name in ("time", "cause", "sub"))
    words = [np.concatenate(parts) for parts in zip(*(c.words for c in chunks), strict=True)]
    return _Chunk(pa.concat_tables([c.rows for c in chunks]).combine_chunks(), time, cause, sub, words)


def _candidates(index: Index, probe: _Chunk, early: Int64s, late: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Pairs (place in `probe`, place in the indexed chunk) within the window and of equal code, some at a time."""
    who, start, end = index.slices(probe.words, early, late)
    found = end > start
    if not found.all():
        who, start, end = who[found], start[found], end[found]
    count = end - start
    for some, place in places_in_blocks(start, count, CANDIDATES_AT_ONCE):
        yield np.repeat(who[some], count[some]), index.places[place]


# ---------------------------------------------------------------- one side's rows


class _Side:
    """What one input has and holds. Held are only the columns that keys or output need, in the order of the input."""

    def __init__(self, name: str, schema: pa.Schema, keys: list[str], wanted: list[str]) -> None:
        self.name = name
        self.keys = keys
        self.text_keys = [is_text(schema.field(key).type) for key in keys]
        self.user = pa.schema([field for field in schema if field.name in {*keys, *wanted}])
        self.schema = held_schema(self.user)
        self.chunks: list[_Chunk] = []
        self.floor = FIRST_TIME

    def chunk_of(self, rows: pa.Table, time: Int64s, cause: Int64s, sub: Int64s) -> _Chunk:
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
        return _Chunk(held, time, cause, sub, words)

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

    def add(self, chunk: _Chunk) -> None:
        """Hold these rows, which come after all that are held."""
        if not len(chunk):
            return
        run = [chunk]
        size = len(chunk)
        while self.chunks and len(self.chunks[-1]) <= 2 * size:
            size += len(self.chunks[-1])
            run.append(self.chunks.pop())
        if len(run) > 1:
            chunk = _joined([c.since(self.floor) for c in reversed(run)])
        self.chunks.append(chunk)

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
        everything = _joined([*(c.since(self.floor) for c in self.chunks), chunk])
        self.chunks = [everything.take(newest(everything.cause, everything.sub))]

    def table(self) -> pa.Table:
        """All that is held, in order."""
        parts = [chunk.since(self.floor).table(self.schema) for chunk in self.chunks]
        return pa.concat_tables(parts).combine_chunks() if parts else self.schema.empty_table()


@dataclass
class _Pool:
    """The rows of one side that a train's pairs are made of: places are counted over held chunks, then new rows."""

    held: list[_Chunk]
    new: _Chunk

    def __post_init__(self) -> None:
        self.base = np.cumsum([0, *(len(chunk) for chunk in self.held)])

    def gather(self, places: Int64s) -> tuple[_Chunk, Int64s]:
        """A chunk with these rows in it, and where in it they are; no large held chunk is copied for a few rows."""
        before = int(self.base[-1])
        old = np.unique(places[places < before]) if before else NOTHING
        parts = []
        for chunk, base, end in zip(self.held, self.base, self.base[1:], strict=False):
            low, high = np.searchsorted(old, (base, end))
            if high > low:
                parts.append(chunk.take(old[low:high] - base))
        if not parts:
            return self.new, places - before
        moved = np.where(places < before, np.searchsorted(old, places), places - (before - len(old)))
        return _joined([*parts, self.new]), moved


# ---------------------------------------------------------------- the kernel


class JoinKernel:
    """Pairs of tuples of two streams closer than `within` in time, whose keys are equal. Keeps each side's recent rows.

    Keys are compared as SQL's `=` does: null matches nothing, NaN matches NaN, -0.0 matches 0.0. Without keys every
    pair within the window matches. A tuple's time must be before LAST_TIME, the boundary of a stream that has ended.

    The state has, per side, `_cause`, `_sub`, `_time`, and those of the input's columns that are keys or output, in
    the input's order: it depends on the arguments alone.
    """

    tables = (TableSpec("left", (CAUSE, SUB), floor=TIME), TableSpec("right", (CAUSE, SUB), floor=TIME))

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        keys: list[tuple[str, str]],
        within_us: int,
        columns: list[tuple[str, str, str]],
    ) -> None:
        schemas = (left, right)
        self._sides = [
            _Side(name, schemas[i], [pair[i] for pair in keys], [c for side, c, _ in columns if side == name])
            for i, name in enumerate(SIDES)
        ]
        self._columns = [(SIDES.index(side), column) for side, column, _ in columns]
        fields = [schemas[SIDES.index(side)].field(column).with_name(name) for side, column, name in columns]
        self.schema = pa.schema(fields)  # of the output's rows
        self._within = within_us
        self._reach = min(within_us - 1, LAST_TIME)  # the largest difference that matches

    def step(self, left: Flow, right: Flow) -> tuple[Flow, Delta]:
        """Run one train: the pairs of which at least one is new, and what changed in the state.

        Relies on the boundaries: rows that come later than a boundary must not be before it.
        """
        new = [s.chunk_of(f.rows, f.time, f.cause, f.sub) for s, f in zip(self._sides, (left, right), strict=True)]
        out = self._output(new, left, right)
        delta: Delta = {}
        for side, chunk, other in zip(self._sides, new, (right, left), strict=True):
            dropped = side.raise_floor(self._floor(other.bounds.final))
            ended = side.floor == LAST_TIME
            fresh = chunk.take(NOTHING) if ended else chunk.since(side.floor)
            side.add(fresh)
            if dropped or len(fresh):
                delta[side.name] = Change(fresh.table(side.schema), floor=side.floor if dropped else None)
        return out, delta

    def apply(self, delta: Delta) -> None:
        """Catch up with a train that another process ran, or load: put everything into an empty kernel. Deltas must
        come in the order of their trains."""
        for side in self._sides:
            change = delta.get(side.name)
            if change is None:
                continue
            if change.floor is not None:
                side.raise_floor(change.floor)
            side.put(change.put)

    def tables_now(self) -> dict[str, pa.Table]:
        """The whole state, sorted by key. Copies all of it."""
        return {side.name: side.table() for side in self._sides}

    def _floor(self, boundary: int) -> int:
        """The least time of a row that can still match a row of the other input, which has promised `boundary`."""
        if boundary == LAST_TIME:
            return LAST_TIME
        return max(FIRST_TIME, boundary - self._within + 1)

    def _output(self, new: list[_Chunk], left: Flow, right: Flow) -> Flow:
        pools = [_Pool(side.chunks, chunk) for side, chunk in zip(self._sides, new, strict=True)]
        found = list(self._pairs(pools))
        bounds = merge_bounds([left.bounds, right.bounds])
        if not found:
            return empty_flow(self.schema, bounds)
        cause, l_place, r_place = pairs_in_order(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
        sources = [pool.gather(places) for pool, places in zip(pools, (l_place, r_place), strict=True)]
        time = np.maximum(*(chunk.time[places] for chunk, places in sources))
        return Flow(self._rows(sources, len(time)), time, cause, rank_within(cause), bounds)

    def _rows(self, sources: list[tuple[_Chunk, Int64s]], n: int) -> pa.Table:
        parts = []
        for start in range(0, n, ROWS_PER_TAKE):
            index = [pa.array(places[start : start + ROWS_PER_TAKE]) for _, places in sources]
            taken = [sources[i][0].rows.column(name).take(index[i]) for i, name in self._columns]
            parts.append(pa.Table.from_arrays(taken, schema=self.schema) if taken else _no_columns(len(index[0])))
        return pa.concat_tables(parts)

    def _pairs(self, pools: list[_Pool]) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """(cause, left place, right place) of each pair of which at least one is new, in no order."""
        new = [pool.new for pool in pools]
        windows = [self._window(chunk.time) for chunk in new]
        for probing in (LEFT, RIGHT):
            other = pools[1 - probing]
            if not len(new[probing]):
                continue
            for chunk, base in zip(other.held, other.base.tolist(), strict=False):
                yield from self._matches(pools, probing, windows[probing], chunk, base)
        if len(new[LEFT]) and len(new[RIGHT]):
            probing = LEFT if len(new[LEFT]) >= len(new[RIGHT]) else RIGHT  # the index goes to the smaller
            other = pools[1 - probing]
            yield from self._matches(pools, probing, windows[probing], other.new, int(other.base[-1]))

    def _window(self, time: Int64s) -> tuple[Int64s, Int64s]:
        """The first and the last time that match, stopping at the ends of time."""
        early = np.maximum(time, FIRST_TIME + self._reach) - self._reach
        return early, np.minimum(time, LAST_TIME - self._reach) + self._reach

    def _matches(
        self, pools: list[_Pool], probing: int, window: tuple[Int64s, Int64s], chunk: _Chunk, base: int
    ) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """The pairs of the probing side's new rows with a chunk of the other side."""
        probe = pools[probing].new
        early, late = window
        if probe.last + self._reach < chunk.first or probe.first - self._reach > chunk.last:
            return
        own_base = int(pools[probing].base[-1])
        for at, place in _candidates(chunk.index, probe, early, late):
            if not chunk.index.sure:
                at, place = _equal_words(probe, at, chunk, place)
            at, place = self._equal_text(probe, probing, at, chunk, place)
            if len(at):
                cause = np.maximum(probe.cause[at], chunk.cause[place])
                places = (at + own_base, place + base)
                yield cause, places[probing], places[1 - probing]

    def _equal_text(
        self, probe: _Chunk, probing: int, at: Int64s, chunk: _Chunk, place: Int64s
    ) -> tuple[Int64s, Int64s]:
        """The pairs whose strings are equal and not only their hashes."""
        own, other = self._sides[probing], self._sides[1 - probing]
        for own_key, other_key, text in zip(own.keys, other.keys, own.text_keys, strict=True):
            if text and len(at):
                texts = probe.rows.column(own_key).take(pa.array(at))
                same = pc.equal(texts, chunk.rows.column(other_key).take(pa.array(place))).to_numpy()
                if not same.all():
                    at, place = at[same], place[same]
        return at, place


def _equal_words(probe: _Chunk, at: Int64s, chunk: _Chunk, place: Int64s) -> tuple[Int64s, Int64s]:
    """The pairs whose words are equal and not only some bits of their hash."""
    for own, other in zip(probe.words, chunk.words, strict=True):
        same = own[at] == other[place]
        if not same.all():
            at, place = at[same], place[same]
    return at, place


def _no_columns(n: int) -> pa.Table:
    return pa.table({"_": pa.nulls(n)}).select([])


def make(step: Step) -> JoinKernel:
    o = step.options
    return JoinKernel(schema_of(o["left"]), schema_of(o["right"]), o["keys"], o["within"], o["columns"])
