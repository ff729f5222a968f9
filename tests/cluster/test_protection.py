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


@pytest.mark.parametrize(("approach", "victim"), [("active", "jvm"), ("passive", "entry")])
def test_the_tail_goes_on_where_a_node_is_killed(city: City, approach: str, victim: str) -> None:
    name = f"guarded_{approach.replace('-', '_')}_{victim}"
    file = packets(city.root, ROWS, seed=len(name))
    places = ["--place", "large=node1", "--place", "per_source=node2", "--place", "packets=node1"]
    city.run("deploy", str(city.diagram(name)), "--ha", approach, "--guarantee", "precise", "--misses", "5", *places)
    wait_for(lambda: is_protected(city, name), "protection")
    out = city.root / f"{name}.jsonl"
    tail = city.start("tail", f"{name}/per_source", "--from", "oldest", "--json", out=out)
    sent = city.root / f"{name}.log"
    sending = city.start("send", f"{name}/packets", str(file), "--rate", "3000", "--end", out=sent)
    wait_for(lambda: len(json_lines(out)) > 100, "some results")
    node = "node1" if victim == "entry" else unit(city, name, "u2")["node"]
    if victim == "jvm":
        kill_jvm(city, node)
    else:
        city.run("kill", node)
    assert sending.wait(180) == 0, sent.read_text()
    assert tail.wait(180) == 0
    assert seen(json_lines(out)) == expected(file)
    if victim != "entry":
        taken = wait_for(lambda: unit(city, name, "u2")["protection"]["last_takeover"], "a takeover in the status")
        assert (taken["incarnation"] >= 2, taken["primary"]) == (True, node)
        assert f"took over from {node}" in city.run("status")
    bring_back(city, node)
    city.run("undeploy", name)


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
