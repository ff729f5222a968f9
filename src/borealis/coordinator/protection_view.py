"""How well units and entry points are protected, as `borealis status` shows it: from the catalog and heartbeats."""

from __future__ import annotations

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.wire.messages import GuardStatus, UnitStatus
from borealis.wire.status import ProtectionState, ProtectionView, Unprotected

EXPOSED = ("alone", "lost", "taking over")  # states in which the next failure is not survived, or this one not yet


def guard_view(cluster: Cluster, layout: Layout, place: UnitAssignment) -> ProtectionView | None:
    """The protection of a unit or an entry point; None if none was promised."""
    promised = place.protection
    if promised is None:
        return None
    here, there = (_reported(cluster, layout, place, node) for node in (place.node, place.backup))
    mine, other = here and here.guard, there and there.guard
    state, since, why = _state(cluster, layout, place, here, there)
    sides = [guard for guard in (mine, other) if guard is not None]
    takeovers = mine.takeovers if mine is not None else []
    return ProtectionView(
        approach=promised.approach,
        guarantee=promised.guarantee or "",
        interval_ms=promised.interval_us / 1000,
        incarnation=place.incarnation,
        backup=place.backup,
        state=state,
        since=since,
        why=why,
        stale_ms=max((guard.stale_ms for guard in sides), default=0.0),
        recovery_ms=max((guard.recovery_ms for guard in sides), default=0.0),
        messages=sum(guard.messages for guard in sides[:1]),
        bytes=sum(guard.bytes for guard in sides[:1]),
        discarded=sum(guard.discarded for guard in sides),
        takeovers=len(takeovers),
        last_takeover=takeovers[-1] if takeovers else None,
    )


def unprotected(cluster: Cluster) -> list[Unprotected]:
    """Whatever is without the protection it was promised, since when and why."""
    found = []
    for layout in cluster.catalog.layouts():
        for place in layout.parts() if layout.state == "running" else ():
            view = guard_view(cluster, layout, place)
            if view is not None and view.state in EXPOSED:
                name = f"input {place.input}" if place.input else place.unit
                seconds = round(max(0.0, cluster.now() - view.since), 1)
                found.append(Unprotected(**dict(view), diagram=layout.name, what=name, seconds=seconds))
    return found


def _reported(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str | None) -> UnitStatus | None:
    """What a node says of its side, if it is alive."""
    member = cluster.members.if_alive(node)
    return None if member is None else member.unit(layout.name, place.unit)


def _state(
    cluster: Cluster, layout: Layout, place: UnitAssignment, here: UnitStatus | None, there: UnitStatus | None
) -> tuple[ProtectionState, float, str]:
    """In one word, since when, and why."""
    mine, other = here and here.guard, there and there.guard
    lives, began = cluster.members.lives, layout.since if mine is None else mine.since

    def silent(node: str) -> tuple[float, str]:
        return cluster.now() - (cluster.members.silent_for(node) or 0.0), f"{node} does not answer"

    if not lives(place.node):
        return "taking over" if place.backup is not None and lives(place.backup) else "lost", *silent(place.node)
    if place.backup is None:
        return "alone", _alone_since(layout, mine), _why_alone(cluster, place, mine)
    if not lives(place.backup):
        return "alone", *silent(place.backup)
    if here is not None and here.state == "failed":
        return "lost", began, f"it failed on {place.node}: {here.error or 'unknown'}"
    if there is not None and there.state == "failed":
        since = layout.since if other is None else other.since
        return "alone", since, f"its backup failed: {there.error or 'unknown'}"
    if mine is None or other is None:
        return "catching up", began, "the backup is being started" if other is None else ""
    return mine.state, mine.since, mine.why


def _alone_since(layout: Layout, mine: GuardStatus | None) -> float:
    if mine is None:
        return layout.since
    if mine.state == "alone" and mine.since:
        return mine.since
    return mine.takeovers[-1].at if mine.takeovers else layout.since


def _why_alone(cluster: Cluster, place: UnitAssignment, mine: GuardStatus | None) -> str:
    if place.was is not None and not cluster.members.lives(place.was):
        return f"{place.was} does not answer"
    if mine is not None and mine.state == "alone" and mine.why:
        return mine.why
    able = [m.name for m in cluster.members.alive() if m.name != place.node and m.status.spark == "ready"]
    return "its new backup is being started" if able else "no other node is ready"
