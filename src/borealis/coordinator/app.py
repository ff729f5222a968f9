"""The coordinator as a web application: its routes and its errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from borealis.coordinator import rest
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.http_auth import RequestGuard, answer_with, known_parameters
from borealis.coordinator.http_errors import BadRequestError
from borealis.coordinator.pages import add_pages
from borealis.errors import BorealisError
from borealis.version import __version__

log = logging.getLogger("borealis.coordinator")
BROKE_OFF = 400  # a status that no client hears
AppPart = Callable[
    [Cluster, asyncio.Event], tuple[APIRouter, Callable[[], None]]
]  # ends at the event; to be closed then


@dataclass(frozen=True)
class AppOptions:
    """How the application is protected, and what it serves beside."""

    token: str | None = field(default=None, repr=False)
    hosts: Collection[str] = ()  # names by which it may be asked, beside those of loopback
    parts: Sequence[AppPart] = ()  # that are served beside what is the coordinator's own


def create_app(coordinator: Coordinator, options: AppOptions, end: Callable[[], None] = lambda: None) -> FastAPI:
    """The application. `end` is called when a client asks it to stop."""
    ending = asyncio.Event()
    parts = [part(coordinator.cluster, ending) for part in options.parts]

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        coordinator.start()
        yield
        for _, end_part in parts:
            end_part()
        coordinator.close()

    app = FastAPI(
        title="Borealis coordinator",
        version=__version__,
        description="What runs where. Tuples go from node to node by Arrow Flight: ask `/v1/locate` for the node.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(known_parameters)],
    )
    add_pages(app)
    app.state.ending = ending
    app.include_router(rest.router(coordinator, end, has_token=options.token is not None))
    for routes, _ in parts:
        app.include_router(routes)
    app.include_router(rest.metrics_router(coordinator.cluster))
    for kind in (BorealisError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(RequestGuard, token=options.token, hosts=options.hosts)
    return app


async def _answer(request: Request, error: Exception) -> Response:
    asked = f"{request.method} {request.url.path}"
    match error:
        case BorealisError():
            return answer_with(error)
        case RequestValidationError():
            first = error.errors()[0]
            what = f"bad request: {' '.join(str(part) for part in first['loc'])}: {first['msg']}"
            return answer_with(BadRequestError(what, hint="/docs shows what is asked"))
        case HTTPException():
            hint = "/ says what is where, /docs what can be asked"
            return answer_with(BadRequestError(f"{asked}: {error.detail}", hint=hint), error.status_code)
        case ClientDisconnect():  # the client has died or hung up before it had sent all
            log.info("%s: the caller broke off", asked)
            return Response(status_code=BROKE_OFF)
        case _:
            log.error("%s failed", asked, exc_info=error)
            text = f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return answer_with(BorealisError(text, hint="the coordinator's log says where"), 500)
