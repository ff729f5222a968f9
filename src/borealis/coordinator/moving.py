"""Moving a running unit to another node, with its state.

1. The catalog says where the unit is going. A coordinator that finds that after a crash looks where it is (see
   reconcile).
2. The target is ordered to start it and to take it over: it pulls the state from the source, which freezes the unit at
   a train boundary, hands it over, sends the readers of its queues to the target, and drops it.
3. The catalog says where it is. Readers get the new address, as soon as they can be reached.

A protected unit moves without its backup, which would take over the moment the source lets go; it gets one again when
it has arrived. So a source that does not answer keeps its backup: nothing else has what the unit knows.

If the target fails, the source goes on. Only a target that says it runs the unit has it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from borealis.coordinator import protecting
from borealis.coordinator.cluster import Cluster
from borealis.coordinator.http_errors import FIRST, MissingError, TakenError
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.orders import feeds, reroute_order, unit_order
from borealis.errors import BorealisError, did_you_mean
from borealis.wire.messages import NodeStatus, Ping, Pong, UnitName

log = logging.getLogger("borealis.coordinator")


def find_unit(cluster: Cluster, name: str, diagram: str | None = None) -> tuple[Layout, UnitAssignment]:
    """A unit as `u2` or `traffic/u2`; several diagrams may have one of the same name."""
    layouts = cluster.catalog.layouts() if diagram is None else [cluster.layout(diagram)]
    units = [(layout, unit) for layout in layouts for unit in layout.units]
    known = {f"{layout.name}/{unit.unit}": (layout, unit) for layout, unit in units}
    found = {full: one for full, one in known.items() if name in (full, one[1].unit)}
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise TakenError(f"several diagrams have a unit '{name}'", hint=f"say which: {' or '.join(found)}")
    if not known:
        raise MissingError(f"there is no unit '{name}': no diagram is deployed", hint=FIRST)
    hint = did_you_mean(name, [*known, *(unit.unit for _, unit in units)])
    raise MissingError(f"there is no unit '{name}' (there are: {', '.join(known)})", hint=hint)


def move(cluster: Cluster, name: str, node: str, diagram: str | None = None, *, by_hand: bool = True) -> Layout:
    """Bring a unit to another node; when this returns, it runs there.

    Where it is no user who wants that, its backup there makes room.
    """
    layout, _ = find_unit(cluster, name, diagram)
    with cluster.at_work(layout.name, "changed", wait=None if by_hand else 0):
        layout, unit = find_unit(cluster, name, layout.name)
        if layout.state != "running":
            raise TakenError(f"diagram '{layout.name}' is {layout.state}", hint="a unit can move when it runs")
        target = cluster.living(node)
        if unit.node == node:
            raise TakenError(f"unit '{unit.unit}' runs on '{node}' already", hint="choose another node")
        if unit.next_backup is not None:
            unit = protecting.give_up_exchange(cluster, layout, unit, unit.next_backup)
        if unit.backup == node and by_hand:
            hint = f"choose another node; or kill the node of the unit, and '{node}' takes over"
            raise TakenError(f"the backup of unit '{unit.unit}' is on '{node}'", hint=hint)
        if node in unit.copies:
            raise TakenError(f"a copy of unit '{unit.unit}' is on '{node}'", hint="choose another node")
        source = cluster.living(unit.node)
        cluster.ask(unit.node, "ping", Ping(), Pong)  # one that has just died is taken for alive for a while
        cluster.settle(node)
        if unit.backup != node:  # otherwise it is dropped there as soon as nobody counts on it
            protecting.clear(cluster, layout, unit, node)
        unit = protecting.unprotect(cluster, layout, unit)
        layout = cluster.layout(layout.name)
        cluster.catalog.moving(layout.name, unit.unit, node)
        order = unit_order(layout, unit, cluster.address, take_over=source.status.address)
        try:
            cluster.order(node, "start", order)
        except BorealisError as error:
            if not _has(cluster, layout.name, unit.unit, node):
                moved = UnitName(diagram=layout.name, unit=unit.unit)  # what fails now, reconcile does later
                cluster.try_order(node, "drop", moved)
                if cluster.try_order(unit.node, "thaw", moved):
                    cluster.catalog.moving(layout.name, unit.unit, None)
                raise type(error)(
                    f"unit '{unit.unit}' stays on '{unit.node}': {error.message}", hint=error.hint
                ) from error
        arrived(cluster, layout, unit, target.name)
        if by_hand:
            cluster.catalog.moved_by_hand(layout.name, unit.unit, cluster.clock.time())
        layout = cluster.layout(layout.name)
        now = layout.part(unit.unit)
        if now is not None and now.protected and not now.stored:
            with _for_later(f"unit {layout.name}.{now.unit} has no backup yet"):
                protecting.protect(cluster, layout, now)
    return cluster.layout(layout.name)


@contextmanager
def _for_later(what: str) -> Iterator[None]:
    """What fails now, reconcile does later."""
    try:
        yield
    except BorealisError as error:
        log.warning("%s: %s", what, error)


def arrived(cluster: Cluster, layout: Layout, unit: UnitAssignment, node: str) -> None:
    """The unit runs on this node now: note it, and send its readers there."""
    if not cluster.catalog.moved(layout.name, unit.unit, node, unit.incarnation):
        raise TakenError(f"unit '{unit.unit}' was taken over while it moved", hint="see the status")
    layout = cluster.layout(layout.name)
    cluster.catalog.route(layout.name, unit.unit, feeds(layout, unit, cluster.address))
    for arrow in unit.gives:
        for reader in layout.readers(arrow):  # the queue that they read from sends them on, too
            with _for_later(f"unit {layout.name}.{reader.unit} does not know where {arrow} is"):
                reroute(cluster, layout, reader, arrow)


def reroute(cluster: Cluster, layout: Layout, reader: UnitAssignment, arrow: str) -> None:
    """Send a unit to where an arrow is served now."""
    order = reroute_order(layout, arrow, cluster.address)
    cluster.order(reader.node, "reroute", order)
    cluster.catalog.route(layout.name, reader.unit, {arrow: order.address})


def _has(cluster: Cluster, diagram: str, unit: str, node: str) -> bool:
    """Whether the target has the unit after all, though its answer did not arrive."""
    try:
        status = cluster.ask(node, "status", Ping(), NodeStatus)
    except BorealisError:
        return False
    return any(u.diagram == diagram and u.unit == unit and u.state in ("running", "ended") for u in status.units)


def stayed(cluster: Cluster, layout: Layout, unit: UnitAssignment) -> None:
    """A move that was not seen to its end did not happen: if the source has the unit still, it goes on there."""
    status = cluster.living(unit.node).unit(layout.name, unit.unit)
    if status is not None and status.state == "frozen":
        cluster.order(unit.node, "thaw", UnitName(diagram=layout.name, unit=unit.unit))
    cluster.catalog.moving(layout.name, unit.unit, None)
