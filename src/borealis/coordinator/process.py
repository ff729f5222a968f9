"""The coordinator as a process: one port, one catalog, gone within a second when a signal or a client ends it."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from borealis.coordinator.app import AppOptions, AppPart, create_app
from borealis.coordinator.catalog import Catalog
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.timings import TIMINGS, ClusterTimings
from borealis.errors import ClusterError
from borealis.storage import storage_at
from borealis.wire.auth import Security, require_security
from borealis.wire.client import Peers

HOST, PORT = "127.0.0.1", 7470
REQUESTS_MOST = 1000  # at once; more are answered with 503
NOT_OURS = "no network card of this machine has that address: see --host"
GOODBYE_S = 0.3  # for requests that are under way at the end


@dataclass(frozen=True)
class Options:
    """How a coordinator is started."""

    catalog: Path
    host: str = HOST
    port: int = PORT  # 0: any that is free
    security: Security | None = None
    timings: ClusterTimings = TIMINGS
    parts: Sequence[AppPart] = ()  # beside its own, say the gateway
    storage: str | None = None  # a URI: where the catalog is kept as well, and units, if nothing else is said of them


def serve(options: Options, announce: Callable[[str], None]) -> None:
    """Run a coordinator until SIGTERM, SIGINT or a request ends it; `announce` gets its address when it is there."""
    security = options.security
    require_security([options.host], security)
    # the catalog before the port: its error names the other coordinator
    storage = storage_at(options.storage) if options.storage else None
    with closing(Catalog(options.catalog, storage=storage)) as catalog, _bound(options.host, options.port) as listening:
        scheme = "https" if security and security.tls else "http"
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{scheme}://{host}:{listening.getsockname()[1]}"
        catalog.held_by(address)
        coordinator = Coordinator(Cluster(catalog, Peers(security), options.timings), address)
        guarded = AppOptions(security.token if security else None, [options.host], options.parts)
        app = create_app(coordinator, guarded, end=lambda: server.handle_exit(signal.SIGTERM, None))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=GOODBYE_S,  # type: ignore[arg-type]  # a part of a second does as well
            ssl_certfile=security.cert if security else None,
            ssl_keyfile=security.key if security else None,
            server_header=False,
            limit_concurrency=REQUESTS_MOST,
        )
        server = _Server(config, lambda: announce(address), app.state.ending.set)
        server.run(sockets=[listening])
        if not server.started:
            raise ClusterError(f"the coordinator could not start at {address}", hint="its log says why")


def run(options: Options) -> NoReturn:
    """`serve` as a whole process. It does not wait for libraries to fold up: nothing that must be kept is left then."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("borealis").setLevel(logging.INFO)
    serve(options, lambda address: print(f"coordinator at {address}", flush=True))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Server(uvicorn.Server):
    """Says when it is there, sends listeners away when it has to go, and returns instead of dying of the signal."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], leaving: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._leaving = ready, leaving

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._leaving()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Go, when what is under way is done."""
        self.should_exit = True


@contextmanager
def _bound(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # named as TCP, or asyncio does not know that answers shall not wait for acknowledgements (40 ms each)
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise ClusterError(
                f"cannot listen at {host}:{port}: {error.strerror or error}",
                hint=NOT_OURS if error.errno == errno.EADDRNOTAVAIL else "is another coordinator there? see --port",
            ) from None
        yield one
