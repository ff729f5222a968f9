"""Join: pairs of tuples of two streams that are near in time and equal in their keys (Hwang 5.3.5, algorithm 4).

Each side holds its recent rows in *chunks*: immutable, in order of (cause, sub), merged when a younger one has grown
to half the size of the older, so that there are O(log n) of them and a small train seldom touches a large one. Rows
are found by one sorted array per chunk, of `code * span + time`, where `code` is the key itself or some bits of its
hash, and `time` is counted from the chunk's first: the partners of a row are one slice of it.

Where an input carries revisions, a row lives from its own cause to the cause of what takes it back, and a result lives
while both of its rows do: it is emitted at the later of their causes, and taken back at the earlier of their ends.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels.columns import places_in_blocks
from borealis.kernels.flow import NOTHING, Bounds, Flow, behind, empty_flow, merge_bounds, rank_within
from borealis.kernels.join_changes import NEVER, results_in_order
from borealis.kernels.join_index import Index, pairs_in_order
from borealis.kernels.join_rows import Pool, RowChunk, Side, joined
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, SUB, TIME, Int8s, Int64s, Kind

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")

CANDIDATES_AT_ONCE = 1 << 22  # pairs made before their keys are compared: bounds the memory that a bad hash costs
ROWS_PER_TAKE = 1 << 20  # output rows gathered into one Arrow chunk: a string chunk holds at most 2 GiB


def _candidates(index: Index, probe: RowChunk, early: Int64s, late: Int64s) -> Iterator[tuple[Int64s, Int64s]]:
    """Pairs (place in `probe`, place in the indexed chunk) within the window and of equal code, some at a time."""
    who, start, end = index.slices(probe.words, early, late)
    found = end > start
    if not found.all():
        who, start, end = who[found], start[found], end[found]
    count = end - start
    for some, place in places_in_blocks(start, count, CANDIDATES_AT_ONCE):
        yield np.repeat(who[some], count[some]), index.places[place]


class JoinKernel:
    """Pairs of tuples of two streams closer than `within` in time, whose keys are equal. Keeps each side's recent rows.

    Keys are compared as SQL's `=` does: null matches nothing, NaN matches NaN, -0.0 matches 0.0. Without keys every
    pair within the window matches. A tuple's time must be before LAST_TIME, the boundary of a stream that has ended.

    The state has, per side, `_cause`, `_sub`, `_time`, and those of the input's columns that are keys or output, in
    the input's order: it depends on the arguments alone.

    An input whose last column is `_kind` carries revisions, and then so does the output. Its rows may lie behind its
    boundary by less than `history`, so that both sides are held for so long.
    """

    tables = (TableSpec("left", (CAUSE, SUB), floor=TIME), TableSpec("right", (CAUSE, SUB), floor=TIME))

    def __init__(
        self,
        left: pa.Schema,
        right: pa.Schema,
        keys: list[tuple[str, str]],
        within_us: int,
        columns: list[tuple[str, str, str]],
        history_us: int = 0,
    ) -> None:
        schemas = (left, right)
        self._sides = [
            Side(name, schemas[i], [pair[i] for pair in keys], [c for side, c, _ in columns if side == name])
            for i, name in enumerate(SIDES)
        ]
        self._columns = [(SIDES.index(side), column) for side, column, _ in columns]
        fields = [schemas[SIDES.index(side)].field(column).with_name(name) for side, column, name in columns]
        self._plain = pa.schema(fields)
        kinds = [schema.field(KIND) for schema in schemas if KIND in schema.names]
        self._signed = bool(kinds)
        self.schema = self._plain.append(kinds[0]) if kinds else self._plain  # of the output's rows
        self._within = within_us
        self._history = [history_us if side.signed else 0 for side in self._sides]
        self._reach = min(within_us - 1, LAST_TIME)  # the largest difference that matches

    def step(self, left: Flow, right: Flow) -> tuple[Flow, Delta]:
        """Run one train: the pairs of which at least one is new, and what changed in the state.

        Relies on the boundaries: rows that come later than a boundary must not be before it.
        """
        pools = [side.pool_of(flow) for side, flow in zip(self._sides, (left, right), strict=True)]
        bounds = merge_bounds([left.bounds, right.bounds])
        out = self._changes(pools, bounds) if self._signed else self._output(pools, bounds)
        promised = [left.bounds.final, right.bounds.final]
        delta: Delta = {}
        for which, (side, pool) in enumerate(zip(self._sides, pools, strict=True)):
            cut = side.settle(pool)
            dropped = side.raise_floor(self._floor(which, promised))
            ended = side.floor == LAST_TIME
            fresh = pool.new.take(NOTHING) if ended else pool.new.since(side.floor)
            side.add(fresh)
            if dropped or len(fresh) or cut is not None:
                delta[side.name] = Change(fresh.table(side.schema), cut, side.floor if dropped else None)
        return out, delta

    def apply(self, delta: Delta) -> None:
        """Catch up with a train that another process ran, or load: put everything into an empty kernel. Deltas must
        come in the order of their trains."""
        for side in self._sides:
            change = delta.get(side.name)
            if change is not None:
                side.apply(change)

    def tables_now(self) -> dict[str, pa.Table]:
        """The whole state, sorted by key. Copies all of it."""
        return {side.name: side.table() for side in self._sides}

    def _floor(self, which: int, promised: list[int]) -> int:
        """The least time of a row of this side that can still match a row of the other, or be taken back."""
        floor = behind(promised[1 - which], self._history[1 - which] + self._within - 1)
        if self._sides[which].signed:
            floor = min(floor, behind(promised[which], self._history[which]))
        return floor

    def _output(self, pools: list[Pool], bounds: Bounds) -> Flow:
        found = _in_one(self._pairs(pools))
        if not len(found[0]):
            return empty_flow(self.schema, bounds)
        cause, l_place, r_place = pairs_in_order(*found)
        sources = [pool.gather(places) for pool, places in zip(pools, (l_place, r_place), strict=True)]
        time = np.maximum(*(chunk.time[places] for chunk, places in sources))
        return Flow(self._rows(sources, len(time)), time, cause, rank_within(cause), bounds)

    def _changes(self, pools: list[Pool], bounds: Bounds) -> Flow:
        """The results that come and those that go, each with its kind."""
        if not any(len(pool.died) for pool in pools):
            out = self._output(pools, bounds)
            kind = np.full(len(out), Kind.INSERTION, np.int8)
            return out.with_rows(self._with_kind(out.rows, kind)) if len(out) else out
        for pool in pools:
            pool.mark()
        come = _in_one(self._pairs(pools))
        left, right = pools
        found = results_in_order(come, _in_one(self._ending(pools, come)), left.heirs, right.heirs)
        sources = [left.gather(found.left), right.gather(found.right)]
        time = np.maximum(*(chunk.time[places] for chunk, places in sources))
        kind = np.where(found.comes, Kind.INSERTION, Kind.DELETION).astype(np.int8)
        kind[found.pairs], kind[found.pairs + 1] = Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER
        cause = found.cause
        equal = found.pairs[~found.shown & (time[found.pairs] == time[found.pairs + 1])]
        if len(equal):
            stays = np.delete(np.arange(len(time)), np.concatenate([equal, equal + 1]))
            time, kind, cause = time[stays], kind[stays], cause[stays]
            sources = [(chunk, places[stays]) for chunk, places in sources]
        if not len(time):
            return empty_flow(self.schema, bounds)
        rows = self._with_kind(self._rows(sources, len(time)), kind)
        return Flow(rows, time, cause, rank_within(cause), bounds)

    def _with_kind(self, rows: pa.Table, kind: Int8s) -> pa.Table:
        return pa.Table.from_arrays([*rows.columns, pa.array(kind)], schema=self.schema)

    def _ending(
        self, pools: list[Pool], come: tuple[Int64s, Int64s, Int64s]
    ) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """(cause, left place, right place) of each pair that ends in this train, also if it came in it."""
        left, right = pools
        yield _ended(pools, come[1], come[2])
        for probing, own, other in ((LEFT, left, right), (RIGHT, right, left)):
            died = own.died_held
            if not len(died):
                continue
            probe = joined(own.held_rows(died))
            window = self._window(probe.time)
            for chunk, base in zip(other.held, other.base.tolist(), strict=False):
                for _, at, place in self._matches(probing, probe, window, chunk):
                    places = (died[at], place + base)
                    if probing == RIGHT:  # those of two rows that both end are found already
                        alone = left.end_of(places[1]) == NEVER
                        places = (places[0][alone], places[1][alone])
                    yield _ended(pools, places[probing], places[1 - probing])

    def _rows(self, sources: list[tuple[RowChunk, Int64s]], n: int) -> pa.Table:
        parts = []
        for start in range(0, n, ROWS_PER_TAKE):
            index = [pa.array(places[start : start + ROWS_PER_TAKE]) for _, places in sources]
            taken = [sources[i][0].rows.column(name).take(index[i]) for i, name in self._columns]
            parts.append(pa.Table.from_arrays(taken, schema=self._plain) if taken else _no_columns(len(index[0])))
        return pa.concat_tables(parts)

    def _pairs(self, pools: list[Pool]) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """(cause, left place, right place) of each pair of which at least one is new, in no order."""
        new = [pool.new for pool in pools]
        windows = [self._window(chunk.time) for chunk in new]
        for probing in (LEFT, RIGHT):
            other = pools[1 - probing]
            if not len(new[probing]):
                continue
            for chunk, base in zip(other.held, other.base.tolist(), strict=False):
                yield from self._of_new(pools, probing, windows[probing], chunk, base)
        if len(new[LEFT]) and len(new[RIGHT]):
            probing = LEFT if len(new[LEFT]) >= len(new[RIGHT]) else RIGHT  # the index goes to the smaller
            other = pools[1 - probing]
            yield from self._of_new(pools, probing, windows[probing], other.new, other.before)

    def _of_new(
        self, pools: list[Pool], probing: int, window: tuple[Int64s, Int64s], chunk: RowChunk, base: int
    ) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """The pairs of the probing side's new rows with a chunk of the other side."""
        own = pools[probing]
        for cause, at, place in self._matches(probing, own.new, window, chunk):
            places = (at + own.before, place + base)
            yield cause, places[probing], places[1 - probing]

    def _window(self, time: Int64s) -> tuple[Int64s, Int64s]:
        """The first and the last time that match, stopping at the ends of time."""
        early = np.maximum(time, FIRST_TIME + self._reach) - self._reach
        return early, np.minimum(time, LAST_TIME - self._reach) + self._reach

    def _matches(
        self, probing: int, probe: RowChunk, window: tuple[Int64s, Int64s], chunk: RowChunk
    ) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
        """(cause, place in `probe`, place in `chunk`) of the pairs of two rows, of which none ended before the other
        began."""
        early, late = window
        if probe.last + self._reach < chunk.first or probe.first - self._reach > chunk.last:
            return
        for at, place in _candidates(chunk.index, probe, early, late):
            if not chunk.index.sure:
                at, place = _equal_words(probe, at, chunk, place)
            at, place = self._equal_text(probe, probing, at, chunk, place)
            cause = np.maximum(probe.cause[at], chunk.cause[place])
            if probe.end is not None:
                lives = cause < probe.end[at]
                cause, at, place = cause[lives], at[lives], place[lives]
            if chunk.end is not None:
                lives = cause < chunk.end[place]
                cause, at, place = cause[lives], at[lives], place[lives]
            if len(at):
                yield cause, at, place

    def _equal_text(
        self, probe: RowChunk, probing: int, at: Int64s, chunk: RowChunk, place: Int64s
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


def _equal_words(probe: RowChunk, at: Int64s, chunk: RowChunk, place: Int64s) -> tuple[Int64s, Int64s]:
    """The pairs whose words are equal and not only some bits of their hash."""
    for own, other in zip(probe.words, chunk.words, strict=True):
        same = own[at] == other[place]
        if not same.all():
            at, place = at[same], place[same]
    return at, place


def _ended(pools: list[Pool], l_place: Int64s, r_place: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Of these pairs those that end in this train, each behind the cause that ends it."""
    end = np.minimum(pools[LEFT].end_of(l_place), pools[RIGHT].end_of(r_place))
    ended = end < NEVER
    return end[ended], l_place[ended], r_place[ended]


def _in_one(parts: Iterator[tuple[Int64s, Int64s, Int64s]]) -> tuple[Int64s, Int64s, Int64s]:
    found = list(parts)
    if not found:
        return NOTHING, NOTHING, NOTHING
    cause, l_place, r_place = (np.concatenate(some) for some in zip(*found, strict=True))
    return cause, l_place, r_place


def _no_columns(n: int) -> pa.Table:
    return pa.table({"_": pa.nulls(n)}).select([])


def make(step: Step) -> JoinKernel:
    o = step.options
    schemas = schema_of(o["left"]), schema_of(o["right"])
    return JoinKernel(*schemas, o["keys"], o["within"], o["columns"], o.get("history", 0))
