"""A node as a process: Spark, the Flight server, metrics, and a heartbeat to the coordinator."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from borealis.errors import BorealisError, ClusterError
from borealis.node.metrics import MetricsServer
from borealis.node.node import Node
from borealis.node.warm import warm_up
from borealis.plan.session import session
from borealis.wire.auth import Security, require_security
from borealis.wire.messages import Problem
from borealis.wire.problems import error_of
from borealis.wire.server import WireServer

HEARTBEAT_S = 1.0
ANSWER_S = 5.0

log = logging.getLogger("borealis.node")


@dataclass(frozen=True)
class NodeOptions:
    """How a node is started."""

    coordinator: str | None = None  # host:port; None: it stands alone
    name: str | None = None  # None: from host and process
    master: str | None = None  # Spark's; None: this machine, `cores` of it
    host: str = "127.0.0.1"
    port: int = 0
    http_port: int = 0
    data: Path | None = None  # where durable entry points keep their logs
    cores: int | None = None
    security: Security | None = None
    settings: dict[str, str] = field(default_factory=dict)  # Spark's


class Coordinator:
    """What a node says to its coordinator, over HTTP. It never waits long: a node does not depend on it."""

    def __init__(self, address: str, security: Security | None) -> None:
        scheme = "https" if security is not None and security.tls else "http"
        base = address if "://" in address else f"{scheme}://{address}"
        headers = {"authorization": f"Bearer {security.token}"} if security and security.token else {}
        verify: Any = str(security.ca) if security is not None and security.ca is not None else True
        self._http = httpx.Client(base_url=base, headers=headers, timeout=ANSWER_S, verify=verify, trust_env=False)

    def heartbeat(self, status: bytes) -> None:
        """Raises the coordinator's own error where it refuses this node."""
        answer = self._http.post("/v1/nodes", content=status, headers={"content-type": "application/json"})
        if answer.status_code == httpx.codes.CONFLICT:
            raise error_of(Problem.decode(answer.content))
        answer.raise_for_status()

    def locate(self, stream: str) -> str | None:
        """Who serves a stream now, if the coordinator can tell."""
        try:
            answer = self._http.get("/v1/locate", params={"stream": stream})
        except httpx.HTTPError:
            return None
        found = answer.json().get("address") if answer.status_code == httpx.codes.OK else None
        return str(found) if found else None

    def close(self) -> None:
        """Hang up."""
        self._http.close()


def serve(options: NodeOptions) -> int:
    """Run a node until it is told to stop, or SIGTERM comes; the trains under way are finished."""
    require_security([options.host], options.security)
    coordinator = Coordinator(options.coordinator, options.security) if options.coordinator else None
    master = options.master or f"local[{options.cores or 1}, 3]"
    node = Node(
        options.name or f"{socket.gethostname().split('.')[0]}-{os.getpid()}",
        data=options.data,
        security=options.security,
        ask=coordinator.locate if coordinator else lambda _: None,
        master=master,
        cores=options.cores or (1 if options.master is None else 0),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: node.stop_asked.set())
    server = WireServer(node, f"grpc://{options.host}:{options.port}", options.security).start()
    node.address = server.address
    metrics = MetricsServer(node.status, options.host, options.http_port, options.security)
    node.http = metrics.address
    beats = _Heartbeats(node, coordinator)
    spark: Any = None
    try:
        beats.first()
        print(f"{node.name} at {node.address}, metrics at {node.http}/metrics", flush=True)
        spark = session(master, {"spark.app.name": f"borealis {node.name}", **options.settings})
        node.spark_is(spark)
        beats.wake()
        print(f"{node.name}: Spark is ready", flush=True)
        threading.Thread(target=warm_up, args=(spark,), name="warm-up", daemon=True).start()
        node.stop_asked.wait()
        print(f"{node.name}: stopping", flush=True)
        return 0
    except BaseException:
        node.spark_failed()
        raise
    finally:
        beats.stop()
        node.close()
        server.close()
        metrics.close()
        if spark is not None:
            spark.stop()


class _Heartbeats:
    """Tells the coordinator every second that this node is there, and what is on it."""

    def __init__(self, node: Node, coordinator: Coordinator | None) -> None:
        self._node, self._coordinator = node, coordinator
        self._now = threading.Event()
        self._stopped = False
        self._reached = True

    def first(self) -> None:
        """Join the cluster; raises if this node is refused. A coordinator that is not there yet is waited for."""
        if self._coordinator is None:
            return
        try:
            self._coordinator.heartbeat(self._node.status().encode())
        except httpx.HTTPError as error:
            log.warning("no coordinator yet (%s): this node goes on trying", error)
            self._reached = False
        threading.Thread(target=self._beat_forever, name="heartbeat", daemon=True).start()

    def wake(self) -> None:
        """Something changed that is worth telling at once."""
        self._now.set()

    def stop(self) -> None:
        """Tell no more."""
        self._stopped = True
        self._now.set()

    def _beat_forever(self) -> None:
        assert self._coordinator is not None
        while not self._stopped:
            self._now.wait(HEARTBEAT_S)
            self._now.clear()
            if self._stopped:
                return
            try:
                self._coordinator.heartbeat(self._node.status().encode())
                if not self._reached:
                    log.warning("the coordinator is back")
                self._reached = True
            except (httpx.HTTPError, OSError) as error:
                if self._reached:
                    log.warning("the coordinator does not answer (%s); what runs goes on", error)
                self._reached = False
            except ClusterError as error:
                log.error("the coordinator refuses this node: %s", error)
                self._node.stop_asked.set()
                return
            except BorealisError as error:
                log.error("%s", error)
            except Exception:
                log.exception("a heartbeat failed")
                time.sleep(HEARTBEAT_S)
