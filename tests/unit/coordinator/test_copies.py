"""Units with more than two copies: where these go, what nodes are ordered, and what becomes of them when nodes die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stand_ins import Town, Yard, traffic

from borealis.coordinator.catalog import Catalog
from borealis.coordinator.deployment import deploy, warnings
from borealis.coordinator.http_errors import AbsentError, TakenError
from borealis.coordinator.layout import UnitAssignment, entry_point, reader_names
from borealis.coordinator.moving import move
from borealis.coordinator.naming import locate
from borealis.coordinator.placement import Load, candidates, entry_backup, refuse_lonely, with_backups
from borealis.coordinator.reconcile import Reconciler
from borealis.coordinator.status import status_view
from borealis.diagram.deployment import Deployment
from borealis.diagram.protection import Protection
from borealis.errors import DiagramError, WireError
from borealis.wire.messages import Claim
from borealis.wire.status import CoordinatorView, ProtectionView

KEY = ("traffic", "u1")
THREE = Protection(ha="replicas", replicas=3)


def unit(node: str = "node1", **more: Any) -> UnitAssignment:
    return UnitAssignment("u1", ("a",), ("in",), ("a",), node, protection=THREE, **more)


def nodes(count: int) -> list[Load]:
    return [Load(f"node{n}") for n in range(1, count + 1)]


class Copied(Town):
    """A unit on node1 with its backup on node2 and a copy on node3; its input is on node4."""

    def __init__(self, path: Path, count: int = 4, **how: Any) -> None:
        super().__init__(path / "catalog.sqlite", Yard(count))
        self.reconciler = Reconciler(self.cluster)
        self.beat()
        place = {"agg": "node1", "packets": f"node{min(count, 4)}"}
        wish = {"ha": "replicas", "replicas": 3, "backup": {"u1": "node2"}} | how
        deploy(self.cluster, Deployment(yaml=traffic(), place=place, **wish))
        self.beat()

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.beat()
            self.reconciler.step()

    @property
    def unit(self) -> UnitAssignment:
        return self.cluster.layout("traffic").units[0]

    def die(self, name: str) -> None:
        self.yard.down.add(name)

    def come_back(self, name: str) -> None:
        self.yard.add(name, incarnation=f"{self.yard[name].incarnation}+")
        self.yard.down.discard(name)

    def taken_over(self, node: str) -> None:
        """As when a backup claims the place of its primary and is granted it."""
        guard = self.yard[node].guards[KEY]
        claim = Claim(
            what="take over",
            diagram="traffic",
            unit="u1",
            node=node,
            incarnation=self.unit.incarnation + 1,
            standing=guard.standing,
        )
        assert self.catalog.claim([claim])[0][0]
        news = {"role": "primary", "partner": "", "partner_node": "", "incarnation": claim.incarnation}
        self.yard[node].guards[KEY] = guard.model_copy(update=news)
        self.yard[node].states[KEY] = "running"

    def roles(self) -> dict[str, str]:
        """What living nodes think they are."""
        living = {name: node for name, node in self.yard.nodes.items() if name not in self.yard.down}
        return {name: node.guards[KEY].role for name, node in living.items() if KEY in node.guards}

    def protection(self) -> ProtectionView:
        me = CoordinatorView(version="1", incarnation="x", address="", pid=1, catalog="", started=0.0)
        found = status_view(self.cluster, me, []).units[0].protection
        assert found is not None
        return found


@pytest.fixture
def town(tmp_path: Path) -> Copied:
    return Copied(tmp_path)


# -- where they go, and under which names they read


def test_each_copy_is_on_a_node_of_its_own() -> None:
    [placed] = with_backups([unit()], {}, nodes(4))
    assert placed.nodes == ("node1", "node2", "node3")
    assert with_backups([unit()], {"u1": "node4"}, nodes(4))[0].nodes == ("node1", "node4", "node2")
    assert with_backups([unit()], {}, nodes(2))[0].nodes == ("node1", "node2")
    two = UnitAssignment("u1", ("a",), ("in",), ("a",), "node1", protection=Protection(ha="replicas"))
    assert with_backups([two], {}, nodes(4))[0].nodes == ("node1", "node2")


def test_further_copies_weigh_as_much_as_units() -> None:
    units = [unit(), UnitAssignment("u2", ("b",), ("in",), ("b",), "node1", protection=Protection(ha="active"))]
    assert [one.nodes for one in with_backups(units, {}, nodes(4))] == [("node1", "node2", "node3"), ("node1", "node4")]


def test_too_few_nodes_are_refused_or_taken_as_the_user_says() -> None:
    [placed] = with_backups([unit()], {}, nodes(2))
    with pytest.raises(
        AbsentError, match=r"shall have 3 replicas, each on a node of its own, and 2 can be had \(2 nodes"
    ):
        refuse_lonely([placed], 2)
    degrade = Protection(ha="replicas", replicas=3, without_backup="degrade")
    refuse_lonely([UnitAssignment("u1", ("a",), (), (), "node1", protection=degrade, backup="node2")], 2)


def test_the_backup_of_an_input_is_apart_from_a_reader_with_three_copies() -> None:
    [reader] = with_backups([unit()], {}, nodes(4))
    passive = Protection(ha="passive")
    assert entry_backup(entry_point("in", "node1", passive), [reader], nodes(4)).backup == "node4"
    assert entry_backup(entry_point("in", "node4", passive), [reader], nodes(4)).backup == "node3"
    assert entry_backup(entry_point("in", "node1", passive), [reader], nodes(3)).backup == "node3"


def test_a_number_is_given_once() -> None:
    [one] = with_backups([unit()], {}, nodes(3))
    assert (dict(one.numbers), one.given) == ({"node1": 1, "node2": 2, "node3": 3}, 3)
    assert reader_names("d", one) == ["d.u1.c1", "d.u1.c2", "d.u1.c3"]
    lost = one.alone()
    assert dict(lost.numbers) == {"node1": 1, "node3": 3}
    promoted = lost.backed_by("node3", as_it_is=True)
    assert (promoted.nodes, dict(promoted.numbers)) == (("node1", "node3"), {"node1": 1, "node3": 3})
    again = promoted.with_copies(["node2"])
    assert (dict(again.numbers), again.given) == ({"node1": 1, "node3": 3, "node2": 4}, 4)
    over = again.taken_over("node3", 2)
    assert (over.nodes, dict(over.numbers)) == (("node3", "node2"), {"node3": 3, "node2": 4})
    assert dict(over.arrived("node9").numbers) == {"node9": 3, "node2": 4}
    nothing = over.restarted("node5")
    assert (nothing.nodes, dict(nothing.numbers), nothing.lives) == (("node5",), {"node5": 5}, 2)


def test_a_copy_is_asked_before_any_other_node() -> None:
    place = unit(backup="node4", was="node5", copies=("node3",))
    assert candidates(place, nodes(6)) == ["node3", "node4", "node5", "node2", "node6"]


# -- what is ordered


def test_copies_are_ordered_before_the_primary_and_known_to_it(town: Copied) -> None:
    assert town.unit.nodes == ("node1", "node2", "node3")
    assert town.roles() == {"node1": "primary", "node2": "backup", "node3": "copy"}
    assert town.yard["node3"].orders[-1] == "start traffic.u1 copy"
    first, copy = (town.yard[node].units[KEY] for node in ("node1", "node3"))
    assert first.guard is not None
    assert first.guard.further.nodes == {"node3": town.yard["node3"].address}
    assert (list(first.guard.further.numbers.values()), first.guard.further.given) == ([1, 2, 3], 3)
    assert [order.reader for order in (first, copy)] == ["traffic.u1.c1", "traffic.u1.c3"]
    readers = ["traffic.u1.c1", "traffic.u1.c2", "traffic.u1.c3"]
    assert town.yard["node4"].points["traffic", "in-packets"].readers["packets"] == readers
    assert town.catalog.layouts()[0].nodes() == {"node1", "node2", "node3", "node4"}


def test_readers_know_all_copies(town: Copied) -> None:
    at = {name: node.address for name, node in town.yard.nodes.items()}
    found = locate(town.cluster, "traffic/agg")
    assert (found.address, found.fallback, found.copies) == (at["node1"], at["node2"], (at["node3"],))
    assert found.serving == [at["node1"], at["node2"], at["node3"]]
    for node in ("node1", "node2"):
        town.die(node)
    town.beat(seconds=4)
    found = locate(town.cluster, "traffic/agg")
    assert (found.node, found.fallback, found.copies) == ("node3", None, ())


def test_a_unit_that_reads_copies_is_told_all_addresses(tmp_path: Path) -> None:
    town = Town(tmp_path / "catalog.sqlite", Yard(4))
    town.beat()
    place = {"big": "node1", "slim": "node1", "agg": "node4"}
    deploy(town.cluster, Deployment(yaml=traffic(), place=place, ha="replicas", replicas=3, backup={"u1": "node2"}))
    order = town.yard["node4"].units["traffic", "u2"]
    copies = town.cluster.layout("traffic").units[0].copies
    assert order.copies == {"traffic/slim": [town.yard[node].address for node in copies]}
    assert order.replicated == ["traffic/slim"]


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        ({"replicas": 3}, "a number of replicas is asked for, but nothing is protected"),
        ({"ha": "passive", "replicas": 3}, "replicas make no sense with 'passive'"),
        ({"ha": "replicas", "replicas": 1}, "two are the least"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, demand: dict[str, Any], says: str) -> None:
    town = Town(tmp_path / "catalog.sqlite")
    town.beat()
    with pytest.raises(DiagramError, match=says):
        deploy(town.cluster, Deployment(yaml=traffic(), **demand))


def test_more_copies_than_nodes_are_refused_or_come_with_the_nodes(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="shall have 3 replicas"):
        Copied(tmp_path, 2)
    town = Copied(tmp_path / "again", 2, without_backup="degrade")
    assert town.unit.nodes == ("node1", "node2")
    town.live(5)
    assert town.protection().state == "protected"
    town.yard.add("node9")
    town.live(5)
    assert town.unit.nodes == ("node1", "node2", "node9")
    assert town.yard["node9"].orders == ["start traffic.u1 copy"]
    assert town.yard["node1"].orders[-1] == "protect traffic.u1 by node2 and node9"


def test_what_the_catalog_knows_of_copies_outlives_the_coordinator(town: Copied) -> None:
    before = town.unit
    town.catalog.close()
    again = Catalog(town.catalog.path)
    assert again.layouts()[0].units[0] == before
    again.close()


def test_a_unit_does_not_move_to_where_its_copy_is(town: Copied) -> None:
    with pytest.raises(TakenError, match="a copy of unit 'u1' is on 'node3'"):
        move(town.cluster, "u1", "node3")


# -- when nodes die


def test_all_is_quiet_while_all_is_well(town: Copied) -> None:
    before = {name: len(node.orders) for name, node in town.yard.nodes.items()}
    town.live(20)
    assert {name: len(node.orders) for name, node in town.yard.nodes.items()} == before


def test_a_copy_becomes_the_backup_of_one_that_took_over_and_another_is_started(town: Copied) -> None:
    town.die("node1")
    town.taken_over("node2")
    town.live(5)
    assert town.unit.nodes == ("node2", "node3", "node4")
    assert town.roles() == {"node2": "primary", "node3": "backup", "node4": "copy"}
    assert town.yard["node3"].orders[-1] == "protect traffic.u1 as backup by node2", "it is not started again"
    guard = town.yard["node3"].guards[KEY]
    assert (guard.standing, guard.incarnation) == (town.unit.standing, 2)
    assert town.yard["node2"].orders[-1] == "protect traffic.u1 by node3 and node4"
    town.come_back("node1")
    town.live(5)
    assert KEY not in town.yard["node1"].units


def test_a_copy_becomes_the_backup_where_that_is_gone(town: Copied) -> None:
    town.die("node2")
    town.live(5)
    assert town.unit.backup == "node2", "its primary has not given it up"
    town.live(20)
    assert town.roles() == {"node1": "primary", "node3": "backup", "node4": "copy"}


def test_a_copy_that_dies_is_replaced(town: Copied) -> None:
    town.die("node3")
    town.live(5)
    assert town.unit.copies == ("node3",), "it may be back in a moment"
    town.live(20)
    assert town.unit.nodes == ("node1", "node2", "node4")
    assert town.yard["node1"].orders[-1] == "protect traffic.u1 by node2 and node4"
    assert dict(town.unit.numbers) == {"node1": 1, "node2": 2, "node4": 4}


def test_a_copy_whose_node_comes_back_empty_is_started_there_as_another(town: Copied) -> None:
    town.die("node4")
    town.die("node3")
    town.live(2)
    town.come_back("node3")
    town.live(5)
    assert (town.unit.copies, town.unit.numbers["node3"]) == (("node3",), 4)
    assert town.yard["node3"].orders == ["start traffic.u1 copy"]
    order = town.yard["node3"].units[KEY]
    assert order.reader == "traffic.u1.c4", "upstream keeps nothing for it under its old name"


def test_a_copy_that_cannot_be_replaced_is_given_up_since_upstream_keeps_for_it(town: Copied) -> None:
    town.die("node4")
    town.die("node3")
    town.live(25)
    assert town.unit.nodes == ("node1", "node2")
    assert "protect traffic.u1 by node2" in town.yard["node1"].orders
    town.come_back("node3")
    town.live(5)
    assert town.unit.nodes == ("node1", "node2", "node3")


def test_a_copy_goes_on_where_primary_and_backup_die_at_once(town: Copied) -> None:
    town.die("node1")
    town.die("node2")
    town.live(10)
    assert town.unit.node == "node1", "it may only be paused"
    town.live(15)
    assert (town.unit.node, town.unit.incarnation, town.unit.lives) == ("node3", 3, 1)
    assert town.roles() == {"node3": "primary", "node4": "backup"}
    assert town.yard["node3"].guards[KEY].incarnation == 3
    town.come_back("node1")
    town.live(5)
    assert town.unit.nodes == ("node3", "node4", "node1")


def test_a_copy_goes_on_at_once_where_both_nodes_are_back_with_nothing(town: Copied) -> None:
    for node in ("node1", "node2"):
        town.come_back(node)
    town.live(6)
    assert town.unit.node == "node3"
    assert town.unit.lives == 1


def test_a_copy_that_did_not_hear_that_it_is_the_primary_hears_it_again(town: Copied) -> None:
    for node in ("node1", "node2"):
        town.come_back(node)
    town.yard["node3"].fail["protect"] = WireError("broke off")
    town.live(4)
    assert (town.unit.node, town.yard["node3"].guards[KEY].role) == ("node3", "copy")
    town.yard["node3"].fail.clear()
    town.live(10)
    assert town.yard["node3"].guards[KEY].role == "primary"
    assert town.unit.incarnation == 3


def test_only_when_all_copies_are_lost_it_begins_from_nothing(town: Copied) -> None:
    for node in ("node1", "node2", "node3"):
        town.come_back(node)
    town.live(6)
    assert town.unit.lives == 2
    assert town.unit.node == "node1"
    assert sorted(town.roles().values()) == ["backup", "copy", "primary"]


def test_nothing_begins_from_nothing_while_a_copy_may_come_back(town: Copied) -> None:
    town.die("node3")
    for node in ("node1", "node2"):
        town.come_back(node)
    town.live(8)
    assert town.unit.lives == 1
    town.yard.down.discard("node3")
    town.live(4)
    assert (town.unit.node, town.unit.lives) == ("node3", 1)


def test_a_primary_that_does_not_know_its_copies_is_told(town: Copied) -> None:
    guard = town.yard["node1"].guards[KEY]
    town.yard["node1"].guards[KEY] = guard.model_copy(update={"further": type(guard.further)()})
    town.live(4)
    assert town.yard["node1"].orders[-1] == "protect traffic.u1 by node2 and node3"


def test_a_copy_that_the_catalog_does_not_have_is_dropped(town: Copied) -> None:
    order = town.yard["node3"].units[KEY]
    town.yard["node4"].act("start", order.encode())
    town.live(4)
    assert KEY not in town.yard["node4"].units


def test_a_copy_of_an_earlier_life_that_stands_still_is_dropped(town: Copied) -> None:
    """Its readers would wait there for what never comes."""
    order = town.yard["node3"].units[KEY]
    town.yard["node4"].act("start", order.encode())
    town.yard["node4"].states[KEY] = "failed"
    town.live(4)
    assert KEY not in town.yard["node4"].units


# -- the status


def test_the_status_shows_how_each_copy_is(town: Copied) -> None:
    kept = town.protection()
    assert (kept.state, kept.backup, kept.copies) == ("protected", "node2", 3)
    assert list(kept.replicas.items()) == [("node1", "stable"), ("node2", "stable"), ("node3", "stable")]
    town.die("node3")
    town.beat(seconds=4)
    assert town.protection().replicas["node3"] == "away"
    town.live(20)
    assert town.protection().replicas == {"node1": "stable", "node2": "stable", "node4": "stable"}
    assert town.protection().state == "protected"


def test_one_whose_primary_and_backup_died_is_being_taken_over_while_a_copy_lives(town: Copied) -> None:
    for node in ("node1", "node2"):
        town.die(node)
    town.beat(seconds=4)
    assert town.protection().state == "taking over"
    town.die("node3")
    town.beat(seconds=4)
    assert town.protection().state == "lost"


def test_who_deploys_hears_that_an_input_has_fewer_copies(tmp_path: Path) -> None:
    town = Copied(tmp_path)
    [warning] = warnings(town.cluster.layout("traffic"))
    assert warning.startswith("input 'packets' has 2 copies (node4, node3), and what reads it has 3: ")
    two = Copied(tmp_path / "two", replicas=2)
    assert warnings(two.cluster.layout("traffic")) == []
