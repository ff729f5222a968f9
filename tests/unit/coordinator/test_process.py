"""The coordinator as a process: it goes when it is ended, may be killed at any time, and is alone on its catalog."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from stand_ins import StandInNode, give, packets, traffic

import coordinator_process
from borealis.coordinator.process import Options, serve
from borealis.errors import ClusterError
from borealis.wire.auth import Security
from borealis.wire.server import WireServer

pytestmark = pytest.mark.long


class Process:
    """A coordinator as `borealis coordinator` runs it."""

    def __init__(self, catalog: Path, port: int = 0) -> None:
        command = [sys.executable, coordinator_process.__file__, str(catalog), str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        said = self.process.stdout.readline().split()
        self.address = said[-1] if said else ""
        self.http = httpx.Client(base_url=self.address, timeout=30, trust_env=False)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def end(self, number: int) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    return tmp_path / "catalog.sqlite"


@pytest.fixture
def node() -> Iterator[StandInNode]:
    made = StandInNode("node1", "")
    with WireServer(made) as server:
        made.address = server.address
        yield made


@pytest.fixture
def started(catalog: Path) -> Iterator[list[Process]]:
    made = [Process(catalog)]
    yield made
    for one in made:
        one.http.close()
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def join(process: Process, node: StandInNode) -> None:
    process.http.post("/v1/nodes", content=node.status().encode()).raise_for_status()


def test_a_node_that_dies_in_its_heartbeat_is_one_line_in_the_log(started: list[Process], node: StandInNode) -> None:
    [one] = started
    body = node.status().encode()
    head = f"POST /v1/nodes HTTP/1.1\r\nhost: 127.0.0.1:{one.port}\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", one.port)) as dying:
        dying.sendall(head.encode() + body[:10])
    assert one.process.stderr is not None
    assert one.process.stderr.readline().endswith("POST /v1/nodes: the caller broke off\n")
    assert one.end(signal.SIGTERM) == 0
    assert one.process.stderr.read() == ""


def test_it_goes_soon_though_someone_listens_and_someone_waits(started: list[Process], node: StandInNode) -> None:
    [one] = started
    join(one, node)
    one.http.post("/v1/diagrams", json={"yaml": traffic()}).raise_for_status()
    give(node.queues["traffic/agg"], packets(1))
    asked, heard = threading.Event(), threading.Event()
    node.before["check"] = lambda: (asked.set(), heard.wait(120))  # type: ignore[assignment, return-value]
    other = threading.Thread(target=lambda: _forgive(one.address, traffic("other")), daemon=True)
    with one.http.stream("GET", "/v1/streams/per_source?start=oldest") as stream:
        lines = stream.iter_lines()
        assert next(line for line in lines if line.startswith("id")) == "id: 0"
        other.start()
        assert asked.wait(30)
        code = one.end(signal.SIGTERM)  # although `heard` is not set
        list(lines)  # ends, without an error
    heard.set()
    other.join(30)
    assert code == 0


def _forgive(address: str, yaml: str) -> None:
    try:
        httpx.post(f"{address}/v1/diagrams", json={"yaml": yaml}, timeout=30, trust_env=False)
    except httpx.HTTPError:
        return


def test_interrupt_and_request_end_it_too(catalog: Path) -> None:
    one = Process(catalog)
    assert one.end(signal.SIGINT) == 0
    two = Process(catalog)
    assert two.http.post("/v1/shutdown").json()["stopping"] is True
    assert two.process.wait(30) == 0
    for process in (one, two):
        process.http.close()
        process.process.communicate()


def test_it_may_be_killed_at_any_time(started: list[Process], node: StandInNode, catalog: Path) -> None:
    [one] = started
    join(one, node)
    one.http.post("/v1/diagrams", json={"yaml": traffic()}).raise_for_status()
    port, orders = one.port, list(node.orders)
    assert one.end(signal.SIGKILL) == -signal.SIGKILL
    again = Process(catalog, port)
    started.append(again)
    [awaited] = again.http.get("/v1/nodes").json()["nodes"]
    assert (awaited["node"], awaited["state"]) == ("node1", "awaited")
    assert again.http.get("/v1/locate?stream=packets").status_code == 503
    join(again, node)
    assert again.http.get("/v1/locate?stream=packets").json()["address"] == node.address
    status = again.http.get("/v1/status").json()
    assert [(u["unit"], u["state"]) for u in status["units"]] == [("u1", "running")]
    while again.http.get("/v1/status").json()["coordinator"]["looks"] < 3:
        join(again, node)
    assert node.orders == orders, "what runs was not ordered again"


def test_two_coordinators_on_one_catalog(started: list[Process], catalog: Path) -> None:
    [one] = started
    two = Process(catalog)
    _, said = two.process.communicate(timeout=30)
    assert two.process.returncode != 0
    assert f"catalog {catalog} is in use by another coordinator (pid {one.process.pid}, {one.address})" in said
    assert one.http.get("/v1/health").json()["ok"] is True


# -- before it starts


def test_an_address_for_others_needs_a_token(catalog: Path) -> None:
    for host in ("0.0.0.0", "::", "somewhere.example"):
        with pytest.raises(ClusterError, match="no token given"):
            serve(Options(catalog, host=host, port=0, security=Security()), print)
    assert not catalog.exists()


def test_a_port_in_use_is_told_and_the_catalog_is_free_again(catalog: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for _ in range(2):
            with pytest.raises(ClusterError, match=r"cannot listen at 127\.0\.0\.1"):
                serve(Options(catalog, port=taken.getsockname()[1]), print)


def test_an_address_of_another_machine_is_told(catalog: Path) -> None:
    with pytest.raises(ClusterError, match=r"cannot listen at 192\.0\.2\.1") as refused:
        serve(Options(catalog, host="192.0.2.1", port=0, security=Security(token="secret")), print)
    assert "no network card of this machine has that address" in refused.value.hint
