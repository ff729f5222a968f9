"""Join conditions: their equalities, and the columns of their two inputs, which are called `left.x` and `right.y`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from borealis.diagram import sql
from borealis.diagram.sql import Token, following, meaningful, preceding, render, tokens
from borealis.errors import DiagramError

SIDES = ("left", "right")

# Words that may stand bare beside `left.x` in one side of an equality without being a column.
_PLAIN = sql.words(
    """and array as bigint binary boolean both case cast char date day days decimal div double else end escape
    false float for from hour hours in int integer interval is leading like long map microsecond microseconds
    millisecond milliseconds minute minutes month months not null or second seconds short smallint string struct
    then timestamp timestamp_ltz timestamp_ntz tinyint to trailing true varchar week weeks when year years"""
)
# At the top of a conjunct these make `a = b` a part of something else: `NOT a = b`, `a = b IS NULL`, `a = b < c`.
_LOOSER = sql.words("not ! is in like ilike rlike regexp between exists or and any all some < > <= >= <> != <=>")


def split_join(text: str) -> tuple[list[tuple[str, str]], str | None]:
    """The equalities between left and right, as (left, right), and what else is asked; both keep `left.`, `right.`.

    >>> split_join("right.k = left.k AND left.v < right.v")
    ([('left.k', 'right.k')], 'left.v < right.v')
    """
    keys: list[tuple[str, str]] = []
    rest: list[str] = []
    for part in _conjuncts(tokens(text)):
        pair = _equality(_unwrapped(part))
        if pair:
            keys.append(pair)
        else:
            rest.append(render(part))
    return keys, " AND ".join(rest) or None


def mentioned(text: str) -> list[tuple[str, str]]:
    """Every mention of a side's column, as (`left` or `right`, column).

    >>> mentioned("left.a = right.`b c`")
    [('left', 'a'), ('right', 'b c')]
    """
    pieces = tokens(text)
    return [(pieces[side].plain, pieces[column].name) for side, column in _mentions(pieces)]


def without_side(text: str) -> str:
    """An expression over one side, without the side's name.

    >>> without_side("upper(left.k) || right.`odd name`")
    'upper(k) || `odd name`'
    """
    return _rewritten(text, {}, {})


def with_prefix(text: str, left: Iterable[str], right: Iterable[str]) -> str:
    """A condition over `__l_x` and `__r_y`; a bare name that only one side has means that side's.

    >>> with_prefix("left.v < right.v AND n = 'v'", ["v"], ["v", "n"])
    "`__l_v` < `__r_v` AND `__r_n` = 'v'"
    """
    ours, theirs = {c.lower(): f"__l_{c}" for c in left}, {c.lower(): f"__r_{c}" for c in right}
    bare = {k: name for k, name in (ours | theirs).items() if not (k in ours and k in theirs)}
    names = {(side, k): name for side, known in zip(SIDES, (ours, theirs), strict=True) for k, name in known.items()}
    return _rewritten(text, names, bare)


def _rewritten(text: str, names: Mapping[tuple[str, str], str], bare: Mapping[str, str]) -> str:
    pieces = tokens(text)
    mentions = dict(_mentions(pieces))
    out: list[str] = []
    at = 0
    while at < len(pieces):
        piece, column = pieces[at], pieces[mentions.get(at, at)]
        if at in mentions and column.nameable:
            known = names.get((piece.plain, column.plain))
            at = mentions[at]
        else:
            after = following(pieces, at + 1)
            is_name = piece.nameable and preceding(pieces, at) != "." and [t.text for t in pieces[after:][:1]] != ["("]
            known = bare.get(piece.plain) if is_name else None
        out.append(f"`{known}`" if known else pieces[at].text)
        at += 1
    return "".join(out)


def _mentions(pieces: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The places of each `left` or `right`, and of what follows the dot behind it."""
    for at, token in enumerate(pieces):
        if token.nameable and token.plain in SIDES and preceding(pieces, at) != ".":
            dot = following(pieces, at + 1)
            column = following(pieces, dot + 1)
            if column < len(pieces) and pieces[dot].text == ".":
                yield at, column


def _top(pieces: Sequence[Token]) -> dict[int, Token]:
    """The words and symbols outside of brackets and CASE..END (these stand outside), by place; no `b` of `a.b`."""
    found: dict[int, Token] = {}
    depth = cases = 0
    for at, token in enumerate(pieces):
        opens = closes = False
        field = preceding(pieces, at) == "."
        if token.kind == "symbol":
            opens, closes = token.text in "([{", token.text in ")]}"
        elif token.kind == "word" and not field:
            opens = token.plain == "case"
            closes = token.plain == "end" and cases > 0
            cases += opens - closes
        depth -= closes
        if depth == 0 and token.kind in ("word", "symbol") and not field:
            found[at] = token
        depth += opens
    return found


def _unwrapped(pieces: list[Token]) -> list[Token]:
    """The condition without brackets around all of it; a list or a subquery keeps its brackets."""
    while True:
        start, end = following(pieces, 0), len(pieces)
        while end > start and not pieces[end - 1].solid:
            end -= 1
        pieces = pieces[start:end]
        if not pieces or pieces[0].text != "(" or sql.closing_of(pieces, 0) != len(pieces) - 1:
            return pieces
        inner = pieces[1:-1]
        solid = meaningful(inner)
        if not solid or solid[0].plain in ("select", "with") or len(sql.split_commas(inner)) > 1:
            return pieces
        pieces = inner


def _conjuncts(pieces: list[Token]) -> list[list[Token]]:
    """The conditions that must all hold; one that is not a plain AND of others stays whole."""
    inner = _unwrapped(pieces)
    ands: list[int] = []
    betweens = 0
    for at, token in _top(inner).items():
        if token.plain == "or":
            return [pieces]
        betweens += token.plain == "between"
        if token.plain == "and" and betweens:
            betweens -= 1
        elif token.plain == "and":
            ands.append(at)
    if not ands:
        return [pieces]
    parts = [inner[start + 1 : end] for start, end in pairwise((-1, *ands, len(inner)))]
    if not all(meaningful(part) for part in parts):
        raise DiagramError(f"an AND without a condition in '{sql.short(render(pieces))}'", hint="complete or drop it")
    return [conjunct for part in parts for conjunct in _conjuncts(part)]


def _equality(pieces: list[Token]) -> tuple[str, str] | None:
    """The (left, right) of `A = B`, if that is all there is and each side keeps to one input."""
    top = _top(pieces)
    equals = [at for at, token in top.items() if token.text in ("=", "==")]
    if len(equals) != 1 or any(token.plain in _LOOSER for token in top.values()):
        return None
    one, other = pieces[: equals[0]], pieces[equals[0] + 1 :]
    match _only_side(one), _only_side(other):
        case "left", "right":
            return render(one), render(other)
        case "right", "left":
            return render(other), render(one)
    return None


def _only_side(pieces: list[Token]) -> str | None:
    """`left` or `right` if the expression reads from that input and certainly from no other."""
    solid = meaningful(pieces)
    found = {solid[side].plain for side, _ in _mentions(solid)}
    inner = _unwrapped(pieces)
    if len(found) != 1 or (inner[0].text == "(" and sql.closing_of(inner, 0) == len(inner) - 1):
        return None  # of `(a, b)`, too: structs compare their nulls as equal, columns do not
    for at, token in enumerate(solid):
        after = solid[at + 1].text if at + 1 < len(solid) else ""
        part_of_path = preceding(solid, at) == "." or (after == "." and token.plain in found)
        literal = token.kind == "word" and (token.plain in _PLAIN or token.text[0].isdigit())
        if token.nameable and not part_of_path and not literal and after != "(":
            return None  # a bare name may be a column of either side
    return found.pop()
