"""Giving units and entry points the copies they were promised, and starting from nothing what all copies have lost.

1. The catalog says which node stands by. A coordinator that finds no standby there orders it again (see drift).
2. The standby is ordered; it answers when it is warm.
3. The primary learns which node stands by, and brings it up to date.

A further copy runs already: it is told that it is the backup now, or the primary, and goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

from borealis.coordinator.cluster import Cluster
from borealis.coordinator.deployment import expectations, loads, order_place
from borealis.coordinator.drift import Copies, copies_of
from borealis.coordinator.http_errors import AbsentError
from borealis.coordinator.layout import Layout, UnitAssignment
from borealis.coordinator.orders import protect_order, reroute_order
from borealis.coordinator.placement import Load, candidates, with_copies
from borealis.coordinator.spreading import shares_of
from borealis.diagram.spec import Spec
from borealis.errors import BorealisError
from borealis.wire.messages import Claim, Claimed, NodeStatus, Ping, Pong, UnitName, called

log = logging.getLogger("borealis.coordinator")
NEVER = -1  # the number of no pair


def protect(cluster: Cluster, layout: Layout, place: UnitAssignment) -> None:
    """Give a running primary a backup; reconcile looks again at what has changed meanwhile.

    A primary that does not answer keeps the backup that it has, which may only be out of reach, and be needed now.
    """
    cluster.ask(place.node, "ping", Ping(), Pong)
    with cluster.choosing:  # others that lack one choose at the same time
        node = _willing(cluster, layout, place)
        could = node in place.copies or (place.checkpointed and node == place.backup)  # that was not told, perhaps
        runs = could and is_copy(cluster, layout, place, node)
        rest = place if runs else place.with_copies(one for one in place.copies if one != node)
        now = rest.backed_by(node, as_it_is=runs)
        if not cluster.catalog.put(layout.name, place, now):
            return
    cluster.settle(node)
    if runs:
        _promote(cluster, layout, now, node)
    else:
        clear(cluster, layout, now, node)
        order_place(cluster, layout, now, "backup")
        cluster.order(now.node, "protect", protect_order(layout, now, cluster.address))
    log.info("%s is protected by %s again", called(layout.name, now.unit), node)


def _promote(cluster: Cluster, layout: Layout, now: UnitAssignment, node: str) -> None:
    """Have a further copy be the backup, as it is."""
    cluster.order(node, "protect", protect_order(layout, now, cluster.address, "backup"))
    cluster.order(now.node, "protect", protect_order(layout, now, cluster.address))


def is_copy(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> bool:
    """Whether a node has a copy of a unit beside its pair, as it says now."""
    return _copies_now(cluster, layout, place, node).further.get(node) is not None


def _copies_now(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> Copies:
    member = cluster.living(node)
    now = replace(member, status=cluster.ask(node, "status", Ping(), NodeStatus))
    return copies_of(layout, place, {node: now})


def complete(cluster: Cluster, layout: Layout, place: UnitAssignment, lost: Collection[str]) -> None:
    """Replace further copies that are lost, give the unit those that it lacks, and its primary all their addresses."""
    cluster.ask(place.node, "ping", Ping(), Pong)
    able = [load for load in _able(cluster) if not (place.checkpointed and cluster.suspected(load.name))]
    gone = {node for node in lost if not _may_be_there(cluster, layout, place, node)}
    now = with_copies(place.with_copies(node for node in place.copies if node not in gone), able)
    if _put_copies(cluster, layout, place, now, gone):
        copies = ", ".join(now.copies) or "no node"
        log.info("further copies of %s are on %s", called(layout.name, now.unit), copies)


def _may_be_there(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> bool:
    """Whether a node has its further copy after all: its last heartbeat may be older."""
    if cluster.members.if_alive(node) is None:
        return False
    try:
        return is_copy(cluster, layout, place, node)
    except BorealisError:
        return False


def begin_exchange(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> bool:
    """Have a copy made on a node that is to be the backup: until it has all, the backup stays."""
    cluster.ask(node, "ping", Ping(), Pong)  # one that has just died is taken for alive for a while
    return _put_copies(cluster, layout, place, place.with_copies([*place.copies, node]))


def end_exchange(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> bool:
    """A further copy that has all is the backup from now on, and the one that was goes."""
    old, now = place.backup, place.backed_by(node, as_it_is=True)
    if old is None or not is_copy(cluster, layout, place, node) or not cluster.catalog.put(layout.name, place, now):
        return False
    _promote(cluster, layout, now, node)
    cluster.try_order(old, "drop", UnitName(diagram=layout.name, unit=place.unit))
    return True


def give_up_exchange(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> UnitAssignment:
    """The copy that was to be the backup goes, and the backup stays."""
    now = place.with_copies(one for one in place.copies if one != node)
    if not _put_copies(cluster, layout, place, now):
        raise AbsentError(
            f"unit '{place.unit}' was taken over at this moment", hint="look at the status, then try again"
        )
    cluster.try_order(node, "drop", UnitName(diagram=layout.name, unit=place.unit))
    return now


def _put_copies(
    cluster: Cluster, layout: Layout, place: UnitAssignment, now: UnitAssignment, anew: Collection[str] = ()
) -> bool:
    """Have a unit's further copies be these, those `anew` as well; false if it has changed meanwhile."""
    if not cluster.catalog.put(layout.name, place, now):
        return False
    if now.checkpointed and now.backup is not None:  # if it takes over, it has to wait for those that have less
        cluster.order(now.backup, "protect", protect_order(layout, now, cluster.address, "backup"))
    for node in now.copies:
        if node not in place.copies or node in anew:
            cluster.settle(node)
            clear(cluster, layout, now, node)
            order_place(cluster, layout, now, "copy", node)
    cluster.order(now.node, "protect", protect_order(layout, now, cluster.address))
    return True


def succeed(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> None:
    """Primary and backup are lost: a further copy goes on, with all that they had."""
    if not is_copy(cluster, layout, place, node):
        return
    now = place if place.node == node else place.succeeded(node)  # it may not have heard of it
    if not cluster.catalog.put(layout.name, place, now):
        return
    log.warning("%s goes on at %s: primary and backup are lost", called(layout.name, now.unit), node)
    cluster.order(node, "protect", protect_order(layout, now, cluster.address))
    cluster.threads.start("borealis-reroute", partial(_reroute_readers, cluster, layout.name, now))


def hand_over(cluster: Cluster, layout: Layout, place: UnitAssignment) -> None:
    """It failed for good on a node that lives: its backup goes on with what it has."""
    now = place.handed_over()
    if now is not place and not cluster.catalog.put(layout.name, place, now):
        return
    log.warning("%s goes on at %s: it failed where it was", called(layout.name, now.unit), now.node)
    cluster.order(now.node, "protect", protect_order(layout, now, cluster.address))
    cluster.threads.start("borealis-reroute", partial(_reroute_readers, cluster, layout.name, now))


def unprotect(cluster: Cluster, layout: Layout, place: UnitAssignment) -> UnitAssignment:
    """Take the backup away, in an order in which it does not take over by mistake."""
    backup, now = place.backup, place.leaving()
    if now == place:
        return place
    if not cluster.catalog.put(layout.name, place, now):
        raise AbsentError(
            f"unit '{place.unit}' was taken over at this moment", hint="look at the status, then try again"
        )
    if backup is None:
        return now
    # one that cannot be reached claims in vain
    cluster.try_order(backup, "drop", UnitName(diagram=layout.name, unit=place.unit))
    cluster.order(now.node, "protect", protect_order(layout, now, cluster.address))
    return now


def restart(cluster: Cluster, layout: Layout, place: UnitAssignment) -> None:
    """All copies are lost: start from nothing, under a new epoch, where it was or where there is least to do."""
    able, what = _able(cluster), called(layout.name, place.unit)
    names = {node.name for node in able}
    durable = any(i.durable for i in Spec.from_yaml(layout.yaml).inputs if i.name == place.input)
    if durable and place.node not in names:
        raise AbsentError(f"{what} has its log on '{place.node}', which is not there", hint="start it")
    other = _next_home(what, place, able)
    now = place.restarted(other)
    if not cluster.catalog.put(layout.name, place, now):
        return
    log.warning("%s begins from nothing on %s: all copies are lost", what, other)
    cluster.settle(other)
    clear(cluster, layout, now, other)
    order_place(cluster, layout, now)


def _next_home(what: str, place: UnitAssignment, able: Sequence[Load]) -> str:
    """Where one that runs nowhere goes: where it was, or where there is least to do."""
    names = {node.name for node in able}
    found = next((name for name in (*place.nodes, *candidates(place, able)) if name in names), None)
    if found is None:
        raise AbsentError(f"no node is there for {what}", hint="start one")
    return found


def restore(cluster: Cluster, layout: Layout, place: UnitAssignment) -> None:
    """It runs nowhere: have it go on where it was, as storage says, or where there is least to do."""
    what = called(layout.name, place.unit)
    other = _next_home(what, place, _able(cluster))
    now = place.succeeded(other)
    if not cluster.catalog.put(layout.name, place, now):
        return
    log.warning("%s goes on at %s, from storage", what, other)
    cluster.settle(other)
    clear(cluster, layout, now, other)
    order_place(cluster, layout, now)
    cluster.threads.start("borealis-reroute", partial(_reroute_readers, cluster, layout.name, now))


def claim(cluster: Cluster, asked: Sequence[Claim]) -> list[Claimed]:
    """What nodes claim, granted or not. A takeover cannot wait until other work on the diagram is done.

    A claim may arrive when the process that made it is dead: only of one that answers it is granted.
    """
    if not all(cluster.is_there(node, process) for node, process in sorted({(c.node, c.process) for c in asked})):
        asked = [one.model_copy(update={"standing": NEVER}) for one in asked]
    found = []
    for wanted, (granted, place) in zip(asked, cluster.catalog.claim(asked), strict=True):
        what = f"{wanted.node}: {wanted.what} {wanted.diagram}.{wanted.unit} #{wanted.incarnation}"
        log.warning("%s %s", "granted to" if granted else "refused to", what)
        if granted and place is not None and place.was is not None:
            cluster.suspect(place.was)
            cluster.news.set()
        if granted and wanted.what == "without" and wanted.copy_node is not None:
            cluster.suspect(wanted.copy_node)
            cluster.news.set()
        if granted and place is not None and wanted.what == "take over":
            cluster.threads.start("borealis-reroute", partial(_reroute_readers, cluster, wanted.diagram, place))
        address = None if place is None else cluster.address(place.node)
        incarnation = wanted.incarnation if place is None else place.incarnation
        found.append(Claimed(granted=granted, incarnation=incarnation, address=address or ""))
    return found


def _reroute_readers(cluster: Cluster, diagram: str, place: UnitAssignment) -> None:
    """Units that read from a deposed primary: most notice that it is dead, but not if it is only frozen."""
    layout = cluster.catalog.layout(diagram)
    if layout is None or cluster.address(place.node) is None:
        return
    for arrow in place.gives:
        order = reroute_order(layout, arrow, cluster.address)
        for node in sorted({node for reader in layout.readers(arrow) for node in reader.nodes}):
            cluster.try_order(node, "reroute", order)


def is_stray(cluster: Cluster, layout: Layout | None, place: UnitAssignment | None, node: str) -> bool:
    """Whether a node's copy is where it shall not be, as things stand now: it may have got another since it said so."""
    if layout is None or place is None or cluster.members.member(node) is None or node not in place.nodes:
        return True
    return node in _copies_now(cluster, layout, place, node).deposed


def drop(cluster: Cluster, diagram: str, unit: str, node: str) -> None:
    """Make a node let go of its copy of a unit or an entry point."""
    cluster.order(node, "drop", UnitName(diagram=diagram, unit=unit))


def clear(cluster: Cluster, layout: Layout, place: UnitAssignment, node: str) -> None:
    """What the node has of it goes first: a standby that was given up may be far behind, and watches no node."""
    if cluster.living(node).unit(layout.name, place.unit) is not None:
        drop(cluster, layout.name, place.unit, node)


def _able(cluster: Cluster) -> list[Load]:
    ready = {member.name for member in cluster.members.alive() if member.status.spark == "ready"}
    return [load for load in loads(cluster) if load.name in ready]


def _willing(cluster: Cluster, layout: Layout, place: UnitAssignment) -> str:
    """The first that answers: a node that has just died is taken for alive for a while."""
    units = {(one.diagram, one.place.unit): one for one in expectations(cluster)}
    mine = units.pop((layout.name, place.unit), None)
    shares = shares_of(one.work for one in units.values())
    for name in candidates(place, _able(cluster), mine.work if mine else None, shares):
        if cluster.suspected(name):
            continue
        try:
            cluster.ask(name, "ping", Ping(), Pong)
            return name
        except BorealisError as error:
            cluster.suspect(name)
            log.info("node %s cannot be a backup now: %s", name, error)
    raise AbsentError("no node is there for a backup", hint="start one")
