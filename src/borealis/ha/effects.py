"""What protection asks for: what to acknowledge, and what to let readers see. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from borealis.trains.commit_point import Position


@dataclass(frozen=True)
class Effects:
    """What is to be done now: acknowledge inputs (level 1) up to a tuple, let readers see outputs up to a place."""

    ack: Mapping[str, int] = field(default_factory=dict)
    release: Mapping[str, Position] | None = None
    open: bool = False  # outputs are not held back any more


NONE = Effects()


def active_reader(name: str, incarnation: int) -> str:
    """Under which name a unit with an active standby reads; the standby reads under that of the next incarnation."""
    return f"{name}.{incarnation}"
