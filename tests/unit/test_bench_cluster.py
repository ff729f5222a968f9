"""The experiment with clusters of servers: its model of costs, its schedules, and what it must show."""

from __future__ import annotations

import pytest
from benchmarks.cluster import ASSIGNMENTS, SCHEDULES, Options, case, recovery, usual
from benchmarks.cluster_model import BUSY, STEADY, Capture, Cluster, Message, Paste, Server, Unit
from benchmarks.cluster_scheduling import min_max, round_robin


def pair() -> Cluster:
    """Server 0 has a busy and a steady unit, with backups on server 1."""
    servers = [Server(0), Server(1)]
    servers[0].units = [Unit(0, BUSY, BUSY.load, 0, 1), Unit(1, STEADY, STEADY.load, 0, 1)]
    return Cluster(servers, min_max)


def test_costs_grow_with_what_changed_and_no_further_than_windows_reach() -> None:
    for kind in (BUSY, STEADY):
        at = [kind.capture_s(seconds) for seconds in (0.0, 0.5, 1.0, 5.0, 10.0)]
        assert at == sorted(at)
        assert kind.capture_s(1_000.0) == pytest.approx(kind.capture_s(10.0), rel=0.01)
    assert BUSY.capture_s(3.0) == pytest.approx(2 * STEADY.capture_s(3.0), rel=0.05)


def test_what_a_death_takes_is_the_slowest_share() -> None:
    cluster = pair()
    assert cluster.shares_s(0, 2.0) == {1: pytest.approx(2 * (BUSY.load + STEADY.load))}
    cluster.servers[0].units[1].backup = 0  # as if on a third
    assert cluster.recovery_s(2.0) == pytest.approx(BUSY.load * 2.0 / 2), "nothing runs on the other"


def test_a_message_that_is_not_pasted_has_to_be_pasted_first() -> None:
    cluster, message = pair(), 0.04
    unit = cluster.servers[0].units[0]
    unit.image_at, unit.waits = 1.9, False
    cluster.servers[1].inbox.append(Message(unit, message, 1.95))
    assert cluster.unit_s(unit, 2.0) == pytest.approx(message + 0.1 * BUSY.load)


def test_min_max_captures_what_helps_most_for_its_cost() -> None:
    cluster = pair()
    server = cluster.servers[0]
    assert min_max(cluster, server, 2.0) == Capture(server.units[0])
    server.units[0].waits = False
    assert min_max(cluster, server, 2.0) == Capture(server.units[1])
    server.units[1].waits = False
    assert min_max(cluster, server, 2.0) is None


def test_the_oldest_message_of_the_slower_segment_is_pasted_first() -> None:
    cluster = pair()
    server, unit = cluster.servers[1], cluster.servers[0].units[0]
    messages = [Message(unit, 0.04, 1.0), Message(cluster.servers[0].units[1], 0.02, 1.1)]
    server.inbox.extend(messages)
    assert min_max(cluster, server, 2.0) == round_robin(cluster, server, 2.0) == Paste(messages[0])


@pytest.mark.parametrize("servers", [5, 9])
def test_balanced_and_min_max_together_are_twice_as_fast_as_random_and_round_robin(servers: int) -> None:
    options = Options(quick=True)
    slow = case(options, usual(), servers, "random", "round-robin")
    fast = case(options, usual(), servers, "balanced", "min-max")
    assert slow["recovery_s"] >= 2 * fast["recovery_s"]


def test_the_same_seed_is_the_same_run() -> None:
    for assignment in ASSIGNMENTS:
        for schedule in SCHEDULES:
            one, two = (recovery(usual(), 4, assignment, schedule, 3, 5.0) for _ in range(2))
            assert one == two
