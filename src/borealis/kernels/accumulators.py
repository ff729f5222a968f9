"""Accumulators of the aggregate functions: folded row by row in input order, then pane by pane in time order.

Cut-invariance hangs on the fold: a row is added to what is stored, in input order, never to a sum of its batch.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.errors import DiagramError, TrainError
from borealis.kernels import value_lists
from borealis.kernels.columns import Column, Columns, decimal_words, to_numpy, whole
from borealis.kernels.folding import (
    CallRows,
    add_counts,
    add_floats,
    add_ints,
    negative_ints,
    running_counts,
    running_ints,
    sum_counts,
)
from borealis.kernels.moments import Moments
from borealis.kernels.sorting import ranks_of
from borealis.kernels.step import Step, schema_of
from borealis.tuples import Int64s


@dataclass(frozen=True)
class AggregateCall:
    """An aggregate function over columns (None for `count(*)`), and the Spark type of its result."""

    function: str
    column: str | None
    result: pa.DataType
    others: tuple[str, ...] = ()  # arguments after the first
    parameters: tuple[float, ...] = ()  # constants: what `percentile` is asked for

    @property
    def columns(self) -> list[str]:
        return [] if self.column is None else [self.column, *self.others]


def calls_of(step: Step) -> list[AggregateCall]:
    """The calls of a step, which has them as (function, columns, parameters)."""
    result = schema_of(step.schema)
    return [
        AggregateCall(
            f, columns[0] if columns else None, result.field(f"__a{i}").type, tuple(columns[1:]), tuple(parameters)
        )
        for i, (f, columns, parameters) in enumerate(step.options["calls"])
    ]


class Accumulator(Protocol):
    """One aggregate function. `start` names its state columns; all methods are pure on them."""

    def start(self, n: int) -> Columns: ...

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        """Add rows, which come in input order."""

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        """Add panes, which come in time order within each slot."""

    def result(self, stored: Columns) -> pa.Array: ...


class Undoable(Accumulator, Protocol):
    """One whose values can be taken off again, without a trace."""

    def negative(self, stored: Columns) -> Columns:
        """What takes these off, when it is combined with others."""

    def running(self, stored: Columns, slot: Int64s) -> Columns:
        """All so far, in each run of equal slots."""


def accumulator(call: AggregateCall, schema: pa.Schema) -> Accumulator:
    function, kinds = call.function, [schema.field(name).type for name in call.columns]
    match function, kinds:
        case "count", _:
            return Count()
        case (("first" | "last"), [of]):
            return Pick(function, of)
        case (("min" | "max"), [of]) if pa.types.is_floating(of) or pa.types.is_integer(of) or pa.types.is_temporal(of):
            return Extreme(function, of)
        case (("min" | "max" | "bool_and" | "bool_or"), [of]):
            return ExtremeByRank(function in ("min", "bool_and"), of)
        case (("max_by" | "min_by"), [of, by]):
            return Best(function == "min_by", of, by)
        case (("count_distinct" | "collect_set" | "mode"), _):
            return value_lists.Tally(function, kinds, call.result)
        case "collect_list", [of]:
            return value_lists.Collected(of, call.result)
        case (("sum" | "avg"), [of]) if pa.types.is_decimal(of) or (pa.types.is_integer(of) and function == "sum"):
            return ExactSum(of, call.result, average=function == "avg")
        case (("sum" | "avg"), [_]):
            return Sum(call.result, average=function == "avg")
        case (("stddev" | "stddev_pop" | "var_samp" | "var_pop"), [_]):
            return Moments(function, 1)
        case (("corr" | "covar_samp" | "covar_pop"), [_, _]):
            return Moments(function, 2)
        case "percentile", [_]:
            return value_lists.Percentile(call.parameters, call.result)
    raise DiagramError(f"no aggregate '{function}' of {len(kinds)} arguments", hint="look into its documentation")


def undoable(acc: Accumulator) -> bool:
    return isinstance(acc, Count | ExactSum)


def seen(acc: Accumulator, columns: Sequence[pa.Array], slot: Int64s, time: Int64s, slots: int) -> CallRows:
    """The rows that an aggregate function sees: a null is no value, but first, last, max_by and min_by may give one."""
    if not columns:
        return CallRows(pa.nulls(0), slot, time, slots)
    needed = columns[1:] if isinstance(acc, Pick | Best) else columns
    if any(column.null_count for column in needed):
        valid = pc.is_valid(needed[0])
        for column in needed[1:]:
            valid = pc.and_(valid, pc.is_valid(column))
        keep = valid.to_numpy(zero_copy_only=False)
        columns, slot, time = [column.filter(valid) for column in columns], slot[keep], time[keep]
    return CallRows(columns[0], slot, time, slots, tuple(columns[1:]))


def _nullable(values: Column, count: Column, result: pa.DataType) -> pa.Array:
    """Null where nothing was counted."""
    return pa.array(values, mask=None if count.all() else count == 0).cast(result, safe=False)


class Count:
    """count(*) and count(x): the rows it is given are those that count."""

    def start(self, n: int) -> Columns:
        return {"c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        return {"c": add_counts(stored["c"], rows.slot, rows.slots)}

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        return {"c": sum_counts(slot, panes["c"], slots)}

    def negative(self, stored: Columns) -> Columns:
        return {"c": -stored["c"]}

    def running(self, stored: Columns, slot: Int64s) -> Columns:
        return {"c": running_counts(stored["c"], slot)}

    def result(self, stored: Columns) -> pa.Array:
        return pa.array(stored["c"], pa.int64())


class Sum:
    """sum and avg of floats, and avg of integers, folded in input order."""

    def __init__(self, result: pa.DataType, *, average: bool) -> None:
        self.type, self.average = result, average

    def start(self, n: int) -> Columns:
        return {"s": np.zeros(n, np.float64), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        values = to_numpy(rows.values).astype(np.float64, copy=False)
        count = add_counts(stored["c"], rows.slot, rows.slots)
        return {"s": add_floats(stored["s"], rows.slot, values), "c": count}

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        total = add_floats(np.zeros(slots), slot, panes["s"])
        return {"s": total, "c": sum_counts(slot, panes["c"], slots)}

    def result(self, stored: Columns) -> pa.Array:
        total, count = stored["s"], stored["c"]
        return _nullable(total / np.maximum(count, 1) if self.average else total, count, self.type)


class ExactSum:
    """sum and avg of DECIMALs, and sum of integers: in two words of 64 bits, or in three where values need two."""

    def __init__(self, of: pa.DataType, result: pa.DataType, *, average: bool) -> None:
        self.of, self.type, self.average = of, result, average
        self.whole = pa.types.is_integer(of)
        self.long = not self.whole and of.precision > 18

    def start(self, n: int) -> Columns:
        return {name: np.zeros(n, np.int64) for name in ("s", "h", *(("x",) if self.long else ()), "c")}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        high = None
        if self.whole:
            low = to_numpy(rows.values).astype(np.int64, copy=False)
        else:
            low, above = decimal_words(whole(rows.values).cast(pa.decimal128(38, self.of.scale))).T
            high = above + (low < 0) if self.long else None
        return self._add(stored, low, high, rows.slot, np.bincount(rows.slot, minlength=rows.slots))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        count = sum_counts(slot, panes["c"], slots)
        total = self._add(self.start(slots), panes["s"], panes["h"], slot, count)
        if self.long and panes["x"].any():
            total["x"] = total["x"] + sum_counts(slot, panes["x"], slots)
        return total

    def negative(self, stored: Columns) -> Columns:
        low, carry = negative_ints(stored["s"])
        out = {"s": low, "h": carry - stored["h"], "c": -stored["c"]}
        if self.long:
            high, above = negative_ints(stored["h"])
            high, above = add_ints(high, above, np.arange(len(high)), carry)
            out |= {"h": high, "x": above - stored["x"]}
        return out

    def running(self, stored: Columns, slot: Int64s) -> Columns:
        low, carry = running_ints(stored["s"], slot)
        high = running_counts(stored["h"], slot) if stored["h"].any() else 0
        out = {"s": low, "h": high + carry, "c": running_counts(stored["c"], slot)}
        if self.long:
            high, above = running_ints(stored["h"], slot)
            high, above = add_ints(high, above, np.arange(len(high)), carry)
            out |= {"h": high, "x": running_counts(stored["x"], slot) + above}
        return out

    def _add(self, stored: Columns, low: Int64s, high: Int64s | None, slot: Int64s, count: Int64s) -> Columns:
        """Word by word, each with what the one below carries over."""
        s, h, c = (stored[name] for name in ("s", "h", "c"))
        s, carry = add_ints(s, np.zeros(len(s), np.int64), slot, low)
        if not self.long:
            more = sum_counts(slot, high, len(h)) if high is not None and high.any() else 0
            return {"s": s, "h": h + carry + more, "c": c + count}
        x = stored["x"]
        if high is not None:
            h, x = add_ints(h, x, slot, high)
        h, x = add_ints(h, x, np.arange(len(h)), carry)
        return {"s": s, "h": h, "x": x, "c": c + count}

    def result(self, stored: Columns) -> pa.Array:
        low, high, count = (stored[k] for k in ("s", "h", "c"))
        if self.whole and high.any():
            raise TrainError("sum overflows BIGINT", hint="sum a DOUBLE or DECIMAL: sum(CAST(x AS DECIMAL(38, 0)))")
        if self.whole:
            return _nullable(low, count, self.type)
        most = (10**38 >> 64) + 1
        if (self.long and stored["x"].any()) or np.any((high > most) | (high < -most)):
            raise self._overflow()
        high = high - (low < 0)
        words = np.empty(2 * len(high), np.int64)
        words[0::2], words[1::2] = low, high
        total = pa.Array.from_buffers(pa.decimal128(38, self.of.scale), len(high), [None, pa.py_buffer(words)])
        if np.any(_at_least(high, low, 10**38) | ~_at_least(high, low, 1 - 10**38)):  # Arrow itself does not look
            raise self._overflow()
        total = pc.if_else(pa.array(count == 0), pa.scalar(None, total.type), total)
        if self.average:
            return _decimal_average(total, count, self.type)
        try:
            return total.cast(self.type)
        except pa.ArrowInvalid as error:
            raise self._overflow() from error

    def _overflow(self) -> TrainError:
        kind = self.type if not self.average else pa.decimal128(38, self.of.scale)
        return TrainError(f"sum overflows {kind}", hint="cast the argument to a smaller DECIMAL")


def _at_least(hi: Int64s, lo: Int64s, bound: int) -> NDArray[np.bool_]:
    """Which 128-bit integers are not below a bound."""
    high, low = divmod(bound, 2**64)
    result: NDArray[np.bool_] = (hi > high) | ((hi == high) & (lo.view(np.uint64) >= np.uint64(low)))
    return result


def _decimal_average(total: pa.Array, count: Int64s, result: pa.DataType) -> pa.Array:
    """As Spark divides: half up at 38 digits after the point, then half up to the result's scale."""
    with decimal.localcontext() as context:
        context.prec, context.rounding = 120, decimal.ROUND_HALF_UP
        fine, unit = decimal.Decimal(1).scaleb(-38), decimal.Decimal(1).scaleb(-result.scale)
        values = [
            None if t is None else (t / int(c)).quantize(fine).quantize(unit)
            for t, c in zip(total.to_pylist(), count.tolist(), strict=True)
        ]
    return pa.array(values, result)


class Extreme:
    """min and max of numbers and times. NaN is larger than any number, as in SQL on Spark."""

    def __init__(self, function: str, of: pa.DataType) -> None:
        self.of = of
        self.float = pa.types.is_floating(of)
        info = np.iinfo(np.int64)
        self.neutral: float | int
        self.pick: np.ufunc
        if function == "min":
            self.pick, self.neutral = (np.fmin, float("nan")) if self.float else (np.minimum, info.max)
        else:
            self.pick, self.neutral = np.maximum, (float("-inf") if self.float else info.min)

    def start(self, n: int) -> Columns:
        kind = np.float64 if self.float else np.int64
        return {"v": np.full(n, self.neutral, kind), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        values = to_numpy(rows.values).astype(np.float64 if self.float else np.int64, copy=False)
        return self._add(stored, values, rows.slot, np.bincount(rows.slot, minlength=rows.slots))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        count = sum_counts(slot, panes["c"], slots)
        return self._add(self.start(slots), panes["v"], slot, count)

    def _add(self, stored: Columns, values: NDArray[Any], slot: Int64s, count: Int64s) -> Columns:
        best = np.array(stored["v"])
        with np.errstate(invalid="ignore"):
            self.pick.at(best, slot, values)
        return {"v": best, "c": stored["c"] + count}

    def result(self, stored: Columns) -> pa.Array:
        values = pa.array(stored["v"], mask=stored["c"] == 0)
        if pa.types.is_temporal(self.of) and self.of.bit_width == 32:
            return values.cast(pa.int32()).view(self.of)
        return values.view(self.of) if pa.types.is_temporal(self.of) else values.cast(self.of, safe=False)


class ExtremeByRank:
    """min and max of anything that can be sorted: strings, decimals, booleans, structs, arrays."""

    def __init__(self, least: bool, of: pa.DataType) -> None:
        self.least, self.of = least, of

    def start(self, n: int) -> Columns:
        return {"v": pa.nulls(n, self.of)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        return self._best(stored["v"], whole(rows.values), rows.slot)

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        return self._best(pa.nulls(slots, self.of), panes["v"], slot)

    def _best(self, stored: pa.Array, values: pa.Array, slot: Int64s) -> Columns:
        every = pa.concat_arrays([stored, values])
        owner = np.concatenate([np.arange(len(stored)), slot])
        direction = "ascending" if self.least else "descending"
        if pa.types.is_nested(every.type) or pa.types.is_null(every.type):
            ranks = pa.array(ranks_of(every))
            sorting = pc.if_else(every.is_valid(), ranks, pa.scalar(None, pa.int64()))
        else:
            sorting = every.cast(pa.int8()) if pa.types.is_boolean(every.type) else every
        order = pc.sort_indices(sorting, sort_keys=[("", direction)]).to_numpy().astype(np.int64)[::-1]
        winner = np.empty(len(stored), np.int64)
        winner[owner[order]] = order  # the best is written last
        return {"v": every.take(pa.array(winner))}

    def result(self, stored: Columns) -> pa.Array:
        return stored["v"]


class Pick:
    """first and last by tuple time; among equal times, by arrival."""

    def __init__(self, function: str, of: pa.DataType) -> None:
        self.earliest, self.of = function == "first", of

    def start(self, n: int) -> Columns:
        return {"v": pa.nulls(n, self.of), "t": np.zeros(n, np.int64), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        return self._pick(stored, whole(rows.values), rows.time, rows.slot, np.ones(len(rows.slot), np.int64))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        counts = panes["c"]
        filled = counts > 0
        values, time = panes["v"].filter(pa.array(filled)), panes["t"][filled]
        return self._pick(self.start(slots), values, time, slot[filled], counts[filled])

    def _pick(self, stored: Columns, values: pa.Array, time: Int64s, slot: Int64s, counts: Int64s) -> Columns:
        count, when = stored["c"], np.array(stored["t"])
        order = np.arange(len(slot))
        if len(time) and np.any(time[1:] < time[:-1]):
            order = np.lexsort((order, time))
        if self.earliest:
            order = order[::-1]
        best = np.full(len(count), -1)
        best[slot[order]] = order  # the one that counts is written last
        rival = np.flatnonzero(best >= 0)
        their = time[best[rival]]
        wins = (count[rival] == 0) | (their < when[rival] if self.earliest else their >= when[rival])
        won = rival[wins]
        winner = np.arange(len(count))
        winner[won] = len(count) + best[won]
        when[won] = time[best[won]]
        total = count + sum_counts(slot, counts, len(count))
        return {"v": pa.concat_arrays([stored["v"], values]).take(pa.array(winner)), "t": when, "c": total}

    def result(self, stored: Columns) -> pa.Array:
        return stored["v"]


class Best:
    """max_by and min_by: the value beside the greatest or least of another; of several equal ones the last for max_by
    and the first for min_by, in the order of `first` and `last`."""

    def __init__(self, least: bool, of: pa.DataType, by: pa.DataType) -> None:
        self.least, self.of, self.by = least, of, by

    def start(self, n: int) -> Columns:
        return {"v": pa.nulls(n, self.of), "o": pa.nulls(n, self.by), "t": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        return self._best(stored, whole(rows.values), whole(rows.others[0]), rows.time, rows.slot)

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        return self._best(self.start(slots), panes["v"], panes["o"], panes["t"], slot)

    def _best(self, stored: Columns, values: pa.Array, by: pa.Array, time: Int64s, slot: Int64s) -> Columns:
        every = pa.concat_arrays([stored["o"], by])
        when = np.concatenate([stored["t"], time])
        owner = np.concatenate([np.arange(len(stored["t"])), slot])
        rank = ranks_of(every)
        order = np.lexsort((when, rank))  # stable; a null stands for none, and comes first
        if self.least:
            some = rank[order] >= 0
            order = np.concatenate([order[~some], order[some][::-1]])
        winner = np.empty(len(stored["t"]), np.int64)
        winner[owner[order]] = order  # the best is written last
        index = pa.array(winner)
        return {"v": pa.concat_arrays([stored["v"], values]).take(index), "o": every.take(index), "t": when[winner]}

    def result(self, stored: Columns) -> pa.Array:
        return stored["v"]
