"""Accumulators of the aggregate functions: folded row by row in input order, then pane by pane in time order.

Cut-invariance hangs on the fold: a row is added to what is stored, in input order, never to a sum of its batch.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.errors import DiagramError, TrainError
from borealis.kernels.columns import Column, Columns, numbers, to_numpy, whole
from borealis.tuples import Int64s

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """What one call of an aggregate function sees of a train: values that are not null, and where each belongs."""

    values: pa.Array
    slot: Int64s  # which accumulator each value goes to
    time: Int64s
    slots: int


class Accumulator(Protocol):
    """One aggregate function. `names` are its state columns; all methods are pure on them."""

    def start(self, n: int) -> Columns: ...

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        """Add rows, which come in input order."""

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        """Add panes, which come in time order within each slot."""

    def result(self, stored: Columns) -> pa.Array: ...


def accumulator(function: str, argument: pa.DataType | None, result: pa.DataType) -> Accumulator:
    """The accumulator for a call such as `sum` of an int column."""
    if argument is None or function == "count":
        return Count()
    if function in ("first", "last"):
        return Pick(function, argument)
    if pa.types.is_null(argument):
        return Pick("first", argument) if function in ("min", "max") else Sum(result, average=False, of=pa.float64())
    if function in ("min", "max"):
        if pa.types.is_floating(argument) or pa.types.is_integer(argument) or pa.types.is_temporal(argument):
            return Extreme(function, argument)
        return ExtremeByRank(function, argument)
    if pa.types.is_decimal(argument):
        if function == "stddev":
            return StdDev()
        return DecimalSum(argument, result, average=function == "avg")
    if pa.types.is_integer(argument) or pa.types.is_floating(argument):
        if function == "stddev":
            return StdDev()
        return Sum(result, average=function == "avg", of=argument)
    raise DiagramError(f"{function} of {argument} is not supported", hint="cast the argument to a number")


def _add_counts(stored: Int64s, slot: Int64s, slots: int) -> Int64s:
    return stored + np.bincount(slot, minlength=slots)


def _add_floats(stored: Floats, slot: Int64s, values: Floats) -> Floats:
    """A strict left fold: ((stored + v1) + v2) + ..."""
    out = stored.copy()
    with np.errstate(all="ignore"):  # infinity less infinity is NaN, and no news
        np.add.at(out, slot, values)
    return out


def _add_ints(stored: Int64s, slot: Int64s, values: Int64s) -> Int64s:
    if not len(values):
        return stored
    most = max(abs(int(values.max())), abs(int(values.min()))) * len(values)
    if len(stored):
        most += max(abs(int(stored.max())), abs(int(stored.min())))
    out = stored.copy()
    if most < 2**63:
        np.add.at(out, slot, values)
        return out
    exact = out.astype(object)
    np.add.at(exact, slot, values.astype(object))
    if any(not -(2**63) <= v < 2**63 for v in exact.tolist()):
        raise TrainError("sum overflows BIGINT", hint="sum a DOUBLE or DECIMAL: sum(CAST(x AS DECIMAL(38, 0)))")
    return exact.astype(np.int64)


def _nullable(values: Column, count: Column, result: pa.DataType) -> pa.Array:
    """Null where nothing was counted."""
    array = pa.array(values, mask=count == 0) if isinstance(values, np.ndarray) else values
    return array if array.type == result else array.cast(result, safe=False)


class Count:
    """count(*) and count(x): the rows it is given are those that count."""

    def start(self, n: int) -> Columns:
        return {"c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        return {"c": _add_counts(stored["c"], rows.slot, rows.slots)}

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        return {"c": _add_ints(np.zeros(slots, np.int64), slot, numbers(panes, "c"))}

    def result(self, stored: Columns) -> pa.Array:
        return pa.array(stored["c"], pa.int64())


class Sum:
    """sum and avg of integers (sum exact in 64 bits) and floats (folded in input order)."""

    def __init__(self, result: pa.DataType, *, average: bool, of: pa.DataType) -> None:
        self.type, self.average = result, average
        self.exact = pa.types.is_integer(of) and not average

    def start(self, n: int) -> Columns:
        return {"s": np.zeros(n, np.int64 if self.exact else np.float64), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        return self._add(stored, to_numpy(rows.values), rows.slot, np.bincount(rows.slot, minlength=rows.slots))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        count = _add_ints(np.zeros(slots, np.int64), slot, numbers(panes, "c"))
        return self._add(self.start(slots), numbers(panes, "s"), slot, count)

    def _add(self, stored: Columns, values: NDArray[Any], slot: Int64s, count: Int64s) -> Columns:
        if self.exact:
            total: Column = _add_ints(numbers(stored, "s"), slot, values.astype(np.int64, copy=False))
        else:
            total = _add_floats(numbers(stored, "s"), slot, values.astype(np.float64, copy=False))
        return {"s": total, "c": numbers(stored, "c") + count}

    def result(self, stored: Columns) -> pa.Array:
        total, count = numbers(stored, "s"), numbers(stored, "c")
        if self.average:
            total = total / np.maximum(count, 1)
        return _nullable(total, count, self.type)


class DecimalSum:
    """sum and avg of decimals, exact: a 128-bit integer in two words."""

    def __init__(self, of: pa.DataType, result: pa.DataType, *, average: bool) -> None:
        self.of, self.type, self.average = of, result, average

    def start(self, n: int) -> Columns:
        return {"hi": np.zeros(n, np.int64), "lo": np.zeros(n, np.int64), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        values = whole(rows.values).cast(pa.decimal128(38, self.of.scale))
        words = np.frombuffer(values.buffers()[1], np.int64)[2 * values.offset : 2 * (values.offset + len(values))]
        return self._add(stored, words[1::2], words[0::2], rows.slot, np.bincount(rows.slot, minlength=rows.slots))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        count = _add_ints(np.zeros(slots, np.int64), slot, numbers(panes, "c"))
        return self._add(self.start(slots), numbers(panes, "hi"), numbers(panes, "lo"), slot, count)

    def _add(self, stored: Columns, hi: Int64s, lo: Int64s, slot: Int64s, count: Int64s) -> Columns:
        slots = len(stored["c"])
        low, mask = lo.view(np.uint64), np.uint64(0xFFFFFFFF)
        # 32-bit limbs cannot overflow a 64-bit sum of fewer than 2**31 rows
        limbs = [(low & mask).view(np.int64), (low >> np.uint64(32)).view(np.int64), hi & 0xFFFFFFFF, hi >> 32]
        sums = [np.zeros(slots, np.int64) for _ in limbs]
        for total, limb in zip(sums, limbs, strict=True):
            np.add.at(total, slot, limb)
        acc_hi, acc_lo = numbers(stored, "hi"), numbers(stored, "lo").view(np.uint64)
        for shift, total in zip((0, 32, 64, 96), sums, strict=True):
            add_lo = total.view(np.uint64) << np.uint64(shift) if shift < 64 else np.zeros(slots, np.uint64)
            add_hi = total << (shift - 64) if shift >= 64 else (total >> (64 - shift) if shift else total >> 63)
            summed = acc_lo + add_lo
            acc_hi = acc_hi + add_hi + (summed < add_lo)
            acc_lo = summed
        rough = numbers(stored, "hi").astype(np.float64)
        np.add.at(rough, slot, hi)
        if np.any(np.abs(rough) > 1.1 * (10**38 >> 64)):  # before 128 bits do not hold it any more
            raise self._overflow()
        return {"hi": acc_hi, "lo": acc_lo.view(np.int64), "c": numbers(stored, "c") + count}

    def result(self, stored: Columns) -> pa.Array:
        hi, lo, count = (numbers(stored, k) for k in ("hi", "lo", "c"))
        words = np.empty(2 * len(hi), np.int64)
        words[0::2], words[1::2] = lo, hi
        total = pa.Array.from_buffers(pa.decimal128(38, self.of.scale), len(hi), [None, pa.py_buffer(words)])
        if np.any(_at_least(hi, lo, 10**38) | ~_at_least(hi, lo, 1 - 10**38)):  # Arrow itself does not look
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

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        values = to_numpy(rows.values).astype(np.float64 if self.float else np.int64, copy=False)
        return self._add(stored, values, rows.slot, np.bincount(rows.slot, minlength=rows.slots))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        count = _add_ints(np.zeros(slots, np.int64), slot, numbers(panes, "c"))
        return self._add(self.start(slots), numbers(panes, "v"), slot, count)

    def _add(self, stored: Columns, values: NDArray[Any], slot: Int64s, count: Int64s) -> Columns:
        best = np.array(stored["v"])
        with np.errstate(invalid="ignore"):
            self.pick.at(best, slot, values)
        return {"v": best, "c": numbers(stored, "c") + count}

    def result(self, stored: Columns) -> pa.Array:
        values = pa.array(stored["v"], mask=numbers(stored, "c") == 0)
        if pa.types.is_temporal(self.of) and self.of.bit_width == 32:
            return values.cast(pa.int32()).view(self.of)
        return values.view(self.of) if pa.types.is_temporal(self.of) else values.cast(self.of, safe=False)


class ExtremeByRank:
    """min and max of anything that can be sorted: strings, decimals, booleans."""

    def __init__(self, function: str, of: pa.DataType) -> None:
        self.least, self.of = function == "min", of

    def start(self, n: int) -> Columns:
        return {"v": pa.nulls(n, self.of)}

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        return self._best(stored["v"], whole(rows.values), rows.slot)

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        return self._best(pa.nulls(slots, self.of), panes["v"], slot)

    def _best(self, stored: pa.Array, values: pa.Array, slot: Int64s) -> Columns:
        every = pa.concat_arrays([stored, values])
        owner = np.concatenate([np.arange(len(stored)), slot])
        order = "ascending" if self.least else "descending"
        sorting = every.cast(pa.int8()) if pa.types.is_boolean(every.type) else every
        by_rank = pc.sort_indices(sorting, sort_keys=[("", order)]).to_numpy().astype(np.int64)
        winner = np.empty(len(stored), np.int64)
        winner[owner[by_rank[::-1]]] = by_rank[::-1]  # the best is written last
        return {"v": every.take(pa.array(winner))}

    def result(self, stored: Columns) -> pa.Array:
        return stored["v"]


class Pick:
    """first and last by tuple time; among equal times, by arrival."""

    def __init__(self, function: str, of: pa.DataType) -> None:
        self.earliest, self.of = function == "first", of

    def start(self, n: int) -> Columns:
        return {"v": pa.nulls(n, self.of), "t": np.zeros(n, np.int64), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        return self._pick(stored, whole(rows.values), rows.time, rows.slot, np.ones(len(rows.slot), np.int64))

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        counts = numbers(panes, "c")
        filled = counts > 0
        values, time = panes["v"].filter(pa.array(filled)), numbers(panes, "t")[filled]
        return self._pick(self.start(slots), values, time, slot[filled], counts[filled])

    def _pick(self, stored: Columns, values: pa.Array, time: Int64s, slot: Int64s, counts: Int64s) -> Columns:
        count, when = numbers(stored, "c"), np.array(stored["t"])
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
        total = _add_ints(count, slot, counts)
        return {"v": pa.concat_arrays([stored["v"], values]).take(pa.array(winner)), "t": when, "c": total}

    def result(self, stored: Columns) -> pa.Array:
        return stored["v"]


class StdDev:
    """Sample standard deviation, from sums around each accumulator's own first value (no cancellation)."""

    def start(self, n: int) -> Columns:
        zeros = np.zeros(n, np.float64)
        return {"k": zeros, "s": zeros.copy(), "q": zeros.copy(), "c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: Rows) -> Columns:
        column = rows.values
        values = to_numpy(column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column).astype(np.float64)
        centre, count = np.array(stored["k"]), numbers(stored, "c")
        first = centre.copy()
        first[rows.slot[::-1]] = values[::-1]
        centre = np.where(count == 0, first, centre)
        with np.errstate(all="ignore"):
            off = values - centre[rows.slot]
            squares = off * off
        return {
            "k": centre,
            "s": _add_floats(numbers(stored, "s"), rows.slot, off),
            "q": _add_floats(numbers(stored, "q"), rows.slot, squares),
            "c": _add_counts(count, rows.slot, rows.slots),
        }

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        k, s, q, c = (numbers(panes, n) for n in ("k", "s", "q", "c"))
        filled = c > 0
        k, s, q, c, slot = k[filled], s[filled], q[filled], c[filled], slot[filled]
        centre = np.zeros(slots)
        centre[slot[::-1]] = k[::-1]
        with np.errstate(all="ignore"):
            move = k - centre[slot]
            s, q = s + c * move, q + 2 * move * s + c * move * move
        return {
            "k": centre,
            "s": _add_floats(np.zeros(slots), slot, s),
            "q": _add_floats(np.zeros(slots), slot, q),
            "c": _add_ints(np.zeros(slots, np.int64), slot, c),
        }

    def result(self, stored: Columns) -> pa.Array:
        s, q, c = (numbers(stored, n) for n in ("s", "q", "c"))
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = (q - s * s / np.maximum(c, 1)) / np.maximum(c - 1, 1)
            return pa.array(np.sqrt(np.maximum(variance, 0.0)), mask=c < 2)
