"""What nodes are ordered, made from a diagram's layout. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from borealis.coordinator.layout import Layout, UnitAssignment, reader_names, stream_name
from borealis.errors import ClusterError
from borealis.wire.messages import Further, Guard, Protect, Reroute, Role, UnitOrder

Address = Callable[[str], str | None]  # where a node is, or None if that is not known


def unit_order(
    layout: Layout,
    unit: UnitAssignment,
    address: Address,
    take_over: str | None = None,
    role: Role = "primary",
    node: str = "",
) -> UnitOrder:
    """Run this unit, or be this entry point, or stand by for it; of a further copy, also on which node."""
    names = reader_names(layout.name, unit)
    at = unit.nodes.index(node) if role == "copy" else 0 if role == "primary" else 1
    return UnitOrder(
        diagram=layout.name,
        yaml=layout.yaml,
        unit=unit.unit,
        boxes=list(unit.boxes),
        buckets=layout.buckets,
        feeds=_streams(layout, feeds(layout, unit, address)),
        readers={
            arrow: [name for u in layout.readers(arrow) for name in sorted(reader_names(layout.name, u))]
            for arrow in unit.gives
        },
        take_over=take_over,
        guard=_guard(unit, address, role),
        fallbacks=_streams(layout, feeds(layout, unit, address, backups=True)),
        replicated=[stream_name(layout.name, arrow) for arrow in unit.reads if layout.servers()[arrow].replicated],
        copies={
            stream_name(layout.name, arrow): [
                there for node in layout.servers()[arrow].copies if (there := address(node))
            ]
            for arrow in unit.reads
            if layout.servers()[arrow].copies
        },
        epoch=f"{layout.epoch}-{unit.lives}" if unit.protected else None,
        reader=None if names == [f"{layout.name}.{unit.unit}"] else names[at],
    )


def protect_order(layout: Layout, place: UnitAssignment, address: Address, role: Role = "primary") -> Protect:
    """Know the nodes that stand by from now on, as a primary; or the primary, as its new backup."""
    facts: dict[str, Any] = _partner(place.node if role == "backup" else place.backup, address)
    facts |= {"incarnation": place.incarnation, "standing": place.standing, "further": _further(place, address)}
    return Protect(diagram=layout.name, unit=place.unit, role=role, **facts)


def _further(place: UnitAssignment, address: Address) -> Further:
    nodes = {node: at for node in place.copies if (at := address(node))}
    return Further(nodes=nodes, numbers=dict(place.numbers), given=place.given)


def reroute_order(layout: Layout, arrow: str, address: Address) -> Reroute:
    """Read an arrow where it is served now."""
    server = layout.servers()[arrow]
    at = address(server.node)
    if at is None:
        raise ClusterError(f"the address of node '{server.node}' is not known", hint="start it")
    incarnation = server.incarnation if server.protected else 0
    return Reroute(stream=stream_name(layout.name, arrow), address=at, incarnation=incarnation)


def feeds(layout: Layout, unit: UnitAssignment, address: Address, *, backups: bool = False) -> dict[str, str]:
    """For each arrow the unit reads the address of the node that serves it, or of its backup, as far as it is known."""
    servers = [(arrow, layout.servers()[arrow]) for arrow in unit.reads]
    nodes = [(arrow, server.backup if backups else server.node) for arrow, server in servers]
    return {arrow: at for arrow, node in nodes if node is not None and (at := address(node)) is not None}


def _guard(place: UnitAssignment, address: Address, role: Role) -> Guard | None:
    if place.protection is None:
        return None
    partner = _partner(place.backup if role == "primary" else place.node, address)
    facts: dict[str, Any] = {"incarnation": place.incarnation, "standing": place.standing, **partner}
    facts["further"] = _further(place, address)
    return Guard(role=role, protection=place.protection, **facts)


def _partner(node: str | None, address: Address) -> dict[str, Any]:
    """The node on the other side, if there is one and its address is known."""
    at = None if node is None else address(node)
    return {"partner": at, "partner_node": node} if at else {"partner": "", "partner_node": ""}


def _streams(layout: Layout, addresses: dict[str, str]) -> dict[str, str]:
    return {stream_name(layout.name, arrow): at for arrow, at in addresses.items()}
