"""Spark's functions of text as Arrow compute: by code points, as Spark counts, and never by bytes.

What Arrow does alike for every text is done by Arrow, on whole columns; the rest goes once for every distinct text (or
row of texts). The planner (`compile.text_rules`) lets through only arguments for which this is Spark's own answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from borealis.kernels.columns import Values, each, on_arrays
from borealis.kernels.regex import like_regex

_STRING = pa.string()
_EMPTY = pa.scalar("", _STRING)
_INT_MAX = 2**31 - 1


class NoSuchPartError(Exception):
    """An index behind the end of what a text was split into."""


# --- arrays and constants -------------------------------------------------------------------------------------------


def _either(
    python: Callable[..., Any],
    arrow: Callable[..., Values],
    type: pa.DataType = _STRING,
    when: Callable[..., Any] = lambda *_: True,
) -> Callable[..., Values]:
    """A function that Arrow computes if all arguments but the text are constants for which it does as Spark does."""
    every = each(python, type)

    def applied(texts: pa.Array, *more: Values) -> Values:
        if all(isinstance(arg, pa.Scalar) and arg.is_valid for arg in more):
            constants = [arg.as_py() for arg in more]
            if when(texts, *constants):
                return arrow(texts, *constants)
        return every(texts, *more)

    return on_arrays(applied)


def _planned(function: Callable[..., Values]) -> Callable[..., Values]:
    """A function of a text and of constants that the planner has looked at."""
    return on_arrays(lambda texts, *more: function(texts, *(arg.as_py() for arg in more)))


def _ascii(texts: pa.Array, *_: Any) -> bool:
    return bool(pc.all(pc.string_is_ascii(texts)).as_py() is not False)


def _emptied(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_valid(texts), _EMPTY, texts)


# --- upper and lower case -------------------------------------------------------------------------------------------
# Spark asks ICU 78 (Unicode 17); Python 3.11 knows Unicode 14. These are all the letters on which the two differ.

_NEWER_LOWER = [0x19B, 0x264, 0x1C8A, 0xA7CD, 0xA7CF, 0xA7D3, 0xA7D5, 0xA7DB, *range(0x10D70, 0x10D86)]
_NEWER_UPPER = [0xA7DC, 0xA7CB, 0x1C89, 0xA7CC, 0xA7CE, 0xA7D2, 0xA7D4, 0xA7DA, *range(0x10D50, 0x10D66)]
_TO_UPPER = dict(zip([*_NEWER_LOWER, *range(0x16EBB, 0x16ED4)], [*_NEWER_UPPER, *range(0x16EA0, 0x16EB9)], strict=True))
_TO_LOWER = {upper: lower for lower, upper in _TO_UPPER.items()}

# The last sigma of a word is another letter than one within it. Where words end depends on these, too.
_NEWER_CASED = "1c89-1c8a a7cb-a7cf a7d2 a7d4 a7da-a7dc 10d50-10d65 10d70-10d85 16ea0-16eb8 16ebb-16ed3 1df25-1df2a"
_NEWER_IGNORED = (
    "897 ece 1acf-1add 1ae0-1aeb a7f1 10d4e 10d69-10d6d 10d6f 10ec5 10efa-10eff 11241 113bb-113c0 113ce 113d0 113d2 "
    "113e1-113e2 11b60 11b62-11b64 11b66 11dd9 11f00-11f01 11f36-11f3a 11f40 11f42 11f5a 13439-13440 13447-13455 "
    "1611e-16129 1612d-1612f 16d40-16d42 16d6b-16d6c 16ff2-16ff3 1e030-1e06d 1e08f 1e4eb-1e4ef 1e5ee-1e5ef 1e6e3 "
    "1e6e6 1e6ee-1e6ef 1e6f5 1e6ff"
)
_NEWER_OTHER = "295 1171e"


def _points(ranges: str) -> list[int]:
    ends = [[int(end, 16) for end in part.split("-")] for part in ranges.split()]
    return [point for end in ends for point in range(end[0], end[-1] + 1)]


_STAND_INS = (
    dict.fromkeys(_points(_NEWER_CASED), "a")
    | dict.fromkeys(_points(_NEWER_IGNORED), "\u0301")
    | dict.fromkeys(_points(_NEWER_OTHER), " ")
)


def upper_of(text: str) -> str:
    """
    >>> upper_of("straße")
    'STRASSE'
    """
    return text.translate(_TO_UPPER).upper()


def lower_of(text: str) -> str:
    """
    >>> lower_of("ΟΔΟΣ")
    'οδος'
    """
    if "Σ" in text and not _STAND_INS.keys().isdisjoint(map(ord, text)):
        shadow = text.translate(_STAND_INS)
        text = "".join(_sigma(shadow, i) if sign == "Σ" else sign for i, sign in enumerate(text))
    return text.translate(_TO_LOWER).lower()


def _sigma(text: str, i: int) -> str:
    last = (text[:i] + "Σ").lower().endswith("ς") and ("AΣ" + text[i + 1 :]).lower()[1] == "ς"
    return "ς" if last else "σ"


# --- parts of a text ------------------------------------------------------------------------------------------------


def _cut(text: str, position: int, length: int) -> str:
    """Spark counts from 1, takes 0 for 1, and from the end if negative: before the beginning, too."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = start + length
    return text[max(start, 0) : end] if end > max(start, 0) else ""


def _slice(texts: pa.Array, position: int, length: int) -> Values:
    """
    >>> _slice(pa.array(["abcd", "b"]), -3, 2).to_pylist()
    ['bc', '']
    """
    if length <= 0:
        return _emptied(texts)
    if position < 0:
        end = position + length
        return pc.utf8_slice_codeunits(texts, position, None if end >= 0 else end)
    first = max(position - 1, 0)
    return pc.utf8_slice_codeunits(texts, first, min(first + length, _INT_MAX))


def _trim(python: Callable[..., str], arrow: Callable[..., Values]) -> Callable[..., Values]:
    """Signs of a set cut off at the ends; only spaces if no set is given."""
    return _either(
        python, lambda texts, signs=" ": arrow(texts, characters=signs), when=lambda _, *signs: signs != ("",)
    )


def _split_part(texts: pa.Array, sign: str, number: int) -> Values:
    """The part of this number, counted from 1 or from the end if negative; empty if there is none."""
    return _part(pc.split_pattern(texts, sign), number - 1 if number > 0 else number, strict=False)


def _split_item(texts: pa.Array, sign: str, limit: int, index: int) -> Values:
    """split(text, sign, limit)[index]. Raises NoSuchPartError if a text has not so many parts."""
    return _part(pc.split_pattern(texts, sign, max_splits=limit - 1 if limit > 0 else None), index, strict=True)


def _part(parts: pa.ListArray, index: int, *, strict: bool) -> Values:
    if not len(parts):
        return pa.nulls(0, _STRING)
    offsets = parts.offsets.to_numpy()
    starts, ends = offsets[:-1], offsets[1:]
    wanted = starts + index if index >= 0 else ends + index
    valid = pc.is_valid(parts).to_numpy(zero_copy_only=False)
    there = (wanted >= starts) & (wanted < ends)
    absent = valid & ~there
    if strict and absent.any():
        raise NoSuchPartError(f"no part {index} among {(ends - starts)[absent][0]}")
    found = parts.values.take(pa.array(np.where(there, wanted, 0), mask=~(there & valid)))
    return pc.if_else(pa.array(absent), _EMPTY, found) if absent.any() else found


def _substring_index(texts: pa.Array, sign: str, count: int) -> Values:
    """What is before the count-th sign, or behind it counted from the end if negative; the sign is one character."""
    if count == 0:
        return _emptied(texts)
    n = abs(count)
    before = each(lambda text: sign.join(text.split(sign, n)[:n]), _STRING)
    return before(texts) if count > 0 else pc.utf8_reverse(before(pc.utf8_reverse(texts)))


# --- other texts from texts -----------------------------------------------------------------------------------------


def _concat_ws(_: object, separator: Values, *args: Values) -> Values:
    """Nulls are left out; a null separator makes null. (Arrow's own way to leave them out shifts the rows.)"""
    made, begun = pc.coalesce(args[0], _EMPTY), pc.is_valid(args[0])
    for arg in args[1:]:
        text, there = pc.coalesce(arg, _EMPTY), pc.is_valid(arg)
        both = pc.binary_join_element_wise(made, text, separator)
        made = pc.if_else(pc.and_(begun, there), both, pc.if_else(there, text, made))
        begun = pc.or_(begun, there)
    return pc.if_else(pc.is_valid(separator), made, pa.scalar(None, _STRING))


def _pad(arrow: Callable[..., Values], *, left: bool) -> Callable[..., Values]:
    """Filled up with signs to a length in code points; what is longer is cut off at the right."""

    def filled(text: str, length: int, signs: str) -> str:
        missing = length - len(text)
        if missing <= 0 or not signs:
            return text[: max(length, 0)]
        more = (signs * (missing // len(signs) + 1))[:missing]
        return more + text if left else text + more

    def padded(texts: pa.Array, length: int, sign: str) -> Values:
        return pc.utf8_slice_codeunits(arrow(texts, width=length, padding=sign), 0, length)

    return _either(filled, padded, when=lambda _, length, signs: length > 0 and len(signs) == 1)


def _translate(texts: pa.Array, old: str, new: str) -> Values:
    """Each sign of `old` becomes the one at its place in `new`, or goes if there is none."""
    table: dict[int, str] = {}
    for i, sign in enumerate(old):
        table.setdefault(ord(sign), new[i] if i < len(new) else "")
    return each(lambda text: text.translate(table), _STRING)(texts)


# --- numbers from texts ---------------------------------------------------------------------------------------------


def _locate(part: pa.Array, texts: Values, start: Values) -> Values:
    """Where the part is for the first time from `start` on, counted from 1; 0 if nowhere, and if `start` is null."""

    def located(part: str, text: str, start: int) -> int:
        return 0 if start < 1 else text.find(part, start - 1) + 1 if part else 1

    found = each(located, pa.int32())(part, texts, start)
    return pc.if_else(pc.is_null(start), pa.scalar(0, pa.int32()), found)


# --- patterns -------------------------------------------------------------------------------------------------------


def _like(texts: pa.Array, pattern: str) -> Values:
    regex = like_regex(pattern)
    assert regex is not None
    return pc.match_substring_regex(texts, regex)


def _regexp_extract(texts: pa.Array, regex: str) -> Values:
    """The group called x of the first match; empty if there is no match or the group is not in it."""
    found = pc.struct_field(pc.extract_regex(texts, regex), "x")
    return pc.if_else(pc.is_valid(texts), pc.coalesce(found, _EMPTY), pa.scalar(None, _STRING))


_lower = _either(lower_of, pc.ascii_lower, when=_ascii)

FUNCTIONS: dict[str, Callable[..., Values]] = {
    "upper": _either(upper_of, pc.ascii_upper, when=_ascii),
    "lower": _lower,
    "substring": _either(_cut, _slice),
    "left": _either(lambda text, n: _cut(text, 1, n), lambda texts, n: _slice(texts, 1, n)),
    "right": _either(
        lambda text, n: text[-n:] if n > 0 else "",
        lambda texts, n: pc.utf8_slice_codeunits(texts, -n, None),
        when=lambda _, n: n > 0,
    ),
    "trim": _trim(str.strip, pc.utf8_trim),
    "ltrim": _trim(str.lstrip, pc.utf8_ltrim),
    "rtrim": _trim(str.rstrip, pc.utf8_rtrim),
    "split_part": _planned(_split_part),
    "split_item": _planned(_split_item),
    "substring_index": _planned(_substring_index),
    "concat_ws": _concat_ws,
    "replace": _either(
        lambda text, old, new: text.replace(old, new) if old else text,
        pc.replace_substring,
        when=lambda _, old, new: old,
    ),
    "repeat": _planned(lambda texts, times: pc.binary_repeat(texts, max(times, 0))),
    "lpad": _pad(pc.utf8_lpad, left=True),
    "rpad": _pad(pc.utf8_rpad, left=False),
    "reverse": _planned(pc.utf8_reverse),
    "translate": _planned(_translate),
    "locate": on_arrays(_locate),
    "position": _either(
        lambda text, part: text.find(part) + 1,
        lambda texts, part: pc.add(pc.find_substring(texts, part), pa.scalar(1, pa.int32())),
        pa.int32(),
        when=lambda texts, part: part and _ascii(texts),
    ),
    "ascii": on_arrays(each(lambda text: ord(text[0]) if text else 0, pa.int32())),
    "octet_length": _planned(pc.binary_length),
    "bit_length": _planned(lambda texts: pc.multiply(pc.binary_length(texts), pa.scalar(8, pa.int32()))),
    "like": _planned(_like),
    "ilike": _planned(lambda texts, pattern: _like(_lower(None, texts), lower_of(pattern))),
    "rlike": _planned(pc.match_substring_regex),  # the planner has translated the patterns
    "regexp_replace": _planned(pc.replace_substring_regex),
    "regexp_extract": _planned(_regexp_extract),
    "starts_with": _either(str.startswith, pc.starts_with, pa.bool_()),
    "ends_with": _either(str.endswith, pc.ends_with, pa.bool_()),
    "contains": _either(str.__contains__, pc.match_substring, pa.bool_()),
}
