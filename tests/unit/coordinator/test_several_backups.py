"""Passive standbys with several backups: where these go, what nodes are ordered, and what becomes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stand_ins import Town, traffic
from test_copies import KEY, Copied, nodes

from borealis.coordinator.deployment import deploy, warnings
from borealis.coordinator.drift import Copies
from borealis.coordinator.http_errors import AbsentError
from borealis.coordinator.layout import UnitAssignment, entry_point, reader_names
from borealis.coordinator.placement import entry_backup, entry_protection, with_backups
from borealis.diagram.deployment import Deployment
from borealis.diagram.protection import Protection
from borealis.errors import DiagramError, WireError
from borealis.wire.messages import Claim, GuardStatus

TWO = Protection(ha="passive", backups=2)


def unit(**more: Any) -> UnitAssignment:
    return UnitAssignment("u1", ("a",), ("in",), ("a",), "node1", protection=TWO, **more)


def without(place: UnitAssignment, node: str, number: int, *, at: str = "node1", incarnation: int = 1) -> Claim:
    """That the primary goes on without a copy."""
    who: dict[str, Any] = {"diagram": "traffic", "unit": "u1", "node": at, "incarnation": incarnation}
    return Claim(what="without", copy_node=node, copy_number=number, **who)


@pytest.fixture
def town(tmp_path: Path) -> Copied:
    return Copied(tmp_path, ha="passive", replicas=None, backups=2)


def test_each_is_on_a_node_of_its_own_and_all_read_under_one_name() -> None:
    [placed] = with_backups([unit()], {}, nodes(4))
    assert placed.nodes == ("node1", "node2", "node3")
    assert dict(placed.numbers) == {"node1": 1, "node2": 2, "node3": 3}
    assert reader_names("d", placed) == ["d.u1"]


def test_an_input_has_as_many_as_what_reads_it(town: Copied) -> None:
    [reader] = with_backups([unit()], {}, nodes(4))
    kept = entry_protection("in", [reader])
    assert kept is not None
    assert (kept.ha, kept.backups) == ("passive", 2)
    assert entry_backup(entry_point("in", "node1", kept), [reader], nodes(4)).nodes == ("node1", "node2", "node3")
    assert entry_backup(entry_point("in", "node4", kept), [reader], nodes(4)).backup == "node2"
    assert entry_backup(entry_point("in", "node1", kept), [reader], nodes(1)).nodes == ("node1",)
    assert warnings(town.cluster.layout("traffic")) == []
    assert len(town.cluster.layout("traffic").entries[0].nodes) == 3


def test_all_is_quiet_while_all_is_well(town: Copied) -> None:
    assert town.roles() == {"node1": "primary", "node2": "backup", "node3": "copy"}
    before = {name: len(node.orders) for name, node in town.yard.nodes.items()}
    town.live(20)
    assert {name: len(node.orders) for name, node in town.yard.nodes.items()} == before


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        ({"backups": 2}, "a number of backups is asked for, but nothing is protected"),
        ({"ha": "active", "backups": 2}, "a number of backups makes no sense with 'active'"),
        ({"ha": "replicas", "backups": 2}, "a number of backups makes no sense with 'replicas' .say replicas: 3"),
        ({"ha": "storage", "backups": 2}, "a number of backups makes no sense with 'storage'"),
        ({"ha": "passive", "backups": 0}, "0 backups .give it 1 to 3"),
        ({"ha": "passive", "backups": 4}, "4 backups .give it 1 to 3"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, demand: dict[str, Any], says: str) -> None:
    town = Town(tmp_path / "catalog.sqlite")
    town.beat()
    with pytest.raises(DiagramError) as refused:
        deploy(town.cluster, Deployment(yaml=traffic(), **demand))
    assert says.partition(" .")[0] in str(refused.value)
    assert says.partition(" .")[2] in str(refused.value)


def test_more_than_there_are_nodes_are_refused_or_come_with_the_nodes(tmp_path: Path) -> None:
    how: dict[str, Any] = {"ha": "passive", "replicas": None, "backups": 2}
    with pytest.raises(
        AbsentError, match=r"shall have 2 backups, each on a node of its own, and 1 can be had \(2 nodes"
    ):
        Copied(tmp_path, 2, **how)
    town = Copied(tmp_path / "again", 2, without_backup="degrade", **how)
    town.live(5)
    assert town.unit.nodes == ("node1", "node2")
    town.yard.add("node9")
    town.live(5)
    assert town.unit.nodes == ("node1", "node2", "node9")
    assert "protect traffic.u1 as backup by node1 and node9" in town.yard["node2"].orders, "it may have to wait for it"
    assert town.yard["node1"].orders[-1] == "protect traffic.u1 by node2 and node9"


def test_a_primary_is_without_a_copy_once_the_coordinator_counts_on_it_no_more(town: Copied) -> None:
    place = town.unit
    town.die("node3")
    [(granted, now)] = town.catalog.claim([without(place, "node3", 3)])
    assert granted
    assert now is not None
    assert (now.nodes, dict(now.numbers)) == (("node1", "node2"), {"node1": 1, "node2": 2})
    town.beat(seconds=4)
    town.live(6)
    assert town.unit.nodes == ("node1", "node2", "node4")
    assert town.unit.numbers["node4"] == 4


def test_such_a_claim_is_granted_to_the_primary_alone_and_only_of_that_copy() -> None:
    place = unit(backup="node2", copies=("node3",)).numbered()
    assert place.after(without(place, "node3", 2)) == place, "it has another by now, or none"
    assert place.after(without(place, "node4", 3)) == place
    assert place.after(without(place, "node3", 3, at="node2")) is None
    assert place.after(without(place, "node3", 3, incarnation=2)) is None
    backed = place.alone().backed_by("node3", as_it_is=True)
    then = backed.after(without(backed, "node3", 3))
    assert then is not None
    assert then.nodes == ("node1",), "it was to be the backup, and is given up as that"


def test_a_copy_of_an_earlier_time_counts_for_nothing() -> None:
    place = unit(backup="node2", copies=("node3",)).numbered()
    for number, further, deposed in ((3, {"node3": "watching"}, set()), (2, {}, {"node3"})):
        facts: dict[str, Any] = {"approach": "passive", "guarantee": "precise", "state": "watching"}
        found = Copies()
        found.add(place, "node3", "standby", GuardStatus(role="copy", numbers={"node3": number}, **facts))
        assert (found.further, found.deposed) == (further, deposed)


def test_a_primary_that_knows_a_copy_by_another_number_is_told(town: Copied) -> None:
    guard = town.yard["node1"].guards[KEY]
    stale = guard.further.model_copy(update={"numbers": dict(guard.further.numbers) | {"node3": 9}})
    town.yard["node1"].guards[KEY] = guard.model_copy(update={"further": stale})
    town.live(4)
    assert town.yard["node1"].orders[-1] == "protect traffic.u1 by node2 and node3"


def test_a_copy_goes_on_where_primary_and_backup_die_at_once(town: Copied) -> None:
    for node in ("node1", "node2"):
        town.die(node)
    town.live(7)
    assert (town.unit.node, town.unit.incarnation, town.unit.lives) == ("node3", 3, 1)
    assert town.roles() == {"node3": "primary", "node4": "backup"}


def test_a_copy_becomes_the_backup_and_keeps_its_number(town: Copied) -> None:
    town.die("node1")
    town.taken_over("node2")
    town.live(5)
    assert town.unit.nodes == ("node2", "node3", "node4")
    assert (town.unit.numbers["node3"], town.unit.numbers["node4"]) == (3, 4)
    assert "protect traffic.u1 as backup by node2" in town.yard["node3"].orders


def test_one_that_could_not_be_told_is_told_again(town: Copied) -> None:
    """It is not begun again: it may be the only one that has all."""
    town.yard["node3"].fail["protect"] = WireError("broke off")
    town.die("node1")
    town.taken_over("node2")
    town.live(3)
    assert (town.unit.backup, town.roles()["node3"]) == ("node3", "copy")
    town.yard["node3"].fail.clear()
    town.live(8)
    assert town.unit.nodes == ("node2", "node3", "node4")
    assert town.unit.numbers["node3"] == 3
    assert "drop traffic.u1" not in town.yard["node3"].orders


def test_the_status_shows_each(town: Copied) -> None:
    kept = town.protection()
    assert (kept.state, kept.backup, kept.copies) == ("protected", "node2", 3)
    assert kept.replicas == {"node1": "stable", "node2": "stable", "node3": "stable"}
    town.die("node3")
    town.beat(seconds=4)
    assert town.protection().replicas["node3"] == "away"
