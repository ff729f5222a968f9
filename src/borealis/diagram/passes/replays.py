"""Replays: an aggregate with `history_at` keeps no rows; when one goes, the input's history gives the others again
(Borealis 3.3).

They come along an arrow of their own, through copies of the boxes on the way, so that no other box sees them.
"""

from __future__ import annotations

from collections.abc import Mapping

from borealis.diagram import sql
from borealis.diagram.boxes import Box
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.drop import Drop
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.boxes.history import History, again_for, history_of
from borealis.diagram.boxes.map import Map
from borealis.diagram.boxes.route import Route
from borealis.diagram.durations import show
from borealis.diagram.spec import Spec, origin
from borealis.errors import did_you_mean

LEAVE_OUT = "leave history_at out: then it keeps the rows it needs"


def check(spec: Spec) -> Spec:
    for box in _replayed(spec):
        if box.count is not None or box.timeout is not None:
            what = "a window of tuples" if box.count is not None else "a window with a timeout"
            raise box.wrong(f"history_at for {what}, of which results hang on more than one pane", LEAVE_OUT)
        _check_input(spec, box)
        _way(spec, box)
    return spec


def rewrite(spec: Spec) -> Spec:
    """Behind that of `revisions`, which makes the history boxes."""
    fresh = [box for box in _replayed(spec) if box.replay is None]
    if not fresh:
        return spec
    boxes: dict[str, Box] = {box.name: box for box in spec.boxes}
    for box in fresh:
        way, again = _way(spec, box), again_for(box.name)
        history = boxes[history_of(box.history_at or "")]
        assert isinstance(history, History)
        panes = (history.panes or {}) | {box.name: show(box.grid_us)}
        groups = (history.groups or {}) | {box.name: _grouping(spec, box, way)}
        boxes[history.name] = history.model_copy(update={"panes": panes, "groups": groups})
        arrow = f"{history.name}.{again}"
        for number, one in enumerate(way):
            name = f"{one.name}~{again}"
            boxes[name] = one.model_copy(update={"name": name, "sources": (arrow,)})
            reader = way[number + 1] if number + 1 < len(way) else box
            arrow = name + reader.sources[0].removeprefix(one.name)
        boxes[box.name] = box.model_copy(update={"sources": (box.sources[0], arrow)})
    return spec.model_copy(update={"boxes": tuple(boxes.values())})


def together(spec: Spec) -> dict[str, list[str]]:
    """Aggregates that are given rows again, and what has to be in one unit with each: causes mean nothing elsewhere."""
    found = {}
    for box in _replayed(spec):
        way = _way(spec, box)
        copies = [f"{one.name}~{again_for(box.name)}" for one in way]
        names = [history_of(box.history_at or ""), *(one.name for one in way), *copies]
        found[box.name] = [name for name in names if name in {one.name for one in spec.boxes}]
    return found


def made_names(spec: Spec) -> set[str]:
    """The names of boxes that the pass makes."""
    return {f"{one.name}~{again_for(box.name)}" for box in _replayed(spec) for one in spec.boxes}


def _replayed(spec: Spec) -> list[Aggregate]:
    return [box for box in spec.boxes if isinstance(box, Aggregate) and box.history_at is not None]


def _check_input(spec: Spec, box: Aggregate) -> None:
    inputs = {one.name: one for one in spec.inputs}
    one = inputs.get(box.history_at or "")
    if one is None:
        near = did_you_mean(box.history_at or "", inputs) or f"inputs are {', '.join(inputs)}"
        raise box.wrong(f"history_at: no input '{box.history_at}'", near)
    if not one.key:
        hint = f"give '{one.name}' a key and a history, or leave history_at out"
        raise box.wrong(f"history_at: input '{one.name}' has no key, so that it never takes a row back", hint)


def _way(spec: Spec, box: Aggregate) -> list[Box]:
    """The boxes between the input and the aggregate; refuses what is no chain of boxes without state."""
    starts, way = (box.history_at, history_of(box.history_at or "")), list[Box]()
    arrow, boxes = box.sources[0], {one.name: one for one in spec.boxes}
    while arrow not in starts:
        one = boxes.get(origin(arrow))
        if one is None or isinstance(one, History):
            raise box.wrong(f"history_at: it reads '{arrow}', which does not come from '{box.history_at}'", LEAVE_OUT)
        if not isinstance(one, Filter | Map | Route | Drop):
            why = f"'{one.name}', a {one.kind}, is on the way from '{box.history_at}'"
            raise box.wrong(f"history_at: {why}: its tuples are not those of the input", LEAVE_OUT)
        way.insert(0, one)
        arrow = one.sources[0]
    return way


def _grouping(spec: Spec, box: Aggregate, way: list[Box]) -> tuple[str, ...]:
    """The input's columns that the aggregate groups by, as far as boxes on the way let them through as they are."""
    names: Mapping[str, str] = {name: name for name in box.by}
    for one in reversed(way):
        if isinstance(one, Map):
            known = spec.columns(one.sources[0])
            made = {name: sql.plain_column(text, known) for name, text in one.exprs.items()}
            names = {name: found for name, here in names.items() if (found := made.get(here)) is not None}
    return tuple(dict.fromkeys(names.values()))
