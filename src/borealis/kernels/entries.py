"""What a kernel holds by key, where a train costs what it touches and not what is held.

Entries lie in order of their key. What was put last lies apart, in a few that come before the others where both have a
key; they become one when there are so many of them that to carry them along costs as much as that.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, concat, take
from borealis.kernels.flow import NOTHING
from borealis.tuples import Int64s

Key = tuple[str, str]  # two columns; the second has numbers from 0 to 2**31

APART_LEAST = 1 << 12  # entries, before any lie apart


class Entries:
    """Entries of which each key has one."""

    def __init__(self, key: Key, entries: Columns) -> None:
        """They are in order of the key."""
        self.key = key
        self.none = take(entries, NOTHING)
        self._held, self._recent = _Run(key, entries), _Run(key, self.none)

    def all(self) -> Columns:
        """In order of the key."""
        if len(self._recent):
            self._held, self._recent = self._held.under(self._recent.entries), _Run(self.key, self.none)
        return self._held.entries

    def least(self) -> int | None:
        """The least that there is in the first column of a key."""
        firsts = [int(run.entries[self.key[0]][0]) for run in (self._held, self._recent) if len(run)]
        return min(firsts, default=None)

    def stored(self, first: Int64s, second: Int64s) -> tuple[Columns, NDArray[np.bool_]]:
        """The entries with these keys, as far as there are; and for which keys there are."""
        at, held = self._held.find(first, second)
        if not len(self._recent):
            return take(self._held.entries, at[held]), held
        late, recent = self._recent.find(first, second)
        held &= ~recent
        place, olds = np.empty(len(first), np.int64), np.count_nonzero(held)
        place[held], place[recent] = np.arange(olds), olds + np.arange(np.count_nonzero(recent))
        both = concat([take(self._held.entries, at[held]), take(self._recent.entries, late[recent])])
        found = held | recent
        return take(both, place[found]), found

    def put(self, entries: Columns) -> None:
        """Put entries in, over those with the same key."""
        first, second = (entries[name] for name in self.key)
        falls = (first[1:] < first[:-1]) | ((first[1:] == first[:-1]) & (second[1:] < second[:-1]))
        if falls.any():
            entries = take(entries, np.lexsort((second, first)))
        self._recent = self._recent.under(entries)
        if len(self._held) < APART_LEAST or len(self._recent) ** 2 > len(self._held) * len(entries):
            self.all()


class _Run:
    """Entries in order of their key, and what finds them by it."""

    def __init__(self, key: Key, entries: Columns) -> None:
        self._key, self.entries = key, entries
        self._firsts: Int64s | None = None  # each number in the first column once
        self._codes = NOTHING

    def __len__(self) -> int:
        return len(self.entries[self._key[0]])

    def find(self, first: Int64s, second: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Where entries with these keys stand, or would; and whether they do."""
        if not len(self):
            return np.zeros(len(first), np.int64), np.zeros(len(first), np.bool_)
        firsts = self._coded()
        rank = np.searchsorted(firsts, first)
        exact = firsts[np.minimum(rank, len(firsts) - 1)] == first
        code = _code(2 * rank + exact, second)  # an even one is between two that there are
        at = np.searchsorted(self._codes, code)
        return at, self._codes[np.minimum(at, len(self) - 1)] == code

    def _coded(self) -> Int64s:
        if self._firsts is None:
            first = self.entries[self._key[0]]
            starts = np.append(0, np.flatnonzero(first[1:] != first[:-1]) + 1)
            self._firsts = first[starts]
            rank = np.repeat(2 * np.arange(len(starts)) + 1, np.diff(starts, append=len(first)))
            self._codes = _code(rank, self.entries[self._key[1]])
        return self._firsts

    def under(self, entries: Columns) -> _Run:
        """With these, in order of their key, in the places of those with the same."""
        if not len(self):
            return _Run(self._key, entries)
        first, second = (entries[name] for name in self._key)
        at, found = self.find(first, second)
        index, new = np.arange(len(self)), len(self) + np.arange(len(at))
        index[at[found]] = new[found]
        if not found.all():
            index = np.insert(index, at[~found], new[~found])
        return _Run(self._key, take(concat([self.entries, entries]), index))


def _code(rank: Int64s, second: Int64s) -> Int64s:
    """One number that is in order as both are."""
    return (rank << 31) | second
