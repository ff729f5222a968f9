"""Ids that no tuple has: where a recovery could not go on with the ids that were, it went on far above them.

From a frontier F on, tuples got new ids from J on: the ids in [F, J) are left out. A reader
that wants one of them, because it had tuples that are lost since, goes on at J.

A unit that reads a jump passes it on: what it makes of the tuples behind it has ids behind a hole of its own, so that
the last reader hears of it. Such a hop is a property of the input, and comes out the same for each copy of the unit; a
jump after a takeover goes beyond all that the dead one may have given, its hops included.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

HOP = 1_000_000_000  # ids are left out up to a multiple of this where a jump is passed on
JUMP = 1_000 * HOP  # and up to a multiple of this where a recovery cannot go on

Interval = tuple[int, int]


def above(frontier: int, step: int = JUMP) -> int:
    """Where ids go on that cannot go on at a frontier.

    >>> above(0), above(JUMP), above(17, HOP), above(JUMP + 1, HOP)
    (1000000000000, 2000000000000, 1000000000, 1001000000000)
    """
    return (frontier // step + 1) * step


def is_jump(due: int, first: int) -> bool:
    """Whether a stream that goes on at `first` has left ids out there; if not, tuples from `due` on were dropped."""
    return due // HOP < first // HOP


class Jumps:
    """The intervals of ids that were left out of a stream, in order."""

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._of = dict(intervals)

    def __iter__(self) -> Iterator[Interval]:
        return iter(self._of.items())

    def __bool__(self) -> bool:
        return bool(self._of)

    def add(self, frontier: int, first: int) -> None:
        """Leave out the ids from `frontier` to before `first`; a jump from where another one ended makes it longer."""
        for start, stop in self._of.items():
            if stop == frontier:
                frontier = start
        self._of[frontier] = max(first, self._of.get(frontier, 0))

    def over(self, wanted: int) -> Interval | None:
        """The interval in which an id is."""
        return next(((start, stop) for start, stop in self._of.items() if start <= wanted < stop), None)

    def back(self, last: int) -> int:
        """The frontier from which ids jumped to this one; the id itself if they did not."""
        return next((start for start, stop in self._of.items() if stop == last), last)

    def tuples(self, start: int, stop: int) -> int:
        """How many ids from `start` to before `stop` were not left out.

        >>> Jumps([(3, 10)]).tuples(1, 12)
        4
        """
        left_out = sum(max(0, min(stop, b) - max(start, a)) for a, b in self._of.items())
        return max(0, stop - start - left_out)

    def forget(self, before: int) -> None:
        """No reader will ask for what ends before this id."""
        for start in [a for a, b in self._of.items() if b < before]:
            del self._of[start]
