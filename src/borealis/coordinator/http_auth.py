"""Which requests come in: those with the token, or, where there is none, of programs of this machine. No web page may.

A request that is too large, or has parameters that its route does not know, is refused as well.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from borealis.coordinator.http_errors import (
    BadRequestError,
    ForbiddenError,
    TooLargeError,
    UnauthorizedError,
    status_of,
)
from borealis.errors import BorealisError, did_you_mean
from borealis.hosts import is_loopback
from borealis.wire.auth import HEADER, host_of, refused_token
from borealis.wire.problems import problem_of

BODY_BYTES_MOST = 8 << 20  # of everything but rows, which are taken as they come
TOKEN_HOW = "give the token of this cluster: --token-file or BOREALIS_TOKEN; curl: -H 'Authorization: Bearer ...'"
AUTHORIZATION = HEADER.encode()
OPEN_PATHS = ("/", "/v1/health", "/docs", "/openapi.json")


class RequestGuard:
    """Refuses requests before they reach the app."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] = ()) -> None:
        self._app, self._token, self._hosts = app, token, set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except BorealisError as error:
                await answer_with(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Without a token only this machine's own programs come in, and no page that a browser has from elsewhere."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        tokens = [headers[AUTHORIZATION]] if AUTHORIZATION in headers else []
        if scope["path"] not in OPEN_PATHS and (wrong := refused_token(tokens, self._token)):
            raise UnauthorizedError(wrong, hint=TOKEN_HOW)
        for name in (b"host", b"origin") if self._token is None else ():
            given = headers.get(name, b"").decode("latin-1")
            if given and not (is_loopback(host := host_of(given)) or host in self._hosts):
                raise ForbiddenError(f"refused: {name.decode()} is '{given}'", hint="ask at 127.0.0.1, or use a token")


async def known_parameters(request: Request) -> None:
    """For every route: refuse what is not in its description. Ignored in silence, `?limt=2` would stream for ever."""
    if not request.query_params:
        return
    path = getattr(request.scope.get("route"), "path_format", "")
    operation = request.app.openapi()["paths"].get(path, {}).get(request.method.lower(), {})
    known = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
    for given in request.query_params:
        if given not in known:
            near = did_you_mean(given, known)
            takes = f"known: {', '.join(known)}" if known else "it takes none"
            raise BadRequestError(
                f"{request.method} {request.url.path} takes no parameter '{given[:80]}'",
                hint=f"{near} {takes}".lstrip(),
            )


def answer_with(error: BorealisError, status: int | None = None) -> Response:
    headers = {"www-authenticate": "Bearer"} if isinstance(error, UnauthorizedError) else None
    return Response(problem_of(error).encode(), status or status_of(error), headers, media_type="application/json")


async def body_of(request: Request, most: int = BODY_BYTES_MOST) -> bytes:
    """The whole body of a request, if it is not too large."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise TooLargeError(f"a body of more than {most:,} bytes", hint="send less at once")
    return bytes(data)
