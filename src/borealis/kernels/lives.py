"""Rows in an order of their own, each alive from one cause to another: how many are so before a place."""

from __future__ import annotations

import numpy as np

from borealis.tuples import FIRST_TIME, LAST_TIME, Int64s


class Lives:
    """Rows that are `born` by one cause and `dead` by another; FIRST_TIME and LAST_TIME are before and after all.

    What is born and dead from the first to the last is counted once. All else are events, in order of place, which are
    parted by the bits of their causes, the highest first (a wavelet matrix): each question takes one look for each bit.

    >>> lives = Lives(np.array([FIRST_TIME, 5, FIRST_TIME]), np.array([7, LAST_TIME, LAST_TIME]))
    >>> lives.before(np.array([3, 3, 3]), np.array([4, 5, 7])).tolist()
    [2, 3, 2]
    """

    def __init__(self, born: Int64s, dead: Int64s) -> None:
        self._old = np.insert(np.cumsum(born == FIRST_TIME), 0, 0)
        comes, goes = np.flatnonzero(born > FIRST_TIME), np.flatnonzero(dead < LAST_TIME)
        place, cause = np.concatenate([comes, goes]), np.concatenate([born[comes], dead[goes]])
        weight = np.repeat([1, -1], [len(comes), len(goes)])
        order = np.argsort(place, kind="stable")
        self._place, weight = place[order], weight[order]
        self._causes, rank = np.unique(cause[order], return_inverse=True)
        self._bits = len(self._causes).bit_length()
        self._levels: list[tuple[Int64s, Int64s]] = []  # the zeros before each event, and what these weigh
        for bit in reversed(range(self._bits)):
            zero = (rank >> bit) & 1 == 0
            self._levels.append((_sums(zero.astype(np.int64)), _sums(np.where(zero, weight, 0))))
            order = np.concatenate([np.flatnonzero(zero), np.flatnonzero(~zero)])
            rank, weight = rank[order], weight[order]

    def before(self, place: Int64s, cause: Int64s) -> Int64s:
        """How many rows before each place are alive after the cause beside it."""
        count = self._old[place]
        start, end = np.zeros(len(place), np.int64), np.searchsorted(self._place, place)
        below = np.searchsorted(self._causes, cause, "right")  # causes of rank less than this count
        for bit, (zeros, weights) in zip(reversed(range(self._bits)), self._levels, strict=True):
            set_ = (below >> bit) & 1 == 1
            count = count + np.where(set_, weights[end] - weights[start], 0)
            start = np.where(set_, zeros[-1] + start - zeros[start], zeros[start])
            end = np.where(set_, zeros[-1] + end - zeros[end], zeros[end])
        return count

    def place(self, count: Int64s, cause: Int64s, low: Int64s, high: Int64s) -> Int64s:
        """The least place from `low` on before which so many rows are alive; `high` if there is none before it."""
        while np.any(low < high):
            middle = (low + high) // 2
            enough = self.before(middle, cause) >= count
            low, high = np.where(enough | (low >= high), low, middle + 1), np.where(enough, middle, high)
        return high


def _sums(values: Int64s) -> Int64s:
    sums: Int64s = np.insert(np.cumsum(values), 0, 0)
    return sums
