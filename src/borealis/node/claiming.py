"""How closely nodes that protect a unit watch each other, and how they ask the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from borealis.ha.detector import Pace
from borealis.wire.messages import Claim, Claimed, Guard

CLAIMS = 3  # attempts to ask a coordinator that does not answer


def pace_of(guard: Guard) -> Pace:
    """How closely to watch the other side."""
    how = guard.protection
    return Pace(how.ping_us / 1e6, how.misses, how.patience_us / 1e6)


def answer_to(claim: Claim, ask: Callable[[Sequence[Claim]], list[Claimed] | None]) -> Claimed | None:
    """What the coordinator says to a primary that wants to go on alone; None if it does not answer."""
    for _ in range(CLAIMS):
        if (claimed := ask([claim])) is not None:
            return claimed[0]
    return None
