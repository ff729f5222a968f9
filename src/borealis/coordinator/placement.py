"""Where units and entry points go: where the user says, otherwise where there is least to do. Pure, and the same twice.

>>> from borealis.diagram.cut import Piece
>>> first = Piece(name="u1", boxes=("a",), reads=("packets",), gives=("a",))
>>> pieces = [first, *(Piece(name=name, boxes=(name,), reads=("a",), gives=(name,)) for name in ("u2", "u3"))]
>>> placed = place(pieces, ["packets"], {}, [Load("node1", units=1), Load("node2")])
>>> placed.units, placed.entries
({'u1': 'node2', 'u2': 'node1', 'u3': 'node2'}, {'packets': 'node2'})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from borealis.coordinator.http_errors import AbsentError, MissingError
from borealis.diagram.cut import Piece
from borealis.diagram.spec import origin
from borealis.errors import ClusterError, did_you_mean


@dataclass(frozen=True)
class Load:
    """How much a living node has to do already."""

    name: str
    units: float = 0  # standbys count for a part
    busy: float = 0.0  # of each second, the part that its trains take
    cores: int = 1
    ready: bool = True  # otherwise only what the user places there goes there


@dataclass(frozen=True)
class Placement:
    """A node for each unit and for each input."""

    units: Mapping[str, str]
    entries: Mapping[str, str]


def place(
    pieces: Sequence[Piece], inputs: Sequence[str], places: Mapping[str, str], loads: Iterable[Load]
) -> Placement:
    """A node for everything. An input without a place is where the first unit that reads it is."""
    nodes = {load.name: load for load in sorted(loads, key=lambda load: load.name)}
    if not nodes:
        raise AbsentError("there is no node to run on", hint="start one: borealis node, or borealis up --nodes 3")
    given = {piece.name: piece.place for piece in pieces if piece.place is not None}
    for wanted in (*given.values(), *places.values()):
        if wanted not in nodes:
            raise no_node(wanted, nodes)
    units = dict(given)
    for piece in pieces:
        if piece.name not in units:
            units[piece.name] = idlest(nodes.values(), Counter(units.values()))
    entries: dict[str, str] = {}
    for name in inputs:
        first = next((p.name for p in pieces if name in (origin(arrow) for arrow in p.reads)), None)
        entries[name] = places.get(name) or (units[first] if first else idlest(nodes.values(), Counter(units.values())))
    return Placement({piece.name: units[piece.name] for piece in pieces}, entries)


def idlest(nodes: Iterable[Load], given: Mapping[str, float]) -> str:
    """The node with the fewest units for its cores; among equals the one whose trains take least."""
    return min(nodes, key=lambda n: rank(n, given.get(n.name, 0))).name


def rank(node: Load, given: float = 0) -> tuple[bool, Fraction, float, str]:
    """The least comes first: able, few units for its cores, little to do."""
    return not node.ready, Fraction(node.units + given) / node.cores, node.busy, node.name


def no_node(name: str, known: Iterable[str]) -> ClusterError:
    """The error for a node that is not there."""
    known = sorted(known)
    listing = f"nodes are {', '.join(known)}" if known else "there is none"
    near = did_you_mean(name, known)
    return MissingError(f"there is no node '{name}' ({listing})", hint=near or "start it, or choose one that is there")
