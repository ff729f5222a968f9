"""Claims over HTTP, as a node makes them: answered quickly, or not at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from served import Served

from borealis.client.cluster_config import Whereabouts
from borealis.client.coordinator import CoordinatorClient
from borealis.errors import UnreachableError
from borealis.node.process import located
from borealis.wire.messages import Claim


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "catalog.sqlite")
    yield made
    made.close()


def wants(node: str, incarnation: int, what: str = "take over") -> Claim:
    return Claim(what=what, diagram="traffic", unit="u1", node=node, incarnation=incarnation)  # type: ignore[arg-type]


def client(address: str) -> CoordinatorClient:
    """As a node gets the address of its coordinator."""
    return CoordinatorClient(Whereabouts.of(address, None))


def patiently(coordinator: CoordinatorClient, claim: Claim) -> bool:
    """A machine that is busy with other things may need more than one attempt."""
    for _ in range(50):
        if (said := coordinator.claim([claim])) is not None:
            return said[0].granted
    raise AssertionError("no answer")


def test_a_node_claims_and_everybody_finds_it(served: Served) -> None:
    served.deploy(place={"agg": "node1"}, ha="passive", guarantee="precise")
    coordinator = client(served.address)
    way = located(coordinator, "traffic/agg")
    assert way is not None
    assert (way.address, way.fallback) == (served.nodes["node1"].address, served.nodes["node2"].address)
    assert not patiently(coordinator, wants("node1", 2))
    assert patiently(coordinator, wants("node2", 2))
    assert patiently(coordinator, wants("node2", 2)), "again, because the answer was lost"
    way = located(coordinator, "traffic/agg")
    assert way is not None
    assert (way.address, way.fallback) == (served.nodes["node2"].address, None)
    coordinator.close()


@pytest.mark.parametrize("status", [200, 401, 409])
def test_what_a_proxy_says_in_the_coordinators_place_is_no_refusal(status: int) -> None:
    """A node that is refused ends; one whose coordinator is away goes on."""

    class Proxy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", "12")
            self.end_headers()
            self.wfile.write(b"<html></html"[:12])

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.01,), daemon=True).start()
        coordinator = client(f"127.0.0.1:{proxy.server_port}")
        if status != 200:
            with pytest.raises(UnreachableError):
                coordinator.heartbeat(b"{}")
        assert located(coordinator, "traffic/agg") is None
        coordinator.close()
        proxy.shutdown()


def test_bad_claims_are_refused(served: Served) -> None:
    for body in (b"", b"{}", b"[1]", b'[{"what": "steal"}]'):
        answer = served.http.post("/v1/claims", content=body)
        assert answer.status_code == 400
        assert "bad claims" in answer.json()["message"]


def test_bad_demands_are_refused(served: Served) -> None:
    for more, says in (
        ({"ha": "amnesia", "guarantee": "precise"}, "amnesia"),
        ({"guarantee": "precise"}, "nothing is protected"),
        ({"ha": "passive", "misses": 0}, "misses"),
        ({"ha": "passive", "backup": {"u1": "node7"}}, "no node 'node7'"),
    ):
        answer = served.http.post("/v1/diagrams", json={"yaml": _yaml(), **more})
        assert answer.status_code in (400, 404)
        assert says in answer.json()["message"]


def _yaml() -> str:
    from stand_ins import traffic

    return traffic()


def test_without_a_coordinator_no_node_waits() -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # accepts, and never answers
        for address in (f"127.0.0.1:{deaf.getsockname()[1]}", "127.0.0.1:1"):
            coordinator = client(address)
            assert coordinator.claim([wants("node2", 2)]) is None
            coordinator.close()
