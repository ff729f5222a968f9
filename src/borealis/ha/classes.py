"""Which class a unit has (Hwang 3.2.2, figure 3.3): what a backup can promise that computes the same input again.

The classes of boxes are Hwang's. For a whole unit his figure is not enough, since our engine has rules of its own:

- A unit that reads one stream computes the same whatever the trains: the order of everything in it comes from that
  stream. So a union inside it, of branches of that stream, is repeatable.
- A unit that reads several streams merges them as they arrive. A box that more than one of them reaches is arbitrary,
  whatever it does: also a join, whose results are the same but come in another order, and so under other ids. With
  `merge: time` the order comes from the streams again: all is as with one.
- An expression that asks the clock or chance makes any box arbitrary; to know the order of its input does not help. So
  does a table that may have changed when it is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from borealis.diagram.boxes import Box
from borealis.diagram.boxes.base import CLASSES
from borealis.diagram.cut import Piece
from borealis.diagram.passes.revisions import revised_arrows
from borealis.diagram.protection import Protection
from borealis.diagram.repeating import unrepeatable
from borealis.diagram.spec import LATE, Spec
from borealis.ha.retention import retention_of

REPEATABLE, CONVERGENT, DETERMINISTIC, ARBITRARY = CLASSES


@dataclass(frozen=True)
class Classified:
    """The class of a unit, one of CLASSES, and the (class, reason) of each of its boxes."""

    kind: str
    why: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    streams: int = 1  # that it reads
    random_boxes: tuple[str, ...] = ()  # boxes that compute something else the next time, from the same input
    retention: Mapping[str, int | None] = field(default_factory=dict)  # of its state, by arrow: see `retention_of`
    unsafe_effects: tuple[str, ...] = ()  # boxes that change the world outside by what a backup may not come to again
    timeless: Mapping[str, str] = field(default_factory=dict)  # streams it reads that have no boundaries, and a reader
    revised: tuple[str, ...] = ()  # its arrows on which rows are taken back

    @property
    def nondeterministic(self) -> bool:
        """Whether a backup may come to other tuples, or to the same under other ids."""
        return self.kind == ARBITRARY


def classify(spec: Spec, piece: Piece, protection: Protection | None = None) -> Classified:
    """The class of a unit, if it is protected like this: the most general of its boxes'."""
    origins, by_time = _origins(spec, piece), protection is not None and protection.merge == "time"
    why = {name: _box_class(spec.box(name), origins[name], by_time) for name in piece.boxes}
    kind = most_general(one for one, _ in why.values())
    random_boxes = tuple(name for name in piece.boxes if unrepeatable(spec.box(name)) or spec.box(name).nondeterminism)
    effects = _unsafe_effects(spec, piece, random_boxes, by_time)
    late = [arrow for arrow in piece.reads if arrow.endswith(LATE)]  # of such tuples nothing is known before they come
    timeless = {arrow: next(name for name in piece.boxes if arrow in spec.box(name).sources) for arrow in late}
    arrows = (*piece.reads, *(arrow for name in piece.boxes for arrow in spec.box(name).arrows))
    revised = tuple(arrow for arrow in arrows if arrow in revised_arrows(spec))
    return Classified(kind, why, len(piece.reads), random_boxes, retention_of(spec, piece), effects, timeless, revised)


def most_general(classes: Iterable[str]) -> str:
    """Of some classes the one that promises least; of none, repeatable."""
    return CLASSES[max((CLASSES.index(one) for one in classes), default=0)]


def _origins(spec: Spec, piece: Piece) -> dict[str, list[str]]:
    """For each box the arrows into the unit that lead to it."""
    reached = {arrow: {box.name for box in spec.downstream((arrow,))} for arrow in piece.reads}
    return {name: [arrow for arrow in piece.reads if name in reached[arrow]] for name in piece.boxes}


def _unsafe_effects(spec: Spec, piece: Piece, random_boxes: Collection[str], by_time: bool) -> tuple[str, ...]:
    """Boxes with effects outside of a unit that merges streams as they arrive; of another, those behind chance."""
    unsure = set(piece.boxes if len(piece.reads) > 1 and not by_time else random_boxes)
    unsure |= {box.name for box in spec.downstream(arrow for name in unsure for arrow in spec.box(name).arrows)}
    return tuple(name for name in piece.boxes if name in unsure and spec.box(name).outside)


def _box_class(box: Box, origins: list[str], by_time: bool) -> tuple[str, str]:
    call = unrepeatable(box)
    if call:
        return ARBITRARY, f"{call}() gives something else the next time"
    if box.nondeterminism:
        return ARBITRARY, box.nondeterminism
    if len(origins) > 1 and not by_time:
        several = f"{', '.join(origins[:-1])} and {origins[-1]}"
        if len(box.sources) > 1:
            return ARBITRARY, f"{several} meet here as they arrive"
        return ARBITRARY, f"{several} are merged before it as they arrive"
    if box.operator_class == ARBITRARY and len(origins) > 1:
        return REPEATABLE, f"{', '.join(origins[:-1])} and {origins[-1]} are read by time, in an order of their own"
    if box.operator_class == ARBITRARY:
        return REPEATABLE, f"all it merges comes from one stream, {origins[0]}, in the order of that"
    return box.operator_class, box.class_reason
