"""A durable input whose node is killed: what its publisher was answered for is there, once, under the same ids."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from city import City, json_lines, packets, wait_for

pytestmark = pytest.mark.timeout(300)


def test_kill_9_of_the_entry_points_node_loses_and_repeats_nothing(city: City) -> None:
    file = packets(city.root, 20_000, seed=5)
    places = ("--place", "packets=node2", "--place", "per_source=node2")
    city.run("deploy", str(city.diagram("kept", ", durable: true")), *places)
    arguments = ("--publisher", "meter", "--rate", "5000", "--end")
    sending = city.start("send", "kept/packets", str(file), *arguments, out=city.root / "kept.log")
    wait_for(lambda: _tuples(city) > 5_000, "tuples at the entry point")
    city.kill("node2")
    city.bring_back("node2")
    assert sending.wait(120) == 0, (city.root / "kept.log").read_text()
    out = city.root / "packets.jsonl"
    tail = city.start("tail", "kept/packets", "--from", "oldest", "--headers", "--json", out=out)
    assert tail.wait(60) == 0
    rows = json_lines(out)
    assert [row["_id"] for row in rows] == list(range(20_000))
    assert [row["bytes"] for row in rows] == pq.read_table(file)["bytes"].to_pylist()
    assert "kept" in [d["diagram"] for d in city.status()["diagrams"]], "the diagram is still deployed"
    city.undeploy("kept")


def _tuples(city: City) -> int:
    streams = city.status()["streams"]
    return int(next((s.get("next_id", 0) for s in streams if s["stream"] == "kept/packets"), 0))
