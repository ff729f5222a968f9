"""Rates from counts that rise: of units and of queues, over the last few heartbeats."""

from __future__ import annotations

from borealis.coordinator.membership import Member


def unit_rates(member: Member, diagram: str, unit: str) -> tuple[float, float, float]:
    """Rows in, rows out and trains a second; nothing while only one heartbeat is known."""
    now = member.unit(diagram, unit)
    (then_at, then_status), (now_at, _) = member.history[0], member.history[-1]
    then = next((u for u in then_status.units if u.diagram == diagram and u.unit == unit), None)
    if now is None or then is None or now_at <= then_at:
        return 0.0, 0.0, 0.0
    seconds = now_at - then_at
    pairs = ((then.rows_in, now.rows_in), (then.rows_out, now.rows_out), (then.trains, now.trains))
    a, b, c = (max(0, after - before) / seconds for before, after in pairs)
    return a, b, c


def queue_rate(member: Member, stream: str) -> float:
    """Tuples a second that a queue takes in."""
    (then_at, then_status), (now_at, now_status) = member.history[0], member.history[-1]
    then = next((q for q in then_status.queues if q.stream == stream), None)
    now = next((q for q in now_status.queues if q.stream == stream), None)
    if now is None or then is None or now_at <= then_at or now.epoch != then.epoch:
        return 0.0
    return max(0, now.next_id - then.next_id) / (now_at - then_at)


def busy(member: Member) -> float:
    """Of each second the part that the node's trains take."""
    total = 0.0
    for unit in member.status.units:
        _, _, trains = unit_rates(member, unit.diagram, unit.unit)
        total += trains * unit.train_ms / 1000
    return round(total, 3)
