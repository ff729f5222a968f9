"""Settings of a session: loopback as long as nobody is elsewhere, and a way back where somebody is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from borealis.errors import MachineError
from borealis.spark import quiet
from borealis.spark.archive import archive_flags
from borealis.spark.session import DRIVER_HOST, JVM_FLAGS, is_local, settings_for


@pytest.fixture(autouse=True)
def _no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DRIVER_HOST, raising=False)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*, 3]"])
def test_a_local_session_stays_on_loopback(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER_HOST, "10.0.0.1")
    settings = settings_for(master, {})
    assert is_local(master)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.executor.extraJavaOptions" not in settings


@pytest.mark.parametrize(
    "master",
    [
        "spark://127.0.0.1:7077",
        "spark://localhost:7077,127.0.0.2:7078",
        "spark://[::1]:7077",
        "local-cluster[2,1,1024]",
    ],
)
def test_a_cluster_on_this_machine_needs_no_more(master: str) -> None:
    settings = settings_for(master, {})
    assert not is_local(master)
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.executor.extraJavaOptions"] == f"{JVM_FLAGS} {archive_flags()}"
    assert int(settings["spark.task.maxFailures"]) >= 4


@pytest.mark.parametrize(
    "master",
    ["spark://example.org:7077", "spark://127.0.0.1:7077,example.org:7077", "yarn", "k8s://https://127.0.0.1:6443"],
)
def test_executors_elsewhere_must_be_told_where_this_machine_is(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError, match="nothing says where they reach this one") as told:
        settings_for(master, {})
    assert DRIVER_HOST in told.value.hint
    given = settings_for(master, {"spark.driver.host": "10.1.2.3", "spark.driver.bindAddress": "0.0.0.0"})
    assert (given["spark.driver.host"], given["spark.driver.bindAddress"]) == ("10.1.2.3", "0.0.0.0")
    monkeypatch.setenv(DRIVER_HOST, "node1.example.org")
    found = settings_for(master, {"spark.executor.memory": "2g", "spark.task.maxFailures": "3"})
    assert found["spark.driver.host"] == found["spark.driver.bindAddress"] == "node1.example.org"
    assert found["spark.executor.extraJavaOptions"] == JVM_FLAGS
    assert (found["spark.executor.memory"], found["spark.task.maxFailures"]) == ("2g", "3")


def test_a_signal_for_the_group_of_a_node_does_not_reach_its_jvm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would end under the train that the node wants to finish; but `down` must find it in the node's session."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(_: object, more: dict[str, Any]) -> None:
        started.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], **more))

    monkeypatch.setenv(quiet.VARIABLE, str(tmp_path / "spark.log"))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    for name, value in (("_log", None), ("_kept", False), ("launch_gateway", launch)):
        monkeypatch.setattr(quiet, name, value)
    monkeypatch.setattr(quiet.SparkContext, "_gateway", None)
    monkeypatch.setattr(quiet.SparkContext, "_ensure_initialized", lambda **_: None)
    quiet.quiet({})
    [jvm] = started
    try:
        assert os.getpgid(jvm.pid) == jvm.pid
        assert os.getsid(jvm.pid) == os.getsid(0)
    finally:
        jvm.kill()
        jvm.wait()
