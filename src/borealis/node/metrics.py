"""A node's figures for Prometheus, read when somebody asks: base units, totals end in `_total`."""

from __future__ import annotations

import hmac
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from borealis.errors import ClusterError
from borealis.tuples import FIRST_TIME, LAST_TIME
from borealis.wire.auth import Security
from borealis.wire.messages import NodeStatus

UNIT = ("diagram", "unit")
REQUESTS_MOST = 32  # at once
REQUEST_S = 10.0  # for a request to come


class NodeFigures:
    """What `/metrics` shows, made from the node's status."""

    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        """All figures as of now."""
        now = self._status()
        up = GaugeMetricFamily("borealis_spark_ready", "1 when this node's Spark session is ready")
        up.add_metric([], 1.0 if now.spark == "ready" else 0.0)
        yield up
        started = GaugeMetricFamily("borealis_node_start_time_seconds", "When this node started, in Unix time")
        started.add_metric([], now.started)
        yield started
        yield from self._units(now)
        yield from self._queues(now)
        yield from self._logs(now)
        yield from self._guards(now)

    def _units(self, now: NodeStatus) -> Iterator[Metric]:
        running = GaugeMetricFamily("borealis_unit_running", "1 when the unit runs", labels=UNIT)
        trains = CounterMetricFamily("borealis_unit_trains", "Trains committed", labels=UNIT)
        taken = CounterMetricFamily("borealis_unit_tuples_in", "Tuples in committed trains", labels=UNIT)
        given = CounterMetricFamily("borealis_unit_tuples_out", "Tuples put out", labels=UNIT)
        seconds = GaugeMetricFamily("borealis_unit_train_seconds", "Median time of the last trains", labels=UNIT)
        state = GaugeMetricFamily("borealis_unit_state_bytes", "State tables of the unit", labels=UNIT)
        lag = GaugeMetricFamily("borealis_unit_lag_tuples", "Tuples received and not yet committed", labels=UNIT)
        aside = CounterMetricFamily("borealis_unit_errors", "Tuples that a box could not take, set aside", labels=UNIT)
        jumps = CounterMetricFamily(
            "borealis_unit_jumps", "Recoveries upstream behind which tuples may come again, or are missing", labels=UNIT
        )
        for unit in now.units:
            labels = [unit.diagram, unit.unit]
            aside.add_metric(labels, unit.errors)
            jumps.add_metric(labels, unit.jumps)
            running.add_metric(labels, 1.0 if unit.state == "running" else 0.0)
            trains.add_metric(labels, unit.trains)
            taken.add_metric(labels, unit.rows_in)
            given.add_metric(labels, unit.rows_out)
            seconds.add_metric(labels, unit.train_ms / 1000)
            state.add_metric(labels, unit.state_bytes)
            lag.add_metric(labels, unit.lag_rows)
        yield from (running, trains, taken, given, seconds, state, lag, aside, jumps)

    def _queues(self, now: NodeStatus) -> Iterator[Metric]:
        tuples = CounterMetricFamily("borealis_stream_tuples", "Tuples on the stream so far", labels=["stream"])
        held = GaugeMetricFamily("borealis_queue_bytes", "Bytes held in the output queue", labels=["stream"])
        rows = GaugeMetricFamily("borealis_queue_tuples", "Tuples held in the output queue", labels=["stream"])
        dropped = CounterMetricFamily("borealis_queue_dropped_tuples", "Tuples slow readers lost", labels=["stream"])
        late = CounterMetricFamily("borealis_entry_late_tuples", "Tuples that came too late", labels=["stream"])
        bound = GaugeMetricFamily("borealis_stream_boundary_seconds", "The boundary, in Unix time", labels=["stream"])
        behind = GaugeMetricFamily("borealis_reader_behind_tuples", "Not acknowledged yet", labels=["stream", "reader"])
        for queue in now.queues:
            labels = [queue.stream]
            tuples.add_metric(labels, queue.next_id)
            held.add_metric(labels, queue.held_bytes)
            rows.add_metric(labels, queue.held_rows)
            dropped.add_metric(labels, queue.dropped)
            if FIRST_TIME < queue.boundary < LAST_TIME:
                bound.add_metric(labels, queue.boundary / 1e6)
            if queue.stream in now.entries:
                late.add_metric(labels, queue.late)
            for reader, acked in queue.readers.items():
                behind.add_metric([queue.stream, reader], min(queue.held_rows, queue.next_id - acked))
        yield from (tuples, held, rows, dropped, late, bound, behind)

    def _logs(self, now: NodeStatus) -> Iterator[Metric]:
        labels = ["stream", "path"]
        full = GaugeMetricFamily("borealis_log_full", "1 when the disk of a durable input is full", labels=labels)
        held = GaugeMetricFamily("borealis_log_bytes", "Bytes of the log of a durable input", labels=labels)
        free = GaugeMetricFamily("borealis_log_free_bytes", "Bytes that are free on its disk", labels=labels)
        for log in now.logs:
            mine = [log.stream, log.path]
            full.add_metric(mine, 1.0 if log.full else 0.0)
            held.add_metric(mine, log.held_bytes)
            free.add_metric(mine, log.free_bytes)
        yield from (full, held, free)

    def _guards(self, now: NodeStatus) -> Iterator[Metric]:
        """Of primaries how well they are protected; of backups what came for them."""
        labels = ["what", "approach", "role"]
        safe = GaugeMetricFamily("borealis_protected", "1 when a backup could take over", labels=labels)
        stale = GaugeMetricFamily("borealis_backup_stale_seconds", "How far the backup is behind", labels=labels)
        sent = CounterMetricFamily("borealis_guard_bytes", "Bytes between primary and backup", labels=labels)
        bad = CounterMetricFamily("borealis_guard_discarded", "Damaged or unfit parcels", labels=labels)
        over = CounterMetricFamily("borealis_takeovers", "Takeovers by this node", labels=labels)
        found = {f"{u.diagram}.{u.unit}": u.guard for u in now.units if u.guard is not None} | now.guards
        for what, guard in found.items():
            mine = [what, guard.approach, guard.role]
            safe.add_metric(mine, 1.0 if guard.state in ("protected", "watching") else 0.0)
            stale.add_metric(mine, guard.stale_ms / 1000)
            sent.add_metric(mine, guard.bytes)
            bad.add_metric(mine, guard.discarded)
            over.add_metric(mine, len(guard.takeovers))
        yield from (safe, stale, sent, bad, over)


class MetricsServer:
    """Serves `/metrics` over HTTP, or HTTPS where there are certificates; with a token, only to those who have it."""

    def __init__(
        self, status: Callable[[], NodeStatus], host: str, port: int, security: Security | None = None
    ) -> None:
        registry = CollectorRegistry()
        registry.register(NodeFigures(status))
        metrics: Any = make_wsgi_app(registry)
        expected = None if security is None or security.token is None else f"Bearer {security.token}"

        def app(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            given = str(environ.get("HTTP_AUTHORIZATION", ""))
            if expected is not None and not hmac.compare_digest(given.encode(), expected.encode()):
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
        if security is not None and security.tls:
            self._server.secure(security)
        self._server.set_app(app)
        self.port = int(self._server.server_address[1])
        self.address = f"{'https' if security is not None and security.tls else 'http'}://{host}:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True).start()

    def close(self) -> None:
        """Answer no more."""
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
        """Speak TLS. Hands are shaken in the thread of each request: one that says nothing keeps nobody waiting."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(security.cert), str(security.key))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever breaks off, or speaks no TLS, is not worth a stack trace."""


class _Quiet(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line each."""
