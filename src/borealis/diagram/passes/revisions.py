"""Revisions: which arrows carry rows that correct earlier ones, and that every box on them can take these.

An input with a history gets a box of its own, in front of all that read it; what reads its side arrows reads those of
that box.
"""

from __future__ import annotations

from collections.abc import Mapping

from borealis.diagram.boxes import Box
from borealis.diagram.boxes.history import History, history_of
from borealis.diagram.spec import LATE, Input, Spec


def revised_arrows(spec: Spec) -> dict[str, int]:
    """The arrows that carry revisions, and how far behind the boundary a row on them can still be corrected."""
    made = {box.name for box in spec.boxes}
    found = {i.name: i.history_us for i in spec.inputs if i.history_us is not None and history_of(i.name) not in made}
    for box in spec.topological():
        if isinstance(box, History):
            found[box.name] = box.history_us
        elif reach := [found[source] for source in box.sources if source in found]:
            found |= dict.fromkeys(box.arrows, max(reach))
    return found


def check(spec: Spec) -> Spec:
    revised = revised_arrows(spec)
    for box in spec.boxes:
        at = next((source for source in box.sources if source in revised), None)
        if at is not None and box.unrevised and not isinstance(box, History):
            hint = "draw it from an input without a history, or leave that input's history out"
            raise box.wrong(f"'{at}' carries corrections, which it cannot take: {box.unrevised}", hint)
    return spec


def rewrite(spec: Spec) -> Spec:
    made = {box.name for box in spec.boxes}
    fresh = [one for one in spec.inputs if one.history is not None and history_of(one.name) not in made]
    if not fresh:
        return spec
    instead = {arrow: _behind(one, arrow) for one in fresh for arrow in (one.name, *one.sides)}
    boxes: list[Box] = [_history(one) for one in fresh]
    boxes += [_redrawn(box, instead) for box in spec.boxes]
    outputs = [one.model_copy(update={"source": instead.get(one.source, one.source)}) for one in spec.outputs]
    return spec.model_copy(update={"boxes": tuple(boxes), "outputs": tuple(outputs)})


def _history(one: Input) -> History:
    assert one.history is not None
    return History(name=history_of(one.name), sources=(one.name,), key=one.key, history=one.history)


def _behind(one: Input, arrow: str) -> str:
    """The arrow that stands for one of an input."""
    return arrow if arrow == one.name + LATE else history_of(one.name) + arrow.removeprefix(one.name)


def _redrawn(box: Box, instead: Mapping[str, str]) -> Box:
    return box.model_copy(update={"sources": tuple(instead.get(source, source) for source in box.sources)})
