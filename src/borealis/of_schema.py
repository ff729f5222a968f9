"""What is made of a schema again and again, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import pyarrow as pa

T = TypeVar("T")
KNOWN_MOST = 1_000


class OfSchema(Generic[T]):
    """Remembers by identity, and else by the names of columns: Arrow makes a new object whenever a table is asked for
    its schema, and to hash one takes longer than a small train.

    >>> count = OfSchema(len)
    >>> count(pa.schema([("a", pa.int64())]))
    1
    """

    def __init__(self, make: Callable[[pa.Schema], T]) -> None:
        self._make = make
        self._known: dict[int, tuple[pa.Schema, T]] = {}
        self._alike: dict[tuple[str, ...], list[tuple[pa.Schema, T]]] = {}  # the same, by the names of their columns

    def __call__(self, schema: pa.Schema) -> T:
        known = self._known.get(id(schema))
        return self._equal(schema) if known is None else known[1]

    def _equal(self, schema: pa.Schema) -> T:
        names = tuple(schema.names)
        for known, made in self._alike.get(names, ()):
            if known.equals(schema, check_metadata=True):
                return made
        if len(self._known) >= KNOWN_MOST:
            self._known.clear()
            self._alike.clear()
        new = self._known[id(schema)] = (schema, self._make(schema))
        self._alike.setdefault(names, []).append(new)
        return new[1]
