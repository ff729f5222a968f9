"""How long it takes until others have taken over what a node runs (Hwang 4.8), by what is measured. Pure.

1. Its death is noticed: as often as its backups ping it, and as many misses as they wait for.
2. Each backup opens its streams: about as long as takeovers took so far.
3. It does again what the dead node did since the last checkpoint, and what has come meanwhile: in seconds of trains, by
   the part of each second that they take.

The backups on one node share its cores; those on different nodes take over at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from statistics import median

from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.membership import Member
from borealis.coordinator.spreading import Node, Work, share, shares_of
from borealis.diagram.durations import parse
from borealis.diagram.protection import PARALLEL, Protection
from borealis.wire.messages import UnitStatus

TAKEOVER_S = 0.05  # as long as none was measured


@dataclass(frozen=True)
class Expected:
    """What the death of its primary would cost a unit or an entry point."""

    diagram: str
    place: UnitAssignment
    detection_s: float
    takeover_s: float = TAKEOVER_S
    redo_s: float = 0.0  # of one core

    @property
    def work(self) -> Work:
        """What its backup would have to do."""
        us = round((self.takeover_s + self.redo_s) * 1e6)
        return Work(f"{self.diagram}/{self.place.unit}", self.place.node, us, self.place.backup)


def unmeasured(diagram: str, place: UnitAssignment) -> Expected:
    """Of one that has not run yet."""
    return Expected(diagram, place, 0.0 if place.protection is None else detection_s(place.protection))


def detection_s(protection: Protection) -> float:
    """On average a primary dies in the middle between two pings.

    >>> detection_s(Protection(ha="passive"))
    0.25
    """
    return parse(protection.ping) / 1e6 * (protection.misses - 0.5)


def expected(layouts: Iterable[Layout], alive: Mapping[str, Member]) -> list[Expected]:
    """For all that is protected."""
    places = [(layout.name, place) for layout in layouts for place in layout.parts() if place.protected]
    usual = _usual_takeover_s(alive.values())
    return [_expected(diagram, place, alive.get(place.node), usual) for diagram, place in places]


def _expected(diagram: str, place: UnitAssignment, home: Member | None, usual_s: float) -> Expected:
    found = replace(unmeasured(diagram, place), takeover_s=usual_s)
    status = None if home is None else home.unit(diagram, place.unit)
    if home is None or status is None or place.protection is None:
        return found
    load = home.load(diagram, place.unit)
    again_s = _again_s(place.protection, status, load, found.detection_s)
    return replace(found, redo_s=again_s + load * (found.detection_s + usual_s))


def _again_s(protection: Protection, status: UnitStatus, load: float, detection: float) -> float:
    """Of trains that the backup has to run although its primary did."""
    guard = status.guard
    if protection.approach in PARALLEL or protection.approach == "amnesia" or guard is None:
        return 0.0
    if protection.approach == "upstream-backup":  # its primary knows how much upstream keeps
        return max(0.0, guard.recovery_ms / 1000 - detection - TAKEOVER_S)
    return load * max(protection.interval_us / 2e6, guard.stale_ms / 1000)


def _usual_takeover_s(members: Iterable[Member]) -> float:
    """The median of those that nodes tell of."""
    parts = [part for member in members for part in member.parts() if part.guard is not None]
    took = [takeover.takeover_ms for part in parts if part.guard is not None for takeover in part.guard.takeovers]
    return median(took) / 1000 if took else TAKEOVER_S


@dataclass(frozen=True)
class NodeRecovery:
    """What the death of a node would take."""

    seconds: float  # until the last of its units has come as far as it was
    shares: Mapping[str, float]  # seconds of work, by the node that takes over
    lost: int = 0  # units and entry points that no other node has


def of_node(name: str, units: Iterable[Expected], nodes: Iterable[Node]) -> NodeRecovery | None:
    """None if nothing that is protected runs there."""
    mine = [one for one in units if one.place.node == name]
    if not mine:
        return None
    known = {node.name: node for node in nodes}
    standing = [one for one in mine if one.place.backup in known]
    given = shares_of(one.work for one in standing)
    shares = {to: share(known[to], name, given) / Fraction(1_000_000) for _, to in given}
    noticed = max((one.detection_s for one in standing), default=0.0)
    seconds = noticed + float(max(shares.values(), default=0))
    return NodeRecovery(seconds, {to: float(part) for to, part in sorted(shares.items())}, len(mine) - len(standing))
