"""Moving a unit: it is on one node or on the other, and its readers know where."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import Town, traffic

from borealis.coordinator.deployment import deploy
from borealis.coordinator.http_errors import AbsentError, MissingError, TakenError
from borealis.coordinator.moving import move
from borealis.coordinator.reconcile import Reconciler
from borealis.diagram.deployment import Deployment
from borealis.errors import ClusterError, TrainError, WireError


@pytest.fixture
def town(tmp_path: Path) -> Town:
    made = Town(tmp_path / "catalog.sqlite")
    made.beat()
    deploy(made.cluster, Deployment(yaml=traffic(), place={"big": "node1", "slim": "node1", "agg": "node2"}))
    made.beat()
    return made


def where(town: Town, unit: str) -> list[str]:
    return [name for name, node in town.yard.nodes.items() if ("traffic", unit) in node.units]


def settle(town: Town) -> None:
    reconciler = Reconciler(town.cluster)
    for _ in range(6):
        town.beat()
        reconciler.step()
    assert reconciler.troubles() == []


def test_a_unit_by_its_full_name(town: Town) -> None:
    deploy(town.cluster, Deployment(yaml=traffic("other")))
    with pytest.raises(TakenError, match="several diagrams have a unit 'u1'") as several:
        move(town.cluster, "u1", "node3")
    assert several.value.hint == "say which: other/u1 or traffic/u1"
    move(town.cluster, "traffic/u1", "node2")
    assert where(town, "u1") == ["node2"]
    move(town.cluster, "u1", "node3", "traffic")
    assert where(town, "u1") == ["node3"]


def test_where_nothing_is_deployed_the_hint_says_how(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="no unit 'u1': no diagram is deployed") as refused:
        move(Town(tmp_path / "empty.sqlite").cluster, "u1", "node1")
    assert refused.value.hint == "deploy one first: borealis deploy DIAGRAM"


def test_refused_moves_change_nothing(town: Town) -> None:
    before = {name: list(node.orders) for name, node in town.yard.nodes.items()}
    with pytest.raises(MissingError, match=r"no unit 'u9' \(there are: traffic/u1, traffic/u2\)"):
        move(town.cluster, "u9", "node3")
    with pytest.raises(MissingError, match="no diagram 'nothing'"):
        move(town.cluster, "u1", "node3", "nothing")
    with pytest.raises(MissingError, match="no node 'node9'"):
        move(town.cluster, "u1", "node9")
    with pytest.raises(TakenError, match="runs on 'node1' already"):
        move(town.cluster, "u1", "node1")
    town.yard.down.add("node3")
    for _ in range(4):
        town.beat()
    with pytest.raises(AbsentError, match="node 'node3' has been silent"):
        move(town.cluster, "u1", "node3")
    assert {name: node.orders for name, node in town.yard.nodes.items()} == before
    assert town.cluster.layout("traffic").part("u1").moving_to is None  # type: ignore[union-attr]


def test_a_unit_on_a_dead_node_cannot_be_moved(town: Town) -> None:
    town.yard.down.add("node1")
    for _ in range(4):
        town.beat()
    with pytest.raises(AbsentError, match="node 'node1' has been silent"):
        move(town.cluster, "u1", "node3")


@pytest.mark.parametrize("error", [ClusterError("no room"), TrainError("a train failed"), WireError("broke off")])
def test_if_the_target_fails_the_source_goes_on(town: Town, error: ClusterError) -> None:
    town.yard["node3"].fail["start"] = error
    town.yard["node1"].states["traffic", "u1"] = "frozen"
    with pytest.raises(type(error), match=f"unit 'u1' stays on 'node1': {error.message}"):
        move(town.cluster, "u1", "node3")
    assert where(town, "u1") == ["node1"]
    assert town.yard["node1"].states["traffic", "u1"] == "running"
    assert town.cluster.layout("traffic").part("u1").moving_to is None  # type: ignore[union-attr]


def test_a_move_whose_answer_was_lost_has_happened(town: Town) -> None:
    town.yard["node3"].lose["start"] = WireError("did not answer in time")
    move(town.cluster, "u1", "node3")
    assert where(town, "u1") == ["node3"]
    assert town.cluster.layout("traffic").part("u1").node == "node3"  # type: ignore[union-attr]


def test_readers_that_cannot_be_told_are_told_later(town: Town) -> None:
    town.yard["node2"].fail["reroute"] = WireError("broke off")
    move(town.cluster, "u1", "node3")
    assert town.yard["node2"].routes["traffic/slim"] == town.yard["node1"].address
    town.yard["node2"].fail.clear()
    settle(town)
    assert town.yard["node2"].routes["traffic/slim"] == town.yard["node3"].address


# -- the coordinator dies in between


def test_while_the_target_is_starting_reconcile_does_not_interfere(town: Town) -> None:
    town.catalog.moving("traffic", "u1", "node3")
    town.yard["node1"].states["traffic", "u1"] = "frozen"
    order = town.yard["node1"].units["traffic", "u1"]
    town.yard["node3"].units["traffic", "u1"] = order
    town.yard["node3"].states["traffic", "u1"] = "starting"
    again = town.restart()
    settle(again)
    unit = again.cluster.layout("traffic").part("u1")
    assert unit is not None
    assert (unit.node, unit.moving_to) == ("node1", "node3")
    assert again.yard["node1"].states["traffic", "u1"] == "frozen"
