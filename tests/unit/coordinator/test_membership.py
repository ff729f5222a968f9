"""Who is there: heartbeats, silence, names in use, other versions."""

from __future__ import annotations

import pytest
from stand_ins import StandInNode, Yard

from borealis.clock import ManualClock
from borealis.coordinator.http_errors import AbsentError, MissingError, TakenError
from borealis.coordinator.membership import Membership, check_version
from borealis.streams.status import QueueStatus
from borealis.wire.messages import NodeStatus, UnitStatus


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def members(clock: ManualClock) -> Membership:
    return Membership(clock, dead_after_s=3.0)


def node(name: str = "node1", incarnation: str = "1") -> StandInNode:
    return StandInNode(name, f"grpc://127.0.0.1:{len(incarnation)}", incarnation)


def test_a_node_lives_until_it_is_silent_for_three_seconds(members: Membership, clock: ManualClock) -> None:
    assert members.heard(node().status())
    clock.advance(2.9)
    assert members.lives("node1")
    assert not members.heard(node().status())
    clock.advance(3.0)
    assert not members.lives("node1")
    assert members.alive() == []
    assert [m.name for m in members.members()] == ["node1"]
    assert not members.heard(node().status()), "the same process, heard again"
    assert members.lives("node1")


def test_a_name_in_use_is_refused_until_its_holder_is_dead(members: Membership, clock: ManualClock) -> None:
    members.heard(node(incarnation="1").status())
    clock.advance(2)
    with pytest.raises(
        TakenError, match=r"the name 'node1' belongs to node 'node1', which is alive \(pid 4242 on here\)"
    ):
        members.heard(node(incarnation="2").status())
    assert not members.heard(node(incarnation="1").status())
    clock.advance(3)
    assert members.heard(node(incarnation="2").status())
    with pytest.raises(TakenError):
        members.heard(node(incarnation="1").status())


def test_an_address_in_use_is_refused(members: Membership, clock: ManualClock) -> None:
    """What is meant for one node must not reach another."""
    members.heard(node("node1", "1").status())
    with pytest.raises(TakenError, match=r"the address grpc://127.0.0.1:1 belongs to node 'node1', which is alive"):
        members.heard(node("node2", "2").status())
    clock.advance(3)
    assert members.heard(node("node2", "2").status())


def test_a_process_may_be_dead_in_spite_of_its_heartbeats(members: Membership) -> None:
    members.heard(node(incarnation="1").status())
    members.died("node1", "another")
    assert members.lives("node1")
    members.died("node1", "1")
    assert not members.lives("node1")
    assert members.heard(node(incarnation="2").status())


def test_another_version_is_refused() -> None:
    with pytest.raises(TakenError, match=r"node 'n' is Borealis 9.9, the coordinator is"):
        check_version("n", "9.9")


def test_a_node_that_is_not_there(members: Membership, clock: ManualClock) -> None:
    members.heard(node("node1", "1").status())
    members.heard(node("node2", "22").status())
    with pytest.raises(MissingError) as missing:
        members.living("nod2")
    assert missing.value.message == "there is no node 'nod2' (nodes are node1, node2)"
    assert missing.value.hint == "did you mean 'node2'?"
    with pytest.raises(AbsentError, match="has not come back yet"):
        members.living("node7", known=["node7"])
    clock.advance(5)
    with pytest.raises(AbsentError, match="silent for 5 s"):
        members.living("node2")


def status(rows: int, trains: int, next_id: int, epoch: str = "e") -> NodeStatus:
    unit = UnitStatus(
        diagram="d",
        unit="u1",
        state="running",
        boxes=[],
        rows_in=rows,
        rows_out=rows // 10,
        trains=trains,
        busy_s=trains / 20,
    )
    queue = QueueStatus(
        stream="d/x", epoch=epoch, first_id=0, next_id=next_id, boundary=0, held_rows=0, held_bytes=0, dropped=0
    )
    return Yard(1)["node1"].status().model_copy(update={"units": [unit], "queues": [queue]})


def test_rates_are_means_over_the_last_seconds(members: Membership, clock: ManualClock) -> None:
    members.heard(status(0, 0, 0))
    [member] = members.members()
    assert member.unit_rates("d", "u1") == (0, 0, 0)
    for second in range(1, 21):
        clock.advance(1)
        rows = 100 * min(second, 10)
        members.heard(status(rows, second, 3 * second))
        [member] = members.members()
        if second == 10:
            assert member.unit_rates("d", "u1") == (100, 10, 1)
            assert member.queue_rate("d/x") == 3
            assert member.busy() == 0.05
    assert member.unit_rates("d", "u1") == (0, 0, 1), "nothing came in the last five seconds"
    assert len(member.history) <= 7
    assert member.unit_rates("d", "u2") == (0, 0, 0)


def test_what_a_backup_takes_over_with_its_unit_is_no_rate(members: Membership, clock: ManualClock) -> None:
    before = status(0, 0, 0)
    unit = before.units[0].model_copy(update={"state": "standby"})
    members.heard(before.model_copy(update={"units": [unit]}))
    for rows in (60_000, 60_100):
        clock.advance(1)
        members.heard(status(rows, rows // 100, 0))
    assert members.members()[0].unit_rates("d", "u1") == (100, 10, 1)


def test_a_queue_that_began_again_has_no_rate_yet(members: Membership, clock: ManualClock) -> None:
    members.heard(status(0, 0, 500))
    clock.advance(1)
    members.heard(status(0, 0, 10, epoch="f"))
    assert members.members()[0].queue_rate("d/x") == 0
