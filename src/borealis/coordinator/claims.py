"""Whether a node may have what it claims. Pure: a place and a claim in, the place as it is then out.

Of two nodes that claim the same incarnation one gets it: the second finds a higher one in force. A claim that is
repeated because its answer was lost is granted again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from borealis.coordinator.layout import EntryPlace, UnitPlace
from borealis.wire.messages import Claim

P = TypeVar("P", bound=UnitPlace | EntryPlace)


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
    return replace(went, moving_to=None) if isinstance(went, UnitPlace) else went


def begun_anew(place: P, node: str) -> P:
    """From nothing, on this node: both copies are lost."""
    anew = replace(place, node=node, backup=None, was=None, incarnation=place.incarnation + 1, lives=place.lives + 1)
    return replace(anew, moving_to=None) if isinstance(anew, UnitPlace) else anew
