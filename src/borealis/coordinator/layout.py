"""What the catalog knows of one diagram: its units, its entry points, and on which nodes they shall be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from borealis.diagram.protection import Approach, Guarantee
from borealis.diagram.spec import LATE
from borealis.ha.effects import active_reader

State = Literal["deploying", "running", "undeploying"]
Mirroring = Literal["amnesia", "mirror"]


@dataclass(frozen=True)
class Shield:
    """How a unit shall be protected, in the units of the wire."""

    approach: Approach
    guarantee: Guarantee
    interval_ms: float = 500.0
    ping_ms: float = 100.0
    misses: int = 3
    patience_ms: float = 5000.0


@dataclass(frozen=True)
class UnitPlace:
    """A unit and the node it shall run on; `moving_to` is set while it is under way to another."""

    unit: str
    boxes: tuple[str, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    node: str
    moving_to: str | None = None
    protection: Shield | None = None  # None: nothing was promised
    backup: str | None = None  # the node that takes over; None: there is none now
    was: str | None = None  # the node that was on the other side last
    incarnation: int = 1  # rises with each takeover
    lives: int = 1  # rises when both copies are lost and it begins from nothing

    @property
    def protected(self) -> bool:
        """Whether it was promised a backup."""
        return self.protection is not None


@dataclass(frozen=True)
class EntryPlace:
    """An input, the node that is its entry point, and the peer that holds what is not acknowledged yet."""

    input: str
    node: str
    approach: Mirroring | None = None  # None: nothing in the diagram is protected
    backup: str | None = None
    was: str | None = None
    incarnation: int = 1
    lives: int = 1

    @property
    def protected(self) -> bool:
        """Whether it shall have a peer."""
        return self.approach is not None


Place = UnitPlace | EntryPlace


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
    epoch: str = ""  # of the streams of whatever is protected

    def unit(self, name: str) -> UnitPlace | None:
        """The unit of that name, if there is one."""
        return next((u for u in self.units if u.unit == name), None)

    def entry(self, name: str) -> EntryPlace | None:
        """The entry point of that input, if there is one."""
        return next((e for e in self.entries if e.input == name), None)

    def parts(self) -> list[Place]:
        """All that runs somewhere, entry points first."""
        return [*self.entries, *self.units]

    def servers(self) -> dict[str, Place]:
        """Each arrow that can be subscribed to, and who serves it."""
        inputs: dict[str, Place] = {e.input + late: e for e in self.entries for late in ("", LATE)}
        return inputs | {arrow: u for u in self.units for arrow in u.gives}

    def served(self) -> dict[str, str]:
        """Each arrow that can be subscribed to, and the node that serves it."""
        return {arrow: place.node for arrow, place in self.servers().items()}

    def readers(self, arrow: str) -> list[UnitPlace]:
        """The units that read an arrow from the wire."""
        return [u for u in self.units if arrow in u.reads]

    def nodes(self) -> set[str]:
        """Every node that has a part of it, or shall get one."""
        places: set[str | None] = {u.moving_to for u in self.units}
        for place in self.parts():
            places |= {place.node, place.backup}
        return {node for node in places if node is not None}

    def epoch_of(self, place: Place) -> str | None:
        """That of its streams; None where nothing is promised, and each start begins a new one."""
        return f"{self.epoch}-{place.lives}" if place.protected else None

    def protection_of(self, entry: EntryPlace) -> Shield | None:
        """How an entry point is watched: as the first protected unit that reads it, or else any, is."""
        if entry.approach is None:
            return None
        reading = [u for u in self.units if {entry.input, entry.input + LATE} & set(u.reads)]
        return next((u.protection for u in (*reading, *self.units) if u.protection is not None), None)


def stream_name(diagram: str, arrow: str) -> str:
    """How a stream is called between nodes."""
    return f"{diagram}/{arrow}"


def reader_name(diagram: str, unit: str) -> str:
    """How a unit is called by the queues it reads."""
    return f"{diagram}.{unit}"


def reader_names(diagram: str, unit: UnitPlace) -> list[str]:
    """The same for both copies, the primary's first. Only an active standby reads beside its primary."""
    name = reader_name(diagram, unit.unit)
    if unit.protection is None or unit.protection.approach != "active":
        return [name]
    return [active_reader(name, unit.incarnation), active_reader(name, unit.incarnation + 1)]
