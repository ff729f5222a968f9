"""Rates from counts that rise: of units and of queues, over the last few heartbeats."""

from __future__ import annotations

from collections.abc import Sequence

from borealis.coordinator.membership import Member


def unit_rates(member: Member, diagram: str, unit: str) -> tuple[float, float, float]:
    """Rows in, rows out and trains a second; nothing while only one heartbeat shows the unit. What a backup showed
    before it took over was its primary's, and is not counted.
    """
    samples = [(at, u) for at, s in member.history for u in s.units if u.diagram == diagram and u.unit == unit]
    samples = [(at, u) for at, u in samples if (u.state == "standby") == (samples[-1][1].state == "standby")]
    return _rate(samples, "rows_in"), _rate(samples, "rows_out"), _rate(samples, "trains")


def queue_rate(member: Member, stream: str) -> float:
    """Tuples a second that a queue takes in; of one that began again only since then."""
    samples = [(at, q) for at, s in member.history for q in s.queues if q.stream == stream]
    return _rate([(at, q) for at, q in samples if q.epoch == samples[-1][1].epoch], "next_id")


def _rate(samples: Sequence[tuple[float, object]], count: str) -> float:
    """Of a count between the first and the last sample."""
    if not samples or samples[-1][0] <= samples[0][0]:
        return 0.0
    (then_at, then), (now_at, now) = samples[0], samples[-1]
    return float(max(0, getattr(now, count) - getattr(then, count))) / (now_at - then_at)


def busy(member: Member) -> float:
    """Of each second the part that the node's trains take."""
    total = 0.0
    for unit in member.status.units:
        _, _, trains = unit_rates(member, unit.diagram, unit.unit)
        total += min(1.0, trains * unit.train_ms / 1000)  # one that waited long says more than it took
    return round(total, 3)
