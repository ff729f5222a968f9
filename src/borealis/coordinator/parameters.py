"""Parameters that no request knows are refused: ignored in silence, `?limt=2` would stream for ever."""

from __future__ import annotations

from fastapi import FastAPI, Request

from borealis.coordinator.http_errors import BadRequestError
from borealis.errors import did_you_mean


async def known_parameters(request: Request) -> None:
    """For every route: refuse what is not in its description."""
    if not request.query_params:
        return
    known = _known(request)
    for given in request.query_params:
        if given not in known:
            near = did_you_mean(given, known)
            takes = f"known: {', '.join(known)}" if known else "it takes none"
            raise BadRequestError(
                f"{request.method} {request.url.path} takes no parameter '{given[:80]}'",
                hint=f"{near} {takes}".lstrip(),
            )


def _known(request: Request) -> list[str]:
    """The parameters of the route that was asked, as the OpenAPI page names them."""
    app: FastAPI = request.app
    path = getattr(request.scope.get("route"), "path_format", "")
    operation = app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    return [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
