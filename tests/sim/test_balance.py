"""Nodes come and go: backups take over side by side, are there again at once, and units spread again by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated import Simulated

from borealis.coordinator.status import unprotected
from borealis.coordinator.timings import TIMINGS
from borealis.errors import TrainError
from borealis.sim.diagrams import yaml_of
from borealis.sim.plan import Fault, Plan, Weather
from borealis.sim.programs import Programs
from borealis.sim.seeds import Stage

pytestmark = pytest.mark.spark
CUT = ("second", "counted", "third")
UNITS = ("u1", "u2", "u3", "u4")
NAMES = ("a", "b", "c")
START_S = 1.5  # until a query runs
AGAIN_S = 3.0  # within which a small unit is protected again
EVEN_S = 60.0  # within which all nodes have alike to do
SOON = replace(TIMINGS, calm_s=5.0, pause_s=1.0)


def three_diagrams(town: Simulated, **how: object) -> None:
    for name in NAMES:
        town.deploy(yaml_of("single").replace("name: single", f"name: {name}"), ha="passive", cut=CUT, **how)


def spread(town: Simulated) -> dict[str, int]:
    """Units by node, as the catalog has it."""
    counts = dict.fromkeys(town.cluster.nodes, 0)
    for layout in town.coordinator.cluster.catalog.layouts():
        for unit in layout.units:
            counts[unit.node] += 1
    return counts


def test_backups_take_over_side_by_side_and_load_is_even_again(programs: Programs) -> None:
    with Simulated(programs, 3, weather=Weather(start_s=START_S), timings=SOON) as town:
        three_diagrams(town)
        assert set(spread(town).values()) == {4}
        backups = [one.protection.backup for one in town.status().units if one.node == "node1" and one.protection]
        assert sorted(backups) == ["node2", "node2", "node3", "node3"]
        recovery = {node.node: node.recovery_shares for node in town.status().nodes}
        assert set(recovery["node1"]) == {"node2", "node3"}
        town.kill("node1")
        died = town.cluster.kernel.now
        town.live(0.5)
        assert spread(town) == {"node1": 0, "node2": 6, "node3": 6}
        assert town.status().instability.since is not None
        town.settle()
        assert town.cluster.kernel.now - died <= AGAIN_S, "the queries of all new backups started side by side"
        town.live(1.5)
        assert town.status().instability.last_s <= AGAIN_S
        town.host("node1").start()
        most: dict[str, int] = {}

        def even() -> bool:
            for name in NAMES:
                layout = town.coordinator.cluster.layout(name)
                most[name] = max(most.get(name, 0), sum(one.moving_to is not None for one in layout.units))
            return max(spread(town).values()) - min(spread(town).values()) <= 1

        town.until(even, EVEN_S)
        town.settle()
        assert max(most.values()) == 1, "units of a diagram move one after the other"
        before = spread(town)
        town.live(3 * SOON.calm_s)
        assert spread(town) == before, "what is even stays"
        assert town.status().coordinator.moves >= 3


def relieve(programs: Programs, weather: Weather | None = None) -> Simulated:
    """All that runs is on node1, all backups on node2, and node3 comes."""
    town = Simulated(programs, 3, weather=weather, timings=SOON)
    town.kill("node3")
    town.until(lambda: len(town.coordinator.cluster.members.alive()) == 2)
    place = dict.fromkeys(("left", "first", "second", "counted", "third"), "node1")
    town.deploy(yaml_of("single"), ha="passive", cut=CUT, place=place)
    town.host("node3").start()
    return town


def backups(town: Simulated) -> dict[str, str | None]:
    return {place.unit: place.backup for place in town.coordinator.cluster.layout("single").units}


def test_backups_are_spread_again_without_a_moment_unprotected(programs: Programs) -> None:
    with relieve(programs, Weather(start_s=START_S)) as town:
        assert set(backups(town).values()) == {"node2"}
        before = town.status().nodes[0].recovery_ms

        def halved() -> bool:
            for unit, backup in backups(town).items():
                has = town.where(unit)
                assert (has["node1"], has.get(str(backup))) == ("runs", "standby")
            assert not unprotected(town.coordinator.cluster), "the old one stays until the new one has all"
            return list(backups(town).values()).count("node3") == len(backups(town)) // 2

        town.until(halved, 2 * EVEN_S, each_s=0.02)
        then = backups(town)
        town.live(4 * SOON.calm_s)
        town.settle()
        assert backups(town) == then, "what is spread stays"
        assert all(not town.unit(unit).copies for unit in then)
        assert all(set(town.where(unit)) == {"node1", backup} for unit, backup in then.items())
        now = town.status()
        assert now.coordinator.exchanges == len(then) // 2
        assert now.nodes[0].recovery_ms is not None
        assert before is not None
        assert now.nodes[0].recovery_ms < before


@pytest.mark.parametrize("dies", ["node1", "node2", "node3", "coordinator"])
@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.3, 1.0])
def test_whoever_dies_while_a_backup_moves_it_is_protected_again(programs: Programs, dies: str, after_s: float) -> None:
    with relieve(programs, Weather(start_s=0.3)) as town:
        town.until(lambda: any(place.copies for place in town.coordinator.cluster.layout("single").parts()), EVEN_S)
        town.live(after_s)
        host = town.cluster.coordinator if dies == "coordinator" else town.host(dies)
        host.kill()
        town.live(1.0)
        host.start()
        town.until(lambda: len(town.coordinator.cluster.members.alive()) == 3)
        town.settle()
        town.until(lambda: not any(place.copies for place in town.coordinator.cluster.layout("single").parts()))
        town.settle()
        for unit, backup in backups(town).items():
            node = town.unit(unit).node
            town.until(lambda unit=unit, there={node, backup}: set(town.where(unit)) == there)


def test_a_user_who_moves_a_unit_whose_backup_moves_comes_first(programs: Programs) -> None:
    with relieve(programs, Weather(start_s=0.3)) as town:
        town.until(lambda: any(place.copies for place in town.coordinator.cluster.layout("single").units), 2 * EVEN_S)
        [unit] = [place for place in town.coordinator.cluster.layout("single").units if place.copies]
        town.move(unit.unit, "node3")
        town.settle()
        assert (town.unit(unit.unit).node, town.unit(unit.unit).copies) == ("node3", ())


def test_a_backup_that_cannot_be_reached_from_its_primary_stays_where_it_is(programs: Programs) -> None:
    with relieve(programs) as town:
        town.cluster.wires.cut(["node1"], ["node3"])
        town.live(5 * SOON.calm_s)
        assert set(backups(town).values()) == {"node2"}
        assert not unprotected(town.coordinator.cluster)
        town.cluster.wires.heal()
        town.until(lambda: "node3" in backups(town).values(), 2 * EVEN_S)


def test_a_backup_that_its_user_placed_goes_back_there(programs: Programs) -> None:
    with Simulated(programs, 3, timings=SOON) as town:
        place = dict.fromkeys(("left", "first", "second", "counted", "third"), "node1")
        town.deploy(yaml_of("single"), ha="passive", place=place, backup={"u1": "node3"})
        town.kill("node3")
        town.until(lambda: town.unit("u1").backup == "node2")
        town.host("node3").start()
        town.until(lambda: town.unit("u1").backup == "node3", EVEN_S)
        town.live(4 * SOON.calm_s)
        assert town.unit("u1").backup == "node3"


def test_pinned_units_and_those_that_a_user_moved_stay(programs: Programs) -> None:
    with Simulated(programs, 2, timings=SOON) as town:
        town.deploy(yaml_of("single"), cut=CUT, pin=True)
        for unit in UNITS:
            if town.unit(unit).node != "node1":
                town.move(unit, "node1")
        town.live(4 * SOON.calm_s)
        assert {town.unit(unit).node for unit in UNITS} == {"node1"}
        town.deploy(yaml_of("single"), cut=CUT, replace=True)
        by_hand = [unit for unit in UNITS if town.unit(unit).node != "node1"]
        for unit in by_hand:
            town.move(unit, "node1")
        town.until(lambda: town.coordinator.status().coordinator.moves == 2, EVEN_S)
        town.settle()
        assert {town.unit(unit).node for unit in by_hand} == {"node1"}
        assert {town.unit(unit).node for unit in set(UNITS) - set(by_hand)} == {"node2"}


def test_one_that_its_user_placed_goes_back_there_when_the_node_is_back(programs: Programs) -> None:
    with Simulated(programs, 3, timings=SOON) as town:
        place = dict.fromkeys(("first", "second", "counted", "third"), "node1")
        town.deploy(yaml_of("single"), ha="passive", place=place)
        town.kill("node1")
        town.until(lambda: town.unit("u1").node != "node1")
        town.host("node1").start()
        town.until(lambda: town.unit("u1").node == "node1", EVEN_S)
        town.settle()
        assert town.where("u1")["node1"] == "runs"


@pytest.mark.parametrize("approach", ["passive", "active", "upstream-backup", "amnesia"])
def test_a_unit_that_fails_on_a_node_that_lives_is_handed_to_its_backup_once(programs: Programs, approach: str) -> None:
    with Simulated(programs, 3) as town:
        town.deploy(yaml_of("single"), ha=approach, place=dict.fromkeys(("left", "first"), "node1"))
        first = town.unit("u1")
        assert first.backup is not None
        break_down(town, first.node)
        town.until(lambda: town.unit("u1").node == first.backup)
        town.settle()
        now = town.unit("u1")
        assert (now.incarnation, now.failed_on) == (first.incarnation + 1, first.node)
        assert now.backup not in (first.node, None), "it is not wanted where it failed"
        assert town.where("u1") == {now.node: "runs", now.backup: "standby"}
        break_down(town, now.node)
        town.live(10.0)
        assert (town.unit("u1").node, town.unit("u1").incarnation) == (now.node, now.incarnation), "once"


def break_down(town: Simulated, node: str) -> None:
    there = town.host(node).node
    assert there is not None
    there.units["single", "u1"].failure = TrainError("its worker dies again and again")


def test_results_are_right_while_units_come_and_go_by_themselves(programs: Programs) -> None:
    faults = (Fault(2.0, 3.0, "kill", ("node1",), 0.004), Fault(6.0, 7.0, "kill", ("node2",)))
    how = ("single", CUT, "passive", "precise")
    plan = Plan(5, *how, False, ("node1", "node2", "node3"), 18.0, faults, calm_s=0.5, start_s=0.08)
    outcome = Stage(programs).play(plan)[0]
    assert outcome.faults == []
    assert sum("which had less to do" in line for line in outcome.lines) >= 2, "units have moved"
