"""Which columns travel on each arrow: a history and a join hold, and give on, only what something behind them reads.

What expressions read is asked of Spark, which resolves them. Columns by which rows are told apart are read, too: if two
rows differ in nothing else, it counts which of them is taken back, for one came first.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from borealis.compile.boxes import form_of
from borealis.compile.expressions import Names
from borealis.diagram.boxes import Box
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.bsort import BSort
from borealis.diagram.boxes.drop import Drop
from borealis.diagram.boxes.filter import Filter
from borealis.diagram.boxes.history import History
from borealis.diagram.boxes.join import Join
from borealis.diagram.boxes.map import Map
from borealis.diagram.boxes.route import Route
from borealis.diagram.join_columns import SIDES
from borealis.diagram.passes.revisions import revised_arrows
from borealis.diagram.spec import Spec
from borealis.diagram.sql import plain_column

HOLDS = (History, Join)  # they leave out what nothing behind them reads
PASSES_ON = (Filter, Drop, Route, BSort)  # they give all columns that they read, and no others


def carried(spec: Spec, frames: Mapping[str, DataFrame]) -> dict[str, Names]:
    """The columns of each arrow, given empty frames with all that it could have."""
    drawn = {arrow: frozenset(frame.columns) for arrow, frame in frames.items()}
    if not any(isinstance(box, HOLDS) for box in spec.boxes):
        return drawn
    wanted = _wanted(spec, frames, drawn)
    found = dict(drawn)
    for box in spec.topological():
        if isinstance(box, HOLDS):
            found |= {arrow: wanted[arrow] for arrow in box.arrows if not _is_aside(box, arrow)}
        elif isinstance(box, PASSES_ON):
            found |= dict.fromkeys(box.arrows, found[box.sources[0]])
        elif box.kind == "union":
            found[box.name] = frozenset.intersection(*(found[source] for source in box.sources))
    return found


def _wanted(spec: Spec, frames: Mapping[str, DataFrame], drawn: Mapping[str, Names]) -> dict[str, Names]:
    """What is read of each arrow, by boxes, outputs and whatever tells its rows apart."""
    wanted = telling(spec)
    for output in spec.outputs:
        wanted[output.source] = drawn[output.source]
    for box in reversed(spec.topological()):
        for arrow in box.arrows:
            if not wanted[arrow]:  # rows without columns cannot be counted everywhere
                wanted[arrow] = frozenset(frames[arrow].columns[:1])
        if isinstance(box, History):  # rows that come again have the columns that they had
            given = [arrow for arrow in box.arrows if not _is_aside(box, arrow)]
            wanted |= dict.fromkeys(given, frozenset[str]().union(*(wanted[arrow] for arrow in given)))
        reads = getattr(form_of(box), "reads", None)
        found = [drawn[source] for source in box.sources]
        if reads is not None:
            found = reads(box, [frames[source] for source in box.sources], {one: wanted[one] for one in box.arrows})
        for source, names in zip(box.sources, found, strict=True):
            wanted[source] |= names
    return wanted


def _is_aside(box: Box, arrow: str) -> bool:
    """Whether it has changes that were not made, which are shown as they came."""
    return isinstance(box, History) and arrow != box.name and arrow not in box.replays


def telling(spec: Spec) -> dict[str, Names]:
    """The columns that tell the rows of an arrow apart which may be taken back; none where none is."""
    found = dict.fromkeys(spec.arrows(), frozenset[str]())
    revised = revised_arrows(spec)
    for box in spec.topological():
        mine = [found[source] for source in box.sources]
        for arrow in box.arrows:
            if arrow in revised:
                found[arrow] = _told_by(
                    box, mine, [spec.columns(one) for one in box.sources], frozenset(spec.columns(arrow))
                )
    return found


def _told_by(box: Box, sources: list[Names], columns: list[list[str]], every: Names) -> Names:
    match box:
        case History():
            return frozenset(box.key)
        case Filter() | Drop() | Route() | BSort():
            return sources[0]
        case Join():  # rows of a side that are never taken back go only with those of the other one, all at once
            told = dict(zip(SIDES, sources, strict=True))
            return frozenset(out for side, column, out in box.output_names(*columns) if column in told[side])
        case Map():
            known = columns[0]
            plain = {plain_column(text, known): name for name, text in box.exprs.items()}
            return frozenset(plain[name] for name in sources[0]) if sources[0] <= plain.keys() else every
        case Aggregate(count=None, timeout=None):
            return frozenset((*box.by, *box.window_columns))
    return every
