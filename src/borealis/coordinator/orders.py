"""What nodes are ordered, made from a diagram's layout. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from borealis.coordinator.layout import EntryPlace, Layout, Place, Shield, UnitPlace, reader_names, stream_name
from borealis.diagram.spec import LATE
from borealis.wire.messages import EntryOrder, Guard, Protect, UnitOrder

Address = Callable[[str], str | None]  # where a node is, or None if nobody knows
Role = Literal["primary", "backup"]


def entry_order(layout: Layout, entry: EntryPlace, address: Address, role: Role = "primary") -> EntryOrder:
    """Be this entry point, or its peer."""
    return EntryOrder(
        diagram=layout.name,
        yaml=layout.yaml,
        input=entry.input,
        readers=_readers(layout, entry.input),
        late_readers=_readers(layout, entry.input + LATE),
        guard=_entry_guard(layout, entry, address, role),
        epoch=layout.epoch_of(entry),
    )


def unit_order(
    layout: Layout, unit: UnitPlace, address: Address, take_over: str | None = None, role: Role = "primary"
) -> UnitOrder:
    """Run this unit, or stand by for it."""
    names = reader_names(layout.name, unit)
    return UnitOrder(
        diagram=layout.name,
        yaml=layout.yaml,
        unit=unit.unit,
        boxes=list(unit.boxes),
        buckets=layout.buckets,
        feeds=_streams(layout, feeds(layout, unit, address)),
        readers={arrow: _readers(layout, arrow) for arrow in unit.gives},
        take_over=take_over,
        guard=None if unit.protection is None else _guard(unit.protection, unit, address, role),
        fallbacks=_streams(layout, fallbacks(layout, unit, address)),
        epoch=layout.epoch_of(unit),
        reader=None if len(names) == 1 else names[0 if role == "primary" else 1],
    )


def protect_order(layout: Layout, place: Place, address: Address) -> Protect:
    """Know who stands on the other side now; nobody, if there is no backup."""
    partner = None if place.backup is None else address(place.backup)
    return Protect(
        diagram=layout.name,
        unit=place.unit if isinstance(place, UnitPlace) else "",
        input=place.input if isinstance(place, EntryPlace) else "",
        partner=partner or "",
        partner_node=(place.backup or "") if partner else "",
        incarnation=place.incarnation,
    )


def feeds(layout: Layout, unit: UnitPlace, address: Address) -> dict[str, str]:
    """For each arrow the unit reads the address that serves it, as far as that is known."""
    served = layout.served()
    found = {arrow: address(served[arrow]) for arrow in unit.reads}
    return {arrow: at for arrow, at in found.items() if at is not None}


def fallbacks(layout: Layout, unit: UnitPlace, address: Address) -> dict[str, str]:
    """For each arrow the unit reads the address of the backup of whoever serves it, if there is one."""
    servers = layout.servers()
    backups = {arrow: servers[arrow].backup for arrow in unit.reads}
    found = {arrow: address(node) for arrow, node in backups.items() if node is not None}
    return {arrow: at for arrow, at in found.items() if at is not None}


def _entry_guard(layout: Layout, entry: EntryPlace, address: Address, role: Role) -> Guard | None:
    """Of an entry point `passive` says that all it takes in is mirrored at once."""
    shield = layout.protection_of(entry)
    if shield is None:
        return None
    guard = _guard(shield, entry, address, role)
    mirrored = entry.approach == "mirror"
    kind = {"approach": "passive" if mirrored else "amnesia", "guarantee": "precise" if mirrored else "gap"}
    return guard.model_copy(update=kind)


def _guard(shield: Shield, place: Place, address: Address, role: Role) -> Guard:
    other = place.backup if role == "primary" else place.node
    partner = None if other is None else address(other)
    return Guard(
        approach=shield.approach,
        guarantee=shield.guarantee,
        role=role,
        partner=partner or "",
        partner_node=(other or "") if partner else "",
        incarnation=place.incarnation,
        interval_ms=shield.interval_ms,
        ping_ms=shield.ping_ms,
        misses=shield.misses,
        patience_ms=shield.patience_ms,
    )


def _readers(layout: Layout, arrow: str) -> list[str]:
    return [name for u in layout.readers(arrow) for name in sorted(reader_names(layout.name, u))]


def _streams(layout: Layout, addresses: dict[str, str]) -> dict[str, str]:
    return {stream_name(layout.name, arrow): at for arrow, at in addresses.items()}
