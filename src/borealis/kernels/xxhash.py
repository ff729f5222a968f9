"""Spark's `xxhash64` over whole columns: the same 64 bits as Spark gives, so that both choose the same tuples.

The columns of a row are chained: the hash of one is the seed of the next, and a null passes its seed on. Strings,
binaries and large decimals are hashed by their bytes (XXH64), everything else as one integer.

>>> xxhash64([pa.array([1, None], pa.int32())], 2).to_pylist()
[-6698625589789238999, 42]
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import decimal_words, normal_floats, to_numpy, whole
from borealis.tuples import Int64s

Words = NDArray[np.uint64]

SEED = 42  # Spark's own
LONG_DECIMAL_DIGITS = 18  # up to here Spark hashes a decimal's unscaled value as a long
STRIPE_BYTES = 32
BLOCK_ROWS = 1 << 13  # hashed at once: what is in between stays in the nearest cache

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
_LOW_32 = np.uint64(0xFFFFFFFF)


def xxhash64(columns: list[Any], rows: int) -> pa.Array:
    """The hash of each row; a column may be a scalar. It must be of one of the types that `can_hash` knows."""
    state = np.full(rows, SEED, np.uint64)
    for column in columns:
        full = pa.repeat(column, rows) if isinstance(column, pa.Scalar) else whole(column)
        if not full.null_count:
            state = _hashed(full, state)
            continue
        valid = np.flatnonzero(full.is_valid().to_numpy(zero_copy_only=False))
        state[valid] = _hashed(full.drop_null(), state[valid])
    return pa.array(state.view(np.int64))


def can_hash(kind: pa.DataType) -> bool:
    """Whether columns of this type are hashed here as Spark does it."""
    return kind in _INTS or kind in _LONGS or kind in _BYTES or kind in _FLOATS or pa.types.is_decimal128(kind)


_INTS = {pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32()}
_LONGS = {pa.int64(), pa.timestamp("us", "UTC")}
_FLOATS = {pa.float32(), pa.float64()}
_BYTES = {pa.string(), pa.binary()}


def _hashed(array: pa.Array, seed: Words) -> Words:
    """The hashes of values none of which is null."""
    kind = array.type
    if kind in _BYTES:
        return _hash_bytes(*bytes_of(array), seed)
    if pa.types.is_decimal128(kind):
        halves = decimal_words(array)
        if kind.precision <= LONG_DECIMAL_DIGITS:
            return _hash_longs(np.ascontiguousarray(halves[:, 0]), seed)
        return _hash_bytes(*_shortest_bytes(halves), seed)
    if kind in _FLOATS:
        array = normal_floats(array).view(pa.int32() if kind == pa.float32() else pa.int64())
    return (_hash_ints if kind.bit_width <= 32 else _hash_longs)(to_numpy(array), seed)


def _hash_ints(values: NDArray[Any], seed: Words) -> Words:
    state = seed + _P5 + np.uint64(4)
    return _finished(_with_int(state, values.astype(np.int64).view(np.uint64) & _LOW_32))


def _hash_longs(values: Int64s, seed: Words) -> Words:
    out = np.empty(len(values), np.uint64)
    for start in range(0, len(values), BLOCK_ROWS):
        some = slice(start, start + BLOCK_ROWS)
        out[some] = _finished(_with_long(seed[some] + _P5 + np.uint64(8), values[some].view(np.uint64)))
    return out


def _with_int(state: Words, word: Words) -> Words:
    return _turned(state ^ (word * _P1), 23) * _P2 + _P3


def _with_long(state: Words, word: Words) -> Words:
    return _turned(state ^ _round(np.zeros_like(word), word), 27) * _P1 + _P4


def _round(lane: Words, word: Words) -> Words:
    return _turned(lane + word * _P2, 31) * _P1


def _finished(state: Words) -> Words:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _turned(state: Words, bits: int) -> Words:
    return (state << np.uint64(bits)) | (state >> np.uint64(64 - bits))


# -- bytes: all rows at once, eight bytes of each at a time


def _hash_bytes(data: NDArray[np.uint8], start: Int64s, length: Int64s, seed: Words) -> Words:
    """The hashes of pieces of `data`, which has eight spare bytes at its end."""
    eights = np.ndarray((len(data) - 7,), "<u8", buffer=data.data, strides=(1,))
    state = seed + _P5
    stripes = length // STRIPE_BYTES
    long = np.flatnonzero(stripes)
    if len(long):
        state[long] = _hash_stripes(eights, start[long], stripes[long], seed[long])
    state += length.astype(np.uint64)
    done = stripes * STRIPE_BYTES
    for _ in range(STRIPE_BYTES // 8 - 1):
        more = np.flatnonzero(length - done >= 8)
        state[more] = _with_long(state[more], eights[start[more] + done[more]])
        done[more] += 8
    more = np.flatnonzero(length - done >= 4)
    state[more] = _with_int(state[more], eights[start[more] + done[more]] & _LOW_32)
    done[more] += 4
    for _ in range(3):
        more = np.flatnonzero(length > done)
        byte = data[start[more] + done[more]].astype(np.uint64)
        state[more] = _turned(state[more] ^ (byte * _P5), 11) * _P1
        done[more] += 1
    return _finished(state)


def _hash_stripes(eights: Words, start: Int64s, stripes: Int64s, seed: Words) -> Words:
    """The state after the whole stripes of 32 bytes, of which each row has at least one."""
    lanes = [seed + _P1 + _P2, seed + _P2, seed.copy(), seed - _P1]
    for stripe in range(int(stripes.max())):
        more = np.flatnonzero(stripes > stripe)
        at = start[more] + stripe * STRIPE_BYTES
        for i, lane in enumerate(lanes):
            lane[more] = _round(lane[more], eights[at + 8 * i])
    state = np.zeros_like(seed)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        state += _turned(lane, bits)
    for lane in lanes:
        state = (state ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    return state


def bytes_of(array: pa.Array) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
    """The bytes of strings or binaries and eight more, and where each starts and how long it is."""
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or not len(array):
        return np.zeros(8, np.uint8), np.zeros(len(array), np.int64), np.zeros(len(array), np.int64)
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    every = np.frombuffer(offset_buffer, np.int64 if wide else np.int32)
    offsets: Int64s = every[array.offset : array.offset + len(array) + 1].astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)
    if last > first:
        data[:-8] = np.frombuffer(data_buffer, np.uint8)[first:last]
    return data, offsets[:-1] - first, np.diff(offsets)


def _shortest_bytes(halves: Int64s) -> tuple[NDArray[np.uint8], Int64s, Int64s]:
    """Each 128-bit integer as Java's BigInteger writes it: highest byte first, no more than its sign needs."""
    rows = len(halves)
    data = np.zeros(16 * rows + 8, np.uint8)
    high_first = data[: 16 * rows].reshape(rows, 16)
    high_first[:] = np.ascontiguousarray(halves).view(np.uint8).reshape(rows, 16)[:, ::-1]
    sign = np.where(high_first[:, :1] >= 128, 255, 0)
    spare = (high_first[:, :-1] == sign) & ((high_first[:, 1:] >= 128) == (sign == 255))
    dropped = np.cumprod(spare, axis=1).sum(axis=1).astype(np.int64)
    return data, 16 * np.arange(rows) + dropped, 16 - dropped
