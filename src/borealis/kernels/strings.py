"""Spark's functions of text as Arrow compute: by code points, as Spark counts, and never by bytes.

What Arrow does alike for every text is done by Arrow, on whole columns; the rest goes once for every distinct text (or
row of texts). The planner (`plan.text_rules`) lets through only arguments for which this is Spark's own answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Values: TypeAlias = Any  # pa.Array | pa.ChunkedArray | pa.Scalar

_EMPTY = pa.scalar("", pa.string())
_INT_MAX = 2**31 - 1


class NoSuchPartError(Exception):
    """An index behind the end of what a text was split into."""

    def __init__(self, index: int, parts: int) -> None:
        super().__init__(f"no part {index} among {parts}")


# --- arrays and constants -------------------------------------------------------------------------------------------


def on_arrays(function: Callable[..., Values]) -> Callable[..., Values]:
    """A function whose first argument is an array and whose others are arrays or scalars, for any mixture of both."""

    def applied(_: object, first: Values, *more: Values) -> Values:
        args = [_one(arg) for arg in (first, *more)]
        n = next((len(arg) for arg in args if not isinstance(arg, pa.Scalar)), None)
        result = function(_repeated(args[0], 1 if n is None else n), *args[1:])  # Python has no value for every scalar
        return result if n is not None else result[0]

    return applied


def _one(values: Values) -> Values:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _repeated(value: Values, n: int) -> pa.Array:
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, n) if value.is_valid else pa.nulls(n, value.type)


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


def _constant(*args: Values) -> bool:
    """Whether these arguments are constants other than null."""
    return all(isinstance(arg, pa.Scalar) and arg.is_valid for arg in args)


def _ascii(texts: pa.Array) -> bool:
    return bool(pc.all(pc.string_is_ascii(texts)).as_py() is not False)


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
    """The text in upper case.

    >>> upper_of("straße")
    'STRASSE'
    """
    return text.translate(_TO_UPPER).upper()


def lower_of(text: str) -> str:
    """The text in lower case.

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


_upper, _lower = each(upper_of, pa.string()), each(lower_of, pa.string())


def upper(texts: pa.Array) -> Values:
    return pc.ascii_upper(texts) if _ascii(texts) else _upper(texts)


def lower(texts: pa.Array) -> Values:
    return pc.ascii_lower(texts) if _ascii(texts) else _lower(texts)


# --- parts of a text ------------------------------------------------------------------------------------------------


def _cut(text: str, position: int, length: int) -> str:
    """Spark counts from 1, takes 0 for 1, and from the end if negative: before the beginning, too."""
    start = position - 1 if position > 0 else len(text) + position if position < 0 else 0
    end = start + length
    return text[max(start, 0) : end] if end > max(start, 0) else ""


_cut_each = each(_cut, pa.string())


def substring(texts: pa.Array, position: Values, length: Values) -> Values:
    """
    >>> substring(pa.array(["abcd", "b"]), pa.scalar(-3), pa.scalar(2)).to_pylist()
    ['bc', '']
    """
    if not _constant(position, length):
        return _cut_each(texts, position, length)
    first, n = position.as_py(), length.as_py()
    if n <= 0:
        return pc.if_else(pc.is_valid(texts), _EMPTY, texts)
    if first < 0:
        end = first + n
        return pc.utf8_slice_codeunits(texts, first, None if end >= 0 else end)
    first = max(first - 1, 0)
    return pc.utf8_slice_codeunits(texts, first, min(first + n, _INT_MAX))


def left(texts: pa.Array, length: Values) -> Values:
    return substring(texts, pa.scalar(1, pa.int32()), length)


_right = each(lambda text, length: text[-length:] if length > 0 else "", pa.string())


def right(texts: pa.Array, length: Values) -> Values:
    if _constant(length) and length.as_py() > 0:
        return pc.utf8_slice_codeunits(texts, -length.as_py(), None)
    return _right(texts, length)


def trim(arrow: Callable[..., Values], python: Callable[[str, str], str]) -> Callable[..., Values]:
    """Signs of a set cut off at the ends; only spaces if no set is given."""
    every = each(python, pa.string())

    def applied(texts: pa.Array, signs: Values = pa.scalar(" ")) -> Values:  # noqa: B008 - a constant
        if _constant(signs) and signs.as_py():
            return arrow(texts, characters=signs.as_py())
        return every(texts, signs)

    return applied


def split_part(texts: pa.Array, sign: pa.Scalar, number: pa.Scalar) -> Values:
    """The part of this number, counted from 1 or from the end if negative; empty if there is none."""
    n = number.as_py()
    return _part(pc.split_pattern(texts, sign.as_py()), n - 1 if n > 0 else n, lambda _: "")


def split_item(texts: pa.Array, sign: pa.Scalar, limit: pa.Scalar, index: pa.Scalar) -> Values:
    """split(text, sign, limit)[index]. Raises NoSuchPartError if a text has not so many parts."""
    most = limit.as_py() - 1 if limit.as_py() > 0 else None
    i = index.as_py()

    def missing(parts: int) -> str:
        raise NoSuchPartError(i, parts)

    return _part(pc.split_pattern(texts, sign.as_py(), max_splits=most), i, missing)


def _part(parts: pa.ListArray, index: int, otherwise: Callable[[int], str]) -> Values:
    if not len(parts):
        return pa.nulls(0, pa.string())
    offsets = parts.offsets.to_numpy()
    starts, ends = offsets[:-1], offsets[1:]
    wanted = starts + index if index >= 0 else ends + index
    valid = pc.is_valid(parts).to_numpy(zero_copy_only=False)
    there = (wanted >= starts) & (wanted < ends)
    absent = valid & ~there
    instead = otherwise(int((ends - starts)[absent][0])) if absent.any() else ""
    found = parts.values.take(pa.array(np.where(there, wanted, 0), mask=~(there & valid)))
    return pc.if_else(pa.array(absent), pa.scalar(instead, pa.string()), found) if absent.any() else found


def substring_index(texts: pa.Array, sign: pa.Scalar, count: pa.Scalar) -> Values:
    """What is before the count-th sign, or behind it counted from the end if negative; the sign is one character."""
    n, mark = count.as_py(), sign.as_py()
    if n == 0:
        return pc.if_else(pc.is_valid(texts), _EMPTY, texts)
    if n > 0:
        return _index_from_left(texts, sign, count)
    return pc.utf8_reverse(_index_from_left(pc.utf8_reverse(texts), pa.scalar(mark), pa.scalar(-n)))


_index_from_left = each(lambda text, mark, n: mark.join(text.split(mark, n)[:n]), pa.string())


# --- other texts from texts -----------------------------------------------------------------------------------------


def concat_ws(_: object, separator: Values, *args: Values) -> Values:
    """Nulls are left out; a null separator makes null. (Arrow's own way to leave them out shifts the rows.)"""
    made, begun = pc.coalesce(args[0], _EMPTY), pc.is_valid(args[0])
    for arg in args[1:]:
        text, there = pc.coalesce(arg, _EMPTY), pc.is_valid(arg)
        both = pc.binary_join_element_wise(made, text, separator)
        made = pc.if_else(pc.and_(begun, there), both, pc.if_else(there, text, made))
        begun = pc.or_(begun, there)
    return pc.if_else(pc.is_valid(separator), made, pa.scalar(None, pa.string()))


_replace = each(lambda text, old, new: text.replace(old, new) if old else text, pa.string())


def replace(texts: pa.Array, old: Values, new: Values) -> Values:
    if _constant(old, new) and old.as_py():
        return pc.replace_substring(texts, old.as_py(), new.as_py())
    return _replace(texts, old, new)


def repeated(texts: pa.Array, times: pa.Scalar) -> Values:
    return pc.binary_repeat(texts, max(times.as_py(), 0))


def pad(arrow: Callable[..., Values], *, left: bool) -> Callable[..., Values]:
    """Filled up with signs to a length in code points; what is longer is cut off at the right."""

    def filled(text: str, length: int, signs: str) -> str:
        missing = length - len(text)
        if missing <= 0 or not signs:
            return text[: max(length, 0)]
        more = (signs * (missing // len(signs) + 1))[:missing]
        return more + text if left else text + more

    every = each(filled, pa.string())

    def applied(texts: pa.Array, length: pa.Scalar, signs: pa.Scalar) -> Values:
        if length.as_py() > 0 and len(signs.as_py()) == 1:
            full = arrow(texts, width=length.as_py(), padding=signs.as_py())
            return pc.utf8_slice_codeunits(full, 0, length.as_py())
        return every(texts, length, signs)

    return applied


def translate(texts: pa.Array, old: pa.Scalar, new: pa.Scalar) -> Values:
    """Each sign of `old` becomes the one at its place in `new`, or goes if there is none."""
    table: dict[int, str] = {}
    signs = new.as_py()
    for i, sign in enumerate(old.as_py()):
        table.setdefault(ord(sign), signs[i] if i < len(signs) else "")
    return each(lambda text: text.translate(table), pa.string())(texts)


# --- numbers from texts ---------------------------------------------------------------------------------------------


def locate(part: pa.Array, texts: Values, start: Values) -> Values:
    """Where the part is for the first time from `start` on, counted from 1; 0 if nowhere, and if `start` is null."""
    if isinstance(start, pa.Scalar) and start.as_py() == 1 and isinstance(texts, pa.Array) and len(part) == len(texts):
        return _position(texts, part)
    columns = [repeat(arg.as_py()) if isinstance(arg, pa.Scalar) else arg.to_pylist() for arg in (texts, start)]
    rows = zip(part.to_pylist(), *columns, strict=False)
    return pa.array([_locate(*row) for row in rows], pa.int32())


def _locate(part: str | None, text: str | None, start: int | None) -> int | None:
    if start is None:
        return 0
    if part is None or text is None:
        return None
    if start < 1:
        return 0
    return text.find(part, start - 1) + 1 if part else 1


_position = each(lambda text, part: text.find(part) + 1, pa.int32())


def position(texts: pa.Array, part: Values) -> Values:
    """instr(text, part)."""
    if _constant(part) and part.as_py() and _ascii(texts):
        return pc.add(pc.find_substring(texts, part.as_py()), pa.scalar(1, pa.int32()))
    return _position(texts, part)


first_code = on_arrays(each(lambda text: ord(text[0]) if text else 0, pa.int32()))


# --- patterns -------------------------------------------------------------------------------------------------------


@lru_cache
def like_regex(pattern: str, escape: str = "\\") -> str | None:
    """The RE2 of a LIKE pattern; None where Spark refuses the pattern.

    >>> like_regex("a_%")
    '(?s)\\\\Aa..*\\\\z'
    >>> like_regex("a\\\\") is None
    True
    """
    made: list[str] = []
    signs = iter(pattern)
    for sign in signs:
        if sign == escape:
            following = next(signs, None)
            if following not in ("_", "%", escape):
                return None
            made.append(_quoted(following))
        else:
            made.append({"_": ".", "%": ".*"}.get(sign) or _quoted(sign))
    return rf"(?s)\A{''.join(made)}\z"


def _quoted(sign: str) -> str:
    return f"\\{sign}" if sign.isascii() and not sign.isalnum() and sign.isprintable() and sign != " " else sign


def like(texts: pa.Array, pattern: pa.Scalar) -> Values:
    regex = like_regex(pattern.as_py())
    assert regex is not None
    return pc.match_substring_regex(texts, regex)


def ilike(texts: pa.Array, pattern: pa.Scalar) -> Values:
    return like(lower(texts), pa.scalar(lower_of(pattern.as_py())))


def matches(texts: pa.Array, regex: pa.Scalar) -> Values:
    """text RLIKE pattern; the planner has translated the pattern."""
    return pc.match_substring_regex(texts, regex.as_py())


def regex_replace(texts: pa.Array, regex: pa.Scalar, new: pa.Scalar) -> Values:
    return pc.replace_substring_regex(texts, regex.as_py(), new.as_py())


def regex_extract(texts: pa.Array, regex: pa.Scalar) -> Values:
    """The group called x of the first match; empty if there is no match or the group is not in it."""
    found = pc.struct_field(pc.extract_regex(texts, regex.as_py()), "x")
    return pc.if_else(pc.is_valid(texts), pc.coalesce(found, _EMPTY), pa.scalar(None, pa.string()))


def _test(arrow: Callable[..., Values], python: Callable[[str, str], bool]) -> Callable[..., Values]:
    every = each(python, pa.bool_())
    return on_arrays(lambda texts, part: arrow(texts, part.as_py()) if _constant(part) else every(texts, part))


FUNCTIONS: dict[str, Callable[..., Values]] = {
    "upper": on_arrays(upper),
    "lower": on_arrays(lower),
    "substring": on_arrays(substring),
    "left": on_arrays(left),
    "right": on_arrays(right),
    "trim": on_arrays(trim(pc.utf8_trim, str.strip)),
    "ltrim": on_arrays(trim(pc.utf8_ltrim, str.lstrip)),
    "rtrim": on_arrays(trim(pc.utf8_rtrim, str.rstrip)),
    "split_part": on_arrays(split_part),
    "split_item": on_arrays(split_item),
    "substring_index": on_arrays(substring_index),
    "concat_ws": concat_ws,
    "replace": on_arrays(replace),
    "repeat": on_arrays(repeated),
    "lpad": on_arrays(pad(pc.utf8_lpad, left=True)),
    "rpad": on_arrays(pad(pc.utf8_rpad, left=False)),
    "reverse": on_arrays(pc.utf8_reverse),
    "translate": on_arrays(translate),
    "locate": on_arrays(locate),
    "position": on_arrays(position),
    "ascii": first_code,
    "octet_length": on_arrays(pc.binary_length),
    "bit_length": on_arrays(lambda texts: pc.multiply(pc.binary_length(texts), pa.scalar(8, pa.int32()))),
    "like": on_arrays(like),
    "ilike": on_arrays(ilike),
    "rlike": on_arrays(matches),
    "regexp_replace": on_arrays(regex_replace),
    "regexp_extract": on_arrays(regex_extract),
    "starts_with": _test(pc.starts_with, str.startswith),
    "ends_with": _test(pc.ends_with, str.endswith),
    "contains": _test(pc.match_substring, str.__contains__),
}


# --- Java's regular expressions ---------------------------------------------------------------------------------------

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_DOLLAR = rf"(?:\r\n|[{_LINE_ENDS}])?\z"
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x0b\f\r "}
_REPEATED = re.compile(r"\{(\d{1,3})(,(\d{1,3})?)?\}", re.ASCII)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_META = frozenset("\\^$.|?*+()[]{}")


class _UnsureError(Exception):
    """The two dialects may differ here."""


class Regex:
    """A regular expression of Java as one of RE2, if it means the same in both.

    Literals, classes, dots, anchors, alternatives, groups and counts are known. `regex` is RE2's form, `groups` how
    many groups there are, `empty` whether the expression may match nothing at all, `anchored` whether `$` is in it.
    """

    def __init__(self, pattern: str, named: int = -1) -> None:
        self._text, self._at, self._named = pattern, 0, named
        self.groups, self.anchored = 0, False
        if named == 0:
            body, self.empty, _ = self._alternatives(0)
            self.regex = f"(?P<x>{body})"
        else:
            self.regex, self.empty, _ = self._alternatives(0)
        if self._at != len(pattern):
            raise _UnsureError

    def _peek(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        sign = self._peek()
        if not sign:
            raise _UnsureError
        self._at += 1
        return sign

    def _alternatives(self, depth: int) -> tuple[str, bool, bool]:
        """The form, whether it may match nothing, and whether its end may be a carriage return."""
        branches = [self._branch(depth)]
        while self._peek() == "|":
            self._take()
            branches.append(self._branch(depth))
        forms, empties, returns = zip(*branches, strict=True)
        return "|".join(forms), any(empties), any(returns)

    def _branch(self, depth: int) -> tuple[str, bool, bool]:
        made: list[str] = []
        empty, ends_in_return = True, False
        while self._peek() and self._peek() not in "|)":
            sign = self._take()
            if sign == "^":
                if made:
                    raise _UnsureError
                made.append(r"\A")
                continue
            if sign == "$":
                if depth or ends_in_return or self._peek() not in ("", "|"):
                    raise _UnsureError
                self.anchored = True
                made.append(_DOLLAR)
                continue
            form, may_be_empty, newline, carriage = self._atom(sign, depth)
            least, most, count = self._count()
            if count and most is None and form.startswith("(") and form.endswith(")"):
                raise _UnsureError  # Java's stack may not hold a long text
            may_be_empty = may_be_empty or least == 0
            returns = carriage and not (newline and most is None)
            ends_in_return = returns or (ends_in_return and may_be_empty)
            empty = empty and may_be_empty
            made.append(form + count)
        return "".join(made), empty, ends_in_return

    def _count(self) -> tuple[int, int | None, str]:
        sign = self._peek()
        least, most, count = 1, 1, ""
        unbounded: int | None
        if sign and sign in "*+?":
            self._take()
            least, unbounded, count = (0 if sign in "*?" else 1), (1 if sign == "?" else None), sign
        elif sign == "{":
            found = _REPEATED.match(self._text, self._at)
            if found is None:
                raise _UnsureError
            self._at = found.end()
            least = int(found[1])
            unbounded = least if found[2] is None else None if found[3] is None else int(found[3])
            count = found[0]
            if unbounded is not None and unbounded < least:
                raise _UnsureError
        else:
            return least, most, count
        if self._peek() == "?":
            count += self._take()
        if self._peek() and self._peek() in "*+?{":
            raise _UnsureError
        return least, unbounded, count

    def _atom(self, sign: str, depth: int) -> tuple[str, bool, bool, bool]:
        """The form, whether it may match nothing, whether it matches a line feed, and a carriage return."""
        if sign == ".":
            return f"[^{_LINE_ENDS}]", False, False, False
        if sign == "[":
            return self._class()
        if sign == "(":
            return self._group(depth)
        if sign == "\\":
            kind = self._take()
            if kind.lower() in _CLASSES:
                negated, space = kind.isupper(), kind.lower() == "s"
                form = f"[{'^' if negated else ''}{_CLASSES[kind.lower()]}]"
                return form, False, space != negated, space != negated
            return self._literal(self._escaped(kind))
        if sign in _META:
            raise _UnsureError
        return self._literal(sign)

    def _literal(self, sign: str) -> tuple[str, bool, bool, bool]:
        return _point(sign), False, sign == "\n", sign == "\r"

    def _escaped(self, sign: str) -> str:
        if sign in _CONTROLS:
            return _CONTROLS[sign]
        if not sign.isascii() or sign.isalnum() or sign.isspace():
            raise _UnsureError
        return sign

    def _group(self, depth: int) -> tuple[str, bool, bool, bool]:
        opening = "("
        if self._peek() == "?":
            self._take()
            if self._take() != ":":
                raise _UnsureError
            opening = "(?:"
        else:
            self.groups += 1
            if self._named >= 0:
                opening = "(?P<x>" if self.groups == self._named else "(?:"
        if self._peek() == "^":
            raise _UnsureError
        body, empty, returns = self._alternatives(depth + 1)
        if self._take() != ")":
            raise _UnsureError
        return f"{opening}{body})", empty, False, returns

    def _class(self) -> tuple[str, bool, bool, bool]:
        negated = self._peek() == "^"
        if negated:
            self._take()
        made: list[str] = []
        members: list[tuple[int, int]] = []
        while (sign := self._take()) != "]" or not made:
            if sign in "[]&^":  # Java nests classes, and intersects them
                raise _UnsureError
            if sign == "\\":
                kind = self._take()
                if kind in _CLASSES:
                    made.append(_CLASSES[kind])
                    if kind == "s":
                        members += [(10, 10), (13, 13)]
                    if self._peek() == "-":
                        raise _UnsureError
                    continue
                sign = self._escaped(kind)
            elif sign == "-" and made and self._peek() != "]":
                raise _UnsureError
            low = high = ord(sign)
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._take()
                end = self._take()
                if end in "[]&^-":
                    raise _UnsureError
                high = ord(self._escaped(self._take()) if end == "\\" else end)
                if high < low:
                    raise _UnsureError
            members.append((low, high))
            made.append(_point(chr(low)) if low == high else f"{_point(chr(low))}-{_point(chr(high))}")
        newline, carriage = (any(low <= point <= high for low, high in members) for point in (10, 13))
        return f"[{'^' if negated else ''}{''.join(made)}]", False, newline != negated, carriage != negated


def _point(sign: str) -> str:
    return sign if sign.isascii() and sign.isalnum() else rf"\x{{{ord(sign):x}}}"


def java_regex(pattern: str, named: int = -1) -> Regex | None:
    """The pattern for RE2, or None if it may mean something else to it; the group `named` is called x.

    >>> java_regex("^[a-z]+-\\\\d{2,4}$").regex.startswith("\\\\A[a-z]+\\\\x{2d}[0-9]{2,4}")
    True
    >>> java_regex("(a)\\\\1") is None
    True
    """
    try:
        made = Regex(pattern, named)
        pc.match_substring_regex(pa.array([""]), made.regex)
    except (_UnsureError, pa.ArrowInvalid):
        return None
    return made
