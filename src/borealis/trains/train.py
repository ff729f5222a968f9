"""A train as it was cut, and the places of inputs as they are written down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from borealis.entry.admission import Cursor
from borealis.trains.merge_order import Determinant


@dataclass(frozen=True)
class Train:
    """A train as it was cut: where every input stands after it, and whether it is the last."""

    number: int
    cursors: dict[str, Cursor]
    next_cause: int
    rows: int
    final: bool
    order: tuple[Determinant, ...] = ()  # the order in which its inputs were merged
    silent: bool = False  # what comes of it is known downstream already
    free: bool = True  # merged as tuples arrived, not as a replay says
    leaps: bool = False  # ids of an input were left out in it, or tuples lost
    jumps: bool = False  # it begins where ids of an input were left out, in a recovery


def cursors_to_json(cursors: dict[str, Cursor]) -> dict[str, Any]:
    """Cursors as they stand in a commit record."""
    return {name: dict(vars(c)) for name, c in cursors.items()}


def cursors_from_json(data: dict[str, Any]) -> dict[str, Cursor]:
    """Cursors from a commit record."""
    return {name: Cursor(**c) for name, c in data.items()}
