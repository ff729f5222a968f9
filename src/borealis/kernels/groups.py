"""Group keys as small integers: the same key has the same number for as long as any window needs it."""

from __future__ import annotations

import heapq
from collections.abc import Hashable

import numpy as np
import pyarrow as pa

from borealis.kernels.columns import compact, normal_floats, whole
from borealis.tuples import Int64s

_NAN = object()  # NaN is one group, though no NaN equals another in Python


class Groups:
    """Numbers for group keys, and the keys back from the numbers. Numbers of dead groups are used again.

    A new key takes the least free number: two copies that run the same train must give out the same numbers, or one
    whose run was thrown away could not go on from what the other committed.
    """

    def __init__(self, types: list[pa.DataType]) -> None:
        self.types = types
        self._number: dict[Hashable, int] = {}
        self._key: list[Hashable | None] = []  # None where the number is free; a key is always a tuple
        self._free: list[int] = []  # a heap

    def __len__(self) -> int:
        return len(self._number)

    @property
    def capacity(self) -> int:
        """One above the largest number in use."""
        return len(self._key)

    def encode(self, columns: list[pa.Array | pa.ChunkedArray], rows: int) -> tuple[Int64s, list[int]]:
        """The number of each row's key, and the numbers given out for the first time."""
        if not self.types:
            codes, keys = np.zeros(rows, np.int64), _keys([], min(rows, 1))
        else:
            codes, keys = _distinct([normal_floats(whole(c)) for c in columns])
        numbers = np.empty(len(keys), np.int64)
        fresh: list[int] = []
        get = self._number.get
        for i, key in enumerate(keys):
            number = get(key)
            if number is None:
                number = self._add(key)
                fresh.append(number)
            numbers[i] = number
        return numbers[codes], fresh

    def _add(self, key: Hashable) -> int:
        if self._free:
            number = heapq.heappop(self._free)
            self._key[number] = key
        else:
            number = len(self._key)
            self._key.append(key)
        self._number[key] = number
        return number

    def put(self, numbers: list[int], columns: list[pa.Array]) -> None:
        """Take over numbers that another copy gave out."""
        keys = _keys([normal_floats(whole(c)) for c in columns], len(numbers))
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
        for number in numbers:
            if number < len(self._key) and self._key[number] is not None:
                del self._number[self._key[number]]
                self._key[number] = None
                heapq.heappush(self._free, number)

    def keys(self, numbers: Int64s) -> list[pa.Array]:
        """The key columns of these groups."""
        keys = [self._key[n] for n in numbers.tolist()]
        return [pa.array([float("nan") if k[i] is _NAN else k[i] for k in keys], t) for i, t in enumerate(self.types)]

    def alive(self) -> Int64s:
        """All numbers in use, rising."""
        return np.array([n for n, k in enumerate(self._key) if k is not None], np.int64)


def _distinct(columns: list[pa.Array]) -> tuple[Int64s, list[Hashable]]:
    codes: Int64s | None = None
    span = 1
    encoded = [c.dictionary_encode(null_encoding="encode") for c in columns]
    if len(encoded) == 1:
        only = encoded[0]
        return only.indices.to_numpy(), _keys([only.dictionary], len(only.dictionary))
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
    return codes, _keys([c.take(pa.array(first)) for c in columns], len(distinct))


def _keys(columns: list[pa.Array], rows: int) -> list[Hashable]:
    if not columns:
        return [()] * rows
    lists = [[_NAN if v != v else v for v in c.to_pylist()] for c in columns]
    return list(zip(*lists, strict=True))
