"""A node as a process: Spark, the Flight server, metrics, and a heartbeat to the coordinator.

Its JVM takes longest to start, so it starts first; everything else is imported meanwhile.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from borealis.errors import BorealisError
from borealis.hosts import is_loopback
from borealis.machine import HERE
from borealis.spark.session import is_local, session
from borealis.threads import Task
from borealis.wire.auth import Security, require_security

if TYPE_CHECKING:
    from borealis.client.coordinator import CoordinatorClient
    from borealis.node.heartbeats import Heartbeats
    from borealis.node.node import Node
    from borealis.wire.endpoints import Location

JVM_DIED = 3  # exit code
ORDERS_S = 3.0  # until a coordinator has ordered what goes on here from storage: it waits for two heartbeats
JVM_ENDS_S = 2.0  # a JVM that does not answer any more is on its way out, or broken

log = logging.getLogger("borealis.node")


@dataclass(frozen=True)
class NodeOptions:
    """How a node is started."""

    coordinator: str | None = None  # host:port; None: it stands alone
    name: str | None = None  # None: from host and process
    master: str | None = None  # Spark's; None: this machine, `cores` of it
    host: str = "127.0.0.1"
    port: int = 0
    announce: str | None = None  # host:port at which others reach it; None: where it listens
    http_port: int = 0
    data: Path | None = None  # where durable entry points keep their logs
    storage: str | None = None  # a URI: where units that are to be are kept
    cores: int | None = None
    security: Security | None = None
    settings: dict[str, str] = field(default_factory=dict)  # Spark's
    pool: int | None = None  # started queries it keeps for units it may take over; None: as a node has it
    allow_faults: bool = False  # `borealis cut` may cut it off from streams


def serve(options: NodeOptions) -> int:
    """Run a node until an order or SIGTERM stops it; the trains under way are finished."""
    name = options.name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}"
    master = options.master or f"local[{options.cores or 1}, 3]"
    require_security([options.host, *filter(None, [options.announce])], options.security)
    settings = {"spark.app.name": f"borealis {name}", **_for_executors(options, master), **options.settings}
    spark = HERE.threads.start("spark", lambda: session(master, settings))
    try:
        return _serve(options, name, master, spark)
    finally:
        with suppress(BorealisError), forgiving(spark):  # `_serve` has raised it
            spark.result().stop()


def _for_executors(options: NodeOptions, master: str) -> dict[str, str]:
    """Where executors on other machines find this node, and how they know it, unless the user's settings say it."""
    if is_local(master):
        return {}
    found = {}
    if not is_loopback(options.host):
        found["spark.driver.host"] = options.host
    security = options.security
    if security is not None:
        files = {"cert": security.cert, "key": security.key, "ca": security.ca}
        found |= {f"spark.borealis.depot.{what}": str(path) for what, path in files.items() if path is not None}
    return found


def _serve(options: NodeOptions, name: str, master: str, spark: Task[Any]) -> int:
    from borealis.client.cluster_config import Whereabouts
    from borealis.client.coordinator import CoordinatorClient
    from borealis.node.heartbeats import Heartbeats
    from borealis.node.metrics import MetricsServer
    from borealis.node.node import Node
    from borealis.node.pool import POOL
    from borealis.storage import storage_at
    from borealis.wire.server import WireServer

    at = options.coordinator
    coordinator = CoordinatorClient(Whereabouts.of(at, options.security)) if at else None
    node = Node(
        name,
        data=options.data,
        security=options.security,
        ask=lambda stream: located(coordinator, stream) if coordinator else None,
        claim=coordinator.claim if coordinator else lambda _: None,
        master=master,
        cores=options.cores or (1 if options.master is None else 0),
        pool=POOL if options.pool is None else options.pool,
        allow_faults=options.allow_faults,
        storage=storage_at(options.storage) if options.storage else None,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop_asked.set())
    server = WireServer(node, f"grpc://{options.host}:{options.port}", options.security).start()
    node.address = reached_at(server.address, options.announce)
    metrics = MetricsServer(node.status, options.host, options.http_port, options.security)
    node.http = metrics.address
    beats = Heartbeats(node, coordinator)
    try:
        beats.first()
        print(f"{name} at {node.address}, metrics at {node.http}/metrics", flush=True)
        _hush(running := spark.result())
        node.session.started(running)
        beats.wake()
        print(f"{name}: Spark is ready", flush=True)
        _end_with(running, node)
        node.machine.threads.start("warm-up", partial(_warm, node, running, beats))
        node.stop_asked.wait()
        print(f"{name}: stopping", flush=True)
        return 0
    except BaseException:
        node.session.failed()
        raise
    finally:
        beats.stop()
        with forgiving(spark):
            node.close()
        server.close()
        metrics.close()


def reached_at(listens: str, announce: str | None) -> str:
    """The address that a node tells all others: where it listens, or what leads there from elsewhere.

    >>> reached_at("grpc+tls://0.0.0.0:7480", "node1.example.org:30480")
    'grpc+tls://node1.example.org:30480'
    """
    return f"{listens.partition('://')[0]}://{announce}" if announce else listens


def located(coordinator: CoordinatorClient, stream: str) -> Location | None:
    """Which node serves a stream now, and which will if that one dies, if the coordinator knows."""
    from borealis.client.coordinator import TIMINGS

    try:
        return coordinator.locate(stream, TIMINGS.locate_s)
    except BorealisError:
        return None


def _warm(node: Node, spark: Any, beats: Heartbeats) -> None:
    from borealis.local.warm import warm_up

    if not _restores(node):
        warm_up(spark, node.stop_asked.is_set)
    node.warm = True
    if node.storage is not None:
        node.pool.keep_spare()
    beats.wake()


def _restores(node: Node) -> bool:
    """Whether it goes on with units from storage just now: these warm it up, and shall have the cores to themselves."""
    if node.storage is not None:
        node.stop_asked.wait(ORDERS_S)
    return node.storage is not None and node.has_units


def _end_with(spark: Any, node: Node) -> None:
    """A node whose JVM died dies as well, at once: it could do nothing but keep others from taking over."""
    process = _jvm(spark)
    if process is None:  # the JVM was there before this process
        return

    def watch() -> None:
        code = process.wait()
        if not node.stop_asked.is_set():
            log.critical("%s ends: its JVM died (exit code %d)", node.name, code)
            os._exit(JVM_DIED)

    node.machine.threads.start("jvm-watch", watch)


def _jvm(spark: Any) -> subprocess.Popen[bytes] | None:
    """The JVM that this process started, if it did."""
    found: subprocess.Popen[bytes] | None = getattr(spark.sparkContext._gateway, "proc", None)
    return found


def _hush(spark: Any) -> None:
    """PySpark prints a stack trace when the JVM goes first; the node itself logs that it went."""
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


@contextmanager
def forgiving(spark: Task[Any], ends_s: float = JVM_ENDS_S) -> Iterator[None]:
    """Let go of Spark without a complaint where its JVM has ended before: a signal may go to all of a node at once."""
    try:
        yield
    except BorealisError:
        raise
    except Exception as error:
        jvm = _jvm(spark.result())
        if jvm is None:
            raise
        try:
            jvm.wait(ends_s)
        except subprocess.TimeoutExpired:
            raise error from None
        log.info("the JVM had ended before (%s)", type(error).__name__)
