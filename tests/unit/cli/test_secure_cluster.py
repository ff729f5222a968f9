"""A real coordinator with a token and TLS, and who gets through to it."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import borealis
from borealis.cli import processes
from borealis.cli.cluster_file import ClusterFile, CoordinatorPart, NodePart, TlsPart
from borealis.cli.cluster_plan import part_arguments
from borealis.cli.ending import run_app
from borealis.errors import ClusterError, WireError
from borealis.hosts import free_ports
from borealis.node.metrics import MetricsServer
from borealis.wire.auth import Security
from borealis.wire.messages import NodeStatus

READY_S = 60.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates for 127.0.0.1 that sign themselves, and a token."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make certificates with")
    made = tmp_path_factory.mktemp("secrets")
    for name in ("mine", "other"):
        command = (
            f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key -out {name}.pem"
        )
        command += " -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(command.split(), cwd=made, check=True, capture_output=True)
    (made / "token").write_text("right\n")
    return made


def nothing() -> NodeStatus:
    return NodeStatus(
        node="n", incarnation="i", version="0", address="grpc://127.0.0.1:1", http="", pid=2, host="h", master="local",
        spark="ready", cores=1,
    )  # fmt: skip


def test_metrics_are_as_secret_as_the_rest(folder: Path) -> None:
    security = Security(token="right", cert=folder / "mine.pem", key=folder / "mine.key")
    metrics = MetricsServer(nothing, "127.0.0.1", 0, security)
    try:
        assert metrics.address.startswith("https://")
        silent = socket.create_connection(("127.0.0.1", metrics.port))  # says nothing, and keeps nobody waiting
        trust = ssl.create_default_context(cafile=folder / "mine.pem")
        with httpx.Client(verify=trust, trust_env=False, timeout=30) as client:
            assert client.get(f"{metrics.address}/metrics").status_code == 401
            answer = client.get(f"{metrics.address}/metrics", headers={"authorization": "Bearer right"})
        assert "borealis_spark_ready 1.0" in answer.text
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{metrics.port}/metrics", trust_env=False, timeout=30)
        silent.close()
        with pytest.raises(ClusterError, match=f"cannot serve metrics at 127.0.0.1:{metrics.port}"):
            MetricsServer(nothing, "127.0.0.1", metrics.port)
    finally:
        metrics.close()


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """A coordinator as `up` would start it."""
    tls = TlsPart(cert=folder / "mine.pem", key=folder / "mine.key")
    cluster = ClusterFile(
        coordinator=CoordinatorPart(port=free_ports(1)[0]),
        token_file=folder / "token",
        tls=tls,
        nodes=[NodePart(name="node1")],
    )
    arguments = part_arguments(cluster, folder)["coordinator"]
    part, one = processes.start("coordinator", arguments, folder / "coordinator.log", folder / "cwd")
    deadline = time.monotonic() + READY_S
    while not any(line.startswith("coordinator at https://") for line in processes.last_lines(part.log)):
        assert one.poll() is None, processes.last_lines(part.log)
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield f"127.0.0.1:{cluster.coordinator.port}"
    assert processes.stop([part]) == []
    assert one.wait() == 0


def test_the_right_token_and_authority_get_through(address: str, folder: Path) -> None:
    with borealis.connect(address, "right", ca=folder / "mine.pem") as cluster:
        assert cluster.nodes() == []
        assert cluster.streams() == []


@pytest.mark.parametrize(
    ("token", "ca", "says"),
    [
        (None, "mine.pem", "refused: no token"),
        ("wrong", "mine.pem", "refused: another token"),
        ("right", "other.pem", "give the certificate authority"),
        ("right", None, "does it speak https"),
        ("right", "token", "cannot use the certificate authority"),
    ],
)
def test_others_do_not(token: str | None, ca: str | None, says: str, address: str, folder: Path) -> None:
    with pytest.raises(WireError, match=says), borealis.connect(address, token, ca=ca and folder / ca) as cluster:
        cluster.status()


def test_the_commands_take_token_and_authority(
    address: str, folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        where = ["status", "--coordinator", address, "--ca", str(folder / "mine.pem")]
        assert run_app([*where, "--token-file", str(folder / "token")]) == 0
        assert "0 of 0 nodes alive" in capfd.readouterr().out
        monkeypatch.setenv("BOREALIS_TOKEN", "right")
        assert run_app(where) == 0
        monkeypatch.setenv("BOREALIS_TOKEN", "wrong")
        assert run_app(where) == 2
        assert "refused: another token" in capfd.readouterr().err
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
