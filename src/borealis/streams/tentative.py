"""The tentative end of a stream: what a fork gave behind the last stable tuple, for as long as the fork lives.

Its tuples have ids of their own, from where the stable ones stood when the fork began. Readers say what they want:
`stable` tuples only; `either`, tentative ones in the place of those that are to come, until they are void and the
stable ones follow; or `both` as they come, for units, which have a fork of their own for the ones and not the others.

A reader that had tentative tuples hears an undo when they are void, and that recovery is done when all that corrects
them has come: its place says that it is owed that, also to the next node that it reads from.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa

from borealis.streams.held import Held
from borealis.streams.section import Place, Section, joined
from borealis.tuples import FIRST_TIME, LAST_TIME

Wants = Literal["stable", "either", "both"]
# Of a reader in a fork: its name, the id of the next tuple, and the boundary in force. Behind an undo, as long as
# recovery is not done, the name is empty, and the boundary is the one that tentative tuples had come to.
ForkPlace = tuple[str, int, int]


def fork_place(before: ForkPlace | None, section: Section) -> ForkPlace | None:
    """Where a reader is among tentative tuples, behind a section; None: it has none."""
    if section.fork:
        return section.fork, section.stop, section.final
    if section.undo:
        return "", section.first, FIRST_TIME if before is None else before[2]
    return None if section.done else before


class Tail:
    """What a fork gave to a stream. Bounded: who reads too slowly loses the oldest."""

    def __init__(self, fork: str, schema: pa.Schema, place: Place) -> None:
        self.fork, self.held = fork, Held(schema, place)

    def append(self, section: Section, bytes_most: int) -> None:
        """Add what follows; that a stream has ended is never tentative."""
        if section.ended:
            lasting = section.bound < LAST_TIME
            section = section.bounded(section.at[lasting], section.bound[lasting], section.standing)
        if len(section) or len(section.bound):
            self.held.append(section)
            self.held.drop(bytes_most)

    def place(self, at: ForkPlace | None, boundary: int) -> Place:
        """Where a reader goes on; from stable tuples, up to this boundary, behind what those corrected."""
        return self.held.behind(boundary) if at is None else (max(at[1], self.held.first), at[2])

    def has_news(self, at: ForkPlace | None, boundary: int) -> bool:
        return self.place(at, boundary) < (self.held.next, self.held.boundary)

    def read(self, at: ForkPlace | None, boundary: int, most_bytes: int) -> Section | None:
        """What follows there, if anything does."""
        start, known = self.place(at, boundary)
        parts = self.held.parts(start, known, most_bytes)
        if not parts:
            return None
        parts[0] = parts[0].since(start)
        if len(parts) == 1:
            parts[0] = parts[0].cut(most_bytes)
        return joined(parts).above(known)
