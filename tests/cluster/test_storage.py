"""A cluster in storage: every process of it is killed at once, and what comes up again goes on where it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from city import City, expected, json_lines, packets, seen, wait_for

pytestmark = pytest.mark.timeout(400)
ROWS = 30_000


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    one = City(tmp_path_factory.mktemp("town"))
    one.up(2, storage=one.root / "kept")
    try:
        yield one
    finally:
        one.down()


def test_kill_9_of_everything_at_once(town: City) -> None:
    file, out = packets(town.root, ROWS, seed=7), town.root / "stored.jsonl"
    town.run("deploy", str(town.diagram("stored")), "--cut", "per_source")
    arguments = ("--publisher", "meter", "--rate", "2000", "--end")
    sending = town.start("send", "stored/packets", str(file), *arguments, out=town.root / "stored.log")
    tail = town.start("tail", "stored/per_source", "--from", "oldest", "--headers", "--json", out=out)
    wait_for(lambda: len(json_lines(out)) > 100, "results")
    for part in town.record()["parts"]:
        town.kill(part["name"])
    town.run("up", "--config", str(town.root / "cluster.yaml"), "--json")
    assert sending.wait(200) == 0, (town.root / "stored.log").read_text()
    assert tail.wait(100) == 0
    rows = json_lines(out)
    assert [row["_id"] for row in rows] == list(range(len(rows))), "no id is missing, and none comes twice"
    assert seen(rows) == expected(file)
    units = [unit for unit in town.status()["units"] if unit["diagram"] == "stored"]
    assert [unit["protection"]["incarnation"] for unit in units] == [3, 3], "each was restored once"


def test_a_node_that_dies_for_good_is_not_needed(town: City) -> None:
    file, out = packets(town.root, ROWS, seed=8), town.root / "alone.jsonl"
    places = ("--place", "packets=node2", "--place", "per_source=node2")
    town.run("deploy", str(town.diagram("alone")), *places)
    arguments = ("--publisher", "meter", "--rate", "2000", "--end")
    sending = town.start("send", "alone/packets", str(file), *arguments, out=town.root / "alone.log")
    tail = town.start("tail", "alone/per_source", "--from", "oldest", "--headers", "--json", out=out)
    wait_for(lambda: len(json_lines(out)) > 100, "results")
    town.kill("node2")
    assert sending.wait(200) == 0, (town.root / "alone.log").read_text()
    assert tail.wait(100) == 0
    rows = json_lines(out)
    assert [row["_id"] for row in rows] == list(range(len(rows)))
    assert seen(rows) == expected(file)
    wait_for(lambda: {unit["node"] for unit in town.status()["units"]} == {"node1"}, "all on the node that lives")
