"""What can differ between what is and what shall be, and what one must know to tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from borealis.coordinator.layout import Layout
from borealis.coordinator.membership import Member

GONE_SECONDS = 15.0  # a node that is only paused comes back with what it has


@dataclass(frozen=True)
class Difference:
    """Something to be done about a diagram; `node` is the one whose heartbeats show it."""

    diagram: str
    node: str


@dataclass(frozen=True)
class Unfinished(Difference):
    """A diagram that is being undeployed; no node in particular."""


@dataclass(frozen=True)
class Gone(Difference):
    """The node has parts of a diagram that is no more, or has yet to hear that it is no more."""


@dataclass(frozen=True)
class NoEntry(Difference):
    """An entry point is not where it shall be."""

    input: str


@dataclass(frozen=True)
class NoUnit(Difference):
    """A unit is not where it shall be, nor anywhere else."""

    unit: str


@dataclass(frozen=True)
class StrayEntry(Difference):
    """An entry point is where it shall not be, too."""

    input: str


@dataclass(frozen=True)
class StrayUnit(Difference):
    """A unit is where it shall not be, too."""

    unit: str


@dataclass(frozen=True)
class Arrived(Difference):
    """A unit runs on this node, though the catalog does not say so: its move was not seen to its end."""

    unit: str


@dataclass(frozen=True)
class Stayed(Difference):
    """A unit that was to move is still, or at least not elsewhere than, on this node."""

    unit: str


@dataclass(frozen=True)
class Misled(Difference):
    """A unit on this node was told another address of an arrow than it has now."""

    unit: str
    arrow: str
    address: str


@dataclass(frozen=True)
class Overtaken(Difference):
    """A backup on this node took over, and nobody was here to be asked."""

    unit: str
    input: str
    incarnation: int


@dataclass(frozen=True)
class NoBackup(Difference):
    """A unit or an entry point on this node has not the backup it was promised, and there is a node that could be."""

    unit: str
    input: str


@dataclass(frozen=True)
class Lost(Difference):
    """Both copies of a unit or an entry point are gone; no node in particular, or the one that came back without."""

    unit: str
    input: str


@dataclass(frozen=True)
class Known:
    """What the differences are made of."""

    layouts: Iterable[Layout]
    alive: Mapping[str, Member]
    told: Mapping[tuple[str, str, str], str] = field(default_factory=dict)  # by diagram, unit and arrow
    past: Set[str] = frozenset()
    owed: Set[tuple[str, str]] = frozenset()
    silent: Mapping[str, float] = field(default_factory=dict)  # for how many seconds, of those that are not alive

    def gone(self, node: str) -> bool:
        """Whether it has been silent for so long that nobody waits for what it had."""
        return node not in self.alive and self.silent.get(node, 0.0) >= GONE_SECONDS

    def believed(self, diagram: str) -> dict[str, Member]:
        """The living nodes whose word on a diagram counts; what others have is of an earlier one of that name."""
        return {name: member for name, member in self.alive.items() if (name, diagram) not in self.owed}
