"""Who may ask: whoever has the token, or, where there is none, programs of this machine. Web pages may not."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from borealis.coordinator.http_errors import ForbiddenError, TooLargeError, UnauthorizedError, status_of
from borealis.errors import BorealisError
from borealis.hosts import is_loopback
from borealis.wire.auth import host_of
from borealis.wire.problems import problem_of

BODY_BYTES_MOST = 8 << 20  # of everything but rows, which are taken as they come
TOKEN_HOW = "give the token of this cluster: --token-file or BOREALIS_TOKEN; curl: -H 'Authorization: Bearer ...'"
OPEN_PATHS = ("/", "/v1/health", "/docs", "/openapi.json")


class RequestGuard:
    """Refuses requests before they reach the app."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._hosts = set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except BorealisError as error:
                await answer_with(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._expected is None:
            self._check_local(headers)
        elif scope["path"] not in OPEN_PATHS and not hmac.compare_digest(
            headers.get(b"authorization", b""), self._expected
        ):
            what = "another token" if b"authorization" in headers else "no token"
            raise UnauthorizedError(f"refused: {what}", hint=TOKEN_HOW)

    def _check_local(self, headers: dict[bytes, bytes]) -> None:
        """Without a token only this machine's own programs come in, and no page that a browser has from elsewhere."""
        for name in (b"host", b"origin"):
            given = headers.get(name, b"").decode("latin-1")
            host = host_of(given) if given else None
            if host is not None and not (is_loopback(host) or host in self._hosts):
                raise ForbiddenError(f"refused: {name.decode()} is '{given}'", hint="ask at 127.0.0.1, or use a token")


def answer_with(error: BorealisError, status: int | None = None) -> Response:
    """A problem as an answer."""
    headers = {"www-authenticate": "Bearer"} if isinstance(error, UnauthorizedError) else None
    return Response(problem_of(error).encode(), status or status_of(error), headers, media_type="application/json")


async def body_of(request: Any, most: int = BODY_BYTES_MOST) -> bytes:
    """The whole body of a request, if it is not too large."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise TooLargeError(f"a body of more than {most:,} bytes", hint="send less at once")
    return bytes(data)
