"""What the death of a node would take, by what its heartbeats say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from stand_ins import Yard

from borealis.clock import ManualClock
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.membership import BEAT_LEAST_S, Member, Membership
from borealis.coordinator.recovery import TAKEOVER_S, expected, of_node
from borealis.coordinator.spreading import Node
from borealis.diagram.protection import Protection
from borealis.wire.messages import GuardStatus, NodeStatus, Takeover, UnitStatus

PASSIVE = Protection(ha="passive", interval="400 ms", ping="100 ms", misses=3)
NOTICED_S = 0.25
NODES = [Node("node1"), Node("node2"), Node("node3", 2)]


def unit(name: str, backup: str | None, protection: Protection = PASSIVE) -> UnitAssignment:
    return UnitAssignment(name, (name,), ("in",), (name,), "node1", protection=protection, backup=backup)


def layout(*units: UnitAssignment) -> Layout:
    return Layout("d", "", "running", units, ())


def home(busy: dict[str, float], stale_ms: float = 0.0, took_ms: tuple[float, ...] = ()) -> Member:
    """A node that has run these units for ten seconds."""
    took = [Takeover(at=0.0, incarnation=2, takeover_ms=ms) for ms in took_ms]

    def status(seconds: float) -> NodeStatus:
        guard = GuardStatus(
            approach="passive",
            guarantee="precise",
            role="primary",
            stale_ms=stale_ms,
            state="protected",
            takeovers=took,
        )
        units = [
            UnitStatus(diagram="d", unit=name, state="running", busy_s=part * seconds, guard=guard)
            for name, part in busy.items()
        ]
        return Yard(1)["node1"].status().model_copy(update={"units": units})

    return Member(status(10.0), 10.0, 2, ((0.0, status(0.0)), (10.0, status(10.0))))


def test_what_was_not_measured_is_its_takeover() -> None:
    [one] = expected([layout(unit("u1", "node2"))], {})
    assert (one.detection_s, one.takeover_s, one.redo_s) == (NOTICED_S, TAKEOVER_S, 0.0)
    assert one.work.us == TAKEOVER_S * 1e6


def test_trains_since_the_last_checkpoint_and_until_the_takeover_are_run_again() -> None:
    alive = {"node1": home({"u1": 0.5})}
    [one] = expected([layout(unit("u1", "node2"))], alive)
    assert one.redo_s == pytest.approx(0.5 * (0.2 + NOTICED_S + TAKEOVER_S))
    [late] = expected([layout(unit("u1", "node2"))], {"node1": home({"u1": 0.5}, stale_ms=3_000.0)})
    assert late.redo_s == pytest.approx(0.5 * (3.0 + NOTICED_S + TAKEOVER_S))
    [beside] = expected([layout(unit("u1", "node2", Protection(ha="active")))], alive)
    assert beside.redo_s == pytest.approx(0.5 * (NOTICED_S + TAKEOVER_S)), "its backup has run them already"


def test_takeovers_that_were_measured_are_expected_again() -> None:
    [one] = expected([layout(unit("u1", "node2"))], {"node1": home({"u1": 0.0}, took_ms=(20.0, 30.0, 400.0))})
    assert one.takeover_s == pytest.approx(0.03)


def test_a_death_is_over_when_the_slowest_share_is_done() -> None:
    units = (unit("u1", "node2"), unit("u2", "node2"), unit("u3", "node3"), unit("u4", None))
    found = of_node("node1", expected([layout(*units)], {}), NODES)
    assert found is not None
    assert found.shares == {"node2": pytest.approx(2 * TAKEOVER_S), "node3": pytest.approx(TAKEOVER_S / 2)}
    assert found.seconds == pytest.approx(NOTICED_S + 2 * TAKEOVER_S)
    assert found.lost == 1
    assert of_node("node2", expected([layout(*units)], {}), NODES) is None
    unguarded = layout(replace(units[0], protection=None, backup=None))
    assert of_node("node1", expected([unguarded], {}), NODES) is None


def test_heartbeats_in_quick_succession_count_as_one() -> None:
    """The second may have left before an order that the first does not show, either."""
    clock, status = ManualClock(), Yard(1)["node1"].status()
    members = Membership(clock, 3.0)
    for _ in range(5):
        members.heard(status)
        clock.advance(BEAT_LEAST_S / 10)
    assert members.members()[0].beats == 1
    clock.advance(BEAT_LEAST_S)
    members.heard(status)
    assert members.members()[0].beats == 2
