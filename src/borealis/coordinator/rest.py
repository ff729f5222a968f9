"""REST of the cluster itself: diagrams, units, nodes, where streams are, and how it all stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from borealis.coordinator import deployment, moving, protecting
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_auth import body_of
from borealis.coordinator.http_errors import BadRequestError, ForbiddenError, TakenError
from borealis.coordinator.membership import check_version
from borealis.coordinator.naming import locate
from borealis.coordinator.reconcile import Reconciler
from borealis.coordinator.status import diagram_view, diagrams_view, nodes_view, status_view, streams_view, units_view
from borealis.coordinator.threads import in_thread
from borealis.diagram.deployment import Deployment
from borealis.hosts import is_loopback
from borealis.message import PROTOCOL, first_mistake
from borealis.wire import status as views
from borealis.wire.endpoints import Location
from borealis.wire.messages import Claim, Claimed, NodeStatus, Ping

T = TypeVar("T")


class MoveRequest(BaseModel):
    """Where a unit shall go."""

    model_config = ConfigDict(extra="forbid")

    node: str
    diagram: str | None = Field(default=None, description="needed where several diagrams have a unit of that name")


def takes(model: type[BaseModel], *others: str) -> dict[str, Any]:
    """For the OpenAPI page: what the body is."""
    content: dict[str, Any] = {"application/json": {"schema": model.model_json_schema()}}
    content |= {other: {"schema": {"type": "string"}} for other in others}
    return {"requestBody": {"required": True, "content": content}}


def parsed(kind: type[T], data: bytes, name: str = "request") -> T:
    """A body as JSON of this form; otherwise what is wrong with it."""
    try:
        return TypeAdapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        where, what, given = first_mistake(error, "the body")
        hint = "/docs shows what is asked"
        raise BadRequestError(f"bad {name}: {where}: {what} (got {str(given)[:80]})", hint=hint) from None


def metrics_router(cluster: Cluster) -> APIRouter:
    """The route for Prometheus, which wants it at a place of its own."""
    api = APIRouter()

    @api.get("/metrics", tags=["coordinator"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures of all nodes, units and streams for Prometheus, by node; a dead node is `borealis_node_up 0`."""
        from borealis.coordinator import figures  # here, so that the coordinator starts without Prometheus

        return Response(await in_thread(lambda: figures.exposition(cluster)), media_type=figures.CONTENT_TYPE)

    return api


def router(
    cluster: Cluster, reconciler: Reconciler, about: views.CoordinatorView, end: Callable[[], None], has_token: bool
) -> APIRouter:
    """The routes. `about` is the coordinator itself; `end` makes it stop."""
    api = APIRouter(prefix="/v1")

    @api.get("/health", tags=["coordinator"])
    async def health() -> views.Health:
        """Whether the coordinator is there."""
        return views.Health(**about.model_dump(), ok=True)

    @api.get("/status", tags=["coordinator"])
    async def status() -> views.ClusterStatus:
        """Everything that `borealis status` shows."""
        now = about.model_copy(update={"looks": reconciler.looks})
        return await in_thread(lambda: status_view(cluster, now, reconciler.troubles()))

    @api.post("/shutdown", tags=["coordinator"])
    async def shutdown(request: Request) -> views.Ordered:
        """Stop the coordinator. What runs goes on."""
        client = request.client.host if request.client else ""
        if not has_token and not is_loopback(client):
            raise ForbiddenError(f"refused: {client} is not this machine", hint="ask on the coordinator's own machine")
        end()
        return views.Ordered(stopping=True)

    @api.get("/diagrams", tags=["diagrams"])
    async def diagrams() -> views.DiagramList:
        """All that is deployed."""
        return views.DiagramList(diagrams=await in_thread(lambda: diagrams_view(cluster)))

    @api.post("/diagrams", tags=["diagrams"], status_code=201, openapi_extra=takes(Deployment, "application/yaml"))
    async def deploy(request: Request, replace: bool = False) -> views.Deployed:
        """Deploy a diagram: JSON as shown, or the YAML itself as application/yaml.

        With `replace`, a diagram that runs under its name ends first: the new one begins with empty state and streams.
        """
        data = await body_of(request)
        wish = _wish(data, request.headers.get("content-type", ""), replace)

        def deployed() -> views.Deployed:
            layout = deployment.deploy(cluster, wish)
            return views.Deployed(**dict(diagram_view(layout, [])), warnings=deployment.warnings(layout))

        return await in_thread(deployed)

    @api.get("/diagrams/{name}", tags=["diagrams"])
    async def diagram(name: str) -> views.DiagramDetails:
        """One diagram, with its YAML, its units and its streams."""

        def look() -> views.DiagramDetails:
            layout = cluster.layout(name)
            units = [unit for unit in units_view(cluster) if unit.diagram == name]
            streams = [stream for stream in streams_view(cluster) if stream.diagram == name]
            more = {"yaml": layout.yaml, "columns": dict(layout.columns), "running": units, "streams": streams}
            return views.DiagramDetails(**dict(diagram_view(layout, units)) | more)

        return await in_thread(look)

    @api.delete("/diagrams/{name}", tags=["diagrams"])
    async def undeploy(name: str) -> views.Ordered:
        """Stop a diagram everywhere and forget it."""
        unreached = await in_thread(lambda: deployment.undeploy(cluster, name))
        return views.Ordered(diagram=name, untold=sorted(unreached))

    @api.post("/units/{unit:path}/move", tags=["diagrams"], openapi_extra=takes(MoveRequest))
    async def move(unit: str, request: Request) -> views.Ordered:
        """Bring a running unit to another node, with its state."""
        asked = parsed(MoveRequest, await body_of(request))
        layout = await in_thread(lambda: moving.move(cluster, unit, asked.node, asked.diagram))
        return views.Ordered(diagram=layout.name, unit=unit.rpartition("/")[2], node=asked.node)

    @api.post("/claims", tags=["nodes"], openapi_extra=takes(Claim))
    async def claims(request: Request) -> list[Claimed]:
        """Nodes that take over, or go on alone: for a list of claims whether each is granted, and what is in force."""
        asked = parsed(list[Claim], await body_of(request), "claims")
        return await in_thread(lambda: protecting.claim(cluster, asked))

    @api.get("/nodes", tags=["nodes"])
    async def nodes() -> views.NodeList:
        """Every node, alive or not."""
        return views.NodeList(nodes=await in_thread(lambda: nodes_view(cluster)))

    @api.post("/nodes", tags=["nodes"], openapi_extra=takes(NodeStatus))
    async def heartbeat(request: Request) -> views.Ordered:
        """What is on a node. Every second, from the node itself."""
        status = _heartbeat(await body_of(request))
        await in_thread(lambda: cluster.heard(status))
        return views.Ordered(coordinator=about.incarnation)

    @api.delete("/nodes/{name}", tags=["nodes"])
    async def stop_node(name: str, only_dead: bool = False) -> views.Ordered:
        """Stop a node's process, or only forget a dead one. Units that shall run on it are lost until it comes back."""
        await in_thread(lambda: _stop(cluster, name, only_dead=only_dead))
        return views.Ordered(node=name)

    @api.get("/streams", tags=["streams"])
    async def streams() -> views.StreamList:
        """All streams that can be subscribed to, and where."""
        return views.StreamList(streams=await in_thread(lambda: streams_view(cluster)))

    @api.get("/locate", tags=["streams"])
    async def where(stream: str) -> Location:
        """Where a stream is served now: by Arrow Flight, at this address."""
        return await in_thread(lambda: locate(cluster, stream))

    return api


def _wish(data: bytes, kind: str, replace: bool) -> Deployment:
    if "yaml" in kind:
        try:
            return Deployment(yaml=data.decode("utf-8-sig"), replace=replace)
        except UnicodeDecodeError:
            raise BadRequestError("the diagram is not UTF-8 text", hint="send the YAML file as it is") from None
    asked = parsed(Deployment, data)
    return asked.model_copy(update={"replace": True}) if replace else asked


def _heartbeat(data: bytes) -> NodeStatus:
    """A node's status. One of another version is refused as such, however different its messages are."""
    try:
        raw = json.loads(data)
    except ValueError:
        raise BadRequestError("a heartbeat that is not JSON", hint="is this a node of Borealis?") from None
    if isinstance(raw, dict):
        node = str(raw.get("node"))[:200]
        if "version" in raw:
            check_version(node, str(raw["version"])[:40])
        if raw.get("v", PROTOCOL) != PROTOCOL:
            raise TakenError(
                f"node '{node}' speaks version {str(raw['v'])[:40]} of the messages, the coordinator {PROTOCOL}",
                hint="run the same version everywhere",
            )
    return parsed(NodeStatus, data, "heartbeat")


def _stop(cluster: Cluster, name: str, *, only_dead: bool) -> None:
    known = {n.node for n in cluster.catalog.nodes()} | {m.name for m in cluster.members.members()}
    if name in known and not cluster.members.lives(name):
        cluster.forget(name)  # there is nothing to stop any more
        return
    if only_dead and name in known:
        raise TakenError(f"node {name} is alive", hint="stop it first")
    cluster.order(name, "stop", Ping())
    cluster.forget(name)
