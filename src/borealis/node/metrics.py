"""A node's figures for Prometheus, read on demand: base units, totals end in `_total`."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from borealis.errors import ClusterError
from borealis.streams.status import QueueStatus
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.auth import OPEN, Security, refused_token
from borealis.wire.messages import ENTRY, GuardStatus, NodeStatus, UnitStatus

REQUESTS_MOST = 32  # at once
REQUEST_S = 10.0  # for a request to come
HTTP_HEADER = "HTTP_AUTHORIZATION"

GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily
# what a node counts something of: how that is labelled, and all of it with its labels
COUNTED: dict[str, tuple[Sequence[str], Callable[[NodeStatus], Iterable[tuple[Sequence[str], Any]]]]] = {
    "node": ((), lambda now: [((), now)]),
    "unit": (("diagram", "unit"), lambda now: [((unit.diagram, unit.unit), unit) for unit in now.units]),
    "queue": (("stream",), lambda now: [((queue.stream,), queue) for queue in now.queues]),
    "entry": (("stream",), lambda now: [((q.stream,), q) for q in now.queues if q.stream in _entries(now)]),
    "bound": (("stream",), lambda now: [((q.stream,), q) for q in now.queues if FIRST_TIME < q.boundary < LAST_TIME]),
    "reader": (("stream", "reader"), lambda now: [((q.stream, r), n) for q in now.queues for r, n in _behind(q)]),
    "log": (("stream", "path"), lambda now: [((log.stream, log.path), log) for log in now.logs]),
    # of primaries how well they are protected; of backups what came for them
    "guard": (("what", "approach", "role"), lambda now: [((k, g.approach, g.role), g) for k, g in _guards(now)]),
}
FIGURES: tuple[tuple[str, type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[Any], float]], ...] = (
    ("node", GAUGE, "spark_ready", "1 when this node's Spark session is ready", lambda now: now.spark == "ready"),
    ("node", GAUGE, "node_start_time_seconds", "When this node started, in Unix time", lambda now: now.started),
    ("node", GAUGE, "pool_size", "Started queries it shall keep for units it may take over", lambda now: now.pool.size),
    ("node", GAUGE, "pool_ready", "Started queries that wait for a unit", lambda now: now.pool.ready),
    ("node", COUNTER, "pool_given", "Queries that units were given", lambda now: now.pool.given),
    ("node", COUNTER, "pool_missed", "Takeovers that found no query ready", lambda now: now.pool.missed),
    ("node", GAUGE, "images", "Units it may take over that have no query", lambda now: now.pool.images),
    ("unit", GAUGE, "unit_running", "1 when the unit runs", lambda unit: unit.state == "running"),
    ("unit", COUNTER, "unit_trains", "Trains committed", lambda unit: unit.trains),
    ("unit", COUNTER, "unit_tuples_in", "Tuples in committed trains", lambda unit: unit.rows_in),
    ("unit", COUNTER, "unit_tuples_out", "Tuples put out", lambda unit: unit.rows_out),
    ("unit", GAUGE, "unit_train_seconds", "Median time of the last trains", lambda unit: unit.train_ms / 1000),
    ("unit", GAUGE, "unit_state_bytes", "State tables of the unit", lambda unit: unit.state_bytes),
    ("unit", GAUGE, "unit_lag_tuples", "Tuples received and not yet committed", lambda unit: unit.lag_rows),
    ("unit", COUNTER, "unit_errors", "Tuples that a box could not take, set aside", lambda unit: unit.errors),
    ("unit", COUNTER, "unit_jumps", "Recoveries upstream: tuples may come again, or are missing", lambda u: u.jumps),
    ("unit", COUNTER, "unit_given_up_tuples", "Given up for newer ones", lambda unit: sum(unit.given_up.values())),
    ("queue", COUNTER, "stream_tuples", "Tuples on the stream so far", lambda queue: queue.next_id),
    ("queue", GAUGE, "queue_bytes", "Bytes held in the output queue", lambda queue: queue.held_bytes),
    ("queue", GAUGE, "queue_tuples", "Tuples held in the output queue", lambda queue: queue.held_rows),
    ("queue", COUNTER, "queue_dropped_tuples", "Tuples slow readers lost", lambda queue: queue.dropped),
    ("entry", COUNTER, "entry_late_tuples", "Tuples that came too late", lambda queue: queue.late),
    ("bound", GAUGE, "stream_boundary_seconds", "The boundary, in Unix time", lambda queue: queue.boundary / 1e6),
    ("reader", GAUGE, "reader_behind_tuples", "Not acknowledged yet", lambda behind: behind),
    ("log", GAUGE, "log_full", "1 when the disk of a durable input is full", lambda log: log.full),
    ("log", GAUGE, "log_bytes", "Bytes of the log of a durable input", lambda log: log.held_bytes),
    ("log", GAUGE, "log_free_bytes", "Bytes that are free on its disk", lambda log: log.free_bytes),
    ("guard", GAUGE, "protected", "1 when a backup could take over", lambda g: g.state in ("protected", "watching")),
    ("guard", GAUGE, "backup_stale_seconds", "How far the backup is behind", lambda guard: guard.stale_ms / 1000),
    ("guard", COUNTER, "guard_bytes", "Bytes between primary and backup", lambda guard: guard.bytes),
    ("guard", COUNTER, "guard_discarded", "Damaged or unfit parcels", lambda guard: guard.discarded),
    ("guard", COUNTER, "takeovers", "Takeovers by this node", lambda guard: len(guard.takeovers)),
)


def _behind(queue: QueueStatus) -> Iterator[tuple[str, int]]:
    for reader, acked in queue.readers.items():
        yield reader, min(queue.held_rows, queue.next_id - acked)


def _guards(now: NodeStatus) -> Iterable[tuple[str, GuardStatus]]:
    guards = {f"{unit.diagram}.{unit.unit}": unit.guard for unit in now.units}
    guards |= {stream: entry.guard for stream, entry in _entries(now).items()}
    return [(name, guard) for name, guard in guards.items() if guard is not None]


def _entries(now: NodeStatus) -> dict[str, UnitStatus]:
    """Entry points by their streams."""
    return {f"{entry.diagram}/{entry.unit.removeprefix(ENTRY)}": entry for entry in now.entries}


def families(nodes: Sequence[NodeStatus], *, by_node: bool) -> Iterator[Metric]:
    """All figures of these nodes: each family once, its samples labelled by node if asked."""
    for what, kind, name, about, value in FIGURES:
        labels, rows = COUNTED[what]
        family = kind(f"borealis_{name}", about, labels=["node", *labels] if by_node else labels)
        for now in nodes:
            for mine, one in rows(now):
                family.add_metric([now.node, *mine] if by_node else mine, float(value(one)))
        yield family


@dataclass(frozen=True)
class Figures:
    """What a `/metrics` shows, for Prometheus: `collect` gives all figures as of now."""

    collect: Callable[[], Iterator[Metric]]


class MetricsServer:
    """Serves `/metrics` over HTTP, or HTTPS where there are certificates; with a token, only to those who have it."""

    def __init__(
        self, status: Callable[[], NodeStatus], host: str, port: int, security: Security | None = None
    ) -> None:
        registry = CollectorRegistry()
        registry.register(Figures(lambda: families([status()], by_node=False)))
        metrics: Any = make_wsgi_app(registry)
        security = security or OPEN

        def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            given = [str(environ[HTTP_HEADER]).encode()] if HTTP_HEADER in environ else []
            if refused_token(given, security.token):
                start("401 Unauthorized", [("Content-Type", "text/plain")])
                return [b"give the token of this cluster\n"]
            if environ.get("PATH_INFO") != "/metrics":
                start("404 Not Found", [("Content-Type", "text/plain")])
                return [b"there is only /metrics\n"]
            answer: Iterable[bytes] = metrics(environ, start)
            return answer

        try:
            self._server = _Server((host, port), _Quiet)
        except OSError as error:
            raise ClusterError(
                f"cannot serve metrics at {host}:{port}: {error.strerror or error}",
                hint="is the port taken, the host one of this machine? see --http-port",
            ) from None
        if security.tls:
            self._server.secure(security)
        self._server.set_app(app)
        self.port = int(self._server.server_address[1])
        self.address = f"{'https' if security.tls else 'http'}://{host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 2 * REQUESTS_MOST

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._free = threading.BoundedSemaphore(REQUESTS_MOST)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each in a thread of its own, but not without end: one more than that is hung up on."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def secure(self, security: Security) -> None:
        """Speak TLS. Hands are shaken in the thread of each request: a client that says nothing delays no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(security.cert), str(security.key))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off, or speaks no TLS, is not worth a stack trace."""


class _Quiet(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line each."""
