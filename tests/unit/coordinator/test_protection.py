"""Deploying with protection: where backups go, what nodes are ordered, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stand_ins import Town, Yard, traffic, two_sides

from borealis.coordinator.deployment import deploy, undeploy, warnings
from borealis.coordinator.http_errors import AbsentError, MissingError
from borealis.coordinator.layout import Layout, UnitAssignment, entry_point
from borealis.coordinator.orders import unit_order
from borealis.coordinator.placement import Load, candidates, entry_backup, with_backups
from borealis.coordinator.status import status_view
from borealis.diagram.deployment import Deployment
from borealis.diagram.protection import Protection
from borealis.errors import BorealisError, ClusterError, DiagramError
from borealis.wire.status import CoordinatorView

PASSIVE, ACTIVE = Protection(ha="passive"), Protection(ha="active")


@pytest.fixture
def town(tmp_path: Path) -> Town:
    made = Town(tmp_path / "catalog.sqlite")
    made.beat()
    return made


def unit(name: str, node: str, shield: Protection | None = PASSIVE, reads: tuple[str, ...] = ("in",)) -> UnitAssignment:
    return UnitAssignment(name, (name,), reads, (name,), node, None, shield)


# -- where they go


def test_backups_are_elsewhere_and_spread() -> None:
    nodes = [Load("node1"), Load("node2"), Load("node3")]
    units = [unit("u1", "node1"), unit("u2", "node1"), unit("u3", "node2"), unit("u4", "node3", None)]
    placed = with_backups(units, {}, nodes)
    assert [u.backup for u in placed] == ["node2", "node3", "node3", None]
    assert [u.backup for u in with_backups(units, {"u1": "node3"}, nodes)] == ["node3", "node2", "node3", None]


def test_an_active_standby_weighs_as_much_as_a_primary() -> None:
    nodes = [Load("node1", 9), Load("node2", 1), Load("node3", 1.6), Load("node4", 9)]
    first = [unit("u1", "node1", ACTIVE), unit("u2", "node4")]
    assert [u.backup for u in with_backups(first, {}, nodes)] == ["node2", "node3"]
    second = [unit("u1", "node1"), unit("u2", "node4")]
    assert [u.backup for u in with_backups(second, {}, nodes)] == ["node2", "node2"]


def test_backups_of_one_node_are_spread_also_over_what_it_has_already() -> None:
    nodes = [Load("node1"), Load("node2"), Load("node3", 5)]
    units = [unit("u1", "node1"), unit("u2", "node1")]
    assert [u.backup for u in with_backups(units, {}, nodes)] == ["node2", "node3"], "although node3 has more to do"
    assert [u.backup for u in with_backups(units[:1], {}, nodes, {("node1", "node2"): 1})] == ["node3"]
    wanted = [u.backup for u in with_backups(units, {"u2": "node2"}, nodes)]
    assert wanted == ["node3", "node2"], "what is asked for comes first"


def test_no_backup_where_no_other_node_is_able() -> None:
    assert [u.backup for u in with_backups([unit("u1", "node1")], {}, [Load("node1")])] == [None]
    nodes = [Load("node1"), Load("node2", ready=False)]
    assert [u.backup for u in with_backups([unit("u1", "node1")], {}, nodes)] == [None]


def test_the_backup_of_an_entry_point_is_near_its_first_reader() -> None:
    nodes = [Load("node1"), Load("node2"), Load("node3", 5)]
    readers = [UnitAssignment("u1", ("a",), ("in",), ("a",), "node1", None, PASSIVE, "node3")]
    assert entry_backup(entry_point("in", "node1", PASSIVE), readers, nodes).backup == "node3"
    assert entry_backup(entry_point("in", "node3", PASSIVE), readers, nodes).backup == "node1"
    assert entry_backup(entry_point("other", "node1", PASSIVE), readers, nodes).backup == "node2"
    assert entry_backup(entry_point("in", "node1"), readers, nodes).backup is None
    assert entry_backup(entry_point("in", "node1", PASSIVE), readers, nodes[:1]).backup is None


def test_who_was_there_before_is_asked_first() -> None:
    nodes = [Load("node1"), Load("node2", 3), Load("node3"), Load("node4", 1), Load("node5", ready=False)]
    assert candidates(UnitAssignment("u1", (), (), (), "node1", was="node2"), nodes) == ["node2", "node3", "node4"]
    assert candidates(UnitAssignment("u1", (), (), (), "node3"), nodes) == ["node1", "node4", "node2"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"u9": "node2"}, "there is no unit 'u9'"),
        ({"u1": "node1"}, "its backup cannot be there, too"),
        ({"u2": "node1"}, "unit 'u2' is not protected"),
    ],
)
def test_a_backup_that_cannot_be_there_is_refused(wanted: dict[str, str], says: str) -> None:
    with pytest.raises(ClusterError, match=says):
        with_backups([unit("u1", "node1"), unit("u2", "node2", None)], wanted, [Load("node1"), Load("node2")])


# -- what is ordered


def test_state_behind_a_unit_that_repeats_is_warned_of(town: Town) -> None:
    """A join merges its inputs as they arrive; the windows behind it may count its pairs twice."""
    yaml = two_sides().replace(
        "outputs:",
        "  sums: {aggregate: {from: both, by: [], size: 1 second, exprs: {n: count(*)}}}\noutputs:\n  sums: sums",
    )
    asked = {"ha": "passive", "guarantee": "no-loss"}
    [warning] = warnings(deploy(town.cluster, Deployment(yaml=yaml, cut=("sums",), **asked)))
    assert "and 'sums' behind it counts them twice; with the guarantee 'precise'" in warning
    for other in (asked, {"cut": ("sums",), "ha": "passive"}, {"cut": ("sums",)}):
        wish = Deployment(yaml=yaml, replace=True, **other)
        assert warnings(deploy(town.cluster, wish)) == []


def test_both_sides_know_each_other_and_backups_come_first(town: Town) -> None:
    demand = {
        "ha": "passive",
        "guarantee": "precise",
        "interval": "250 ms",
        "ping": "50 ms",
        "misses": 4,
        "backup": {"u1": "node2"},
    }
    layout = deploy(town.cluster, Deployment(yaml=traffic(), place={"packets": "node1", "agg": "node1"}, **demand))
    assert [(u.node, u.backup, u.incarnation) for u in layout.units] == [("node1", "node2", 1)]
    assert [(e.node, e.backup) for e in layout.entries] == [("node1", "node2")]
    at = {name: node.address for name, node in town.yard.nodes.items()}
    primary, backup = (town.yard[n].units["traffic", "u1"] for n in ("node1", "node2"))
    assert primary.guard is not None
    assert backup.guard is not None
    assert (primary.guard.role, primary.guard.partner, primary.guard.partner_node) == ("primary", at["node2"], "node2")
    assert (backup.guard.role, backup.guard.partner, backup.guard.partner_node) == ("backup", at["node1"], "node1")
    assert (primary.guard.interval_s, primary.guard.protection.ping_us, primary.guard.protection.misses) == (
        0.25,
        50_000,
        4,
    )
    assert primary.epoch == backup.epoch == f"{layout.epoch}-1"
    assert primary.feeds == backup.feeds == {"traffic/packets": at["node1"]}
    assert primary.fallbacks == backup.fallbacks == {"traffic/packets": at["node2"]}
    assert primary.reader is None
    entry = town.yard["node2"].points["traffic", "in-packets"]
    assert entry.guard is not None
    assert (entry.guard.role, entry.guard.partner, entry.guard.approach) == ("backup", at["node1"], "passive")
    assert town.yard["node1"].orders[-2:] == ["start traffic.in-packets", "start traffic.u1"]
    assert town.yard["node2"].orders == ["start traffic.in-packets standby", "start traffic.u1 standby"]


def test_an_active_standby_reads_under_a_name_of_its_own(town: Town) -> None:
    places = {"big": "node1", "slim": "node1", "agg": "node2"}
    deploy(town.cluster, Deployment(yaml=traffic(), place=places, ha="active", backup={"u1": "node3", "u2": "node3"}))
    assert [town.yard[n].units["traffic", "u2"].reader for n in ("node2", "node3")] == ["traffic.u2.1", "traffic.u2.2"]
    both = ["traffic.u2.1", "traffic.u2.2"]
    assert [town.yard[n].units["traffic", "u1"].readers for n in ("node1", "node3")] == [
        {"slim": both, "u1.errors": []}
    ] * 2
    assert town.yard["node2"].units["traffic", "u2"].fallbacks == {"traffic/slim": town.yard["node3"].address}


def test_with_amnesia_entry_points_send_nothing(town: Town) -> None:
    layout = deploy(town.cluster, Deployment(yaml=traffic(), ha="amnesia"))
    assert [(u.protection.approach, u.protection.guarantee) for u in layout.units if u.protection] == [
        ("amnesia", "gap")
    ]
    guard = town.yard["node1"].guards["traffic", "in-packets"]
    assert (guard.approach, guard.guarantee) == ("amnesia", "gap")


def test_without_protection_all_is_as_it_was(town: Town) -> None:
    layout = deploy(town.cluster, Deployment(yaml=traffic()))
    order = town.yard["node1"].units["traffic", "u1"]
    assert (order.guard, order.epoch, order.reader, order.fallbacks) == (None, None, None, {})
    assert (layout.epoch, layout.units[0].backup, layout.entries[0].backup) == ("", None, None)


def test_the_file_says_it_and_the_command_line_wins(town: Town) -> None:
    yaml = traffic() + "protection: {ha: passive, interval: 100 ms, ping: 30 ms}\n"
    [written] = deploy(town.cluster, Deployment(yaml=yaml)).units
    assert written.protection == Protection(ha="passive", interval="100 ms", ping="30 ms")
    undeploy(town.cluster, "traffic")
    town.beat()
    [other] = deploy(town.cluster, Deployment(yaml=yaml, ha="upstream-backup", guarantee="no-loss")).units
    assert other.protection == Protection(ha="upstream-backup", guarantee="no-loss", ping="30 ms")
    undeploy(town.cluster, "traffic")
    town.beat()
    [none] = deploy(town.cluster, Deployment(yaml=yaml, ha="none")).units
    assert none.protection is None


def test_a_layout_with_protection_comes_back_as_it_was(town: Town) -> None:
    made = deploy(town.cluster, Deployment(yaml=two_sides(), cut=("both",), ha="active"))
    assert town.restart().catalog.layouts() == [made]


def test_undeploy_reaches_standbys(town: Town) -> None:
    deploy(town.cluster, Deployment(yaml=traffic(), ha="passive"))
    assert undeploy(town.cluster, "traffic") == set()
    assert all(not (n.units or n.entries or n.guards) for n in town.yard.nodes.values())


def test_the_nodes_are_told_how_several_streams_are_read(town: Town) -> None:
    deploy(town.cluster, Deployment(yaml=two_sides(), ha="active", merge="time", bucket="50 ms"))
    key = "sides", "u1"
    guards = [node.units[key].guard for node in town.yard.nodes.values() if key in node.units]
    assert [guard.protection.bucket_us for guard in guards if guard is not None] == [50_000, 50_000]
    me = CoordinatorView(version="1", incarnation="x", address="", pid=1, catalog="", started=0.0)
    view = status_view(town.cluster, me, [])
    assert [unit.protection.bucket_ms for unit in view.units if unit.protection] == [50.0]


# -- refused


@pytest.mark.parametrize(
    ("demand", "kind", "says"),
    [
        ({"ha": "amnesia", "guarantee": "precise"}, DiagramError, "amnesia"),
        ({"ha": "pasive"}, DiagramError, "no approach 'pasive'"),
        ({"ha": "passive", "guarantee": "exact"}, DiagramError, "no guarantee 'exact'"),
        ({"guarantee": "precise"}, DiagramError, "a guarantee is asked for, but nothing is protected"),
        ({"backup": {"u1": "node2"}}, DiagramError, "a backup is asked for, but nothing is protected"),
        ({"ha": "amnesia", "interval": "1 second"}, DiagramError, "an interval makes no sense with 'amnesia'"),
        ({"ha": "passive", "interval": "0 ms"}, DiagramError, "more than zero"),
        ({"ha": "passive", "without_backup": "never"}, DiagramError, "without_backup"),
        ({"ha": "passive", "backup": {"u7": "node2"}}, MissingError, "there is no unit 'u7'"),
    ],
)
def test_what_cannot_be_given_is_refused_before_anything_is_started(
    town: Town, demand: dict[str, Any], kind: type[BorealisError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        deploy(town.cluster, Deployment(yaml=traffic(), **demand))
    assert all(node.orders == [] for node in town.yard.nodes.values())
    assert town.catalog.layouts() == []


def test_no_second_node_is_refused_or_taken_as_the_user_says(tmp_path: Path) -> None:
    town = Town(tmp_path / "catalog.sqlite", Yard(1))
    town.beat()
    with pytest.raises(AbsentError, match=r"unit 'u1' shall have a backup \(passive\), and only one node is alive"):
        deploy(town.cluster, Deployment(yaml=traffic(), ha="passive"))
    assert town.yard["node1"].orders == []
    layout = deploy(town.cluster, Deployment(yaml=traffic(), ha="passive", without_backup="degrade"))
    assert (layout.units[0].backup, layout.entries[0].backup) == (None, None)
    guard = town.yard["node1"].units["traffic", "u1"].guard
    assert guard is not None
    assert (guard.partner, guard.role) == ("", "primary")


def test_the_epoch_changes_with_each_life() -> None:
    one = unit("u1", "node1", reads=())
    layout = Layout("traffic", "", "running", (one,), (), epoch="abc")
    units = (one, one.restarted("node2"), unit("u2", "node1", None, reads=()))
    assert [unit_order(layout, each, lambda _: None).epoch for each in units] == ["abc-1", "abc-2", None]
