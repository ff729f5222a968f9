"""How everything stands, as `borealis status` shows it: from the catalog and the last heartbeats, no node is asked."""

from __future__ import annotations

from typing import Any

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.layout import Layout, UnitAssignment, stream_name
from borealis.coordinator.membership import Member
from borealis.coordinator.naming import Found, streams
from borealis.coordinator.protection_view import guard_view, unprotected
from borealis.streams.status import QueueStatus
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire import status as views
from borealis.wire.messages import ENTRY, UnitStatus

FROM_NOTHING = "once that is back it begins from nothing; under 'deploy --ha' it would go on"


def nodes_view(cluster: Cluster) -> list[views.NodeView]:
    """Every node that was ever seen: `alive`, `dead`, or `awaited` since the coordinator started."""
    heard = {member.name: _node(cluster, member) for member in cluster.members.members()}
    awaited = {known.node: known for known in cluster.catalog.nodes()}
    return [view for _, view in sorted((awaited | heard).items())]


def _node(cluster: Cluster, member: Member) -> views.NodeView:
    status, alive = member.status, cluster.members.lives(member.name)
    standby = [unit.state == "standby" for unit in status.units if alive]
    now = {
        "alive": alive,
        "state": "alive" if alive else "dead",
        "spark": status.spark if alive else "unknown",
        "warm": alive and status.warm,
        "units": standby.count(False),
        "standbys": standby.count(True),
        "busy": member.busy() if alive else 0.0,
        "silent_s": round(cluster.members.silent_for(member.name) or 0.0, 3),
    }
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
        "protection": guard_view(cluster, layout, unit),
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
        "state": "waiting" if status.state == "running" and status.waiting else status.state,
        "trains_per_s": round(trains, 3),
        "rows_in_per_s": round(rows_in, 1),
        "rows_out_per_s": round(rows_out, 1),
        "lag_rows": max(unread, status.lag_rows),
        **_boundary(status.boundary),
        "runs": "in lanes" if status.in_lanes else "in micro-batches",
        "waiting": status.waiting if alive else [],
    }


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
        facts["protection"] = guard_view(cluster, layout, entry)
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
    """One diagram, of whose units these are known to run or not to."""
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
        "cuts": list(layout.cuts),
    }
    return views.DiagramView(**vars(layout) | facts)


def status_view(
    cluster: Cluster, coordinator: views.CoordinatorView, troubles: list[views.TroubleView]
) -> views.ClusterStatus:
    """All of it."""
    return views.ClusterStatus(
        coordinator=coordinator,
        nodes=nodes_view(cluster),
        diagrams=diagrams_view(cluster),
        units=units_view(cluster),
        streams=streams_view(cluster),
        unprotected=unprotected(cluster),
        troubles=[*troubles, *_disks(cluster)],
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
