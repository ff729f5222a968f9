"""Claims: of two nodes that want the same, one gets it; and it is on disk before any node is answered."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from stand_ins import Town, traffic

from borealis.coordinator.deployment import deploy
from borealis.coordinator.layout import UnitAssignment, entry_point
from borealis.coordinator.naming import locate
from borealis.coordinator.protecting import claim
from borealis.diagram.deployment import Deployment
from borealis.diagram.protection import Protection
from borealis.wire.messages import Claim

UNIT = UnitAssignment("u1", ("a",), ("p",), ("a",), "node1", None, Protection(ha="passive"), "node2")


def wants(what: str, node: str, incarnation: int, **of: str) -> Claim:
    named = of or {"unit": "u1"}
    return Claim(what=what, diagram="traffic", node=node, incarnation=incarnation, **named)  # type: ignore[arg-type]


def test_the_registered_backup_takes_over_under_the_next_incarnation() -> None:
    then = UNIT.after(wants("take over", "node2", 2))
    assert then is not None
    assert (then.node, then.backup, then.was, then.incarnation) == ("node2", None, "node1", 2)
    assert then.after(wants("take over", "node2", 2)) == then, "its answer was lost"
    assert then.after(wants("alone", "node1", 1)) is None, "deposed"


@pytest.mark.parametrize(
    ("what", "node", "incarnation"),
    [
        ("take over", "node2", 1),
        ("take over", "node2", 3),
        ("take over", "node3", 2),
        ("take over", "node1", 2),
        ("alone", "node1", 2),
        ("alone", "node2", 1),
        ("alone", "node3", 2),
    ],
)
def test_a_node_that_is_not_entitled_is_refused(what: str, node: str, incarnation: int) -> None:
    assert UNIT.after(wants(what, node, incarnation)) is None


def test_the_primary_may_go_on_alone_and_then_no_backup_takes_over() -> None:
    then = UNIT.after(wants("alone", "node1", 1))
    assert then is not None
    assert (then.node, then.backup, then.was, then.incarnation) == ("node1", None, "node2", 1)
    assert then.after(wants("take over", "node2", 2)) is None
    assert then.after(wants("alone", "node1", 1)) == then


def test_one_that_took_over_unseen_may_be_alone() -> None:
    then = UNIT.after(wants("alone", "node2", 2))
    assert then is not None
    assert (then.node, then.backup, then.incarnation) == ("node2", None, 2)


def test_what_is_not_protected_cannot_be_claimed() -> None:
    assert UnitAssignment("u1", (), (), (), "node1").after(wants("take over", "node2", 2)) is None
    assert entry_point("packets", "node1").after(wants("take over", "node2", 2)) is None


def test_what_restarts_is_another_incarnation_of_another_life() -> None:
    assert UNIT.taken_over("node2", 3).incarnation == 3
    then = UNIT.restarted("node3")
    assert (then.node, then.backup, then.was, then.incarnation, then.lives) == ("node3", None, None, 3, 2)
    forgetful = replace(UNIT, protection=Protection(ha="amnesia")).restarted("node3")
    assert (forgetful.incarnation, forgetful.lives) == (3, 1), "its readers go on behind the gap"


@pytest.fixture
def town(tmp_path: Path) -> Town:
    made = Town(tmp_path / "catalog.sqlite")
    made.beat()
    deploy(made.cluster, Deployment(yaml=traffic(), place={"agg": "node1"}, ha="passive", backup={"u1": "node2"}))
    made.beat()
    return made


def test_claims_are_answered_with_what_is_in_force(town: Town) -> None:
    asked = [
        wants("take over", "node2", 2),
        wants("take over", "node3", 2),
        wants("take over", "node2", 2, unit="in-packets"),
        wants("take over", "node2", 5, unit="u9"),
    ]
    first, second, third, unknown = claim(town.cluster, asked)
    here = town.yard["node2"].address
    assert (first.granted, first.incarnation, first.address) == (True, 2, here)
    assert (second.granted, second.incarnation, second.address) == (False, 2, here)
    assert third.granted
    assert (unknown.granted, unknown.incarnation, unknown.address) == (False, 5, "")
    assert town.catalog.routes() == {}, "a node that took over was given other addresses"
    again = town.restart()
    assert [(u.node, u.was, u.incarnation) for u in again.cluster.layout("traffic").units] == [("node2", "node1", 2)]


def test_two_at_once_of_one_incarnation(town: Town) -> None:
    """Both are entitled by what they know: a backup that was replaced a moment ago, and its successor."""
    won: list[str] = []
    start = threading.Barrier(8)

    def take(node: str) -> None:
        start.wait()
        if claim(town.cluster, [wants("take over", node, 2)])[0].granted:
            won.append(node)

    threads = [threading.Thread(target=take, args=(f"node{i % 3 + 1}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(won) == {"node2"}
    assert town.cluster.layout("traffic").units[0].incarnation == 2


def test_a_claim_waits_for_no_other_work_on_the_diagram_and_is_seen_at_once(town: Town) -> None:
    found = locate(town.cluster, "agg")
    addresses = {name: node.address for name, node in town.yard.nodes.items()}
    assert (found.address, found.fallback, found.incarnation) == (addresses["node1"], addresses["node2"], 1)
    with town.cluster.at_work("traffic", "changed"):
        [claimed] = claim(town.cluster, [wants("take over", "node2", 2)])
    assert claimed.granted
    found = locate(town.cluster, "agg")
    assert (found.address, found.fallback, found.incarnation) == (addresses["node2"], None, 2)


def test_a_stream_of_a_silent_node_is_where_its_backup_is(town: Town) -> None:
    town.yard.down.add("node1")
    for _ in range(4):
        town.beat()
    found = locate(town.cluster, "agg")
    assert (found.node, found.address, found.fallback) == ("node2", town.yard["node2"].address, None)


def test_what_has_changed_meanwhile_is_not_overwritten(town: Town) -> None:
    unit = town.cluster.layout("traffic").units[0]
    assert claim(town.cluster, [wants("take over", "node2", 2)])[0].granted
    assert not town.catalog.put("traffic", unit, replace(unit, backup="node3"))
    assert not town.catalog.put("traffic", unit, unit.restarted("node3"))
    assert not town.catalog.moved("traffic", "u1", "node3", 1)
    now = town.cluster.layout("traffic").units[0]
    assert (now.node, now.backup, now.incarnation, now.lives) == ("node2", None, 2, 1)
    assert town.catalog.put("traffic", now, replace(now, backup="node3"))
