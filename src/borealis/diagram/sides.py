"""Join conditions over one frame: `left.x` and `right.y` as plain column names."""

from __future__ import annotations

from collections.abc import Iterable

from borealis.diagram.sql import Token, tokens


def without_side(text: str) -> str:
    """An expression over one side, without the side's name.

    >>> without_side("upper(left.k) || right.`odd name`")
    'upper(k) || `odd name`'
    """
    return _rewritten(text, {"left": "", "right": ""}, {})


def with_prefix(text: str, left: Iterable[str], right: Iterable[str]) -> str:
    """A condition over `__l_x` and `__r_y`; a bare name that only one side has means that side's.

    >>> with_prefix("left.v < right.v AND n = 'v'", ["v"], ["v", "n"])
    "`__l_v` < `__r_v` AND `__r_n` = 'v'"
    """
    ours, theirs = {c.lower(): c for c in left}, {c.lower(): c for c in right}
    bare = {k: f"__l_{c}" for k, c in ours.items() if k not in theirs}
    bare |= {k: f"__r_{c}" for k, c in theirs.items() if k not in ours}
    names = {("left", k): f"__l_{c}" for k, c in ours.items()} | {("right", k): f"__r_{c}" for k, c in theirs.items()}
    return _rewritten(text, {"left": "__l_", "right": "__r_"}, bare, names)


def _rewritten(
    text: str, prefixes: dict[str, str], bare: dict[str, str], names: dict[tuple[str, str], str] | None = None
) -> str:
    pieces = tokens(text)
    out: list[str] = []
    at = 0
    while at < len(pieces):
        piece = pieces[at]
        column = (
            _side_column(pieces, at) if piece.nameable and piece.plain in prefixes and not _path(pieces, at) else None
        )
        if column is not None:
            token = pieces[column]
            known = (names or {}).get((piece.plain, token.plain))
            out.append(f"`{known}`" if known else token.text)
            at = column + 1
            continue
        call = _next(pieces, at) is not None and pieces[_next(pieces, at) or 0].text == "("
        if piece.nameable and piece.plain in bare and not call and not _path(pieces, at):
            out.append(f"`{bare[piece.plain]}`")
        else:
            out.append(piece.text)
        at += 1
    return "".join(out)


def _next(pieces: list[Token], at: int) -> int | None:
    return next((i for i in range(at + 1, len(pieces)) if pieces[i].solid), None)


def _side_column(pieces: list[Token], at: int) -> int | None:
    """Where the column of a `left . column` that starts here stands."""
    dot = _next(pieces, at)
    column = _next(pieces, dot) if dot is not None and pieces[dot].text == "." else None
    return column if column is not None and pieces[column].nameable else None


def _path(pieces: list[Token], at: int) -> bool:
    before = next((pieces[i] for i in range(at - 1, -1, -1) if pieces[i].solid), None)
    return before is not None and before.text == "."
