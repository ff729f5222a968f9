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
from borealis.coordinator.http_auth import body_of, decoded
from borealis.coordinator.http_errors import ForbiddenError, MalformedError, TakenError
from borealis.coordinator.membership import check_version
from borealis.coordinator.naming import locate
from borealis.coordinator.reconcile import Reconciler
from borealis.coordinator.status import (
    Facts,
    diagram_view,
    diagrams_view,
    nodes_view,
    status_view,
    streams_view,
    units_view,
)
from borealis.coordinator.threads import in_thread
from borealis.diagram.deployment import Deployment
from borealis.hosts import is_loopback
from borealis.message import PROTOCOL, first_mistake
from borealis.wire.messages import Claim, NodeStatus, Ping

B = TypeVar("B", bound=BaseModel)


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


def parsed(model: type[B], data: bytes) -> B:
    """A body as JSON of this form; otherwise what is wrong with it."""
    try:
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        where, what, given = first_mistake(error, "the body")
        hint = "/docs shows what is asked"
        raise MalformedError(f"bad request: {where}: {what} (got {str(given)[:80]})", hint=hint) from None


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
    cluster: Cluster, reconciler: Reconciler, facts: Callable[[], Facts], end: Callable[[], None], has_token: bool
) -> APIRouter:
    """The routes. `facts` are the coordinator's about itself; `end` makes it stop."""
    api = APIRouter(prefix="/v1")

    @api.get("/health", tags=["coordinator"])
    async def health() -> Facts:
        """Whether the coordinator is there."""
        return {"v": PROTOCOL, "ok": True, **facts()}

    @api.get("/status", tags=["coordinator"])
    async def status() -> Facts:
        """Everything that `borealis status` shows."""
        return await in_thread(
            lambda: status_view(cluster, facts() | {"looks": reconciler.looks}, reconciler.troubles())
        )

    @api.post("/shutdown", tags=["coordinator"])
    async def shutdown(request: Request) -> Facts:
        """Stop the coordinator. What runs goes on."""
        client = request.client.host if request.client else ""
        if not has_token and not is_loopback(client):
            raise ForbiddenError(f"refused: {client} is not this machine", hint="ask on the coordinator's own machine")
        end()
        return {"v": PROTOCOL, "stopping": True}

    @api.get("/diagrams", tags=["diagrams"])
    async def diagrams() -> Facts:
        """All that is deployed."""
        return {"v": PROTOCOL, "diagrams": await in_thread(lambda: diagrams_view(cluster))}

    @api.post("/diagrams", tags=["diagrams"], status_code=201, openapi_extra=takes(Deployment, "application/yaml"))
    async def deploy(request: Request, replace: bool = False) -> Facts:
        """Deploy a diagram: JSON as shown, or the YAML itself as application/yaml.

        With `replace`, a diagram that runs under its name ends first: the new one begins with empty state and streams.
        """
        data = await body_of(request)
        wish = _wish(data, request.headers.get("content-type", ""), replace)
        layout = await in_thread(lambda: deployment.deploy(cluster, wish))
        warnings = deployment.warnings(layout)
        return {"v": PROTOCOL, **await in_thread(lambda: diagram_view(layout, [])), "warnings": warnings}

    @api.get("/diagrams/{name}", tags=["diagrams"])
    async def diagram(name: str) -> Facts:
        """One diagram, with its YAML, its units and its streams."""

        def look() -> Facts:
            layout = cluster.layout(name)
            units = [u for u in units_view(cluster) if u["diagram"] == name]
            streams = [s for s in streams_view(cluster) if s["diagram"] == name]
            more = {"yaml": layout.yaml, "columns": dict(layout.columns), "running": units, "streams": streams}
            return {"v": PROTOCOL, **diagram_view(layout, units), **more}

        return await in_thread(look)

    @api.delete("/diagrams/{name}", tags=["diagrams"])
    async def undeploy(name: str) -> Facts:
        """Stop a diagram everywhere and forget it."""
        untold = await in_thread(lambda: deployment.undeploy(cluster, name))
        return {"v": PROTOCOL, "diagram": name, "untold": sorted(untold)}

    @api.post("/units/{unit:path}/move", tags=["diagrams"], openapi_extra=takes(MoveRequest))
    async def move(unit: str, request: Request) -> Facts:
        """Bring a running unit to another node, with its state."""
        asked = parsed(MoveRequest, await body_of(request))
        layout = await in_thread(lambda: moving.move(cluster, unit, asked.node, asked.diagram))
        return {"v": PROTOCOL, "diagram": layout.name, "unit": unit.rpartition("/")[2], "node": asked.node}

    @api.post("/claims", tags=["nodes"], openapi_extra=takes(Claim))
    async def claims(request: Request) -> list[Facts]:
        """Nodes that take over, or go on alone: for a list of claims whether each is granted, and what is in force."""
        asked = _claims(await body_of(request))
        return [claimed.model_dump() for claimed in await in_thread(lambda: protecting.claim(cluster, asked))]

    @api.get("/nodes", tags=["nodes"])
    async def nodes() -> Facts:
        """Every node, alive or not."""
        return {"v": PROTOCOL, "nodes": await in_thread(lambda: nodes_view(cluster))}

    @api.post("/nodes", tags=["nodes"], openapi_extra=takes(NodeStatus))
    async def heartbeat(request: Request) -> Facts:
        """A node tells that it is there, and what is on it. Every second, from the node itself."""
        status = _heartbeat(await body_of(request))
        await in_thread(lambda: cluster.heard(status))
        return {"v": PROTOCOL, "coordinator": facts()["incarnation"]}

    @api.delete("/nodes/{name}", tags=["nodes"])
    async def stop_node(name: str, only_dead: bool = False) -> Facts:
        """Stop a node's process, or only forget a dead one. Units that shall run on it are lost until it comes back."""
        await in_thread(lambda: _stop(cluster, name, only_dead=only_dead))
        return {"v": PROTOCOL, "node": name}

    @api.get("/streams", tags=["streams"])
    async def streams() -> Facts:
        """All streams that can be subscribed to, and where."""
        return {"v": PROTOCOL, "streams": await in_thread(lambda: streams_view(cluster))}

    @api.get("/locate", tags=["streams"])
    async def where(stream: str) -> Facts:
        """Where a stream is served now: by Arrow Flight, at this address."""
        found = await in_thread(lambda: locate(cluster, stream))
        return {"v": PROTOCOL, **vars(found)}

    return api


def _wish(data: bytes, kind: str, replace: bool) -> Deployment:
    if "yaml" in kind:
        try:
            return Deployment(yaml=data.decode("utf-8-sig"), replace=replace)
        except UnicodeDecodeError:
            raise MalformedError("the diagram is not UTF-8 text", hint="send the YAML file as it is") from None
    asked = parsed(Deployment, data)
    return asked.model_copy(update={"replace": True}) if replace else asked


def _claims(data: bytes) -> list[Claim]:
    try:
        return TypeAdapter(list[Claim]).validate_json(data)
    except ValidationError as error:
        where, what, _ = first_mistake(error, "the body")
        raise MalformedError(f"bad claims: {where}: {what}", hint="send a list of claims") from None


def _heartbeat(data: bytes) -> NodeStatus:
    """A node's status. Another version is told as such, however different its messages are."""
    try:
        raw = json.loads(data)
    except ValueError:
        raise MalformedError("a heartbeat that is not JSON", hint="is this a node of Borealis?") from None
    if isinstance(raw, dict):
        node = str(raw.get("node"))[:200]
        if "version" in raw:
            check_version(node, str(raw["version"])[:40])
        if raw.get("v", PROTOCOL) != PROTOCOL:
            raise TakenError(
                f"node '{node}' speaks version {str(raw['v'])[:40]} of the messages, the coordinator {PROTOCOL}",
                hint="run the same version everywhere",
            )
    return decoded(NodeStatus, data)


def _stop(cluster: Cluster, name: str, *, only_dead: bool) -> None:
    known = {n.name for n in cluster.catalog.nodes()} | {m.name for m in cluster.members.members()}
    if name in known and not cluster.members.lives(name):
        cluster.forget(name)  # there is nothing to stop any more
        return
    if only_dead and name in known:
        raise TakenError(f"node {name} is alive", hint="stop it first")
    cluster.order(name, "stop", Ping())
    cluster.forget(name)
