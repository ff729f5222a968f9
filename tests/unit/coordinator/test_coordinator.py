"""The coordinator without HTTP: what it is asked, the loop that keeps what shall be, and the machine it stands on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stand_ins import Town, Yard, traffic

from borealis.coordinator.catalog import Catalog
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.coordinator import Coordinator
from borealis.coordinator.http_errors import BadRequestError, MissingError, TakenError, status_of
from borealis.coordinator.timings import ClusterTimings
from borealis.diagram.deployment import Deployment
from borealis.machine import Machine

OFTEN = ClusterTimings(look_s=0.01)
WAIT_S = 30.0


class Running:
    """A coordinator and its loop, on the wall's clock."""

    def __init__(self, path: Path, yard: Yard) -> None:
        self.yard, self.catalog = yard, Catalog(path)
        self.coordinator = Coordinator(Cluster(self.catalog, yard, OFTEN), "here")  # type: ignore[arg-type]
        self.beat()
        self.coordinator.start()

    def beat(self) -> None:
        for node in self.yard.nodes.values():
            self.coordinator.heartbeat(node.status().encode())

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline
            self.beat()
            time.sleep(0.01)

    def close(self) -> None:
        self.coordinator.close()
        self.catalog.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path / "catalog.sqlite", Yard(2))
    yield made
    made.close()


def test_it_knows_no_web() -> None:
    web = "('fastapi', 'starlette', 'uvicorn', 'anyio', 'asyncio', 'httpx')"
    modules = "borealis.coordinator.coordinator, borealis.coordinator.http_errors"
    check = f"import sys, {modules}; print([name for name in {web} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", check], text=True).strip() == "[]"


def test_what_can_be_asked(tmp_path: Path) -> None:
    town = Town(tmp_path / "catalog.sqlite", Yard(2))
    coordinator = Coordinator(town.cluster, "here")
    heard = {coordinator.heartbeat(node.status().encode()).coordinator for node in town.yard.nodes.values()}
    assert heard == {coordinator.health().incarnation}
    assert coordinator.deploy(Deployment(yaml=traffic())).units == {"u1": "node1"}
    town.beat()
    assert [one.diagram for one in coordinator.diagrams().diagrams] == ["traffic"]
    assert coordinator.diagram("traffic").yaml == traffic()
    assert coordinator.locate("per_source").stream == "traffic/agg"
    assert "traffic/agg" in [one.stream for one in coordinator.streams().streams]
    moved = coordinator.move("traffic/u1", "node2")
    assert (moved.diagram, moved.unit, moved.node) == ("traffic", "u1", "node2")
    town.beat()
    status = coordinator.status()
    assert (status.coordinator.address, status.coordinator.started) == ("here", town.clock.time() - 2)
    assert [(unit.unit, unit.node, unit.state) for unit in status.units] == [("u1", "node2", "running")]
    assert coordinator.undeploy("traffic").untold == []
    assert coordinator.stop_node("node1").node == "node1"
    assert [node.node for node in coordinator.nodes().nodes] == ["node2"]
    with pytest.raises(TakenError, match="alive"):
        coordinator.stop_node("node2", only_dead=True)
    for refused, status_code, ask in (
        (BadRequestError, 400, lambda: coordinator.heartbeat(b"nothing")),
        (MissingError, 404, lambda: coordinator.undeploy("traffic")),
    ):
        with pytest.raises(refused) as error:
            ask()
        assert status_of(error.value) == status_code


def test_its_loop_keeps_what_shall_be(running: Running) -> None:
    running.coordinator.deploy(Deployment(yaml=traffic(), place={"packets": "node1", "agg": "node2"}))
    running.yard["node2"].units.clear()
    running.until(lambda: ("traffic", "u1") in running.yard["node2"].units)
    assert running.coordinator.status().coordinator.looks > 0


def test_what_was_being_deployed_is_taken_back_at_the_start(running: Running) -> None:
    running.coordinator.deploy(Deployment(yaml=traffic()))
    running.catalog.set_state("traffic", "deploying")
    running.close()
    again = Running(running.catalog.path, running.yard)
    try:
        again.until(lambda: again.catalog.layouts() == [] and running.yard["node1"].units == {})
    finally:
        again.close()


def test_all_of_one_seed_is_the_same_twice(tmp_path: Path) -> None:
    """Names come from the machine alone."""

    class Counting:
        def __init__(self) -> None:
            self.drawn = 0

        def token(self, length: int = 16) -> str:
            self.drawn += 1
            return f"{self.drawn:0{length}x}"

    found = []
    for name in ("one", "two"):
        town = Town(tmp_path / f"{name}.sqlite", Yard(3))
        machine = Machine(town.clock, town.cluster.threads, chance=Counting())
        coordinator = Coordinator(Cluster(town.catalog, town.yard, machine=machine))  # type: ignore[arg-type]
        for node in town.yard.nodes.values():
            coordinator.heartbeat(node.status().encode())
        coordinator.deploy(Deployment(yaml=traffic(), units=3, ha="passive"))
        [layout] = town.catalog.layouts()
        assert len(layout.epoch) == 32
        found.append((coordinator.health().incarnation, layout, [node.orders for node in town.yard.nodes.values()]))
    assert found[0] == found[1]
