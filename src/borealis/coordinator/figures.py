"""Figures of the whole cluster for Prometheus, from the last heartbeats: no node is asked, a dead one is a zero."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.status import nodes_view, units_view
from borealis.node.metrics import Figures, families

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def exposition(cluster: Cluster) -> bytes:
    """All of them as text: what each node's own `/metrics` shows, labelled by node, and which nodes are there."""
    return bytes(generate_latest(Figures(lambda: _figures(cluster))))


def _figures(cluster: Cluster) -> Iterator[Metric]:
    up = GaugeMetricFamily("borealis_node_up", "1 when the node sends heartbeats", labels=["node"])
    for node in nodes_view(cluster):
        up.add_metric([node.node], float(node.alive))
    yield up
    about = "1 for the state in which the unit is, as 'borealis status' shows it"
    states = GaugeMetricFamily("borealis_unit_state", about, labels=["node", "diagram", "unit", "state"])
    for unit in units_view(cluster):
        states.add_metric([unit.node, unit.diagram, unit.unit, unit.state], 1.0)
    yield states
    yield from families([member.status for member in cluster.members.alive()], by_node=True)
