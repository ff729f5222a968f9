"""Rows that are taken back: which row each one takes, and what stands in its place.

A row lives from its own cause to the cause of what takes it back; one that would live for no time never was. A result
of a join lives while both of its rows do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from borealis.kernels.flow import NOTHING
from borealis.kernels.folding import running_counts, unmatched
from borealis.kernels.join_index import pairs_in_order
from borealis.tuples import Int64s

Bools = NDArray[np.bool_]

NEVER = 2**63 - 1  # the cause that ends a row which nothing has taken back
GONE = -(2**63)  # of a row that an earlier train took back


# --- which row each one takes -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken:
    """`taker[i]` takes `row[i]` back. What is `idle` adds or takes nothing: of the same cause, another undoes it. All
    are places in what was given. What takes back a row that is not there is in none of them.
    """

    row: Int64s
    taker: Int64s
    idle: Int64s


def match_taken(number: Int64s, adds: Bools, cause: Int64s) -> Taken:
    """Who takes whom among rows in order, of which some add a row and the others take the newest equal one.

    Equal rows are a stack. A row stands at one level of it, and what comes at a level by turns adds and takes; of that
    which one cause brings to a level, the first counts if they are an odd number, and none if they are even.

    >>> taken = match_taken(np.array([7, 7, 7, 7]), np.array([1, 1, 0, 0], bool), np.array([1, 2, 3, 4]))
    >>> taken.row.tolist(), taken.taker.tolist()
    ([0, 1], [3, 2])
    """
    order = np.argsort(number, kind="stable")
    stack, added = number[order], adds[order]
    step = np.where(added, 1, -1)
    height = running_counts(step, stack)
    if bool((height < 0).any()):
        rest = np.sort(order[~unmatched(step, stack)])
        taken = match_taken(number[rest], adds[rest], cause[rest])
        return Taken(rest[taken.row], rest[taken.taker], rest[taken.idle])
    level = np.where(added, height, height + 1)
    by_level = np.lexsort((level, stack))
    order, stack, level = order[by_level], stack[by_level], level[by_level]
    when = cause[order]
    same = (stack[1:] == stack[:-1]) & (level[1:] == level[:-1]) & (when[1:] == when[:-1])
    runs = np.flatnonzero(np.concatenate(([True], ~same)))
    counts = np.zeros(len(order), np.bool_)
    counts[runs[np.diff(np.append(runs, len(order))) % 2 == 1]] = True
    left = order[counts]
    takes = np.flatnonzero(~adds[left])
    return Taken(left[takes - 1], left[takes], order[~counts])


# --- what stands in the place of a row that is taken back -------------------------------------------------------------


@dataclass(frozen=True)
class Heirs:
    """At `cause`, the row at place `heir` comes for the row at place `old`; `alike`: results show no difference."""

    old: Int64s  # rises
    heir: Int64s
    cause: Int64s
    alike: Bools

    def __len__(self) -> int:
        return len(self.old)

    @staticmethod
    def of(old: Int64s, heir: Int64s, cause: Int64s, alike: Bools) -> Heirs:
        order = np.argsort(old)
        return Heirs(old[order], heir[order], cause[order], alike[order])

    def back(self, places: Int64s, cause: Int64s) -> Int64s:
        """The places, and for those that came for another at this very cause, the other's."""
        order = np.argsort(self.heir)
        at, found = _look_up(self.heir[order], self.cause[order], places, cause)
        return _replaced(places, found, self.old[order][at])

    def forth(self, places: Int64s, cause: Int64s) -> Int64s:
        """The places, and for those that another came for at this very cause, the other's."""
        at, found = _look_up(self.old, self.cause, places, cause)
        return _replaced(places, found, self.heir[at])

    def shown(self, places: Int64s, cause: Int64s) -> Bools:
        """Whether results show that another came for the row at this very cause."""
        at, found = _look_up(self.old, self.cause, places, cause)
        shown = np.zeros(len(places), np.bool_)
        shown[found] = ~self.alike[at]
        return shown


NO_HEIRS = Heirs(NOTHING, NOTHING, NOTHING, np.empty(0, np.bool_))


def _look_up(known: Int64s, when: Int64s, places: Int64s, cause: Int64s) -> tuple[Int64s, Int64s]:
    at, found = places_among(known, places)
    same = when[at] == cause[found]
    return at[same], found[same]


def _replaced(places: Int64s, at: Int64s, others: Int64s) -> Int64s:
    if not len(at):
        return places
    places = places.copy()
    places[at] = others
    return places


def perhaps_among(few: Int64s, numbers: Int64s) -> Int64s:
    """Where numbers stand of which nearly all are among the few, and all that are; by one look at each."""
    mask = (1 << len(few).bit_length() + 5) - 1
    marked = np.zeros(mask + 1, np.bool_)
    marked[few & mask] = True
    return np.flatnonzero(marked[numbers & mask])


def places_among(few: Int64s, numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Of the numbers that are among the few, which rise: where among them each is, and where it stands.

    >>> [places.tolist() for places in places_among(np.array([3, 5]), np.array([5, 4, 3, 5]))]
    [[1, 0, 1], [0, 2, 3]]
    """
    if not len(few):
        return NOTHING, NOTHING
    found = perhaps_among(few, numbers)
    at = np.minimum(np.searchsorted(few, numbers[found]), len(few) - 1)
    same = few[at] == numbers[found]
    return at[same], found[same]


@dataclass(frozen=True)
class Results:
    """Results that come and go, in order; of a pair what goes stands directly before what comes."""

    cause: Int64s
    left: Int64s  # the places of their rows
    right: Int64s
    comes: Bools
    pairs: Int64s  # where the first half of a pair stands
    shown: Bools  # for each pair, whether its rows differ in a column


def results_in_order(
    come: tuple[Int64s, Int64s, Int64s], go: tuple[Int64s, Int64s, Int64s], left: Heirs, right: Heirs
) -> Results:
    """All results, given as (cause, left place, right place): by cause and places, heirs standing where the old rows
    stood. So a result that comes for another meets it there.
    """
    cause, l_place, r_place = come
    l_place, r_place = left.back(l_place, cause), right.back(r_place, cause)
    cause, l_place = np.concatenate([go[0], cause]), np.concatenate([go[1], l_place])
    if len(cause):
        cause, l_place, r_place = pairs_in_order(cause, l_place, np.concatenate([2 * go[2], 2 * r_place + 1]))
    comes, r_place = (r_place & 1).astype(np.bool_), r_place >> 1
    first = (cause[1:] == cause[:-1]) & (l_place[1:] == l_place[:-1]) & (r_place[1:] == r_place[:-1])
    pairs = np.flatnonzero(first)
    when = cause[pairs]
    shown = left.shown(l_place[pairs], when) | right.shown(r_place[pairs], when)
    when = np.where(comes, cause, GONE)  # what goes is of the old rows
    return Results(cause, left.forth(l_place, when), right.forth(r_place, when), comes, pairs, shown)
