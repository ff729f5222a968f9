"""A protected diagram as a user has it: a node is killed with `borealis kill`, and the tail goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from city import City, expected, json_lines, packets, seen, wait_for

pytestmark = pytest.mark.timeout(400)
ROWS = 24_000


def unit(city: City, diagram: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(u for u in city.status()["units"] if (u["diagram"], u["unit"]) == (diagram, name))
    return found


def bring_back(city: City, node: str) -> None:
    record = city.record()
    at = ("--name", node, "--coordinator", record["coordinator"], "--data", f"{record['data']}/{node}")
    city.start("node", *at, out=city.root / f"{node}-again.log")
    wait_for(lambda: city.node(node)["spark"] == "ready", f"{node} is back")


def is_protected(city: City, diagram: str) -> bool:
    units = [u for u in city.status()["units"] if u["diagram"] == diagram]
    return all(u["protection"]["state"] == "protected" for u in units)


def kill_jvm(city: City, node: str) -> None:
    """Only Spark dies, as where a machine is out of memory: the node must not outlive it."""
    pid = city.node(node)["pid"]
    children = subprocess.run(["pgrep", "-P", str(pid), "java"], capture_output=True, text=True, check=True)
    [jvm] = children.stdout.split()
    os.kill(int(jvm), signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{pid}/exe").exists(), f"{node} to die with its JVM")


def test_the_tail_goes_on_where_a_node_is_killed(city: City) -> None:
    """The node has a unit and the entry point."""
    file = packets(city.root, ROWS, seed=7)
    places = ["--place", "large=node1", "--place", "per_source=node2", "--place", "packets=node1"]
    how = ["--ha", "passive", "--guarantee", "precise", "--misses", "5"]
    city.run("deploy", str(city.diagram("guarded")), *how, *places)
    wait_for(lambda: is_protected(city, "guarded"), "protection")
    out, sent = city.root / "guarded.jsonl", city.root / "guarded.log"
    tail = city.start("tail", "guarded/per_source", "--from", "oldest", "--json", out=out)
    sending = city.start("send", "guarded/packets", str(file), "--rate", "3000", "--end", out=sent)
    wait_for(lambda: len(json_lines(out)) > 100, "some results")
    city.run("kill", "node1")
    assert sending.wait(180) == 0, sent.read_text()
    assert tail.wait(180) == 0
    assert seen(json_lines(out)) == expected(file)
    taken = wait_for(lambda: unit(city, "guarded", "u1")["protection"]["last_takeover"], "a takeover in the status")
    assert (taken["incarnation"] >= 2, taken["primary"]) == (True, "node1")
    assert "took over from node1" in city.run("status")
    bring_back(city, "node1")
    city.run("undeploy", "guarded")


def test_a_node_dies_with_its_jvm(city: City) -> None:
    kill_jvm(city, "node3")
    bring_back(city, "node3")


def test_no_node_for_a_backup(town: City) -> None:
    """Refused, or degraded as the user chose: then it runs unprotected, and says so loudly."""
    file = str(town.diagram("lonely"))
    assert "backup" in town.run("deploy", file, "--ha", "passive", fails=True)
    town.run("deploy", file, "--ha", "passive", "--without-backup", "degrade")
    wait_for(lambda: "UNPROTECTED" in town.run("status"), "a loud word")
    told = json.loads(town.run("status", "--json"))
    assert [u["state"] for u in told["units"]] == ["running"]
    assert "cannot give" in town.run(
        "deploy", str(town.diagram("odd")), "--ha", "amnesia", "--guarantee", "precise", fails=True
    )
