"""What is, against what shall be: mended when it was seen twice, and never by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import Town, traffic

from borealis.coordinator.deployment import deploy
from borealis.coordinator.reconcile import Reconciler
from borealis.diagram.deployment import Deployment
from borealis.errors import StateError


class Kept(Town):
    """A town with a reconciler."""

    def __init__(self, path: Path, yard: object = None) -> None:
        super().__init__(path, yard)  # type: ignore[arg-type]
        self.reconciler = Reconciler(self.cluster)

    def live(self, seconds: int, *names: str) -> None:
        for _ in range(seconds):
            self.beat(*names)
            self.reconciler.step()

    def orders(self) -> dict[str, list[str]]:
        return {name: [o for o in node.orders if o != "check"] for name, node in self.yard.nodes.items()}


@pytest.fixture
def town(tmp_path: Path) -> Kept:
    made = Kept(tmp_path / "catalog.sqlite")
    made.beat()
    deploy(made.cluster, Deployment(yaml=traffic(), place={"big": "node1", "slim": "node1", "agg": "node2"}))
    return made


def test_a_heartbeat_from_before_the_last_order_does_no_harm(town: Kept) -> None:
    before = town.orders()
    old = town.yard["node1"].status().model_copy(update={"units": [], "entries": []})
    town.clock.advance(1)
    town.cluster.heard(old)
    town.reconciler.step()
    town.reconciler.step()
    town.live(5)
    assert town.orders() == before


def test_a_node_whose_spark_is_starting_is_given_time(town: Kept) -> None:
    node = town.yard.add("node1", incarnation="2")
    node.spark = "starting"
    town.live(4, "node2", "node3")
    town.live(4)
    assert node.orders == []
    node.spark = "ready"
    town.live(2)
    assert node.orders == ["start traffic.in-packets", "start traffic.u1"]


def test_a_unit_that_is_on_two_nodes_is_dropped_where_it_shall_not_be(town: Kept) -> None:
    stray = town.yard["node3"]
    stray.units["traffic", "u1"] = town.yard["node1"].units["traffic", "u1"]
    stray.states["traffic", "u1"] = "running"
    town.live(3)
    assert stray.orders == ["drop traffic.u1"]
    assert ("traffic", "u1") in town.yard["node1"].units


def test_a_unit_that_the_diagram_does_not_have_is_dropped(town: Kept) -> None:
    stray = town.yard["node3"]
    stray.units["traffic", "u7"] = town.yard["node1"].units["traffic", "u1"]
    stray.states["traffic", "u7"] = "running"
    town.live(3)
    assert stray.orders == ["drop traffic.u7"]


def test_a_unit_that_is_only_elsewhere_is_not_started_a_second_time(town: Kept) -> None:
    """Its state is there; the catalog learns it."""
    node1, node3 = town.yard["node1"], town.yard["node3"]
    node3.units["traffic", "u1"] = node1.units.pop(("traffic", "u1"))
    node3.states["traffic", "u1"] = "running"
    town.live(3)
    assert ("traffic", "u1") not in node1.units
    assert town.cluster.layout("traffic").part("u1").node == "node3"  # type: ignore[union-attr]
    assert town.yard["node2"].routes["traffic/slim"] == node3.address


def test_a_unit_of_an_earlier_diagram_of_that_name_is_not_taken_for_this_one(town: Kept) -> None:
    """It came back with its node after the end of its diagram, while the node that shall have the unit has it not."""
    node1, node3 = town.yard["node1"], town.yard["node3"]
    node3.units["traffic", "u1"] = node1.units.pop(("traffic", "u1"))
    node3.states["traffic", "u1"] = "running"
    with town.catalog._writing() as db:
        db.execute("INSERT INTO owed VALUES ('node3', 'traffic')")
    town.live(4)
    assert node3.orders == ["undeploy traffic"]
    assert ("traffic", "u1") in node1.units
    assert town.cluster.layout("traffic").part("u1").node == "node1"  # type: ignore[union-attr]


def test_an_entry_point_that_is_on_two_nodes_is_dropped_where_it_shall_not_be(town: Kept) -> None:
    stray = town.yard["node3"]
    key = ("traffic", "in-packets")
    stray.points[key], stray.states[key] = town.yard["node1"].points[key], "running"
    town.live(3)
    assert stray.orders == ["drop traffic.in-packets"]


def test_what_no_catalog_knows_is_left_alone(town: Kept) -> None:
    stray = town.yard["node3"]
    stray.units["foreign", "u1"] = town.yard["node1"].units["traffic", "u1"]
    stray.states["foreign", "u1"] = "running"
    town.live(5)
    assert stray.orders == []


def test_what_cannot_be_mended_is_tried_less_and_less_often_and_told(town: Kept) -> None:
    node = town.yard.add("node1", incarnation="2")
    node.fail["start"] = StateError("the state is damaged", hint="delete it")
    town.live(4, "node2", "node3")
    town.live(60)
    tries = node.orders.count("start traffic.u1")
    assert 4 <= tries <= 8
    [trouble] = town.reconciler.troubles()
    assert trouble.model_dump() == {
        "diagram": "traffic",
        "node": "node1",
        "what": "unit traffic.u1 is not on node1",
        "why": "the state is damaged. Hint: delete it",
    }
    node.fail.clear()
    town.live(31)
    assert ("traffic", "u1") in node.units
    town.live(1)
    assert town.reconciler.troubles() == []


def test_while_someone_is_at_work_on_a_diagram_nothing_is_mended(town: Kept) -> None:
    town.yard["node1"].units.clear()
    with town.cluster.at_work("traffic", "changed"):
        town.live(5)
        assert town.orders()["node1"] == ["start traffic.in-packets", "start traffic.u1"]
    town.live(3)
    assert ("traffic", "u1") in town.yard["node1"].units
