"""The OpenAPI page: Swagger UI where the browser can load it, and a plain list of the same where it cannot."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

PLACE = '<div id="swagger-ui">'  # what stands in it goes when Swagger UI comes
NO_ICON = "data:,"


def add_docs_page(app: FastAPI) -> None:
    """Serve it at `/docs`. Swagger UI itself comes from a public server, which a closed network does not reach."""

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url=app.openapi_url or "/openapi.json", title=app.title, swagger_favicon_url=NO_ICON
        )
        text = bytes(page.body).decode()
        return HTMLResponse(text.replace(PLACE, PLACE + plain_list(app.openapi()), 1))


def plain_list(schema: dict[str, Any]) -> str:
    """Every request there is, with what it does and takes."""
    lines = [
        f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{escape(_told(operation))}</dd>"
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
    ]
    more = '<p>The whole of it, for programs: <a href="/openapi.json">/openapi.json</a></p>'
    return f"<h1>{escape(schema['info']['title'])}</h1><dl>{''.join(lines)}</dl>{more}"


def _told(operation: dict[str, Any]) -> str:
    names = [p["name"] for p in operation.get("parameters", ()) if p["in"] != "path"]
    takes = f" Takes: {', '.join(names)}." if names else ""
    body = " With a body." if "requestBody" in operation else ""
    return " ".join(str(operation.get("description", "")).split()) + takes + body
