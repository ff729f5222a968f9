"""What the catalog knows of one diagram: its units, its entry points, and on which nodes they shall be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from borealis.diagram.spec import LATE

State = Literal["deploying", "running", "undeploying"]


@dataclass(frozen=True)
class UnitPlace:
    """A unit and the node it shall run on; `moving_to` is set while it is under way to another."""

    unit: str
    boxes: tuple[str, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    node: str
    moving_to: str | None = None


@dataclass(frozen=True)
class EntryPlace:
    """An input and the node that is its entry point."""

    input: str
    node: str


@dataclass(frozen=True)
class Layout:
    """A diagram as it shall run. Arrows that no other unit and no client can read are not in here."""

    name: str
    yaml: str
    state: State
    units: tuple[UnitPlace, ...]
    entries: tuple[EntryPlace, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)  # a client's name to the arrow it stands for
    cuts: tuple[str, ...] = ()
    places: Mapping[str, str] = field(default_factory=dict)
    buckets: int = 1
    columns: Mapping[str, str] = field(default_factory=dict)  # of each arrow, as DDL
    since: float = 0.0  # seconds since 1970

    def unit(self, name: str) -> UnitPlace | None:
        """The unit of that name, if there is one."""
        return next((u for u in self.units if u.unit == name), None)

    def entry(self, name: str) -> EntryPlace | None:
        """The entry point of that input, if there is one."""
        return next((e for e in self.entries if e.input == name), None)

    def served(self) -> dict[str, str]:
        """Each arrow that can be subscribed to, and the node that serves it."""
        inputs = {e.input + late: e.node for e in self.entries for late in ("", LATE)}
        return inputs | {arrow: u.node for u in self.units for arrow in u.gives}

    def readers(self, arrow: str) -> list[UnitPlace]:
        """The units that read an arrow from the wire."""
        return [u for u in self.units if arrow in u.reads]

    def nodes(self) -> set[str]:
        """Every node that has a part of it, or shall get one."""
        places = {u.node for u in self.units} | {u.moving_to for u in self.units} | {e.node for e in self.entries}
        return {node for node in places if node is not None}


def stream_name(diagram: str, arrow: str) -> str:
    """How a stream is called between nodes."""
    return f"{diagram}/{arrow}"


def reader_name(diagram: str, unit: str) -> str:
    """How a unit is called by the queues it reads."""
    return f"{diagram}.{unit}"
