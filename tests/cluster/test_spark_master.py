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


def test_units_on_a_spark_cluster_survive_their_executors(city: City, spark_cluster: Cluster) -> None:
    master = spark_cluster.start()
    at = ("--coordinator", city.record()["coordinator"], "--name", "far", "--master", master)
    far = city.start("node", *at, "--conf", "spark.executor.memory=512m", out=city.root / "far.log")
    wait_for(lambda: [n for n in city.status()["nodes"] if n["node"] == "far" and n["spark"] == "ready"], "the node")
    assert city.node("far")["master"] == master
    file = packets(city.root, 24_000, seed=9)
    city.run("deploy", str(city.diagram("remote")), "--place", "per_source=far")
    out = city.root / "remote.jsonl"
    tail = city.start("tail", "remote/per_source", "--from", "oldest", "--json", out=out)
    sending = city.start("send", "remote/packets", str(file), "--rate", "4000", "--end", out=city.root / "far-send.log")
    wait_for(lambda: json_lines(out), "first results")
    executors(spark_cluster.workers)[0].kill()
    assert sending.wait(120) == 0, (city.root / "far-send.log").read_text()
    assert tail.wait(120) == 0
    assert seen(json_lines(out)) == expected(file)
    city.undeploy("remote")
    far.terminate()
    wait_for(lambda: not city.node("far")["alive"], "the node is gone")
