"""Keys of a join as numbers, and the index by which rows of a key near in time are found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.columns import decimal_words, to_numpy
from borealis.kernels.flow import NOTHING
from borealis.kernels.xxhash import bytes_of
from borealis.state.keys import WORD_BITS, sorted_with_places
from borealis.tuples import Int64s

SORT_PROBES_ABOVE = 1 << 12  # a larger index leaves the nearest cache, and is then walked in order
LONG_STRING_BYTES = 128  # longer strings are hashed one by one

_MIX_1 = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xD6E8FEB86659FD93)
_SHIFT = np.uint64(32)


# --- keys as words ----------------------------------------------------------------------------------------------------


def is_text(kind: pa.DataType) -> bool:
    return any(is_a(kind) for is_a in _TEXT)


_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def words_of(column: pa.ChunkedArray) -> list[Int64s]:
    """A key column without nulls as int64 words: equal values have equal words. For text the converse does not hold."""
    pieces = [_words(piece) for piece in column.chunks if len(piece)]
    if not pieces:
        return [NOTHING] * _word_count(column.type)
    return pieces[0] if len(pieces) == 1 else [np.concatenate(words) for words in zip(*pieces, strict=True)]


def _word_count(kind: pa.DataType) -> int:
    return 2 if pa.types.is_decimal128(kind) and kind.precision > 18 else 1  # 18 digits fit into one word


def _words(array: pa.Array) -> list[Int64s]:
    kind = array.type
    if is_text(kind):
        return [hash_text(array)]
    if pa.types.is_decimal128(kind):
        return [np.ascontiguousarray(decimal_words(array)[:, i]) for i in range(_word_count(kind))]
    if pa.types.is_floating(kind):
        numbers = array.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0  # -0.0 becomes 0.0
        numbers[np.isnan(numbers)] = np.nan  # one NaN of the many
        return [numbers.view(np.int64)]
    return [to_numpy(array).astype(np.int64, copy=False)]


def hash_text(array: pa.Array) -> Int64s:
    """A 64-bit hash per string or binary, eight bytes of all at a time; of short ones in half the time of xxhash64."""
    data, start, length = bytes_of(array)
    eights = np.ndarray((len(data) - 7,), np.uint64, buffer=data.data, strides=(1,))  # read at every start
    hashes = length.astype(np.uint64) * _MIX_1
    long = length > LONG_STRING_BYTES
    left = np.where(long, 0, length) if long.any() else length
    rows, at = np.arange(len(array)), start
    done = 0
    while len(left) and int(left.max()) > done:
        if int(left.min()) <= done:  # from here on, only the strings that are longer
            more = np.flatnonzero(left > done)
            rows, left, at = rows[more], left[more], at[more]
        word = eights[at + done]
        spare = np.maximum(8 - (left - done), 0).astype(np.uint64) * np.uint64(8)
        word = (word << spare) >> spare
        hashes[rows] = _mixed(hashes[rows], word)
        done += 8
    for i in np.flatnonzero(long).tolist():
        hashes[i] = np.uint64(hash(data[start[i] : start[i] + length[i]].tobytes()) & (2**64 - 1))
    return hashes.view(np.int64)


def _mixed(state: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ word) * _MIX_1
    state ^= state >> _SHIFT
    state *= _MIX_2
    return state


def _hash_words(words: list[Int64s], bits: int) -> Int64s:
    """The first `bits` bits of a hash of all words."""
    state = np.zeros(len(words[0]), np.uint64)
    for word in words:
        state = _mixed(state, word.view(np.uint64))
    state ^= state >> _SHIFT
    state *= _MIX_1
    return (state >> np.uint64(64 - bits)).view(np.int64)


def mixed_numbers(numbers: list[Int64s]) -> Int64s:
    """Rows as one number each: equal if all their numbers are, and else nearly always different."""
    return _hash_words(numbers, WORD_BITS)


# --- the index --------------------------------------------------------------------------------------------------------


class Index:
    """Where in a chunk the rows of a key and a span of time stand. `sure` says that equal codes are equal words."""

    def __init__(self, words: list[Int64s], time: Int64s, first: int, last: int) -> None:
        self.first, self.last = first, last
        n = len(time)
        place_bits = n.bit_length()
        self.ranks: Int64s | None = None  # the chunk's distinct times, when their span is too wide
        self.span = last - first + 1
        self.low = int(words[0].min()) if len(words) == 1 else 0
        self.codes = int(words[0].max()) - self.low + 1 if len(words) == 1 else 1
        if not self._fit(words, WORD_BITS - place_bits, place_bits + 3):
            self.ranks = np.unique(time)
            self.span = len(self.ranks)
            if not self._fit(words, WORD_BITS - place_bits, place_bits + 1):
                self._fit(words, WORD_BITS, 1)
        moment = time - first if self.ranks is None else np.searchsorted(self.ranks, time)
        composite = self._code(words) * self.span + moment if words else moment
        self.composite, self.places = sorted_with_places(composite, (self.codes * self.span).bit_length())

    def _fit(self, words: list[Int64s], room_bits: int, hash_bits_least: int) -> bool:
        """Whether code and time fit into `room_bits`; chooses the key itself as code, or else as much hash as fits."""
        self.hash_bits = 0
        self.sure = len(words) < 2 and (self.codes * self.span).bit_length() <= room_bits
        if self.sure:
            return True
        self.hash_bits = room_bits - self.span.bit_length()
        if self.hash_bits < hash_bits_least:
            return False
        self.codes = 1 << self.hash_bits
        return True

    def _code(self, words: list[Int64s]) -> Int64s:
        return _hash_words(words, self.hash_bits) if self.hash_bits else words[0] - self.low

    def slices(self, words: list[Int64s], early: Int64s, late: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """For rows that look for partners from `early` to `late`: which rows may have some, and the slice of `places`
        where they are, from and until."""
        if self.ranks is None:
            start = np.where(early > self.last, self.span, np.maximum(early, self.first) - self.first)
            end = np.where(late < self.first, 0, np.minimum(late, self.last) - self.first + 1)
        else:
            start, end = np.searchsorted(self.ranks, early), np.searchsorted(self.ranks, late, side="right")
        inside = start < end
        if words and not self.hash_bits:
            inside &= (words[0] >= self.low) & (words[0] <= self.low + self.codes - 1)
        who = np.flatnonzero(inside)
        if len(who) < len(inside):
            words, start, end = [w[who] for w in words], start[who], end[who]
        if words:
            base = self._code(words) * self.span
            start, end = base + start, base + end
        if len(who) > 1 and len(self.composite) > SORT_PROBES_ABOVE:
            start, order = sorted_with_places(start, (self.codes * self.span).bit_length())
            who, end = who[order], end[order]  # ends rise with starts: the window has one width
        start = np.searchsorted(self.composite, start)
        return who, start, np.searchsorted(self.composite, end) if self.span > 1 else self._runs(start, end)

    def _runs(self, start: Int64s, end: Int64s) -> Int64s:
        """Where runs of single codes end that start here, if they are there: most have one row."""
        most = len(self.composite) - 1
        until = start + ((start <= most) & (self.composite[np.minimum(start, most)] < end))
        more = np.flatnonzero((until <= most) & (self.composite[np.minimum(until, most)] < end))
        until[more] = np.searchsorted(self.composite, end[more])
        return until

    def places_of(self, words: list[Int64s], time: Int64s) -> Int64s:
        """Where rows stand that may have the key and have the time of any of these; rising."""
        _, start, end = self.slices(words, time, time)
        found = end > start
        start, end = np.unique(start[found]), np.unique(end[found])  # slices of one moment are the same or apart
        count = end - start
        return np.sort(self.places[np.repeat(start - (np.cumsum(count) - count), count) + np.arange(count.sum())])


def pairs_in_order(cause: Int64s, l_place: Int64s, r_place: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """The pairs sorted by cause, left place, right place; packed into one word where they fit."""
    first = int(cause.min())
    c_bits = (int(cause.max()) - first).bit_length()
    l_bits, r_bits = int(l_place.max()).bit_length(), int(r_place.max()).bit_length()
    if c_bits + l_bits + r_bits > WORD_BITS:
        order = np.lexsort((r_place, l_place, cause))
        return cause[order], l_place[order], r_place[order]
    packed = ((cause - first) << (l_bits + r_bits)) | (l_place << r_bits) | r_place
    packed.sort()
    l_sorted = (packed >> r_bits) & ((1 << l_bits) - 1)
    return (packed >> (l_bits + r_bits)) + first, l_sorted, packed & ((1 << r_bits) - 1)
