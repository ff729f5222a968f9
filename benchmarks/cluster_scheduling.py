"""Which task an idle server takes up: one after the other, or what most reduces the slowest share (algorithm 1)."""

from __future__ import annotations

from .cluster_model import Capture, Cluster, Message, Paste, Server, Task, Unit


def round_robin(cluster: Cluster, server: Server, now: float) -> Task | None:
    """What has waited longest: a unit to be captured, or a message to be pasted."""
    waiting: list[tuple[float, int, Task]] = [
        (unit.waits_since, unit.number, Capture(unit)) for unit in server.units if unit.waits
    ]
    waiting += [(one.came, one.unit.number, Paste(one)) for one in server.inbox]
    return min(waiting, key=lambda one: one[:2])[2] if waiting else None


def min_max(cluster: Cluster, server: Server, now: float) -> Task | None:
    """The capture that most helps the slowest share for what it costs; or a paste for a share that is slower still."""
    best = _best_capture(cluster, server, now)
    slowest = -1.0 if best is None else _after_capture(cluster, server, best, now)
    found: Message | None = None
    for number in sorted({message.unit.primary for message in server.inbox}):
        oldest = next(message for message in server.inbox if message.unit.primary == number)
        after = _after_paste(cluster, server, oldest, now)
        if after > slowest:
            found, slowest = oldest, after
    if found is not None:
        return Paste(found)
    return None if best is None else Capture(best)


def _best_capture(cluster: Cluster, server: Server, now: float) -> Unit | None:
    """Of the units whose backup has most to do if this server dies. If all those are under way, no other helps."""
    shares = cluster.shares_s(server.number, now)
    slowest = max(shares.values(), default=0.0)
    able = [unit for unit in server.units if unit.waits and shares[unit.backup] >= slowest]
    ratios = {unit.number: _gain(unit, now) / _capture_s(unit, now) for unit in able}
    return max(able, key=lambda unit: (ratios[unit.number], -unit.number), default=None)


def _capture_s(unit: Unit, now: float) -> float:
    return max(1e-6, unit.kind.capture_s(unit.since(now)))


def _gain(unit: Unit, now: float) -> float:
    """What its recovery is shorter by, once its image is fresh."""
    return unit.redo_s(now) - unit.kind.paste_s(unit.since(now))


def _after_capture(cluster: Cluster, server: Server, unit: Unit, now: float) -> float:
    then = now + _capture_s(unit, now)
    return cluster.segment_s(server.number, unit.backup, then) - _gain(unit, now)


def _after_paste(cluster: Cluster, server: Server, message: Message, now: float) -> float:
    then = now + message.cost_s / (1.0 - server.load)
    return cluster.segment_s(message.unit.primary, server.number, then) - message.cost_s
