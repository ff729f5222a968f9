"""Patterns of LIKE and of Java's regular expressions as RE2 has them, where they mean the same to both."""

from __future__ import annotations

import re
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_DOLLAR = rf"(?:\r\n|[{_LINE_ENDS}])?\z"
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r"\t\n\x0b\f\r "}
_COUNT = re.compile(r"(?:([*+?])|\{(\d{1,3})(,(\d{1,3})?)?\})\??", re.ASCII)
_COUNTS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_META = frozenset("\\^$.|?*+()[]{}")


@lru_cache
def like_regex(pattern: str) -> str | None:
    """The RE2 of a LIKE pattern; None where Spark refuses the pattern.

    >>> like_regex("a_%")
    '(?s)\\\\Aa..*\\\\z'
    >>> like_regex("a\\\\") is None
    True
    """
    made: list[str] = []
    signs = iter(pattern)
    for sign in signs:
        if sign == "\\":
            following = next(signs, None)
            if following not in ("_", "%", "\\"):
                return None
            made.append(_quoted(following))
        else:
            made.append({"_": ".", "%": ".*"}.get(sign) or _quoted(sign))
    return rf"(?s)\A{''.join(made)}\z"


def _quoted(sign: str) -> str:
    return f"\\{sign}" if sign.isascii() and not sign.isalnum() and sign.isprintable() and sign != " " else sign


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
        body, self.empty, _ = self._alternatives(0)
        self.regex = f"(?P<x>{body})" if named == 0 else body
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
        """How often at least and at most (None: any number of times), and the form."""
        if self._peek() not in ("*", "+", "?", "{"):
            return 1, 1, ""
        found = _COUNT.match(self._text, self._at)
        if found is None:
            raise _UnsureError
        self._at = found.end()
        if found[1]:
            least, most = _COUNTS[found[1]]
        else:
            least = int(found[2])
            most = least if found[3] is None else None if found[4] is None else int(found[4])
        if (most is not None and most < least) or self._peek() in ("*", "+", "?", "{"):
            raise _UnsureError
        return least, most, found[0]

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
