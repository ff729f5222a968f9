"""What aggregates keep: group keys as numbers, and entries of groups in panes or windows, with their accumulators."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import Accumulator, AggregateCall, accumulator, seen
from borealis.kernels.columns import Columns, compact, concat, normal_floats, take, to_numpy, whole
from borealis.kernels.flow import Bounds, Flow, rank_within
from borealis.kernels.loaded_keys import LoadedKeys
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import TIME, TIMESTAMP, Int64s

GROUP = "group"
START, END = "window_start", "window_end"
GROUPS = TableSpec("groups", (GROUP,))
CODES_MOST = 1 << 40  # so that what comes behind still fits into a word
_NAN = object()  # NaN is one group, though no NaN equals another in Python


class Numbers:
    """Numbers from 0 up to a capacity, and values by number."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity

    @property
    def capacity(self) -> int:
        """One above the largest number in use."""
        return self._capacity

    def grown(self, values: Int64s, fill: int) -> Int64s:
        """Values by number, with room for all numbers in use."""
        lacking = self.capacity - len(values)
        return values if lacking <= 0 else np.append(values, np.full(max(lacking, len(values)), fill))


class Groups(Numbers):
    """Numbers for group keys, and the keys back from the numbers: the same key has the same number for as long as any
    window needs it. Numbers of dead groups are used again.

    A new key takes the least free number: two copies that run the same train must give out the same numbers, or one
    whose run was thrown away could not go on from what the other committed.
    """

    def __init__(self, types: list[pa.DataType]) -> None:
        self.types = types
        self._number: dict[Hashable, int] = {}
        self._key: list[Hashable | None] = []  # None where the number is free; a key is always a tuple
        self._free: list[int] = []  # a heap
        self._loaded = LoadedKeys()  # those that are not in the other two

    @property
    def capacity(self) -> int:
        return len(self._key)

    def encode(self, columns: list[pa.Array | pa.ChunkedArray], rows: int) -> tuple[Int64s, list[int]]:
        """The number of each row's key, and the numbers given out for the first time."""
        some: list[pa.Array] = []
        codes, many = np.zeros(rows, np.int64), min(rows, 1)
        if self.types:
            codes, some = _distinct([normal_floats(whole(c)) for c in columns])
            many = len(some[0])
        if not len(self._loaded):
            found, fresh = self._numbers_of(_keys(some, many))
            return found[codes], fresh
        found = self._loaded.numbers(some[0])
        others = np.flatnonzero(found < 0)
        found[others], fresh = self._numbers_of(_keys([some[0].take(pa.array(others))], len(others)))
        return found[codes], fresh

    def _numbers_of(self, keys: list[Hashable]) -> tuple[Int64s, list[int]]:
        """The numbers of these keys, and those of them that were given out for it."""
        found = list(map(self._number.get, keys))
        fresh: list[int] = []
        if None in found:
            fresh = self._name([key for key, number in zip(keys, found, strict=True) if number is None])
            found = list(map(self._number.get, keys))
        return np.array(found, np.int64), fresh

    def _name(self, keys: list[Hashable]) -> list[int]:
        """Numbers for new keys, the least first."""
        used = [heapq.heappop(self._free) for _ in range(min(len(keys), len(self._free)))]
        for number, key in zip(used, keys, strict=False):
            self._key[number] = key
        more = range(len(self._key), len(self._key) + len(keys) - len(used))
        self._key += keys[len(used) :]
        numbers = [*used, *more]
        self._number.update(zip(keys, numbers, strict=True))
        return numbers

    def put(self, given: Int64s, columns: list[pa.Array]) -> None:
        """Take over numbers that another copy gave out."""
        columns = [normal_floats(whole(c)) for c in columns]
        if not self._key and LoadedKeys.takes(columns):
            self._loaded.load(given, columns[0])
            self._key = [None] * len(self._loaded)
            self._free = np.flatnonzero(~self._loaded.has(np.arange(len(self._loaded)))).tolist()
            return
        self._loaded.give_up(given)
        numbers, keys = given.tolist(), _keys(columns, len(given))
        free = set(self._free)
        for number, key in zip(numbers, keys, strict=True):
            while len(self._key) <= number:
                free.add(len(self._key))
                self._key.append(None)
            free.discard(number)
            self._key[number] = key
            self._number[key] = number
        self._free = sorted(free)

    def cut(self, numbers: list[int]) -> None:
        """Forget groups; their numbers are free. Harmless for a number that is free already."""
        some = np.array(numbers, np.int64)
        loaded = some[self._loaded.has(some)]
        self._loaded.give_up(loaded)
        for number in loaded.tolist():
            heapq.heappush(self._free, number)
        for number in numbers:
            if number < len(self._key) and self._key[number] is not None:
                del self._number[self._key[number]]
                self._key[number] = None
                heapq.heappush(self._free, number)

    def keys(self, numbers: Int64s) -> list[pa.Array]:
        if len(numbers) > self.capacity:  # each key once
            return [column.take(pa.array(numbers)) for column in self.keys(np.arange(self.capacity))]
        loaded = self._loaded.has(numbers)
        others = self._columns([self._key[n] for n in numbers[~loaded].tolist()])
        if not loaded.any():
            return others
        both = pa.concat_arrays([self._loaded.keys(numbers[loaded], self.types[0]), others[0]])
        place = np.empty(len(numbers), np.int64)
        place[loaded] = np.arange(len(numbers) - len(others[0]))
        place[~loaded] = len(numbers) - len(others[0]) + np.arange(len(others[0]))
        return [both.take(pa.array(place))]

    def _columns(self, keys: Sequence[Any]) -> list[pa.Array]:
        """Keys as columns; null where a number is free."""
        free = (None,) * len(self.types)
        columns = zip(*(free if key is None else key for key in keys), strict=True) if keys else ([] for _ in free)
        return [
            pa.array([float("nan") if v is _NAN else v for v in column], t)
            for column, t in zip(columns, self.types, strict=True)
        ]

    def alive(self) -> Int64s:
        """All numbers in use, rising."""
        named = np.array([n for n, k in enumerate(self._key) if k is not None], np.int64)
        return np.sort(np.concatenate([named, self._loaded.alive()]))


def _distinct(columns: list[pa.Array]) -> tuple[Int64s, list[pa.Array]]:
    """For each row the number of its key, and the columns of all these keys."""
    codes: Int64s | None = None
    span = 1
    encoded = [c.dictionary_encode(null_encoding="encode") for c in columns]
    if len(encoded) == 1:
        only = encoded[0]
        return only.indices.to_numpy(), [only.dictionary]
    for one in encoded:
        here = one.indices.to_numpy().astype(np.int64)
        size = max(len(one.dictionary), 1)
        codes = here if codes is None else codes * size + here
        span *= size
        if span > 1 << 40:  # keep the next product within int64
            distinct, codes = np.unique(codes, return_inverse=True)
            span = len(distinct)
    assert codes is not None
    distinct, codes = compact(codes, span)
    first = np.empty(len(distinct), np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return codes, [c.take(pa.array(first)) for c in columns]


def _keys(columns: list[pa.Array], rows: int) -> list[Hashable]:
    if not columns:
        return [()] * rows
    return list(zip(*map(_values, columns), strict=True))


def _values(column: pa.Array) -> list[Hashable]:
    values = column.to_pylist()
    return [_NAN if v != v else v for v in values] if pa.types.is_floating(column.type) else values


class Grouped:
    """State: `groups` (number to key), and in `open` the entries that may change, in order of their `key`."""

    key: ClassVar[tuple[str, ...]]
    open: Columns
    accumulators: Sequence[Accumulator]

    def __init__(
        self,
        schema: pa.Schema,
        by: list[str],
        calls: list[AggregateCall],
        more: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self.by, self.calls, self.more = by, calls, more or {}
        self.accumulators = [accumulator(c, schema) for c in calls]
        self._state = [tuple(acc.start(0)) for acc in self.accumulators]  # the columns of each
        self.groups = Groups([schema.field(name).type for name in by])
        self.schema = pa.schema(
            [(name, schema.field(name).type) for name in by]
            + [(START, TIMESTAMP), (END, TIMESTAMP), *self.more.items()]
            + [(f"__a{i}", c.result) for i, c in enumerate(calls)]
        )

    # -- entries

    def _started(self, head: Columns) -> Columns:
        """Entries with accumulators that have seen nothing."""
        n = len(head[GROUP])
        return head | {f"{k}{i}": v for i, acc in enumerate(self.accumulators) for k, v in acc.start(n).items()}

    def _of_call(self, entries: Columns, i: int) -> Columns:
        """What the accumulator of one call has in these entries."""
        return {k: entries[f"{k}{i}"] for k in self._state[i]}

    def _added(self, entries: Columns, column: Callable[[str], pa.Array], slot: Int64s, time: Int64s) -> Columns:
        """Entries with rows folded into those at `slot`, in this order; `column` has the arguments of the calls."""
        for i, (call, acc) in enumerate(zip(self.calls, self.accumulators, strict=True)):
            rows = seen(acc, [column(name) for name in call.columns], slot, time, len(entries[GROUP]))
            folded = acc.fold(self._of_call(entries, i), rows)
            entries = entries | {f"{k}{i}": v for k, v in folded.items()}
        return entries

    def _find(self, *wanted: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Where these keys stand among the open entries, and whether they do."""
        if not len(self.open[GROUP]) or not len(wanted[0]):
            return np.zeros(len(wanted[0]), np.int64), np.zeros(len(wanted[0]), np.bool_)
        have = want = np.zeros(1, np.int64)  # one sortable code for both sides
        span = 1
        for name, values in zip(self.key, wanted, strict=True):
            mine = self.open[name]
            least = int(min(mine.min(), values.min()))
            many = int(max(mine.max(), values.max())) - least + 1
            if span * many < CODES_MOST:
                mine, values = mine - least, values - least
            else:  # any numbers: their ranks
                distinct = np.unique(np.concatenate([mine, values]))
                mine, values, many = np.searchsorted(distinct, mine), np.searchsorted(distinct, values), len(distinct)
            have, want, span = have * many + mine, want * many + values, span * many
        at = np.minimum(np.searchsorted(have, want), len(have) - 1)
        return at, have[at] == want

    def _replace(self, cut: Int64s, put: Columns) -> None:
        """Take out the open entries at these places and put others in."""
        keep = np.ones(len(self.open[GROUP]), np.bool_)
        keep[cut] = False
        both = concat([take(self.open, np.flatnonzero(keep)), put])
        self.open = take(both, np.lexsort(tuple(both[name] for name in reversed(self.key))))

    def _put(self, entries: Columns) -> None:
        """Put entries in, over those with the same key."""
        at, found = self._find(*(entries[name] for name in self.key))
        if found.all():  # no other keys than before: what is in order stays so
            index = np.arange(len(self.open[GROUP]))
            index[at] = len(index) + np.arange(len(at))
            self.open = take(concat([self.open, entries]), index)
        else:
            self._replace(at[found], entries)

    def _results(self, closed: Columns, keys: list[pa.Array], cause: Int64s, bounds: Bounds) -> Flow:
        """Closed windows as rows, with the keys of their groups."""
        return Flow(self.result_rows(closed, keys), closed[TIME], cause, rank_within(cause), bounds)

    def result_rows(self, closed: Columns, keys: list[pa.Array]) -> pa.Table:
        columns = dict(zip(self.by, keys, strict=True))
        columns |= {name: pa.array(closed[name]).view(TIMESTAMP) for name in (START, END)}
        columns |= {name: pa.array(closed[name]) for name in self.more}
        columns |= {f"__a{i}": acc.result(self._of_call(closed, i)) for i, acc in enumerate(self.accumulators)}
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    # -- groups

    def group_delta(self, fresh: list[int], dead: list[int]) -> Delta:
        gone = set(dead)
        born = [n for n in fresh if n not in gone]
        cut = sorted(gone.difference(fresh))
        if not born and not cut:
            return {}
        put = self._group_table(np.array(born, np.int64))
        return {GROUPS.name: Change(put, cut=pa.table({GROUP: pa.array(cut, pa.int64())}) if cut else None)}

    def _apply_groups(self, delta: Delta) -> list[int]:
        """Catch up with another copy's groups; those that were cut."""
        change = delta.get(GROUPS.name)
        if change is None:
            return []
        cut: list[int] = [] if change.cut is None else change.cut[GROUP].to_pylist()
        self.groups.cut(cut)
        self.groups.put(to_numpy(change.put[GROUP]), [whole(change.put[f"g{i}"]) for i in range(len(self.by))])
        return cut

    def _group_table(self, which: Int64s) -> pa.Table:
        keys = {f"g{i}": k for i, k in enumerate(self.groups.keys(which))}
        return pa.table({GROUP: pa.array(which)} | keys)


def inside_windows(flow: Flow, size: int, slide: int) -> Flow:
    """The rows that are in a window at all: where windows have gaps between them, not all are."""
    if slide <= size:
        return flow
    inside = np.flatnonzero(np.mod(flow.time, slide) < size)
    return flow if len(inside) == len(flow) else flow.take(inside)


def like(columns: Columns, table: pa.Table) -> Columns:
    """A table as columns that are NumPy or Arrow as these are."""
    return {k: to_numpy(table[k]) if isinstance(v, np.ndarray) else whole(table[k]) for k, v in columns.items()}
