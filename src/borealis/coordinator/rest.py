"""REST of the cluster itself: diagrams, units, nodes, where streams are, and how it all stands."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field

from borealis.coordinator.bodies import parsed
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.http_auth import body_of
from borealis.coordinator.http_errors import BadRequestError, ForbiddenError
from borealis.coordinator.threads import in_thread
from borealis.diagram.deployment import Deployment
from borealis.hosts import is_loopback
from borealis.wire import status as views
from borealis.wire.endpoints import Location
from borealis.wire.messages import Claim, Claimed, NodeStatus


class MoveRequest(BaseModel):
    """Where a unit shall go."""

    model_config = ConfigDict(extra="forbid")

    node: str
    diagram: str | None = Field(default=None, description="needed where several diagrams have a unit of that name")


@cache
def takes(model: type[BaseModel], *others: str) -> dict[str, Any]:
    """For the OpenAPI page: what the body is."""
    content: dict[str, Any] = {"application/json": {"schema": model.model_json_schema()}}
    content |= {other: {"schema": {"type": "string"}} for other in others}
    return {"requestBody": {"required": True, "content": content}}


def metrics_router(cluster: Cluster) -> APIRouter:
    """The route for Prometheus, which wants it at a place of its own."""
    api = APIRouter()

    @api.get("/metrics", tags=["coordinator"], response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures of all nodes, units and streams for Prometheus, by node; a dead node is `borealis_node_up 0`."""
        from borealis.coordinator import figures  # here, so that the coordinator starts without Prometheus

        return Response(await in_thread(lambda: figures.exposition(cluster)), media_type=figures.CONTENT_TYPE)

    return api


def router(coordinator: Coordinator, end: Callable[[], None], has_token: bool) -> APIRouter:
    """The routes. `end` makes the coordinator stop."""
    api = APIRouter(prefix="/v1")

    @api.get("/health", tags=["coordinator"])
    async def health() -> views.Health:
        """Whether the coordinator is there."""
        return coordinator.health()

    @api.get("/status", tags=["coordinator"])
    async def status() -> views.ClusterStatus:
        """Everything that `borealis status` shows."""
        return await in_thread(coordinator.status)

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
        return await in_thread(coordinator.diagrams)

    @api.post("/diagrams", tags=["diagrams"], status_code=201, openapi_extra=takes(Deployment, "application/yaml"))
    async def deploy(request: Request, replace: bool = False) -> views.Deployed:
        """Deploy a diagram: JSON as shown, or the YAML itself as application/yaml.

        With `replace`, a diagram that runs under its name ends first: the new one begins with empty state and streams.
        """
        data = await body_of(request)
        wish = _wish(data, request.headers.get("content-type", ""), replace)
        return await in_thread(partial(coordinator.deploy, wish))

    @api.get("/diagrams/{name}", tags=["diagrams"])
    async def diagram(name: str) -> views.DiagramDetails:
        """One diagram, with its YAML, its units and its streams."""
        return await in_thread(partial(coordinator.diagram, name))

    @api.delete("/diagrams/{name}", tags=["diagrams"])
    async def undeploy(name: str) -> views.Ordered:
        """Stop a diagram everywhere and forget it."""
        return await in_thread(partial(coordinator.undeploy, name))

    @api.post("/units/{unit:path}/move", tags=["diagrams"], openapi_extra=takes(MoveRequest))
    async def move(unit: str, request: Request) -> views.Ordered:
        """Bring a running unit to another node, with its state."""
        asked = parsed(MoveRequest, await body_of(request))
        return await in_thread(partial(coordinator.move, unit, asked.node, asked.diagram))

    @api.post("/claims", tags=["nodes"], openapi_extra=takes(Claim))
    async def claims(request: Request) -> list[Claimed]:
        """Nodes that take over, or go on alone: for a list of claims whether each is granted, and what is in force."""
        asked = parsed(list[Claim], await body_of(request), "claims")
        return await in_thread(partial(coordinator.claim, asked))

    @api.get("/nodes", tags=["nodes"])
    async def nodes() -> views.NodeList:
        """Every node, alive or not."""
        return await in_thread(coordinator.nodes)

    @api.post("/nodes", tags=["nodes"], openapi_extra=takes(NodeStatus))
    async def heartbeat(request: Request) -> views.Ordered:
        """What is on a node. Every second, from the node itself."""
        data = await body_of(request)
        return await in_thread(partial(coordinator.heartbeat, data))

    @api.delete("/nodes/{name}", tags=["nodes"])
    async def stop_node(name: str, only_dead: bool = False) -> views.Ordered:
        """Stop a node's process, or only forget a dead one. Units that shall run on it are lost until it comes back."""
        return await in_thread(partial(coordinator.stop_node, name, only_dead=only_dead))

    @api.get("/streams", tags=["streams"])
    async def streams() -> views.StreamList:
        """All streams that can be subscribed to, and where."""
        return await in_thread(coordinator.streams)

    @api.get("/locate", tags=["streams"])
    async def where(stream: str) -> Location:
        """Where a stream is served now: by Arrow Flight, at this address."""
        return await in_thread(partial(coordinator.locate, stream))

    return api


def _wish(data: bytes, kind: str, replace: bool) -> Deployment:
    if "yaml" in kind:
        try:
            return Deployment(yaml=data.decode("utf-8-sig"), replace=replace)
        except UnicodeDecodeError:
            raise BadRequestError("the diagram is not UTF-8 text", hint="send the YAML file as it is") from None
    asked = parsed(Deployment, data)
    return asked.model_copy(update={"replace": True}) if replace else asked
