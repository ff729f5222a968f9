"""How long a reader gets nothing when the copy that it reads dies, or is cut off from a stream (DPC 5: 40 ms).

A unit reads three streams by time, in two copies: replicas that both answer, or, to compare, an active standby that
waits for the death of its primary. Rows flow all the time. A pause is the longest time between two arrivals around the
failure; before it, pauses are as long as buckets and trains make them.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from borealis import Diagram
from borealis.client.subscriber import Subscription
from borealis.wire.messages import CutOff, Done

from .delay_failures import INPUTS, Failure, Feed
from .recovery_cluster import HEARTBEATS_S, Cluster

BUCKET = "10 ms"
USUAL_S = 3.0  # before the failure: what is usual
AFTER_S = 6.0  # a takeover takes less
PAUSE_MS_MOST = 100.0


@dataclass(frozen=True)
class Switch:
    """What is measured."""

    ha: str
    what: str  # kill or cut


@dataclass
class Arrivals:
    """When rows came, and how many there were."""

    at: list[float] = field(default_factory=list)
    rows: int = 0
    last: int = -1
    repeated: int = 0

    def read(self, subscription: Subscription) -> None:
        for section in subscription.sections():
            if len(section):
                self.at.append(time.monotonic())
                self.repeated += int(section.first <= self.last)
                self.last = section.stop - 1
                self.rows += len(section)

    def pause_ms(self, begin: float, end: float) -> float:
        """The longest time between two arrivals in a stretch of time."""
        at = np.array([one for one in list(self.at) if begin <= one <= end])
        return float(np.diff(np.concatenate(([begin], at, [end]))).max()) * 1000


class Scene:
    """One deployment, whose copies fail by turns."""

    def __init__(self, running: Cluster, ha: str) -> None:
        self.running, self.name = running, f"switch_{ha}"
        self.failure = Failure(0, rate=3_000)
        place = {"all": "node1"} | dict.fromkeys(INPUTS, "node3")
        how: dict[str, Any] = {"ha": ha, "merge": "time", "bucket": BUCKET, "place": place, "backup": {"u1": "node2"}}
        how["pin"] = True  # copies are where they are for what fails
        running.client.deploy(Diagram.from_yaml(self.failure.yaml(self.name)), **how)
        running.wait_protected(self.name)
        self.subscription = running.client.subscribe(f"{self.name}/out", "oldest")
        self.arrivals = Arrivals()
        self._reader = threading.Thread(target=self.arrivals.read, args=(self.subscription,), daemon=True)
        self._reader.start()
        self._feed = Feed(running, self.name, self.failure)
        self._feed.start()

    def fail(self, what: str) -> dict[str, float]:
        """The copy that is read dies or is cut off; all is well again when this returns."""
        time.sleep(USUAL_S)
        node = self._read_from()
        before = time.monotonic()
        usual = self.arrivals.pause_ms(before - USUAL_S + 1.0, before)
        if what == "kill":
            self.running.kill(node)
        else:
            self._cut(node, cut=True)
        time.sleep(AFTER_S)
        pause = self.arrivals.pause_ms(before, before + AFTER_S - 0.5)
        if what == "kill":
            self.running.mend()
            self.running.wait_protected(self.name)
        else:
            self._cut(node, cut=False)
        return {"pause_ms": pause, "usual_ms": usual}

    def _read_from(self) -> str:
        address = self.subscription.address
        return next(node.node for node in self.running.status().nodes if node.address == address)

    def _cut(self, node: str, *, cut: bool) -> None:
        one = next(one for one in self.running.status().nodes if one.node == node)
        with self.running.client.peer(one.address) as peer:
            peer.act("cut", CutOff(stream=f"{self.name}/a", cut=cut), Done)

    def end(self) -> bool:
        """Whether every row that was sent came, once; but those that a slow machine sent too late."""
        self._feed.stop()
        self._reader.join(60.0)
        self.subscription.stop()
        time.sleep(HEARTBEATS_S)  # until the last late rows are told of
        sent = sum(batch.num_rows for batches in self._feed.sent for batch in batches.values())
        late = sum(one.late for one in self.running.status().streams if one.diagram == self.name and one.entry)
        self.running.client.undeploy(self.name)
        got, again = self.arrivals.rows, self.arrivals.repeated
        self.running.say(f"{self.name}: {got:,} of {sent:,} rows came, {late:,} were late; {again} sections came again")
        return got == sent - late and not again
