"""One deployment under load: what its nodes' processors and guards did meanwhile."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from borealis.client.client import Client
from borealis.wire.status import ClusterStatus, StreamView, UnitView

from .measuring import cpu_seconds, cpu_times
from .overhead_cases import LAST, NONE, Case
from .recovery_cluster import Cluster
from .recovery_ours import Sender
from .recovery_packets import Feed, Packets, stream_bytes
from .workload import rows_at

TICK_S = 0.05
Q2_TICK_S = 0.1
Q2_ROWS_PER_MS = 20  # of real time


@dataclass(frozen=True)
class Measured:
    """Per second, over the measured time."""

    cpu: float  # seconds of processor, of all nodes with their JVMs and workers
    rows: float
    in_bytes: float  # of the input streams: columns and times
    out_bytes: float  # of the output, as the client got it
    guard_bytes: float  # between primary and backup of the unit
    guard_messages: float
    entry_bytes: float  # between entry points and their peers
    twin_bytes: float  # the input once more, to a backup that runs in parallel
    train_ms: float
    state_bytes: int
    kept_rows: int  # in the queues that the unit reads: what upstream keeps for it
    recovery_ms: float  # as the status expects it
    reprocess_ms: float | None = None  # seen, where there was a kill

    @property
    def extra_bytes(self) -> float:
        """What protecting the unit adds."""
        return self.guard_bytes + self.twin_bytes


class Q2Feed:
    """Rows of the engine benchmark in real time."""

    def __init__(self, sender: Sender) -> None:
        self.rows = self.bytes = 0
        self._sender, self._stop = sender, threading.Event()
        self._thread = threading.Thread(target=self._give, name="q2-feed", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join(60)

    def _give(self) -> None:
        began, count, tick = time.monotonic(), int(Q2_TICK_S * 1000 * Q2_ROWS_PER_MS), 0
        while not self._stop.is_set():
            rows = rows_at(tick * count, count, Q2_ROWS_PER_MS)
            self._sender(rows, 0)
            self.rows, self.bytes = self.rows + rows.num_rows, self.bytes + stream_bytes(rows)
            tick += 1
            self._stop.wait(max(0.0, began + tick * Q2_TICK_S - time.monotonic()))


class Drain:
    """A client of the output that only counts."""

    def __init__(self, client: Client, stream: str) -> None:
        self.bytes = 0
        self._subscription = client.subscribe(stream, start="oldest", on_gap="continue")
        threading.Thread(target=self._read, name="drain", daemon=True).start()

    def _read(self) -> None:
        for section in self._subscription.sections():
            self.bytes += section.nbytes

    def stop(self) -> None:
        """No more."""
        self._subscription.stop()


def measure(cluster: Cluster, case: Case, data: Packets, seconds: float) -> Measured:
    """Deploy, warm up, measure, and with `kill` see a takeover; nothing of it is left afterwards."""
    client, name = cluster.client, case.draw().name
    client.deploy(case.draw(), place=dict.fromkeys(case.inputs, "node1") | {LAST: "node2"}, **_protection(case))
    drain = Drain(client, f"{name}/{LAST}")
    publishers = [client.publisher(f"{name}/{one}") for one in case.inputs]
    senders = [Sender(publisher) for publisher in publishers]
    feed: Any = Q2Feed(senders[0]) if case.diagram == "q2" else Feed(data, senders, tick_s=TICK_S, ahead_s=case.ahead_s)
    feed.start()
    try:
        if case.approach != NONE:
            cluster.wait_protected(name)
        time.sleep(case.warm_s)
        found = _between(cluster, case, name, seconds, feed, drain)
        return _with_kill(cluster, name, found) if case.kill else found
    finally:
        feed.stop()
        drain.stop()
        for publisher in publishers:
            publisher.abandon()
        client.undeploy(name)


def _protection(case: Case) -> dict[str, Any]:
    if case.approach == NONE:
        return {"ha": NONE}
    interval = None if case.interval_ms is None else f"{case.interval_ms} ms"
    return {"ha": case.approach, "guarantee": case.guarantee, "interval": interval, "backup": {"u1": "node3"}}


def _between(cluster: Cluster, case: Case, name: str, seconds: float, feed: Any, drain: Drain) -> Measured:
    pids = cluster.pids()
    used = cpu_times(pids)
    before = _sample(cluster.status(), name, feed, drain)
    time.sleep(seconds)
    status = cluster.status()
    after = _sample(status, name, feed, drain)
    took = after["at"] - before["at"]
    rate = {key: (after[key] - before[key]) / took for key in before}
    unit, streams = _unit(status, name), _entries(status, name)
    return Measured(
        cpu=cpu_seconds(used, cpu_times(pids)) / took,
        rows=rate["rows"],
        in_bytes=rate["in"],
        out_bytes=rate["out"],
        guard_bytes=rate["guard"],
        guard_messages=rate["messages"],
        entry_bytes=rate["entry"],
        twin_bytes=rate["in"] if case.approach == "active" else 0.0,
        train_ms=unit.train_ms,
        state_bytes=unit.state_bytes,
        kept_rows=sum(stream.held_rows for stream in streams),
        recovery_ms=unit.protection.recovery_ms if unit.protection is not None else 0.0,
    )


def _sample(status: ClusterStatus, name: str, feed: Any, drain: Drain) -> dict[str, float]:
    """All that counts up, at one moment; guards as of the nodes' last heartbeats."""
    kept = _unit(status, name).protection
    return {
        "at": time.monotonic(),
        "rows": feed.rows,
        "in": feed.bytes,
        "out": drain.bytes,
        "guard": kept.bytes if kept is not None else 0,
        "messages": kept.messages if kept is not None else 0,
        "entry": sum(entry.protection.bytes for entry in _entries(status, name) if entry.protection is not None),
    }


def _unit(status: ClusterStatus, name: str) -> UnitView:
    return next(unit for unit in status.units if unit.diagram == name)


def _entries(status: ClusterStatus, name: str) -> list[StreamView]:
    return [stream for stream in status.streams if stream.diagram == name and stream.entry]


def _with_kill(cluster: Cluster, name: str, found: Measured) -> Measured:
    """Kill the primary, see what was computed again, and make the cluster whole."""
    unit = cluster.unit(name, LAST)
    assert unit.protection is not None
    cluster.kill(unit.node)
    told = cluster.takeover(name, LAST, unit.protection.incarnation)
    cluster.start(unit.node)
    cluster.wait_protected(name)
    return replace(found, reprocess_ms=told.reprocess_ms)
