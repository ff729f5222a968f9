"""Protected units, where nodes do what real ones seldom do; what those do is in `tests/sim/test_over_time.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import Town, Yard, traffic

from borealis.coordinator.deployment import deploy
from borealis.coordinator.layout import UnitAssignment
from borealis.coordinator.reconcile import Reconciler
from borealis.coordinator.status import status_view
from borealis.diagram.deployment import Deployment
from borealis.errors import WireError
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

    @property
    def unit(self) -> UnitAssignment:
        return self.cluster.layout("traffic").units[0]

    def die(self, name: str) -> None:
        self.yard.down.add(name)

    def come_back(self, name: str) -> None:
        """As a new process with nothing on it."""
        self.yard.add(name, incarnation=f"{self.yard[name].incarnation}+")
        self.yard.down.discard(name)


def made(path: Path, nodes: int = 3) -> Guarded:
    town = Guarded(path / "catalog.sqlite", Yard(nodes))
    town.beat()
    place = {"packets": "node1", "agg": "node1"}
    deploy(town.cluster, Deployment(yaml=traffic(), place=place, ha="passive", backup={"u1": "node2"}))
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


def test_a_backup_that_cannot_be_started_is_tried_again_and_told(town: Guarded) -> None:
    town.die("node2")
    town.yard["node3"].fail["start"] = WireError("broke off")
    town.live(10)
    assert town.reconciler.troubles() == [], "its primary has not given it up: it may be paused, and be needed"
    assert town.unit.backup == "node2"
    town.live(10)
    assert [trouble.what for trouble in town.reconciler.troubles()] == [
        "unit traffic.u1 on node1 is without its backup"
    ]
    town.yard["node3"].fail.clear()
    town.live(40)
    assert town.reconciler.troubles() == []
    assert town.yard["node3"].states[KEY] == "standby"


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
