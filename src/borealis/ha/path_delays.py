"""A bound on the delay of whole paths, divided among their units (DPC 3: how is left open there). Pure.

Each unit that may wait for a stream gets the same share as all others on the longest path that it is on. So the shares
on any path come to the bound at most. A unit that reads one stream waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from borealis.diagram.cut import Piece
from borealis.diagram.protection import Protection


def with_shares(pieces: Sequence[Piece], protections: Mapping[str, Protection | None]) -> dict[str, Protection | None]:
    """The same protections, where a bound is of a path with that of the unit in its place.

    >>> reads = {"a": ("x", "y"), "b": ("a", "y"), "c": ("x", "y")}
    >>> pieces = [Piece(name=n, boxes=(n,), reads=arrows, gives=(n,)) for n, arrows in reads.items()]
    >>> whole = Protection(ha="replicas", delay="3 s", delay_of="path")
    >>> {name: one.delay for name, one in with_shares(pieces, dict.fromkeys("abc", whole)).items()}
    {'a': '1500 milliseconds', 'b': '1500 milliseconds', 'c': '3 seconds'}
    """
    waits = {piece.name: len(piece.reads) > 1 and _is_of_path(protections[piece.name]) for piece in pieces}
    above = {p.name: [other.name for other in pieces if set(other.gives) & set(p.reads)] for p in pieces}
    below = {p.name: [other.name for other in pieces if set(other.reads) & set(p.gives)] for p in pieces}
    up, down = _longest(above, waits), _longest(below, waits)
    found = dict(protections)
    for piece in pieces:
        whole = protections[piece.name]
        if whole is not None and _is_of_path(whole):
            units = max(1, up(piece.name) + down(piece.name) - waits[piece.name])
            found[piece.name] = whole.with_share(units)
    return found


def _is_of_path(protection: Protection | None) -> bool:
    return protection is not None and protection.delay_of == "path"


def _longest(following: Mapping[str, Sequence[str]], waits: Mapping[str, bool]) -> Callable[[str], int]:
    """How many units wait on the longest path that begins with a unit, itself included."""

    @cache
    def count(name: str) -> int:
        return waits[name] + max((count(other) for other in following[name]), default=0)

    return count
