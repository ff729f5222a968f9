"""Cutting a diagram into pieces that run as units of their own, on one node or on many.

A piece is a connected set of boxes. An arrow between two pieces becomes a stream on the wire, named after the input or
box it comes from. Pieces never wait for one another in a circle: an arrow always leads to a later stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from borealis.diagram.boxes import Box
from borealis.diagram.frozen import Frozen
from borealis.diagram.spec import Spec, origin
from borealis.errors import DiagramError, did_you_mean


class Piece(Frozen):
    """Boxes that run as one unit: which arrows come in, which leave, and where the user wants it."""

    noun: ClassVar[str] = "unit"

    name: str
    boxes: tuple[str, ...]
    reads: tuple[str, ...]  # arrows from inputs, late sides and other pieces
    gives: tuple[str, ...]  # arrows to other pieces and to outputs, and its errors behind them
    place: str | None = None
    errors: str | None = None  # the stream of tuples that a box of it cannot take; None: they stop it


def cut(spec: Spec, cuts: Collection[str] = (), places: Mapping[str, str] | None = None) -> list[Piece]:
    """The pieces of a checked diagram, upstream first.

    A box named in `cuts` begins a new piece. `places` says on which node an input, box or output shall be; what has no
    place goes with its neighbours, and neighbours with different places are cut apart.
    """
    boxes = {box.name: box for box in spec.topological()}
    for name in cuts:
        if name not in boxes:
            raise _unknown(spec, name, "cut before", list(boxes))
    wanted = box_places(spec, places or {})
    place = _spread(boxes, wanted)
    stage: dict[str, int] = {}
    for box in boxes.values():
        stage[box.name] = max(
            (stage[s] + (box.name in cuts or place[s] != place[box.name]) for s in _before(box, boxes)), default=0
        )
    home = _components(boxes, stage, place, cuts)
    order = sorted(dict.fromkeys(home.values()), key=lambda h: (stage[h], list(boxes).index(h)))
    pieces = []
    for number, root in enumerate(order, 1):
        mine = [name for name in boxes if home[name] == root]
        pieces.append(piece_of(spec, f"u{number}", mine, place[root]))
    return pieces


def even_cuts(spec: Spec, pieces: int) -> list[str]:
    """Where to cut so that each connected part of the diagram falls into about so many pieces of about equal length."""
    found: list[str] = []
    for unit in spec.units():
        boxes = [box.name for box in unit.spec.topological()]
        share = {name: i * pieces // len(boxes) for i, name in enumerate(boxes)}
        for box in unit.spec.boxes:
            before = [share[s] for s in _before(box, share)]
            if before and share[box.name] > max(before):
                found.append(box.name)
    return found


def box_places(spec: Spec, places: Mapping[str, str]) -> dict[str, str]:
    """Places of boxes, from those of boxes and outputs; inputs are checked, but are no boxes."""
    boxes = {box.name for box in spec.boxes}
    outputs = {o.name: origin(o.source) for o in spec.outputs}
    inputs = {i.name for i in spec.inputs}
    wanted: dict[str, str] = {}
    for name, node in places.items():
        where = name if name in boxes or name in inputs else outputs.get(name)
        if where is None:
            raise _unknown(spec, name, "place", [*inputs, *boxes, *outputs])
        if where in boxes:
            if wanted.get(where, node) != node:
                raise DiagramError(
                    f"box '{where}' is placed on {wanted[where]} and on {node}", hint="give it one place"
                )
            wanted[where] = node
    return wanted


def _spread(boxes: Mapping[str, Box], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """A place for every box that has a neighbour with one: first down the arrows, then up."""
    place: dict[str, str | None] = {name: wanted.get(name) for name in boxes}
    for box in boxes.values():
        if place[box.name] is None:
            place[box.name] = next((place[s] for s in _before(box, boxes) if place[s] is not None), None)
    for box in reversed(list(boxes.values())):
        for source in _before(box, boxes):
            if place[source] is None:
                place[source] = place[box.name]
    return place


def _before(box: Box, boxes: Collection[str]) -> list[str]:
    """Those of the boxes that this one reads from."""
    return [name for name in map(origin, box.sources) if name in boxes]


def _components(
    boxes: Mapping[str, Box], stage: Mapping[str, int], place: Mapping[str, str | None], cuts: Collection[str]
) -> dict[str, str]:
    """For each box the first box of its piece."""
    home = {name: name for name in boxes}

    def find(name: str) -> str:
        while home[name] != name:
            home[name] = home[home[name]]
            name = home[name]
        return name

    def join(a: str, b: str) -> None:
        if stage[a] == stage[b] and place[a] == place[b]:
            first, second = sorted((find(a), find(b)), key=list(boxes).index)
            home[second] = first

    readers: dict[str, str] = {}
    for box in boxes.values():
        if box.name in cuts:
            continue
        for source in map(origin, box.sources):
            if source in boxes:
                join(source, box.name)
            else:  # two boxes that read the same input belong together
                join(readers.setdefault(source, box.name), box.name)
    return {name: find(name) for name in boxes}


def piece_of(spec: Spec, name: str, mine: Sequence[str], place: str | None = None) -> Piece:
    """The piece that these boxes make."""
    inside = set(mine)
    arrows = spec.arrows()
    reads = {s for box in mine for s in spec.box(box).sources if origin(s) not in inside}
    wanted = {s for box in spec.boxes if box.name not in inside for s in box.sources} | {o.source for o in spec.outputs}
    gives = [a for box in mine for a in spec.box(box).arrows if a in wanted]
    errors = None if spec.errors == "fail" else spec.errors_of(name)
    return Piece(
        name=name,
        boxes=tuple(mine),
        reads=tuple(a for a in arrows if a in reads),
        gives=(*gives, *([] if errors is None else [errors])),
        place=place,
        errors=errors,
    )


def _unknown(spec: Spec, name: str, what: str, known: Iterable[str]) -> DiagramError:
    known = list(dict.fromkeys(known))
    hint = did_you_mean(name, known) or f"it has: {', '.join(known)}"
    return DiagramError(f"cannot {what} '{name}': diagram '{spec.name}' has no such thing", hint=hint)
