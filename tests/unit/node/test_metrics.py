"""The port for Prometheus: open to many, and to nobody for ever."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from borealis.node import metrics
from borealis.node.metrics import REQUESTS_MOST, MetricsServer
from borealis.node.node import Node


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    node = Node("measured")
    node.address, node.http = "grpc://127.0.0.1:1", "http://127.0.0.1:1"
    made = MetricsServer(node.status, "127.0.0.1", 0)
    yield made
    made.close()
    node.close()


def knock(server: MetricsServer) -> socket.socket:
    """Half a request."""
    made = socket.create_connection(("127.0.0.1", server.port), 20)
    made.sendall(b"GET /metrics HTTP/1.1\r\n")
    return made


def test_those_who_never_finish_a_request_are_few_and_go(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics._Quiet, "timeout", 0.3)
    before = threading.active_count()
    with ExitStack() as stack:
        first = [stack.enter_context(knock(server)) for _ in range(REQUESTS_MOST)]
        more = [stack.enter_context(knock(server)) for _ in range(20)]
        for one in more:
            assert hung_up(one)
        assert threading.active_count() <= before + REQUESTS_MOST
        for one in first:
            assert hung_up(one)
    with urllib.request.urlopen(f"{server.address}/metrics", timeout=20) as answer:
        assert b"borealis_spark_ready" in answer.read()


def hung_up(one: socket.socket) -> bool:
    """Whether nothing more comes; waits for it."""
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True
