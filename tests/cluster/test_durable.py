"""A durable input whose node is killed: what its publisher was answered for is there, once, under the same ids."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest
from city import City, json_lines, packets, wait_for

pytestmark = pytest.mark.timeout(300)


def test_kill_9_of_the_entry_points_node_loses_and_repeats_nothing(town: City) -> None:
    file = packets(town.root, 30_000, seed=5)
    town.run("deploy", str(town.diagram("kept", ", durable: true")))
    record = town.record()
    arguments = ("--publisher", "meter", "--rate", "5000", "--end")
    sending = town.start("send", "kept/packets", str(file), *arguments, out=town.root / "send.log")
    wait_for(lambda: _tuples(town) > 5_000, "tuples at the entry point")
    town.kill("node1")
    at = ("--name", "node1", "--coordinator", record["coordinator"], "--data", f"{record['data']}/node1")
    town.start("node", *at, out=town.root / "node1.log")
    assert sending.wait(120) == 0, (town.root / "send.log").read_text()
    out = town.root / "packets.jsonl"
    tail = town.start("tail", "kept/packets", "--from", "oldest", "--headers", "--json", out=out)
    assert tail.wait(60) == 0
    rows = json_lines(out)
    assert [row["_id"] for row in rows] == list(range(30_000))
    assert [row["bytes"] for row in rows] == pq.read_table(file)["bytes"].to_pylist()
    assert json.loads(town.run("status", "--json"))["diagrams"], "the diagram is still deployed"


def _tuples(town: City) -> int:
    streams = town.status()["streams"]
    return int(next((s["next_id"] for s in streams if s["stream"].endswith("packets")), 0))
