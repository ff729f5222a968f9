"""A protected diagram as a user has it: a node is killed with `borealis kill`, and the tail goes on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from city import City, expected, json_lines, packets, seen, wait_for

pytestmark = pytest.mark.timeout(400)
ROWS = 18_000


def unit(city: City, diagram: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(u for u in city.status()["units"] if (u["diagram"], u["unit"]) == (diagram, name))
    return found


def is_protected(city: City, diagram: str) -> bool:
    units = [u for u in city.status()["units"] if u["diagram"] == diagram]
    return all(u["protection"]["state"] == "protected" for u in units)


def test_the_tail_goes_on_where_a_node_is_killed(city: City) -> None:
    """The node has a unit and the entry point."""
    file = packets(city.root, ROWS, seed=7)
    places = ["--place", "large=node1", "--place", "per_source=node2", "--place", "packets=node1"]
    how = ["--ha", "passive", "--guarantee", "precise", "--misses", "5"]
    city.run("deploy", str(city.diagram("guarded")), *how, *places)
    wait_for(lambda: is_protected(city, "guarded"), "protection")
    backup = unit(city, "guarded", "u1")["protection"]["backup"]
    pool = wait_for(lambda: (p := city.node(backup)["pool"])["ready"] and p, "a query that waits for what may come")
    assert pool["images"] >= 1
    out, sent = city.root / "guarded.jsonl", city.root / "guarded.log"
    tail = city.start("tail", "guarded/per_source", "--from", "oldest", "--json", out=out)
    sending = city.start("send", "guarded/packets", str(file), "--rate", "3000", "--end", out=sent)
    wait_for(lambda: len(json_lines(out)) > 100, "some results")
    assert "borealis restart node1" in city.run("kill", "node1")
    assert sending.wait(180) == 0, sent.read_text()
    assert tail.wait(180) == 0
    assert seen(json_lines(out)) == expected(file)
    taken = wait_for(lambda: unit(city, "guarded", "u1")["protection"]["last_takeover"], "a takeover in the status")
    assert (taken["incarnation"] >= 2, taken["primary"]) == (True, "node1")
    now = city.node(backup)["pool"]
    assert (now["given"] > pool["given"], now["missed"]) == (True, pool["missed"]), "it was not taken from the pool"
    wait_for(lambda: unit(city, "guarded", "u1")["rows_in"] == ROWS, "also those that the dead one had read count")
    assert "took over from node1" in city.run("status")
    healed = city.run("up", "--nodes", "3")
    assert re.match(r"started node1 in .*; running already: coordinator, node2, node3", healed), healed
    city.undeploy("guarded")


def test_primary_and_first_backup_are_killed_at_once(city: City) -> None:
    """With a second backup nothing is lost: the coordinator has it go on, as a unit and as an entry point."""
    file = packets(city.root, ROWS, seed=8)
    places = ["--place", "large=node1", "--place", "per_source=node1", "--place", "packets=node1"]
    how = ["--ha", "passive", "--backups", "2", "--guarantee", "precise", "--misses", "5"]
    how += ["--cut", "per_source", "--backup", "u1=node2", "--backup", "u2=node2"]
    city.run("deploy", str(city.diagram("twice")), *how, *places)

    def all_there() -> bool:
        kept = [u["protection"] for u in city.status()["units"] if u["diagram"] == "twice"]
        kept += [s["protection"] for s in city.status()["streams"] if s["stream"] == "twice/packets"]
        return all(k["state"] == "protected" and list(k["replicas"].values()) == ["stable"] * 3 for k in kept)

    wait_for(all_there, "three copies of everything")
    assert "node2, node3" in city.run("status")
    out, sent = city.root / "twice.jsonl", city.root / "twice.log"
    tail = city.start("tail", "twice/per_source", "--from", "oldest", "--json", out=out)
    sending = city.start("send", "twice/packets", str(file), "--rate", "2000", "--end", out=sent)
    wait_for(lambda: len(json_lines(out)) > 100, "some results")
    for node in ("node1", "node2"):
        city.kill(node)
    assert sending.wait(240) == 0, sent.read_text()
    assert tail.wait(240) == 0
    assert seen(json_lines(out)) == expected(file)
    kept = unit(city, "twice", "u1")
    assert (kept["node"], kept["protection"]["incarnation"] > 1) == ("node3", True)
    for node in ("node1", "node2"):
        city.bring_back(node)
    city.undeploy("twice")
