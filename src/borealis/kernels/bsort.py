"""BSort: a heap for each group; when a tuple comes and the buffer is full, the least one leaves.

Values are compared only once, by one sort of the train's rows together with the held rows of their groups; the heaps
hold the ranks, which are unique integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heappushpop
from itertools import chain
from typing import ClassVar

import numpy as np
import pyarrow as pa

from borealis.kernels.columns import column_numbers, places_in, whole
from borealis.kernels.flow import NOTHING, Bounds, Flow, empty_flow, held_schema, rank_within
from borealis.kernels.groups import Groups
from borealis.kernels.sorting import ranks_of, stable_order, without
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, LAST_TIME, SUB, TIME, Int64s

CHUNKS_MOST = 32  # that held rows lie in: then they are copied into one
DEAD_LEAST = 1024  # rows that have left are swept out when they are so many, and more than those that are held


@dataclass(frozen=True)
class Moved:
    """What rows of a train do to buffers. A place is one among those held or, behind them, in the train."""

    left: Int64s  # the places of rows that leave, in order
    pusher: Int64s  # and the row of the train that makes each do so
    stays: Int64s  # rows of the train that are in a buffer now
    gone: Int64s  # places of held rows that are in none any more


class BSortKernel:
    """State: `held`, the rows in the buffers, keyed by their (cause, sub), with all columns of the input.

    Between two tuples a buffer has at most `buffer` - 1 rows: the next tuple fills it, and one leaves at once.
    """

    tables: ClassVar[tuple[TableSpec, ...]] = (TableSpec("held", (CAUSE, SUB), once=True),)

    def __init__(self, schema: pa.Schema, value: str, by: list[str], buffer: int, names: list[str]) -> None:
        self.value, self.by, self.room = value, by, buffer - 1
        self.schema = held_schema(schema)
        self.out = pa.schema([schema.field(name) for name in names])
        self.held: pa.Table
        self.groups: Groups
        self.places: dict[int, list[int]]  # of each group number: where in `held` its rows stand, as they came
        self._load(self.schema.empty_table())

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Put each row into its group's buffer. What leaves has the cause of the row that pushed it out, and a time not
        before that row's; at the end of the stream, of the boundary.
        """
        rows, time, cause, delta = self._settle(flow, self._push(flow, np.arange(len(flow)), {}))
        if not len(time):
            return empty_flow(self.out, flow.bounds), delta
        return Flow(rows.select(self.out.names), time, cause, rank_within(cause), flow.bounds), delta

    def _settle(self, flow: Flow, moved: Moved) -> tuple[pa.Table, Int64s, Int64s, Delta]:
        """Hold what stays: the rows that leave, as they were held, their times and causes, and what changed."""
        before = len(self.held)
        new = flow.held(self.schema)
        both = pa.concat_tables([self.held, new])
        rows = both.take(pa.array(moved.left))
        time, cause = np.maximum(column_numbers(rows, TIME), flow.time[moved.pusher]), flow.cause[moved.pusher]
        gone = moved.gone
        put = new.take(pa.array(moved.stays)).combine_chunks()
        self.held = pa.concat_tables([self.held, put])
        if _ends(flow.bounds):
            rest = self._alive()
            rest = rest[stable_order(ranks_of(self.held[self.value].take(pa.array(rest))))]
            last = self.held.take(pa.array(rest))
            rows = pa.concat_tables([rows, last])
            # none before the boundary that stood until the end of the stream
            stood = int(flow.bounds.time[-2]) if len(flow.bounds.time) > 1 else flow.bounds.standing
            time = np.concatenate([time, np.maximum(column_numbers(last, TIME), stood)])
            cause = np.concatenate([cause, np.full(len(rest), flow.bounds.cause[-1])])
            gone = np.sort(np.concatenate([gone, rest[rest < before]]))
            put = put.slice(0, 0)
        delta: Delta = {}
        if len(gone) or len(put):
            cut = self.held.select([CAUSE, SUB]).take(pa.array(gone)).combine_chunks() if len(gone) else None
            delta["held"] = Change(put, cut=cut)
        self._sweep(ended=_ends(flow.bounds))
        return rows, time, cause, delta

    def _push(self, flow: Flow, running: Int64s, takes: Mapping[int, int]) -> Moved:
        """Run these rows of the train through the buffers, in this order. Those in `takes` do not go in: each takes a
        row out, given by its place, unless that has left already; then it leaves itself.
        """
        if not len(running):
            return Moved(NOTHING, NOTHING, NOTHING, NOTHING)
        every, _ = self.groups.encode([flow.rows[name] for name in self.by], len(flow))
        group = every[running]
        by_group = np.argsort(group, kind="stable")
        groups, starts = np.unique(group[by_group], return_index=True)
        by_group = running[by_group]
        buffers = [self.places.get(g, []) for g in groups.tolist()]
        held = np.fromiter(chain.from_iterable(buffers), np.int64)
        values = [
            whole(self.held[self.value].take(pa.array(held))),
            whole(flow.rows[self.value].take(pa.array(by_group))),
        ]
        order = stable_order(ranks_of(pa.concat_arrays(values)))
        ranks = places_in(order)
        old, new = ranks[: len(held)].tolist(), ranks[len(held) :].tolist()
        base = len(self.held)
        places = np.concatenate([held, base + by_group])
        out = _ranks_taken(places, ranks, base, takes)  # by the rank of what takes
        left: list[int] = []
        heaps, pushers, gone = [], [], []
        at = 0
        for buffer, start, stop in zip(buffers, starts.tolist(), [*starts[1:].tolist(), len(new)], strict=True):
            mine = old[at : at + len(buffer)]
            at += len(buffer)
            if out and not out.keys().isdisjoint(new[start:stop]):
                leaves, pushed, heap = self._one_by_one(mine, new[start:stop], out)
                gone += [rank for rank in mine if rank not in heap]
                left += leaves
                pushers.append(by_group[start:stop][pushed])
                heaps.append(list(heap))
                continue
            full = min(start + self.room - len(buffer), stop)  # from here on, each row pushes one out
            heap = mine + new[start:full]
            heapify(heap)
            left += [heappushpop(heap, rank) for rank in new[full:stop]]
            pushers.append(by_group[full:stop])
            heaps.append(heap)
        pusher = np.concatenate(pushers)
        in_turn = np.argsort(pusher, kind="stable")
        place = places[order]  # of each rank
        leaving = place[np.array(left, np.int64)][in_turn]
        stay = place[np.fromiter(chain.from_iterable(heaps), np.int64)]
        stays = np.sort(stay[stay >= base]) - base
        # those that stay will stand behind all that are held
        stay = np.where(stay < base, stay, base + np.searchsorted(stays, stay - base))
        sizes = np.array([len(heap) for heap in heaps])
        self._put_places(groups, sizes, stay[np.lexsort((stay, np.repeat(np.arange(len(groups)), sizes)))])
        lost = np.concatenate([leaving[leaving < base], place[np.array(gone, np.int64)]])
        return Moved(leaving, pusher[in_turn], stays, np.unique(lost))

    def _one_by_one(
        self, buffer: list[int], ranks: list[int], out: Mapping[int, int]
    ) -> tuple[list[int], list[int], set[int]]:
        """Rows of one group, some of which take others out: the ranks that leave, by which rows, and that stay."""
        heap, inside = list(buffer), set(buffer)
        heapify(heap)
        left, pushed = [], []
        for i, rank in enumerate(ranks):
            if rank not in out:
                heappush(heap, rank)
                inside.add(rank)
                if len(inside) > self.room:
                    while (least := heappop(heap)) not in inside:
                        pass  # it was taken out
                    inside.remove(least)
                    left.append(least)
                    pushed.append(i)
            elif out[rank] in inside:
                inside.remove(out[rank])
            else:
                left.append(rank)
                pushed.append(i)
        return left, pushed, inside

    def _put_places(self, groups: Int64s, sizes: Int64s, places: Int64s) -> None:
        stops, every = np.cumsum(sizes), places.tolist()
        for g, start, stop in zip(groups.tolist(), (stops - sizes).tolist(), stops.tolist(), strict=True):
            self.places[g] = every[start:stop]

    # -- what is held

    def _alive(self) -> Int64s:
        """The places of all rows in the buffers, as they came."""
        return np.sort(np.fromiter(chain.from_iterable(self.places.values()), np.int64))

    def _sweep(self, *, ended: bool) -> None:
        if ended:
            self._load(self.schema.empty_table())
            return
        alive = sum(len(some) for some in self.places.values()) if len(self.held) > DEAD_LEAST else len(self.held)
        if len(self.held) - alive > max(DEAD_LEAST, alive):
            places = self._alive()
            self.held = self.held.take(pa.array(places)).combine_chunks()
            self.places = {g: np.searchsorted(places, some).tolist() for g, some in self.places.items()}
        elif self.held[CAUSE].num_chunks > CHUNKS_MOST:
            self.held = self.held.combine_chunks()

    def _load(self, table: pa.Table) -> None:
        """Hold just these rows."""
        self.held = table.take(
            pa.array(np.lexsort((column_numbers(table, SUB), column_numbers(table, CAUSE))))
        ).combine_chunks()
        self.groups = Groups([self.schema.field(name).type for name in self.by])
        group, _ = self.groups.encode([self.held[name] for name in self.by], len(self.held))
        self.places = {}
        groups, sizes = np.unique(group, return_counts=True)
        self._put_places(groups, sizes, np.argsort(group, kind="stable"))

    def apply(self, delta: Delta) -> None:
        change = delta.get("held")
        if change is None:
            return
        table = self.held.take(pa.array(self._alive()))
        for keys in (change.cut, change.put):
            if keys is not None and keys.num_rows:
                table = without(table, keys, (CAUSE, SUB))
        self._load(pa.concat_tables([table, change.put.cast(self.schema)]))

    def tables_now(self) -> dict[str, pa.Table]:
        return {"held": self.held.take(pa.array(self._alive())).combine_chunks()}


def make(step: Step) -> BSortKernel:
    o = step.options
    return BSortKernel(schema_of(o["schema"]), o["value"], o["by"], o["buffer"], schema_of(step.schema).names)


def _ranks_taken(places: Int64s, ranks: Int64s, base: int, takes: Mapping[int, int]) -> dict[int, int]:
    """The ranks of rows of the train that take others out, and those of the others; by places that these ranks have."""
    if not takes:
        return {}
    order = np.argsort(places)
    both = [base + np.array(list(takes)), np.array(list(takes.values()))]
    taker, taken = (ranks[order[np.searchsorted(places[order], some)]].tolist() for some in both)
    return dict(zip(taker, taken, strict=True))


def _ends(bounds: Bounds) -> bool:
    return bool(len(bounds.time)) and bounds.final == LAST_TIME
