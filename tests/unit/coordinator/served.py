"""A coordinator that listens, and nodes without Spark that send it heartbeats and serve streams over a real wire."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
from stand_ins import StandInNode, traffic

from borealis.coordinator.process import Options, serve
from borealis.gateway.stream_api import gateway
from borealis.wire.auth import Security
from borealis.wire.server import WireServer

ROW = {"ts": "2024-05-01T12:00:00Z", "src": "a", "bytes": 0}
BEAT_SECONDS = 0.2


class Served:
    """A coordinator that listens, and nodes that send it heartbeats."""

    def __init__(self, path: Path, nodes: int = 2, security: Security | None = None) -> None:
        there, self._over = threading.Event(), threading.Event()
        self.address = ""

        def announce(address: str) -> None:
            self.address = address
            there.set()

        options = Options(path, port=0, security=security, parts=[gateway])
        self._coordinator = threading.Thread(target=serve, args=(options, announce), daemon=True)
        self._coordinator.start()
        assert there.wait(30)
        token = {"authorization": f"Bearer {security.token}"} if security else {}
        self.http = httpx.Client(base_url=self.address, headers=token, timeout=30, verify=False, trust_env=False)
        self.servers: dict[str, WireServer] = {}
        self.nodes: dict[str, StandInNode] = {}
        for i in range(1, nodes + 1):
            self.start(f"node{i}", security)
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()

    def start(self, name: str, security: Security | None = None) -> StandInNode:
        """A node, or a new process of one."""
        self.nodes[name] = node = StandInNode(name, "", f"{len(self.servers)}{name}", peers=self._at)
        self.servers[name] = WireServer(node, security=security).start()
        node.address = self.servers[name].address
        self.beat(name)
        return node

    def _at(self, address: str) -> StandInNode:
        return next(node for node in self.nodes.values() if node.address == address)

    def beat(self, name: str) -> None:
        """One heartbeat."""
        assert self.http.post("/v1/nodes", content=self.nodes[name].status().encode()).status_code == 200

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            for name in list(self.nodes):
                try:
                    self.beat(name)
                except (httpx.HTTPError, AssertionError, KeyError):
                    if self._over.is_set():
                        return

    def deploy(self, **more: Any) -> None:
        answer = self.http.post("/v1/diagrams", json={"yaml": traffic(), **more})
        assert answer.status_code == 201, answer.text

    def close(self) -> None:
        self._over.set()
        self._beats.join(30)
        self.http.post("/v1/shutdown")
        self._coordinator.join(30)
        assert not self._coordinator.is_alive()
        self.http.close()
        for server in self.servers.values():
            server.close()


def rows(*numbers: int) -> bytes:
    return b"".join(json.dumps(ROW | {"bytes": n}).encode() + b"\n" for n in numbers)
