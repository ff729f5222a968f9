"""What nodes are ordered, made from a diagram's layout. Pure."""

from __future__ import annotations

from collections.abc import Callable

from borealis.coordinator.layout import EntryPlace, Layout, UnitPlace, reader_name, stream_name
from borealis.diagram.spec import LATE
from borealis.wire.messages import EntryOrder, UnitOrder


def entry_order(layout: Layout, entry: EntryPlace) -> EntryOrder:
    """Be this entry point."""
    return EntryOrder(
        diagram=layout.name,
        yaml=layout.yaml,
        input=entry.input,
        readers=_readers(layout, entry.input),
        late_readers=_readers(layout, entry.input + LATE),
    )


def unit_order(
    layout: Layout, unit: UnitPlace, address: Callable[[str], str | None], take_over: str | None = None
) -> UnitOrder:
    """Run this unit. `address` tells where a node is, or None if nobody knows."""
    return UnitOrder(
        diagram=layout.name,
        yaml=layout.yaml,
        unit=unit.unit,
        boxes=list(unit.boxes),
        buckets=layout.buckets,
        feeds={stream_name(layout.name, arrow): at for arrow, at in feeds(layout, unit, address).items()},
        readers={arrow: _readers(layout, arrow) for arrow in unit.gives},
        take_over=take_over,
    )


def feeds(layout: Layout, unit: UnitPlace, address: Callable[[str], str | None]) -> dict[str, str]:
    """For each arrow the unit reads the address that serves it, as far as that is known."""
    served = layout.served()
    found = {arrow: address(served[arrow]) for arrow in unit.reads}
    return {arrow: at for arrow, at in found.items() if at is not None}


def _readers(layout: Layout, arrow: str) -> list[str]:
    return [reader_name(layout.name, u.unit) for u in layout.readers(arrow)]
