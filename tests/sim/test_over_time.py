"""Units over time, as a coordinator and real nodes have it: what is deployed, killed, cut off and moved comes right.

Takeovers are believed, the deposed go, the lonely get a backup again, and a unit that moves is on one node or another.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from simulated import Simulated

from borealis.coordinator.http_errors import TakenError
from borealis.diagram.deployment import Deployment
from borealis.errors import BorealisError
from borealis.node.running import Running
from borealis.sim.diagrams import yaml_of
from borealis.sim.network import address_of
from borealis.sim.programs import Programs
from borealis.sim.shapes import rows

pytestmark = pytest.mark.spark
ENTRY = "in-left"
BOXES = ("left", "first", "second", "counted", "third")
PRIMARY, BACKUP = "runs", "standby"


def guarded(programs: Programs, nodes: int = 3, approach: str = "passive") -> Simulated:
    """One protected unit and its input on node1, with their backups on node2."""
    town = Simulated(programs, nodes)
    town.deploy(yaml_of("single"), ha=approach, place=dict.fromkeys(BOXES, "node1"), backup={"u1": "node2"})
    assert town.where("u1") == town.where(ENTRY) == {"node1": PRIMARY, "node2": BACKUP}
    return town


@pytest.fixture
def town(programs: Programs) -> Iterator[Simulated]:
    with guarded(programs) as made:
        yield made


@pytest.fixture
def pair(programs: Programs) -> Iterator[Simulated]:
    """Two nodes only."""
    with guarded(programs, 2) as made:
        yield made


def running(town: Simulated, node: str, unit: str = "u1") -> Running:
    there = town.host(node).node
    assert there is not None
    return there.units["single", unit]


def comes_to(town: Simulated, primary: str, backup: str | None) -> None:
    """The unit and its input are there, and nowhere else, also a while later."""
    wanted = {primary: PRIMARY} | ({backup: BACKUP} if backup else {})
    town.until(lambda: town.where("u1") == town.where(ENTRY) == wanted)
    if backup:
        town.settle()
    town.live(2.0)
    assert town.where("u1") == town.where(ENTRY) == wanted
    for part in ("u1", ENTRY):
        assert (town.unit(part).node, town.unit(part).backup) == (primary, backup)


def stop_coordinator(town: Simulated) -> None:
    town.cluster.coordinator.kill()


def start_coordinator(town: Simulated) -> None:
    town.cluster.coordinator.start()
    town.live(0.1)


def test_what_is_where_it_shall_be_is_left_alone(town: Simulated) -> None:
    before = [running(town, node) for node in ("node1", "node2")]
    town.live(10.0)
    stop_coordinator(town)
    start_coordinator(town)
    town.live(20.0)
    assert [running(town, node) for node in ("node1", "node2")] == before
    assert (town.unit("u1").incarnation, town.unit("u1").lives) == (1, 1)


def test_after_a_takeover_another_node_protects_it(town: Simulated) -> None:
    epoch = running(town, "node1").order.epoch
    town.kill("node1")
    comes_to(town, "node2", "node3")
    assert (town.unit("u1").incarnation, town.unit(ENTRY).incarnation) == (2, 2)
    assert running(town, "node3").order.epoch == epoch, "the streams go on"
    kept = next(unit.protection for unit in town.status().units)
    assert kept is not None
    assert kept.last_takeover is not None
    assert (kept.last_takeover.primary, kept.last_takeover.incarnation) == ("node1", 2)


def test_an_active_standby_reads_under_the_name_of_the_next_incarnation(programs: Programs) -> None:
    with guarded(programs, approach="active") as town:
        assert running(town, "node2").order.reader == "single.u1.2"
        town.kill("node1")
        comes_to(town, "node2", "node3")
        assert running(town, "node3").order.reader == "single.u1.3"


def test_with_two_nodes_the_dead_one_is_the_backup_when_it_is_back(pair: Simulated) -> None:
    pair.kill("node1")
    comes_to(pair, "node2", None)
    pair.live(5.0)
    status = pair.status()
    assert status.troubles == [], "there is no node for it: that is shown elsewhere"
    assert {(one.what, one.state) for one in status.unprotected} == {("u1", "alone"), ("input left", "alone")}
    pair.host("node1").start()
    comes_to(pair, "node2", "node1")


def test_a_takeover_that_no_coordinator_saw_is_believed(town: Simulated) -> None:
    stop_coordinator(town)
    town.kill("node1")
    town.live(3.0)
    assert town.where("u1") == {"node2": PRIMARY}
    start_coordinator(town)
    comes_to(town, "node2", "node3")
    assert town.unit("u1").incarnation == 2


def test_a_deposed_primary_is_dropped_and_then_stands_by(pair: Simulated) -> None:
    """node1 was only cut off; with two nodes it is the only one that can be the backup."""
    pair.cluster.wires.cut(["node1"], ["node2", "coordinator", "client"])
    pair.until(lambda: pair.where("u1").get("node2") == PRIMARY)
    pair.live(5.0)
    pair.cluster.wires.heal()
    comes_to(pair, "node2", "node1")


def test_a_dead_backup_is_replaced(town: Simulated) -> None:
    town.kill("node2")
    comes_to(town, "node1", "node3")
    assert town.unit("u1").incarnation == 1
    town.host("node2").start()
    comes_to(town, "node1", "node3")


@pytest.mark.parametrize("seen", [True, False])
def test_a_backup_that_restarts_without_its_standby_is_replaced_or_gets_it_again(town: Simulated, seen: bool) -> None:
    if not seen:
        stop_coordinator(town)
    town.kill("node2")
    town.host("node2").start()
    town.live(1.0)
    if not seen:
        start_coordinator(town)
    town.until(lambda: len(town.where("u1")) == len(town.where(ENTRY)) == 2)
    town.settle()
    assert town.where("u1")["node1"] == PRIMARY
    assert town.unit("u1").incarnation == 1


def test_when_both_are_gone_for_good_it_begins_from_nothing_under_a_new_epoch(town: Simulated) -> None:
    epoch = running(town, "node1").order.epoch
    for node in ("node1", "node2"):
        town.cluster.wires.cut([node], ["node1", "node2", "node3", "coordinator", "client"])
    town.live(8.0)
    assert "node3" not in town.where("u1"), "they may only be paused"
    town.until(lambda: town.where("u1").get("node3") == PRIMARY)
    assert (town.unit("u1").incarnation, town.unit("u1").lives) == (3, 2)
    assert running(town, "node3").order.epoch != epoch
    town.cluster.wires.heal()
    town.until(lambda: list(town.where("u1").values()).count(PRIMARY) == 1)
    town.settle()
    assert town.where("u1")["node3"] == PRIMARY


def test_when_both_came_back_with_nothing_it_begins_at_once(town: Simulated) -> None:
    for node in ("node1", "node2"):
        town.kill(node)
    town.live(4.0)
    for node in ("node1", "node2"):
        town.host(node).start()
    town.until(lambda: town.unit("u1").lives == town.unit(ENTRY).lives == 2, 8.0)
    town.settle()


def test_after_a_restart_of_the_coordinator_nodes_have_time_to_come(town: Simulated) -> None:
    stop_coordinator(town)
    for node in ("node1", "node2"):
        town.kill(node)
    start_coordinator(town)
    town.live(10.0)
    assert town.where("u1") == {}
    town.until(lambda: town.where("u1").get("node3") == PRIMARY)


# -- moves


def test_a_protected_unit_moves_and_is_protected_again(town: Simulated) -> None:
    with pytest.raises(TakenError, match="the backup of unit 'u1' is on 'node2'"):
        town.move("u1", "node2")
    town.move("u1", "node3")
    town.until(lambda: town.where("u1") == {"node2": BACKUP, "node3": PRIMARY})
    town.settle()
    before = [running(town, node) for node in ("node2", "node3")]
    town.live(10.0)
    assert [running(town, node) for node in ("node2", "node3")] == before
    assert (town.unit("u1").incarnation, town.unit("u1").moving_to) == (1, None)
    town.kill("node3")
    town.until(lambda: town.where("u1").get("node2") == PRIMARY)


@pytest.mark.parametrize("after_s", [0.001, 0.01, 0.05, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("dies", ["coordinator", "node1", "node3"])
def test_whatever_dies_during_a_move_one_unit_is_left(programs: Programs, dies: str, after_s: float) -> None:
    """The coordinator, the node that it leaves, or the one that it goes to."""
    with Simulated(programs, 3) as town:
        town.deploy(yaml_of("single"), place=dict.fromkeys(BOXES, "node1") | {"left": "node2"})
        moving = town.cluster.coordinator.do(lambda coordinator: coordinator.move("u1", "node3"))
        town.live(after_s)
        host = town.cluster.host(dies)
        host.kill()
        town.live(1.0)
        host.start()
        town.live(0.1)
        if dies != "coordinator":
            town.until(lambda: not moving.is_alive())
            assert isinstance(moving.exception(0), BorealisError | None)
        town.until(lambda: list(town.where("u1").values()) == [PRIMARY] and town.unit("u1").moving_to is None)
        town.settle()
        town.live(3.0)
        assert town.where("u1") == {town.unit("u1").node: PRIMARY}
        assert town.coordinator.locate("single/chain").address == address_of(town.unit("u1").node)


# -- without protection


@pytest.fixture
def spread(programs: Programs) -> Iterator[Simulated]:
    """An input and a unit on node1, and a unit behind it on node2."""
    with Simulated(programs, 3) as made:
        place = {"left": "node1", "first": "node1", "second": "node2", "counted": "node2", "third": "node2"}
        made.deploy(yaml_of("single"), cut=("second",), place=place)
        yield made


def flows(town: Simulated, first: int) -> None:
    """Rows that are published now come through."""
    read = town.read("single/chain")
    town.publish("single/left", [rows("left", at, at + 20) for at in range(first, first + 200, 20)])
    town.until(lambda: any(n >= first for n in read.column("n")))


def test_a_node_that_restarts_gets_its_units_again_and_others_find_it(spread: Simulated) -> None:
    flows(spread, 0)
    other = running(spread, "node2", "u2")
    spread.kill("node1")
    spread.live(5.0)
    assert spread.where("u1") == {}, "nothing goes elsewhere"
    spread.host("node1").start()
    spread.until(lambda: spread.where("u1") == spread.where(ENTRY) == {"node1": PRIMARY})
    shown = lambda: {unit.unit: unit for unit in spread.status().units}  # noqa: E731
    spread.until(lambda: shown()["u1"].state == "running")
    spread.until(lambda: "in epoch" in shown()["u2"].error)  # found, and of another life: it does not mix the two
    assert running(spread, "node2", "u2") is other


def test_a_node_that_was_cut_off_goes_on_with_what_it_has(spread: Simulated) -> None:
    before = [running(spread, "node1"), running(spread, "node2", "u2")]
    spread.cluster.wires.cut(["node1"], ["node2", "node3", "coordinator", "client"])
    spread.live(10.0)
    assert spread.where("u1") == {"node1": PRIMARY}
    spread.cluster.wires.heal()
    spread.settle()
    spread.live(5.0)
    assert [running(spread, "node1"), running(spread, "node2", "u2")] == before
    flows(spread, 0)


def test_a_node_that_was_away_hears_of_the_end_of_a_diagram_even_if_its_name_is_taken_again(spread: Simulated) -> None:
    spread.cluster.wires.cut(["node2"], ["node1", "node3", "coordinator", "client"])
    spread.live(5.0)
    assert spread.do(lambda coordinator: coordinator.undeploy("single")).untold == ["node2"]
    spread.deploy(yaml_of("single"), place=dict.fromkeys(BOXES, "node1"))
    assert spread.where("u2") == {"node2": PRIMARY}
    spread.cluster.wires.heal()
    spread.until(lambda: spread.where("u2") == {})
    assert spread.where("u1") == spread.where(ENTRY) == {"node1": PRIMARY}
    flows(spread, 0)


@pytest.mark.parametrize("after_s", [0.001, 0.02, 0.08, 0.1, 0.15, 0.2, 0.3, 1.0])
@pytest.mark.parametrize("what", ["deploy", "undeploy"])
def test_what_a_killed_coordinator_was_at_is_done_or_taken_back(spread: Simulated, what: str, after_s: float) -> None:
    """All of the other diagram is there in the end, or nothing."""
    wish = Deployment(yaml=yaml_of("tens"), cut=("tens",), ha="passive")
    host = spread.cluster.coordinator
    if what == "deploy":
        host.do(lambda coordinator: coordinator.deploy(wish))
    else:
        spread.deploy(wish.yaml, cut=wish.cut, ha=wish.ha)
        host.do(lambda coordinator: coordinator.undeploy("tens"))
    spread.live(after_s)
    stop_coordinator(spread)
    spread.live(1.0)
    start_coordinator(spread)
    spread.live(20.0)
    spread.settle()
    nodes = [host.node for host in spread.cluster.nodes.values() if host.node is not None]
    there = [key for node in nodes for key in (*node.units, *node.entries) if key[0] == "tens"]
    known = [layout.name for layout in spread.coordinator.cluster.catalog.layouts()]
    assert known in (["single"], ["single", "tens"])
    assert len(there) == (6 if "tens" in known else 0)


@pytest.mark.parametrize(("checkpoint", "least", "most"), [("interval", 1, 2), ("min-max", 4, 9)])
def test_idle_moments_of_a_node_go_to_checkpoints(programs: Programs, checkpoint: str, least: int, most: int) -> None:
    """Within a fifth of the interval and two of them, where rows come all the time."""
    with Simulated(programs) as town:
        how = {"ha": "passive", "interval": "2 s", "checkpoint": checkpoint}
        town.deploy(yaml_of("single"), place=dict.fromkeys(BOXES, "node1"), backup={"u1": "node2"}, **how)
        town.publish("single/left", [rows("left", 20 * n, 20 * n + 20) for n in range(200)])
        town.live(1.0)
        there = town.host("node1").node
        assert there is not None
        guard = there.guards.primaries["single", "u1"]
        before = guard.status().messages
        town.live(3.0)
        assert least <= guard.status().messages - before <= most
