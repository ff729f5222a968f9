"""Rows added to sums, each to its own: in input order, and without loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.flow import NOTHING, differs
from borealis.tuples import Int64s

Floats = NDArray[np.float64]
_HALF = 0xFFFFFFFF


@dataclass(frozen=True)
class CallRows:
    """What one call of an aggregate function sees of a train: values that are not null, and where each belongs."""

    values: pa.Array
    slot: Int64s  # which accumulator each value goes to
    time: Int64s
    slots: int
    others: tuple[pa.Array, ...] = ()  # of functions with several arguments: those after the first


def add_counts(stored: Int64s, slot: Int64s, slots: int) -> Int64s:
    """One more for every row."""
    return stored + np.bincount(slot, minlength=slots)


def add_floats(stored: Floats, slot: Int64s, values: Floats) -> Floats:
    """A strict left fold: ((stored + v1) + v2) + ..."""
    out = stored.copy()
    with np.errstate(all="ignore"):  # infinity less infinity is NaN, and no news
        np.add.at(out, slot, values)
    return out


def sum_counts(slot: Int64s, counts: Int64s, slots: int) -> Int64s:
    """The sum of the counts of panes."""
    out = np.zeros(slots, np.int64)
    np.add.at(out, slot, counts)
    return out


def add_ints(low: Int64s, high: Int64s, slot: Int64s, values: Int64s) -> tuple[Int64s, Int64s]:
    """Sums that no order of the values can overflow: each is high * 2**64 + low, low being a signed number, too.

    So there is one way to write a sum, and small ones of either sign have a `high` of 0.
    """
    if not len(values):
        return low, high
    most = max(abs(int(values.max())), abs(int(values.min()))) * len(values)
    if len(low):
        most += max(abs(int(low.max())), abs(int(low.min())))
    if most < 2**63:
        out = low.copy()
        np.add.at(out, slot, values)
        return out, high
    # halves of 32 bits cannot overflow a 64-bit sum of fewer than 2**31 rows
    least, upper = low & _HALF, low >> 32
    np.add.at(least, slot, values & _HALF)
    np.add.at(upper, slot, values >> 32)
    upper += least >> 32
    out = (upper << 32) | (least & _HALF)
    return out, high + (upper >> 32) + (out < 0)


def running_counts(values: Int64s, slot: Int64s) -> Int64s:
    """The sum of the values so far, in each run of equal slots.

    >>> running_counts(np.array([1, 2, 5, -1]), np.array([0, 0, 3, 3])).tolist()
    [1, 3, 5, 4]
    """
    if not len(values):
        return NOTHING
    begin = np.flatnonzero(differs(slot))
    steps = values.copy()
    steps[begin[1:]] -= np.add.reduceat(values, begin)[:-1]  # what wraps around in a sum wraps back by that
    return np.cumsum(steps)


def unmatched(steps: Int64s, slot: Int64s, had: Int64s | int = 0) -> NDArray[np.bool_]:
    """Of steps of 1 and -1 in runs of equal slots: those that take one off where there is none left. They count for
    nothing, so that no sum is ever negative. `had`: what was there before, for each step the same in all of its run.

    >>> unmatched(np.array([-1, 1, -1, -1, 1, -1]), np.array([0, 0, 0, 0, 2, 2])).tolist()
    [True, False, False, True, False, False]
    """
    sums = running_counts(steps, slot) + had
    begins = differs(slot)
    run = np.cumsum(begins)
    apart = 2 * len(steps) + 1  # so far below the lowest of a run the next one lies
    lowest = np.minimum.accumulate(np.minimum(sums, 0) - run * apart) + run * apart
    before = np.append(0, lowest[:-1])
    before[begins] = 0
    return (sums < 0) & (sums < before)


def running_ints(values: Int64s, slot: Int64s) -> tuple[Int64s, Int64s]:
    """The same in two words, as `add_ints` writes sums: low and high."""
    if not len(values) or max(abs(int(values.max())), abs(int(values.min()))) * len(values) < 2**63:
        return running_counts(values, slot), np.zeros(len(values), np.int64)
    least, upper = running_counts(values & _HALF, slot), running_counts(values >> 32, slot)
    upper += least >> 32
    low = (upper << 32) | (least & _HALF)
    return low, (upper >> 32) + (low < 0)


def negative_ints(low: Int64s) -> tuple[Int64s, Int64s]:
    """Less each number, and what that carries over: the least one has no opposite in one word."""
    return -low, (low == np.iinfo(np.int64).min).astype(np.int64)
