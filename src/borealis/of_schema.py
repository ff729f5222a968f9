"""What is made of a schema again and again, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

T = TypeVar("T")
KNOWN_MOST = 1_000


class OfSchema(Generic[T]):
    """Remembers by identity: to compare schemas takes longer than a small train.

    >>> count = OfSchema(len)
    >>> count(pa.schema([("a", pa.int64())]))
    1
    """

    def __init__(self, make: Callable[[pa.Schema], T]) -> None:
        self._make = make
        self._known: dict[int, tuple[pa.Schema, T]] = {}

    def __call__(self, schema: pa.Schema) -> T:
        known = self._known.get(id(schema))
        if known is None:
            if len(self._known) >= KNOWN_MOST:
                self._known.clear()
            known = self._known[id(schema)] = (schema, self._make(schema))
        return known[1]
