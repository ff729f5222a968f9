"""What is where: for who asks the coordinator for `/`."""

from __future__ import annotations

import json
from html import escape

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from borealis.coordinator.docs_page import CLOSED, STYLE
from borealis.message import PROTOCOL
from borealis.version import __version__

WHERE = {
    "/docs": "the whole REST interface, to read and to try",
    "/openapi.json": "the same for programs",
    "/v1/status": "nodes, diagrams, units and streams, as 'borealis status --json' shows them",
    "/v1/streams": "all streams; POST rows to /v1/streams/INPUT, GET /v1/streams/NAME to listen",
    "/v1/diagrams": "all diagrams; POST one to deploy it",
    "/v1/nodes": "all nodes",
    "/v1/health": "whether the coordinator is there",
    "/metrics": "figures of the whole cluster, for Prometheus",
}


def add_front_page(app: FastAPI) -> None:
    """Serve it at `/`: JSON, or a page for a browser."""

    @app.get("/", include_in_schema=False)
    async def front(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(_page(app.title), headers=CLOSED)
        facts = {"v": PROTOCOL, "name": app.title, "version": __version__, "where": WHERE}
        return Response(json.dumps(facts, indent=2) + "\n", media_type="application/json")


def _page(title: str) -> str:
    lines = "".join(f'<dt><a href="{path}">{path}</a></dt><dd>{escape(what)}</dd>' for path, what in WHERE.items())
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{escape(title)} {__version__}</h1><dl>{lines}</dl>"
    )
