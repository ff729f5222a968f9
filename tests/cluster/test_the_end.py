"""Nodes that end, one after another, until none is left: the last tests of the cluster that all share."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from city import City, wait_for

pytestmark = pytest.mark.timeout(300)


def test_sigterm_finishes_the_train_and_kill_ends_a_node(city: City) -> None:
    city.run("deploy", str(city.diagram("mortal")), "--place", "per_source=node3")
    pid = city.node("node3")["pid"]
    assert "node3" in city.run("kill", "node3")
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), "the process is gone")
    wait_for(lambda: city.node("node3")["alive"] is False, "the coordinator has noticed")
    states = {u["unit"]: u["state"] for u in city.status()["units"] if u["diagram"] == "mortal"}
    assert states == {"u1": "lost"}
    assert "lost with node3" in city.run("status")
    assert city.node("node1")["alive"]
    os.kill(city.node("node2")["pid"], signal.SIGTERM)
    wait_for(lambda: "node2: stopping" in city.run("logs", "node2"), "node2 says that it stops")
    wait_for(lambda: city.node("node2")["alive"] is False, "node2 is gone")
    assert "alive" in city.run("forget-node", "node1", fails=True)
    assert "node2" in city.run("forget-node", "node2")
    assert "node2" not in [node["node"] for node in city.status()["nodes"]]
    assert "Traceback" not in city.run("logs", "node2")
    city.undeploy("mortal")


def test_no_node_for_a_backup(city: City) -> None:
    """Refused, or degraded as the user chose: then it runs unprotected, and says so loudly."""
    file = str(city.diagram("lonely"))
    assert "backup" in city.run("deploy", file, "--ha", "passive", fails=True)
    city.run("deploy", file, "--ha", "passive", "--without-backup", "degrade")
    wait_for(lambda: "UNPROTECTED" in city.run("status"), "a loud word")
    assert [u["state"] for u in city.status()["units"] if u["diagram"] == "lonely"] == ["running"]
    assert "cannot give" in city.run(
        "deploy", str(city.diagram("odd")), "--ha", "amnesia", "--guarantee", "precise", fails=True
    )


def test_a_node_dies_with_its_jvm(city: City) -> None:
    """Only Spark dies, as where a machine is out of memory: the node must not outlive it."""
    pid = city.node("node1")["pid"]
    children = subprocess.run(["pgrep", "-P", str(pid), "java"], capture_output=True, text=True, check=True)
    [jvm] = children.stdout.split()
    os.kill(int(jvm), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), "node1 to die with its JVM")
