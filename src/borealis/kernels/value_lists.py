"""Aggregate functions that need every value, or every distinct one: a state row has them in a list.

A train rewrites the lists that it adds to, in memory and in the delta. So these cost, for each train, what the panes or
windows hold that it touches; all other accumulators cost a few words for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.errors import TrainError
from borealis.kernels.columns import Columns, normal_floats, whole
from borealis.kernels.folding import CallRows
from borealis.kernels.sorting import ranks_of, stable_order
from borealis.tuples import Int64s

VALUES_MAX = 2**31 - 1  # that one column of lists can have


class Collected:
    """collect_list: all values, in the order of `first` and `last`."""

    def __init__(self, of: pa.DataType, result: pa.DataType) -> None:
        self.of, self.type = of, result

    def start(self, n: int) -> Columns:
        return {"v": _no_lists(n, self.of), "t": _no_lists(n, pa.int64())}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        new = {"v": whole(rows.values), "t": pa.array(rows.time)}
        return {name: _appended(stored[name], values, rows.slot) for name, values in new.items()}

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        return {name: _joined(lists, slot, slots) for name, lists in panes.items()}

    def result(self, stored: Columns) -> pa.Array:
        values, lengths = _flat(stored["v"])
        time = _flat(stored["t"])[0].to_numpy()
        owner = np.repeat(np.arange(len(lengths)), lengths)
        if np.any((time[1:] < time[:-1]) & (owner[1:] == owner[:-1])):  # else they came in order
            values = values.take(pa.array(np.lexsort((time, owner))))
        return _lists(values, lengths, self.type)


class Percentile(Collected):
    """percentile and median: a point on the line between the two values that are nearest in rank."""

    def __init__(self, percentages: Sequence[float], result: pa.DataType) -> None:
        self.percentages, self.type = percentages, result

    def start(self, n: int) -> Columns:
        return {"v": _no_lists(n, pa.float64())}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        return {"v": _appended(stored["v"], whole(rows.values).cast(pa.float64(), safe=False), rows.slot)}

    def result(self, stored: Columns) -> pa.Array:
        flat, lengths = _flat(stored["v"])
        values = flat.to_numpy()
        start = np.cumsum(lengths) - lengths
        ranked = values[np.lexsort((values, np.repeat(np.arange(len(lengths)), lengths)))]
        some = np.flatnonzero(lengths)
        columns = []
        for percentage in self.percentages:
            place = (lengths[some] - 1) * percentage
            below, above = np.floor(place), np.ceil(place)
            low, high = (ranked[start[some] + at.astype(np.int64)] for at in (below, above))
            with np.errstate(all="ignore"):
                between = (above - place) * low + (place - below) * high
            columns.append(np.where((below == above) | (low == high), low, between))
        if not pa.types.is_list(self.type):
            out = np.zeros(len(lengths))
            out[some] = columns[0]
            return pa.array(out, mask=lengths == 0)
        each = np.where(lengths > 0, len(columns), 0)
        points = pa.array(np.column_stack(columns).ravel()) if len(some) else pa.array([], pa.float64())
        lists = _lists(points, each, self.type)
        return pc.if_else(pa.array(lengths > 0), lists, pa.scalar(None, self.type))


class Tally:
    """count(DISTINCT ...), collect_set and mode: each distinct value once, the least first, and how often it came.

    Distinct is what SQL groups apart: NaN is one value, and so are both zeros.
    """

    def __init__(self, function: str, of: Sequence[pa.DataType], result: pa.DataType) -> None:
        self.function, self.type = function, result
        self.of = of[0] if len(of) == 1 else pa.struct([(f"f{i}", kind) for i, kind in enumerate(of)])

    def start(self, n: int) -> Columns:
        counts = {"n": _no_lists(n, pa.int64())} if self.function == "mode" else {}
        return {"v": _no_lists(n, self.of)} | counts

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        values = normal_floats(whole(rows.values))
        if rows.others:
            values = pa.StructArray.from_arrays([values, *map(whole, rows.others)], fields=list(self.of))
        return self._add(stored, values, rows.slot, np.ones(len(rows.slot), np.int64))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        values, lengths = _flat(panes["v"])
        counts = _flat(panes["n"])[0].to_numpy() if "n" in panes else lengths
        return self._add(self.start(slots), values, np.repeat(slot, lengths), counts)

    def _add(self, stored: Columns, values: pa.Array, slot: Int64s, counts: Int64s) -> Columns:
        old, lengths = _flat(stored["v"])
        every = pa.concat_arrays([old, values])
        owner = np.concatenate([np.repeat(np.arange(len(lengths)), lengths), slot])
        rank = ranks_of(every)
        many = int(rank.max(initial=0)) + 1
        code, first, place = np.unique(owner * many + rank, return_index=True, return_inverse=True)
        values = _lists(every.take(pa.array(first)), np.bincount(code // many, minlength=len(lengths)))
        if "n" not in stored:
            return {"v": values}
        times = np.zeros(len(code), np.int64)
        np.add.at(times, place, np.concatenate([_flat(stored["n"])[0].to_numpy(), counts]))
        return {"v": values, "n": pa.ListArray.from_arrays(values.offsets, pa.array(times))}

    def result(self, stored: Columns) -> pa.Array:
        values, lengths = _flat(stored["v"])
        if self.function == "count_distinct":
            return pa.array(lengths)
        if self.function == "collect_set":
            return _lists(values, lengths, self.type)
        times = _flat(stored["n"])[0].to_numpy()
        order = np.lexsort((-times, np.repeat(np.arange(len(lengths)), lengths)))  # stable: of several the least
        some = np.flatnonzero(lengths)
        best = np.zeros(len(lengths), np.int64)
        best[some] = order[(np.cumsum(lengths) - lengths)[some]]
        return values.take(pa.array(best, mask=lengths == 0))


def _no_lists(n: int, of: pa.DataType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.nulls(0, of))


def _lists(values: pa.Array, lengths: Int64s, kind: pa.DataType | None = None) -> pa.ListArray:
    """So many of the values for each list, one after the other."""
    ends = np.cumsum(lengths)
    if len(ends) and ends[-1] > VALUES_MAX:
        hint = "smaller windows, fewer of them in one train, or a function that keeps no values"
        raise TrainError(f"an aggregate keeps {ends[-1]} values, more than {VALUES_MAX}", hint=hint)
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, **({} if kind is None else {"type": kind}))


def _flat(lists: pa.ListArray) -> tuple[pa.Array, Int64s]:
    """All values, one list after the other, and how many of them each has."""
    return lists.flatten(), pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)


def _appended(stored: pa.ListArray, values: pa.Array, slot: Int64s) -> pa.ListArray:
    """Each list with the values of its slot behind its own."""
    old, lengths = _flat(stored)
    order = stable_order(np.concatenate([np.repeat(np.arange(len(lengths)), lengths), slot]))
    every = pa.concat_arrays([old, values])
    return _lists(every.take(pa.array(order)), lengths + np.bincount(slot, minlength=len(lengths)))


def _joined(panes: pa.ListArray, slot: Int64s, slots: int) -> pa.ListArray:
    values, lengths = _flat(panes)
    return _appended(_no_lists(slots, values.type), values, np.repeat(slot, lengths))
