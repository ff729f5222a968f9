"""Group keys that came all at once, with a state that was loaded: whole numbers, found by searching what is in order.

To put a million keys into a dictionary takes longer than all else that a start has to do.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import to_numpy
from borealis.kernels.flow import NOTHING
from borealis.tuples import Int64s

MANY = 1 << 13  # keys at once, from which on it pays


class LoadedKeys:
    """Numbers of keys. Some may be given up, none comes later."""

    def __init__(self) -> None:
        self._values, self._numbers = NOTHING, NOTHING  # in order of values
        self._of = NOTHING  # the value of each number
        self._there = np.zeros(0, np.bool_)  # which numbers there are

    def __len__(self) -> int:
        return len(self._there)

    @staticmethod
    def takes(columns: list[pa.Array]) -> bool:
        """Whether these can be such keys."""
        only = columns[0] if len(columns) == 1 else None
        if only is None or only.null_count or len(only) < MANY:
            return False
        return bool(pa.types.is_integer(only.type) or pa.types.is_timestamp(only.type) or pa.types.is_date32(only.type))

    def load(self, numbers: Int64s, column: pa.Array) -> None:
        """There are these, and no others."""
        values = to_numpy(column).astype(np.int64)
        order = np.argsort(values, kind="stable")
        self._values, self._numbers = values[order], numbers[order]
        size = int(numbers.max()) + 1
        self._of, self._there = np.zeros(size, np.int64), np.zeros(size, np.bool_)
        self._of[numbers], self._there[numbers] = values, True

    def numbers(self, column: pa.Array) -> Int64s:
        """The number of each of these keys; -1 where there is none."""
        if not len(self):
            return np.full(len(column), -1)
        values = to_numpy(column).astype(np.int64)
        at = np.minimum(np.searchsorted(self._values, values), len(self._values) - 1)
        found = self._numbers[at]
        known = (self._values[at] == values) & self._there[found]
        if column.null_count:
            known &= column.is_valid().to_numpy(zero_copy_only=False)
        return np.where(known, found, -1)

    def has(self, numbers: Int64s) -> NDArray[np.bool_]:
        """Which of these numbers are theirs."""
        theirs = np.zeros(len(numbers), np.bool_)
        near = numbers < len(self)
        theirs[near] = self._there[numbers[near]]
        return theirs

    def keys(self, numbers: Int64s, type: pa.DataType) -> pa.Array:
        """The keys of numbers that are theirs."""
        values = pa.array(self._of[numbers])
        if pa.types.is_integer(type):
            return values.cast(type)
        return values.cast(pa.int32()).view(type) if type.bit_width == 32 else values.view(type)

    def give_up(self, numbers: Int64s) -> None:
        """These are theirs no more."""
        self._there[numbers[numbers < len(self)]] = False

    def alive(self) -> Int64s:
        """All numbers, rising."""
        return np.flatnonzero(self._there)
