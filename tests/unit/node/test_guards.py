"""A node's guards, as their node and their primaries see them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from borealis.diagram.protection import Protection
from borealis.entry.admission import Cursor
from borealis.errors import WireError
from borealis.ha.detector import Detector, Pace
from borealis.ha.primary import Want
from borealis.node.node import Node
from borealis.node.parcel import Parcel
from borealis.node.standby import Standby
from borealis.trains.commit_point import CommitPoint
from borealis.wire.messages import Guard, GuardAnswer

KEY = ("d", "u1")
LONG_S = 20.0  # for what should come at once, on a busy machine


class Busy:
    """A backup that runs, and must begin again before it can take a whole state."""

    ready = True

    def __init__(self) -> None:
        self.unit = SimpleNamespace(order=object())

    def receive(self, parcel: Parcel, size: int) -> GuardAnswer:
        return GuardAnswer(verdict="busy")


def test_a_backup_begins_again_once_however_often_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its primary asks again several times a second, and on a busy machine it takes many seconds to begin again."""
    node, first = Node("n"), Busy()
    standbys: dict[Any, Any] = node.guards.standbys
    standbys[KEY] = first
    dropped: list[object] = []
    started: list[object] = []
    slow, over = threading.Event(), threading.Event()

    def drop(unit: object) -> None:
        dropped.append(unit)
        assert slow.wait(LONG_S)

    def start(order: object) -> None:
        started.append(order)
        over.set()

    monkeypatch.setattr(node, "drop_unit", drop)
    monkeypatch.setattr(node, "start_unit", start)
    whole = Parcel(*KEY, 1, Want("whole", 1, 0, CommitPoint(0, 0, {"a": Cursor()}, {}, ()))).encode()
    assert {node.guards.receive(whole).verdict for _ in range(20)} == {"busy"}
    slow.set()
    assert over.wait(LONG_S)
    assert (dropped, started) == ([first.unit], [first.unit.order])
    standbys.clear()
    node.close()


class Slow:
    """A unit for which a whole comes that turns out to be of no use; meanwhile its primary is found dead."""

    key, title, started, nondeterministic, merges_freely = KEY, "unit d.u1", False, False, False

    def __init__(self, node: Node) -> None:
        self.node = node
        self.feeds: dict[str, Any] = {}
        self.queues: dict[str, Any] = {}

    def correct_with(self, partner: object) -> None:
        pass

    def waits_for_partner(self) -> bool:
        return False

    def mirror(self, *parts: object) -> None:
        self.node.guards.died("grpc://p:1", Detector(Pace(), 0.0))
        raise WireError("its primary does not answer")


def test_a_backup_claims_nothing_while_it_takes_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Granted, it would have nothing to go on from, and the primary could not go on either."""
    node = Node("n")
    claims: list[Standby] = []
    monkeypatch.setattr(node.guards, "_claim", lambda mine, dead: claims.extend(mine))
    unit: Any = Slow(node)
    guard = Guard(role="backup", partner="grpc://p:1", partner_node="p", protection=Protection(ha="passive"))
    node.guards.standbys[KEY] = standby = Standby(unit, guard, node.guards)
    whole = Parcel(*KEY, 1, Want("whole", 1, 0, CommitPoint(0, 0, {"a": Cursor()}, {}, ()))).encode()
    assert node.guards.receive(whole).verdict == "failed"
    assert not claims
    assert not standby.ready
    node.guards.standbys.clear()
    node.close()
