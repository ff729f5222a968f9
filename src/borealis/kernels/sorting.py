"""Rows in one order, whatever the order they came in: by numbers, and where these are equal by values, as SQL sorts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.kernels.columns import column_numbers, to_numpy, whole
from borealis.state.keys import WORD_BITS, sorted_with_places
from borealis.tuples import Int64s


def in_order(keys: Sequence[Int64s], ties: Sequence[pa.Array]) -> Int64s:
    """The places of rows sorted by keys, then by the values in `ties`; what is equal in all of them stays as it came.

    Values are looked at only where keys are equal, which is rare for times.

    >>> in_order([np.array([2, 1, 1])], [pa.array(["a", "b", None])]).tolist()
    [2, 1, 0]
    """
    order = np.arange(len(keys[0]))
    for key in reversed(keys):
        order = order[stable_order(key[order])]
    if not ties or len(order) < 2:
        return order
    same = np.ones(len(order) - 1, np.bool_)
    for key in keys:
        ranked = key[order]
        same &= ranked[1:] == ranked[:-1]
    if not same.any():
        return order
    tied = np.append(same, False) | np.insert(same, 0, False)
    run = np.insert(np.cumsum(~same), 0, 0)[tied]
    rows = order[tied]
    ranks = [ranks_of(column.take(pa.array(rows))) for column in ties]
    order[tied] = rows[np.lexsort((*reversed(ranks), run))]
    return order


def stable_order(key: Int64s) -> Int64s:
    """The places of rows sorted by one key; equal ones stay as they are. Fast for rows in order, and where places fit
    into the words of the keys.

    >>> stable_order(np.array([7, 5, 7, 5])).tolist()
    [1, 3, 0, 2]
    """
    if not len(key) or not np.any(key[1:] < key[:-1]):
        return np.arange(len(key))
    least, most = int(key.min()), int(key.max())
    if (most - least).bit_length() + len(key).bit_length() > WORD_BITS:
        return np.argsort(key, kind="stable")
    return sorted_with_places(key - least, (most - least).bit_length())[1]


def newest(*key: Int64s) -> Int64s:
    """The places of rows in order of their key; of several with the same key only the last.

    >>> newest(np.array([7, 5, 7]), np.array([1, 2, 1])).tolist()
    [1, 2]
    """
    order = np.lexsort(tuple(reversed(key)))
    same: NDArray[np.bool_] = np.logical_and.reduce([one[order][1:] == one[order][:-1] for one in key])
    places: Int64s = order[np.append(~same, True)[: len(order)]]
    return places


def without(table: pa.Table, keys: pa.Table, names: Sequence[str]) -> pa.Table:
    """The rows whose key, of numbers, is not among these, in order of their keys, which are unique on both sides."""
    both = (np.concatenate([column_numbers(table, name), column_numbers(keys, name)]) for name in names)
    places = newest(*both)
    return table.take(pa.array(places[places < len(table)]))


def ranks_of(column: pa.Array | pa.ChunkedArray) -> Int64s:
    """Numbers in the order of the values as Spark SQL sorts them: nulls first, NaN last, one zero.

    Structs go by their fields, one after the other, and arrays by their elements, a shorter one before a longer.

    >>> ranks_of(pa.array([1.5, None, float("nan"), -0.0, 0.0])).tolist()
    [1, -1, 2, 0, 0]
    >>> ranks_of(pa.array([[2], [1, None], [1], [], None])).tolist()
    [3, 2, 1, 0, -1]
    """
    values = whole(column)
    kind = values.type
    if pa.types.is_null(kind):
        return np.full(len(values), -1)
    if pa.types.is_struct(kind):
        ranks = _ranks_of_structs(values)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        ranks = _ranks_of_lists(values)
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        _, ranks = np.unique(to_numpy(values), return_inverse=True)
    else:
        coded = values.dictionary_encode()
        distinct = coded.dictionary
        sortable = distinct.cast(pa.int8()) if pa.types.is_boolean(kind) else distinct
        rank = np.empty(len(distinct), np.int64)
        rank[pc.sort_indices(sortable).to_numpy()] = np.arange(len(distinct))
        ranks = rank[coded.indices.fill_null(0).to_numpy()] if len(distinct) else np.zeros(len(values), np.int64)
    ranks = ranks.astype(np.int64, copy=False)
    if values.null_count:
        ranks = np.where(values.is_valid().to_numpy(zero_copy_only=False), ranks - ranks.min(), -1)
    return ranks


def _ranks_of_structs(values: pa.StructArray) -> Int64s:
    """A field at a time: what is equal so far is told apart by the next one."""
    ranks = np.zeros(len(values), np.int64)
    for field in values.flatten():
        own = ranks_of(field) + 1
        _, inverse = np.unique(ranks * (int(own.max(initial=0)) + 1) + own, return_inverse=True)
        ranks = inverse.astype(np.int64, copy=False)
    return ranks


def _ranks_of_lists(values: pa.ListArray) -> Int64s:
    values = values.fill_null([]) if values.null_count else values
    elements = ranks_of(values.flatten()).tolist()
    ends = np.cumsum(pc.list_value_length(values).to_numpy(zero_copy_only=False)).tolist()
    lists = [tuple(elements[start:end]) for start, end in zip([0, *ends], ends, strict=False)]
    rank = {one: i for i, one in enumerate(sorted(set(lists)))}
    return np.array([rank[one] for one in lists], np.int64)
