"""Columns as kernels take them: NumPy where arithmetic happens, Arrow where values are only carried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.tuples import Int64s

Values: TypeAlias = Any  # pa.Array | pa.ChunkedArray | pa.Scalar: constants stay scalars
Column: TypeAlias = Any  # NDArray | pa.Array
Columns: TypeAlias = dict[str, Column]


def column_numbers(table: pa.Table, name: str) -> Int64s:
    """A column of a table without nulls."""
    found: Int64s = table[name].to_numpy()
    return found


def whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One contiguous array."""
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column


def full(value: Values, n: int) -> Values:
    """A constant as a column of so many rows; what is a column stays as it is."""
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, n) if value.is_valid else pa.nulls(n, value.type)


def on_arrays(function: Callable[..., Values]) -> Callable[..., Values]:
    """A function whose first argument is an array and whose others are arrays or scalars, for any mixture of both.

    It is called as the functions of expressions are, with the type of the result before the values.
    """

    def applied(_: object, *args: Values) -> Values:
        first, *more = [arg if isinstance(arg, pa.Scalar) else whole(arg) for arg in args]
        n = next((len(arg) for arg in (first, *more) if not isinstance(arg, pa.Scalar)), None)
        result = function(full(first, 1 if n is None else n), *more)  # Python has no value for every scalar
        return result if n is not None else result[0]

    return applied


def each(function: Callable[..., Any], type: pa.DataType) -> Callable[..., Values]:
    """A function of single values: once for every distinct text if the rest is constant, else once for every row."""

    def applied(first: pa.Array, *more: Values) -> Values:
        if not all(isinstance(arg, pa.Scalar) for arg in more):
            columns = [repeat(arg.as_py()) if isinstance(arg, pa.Scalar) else arg.to_pylist() for arg in more]
            rows = zip(first.to_pylist(), *columns, strict=False)
            return pa.array([None if None in row else function(*row) for row in rows], type)
        constants = [arg.as_py() for arg in more]
        if None in constants:
            return pa.nulls(len(first), type)
        known = first.dictionary_encode()
        made = pa.array([function(text, *constants) for text in known.dictionary.to_pylist()], type)
        return made.take(known.indices)

    return applied


def places_in_blocks(start: Int64s, count: Int64s, most: int) -> Iterator[tuple[slice, Int64s]]:
    """Of rows that have `count` places each, from `start` on: some rows at a time, and their places.

    A block has at most so many places, or a single row.
    """
    until = np.cumsum(count)
    done = 0
    while done < len(count):
        before = int(until[done - 1]) if done else 0
        upto = max(done + 1, int(np.searchsorted(until, before + most, "right")))
        some = slice(done, upto)
        shift = np.repeat(start[some] - (until[some] - count[some] - before), count[some])
        yield some, shift + np.arange(len(shift))
        done = upto


def room(n: int, kind: type[np.generic] | np.dtype[Any] = np.int64) -> NDArray[Any]:
    """Memory for so many, in which anything may be: Arrow's, which keeps some of what is given back. What the system
    gives is cleared first, which takes longer than to write a column."""
    kind = np.dtype(kind)
    return np.frombuffer(memoryview(pa.allocate_buffer(n * kind.itemsize)), kind, n)


def places_in(order: Int64s) -> Int64s:
    """Where in an order each place stands.

    >>> places_in(np.array([2, 0, 1])).tolist()
    [1, 2, 0]
    """
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def take(columns: Columns, index: Int64s) -> Columns:
    places = None if all(isinstance(v, np.ndarray) for v in columns.values()) else pa.array(index)
    return {k: v[index] if isinstance(v, np.ndarray) else v.take(places) for k, v in columns.items()}


def piece(columns: Columns, low: int, high: int) -> Columns:
    """Rows that lie together, without copying them: whoever keeps them keeps all."""
    return {name: column[low:high] for name, column in columns.items()}


def filtered(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    mask = pa.array(keep)
    return {k: v[keep] if isinstance(v, np.ndarray) else v.filter(mask) for k, v in columns.items()}


def concat(parts: Sequence[Columns]) -> Columns:
    if len(parts) == 1:
        return parts[0]
    return {
        k: np.concatenate([p[k] for p in parts])
        if isinstance(parts[0][k], np.ndarray)
        else pa.concat_arrays([p[k] for p in parts])
        for k in parts[0]
    }


def to_table(columns: Columns) -> pa.Table:
    """As an Arrow table, without copying."""
    return pa.table({k: pa.array(v) if isinstance(v, np.ndarray) else v for k, v in columns.items()})


def to_numpy(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """A column without nulls as NumPy: temporal types as int64, booleans as int64."""
    array = whole(column)
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    elif pa.types.is_temporal(array.type):
        array = array.view(pa.int32()) if array.type.bit_width == 32 else array.view(pa.int64())
    if array.null_count:
        array = array.fill_null(0)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values


def decimal_words(array: pa.Array) -> Int64s:
    """The unscaled value of each DECIMAL as two words, the lower first; whatever lies there where it is null."""
    return np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), 16 * array.offset).reshape(-1, 2)


def normal_floats(array: pa.Array) -> pa.Array:
    """Floats as SQL groups and compares them: one NaN, no negative zero."""
    if not pa.types.is_floating(array.type):
        return array
    array = pc.if_else(pc.equal(array, 0.0), pa.scalar(0.0, array.type), array)
    return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)


def fits(span: int, rows: int) -> bool:
    """Whether a table of all codes that there may be is worth its room, for so many rows."""
    return span <= max(4 * rows, 1 << 18)


def compact(codes: Int64s, span: int) -> tuple[Int64s, Int64s]:
    """The distinct codes in rising order, and each row's place among them. Codes lie in [0, span)."""
    if fits(span, len(codes)):
        seen = np.zeros(span, np.bool_)
        seen[codes] = True
        distinct = np.flatnonzero(seen)
        place = np.empty(span, np.int64)
        place[distinct] = np.arange(len(distinct))
        return distinct, place[codes]
    distinct, inverse = np.unique(codes, return_inverse=True)
    return distinct, inverse.astype(np.int64, copy=False)


def distinct_pairs(major: Int64s, minor: Int64s, many: int) -> tuple[Int64s, Int64s, Int64s]:
    """The distinct (major, minor) pairs in rising order, and each row's place among them. Minors lie in [0, many)."""
    least = int(major.min())
    span = (int(major.max()) - least + 1) * many
    if span < 2**62:
        distinct, slot = compact((major - least) * many + minor, span)
        return distinct // many + least, distinct % many, slot
    ranks, rank = np.unique(major, return_inverse=True)
    distinct, slot = compact(rank * many + minor, len(ranks) * many)
    return ranks[distinct // many], distinct % many, slot
