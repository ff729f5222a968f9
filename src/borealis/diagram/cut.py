"""Cutting a diagram into pieces that run as units of their own: in one process, on one node or on many.

A piece is a connected set of boxes. An arrow between two pieces becomes a stream on the wire, named after the input or
box it comes from. Pieces never wait for one another in a circle: an arrow always leads to a later stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from borealis.diagram.boxes import Box
from borealis.diagram.frozen import Frozen
from borealis.diagram.passes.replays import together
from borealis.diagram.spec import ERRORS, Spec, origin
from borealis.errors import DiagramError, OutputError, did_you_mean


class Piece(Frozen):
    """Boxes that run as one unit: which arrows come in, which leave, and where the user wants it."""

    noun: ClassVar[str] = "unit"

    name: str
    boxes: tuple[str, ...]
    reads: tuple[str, ...]  # arrows from inputs, late sides and other pieces
    gives: tuple[str, ...]  # arrows to other pieces and to outputs, and its errors behind them
    place: str | None = None
    errors: str | None = None  # the stream of tuples that a box of it cannot take; None: they stop it


def cut(
    spec: Spec, cuts: Collection[str] = (), places: Mapping[str, str] | None = None, *, local: bool = False
) -> list[Piece]:
    """The pieces of a checked diagram, upstream first, and among those by the first input that each reads.

    A box named in `cuts` begins a new piece. `places` says on which node an input, box or output shall be; what has no
    place goes with its neighbours, and neighbours with different places are cut apart. `local`: without entry points,
    so that an input that no box reads is a piece, too; and if nothing else is said, a tuple no box can take is fatal.
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
    _check_together(spec, home)
    groups: dict[str, list[str]] = {}
    for name in boxes:
        groups.setdefault(home[name], []).append(name)
    inputs = [one.name for one in spec.inputs]
    if local:
        read = {origin(source) for box in spec.boxes for source in box.sources}
        groups |= {name: [] for name in inputs if name not in read}

    def rank(root: str) -> tuple[int, int]:
        reads = {root, *(origin(source) for name in groups[root] for source in boxes[name].sources)}
        return stage.get(root, 0), min((inputs.index(name) for name in reads if name in inputs), default=len(inputs))

    pieces = []
    for number, root in enumerate(sorted(groups, key=rank), 1):
        piece = piece_of(spec, f"u{number}", groups[root], place.get(root), aside=not local)
        pieces.append(piece if groups[root] else piece.model_copy(update={"reads": (root,)}))
    return pieces


def part_of(spec: Spec, piece: Piece) -> Spec:
    """The diagram that a piece is by itself, where nothing is cut; what protects it is not part of what it computes."""
    mine = {*piece.boxes, *map(origin, piece.reads)}
    return Spec(
        name=spec.name,
        inputs=tuple(one for one in spec.inputs if one.name in mine),
        boxes=tuple(box for box in spec.boxes if box.name in mine),
        outputs=tuple(one for one in spec.outputs if origin(one.source) in mine),
        errors=spec.errors,
    )


def check_outputs(spec: Spec, given: Iterable[str]) -> list[str]:
    """All that a local run can put out: outputs, late tuples, those set aside; an OutputError for what is none."""
    aside = [piece.errors for piece in cut(spec, local=True) if piece.errors is not None]
    known = [*(o.name for o in spec.outputs), *(side for i in spec.inputs for side in i.sides), *aside]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f"it has: {', '.join(known)}"
            raise OutputError(f"diagram '{spec.name}' has no output '{name}'", hint=hint)
    return known


def even_cuts(spec: Spec, pieces: int) -> list[str]:
    """Where to cut so that each connected part of the diagram falls into about so many pieces of about equal length."""
    found: list[str] = []
    kept_together = together(spec)
    for piece in cut(spec):
        share = {name: i * pieces // len(piece.boxes) for i, name in enumerate(piece.boxes)}
        share |= {
            name: share[names[0]] for one, names in kept_together.items() if one in share for name in (one, *names)
        }
        for name in piece.boxes:
            before = [share[s] for s in _before(spec.box(name), share)]
            if before and share[name] > max(before):
                found.append(name)
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


def _check_together(spec: Spec, home: Mapping[str, str]) -> None:
    """Refuse to cut between a history and an aggregate to which it gives rows again."""
    for name, others in together(spec).items():
        apart = next((one for one in others if home[one] != home[name]), None)
        if apart is not None:
            why = "rows that come again say when they first came, which only their own unit knows"
            hint = f"cut before '{others[0]}' or behind '{name}', or leave its history_at out"
            raise spec.box(name).wrong(f"history_at: it cannot be in another unit than '{apart}': {why}", hint)


def _before(box: Box, boxes: Collection[str]) -> list[str]:
    """Those of the boxes that this one reads from."""
    return [name for name in map(origin, box.sources) if name in boxes]


def _components(
    boxes: Mapping[str, Box], stage: Mapping[str, int], place: Mapping[str, str | None], cuts: Collection[str]
) -> dict[str, str]:
    """For each box the first box of its piece."""
    home = {name: name for name in boxes}

    def join(a: str, b: str) -> None:
        if stage[a] == stage[b] and place[a] == place[b]:
            first, second = sorted((home[a], home[b]), key=list(boxes).index)
            home.update({name: first for name, root in home.items() if root == second})

    readers: dict[str, str] = {}
    for box in boxes.values():
        if box.name in cuts:
            continue
        for source in map(origin, box.sources):
            if source in boxes:
                join(source, box.name)
            else:  # two boxes that read the same input belong together
                join(readers.setdefault(source, box.name), box.name)
    return home


def piece_of(spec: Spec, name: str, mine: Sequence[str], place: str | None = None, *, aside: bool = True) -> Piece:
    """The piece that these boxes make. `aside`: what they cannot take has a stream, where the diagram does not say."""
    inside = set(mine)
    arrows = spec.arrows()
    reads = {s for box in mine for s in spec.box(box).sources if origin(s) not in inside}
    wanted = {s for box in spec.boxes if box.name not in inside for s in box.sources} | {o.source for o in spec.outputs}
    gives = [a for box in mine for a in spec.box(box).arrows if a in wanted]
    errors = name + ERRORS if spec.errors == "aside" or (spec.errors is None and aside) else None
    if errors in arrows:
        hint = "rename the box or its branch, or set errors to fail"
        raise DiagramError(f"'{errors}' is the stream of what fails in unit '{name}', and of a box", hint=hint)
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
