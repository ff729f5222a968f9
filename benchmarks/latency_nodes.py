"""From a publisher to a client over one, two and three nodes: real `borealis up` nodes on loopback.

A chain of as many units as nodes, each unit on its own; publisher and client are here, and the processor time is that
of the nodes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from borealis import Diagram

from .latency_feed import COLUMNS, DRAIN_S, FILTER, WINDOW, Ages, Phase, batch, feed, now_us, take_batch
from .measuring import meter
from .recovery_cluster import Cluster

CUTS: dict[int, tuple[str, ...]] = {1: (), 2: ("last",), 3: ("mapped", "last")}
LAST = {
    "stateless": "filter: {from: mapped, predicate: w > 0}",
    "windowed": f"aggregate: {{from: mapped, by: [k], size: {WINDOW}, slide: {WINDOW}, exprs: {{n: count(*)}}}}",
}
DIAGRAM = """\
borealis: 1
name: {name}
inputs:
  rows: {{columns: '{columns}', time: ts}}
boxes:
  kept: {{filter: {{from: rows, predicate: {keep}}}}}
  mapped: {{map: {{from: kept, exprs: {{born: born, k: k, w: v * 2}}}}}}
  last: {{{last}}}
outputs:
  out: last
"""


def chain(query: str, name: str) -> Diagram:
    """The query in three boxes, so that it can be cut into as many units."""
    return Diagram.from_yaml(DIAGRAM.format(name=name, columns=COLUMNS, keep=FILTER, last=LAST[query]))


def measure(running: Cluster, nodes: int, query: str, phases: Sequence[Phase], lines: list[dict[str, Any]]) -> None:
    """A chain at one rate after the other; adds to `lines` as it goes. The first phase only warms up."""
    cuts, name = CUTS[nodes], f"{query}{nodes}"
    places = {box: f"node{number}" for number, box in enumerate(("kept", *cuts), 1)}
    running.client.deploy(chain(query, name), cut=cuts, place=places)
    feed_and_read(running, name, ("rows",), query == "windowed", phases, lines)


def feed_and_read(
    running: Cluster,
    name: str,
    inputs: Sequence[str],
    windowed: bool,
    phases: Sequence[Phase],
    lines: list[dict[str, Any]],
) -> None:
    """What is deployed under this name gets the rows of each tick on each of these inputs, and ends; its output is
    `out`. Adds the figures of each phase but the first to `lines`."""
    client, ages = running.client, Ages()
    subscription = client.subscribe(f"{name}/out", start="oldest")

    def read() -> None:
        for section in subscription.sections():
            take_batch(ages, now_us(), section.rows)

    reader = threading.Thread(target=read, name=f"read-{name}", daemon=True)
    try:
        reader.start()
        publishers, pids = [client.publisher(f"{name}/{one}") for one in inputs], running.pids()
        for tick in feed(phases, ages, windowed, lambda: meter(pids), lines.append):
            for publisher in publishers:
                publisher.send_batch(batch(*tick))
        for publisher in publishers:
            publisher.close(DRAIN_S)
    finally:
        subscription.stop()
        reader.join(DRAIN_S)
        client.undeploy(name)
