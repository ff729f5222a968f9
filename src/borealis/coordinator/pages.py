"""Pages for people: at `/` what is where, at `/docs` every request with what it takes, and a form to try it.

All of it comes from here, so that it works in a closed network.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from borealis.message import PROTOCOL

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
CLOSED = {  # a page of ours loads nothing from elsewhere, and asks only the coordinator
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'"
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em;
       color-scheme: light dark }
code, pre, textarea, input { font: 13px/1.5 ui-monospace, monospace }
details { border-top: 1px solid #8884; padding: .4em 0 }
summary { cursor: pointer }
summary code { font-weight: bold }
label { display: block; margin: .4em 0 }
input, textarea { width: 100%; box-sizing: border-box }
textarea { height: 6em }
pre { overflow: auto; max-height: 30em; background: #8881; padding: .5em }
dt { margin-top: .6em }
"""
SCRIPT = """
const token = document.getElementById("token");
for (const form of document.forms) form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (form.going) { form.going.abort(); return; }
  const {method, path} = form.dataset, query = new URLSearchParams(), headers = {};
  let where = path, body;
  for (const field of form.elements) {
    const {name} = field;
    if (!name || field.value === "") continue;
    if (field.dataset.in === "path")
      where = where.replace(`{${name}}`, encodeURIComponent(field.value).replaceAll("%2F", "/"));
    else if (field.dataset.in === "query") query.set(name, field.value);
    else if (field.dataset.in === "header") headers[name] = field.value;
    else { body = field.value; headers["Content-Type"] = field.dataset.kind; }
  }
  if (token.value) headers["Authorization"] = `Bearer ${token.value}`;
  const url = where + (query.size ? `?${query}` : ""), out = form.querySelector("pre");
  const button = form.querySelector("button");
  out.hidden = false; out.textContent = `${method} ${url}\\n`; button.textContent = "stop";
  form.going = new AbortController();
  try {
    const answer = await fetch(url, {method, headers, body, signal: form.going.signal});
    out.textContent += `${answer.status} ${answer.statusText}\\n\\n`;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part; !(part = await reader.read()).done && out.textContent.length < 1e6;) out.textContent += part.value;
    if (answer.headers.get("content-type") === "application/json") {
      const [head, rest] = out.textContent.split("\\n\\n");
      out.textContent = `${head}\\n\\n${JSON.stringify(JSON.parse(rest), null, 2)}`;
    }
  } catch (error) { out.textContent += `\\n${error}`; }
  form.going.abort(); form.going = null; button.textContent = "send";
});
"""


def add_pages(app: FastAPI) -> None:
    """Serve them; what is where as JSON, too, for clients other than browsers."""

    @app.get("/", include_in_schema=False)
    async def front(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            lines = (f'<dt><a href="{path}">{path}</a></dt><dd>{escape(what)}</dd>' for path, what in WHERE.items())
            return HTMLResponse(f"{_head(app.title, app.version)}<dl>{''.join(lines)}</dl>", headers=CLOSED)
        facts = {"v": PROTOCOL, "name": app.title, "version": app.version, "where": WHERE}
        return Response(json.dumps(facts, indent=2) + "\n", media_type="application/json")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers=CLOSED)


def _head(title: str, version: str) -> str:
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><link rel=icon href='data:,'>"
        f"<style>{STYLE}</style><h1>{escape(title)} {escape(version)}</h1>"
    )


def page(schema: dict[str, Any]) -> str:
    """Every request there is, by its tag."""
    tagged: dict[str, list[str]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            tag = operation.get("tags", ["more"])[0]
            tagged.setdefault(tag, []).append(_operation(method.upper(), path, operation))
    parts = "".join(f"<h2>{escape(tag)}</h2>{''.join(operations)}" for tag, operations in tagged.items())
    info = schema["info"]
    return (
        f"{_head(info['title'], info['version'])}<p>{escape(info.get('description', ''))}</p>"
        '<p>For programs: <a href="/openapi.json">/openapi.json</a></p>'
        '<label>The token of this cluster, if it has one <input id="token" type="password" autocomplete="off"></label>'
        f"{parts}<script>{SCRIPT}</script>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    about = escape(" ".join(str(operation.get("description", "")).split()))
    fields = "".join(_field(parameter) for parameter in operation.get("parameters", ()))
    if "requestBody" in operation:
        fields += _body(operation["requestBody"]["content"])
    return (
        f"<details><summary><code>{method} {escape(path)}</code> {about}</summary>"
        f'<form data-method="{method}" data-path="{escape(path)}">{fields}'
        "<button>send</button><pre hidden></pre></form></details>"
    )


def _field(parameter: dict[str, Any]) -> str:
    name, place, schema = escape(parameter["name"]), parameter["in"], parameter.get("schema", {})
    kinds = [str(one["type"]) for one in schema.get("anyOf", [schema]) if one.get("type", "null") != "null"]
    default = schema.get("default")
    notes = [parameter.get("description") or schema.get("description") or "", *kinds]
    notes += ["required"] if parameter.get("required") else []
    notes += [f"{json.dumps(default)} if left out"] if default is not None else []
    about = escape("; ".join(note for note in notes if note))
    return f'<label><code>{name}</code> ({place}) {about} <input name="{name}" data-in="{place}"></label>'


def _body(content: dict[str, Any]) -> str:
    kind, taken = next(iter(content.items()))
    schema = taken.get("schema", {})
    rows = "".join(
        f"<dt><code>{escape(name)}</code>{' (required)' if name in schema.get('required', ()) else ''}</dt>"
        f"<dd>{escape(str(about.get('description', about.get('type', ''))))}</dd>"
        for name, about in schema.get("properties", {}).items()
    )
    example = escape(str(schema.get("example", "")))
    return (
        f'<label>the body, {escape(" or ".join(content))}<textarea name="body" data-in="body" '
        f'data-kind="{escape(kind)}">{example}</textarea></label><dl>{rows}</dl>'
    )
