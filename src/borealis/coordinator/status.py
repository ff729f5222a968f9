"""How everything stands, as `borealis status` shows it: from the catalog and the last heartbeats, no node is asked."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.deployment import expectations
from borealis.coordinator.layout import Layout, UnitAssignment, stream_name
from borealis.coordinator.membership import Member
from borealis.coordinator.naming import Found, streams
from borealis.coordinator.recovery import NodeRecovery, of_node
from borealis.coordinator.spreading import Node
from borealis.streams.status import QueueStatus
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire import status as views
from borealis.wire.messages import ENTRY, GuardStatus, UnitStatus

# states in which the next failure is not survived, or this one not yet; and those in which it may not be
EXPOSED: tuple[views.ProtectionState, ...] = ("alone", "lost", "taking over")
UNSTABLE: tuple[views.ProtectionState, ...] = (*EXPOSED, "catching up")
FROM_NOTHING = "once that is back it begins from nothing; under 'deploy --ha' it would go on"


def nodes_view(cluster: Cluster) -> list[views.NodeView]:
    """Every node that was ever seen: `alive`, `dead`, or `awaited` since the coordinator started."""
    units = expectations(cluster)
    able = [Node(m.name, m.status.cores) for m in cluster.members.alive()]
    heard = {m.name: _node(cluster, m, of_node(m.name, units, able)) for m in cluster.members.members()}
    awaited = {known.node: known for known in cluster.catalog.nodes()}
    return [view for _, view in sorted((awaited | heard).items())]


def _node(cluster: Cluster, member: Member, recovery: NodeRecovery | None) -> views.NodeView:
    status, alive = member.status, cluster.members.lives(member.name)
    standby = [unit.state == "standby" for unit in status.units if alive]
    now: dict[str, Any] = {
        "alive": alive,
        "state": "alive" if alive else "dead",
        "spark": status.spark if alive else "unknown",
        "warm": alive and status.warm,
        "units": standby.count(False),
        "standbys": standby.count(True),
        "busy": member.busy() if alive else 0.0,
        "silent_s": round(cluster.members.silent_for(member.name) or 0.0, 3),
    }
    if recovery is not None:
        shares = {node: round(1000 * seconds, 1) for node, seconds in recovery.shares.items()}
        now |= {"recovery_ms": round(1000 * recovery.seconds, 1), "recovery_shares": shares}
    return views.NodeView(**dict(status) | now)


def units_view(cluster: Cluster) -> list[views.UnitView]:
    """All units that shall run, and those that run though no diagram of the catalog has them (`orphan`)."""
    queues = _queues(cluster)
    layouts = cluster.catalog.layouts()
    found = [_unit(cluster, layout, unit, queues) for layout in layouts for unit in layout.units]
    known = {layout.name for layout in layouts}
    for member in cluster.members.alive():
        for status in member.status.units:
            if status.diagram not in known:
                measured = _measured(member, status, queues, alive=True)
                found.append(views.UnitView(**measured | {"node": member.name, "state": "orphan"}))
    return found


def _unit(cluster: Cluster, layout: Layout, unit: UnitAssignment, queues: dict[str, QueueStatus]) -> views.UnitView:
    member, alive = cluster.members.member(unit.node), cluster.members.lives(unit.node)
    status = None if member is None else member.unit(layout.name, unit.unit)
    facts: dict[str, Any] = {"error": "", "waiting": []}
    if member is not None and status is not None:
        facts = _measured(member, status, queues, alive)
    facts |= {
        "diagram": layout.name,
        "unit": unit.unit,
        "node": unit.node,
        "boxes": list(unit.boxes),
        "reads": [stream_name(layout.name, arrow) for arrow in unit.reads],
        "gives": [stream_name(layout.name, arrow) for arrow in unit.gives],
        "moving_to": unit.moving_to,
        "protection": _guard_view(cluster, layout, unit),
    }
    if member is None:
        facts["state"] = "awaited"
    elif not alive:
        why = "" if unit.protected else f"lost with {unit.node}: {FROM_NOTHING}"  # the protection of others says why
        facts |= {"state": "lost", "error": facts["error"] or why}
    elif status is None:
        facts["state"] = "starting"
    elif unit.moving_to is not None:
        facts["state"] = "moving"
    return views.UnitView(**facts)


def _measured(member: Member, status: UnitStatus, queues: dict[str, QueueStatus], alive: bool) -> dict[str, Any]:
    """Of a unit, for its view, what its node says; of a dead node nothing moves any more."""
    rows_in, rows_out, trains = member.unit_rates(status.diagram, status.unit) if alive else (0.0, 0.0, 0.0)
    waiting = [(queues[stream], upto) for stream, upto in status.inputs.items() if stream in queues]
    # what stands in queues upstream, or here and in no train; ids that were jumped over are no tuples
    unread = sum(min(queue.held_rows, max(0, queue.next_id - upto)) for queue, upto in waiting)
    return dict(status) | {
        "state": _word(status),
        "trains_per_s": round(trains, 3),
        "rows_in_per_s": round(rows_in, 1),
        "rows_out_per_s": round(rows_out, 1),
        "lag_rows": max(unread, status.lag_rows),
        **_boundary(status.boundary),
        "runs": "in lanes" if status.in_lanes else "in micro-batches",
        "waiting": status.waiting if alive else [],
        "fork": status.fork if alive else None,
    }


def _word(status: UnitStatus) -> str:
    """A unit's state; of one that runs, whether it waits, or answers tentatively."""
    if status.state != "running":
        return status.state
    return "tentative" if status.fork is not None else "waiting" if status.waiting else "running"


def streams_view(cluster: Cluster) -> list[views.StreamView]:
    """All streams that can be subscribed to, where they are, and how their queues stand."""
    return [_stream(cluster, layout, found) for layout in cluster.catalog.layouts() for found in streams(layout)]


def _stream(cluster: Cluster, layout: Layout, found: Found) -> views.StreamView:
    member, alive = cluster.members.member(found.node), cluster.members.lives(found.node)
    queue = None if member is None else member.queue(found.stream)
    facts: dict[str, Any] = {}
    if member is not None and queue is not None:
        rate = round(member.queue_rate(found.stream), 1) if alive else 0.0
        facts = dict(queue) | {"rows_per_s": rate, **_boundary(queue.boundary)}
    entry = layout.part(ENTRY + found.arrow) if found.entry else None
    if entry is not None:
        facts["protection"] = _guard_view(cluster, layout, entry)
    facts |= {
        "stream": found.stream,
        "outputs": sorted(name for name, arrow in layout.outputs.items() if arrow == found.arrow),
        "columns": layout.columns.get(found.arrow, ""),
        "alive": alive,
        "address": member.status.address if member is not None and alive else None,
    }
    return views.StreamView(**facts | vars(found))


def diagrams_view(cluster: Cluster) -> list[views.DiagramView]:
    """All diagrams; one with a unit that failed, or is on a node that is lost, says so."""
    units = units_view(cluster)
    return [diagram_view(layout, units) for layout in cluster.catalog.layouts()]


def diagram_view(layout: Layout, units: list[views.UnitView]) -> views.DiagramView:
    """One diagram, in the state that these units are in."""
    states = {unit.state for unit in units if unit.diagram == layout.name}
    state: views.DiagramState = layout.state
    if state == "running":
        state = "failed" if "failed" in states else "lost" if "lost" in states else state
        state = "ended" if states == {"ended"} else state
    facts = {
        "diagram": layout.name,
        "state": state,
        "units": {unit.unit: unit.node for unit in layout.units},
        "entries": {entry.input: entry.node for entry in layout.entries},
        "backups": {unit.unit: unit.backup for unit in layout.units if unit.protected},
        "copies": {unit.unit: list(unit.copies) for unit in layout.units if unit.further},
        "cuts": list(layout.cuts),
    }
    return views.DiagramView(**vars(layout) | facts)


def status_view(
    cluster: Cluster,
    coordinator: views.CoordinatorView,
    troubles: list[views.TroubleView],
    instability: views.Instability | None = None,
) -> views.ClusterStatus:
    return views.ClusterStatus(
        coordinator=coordinator,
        nodes=nodes_view(cluster),
        diagrams=diagrams_view(cluster),
        units=units_view(cluster),
        streams=streams_view(cluster),
        unprotected=unprotected(cluster),
        instability=instability or views.Instability(),
        troubles=[*troubles, *_disks(cluster), *_pools(cluster)],
    )


def _disks(cluster: Cluster) -> list[views.TroubleView]:
    """Logs of durable entry points that take nothing: on which node, which disk, and why."""
    found = []
    for member in cluster.members.alive():
        for log in member.status.logs:
            if log.error:
                until = "until there is room" if log.full else "until that is mended and the node started again"
                found.append(
                    views.TroubleView(node=member.name, why=f"{log.error}; {log.stream} takes nothing {until}")
                )
    return found


def _pools(cluster: Cluster) -> list[views.TroubleView]:
    """Nodes that cannot start a query for what they may have to take over."""
    pools = {member.name: member.status.pool for member in cluster.members.alive()}
    return [
        views.TroubleView(node=name, why=f"no query for its pool: {pool.trouble}")
        for name, pool in pools.items()
        if pool.trouble
    ]


def _queues(cluster: Cluster) -> dict[str, QueueStatus]:
    """By stream; of one that a standby holds, too, that of its primary."""
    found = {q.stream: q for member in cluster.members.alive() for q in member.status.queues}
    for layout in cluster.catalog.layouts():
        for one in streams(layout):
            member = cluster.members.if_alive(one.node)
            queue = None if member is None else member.queue(one.stream)
            if queue is not None:
                found[one.stream] = queue
    return found


def _boundary(boundary: int) -> dict[str, Any]:
    """Microseconds since 1970; none before the first and after the last."""
    known = boundary not in (FIRST_TIME, LAST_TIME)
    return {"boundary": boundary if known else None, "ended": boundary == LAST_TIME}


# -- protection


def _guard_view(cluster: Cluster, layout: Layout, place: UnitAssignment) -> views.ProtectionView | None:
    """The protection of a unit or an entry point; None if none was promised."""
    promised = place.protection
    if promised is None:
        return None
    here, there = (_reported(cluster, layout, place, node) for node in (place.node, place.backup))
    mine, other = (status.guard if status else None for status in (here, there))
    state, since, why = _state(cluster, layout, place, here, there)
    sides = [guard for guard in (mine, other) if guard is not None]
    takeovers = mine.takeovers if mine is not None else []
    return views.ProtectionView(
        approach=promised.approach,
        guarantee=promised.guarantee or "",
        interval_ms=promised.interval_us / 1000,
        checkpoint=promised.checkpoint if place.boxes else None,
        bucket_ms=promised.bucket_us / 1000 if promised.bucket_us and len(place.reads) > 1 else None,
        delay_ms=promised.delay_us / 1000 if promised.delay_us and place.boxes else None,
        incarnation=place.incarnation,
        backup="storage" if place.stored else place.backup,
        state=state,
        since=since,
        why=why,
        stale_ms=max((guard.stale_ms for guard in sides), default=0.0),
        recovery_ms=max((guard.recovery_ms for guard in sides), default=0.0),
        messages=sum(guard.messages for guard in sides[:1]),
        bytes=sum(guard.bytes for guard in sides[:1]),
        discarded=sum(guard.discarded for guard in sides),
        replicas=_replicas(cluster, layout, place) if place.replicated or place.copies or place.further else {},
        copies=promised.further + 2 if place.checkpointed and place.further else promised.replicas,
        failed_on=place.failed_on,
        takeovers=len(takeovers),
        last_takeover=takeovers[-1] if takeovers else None,
    )


def _replicas(cluster: Cluster, layout: Layout, place: UnitAssignment) -> dict[str, views.ReplicaCondition]:
    """How each copy is, by node."""
    found: dict[str, views.ReplicaCondition] = {}
    for node in place.nodes:
        status = _reported(cluster, layout, place, node)
        if status is not None and status.guard is not None and status.state != "failed":
            aside = status.guard.role != "primary"
            behind = aside and status.guard.state == "catching up"
            found[node] = "catching up" if behind else "stable" if aside and place.checkpointed else status.condition
        else:
            found[node] = "failed" if status is not None and status.state == "failed" else "away"
    return found


def unprotected(cluster: Cluster, states: Collection[views.ProtectionState] = EXPOSED) -> list[views.Unprotected]:
    """Whatever is without the protection it was promised, since when and why."""
    found = []
    for layout in cluster.catalog.layouts():
        for place in layout.parts() if layout.state == "running" else ():
            view = _guard_view(cluster, layout, place)
            if view is not None and view.state in states:
                name = f"input {place.input}" if place.input else place.unit
                seconds = round(max(0.0, cluster.clock.time() - view.since), 1)
                found.append(views.Unprotected(**dict(view), diagram=layout.name, what=name, seconds=seconds))
    return found


def _reported(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str | None) -> UnitStatus | None:
    """What a node says of its side, if it is alive."""
    member = cluster.members.if_alive(node)
    return None if member is None else member.unit(layout.name, place.unit)


def _state(
    cluster: Cluster, layout: Layout, place: UnitAssignment, here: UnitStatus | None, there: UnitStatus | None
) -> tuple[views.ProtectionState, float, str]:
    """In one word, since when, and why."""
    mine, other = (status.guard if status else None for status in (here, there))
    lives, began = cluster.members.lives, layout.since if mine is None else mine.since

    def silent(node: str) -> tuple[float, str]:
        return cluster.clock.time() - (cluster.members.silent_for(node) or 0.0), f"{node} does not answer"

    if not lives(place.node):
        goes_on = place.stored or any(map(lives, place.nodes[1:]))
        return "taking over" if goes_on else "lost", *silent(place.node)
    if place.stored:
        if here is not None and here.state == "failed":
            return "lost", began, f"it failed on {place.node}: {here.error or 'unknown'}"
        return ("taking over", began, "it is being restored") if mine is None else (mine.state, mine.since, mine.why)
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
