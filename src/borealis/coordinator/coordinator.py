"""The coordinator, whatever carries what it is asked: HTTP (see rest), or a simulation.

Every request is a method that blocks until it is done, and raises an error of Borealis where it is refused; what
`http_errors.status_of` says of that error is part of the answer. Any thread may ask.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from borealis.coordinator import deployment, moving, naming, protecting
from borealis.coordinator.bodies import heartbeat_of
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import TakenError
from borealis.coordinator.reconcile import Reconciler
from borealis.coordinator.stability import Stability
from borealis.coordinator.status import (
    UNSTABLE,
    diagram_view,
    diagrams_view,
    nodes_view,
    status_view,
    streams_view,
    units_view,
    unprotected,
)
from borealis.diagram.deployment import Deployment
from borealis.version import __version__
from borealis.wire import status as views
from borealis.wire.endpoints import Location
from borealis.wire.messages import Claim, Claimed, Ping

log = logging.getLogger("borealis.coordinator")


class Coordinator:
    """What can be asked of the cluster, and from `start` to `close` the loop that keeps what shall be."""

    def __init__(self, cluster: Cluster, address: str = "") -> None:
        self.cluster = cluster
        self._reconciler = Reconciler(cluster)
        self._stability = Stability()
        self._stopped = cluster.threads.event()
        self._about = views.CoordinatorView(
            version=__version__,
            incarnation=cluster.machine.chance.token(16),
            address=address,
            pid=os.getpid(),
            catalog=str(cluster.catalog.path),
            started=cluster.clock.time(),
        )

    def start(self) -> None:
        deployment.take_up(self.cluster)
        self.cluster.threads.start("borealis-reconcile", self._keep)

    def _keep(self) -> None:
        timings, news = self.cluster.timings, self.cluster.news
        while not self._stopped.wait(timings.look_least_s):
            news.wait(timings.look_s - timings.look_least_s)
            news.clear()
            if self._stopped.is_set():
                return
            try:
                self._reconciler.step()
                self._stability.note(unprotected(self.cluster, UNSTABLE), self.cluster.clock.time())
            except Exception:
                if not self._stopped.is_set():
                    log.exception("a look at the cluster failed")

    def close(self) -> None:
        """Stop looking, and hang up. What runs goes on; the catalog is for its owner to close."""
        self._stopped.set()
        self.cluster.news.set()
        self.cluster.nodes.close()

    # -- as it all stands

    def health(self) -> views.Health:
        return views.Health(**self._about.model_dump(), ok=True)

    def status(self) -> views.ClusterStatus:
        """Everything that `borealis status` shows."""
        now = self._about.model_copy(update=self._reconciler.counts())
        instability = self._stability.now(self.cluster.clock.time())
        return status_view(self.cluster, now, self._reconciler.troubles(), instability)

    def nodes(self) -> views.NodeList:
        return views.NodeList(nodes=nodes_view(self.cluster))

    def streams(self) -> views.StreamList:
        return views.StreamList(streams=streams_view(self.cluster))

    def locate(self, stream: str) -> Location:
        return naming.locate(self.cluster, stream)

    def diagrams(self) -> views.DiagramList:
        return views.DiagramList(diagrams=diagrams_view(self.cluster))

    def diagram(self, name: str) -> views.DiagramDetails:
        """With its YAML, its units and its streams."""
        layout = self.cluster.layout(name)
        units = [unit for unit in units_view(self.cluster) if unit.diagram == name]
        streams = [stream for stream in streams_view(self.cluster) if stream.diagram == name]
        more = {"yaml": layout.yaml, "columns": dict(layout.columns), "running": units, "streams": streams}
        return views.DiagramDetails(**dict(diagram_view(layout, units)) | more)

    # -- by users

    def deploy(self, wish: Deployment) -> views.Deployed:
        layout = deployment.deploy(self.cluster, wish)
        return views.Deployed(**dict(diagram_view(layout, [])), warnings=deployment.warnings(layout))

    def undeploy(self, name: str) -> views.Ordered:
        unreached = deployment.undeploy(self.cluster, name)
        return views.Ordered(diagram=name, untold=sorted(unreached))

    def move(self, unit: str, node: str, diagram: str | None = None) -> views.Ordered:
        """Bring a running unit to another node, with its state."""
        layout = moving.move(self.cluster, unit, node, diagram)
        return views.Ordered(diagram=layout.name, unit=unit.rpartition("/")[2], node=node)

    def stop_node(self, name: str, *, only_dead: bool = False) -> views.Ordered:
        """Stop a node's process, or only forget a dead one."""
        cluster = self.cluster
        known = {n.node for n in cluster.catalog.nodes()} | {m.name for m in cluster.members.members()}
        if name not in known or cluster.members.lives(name):
            if only_dead and name in known:
                raise TakenError(f"node {name} is alive", hint="stop it first")
            cluster.order(name, "stop", Ping())
        cluster.forget(name)
        return views.Ordered(node=name)

    # -- by nodes

    def heartbeat(self, data: bytes) -> views.Ordered:
        """What is on a node, as a NodeStatus in JSON. Every second, from the node itself."""
        self.cluster.heard(heartbeat_of(data))
        return views.Ordered(coordinator=self._about.incarnation)

    def claim(self, asked: Sequence[Claim]) -> list[Claimed]:
        """For each claim of nodes that take over, or go on alone, whether it is granted, and what is in force."""
        return protecting.claim(self.cluster, asked)
