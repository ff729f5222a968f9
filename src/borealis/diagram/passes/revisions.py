"""Revisions: which arrows carry rows that correct earlier ones, and that every box on them can take these.

An input with a history gets a box of its own, in front of all that read it; what reads its side arrows reads those of
that box. An output that wants less than all changes gets one, too, in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from borealis.diagram.boxes import Box
from borealis.diagram.boxes.bsort import BSort
from borealis.diagram.boxes.history import History, history_of
from borealis.diagram.boxes.revisions import Revisions, revisions_of
from borealis.diagram.durations import show
from borealis.diagram.repeating import unrepeatable
from borealis.diagram.spec import LATE, Input, Output, Spec


def revised_arrows(spec: Spec) -> dict[str, int]:
    """The arrows that carry revisions, and how far behind the boundary a row on them can still be corrected."""
    made = {box.name for box in spec.boxes}
    found = {i.name: i.history_us for i in spec.inputs if i.history_us is not None and history_of(i.name) not in made}
    for box in spec.topological():
        if isinstance(box, History):
            found[box.name] = box.history_us
        elif isinstance(box, Revisions) and box.revisions != "all":
            continue  # plain rows come of it
        elif reach := [found[source] for source in box.sources if source in found]:
            found |= dict.fromkeys(box.arrows, max(reach))
    return found


def kept_by(spec: Spec) -> dict[str, int | None]:
    """How long each box keeps what it knows because rows on its arrows may be corrected (Borealis 3.3): no longer than
    a correction can come to it, and use it. None: for ever.
    """
    revised, found = revised_arrows(spec), dict[str, int | None]()
    for box in spec.boxes:
        reach = max((revised[source] for source in box.sources if source in revised), default=None)
        if isinstance(box, History):
            found |= {box.name: box.history_us + box.holds_more_us} if box.key else {}
        elif (box.stateful or box.holds_revised) and reach is not None:
            own = 0 if isinstance(box, Revisions) else box.holds_us
            found[box.name] = None if own is None else reach + own
    return found


def check(spec: Spec) -> Spec:
    revised = revised_arrows(spec)
    for box in spec.boxes:
        at = next((source for source in box.sources if source in revised), None)
        if at is not None and box.unrevised and not isinstance(box, History):
            hint = "draw it from an input without a history, or leave that input's history out"
            raise box.wrong(f"'{at}' carries corrections, which it cannot take: {box.unrevised}", hint)
        if at is not None and (call := unrepeatable(box)):
            why = f"{call}() gives something else the next time, so that what it gave for a row cannot be taken back"
            raise box.wrong(f"'{at}' carries corrections, and {why}", "compute it where rows come in, as a column")
    plain = [box for box in spec.boxes if isinstance(box, Revisions) and box.sources[0] not in revised]
    for one in [*plain, *(one for one in _limited(spec) if one.source not in revised)]:
        hint = "give an input before it a history, or leave out what shall become of corrections"
        raise one.wrong("nothing that leads to it is ever corrected", hint)
    _check_sorted(spec, revised)
    return spec


def _check_sorted(spec: Spec, revised: Mapping[str, int]) -> None:
    """Behind a sort of corrected rows nothing asks when they left it, and after which others: a correction would change
    that for all that came later, not only for what is corrected.
    """
    behind: dict[str, str] = {}  # arrows, and the sort that they come from
    for box in spec.topological():
        at = next((source for source in box.sources if source in behind), None)
        if at is not None and box.stateful and not isinstance(box, BSort | Revisions):
            why = f"'{at}' carries corrections of what '{behind[at]}' sorts"
            why += ": what leaves that, and when, would change with every tuple before it that is corrected"
            raise box.wrong(why, f"draw it from what '{behind[at]}' reads, or leave the history of the input out")
        if at is not None or (isinstance(box, BSort) and box.sources[0] in revised):
            behind |= dict.fromkeys(box.arrows, box.name if at is None else behind[at])


def rewrite(spec: Spec) -> Spec:
    return _with_limits(_with_histories(spec))


def _limited(spec: Spec) -> list[Output]:
    """The outputs that want less than all changes and still get them all."""
    return [one for one in spec.outputs if one.limited and one.source != revisions_of(one.name)]


def _with_limits(spec: Spec) -> Spec:
    revised, boxes, outputs = revised_arrows(spec), list(spec.boxes), {one.name: one for one in spec.outputs}
    for one in _limited(spec):
        name, history = revisions_of(one.name), show(revised[one.source])
        given, important = one.revisions, one.important
        boxes.append(Revisions(name=name, sources=(one.source,), revisions=given, important=important, history=history))
        outputs[one.name] = one.model_copy(update={"source": name})
    if len(boxes) == len(spec.boxes):
        return spec
    return spec.model_copy(update={"boxes": tuple(boxes), "outputs": tuple(outputs.values())})


def _with_histories(spec: Spec) -> Spec:
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
