"""Whether a node may have what it claims. Pure: a place and a claim in, the place as it is then out.

Of two nodes that claim the same incarnation one gets it: the second finds a higher one in force. A claim that is
repeated because its answer was lost is granted again.
"""

from __future__ import annotations

from dataclasses import replace

from borealis.coordinator.layout import UnitAssignment
from borealis.wire.messages import Claim


def after(place: UnitAssignment, claim: Claim) -> UnitAssignment | None:
    """The place once the claim is granted, or None: it is not."""
    if not place.protected:
        return None
    if claim.node == place.node and claim.incarnation == place.incarnation:
        return alone(place) if claim.what == "alone" else place
    if claim.node == place.backup and claim.incarnation == place.incarnation + 1:
        return taken_over(place, claim.node, claim.incarnation)  # one that is alone took over when nobody saw it
    return None


def alone(place: UnitAssignment) -> UnitAssignment:
    """Without its backup."""
    return place if place.backup is None else replace(place, backup=None, was=place.backup)


def taken_over(place: UnitAssignment, node: str, incarnation: int) -> UnitAssignment:
    """Run by this node from now on."""
    return replace(place, node=node, backup=None, was=place.node, incarnation=incarnation, moving_to=None)


def begun_anew(place: UnitAssignment, node: str) -> UnitAssignment:
    """From nothing, on this node: both copies are lost.

    Readers of a unit that may lose tuples go on behind the hole: ids jump, as in any of its takeovers. All others must
    not take what follows for what they wait for: it is another life of the stream.
    """
    may_lose = place.boxes and place.protection is not None and place.protection.guarantee == "gap"
    lives = place.lives if may_lose else place.lives + 1
    anew = replace(place, node=node, backup=None, was=None, moving_to=None)
    return replace(anew, incarnation=place.incarnation + 1, lives=lives)
