"""One failure of an input, as the DPC paper's experiments have it: rows flow, a node is cut off from one of three
streams and reads it again, and a client that takes tentative rows notes how old each row is when it first sees it.

The three streams meet in a union, and a join with a state of some 100 rows follows. A row is *new* unless it is of the
stream that is cut off, born before that is healed and first seen after it: such a row cannot come in time. When all is
over, the same rows are sent to the same diagram once more, with no failure, and what was stable is compared with that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from borealis import Diagram
from borealis.client.subscriber import Subscription
from borealis.streams.section import Section
from borealis.wire.messages import CutOff, Done

from .recovery_cluster import Cluster

INPUTS = ("a", "b", "c")
CUT = "c"  # the stream that fails
TICK_US = 20_000
TICK_S = TICK_US / 1e6
FILL_ROWS = 20_000
FRESH_US = 300_000
WARM_S = 2.0  # before the failure
AFTER_S = 1.5  # behind the correction
HEALED_S = 120.0  # within which the correction must come
ROOM = 1 << 22  # rows of a run
COLUMNS = "ts TIMESTAMP, n BIGINT, k INT, g BIGINT"
SCHEMA = pa.schema([("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("k", pa.int32()), ("g", pa.int64())])
KEYS = 50


@dataclass(frozen=True)
class Failure:
    """What is measured: the bound, the policies, how long the failure lasts, how many nodes the rows pass."""

    x_ms: float
    during_failure: str = "process"
    during_stabilization: str = "process"
    seconds: float = 5.0
    rate: int = 3_000  # rows a second, of all streams
    nodes: int = 1
    state_rows: int = 0  # of a box beside, that holds them all the time

    @property
    def policy(self) -> str:
        return f"{self.during_failure} & {self.during_stabilization}"

    def yaml(self, name: str) -> str:
        """Three streams, a union and a join; then a map for each node more, and a window that holds many rows."""
        inputs = "".join(f"  {one}: {{columns: '{COLUMNS}', time: ts}}\n" for one in INPUTS)
        boxes = ["all: {union: {from: [a, b, c]}}", "few: {filter: {from: all, predicate: n % 30 = 0}}"]
        boxes.append("paired: {join: {from: [all, few], 'on': left.k = right.k, within: 30 ms}}")
        last = "all"
        for number in range(2, self.nodes + 1):
            boxes.append(f"n{number}: {{map: {{from: {last}, exprs: {{ts: ts, n: n}}}}}}")
            last = f"n{number}"
        outputs = {"out": last, "pairs": "paired"}
        if self.state_rows:
            boxes.append("held: {aggregate: {from: all, by: [g], size: 1 day, exprs: {times: count(*)}}}")
            outputs["held"] = "held"
        made = "".join(f"  {box}\n" for box in boxes)
        shown = "".join(f"  {output}: {arrow}\n" for output, arrow in outputs.items())
        return f"borealis: 1\nname: {name}\ninputs:\n{inputs}boxes:\n{made}outputs:\n{shown}"

    @property
    def cuts(self) -> list[str]:
        return [f"n{number}" for number in range(2, self.nodes + 1)]

    def places(self) -> dict[str, str]:
        """Entry points on the last node, units on those before it."""
        units = {box: f"node{number}" for number, box in enumerate(("all", *self.cuts), 1)}
        return units | dict.fromkeys(INPUTS, f"node{self.nodes + 1}")


@dataclass
class Seen:
    """What a client got of a stream."""

    first: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(ROOM, np.int64))
    born: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros(ROOM, np.int64))
    stable: list[pa.RecordBatch] = field(default_factory=list)
    times: list[np.ndarray[Any, np.dtype[np.int64]]] = field(default_factory=list)
    tentative: int = 0
    is_fresh: bool = False  # what came last is new
    undone: list[float] = field(default_factory=list)

    def take(self, section: Section) -> None:
        now = time.time_ns() // 1000
        if section.undo:
            self.undone.append(time.monotonic())
        if not len(section):
            return
        if "n" in section.rows.schema.names and "ts" in section.rows.schema.names:
            n = section.rows.column("n").to_numpy()
            new = self.first[n] == 0
            self.first[n[new]] = now
            self.is_fresh = now - int(section.time.max()) < FRESH_US
            self.born[n[new]] = section.rows.column("ts").cast(pa.int64()).to_numpy()[new]
        if section.stable:
            self.stable.append(section.rows)
            self.times.append(section.time)
        else:
            self.tentative += len(section)

    def table(self) -> pa.Table:
        """All that was stable, in its order, with its times."""
        whole = pa.Table.from_batches(self.stable).combine_chunks()
        return whole.append_column("_time", pa.array(np.concatenate(self.times)))


def measure(running: Cluster, failure: Failure, name: str) -> dict[str, Any]:
    """All figures of one failure; what runs under this name ends with it."""
    client = running.client
    bound = {
        "delay": f"{failure.x_ms:g} ms",
        "during_failure": failure.during_failure,
        "during_stabilization": failure.during_stabilization,
    }
    _deploy(running, failure, name, bound)
    outputs = ("out", "pairs")
    subscriptions = {one: client.subscribe(f"{name}/{one}", "oldest", tentative=True) for one in outputs}
    seen = {one: Seen() for one in outputs}
    readers = [_start(f"read-{one}", _read, subscriptions[one], seen[one]) for one in outputs]
    feed = Feed(running, name, failure)
    try:
        feed.fill(failure.state_rows)
        feed.start()
        _await(lambda: seen["out"].is_fresh, "rows to flow")
        time.sleep(WARM_S)
        _cut(running, f"{name}/{CUT}", cut=True)
        time.sleep(failure.seconds)
        healed, heal_at = time.monotonic(), time.time_ns() // 1000
        _cut(running, f"{name}/{CUT}", cut=False)
        tentative = any(one.tentative for one in seen.values())
        taken = [one for one in seen.values() if one.tentative]
        if tentative:
            _await(lambda: all(one.undone and one.undone[-1] >= healed for one in taken), "corrections")
        time.sleep(AFTER_S)
        feed.stop()
        for reader in readers:
            reader.join(60.0)
        got = {one: seen[one].table() for one in outputs}
    finally:
        feed.stop()
        for subscription in subscriptions.values():
            subscription.stop()
        client.undeploy(name)
    out = seen["out"]
    n = np.flatnonzero(out.first)
    n = n[n >= failure.state_rows]
    missing = (n % len(INPUTS) == INPUTS.index(CUT)) & (out.born[n] <= heal_at) & (out.first[n] >= heal_at)
    delays = (out.first[n] - out.born[n])[~missing] / 1000
    corrected = [one.undone[-1] for one in seen.values() if one.undone]
    right = _again(running, failure, f"{name}_again", feed.sent)
    return {
        "policy": failure.policy,
        "x_ms": failure.x_ms,
        "failure_s": failure.seconds,
        "rows_per_s": failure.rate,
        "nodes": failure.nodes,
        "state_rows": failure.state_rows,
        "delay_new_ms_max": round(float(delays.max()), 1),
        "delay_new_ms_p50": round(float(np.median(delays)), 1),
        "tentative": out.tentative,
        "undos": len(out.undone),
        "reconcile_ms": round(1000 * (max(corrected) - healed), 1) if corrected else 0.0,
        "stable_equal": all(got[one].equals(right[one]) for one in outputs),
    }


def _await(what: Callable[[], bool], name: str) -> None:
    until = time.monotonic() + HEALED_S
    while not what():
        if time.monotonic() > until:
            raise RuntimeError(f"waited {HEALED_S:.0f} s for {name}")
        time.sleep(0.01)


def _deploy(running: Cluster, failure: Failure, name: str, bound: dict[str, str]) -> None:
    how: dict[str, Any] = {"ha": "amnesia", "merge": "time", "bucket": "50 ms", "without_backup": "degrade"} | bound
    diagram = Diagram.from_yaml(failure.yaml(name))
    running.client.deploy(diagram, cut=failure.cuts, place=failure.places(), **how)


def _again(running: Cluster, failure: Failure, name: str, sent: list[dict[str, pa.RecordBatch]]) -> dict[str, pa.Table]:
    """What comes of the same rows where nothing fails."""
    _deploy(running, failure, name, {})
    outputs = ("out", "pairs")
    seen = {one: Seen() for one in outputs}
    subscriptions = {one: running.client.subscribe(f"{name}/{one}", "oldest") for one in outputs}
    readers = [_start(f"again-{one}", _read, subscriptions[one], seen[one]) for one in outputs]
    try:
        publishers = {one: running.client.publisher(f"{name}/{one}") for one in INPUTS}
        for batches in sent:
            for one, batch in batches.items():
                publishers[one].send_batch(batch)
        for publisher in publishers.values():
            publisher.end()
            publisher.close(60.0)
        for reader in readers:
            reader.join(60.0)
        return {one: seen[one].table() for one in outputs}
    finally:
        for subscription in subscriptions.values():
            subscription.stop()
        running.client.undeploy(name)


def _read(subscription: Subscription, seen: Seen) -> None:
    for section in subscription.sections():
        seen.take(section)


def _start(name: str, what: Any, *given: Any) -> threading.Thread:
    thread = threading.Thread(target=what, args=given, name=name, daemon=True)
    thread.start()
    return thread


def _cut(running: Cluster, stream: str, *, cut: bool) -> None:
    node = next(one for one in running.status().nodes if one.node == "node1")
    with running.client.peer(node.address) as peer:
        peer.act("cut", CutOff(stream=stream, cut=cut), Done)


class Feed:
    """Rows for the three streams, born by the clock; what was sent is remembered."""

    def __init__(self, running: Cluster, name: str, failure: Failure) -> None:
        self._publishers = {one: running.client.publisher(f"{name}/{one}") for one in INPUTS}
        self._each = max(1, round(failure.rate * TICK_S / len(INPUTS)))
        self.sent: list[dict[str, pa.RecordBatch]] = []
        self._next, self._groups = 0, max(1, failure.state_rows)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def fill(self, rows: int) -> None:
        """So many rows at once, all of them before those that come."""
        each = rows // len(INPUTS)
        first = time.time_ns() // 1000 - 1000 * (each + 1000)  # one each millisecond, up to a second ago
        for start in range(0, each, FILL_ROWS):
            count = min(FILL_ROWS, each - start)
            self._send(first + 1000 * np.arange(start, start + count), count)

    def start(self) -> None:
        self._thread = _start("feed", self._run)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stopped.is_set():
            now = time.time_ns() // 1000
            self._send(now - TICK_US + np.arange(self._each) * TICK_US // self._each, self._each)
            due += TICK_S
            time.sleep(max(0.0, due - time.monotonic()))

    def _send(self, born: np.ndarray[Any, np.dtype[np.int64]], count: int) -> None:
        batches = {}
        for number, one in enumerate(INPUTS):
            n = (self._next + np.arange(count)) * len(INPUTS) + number
            times, keys = pa.array(born).cast(SCHEMA.field("ts").type), pa.array((n % KEYS).astype(np.int32))
            groups = pa.array(n % self._groups)
            batches[one] = pa.record_batch([times, pa.array(n), keys, groups], schema=SCHEMA)
            self._publishers[one].send_batch(batches[one])
        self._next += count
        self.sent.append(batches)

    def stop(self) -> None:
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        for publisher in self._publishers.values():
            publisher.end()
            publisher.close(60.0)
