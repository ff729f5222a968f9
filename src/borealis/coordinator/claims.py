"""Whether a node may have what it claims. Pure: a place and a claim in, the place as it is then out.

Of two nodes that claim the same incarnation one gets it: the second finds a higher one in force. A claim that is
repeated because its answer was lost is granted again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from borealis.coordinator.layout import EntryAssignment, UnitAssignment
from borealis.wire.messages import Claim

P = TypeVar("P", bound=UnitAssignment | EntryAssignment)


def after(place: P, claim: Claim) -> P | None:
    """The place once the claim is granted, or None: it is not."""
    if not place.protected:
        return None
    if claim.node == place.node and claim.incarnation == place.incarnation:
        return alone(place) if claim.what == "alone" else place
    if claim.node == place.backup and claim.incarnation == place.incarnation + 1:
        return taken_over(place, claim.node, claim.incarnation)  # one that is alone took over when nobody saw it
    return None


def alone(place: P) -> P:
    """Without its backup."""
    return place if place.backup is None else replace(place, backup=None, was=place.backup)


def taken_over(place: P, node: str, incarnation: int) -> P:
    """Run by this node from now on."""
    went = replace(place, node=node, backup=None, was=place.node, incarnation=incarnation)
    return replace(went, moving_to=None) if isinstance(went, UnitAssignment) else went


def begun_anew(place: P, node: str) -> P:
    """From nothing, on this node: both copies are lost.

    Readers of a unit that may lose tuples go on behind the hole: ids jump, as in any of its takeovers. All others must
    not take what follows for what they wait for: it is another life of the stream.
    """
    lives = place.lives if _may_lose(place) else place.lives + 1
    anew = replace(place, node=node, backup=None, was=None, incarnation=place.incarnation + 1, lives=lives)
    return replace(anew, moving_to=None) if isinstance(anew, UnitAssignment) else anew


def _may_lose(place: UnitAssignment | EntryAssignment) -> bool:
    return isinstance(place, UnitAssignment) and place.protection is not None and place.protection.guarantee == "gap"
