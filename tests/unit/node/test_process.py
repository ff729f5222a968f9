"""A node's process at its edges: a coordinator that is not there, a JVM that goes first, an end while it warms up."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from borealis.client.cluster_config import Whereabouts
from borealis.client.coordinator import CoordinatorClient
from borealis.errors import TrainError, UnreachableError
from borealis.local import warm
from borealis.node.process import forgiving, reached_at


class Started:
    """A session that was started by this process, as far as its end is concerned."""

    def __init__(self, jvm: subprocess.Popen[bytes] | None) -> None:
        self._jvm = jvm

    def result(self) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=self._jvm)))


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as process:
        yield process
        process.kill()


def test_a_jvm_that_went_first_is_not_complained_about(jvm: subprocess.Popen[bytes]) -> None:
    jvm.terminate()
    with forgiving(Started(jvm)):  # type: ignore[arg-type]
        raise ConnectionRefusedError("nobody there")


def test_everything_else_is(jvm: subprocess.Popen[bytes]) -> None:
    for running in (jvm, None):
        with pytest.raises(ConnectionRefusedError), forgiving(Started(running), 0.05):  # type: ignore[arg-type]
            raise ConnectionRefusedError("it runs, and does not answer")
    jvm.kill()
    with pytest.raises(TrainError), forgiving(Started(jvm)):  # type: ignore[arg-type]
        raise TrainError("a train failed")


def test_a_warm_up_that_is_told_to_stop_says_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TrainError("a train failed: no scheduler")

    monkeypatch.setattr(warm, "run", broken)
    with caplog.at_level(logging.WARNING):
        warm.warm_up(None, lambda: True)
        assert not caplog.records
        warm.warm_up(None, lambda: False)
    assert "warming up failed" in caplog.text


def test_a_coordinator_that_is_not_there_is_told_with_its_address() -> None:
    with pytest.raises(UnreachableError, match=r"the coordinator at http://127\.0\.0\.1:9 does not answer"):
        CoordinatorClient(Whereabouts.of("127.0.0.1:9", None)).heartbeat(b"{}")


def test_a_node_tells_others_what_leads_to_it() -> None:
    assert reached_at("grpc+tls://0.0.0.0:7480", "node1.example.org:30480") == "grpc+tls://node1.example.org:30480"
    assert reached_at("grpc://127.0.0.1:7480", None) == "grpc://127.0.0.1:7480"
