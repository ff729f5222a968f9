"""Protected units and entry points over time: takeovers are believed, the deposed go, the lonely get a backup again."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import Town, Yard, traffic

from borealis.coordinator.deployment import deploy
from borealis.coordinator.http_errors import TakenError
from borealis.coordinator.layout import UnitAssignment
from borealis.coordinator.moving import move
from borealis.coordinator.protecting import claim
from borealis.coordinator.reconcile import Reconciler
from borealis.coordinator.status import status_view
from borealis.diagram.deployment import Deployment
from borealis.errors import WireError
from borealis.wire.messages import Claim, Takeover
from borealis.wire.status import ClusterStatus, CoordinatorView

KEY = ("traffic", "u1")
STREAM = "traffic/packets"
ENTRY_KEY = ("traffic", "in-packets")


class Guarded(Town):
    """One protected unit on node1 with its backup on node2, and a reconciler."""

    def __init__(self, path: Path, yard: Yard | None = None) -> None:
        super().__init__(path, yard)
        self.reconciler = Reconciler(self.cluster)

    def live(self, seconds: int) -> None:
        for _ in range(seconds):
            self.beat()
            self.reconciler.step()

    def restart(self) -> Guarded:
        self.catalog.close()
        return Guarded(self.catalog.path, self.yard)

    @property
    def unit(self) -> UnitAssignment:
        return self.cluster.layout("traffic").units[0]

    @property
    def entry(self) -> UnitAssignment:
        return self.cluster.layout("traffic").entries[0]

    def die(self, name: str) -> None:
        self.yard.down.add(name)

    def come_back(self, name: str) -> None:
        """As a new process with nothing on it."""
        self.yard.add(name, incarnation=f"{self.yard[name].incarnation}+")
        self.yard.down.discard(name)

    def fail_over(self) -> None:
        """node1 dies, and node2 takes over what it stood by for."""
        self.die("node1")
        node = self.yard["node2"]
        assert all(c.granted for c in claim(self.cluster, [node.take_over(*KEY), node.take_over(*ENTRY_KEY)]))


def made(path: Path, nodes: int = 3, approach: str = "passive") -> Guarded:
    town = Guarded(path / "catalog.sqlite", Yard(nodes))
    town.beat()
    demand = {"ha": approach, "backup": {"u1": "node2"}}
    deploy(town.cluster, Deployment(yaml=traffic(), place={"packets": "node1", "agg": "node1"}, **demand))
    town.beat()
    return town


@pytest.fixture
def town(tmp_path: Path) -> Guarded:
    return made(tmp_path)


def since(town: Guarded, orders: dict[str, int]) -> dict[str, list[str]]:
    """What each node was ordered since then."""
    return {name: node.orders[orders.get(name, 0) :] for name, node in town.yard.nodes.items()}


def counts(town: Guarded) -> dict[str, int]:
    return {name: len(node.orders) for name, node in town.yard.nodes.items()}


def test_standbys_and_peers_where_they_shall_be_are_left_alone(town: Guarded) -> None:
    before = counts(town)
    town.live(30)
    assert since(town, before) == {"node1": [], "node2": [], "node3": []}
    again = town.restart()
    again.live(30)
    assert since(again, before) == {"node1": [], "node2": [], "node3": []}


def test_after_a_takeover_another_node_protects_it(town: Guarded) -> None:
    town.fail_over()
    town.live(3)
    assert (town.unit.node, town.unit.backup, town.unit.incarnation) == ("node2", "node3", 2)
    assert (town.entry.node, town.entry.backup, town.entry.incarnation) == ("node2", "node3", 2)
    node = town.yard["node3"]
    assert node.states[KEY] == "standby"
    assert (node.guards[KEY].partner_node, node.guards[KEY].incarnation) == ("node2", 2)
    assert node.units[KEY].epoch == town.yard["node2"].units[KEY].epoch, "the streams go on"
    assert town.yard["node2"].partners == {"traffic.u1": "node3", "traffic.in-packets": "node3"}
    assert node.states[ENTRY_KEY] == "standby"


def test_an_active_standby_reads_under_the_name_of_the_next_incarnation(tmp_path: Path) -> None:
    town = made(tmp_path, approach="active")
    assert town.yard["node2"].units[KEY].reader == "traffic.u1.2"
    town.fail_over()
    town.live(3)
    assert town.yard["node3"].units[KEY].reader == "traffic.u1.3"


def test_with_two_nodes_the_dead_one_is_the_backup_when_it_is_back(tmp_path: Path) -> None:
    town = made(tmp_path, nodes=2)
    town.fail_over()
    town.live(60)
    assert town.unit.backup is None
    assert town.reconciler.troubles() == [], "there is no node for it: that is shown elsewhere"
    town.come_back("node1")
    town.live(3)
    assert (town.unit.node, town.unit.backup) == ("node2", "node1")
    assert town.yard["node1"].orders[:2] != []
    assert town.yard["node1"].states[KEY] == "standby"
    assert town.yard["node2"].partners["traffic.u1"] == "node1"


def test_a_node_that_seems_alive_and_does_not_answer_is_passed_over(town: Guarded) -> None:
    town.fail_over()
    town.beat("node1")  # its last heartbeat came late
    town.live(3)
    assert town.unit.backup == "node3"


def test_a_takeover_that_no_coordinator_saw_is_believed(town: Guarded) -> None:
    again = town.restart()
    again.die("node1")
    again.yard["node2"].take_over(*KEY)
    again.yard["node2"].take_over(*ENTRY_KEY)
    again.live(4)
    assert (again.unit.node, again.unit.incarnation) == ("node2", 2)
    assert (again.entry.node, again.entry.incarnation) == ("node2", 2)
    again.live(3)
    assert (again.unit.backup, again.entry.backup) == ("node3", "node3")


def test_a_deposed_primary_is_dropped_and_then_stands_by(tmp_path: Path) -> None:
    """node1 was only paused; with two nodes it is the only one that can be the backup."""
    town = made(tmp_path, nodes=2)
    old = town.yard["node1"]
    town.fail_over()
    town.live(5)
    town.yard.down.discard("node1")
    town.live(6)
    assert "drop traffic.u1" in old.orders
    assert "drop traffic.in-packets" in old.orders
    assert old.states[KEY] == "standby"
    assert old.guards[KEY].incarnation == 2
    assert (town.unit.node, town.unit.backup) == ("node2", "node1")
    assert old.states[ENTRY_KEY] == "standby"
    assert STREAM not in old.entries


def test_a_dead_backup_is_replaced(town: Guarded) -> None:
    town.die("node2")
    town.live(2)
    assert town.unit.backup == "node2", "it may only be slow"
    town.live(5)
    assert (town.unit.node, town.unit.backup, town.unit.incarnation) == ("node1", "node3", 1)
    assert town.yard["node1"].partners["traffic.u1"] == "node3"
    town.come_back("node2")
    town.live(5)
    assert town.unit.backup == "node3"


def test_a_backup_that_restarted_without_its_standby_gets_it_again(town: Guarded) -> None:
    town.come_back("node2")
    for _ in range(4):  # its heartbeats under the new incarnation are taken when the old one is dead
        town.beat("node1", "node3")
    town.live(4)
    assert town.unit.backup in ("node2", "node3")
    assert town.yard[town.unit.backup].states[KEY] == "standby"


def test_a_primary_that_went_on_alone_is_protected_again(town: Guarded) -> None:
    wanted = Claim(what="alone", diagram="traffic", unit="u1", node="node1", incarnation=1)
    assert claim(town.cluster, [wanted])[0].granted
    assert town.unit.backup is None
    town.live(3)
    assert town.unit.backup == "node2"
    assert town.yard["node1"].partners["traffic.u1"] == "node2"


def test_a_primary_that_went_on_alone_unseen_is_told_its_backup_again(town: Guarded) -> None:
    town.yard["node1"].lonely.add(KEY)
    town.live(3)
    assert town.unit.backup == "node2"
    assert town.yard["node1"].orders[-1] == "protect traffic.u1 by node2"


def test_a_standby_that_is_not_the_registered_one_is_dropped(town: Guarded) -> None:
    node3 = town.yard["node3"]
    node3.act("start", town.yard["node2"].units[KEY].encode())
    town.live(3)
    assert KEY not in node3.units
    assert town.unit.backup == "node2"


def test_a_primary_without_an_answer_waits_for_its_backup(town: Guarded) -> None:
    """Nothing is started from nothing while a node has the state."""
    town.die("node1")
    before = counts(town)
    town.live(60)
    assert since(town, before)["node2"] == since(town, before)["node3"] == []
    town.come_back("node1")
    town.live(5)
    assert town.yard["node1"].orders == [], "its backup takes over, whatever comes back there"


def test_when_both_are_gone_for_good_it_begins_from_nothing_under_a_new_epoch(town: Guarded) -> None:
    epoch = town.yard["node1"].units[KEY].epoch
    town.die("node1")
    town.die("node2")
    town.live(10)
    assert town.yard["node3"].units == {}, "they may only be paused"
    town.live(10)
    assert (town.unit.node, town.unit.incarnation, town.unit.lives) == ("node3", 2, 2)
    order = town.yard["node3"].units[KEY]
    assert order.epoch == f"{town.cluster.layout('traffic').epoch}-2" != epoch
    assert order.guard is not None
    assert (order.guard.role, order.guard.incarnation) == ("primary", 2)
    town.yard.down.clear()  # both were only paused after all
    town.live(6)
    assert [
        name for name, node in town.yard.nodes.items() if node.states.get(KEY) == "running" and KEY in node.units
    ] == ["node3"]
    assert town.unit.backup in ("node1", "node2")


def test_when_both_came_back_with_nothing_it_begins_at_once(town: Guarded) -> None:
    town.die("node1")
    town.die("node2")
    town.live(4)
    town.come_back("node1")
    town.come_back("node2")
    town.live(3)
    assert (town.unit.node, town.unit.lives) == ("node1", 2)
    assert (town.entry.node, town.entry.lives) == ("node1", 2)
    town.live(3)
    assert town.unit.backup is not None
    assert town.entry.backup is not None


def test_after_a_restart_of_the_coordinator_nodes_have_time_to_come(town: Guarded) -> None:
    town.die("node1")
    town.die("node2")
    again = town.restart()
    again.live(12)
    assert again.yard["node3"].units == {}
    again.live(12)
    assert again.unit.node == "node3"


def test_a_backup_that_cannot_be_started_is_tried_again_and_told(town: Guarded) -> None:
    town.fail_over()
    town.yard["node3"].fail["start"] = WireError("broke off")
    town.live(5)
    assert [trouble.what for trouble in town.reconciler.troubles()] == [
        "unit traffic.u1 on node2 is without its backup"
    ]
    town.yard["node3"].fail.clear()
    town.live(40)
    assert town.reconciler.troubles() == []
    assert town.yard["node3"].states[KEY] == "standby"


# -- moving


def test_a_protected_unit_moves_and_is_protected_again(town: Guarded) -> None:
    with pytest.raises(TakenError, match="the backup of unit 'u1' is on 'node2'"):
        move(town.cluster, "u1", "node2")
    move(town.cluster, "u1", "node3")
    assert (town.unit.node, town.unit.backup, town.unit.incarnation) == ("node3", "node2", 1)
    assert town.yard["node2"].orders[-2:] == ["drop traffic.u1", "start traffic.u1 standby"]
    assert town.yard["node2"].guards[KEY].partner_node == "node3"
    assert town.yard["node3"].partners["traffic.u1"] == "node2"
    before = counts(town)
    town.live(6)
    assert since(town, before) == {"node1": [], "node2": [], "node3": []}


# -- the status


def seen(town: Guarded) -> ClusterStatus:
    me = CoordinatorView(version="1", incarnation="x", address="", pid=1, catalog="", started=0.0)
    return status_view(town.cluster, me, [])


def test_the_status_tells_who_stands_by(town: Guarded) -> None:
    view = seen(town)
    [unit] = view.units
    kept = unit.protection
    assert kept is not None
    assert (kept.approach, kept.guarantee, kept.backup, kept.state) == ("passive", "precise", "node2", "protected")
    assert (kept.stale_ms, kept.recovery_ms, kept.last_takeover) == (120.0, 340.0, None)
    assert view.unprotected == []
    [packets] = [s for s in view.streams if s.stream == STREAM]
    assert packets.protection is not None
    assert (packets.protection.approach, packets.backup) == ("passive", "node2")
    counted = {n.node: (n.units, n.standbys) for n in view.nodes}
    assert counted == {"node1": (1, 0), "node2": (0, 1), "node3": (0, 0)}


def test_the_status_tells_loudly_who_is_alone(tmp_path: Path) -> None:
    town = made(tmp_path, nodes=2)
    town.die("node2")
    town.live(6)
    [input_, unit] = seen(town).unprotected
    assert (unit.what, unit.diagram, unit.state, unit.why) == ("u1", "traffic", "alone", "node2 does not answer")
    assert unit.seconds == 6.0
    assert input_.what == "input packets"


def test_the_status_tells_of_the_last_takeover(town: Guarded) -> None:
    town.fail_over()
    town.beat()
    status = town.yard["node2"].status()
    took = Takeover(at=990.0, incarnation=2, primary="node1", detection_ms=240, takeover_ms=31, reprocess_ms=120)
    [unit] = status.units
    assert unit.guard is not None
    guard = unit.guard.model_copy(update={"takeovers": [took]})
    heartbeat = status.model_copy(update={"units": [unit.model_copy(update={"guard": guard})]})
    town.cluster.heard(heartbeat)
    [told_of] = seen(town).units
    assert told_of.protection is not None
    assert told_of.protection.last_takeover == took
    assert told_of.protection.state == "alone"
    town.live(4)
    assert seen(town).unprotected == []


def test_a_primary_that_does_not_answer_is_being_taken_over(town: Guarded) -> None:
    town.die("node1")
    town.live(4)
    [_, unit] = seen(town).unprotected
    assert (unit.state, unit.why) == ("taking over", "node1 does not answer")


@pytest.mark.parametrize(
    ("node", "says"), [("node1", ("lost", "it failed on node1: boom")), ("node2", ("alone", "its backup failed: boom"))]
)
def test_what_failed_on_a_living_node_is_not_called_protected(town: Guarded, node: str, says: tuple[str, str]) -> None:
    town.beat()
    status = town.yard[node].status()
    [unit] = status.units
    failed = unit.model_copy(update={"state": "failed", "error": "boom"})
    town.cluster.heard(status.model_copy(update={"units": [failed]}))
    [shown] = seen(town).unprotected
    assert (shown.state, shown.why) == says
