"""A unit's way from one node to another: the side that takes it."""

from __future__ import annotations

from borealis.errors import WireError
from borealis.trains.handover import Handover
from borealis.wire.client import Peers
from borealis.wire.messages import Done, Moved, NodeStatus, Ping, UnitName, UnitOrder

MOVED_TRIES = 3  # to tell a node that a unit has left it


def fetch(order: UnitOrder, peers: Peers) -> Handover:
    """The state of a unit, frozen for us by the node that has it."""
    assert order.take_over is not None
    name = UnitName(diagram=order.diagram, unit=order.unit)
    return Handover.from_bytes(b"".join(peers.at(order.take_over).export("unit", name.encode())))


def close_source(order: UnitOrder, peers: Peers, address: str) -> None:
    """Tell the node that had the unit that it is at this address now; raises if that node still has it."""
    assert order.take_over is not None
    moved = Moved(diagram=order.diagram, unit=order.unit, address=address)
    peer = peers.at(order.take_over)
    for left in reversed(range(MOVED_TRIES)):
        try:
            peer.act("moved", moved, Done)
            return
        except WireError:  # it may have been carried out, although no answer came
            status = peer.act("status", Ping(), NodeStatus)
            there = [u for u in status.units if (u.diagram, u.unit) == (order.diagram, order.unit)]
            if not there:
                return
            if there[0].state != "frozen" or not left:
                raise
