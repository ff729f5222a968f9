"""How everything stands, as `borealis status` shows it: from the catalog and the last heartbeats, no node is asked."""

from __future__ import annotations

from typing import Any

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.layout import Layout, UnitPlace, stream_name
from borealis.coordinator.membership import Member
from borealis.coordinator.naming import Found, streams
from borealis.coordinator.protection_view import guard_view, unprotected
from borealis.coordinator.rates import busy, queue_rate, unit_rates
from borealis.streams.status import QueueStatus
from borealis.tuples import FIRST_TIME, LAST_TIME

Facts = dict[str, Any]


def nodes_view(cluster: Cluster) -> list[Facts]:
    """Every node that was ever seen: `alive`, `dead`, or `awaited` since the coordinator began anew."""
    found = []
    for member in cluster.members.members():
        status, alive = member.status, cluster.members.lives(member.name)
        found.append(
            {
                "node": member.name,
                "alive": alive,
                "state": "alive" if alive else "dead",
                "address": status.address,
                "http": status.http,
                "host": status.host,
                "pid": status.pid,
                "master": status.master,
                "spark": status.spark if alive else "unknown",
                "warm": alive and status.warm,
                "cores": status.cores,
                "units": sum(unit.state != "standby" for unit in status.units) if alive else 0,
                "standbys": sum(unit.state == "standby" for unit in status.units) if alive else 0,
                "busy": busy(member) if alive else 0.0,
                "silent_s": round(cluster.members.silent_for(member.name) or 0.0, 3),
                "started": status.started,
                "incarnation": status.incarnation,
                "version": status.version,
            }
        )
    heard = {facts["node"] for facts in found}
    for known in cluster.catalog.nodes():
        if known.name not in heard:
            found.append(
                {
                    "node": known.name,
                    "alive": False,
                    "state": "awaited",
                    "address": known.address,
                    "http": known.http,
                    "host": known.host,
                    "pid": known.pid,
                    "spark": "unknown",
                    "incarnation": known.incarnation,
                    "seen": known.seen,
                }
            )
    return sorted(found, key=lambda facts: str(facts["node"]))


def units_view(cluster: Cluster) -> list[Facts]:
    """All units that shall run, and those that run though nobody here knows them (`orphan`)."""
    queues = _queues(cluster)
    layouts = cluster.catalog.layouts()
    found = [_unit(cluster, layout, unit, queues) for layout in layouts for unit in layout.units]
    known = {layout.name for layout in layouts}
    for member in cluster.members.alive():
        for status in member.status.units:
            if status.diagram not in known:
                facts = {"diagram": status.diagram, "unit": status.unit, "node": member.name, "boxes": status.boxes}
                found.append(facts | _measured(member, status.diagram, status.unit, queues) | {"state": "orphan"})
    return found


def _unit(cluster: Cluster, layout: Layout, unit: UnitPlace, queues: dict[str, QueueStatus]) -> Facts:
    facts: Facts = {
        "diagram": layout.name,
        "unit": unit.unit,
        "node": unit.node,
        "boxes": list(unit.boxes),
        "reads": [stream_name(layout.name, arrow) for arrow in unit.reads],
        "gives": [stream_name(layout.name, arrow) for arrow in unit.gives],
        "moving_to": unit.moving_to,
        "protection": guard_view(cluster, layout, unit),
    }
    member = cluster.members.member(unit.node)
    alive = cluster.members.lives(unit.node)
    if member is None or member.unit(layout.name, unit.unit) is None:
        waits = "awaited" if member is None else "starting" if alive else "lost"
        return facts | {"state": waits, "error": _why_lost(facts) if waits == "lost" else "", "waiting": []}
    measured = _measured(member, layout.name, unit.unit, queues)
    if not alive:
        nothing = {"rows_in_per_s": 0.0, "rows_out_per_s": 0.0, "trains_per_s": 0.0, "waiting": []}
        measured |= {"state": "lost", "error": measured["error"] or _why_lost(facts)} | nothing
    elif unit.moving_to is not None:
        measured["state"] = "moving"
    return facts | measured


def _why_lost(facts: Facts) -> str:
    """What became of a unit whose node is dead, and what can be done; protected ones tell it themselves."""
    if facts["protection"] is not None:
        return ""
    return f"lost with {facts['node']}: once that is back it begins from nothing; under 'deploy --ha' it would go on"


def _measured(member: Member, diagram: str, unit: str, queues: dict[str, QueueStatus]) -> Facts:
    status = member.unit(diagram, unit)
    assert status is not None
    rows_in, rows_out, trains = unit_rates(member, diagram, unit)
    waiting = [(queues[stream], upto) for stream, upto in status.inputs.items() if stream in queues]
    # what stands in queues upstream, or here and in no train; ids that were jumped over are no tuples
    unread = sum(min(queue.held_rows, max(0, queue.next_id - upto)) for queue, upto in waiting)
    return {
        "state": "waiting" if status.state == "running" and status.waiting else status.state,
        "trains": status.trains,
        "trains_per_s": round(trains, 3),
        "train_ms": status.train_ms,
        "rows_in": status.rows_in,
        "rows_out": status.rows_out,
        "rows_in_per_s": round(rows_in, 1),
        "rows_out_per_s": round(rows_out, 1),
        "state_bytes": status.state_bytes,
        "lag_rows": max(unread, status.lag_rows),
        "inputs": status.inputs,
        "jumps": status.jumps,
        **_boundary(status.boundary),
        "error": status.error,
        "errors": status.errors,
        "last_error": status.last_error,
        "runs": "in lanes" if status.in_lanes else "in micro-batches",
        "hinders": status.hinders,
        "waiting": [{"why": one.why, "seconds": one.seconds} for one in status.waiting],
    }


def streams_view(cluster: Cluster) -> list[Facts]:
    """All streams that can be subscribed to, where they are, and how their queues stand."""
    return [_stream(cluster, layout, found) for layout in cluster.catalog.layouts() for found in streams(layout)]


def _stream(cluster: Cluster, layout: Layout, found: Found) -> Facts:
    member = cluster.members.member(found.node)
    alive = cluster.members.lives(found.node)
    facts: Facts = {
        "stream": found.stream,
        "diagram": found.diagram,
        "arrow": found.arrow,
        "outputs": sorted(name for name, arrow in layout.outputs.items() if arrow == found.arrow),
        "columns": layout.columns.get(found.arrow, ""),
        "entry": found.entry,
        "node": found.node,
        "alive": alive,
        "address": member.status.address if member is not None and alive else None,
        "backup": found.backup,
    }
    entry = layout.entry(found.arrow) if found.entry else None
    if entry is not None:
        facts["protection"] = guard_view(cluster, layout, entry)
    queue = None if member is None else member.queue(found.stream)
    if member is None or queue is None:
        return facts
    return facts | {
        "epoch": queue.epoch,
        "first_id": queue.first_id,
        "next_id": queue.next_id,
        "rows_per_s": round(queue_rate(member, found.stream), 1) if alive else 0.0,
        "held_rows": queue.held_rows,
        "held_bytes": queue.held_bytes,
        "dropped": queue.dropped,
        "late": queue.late,
        "readers": queue.readers,
        **_boundary(queue.boundary),
    }


def diagrams_view(cluster: Cluster) -> list[Facts]:
    """All diagrams; one with a unit that failed, or is on a node that is lost, says so."""
    units = units_view(cluster)
    return [diagram_view(layout, units) for layout in cluster.catalog.layouts()]


def diagram_view(layout: Layout, units: list[Facts]) -> Facts:
    """One diagram."""
    states = {facts["state"] for facts in units if facts["diagram"] == layout.name}
    state: str = layout.state
    if state == "running":
        state = next((bad for bad in ("failed", "lost") if bad in states), state)
        if states == {"ended"}:
            state = "ended"
    return {
        "diagram": layout.name,
        "state": state,
        "since": layout.since,
        "units": {unit.unit: unit.node for unit in layout.units},
        "entries": {entry.input: entry.node for entry in layout.entries},
        "backups": {unit.unit: unit.backup for unit in layout.units if unit.protected},
        "outputs": dict(layout.outputs),
        "cuts": list(layout.cuts),
        "places": dict(layout.places),
        "buckets": layout.buckets,
    }


def status_view(cluster: Cluster, coordinator: Facts, troubles: list[dict[str, str]]) -> Facts:
    """All of it."""
    return {
        "v": 1,
        "coordinator": coordinator,
        "nodes": nodes_view(cluster),
        "diagrams": diagrams_view(cluster),
        "units": units_view(cluster),
        "streams": streams_view(cluster),
        "unprotected": unprotected(cluster),
        "troubles": [*troubles, *_disks(cluster)],
    }


def _disks(cluster: Cluster) -> list[dict[str, str]]:
    """Logs of durable entry points that take nothing: on which node, which disk, and why."""
    found = []
    for member in cluster.members.alive():
        for log in member.status.logs:
            if log.error:
                until = "until there is room" if log.full else "until that is mended and the node started again"
                found.append({"what": member.name, "trouble": f"{log.error}; {log.stream} takes nothing {until}"})
    return found


def _queues(cluster: Cluster) -> dict[str, QueueStatus]:
    """By stream; of one that a standby holds, too, that of whoever serves it."""
    found = {q.stream: q for member in cluster.members.alive() for q in member.status.queues}
    for layout in cluster.catalog.layouts():
        for one in streams(layout):
            member = cluster.members.member(one.node) if cluster.members.lives(one.node) else None
            queue = None if member is None else member.queue(one.stream)
            if queue is not None:
                found[one.stream] = queue
    return found


def _boundary(boundary: int) -> Facts:
    """Microseconds since 1970; none before the first and after the last."""
    known = boundary not in (FIRST_TIME, LAST_TIME)
    return {"boundary": boundary if known else None, "ended": boundary == LAST_TIME}
