"""A node whose units run on a Spark cluster, as a user starts one; an executor is killed while rows come in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from city import City, expected, json_lines, packets, seen, wait_for

from standalone import Cluster, executors

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "spark").mkdir()
    one = Cluster(tmp_path / "spark")
    try:
        yield one
    finally:
        one.stop()


def test_units_on_a_spark_cluster_survive_their_executors(town: City, spark_cluster: Cluster) -> None:
    master = spark_cluster.start()
    at = ("--coordinator", town.record()["coordinator"], "--name", "far", "--master", master)
    town.start("node", *at, "--conf", "spark.executor.memory=512m", out=town.root / "far.log")
    wait_for(lambda: [n for n in town.status()["nodes"] if n["node"] == "far" and n["spark"] == "ready"], "the node")
    assert town.node("far")["master"] == master
    file = packets(town.root, 40_000, seed=9)
    town.run("deploy", str(town.diagram("remote")), "--place", "per_source=far")
    out = town.root / "remote.jsonl"
    tail = town.start("tail", "remote/per_source", "--from", "oldest", "--json", out=out)
    sending = town.start("send", "remote/packets", str(file), "--rate", "4000", "--end", out=town.root / "send.log")
    wait_for(lambda: json_lines(out), "first results")
    executors(spark_cluster.workers)[0].kill()
    assert sending.wait(120) == 0, (town.root / "send.log").read_text()
    assert tail.wait(120) == 0
    assert seen(json_lines(out)) == expected(file)
