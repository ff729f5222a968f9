"""How far back the state of a unit reaches: what upstream must keep so that the unit can be built again from nothing.

Times are event times. Once an outlet of a unit has the boundary b, it emits only tuples with a time of at least b, and
an aggregate only windows that end after b: the time of a result is the last instant of its window. So, going against
the arrows from the outlet:

- a box needs the tuples with time > b - `holds_us`, as it says: an aggregate those of windows that end after b
  (neither slide nor timeout matter, both depend on the tuples of one window only), a join those of either side that a
  new tuple can meet, a resample those that wait and what counts for them, a box that asks a database those that can
  still be taken back. Without a bound, such as where windows are counted in tuples, it needs everything; without
  state nothing, and times stay as they are.
- boxes in a row add up. A box built again may emit wrong results for old windows, made of what is no longer there. They
  do not matter: boxes further down could use them only for what ended at or before b.
- what carries corrections brings tuples with a time of at least b - history, so that all state on a way with such an
  arrow reaches back by that much more.

Late tuples come without boundaries, so state that is made of them is never let go, before the input ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

from borealis.diagram.cut import Piece
from borealis.diagram.passes.revisions import revised_arrows
from borealis.diagram.spec import LATE, Spec
from borealis.tuples import LAST_TIME

Span = int | None  # microseconds; None: without bound


def retention_of(spec: Spec, piece: Piece) -> dict[str, Span]:
    """For each arrow that a unit reads, how far behind the unit's least boundary lies what its state depends on.

    With b that boundary: whatever the unit will ever emit depends, of all it has read, only on tuples with
    time > b - span. 0: it depends on nothing that was read, whatever the boundary; there is no state on the way.
    None: on everything.
    """
    return _spans(spec, piece, piece.gives)


def retention_horizon(spec: Spec, piece: Piece, bounds: Mapping[str, int]) -> dict[str, Span]:
    """The same as times, given the boundary of each outlet: tuples at or before that time are never needed again.

    LAST_TIME: nothing that was read is needed. None: everything is. Finer than `retention_of` where outlets differ.
    """
    return horizon_of(spec, piece)(bounds)


def horizon_of(spec: Spec, piece: Piece) -> Callable[[Mapping[str, int]], dict[str, Span]]:
    """`retention_horizon` of a unit, for boundaries that change again and again."""
    spans = {outlet: _spans(spec, piece, (outlet,)) for outlet in piece.gives}
    return partial(_horizon, piece.reads, spans)


def _horizon(
    reads: Sequence[str], spans: Mapping[str, Mapping[str, Span]], bounds: Mapping[str, int]
) -> dict[str, Span]:
    found: dict[str, Span] = dict.fromkeys(reads, LAST_TIME)
    for outlet, behind in spans.items():
        for arrow, span in behind.items():
            before = found[arrow]
            if span is None or before is None:
                found[arrow] = None
            elif span > 0:
                found[arrow] = min(before, bounds[outlet] - span)
    return found


def _spans(spec: Spec, piece: Piece, outlets: tuple[str, ...]) -> dict[str, Span]:
    """The longest way from each arrow that comes in to any of the outlets; 0 also where there is none."""
    mine = set(piece.boxes)
    # late tuples come without boundaries, so what is made of them has none before the input ends
    boundless = {box.name for box in spec.downstream(i.name + LATE for i in spec.inputs)}
    revised = revised_arrows(spec)
    behind: dict[str, Span] = dict.fromkeys(outlets, 0)  # of the arrows that lead to an outlet
    for box in reversed([box for box in spec.topological() if box.name in mine]):
        ahead = [behind[arrow] for arrow in box.arrows if arrow in behind]
        if not ahead:
            continue
        own = None if box.stateful and box.name in boundless else box.holds_us
        if box.holds_revised:
            own = _sum(own, max((revised.get(source, 0) for source in box.sources), default=0))
        further = _sum(own, reduce(_longer, ahead))
        for source in box.sources:
            behind[source] = _longer(behind.get(source, 0), further)
    spans = {arrow: behind.get(arrow, 0) for arrow in piece.reads}
    history = max((revised.get(arrow, 0) for arrow in behind), default=0)
    return {arrow: span + history if span else span for arrow, span in spans.items()}


def _sum(a: Span, b: Span) -> Span:
    return None if a is None or b is None else a + b


def _longer(a: Span, b: Span) -> Span:
    return None if a is None or b is None else max(a, b)
