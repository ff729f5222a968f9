"""How far back the state of a unit reaches: what upstream must keep so that the unit can be built again from nothing.

Times are event times. Once an outlet of a unit has the boundary b, it emits only tuples with a time of at least b, and
an aggregate only windows that end after b: the time of a result is the last instant of its window. So, going against
the arrows from the outlet:

- an aggregate needs tuples with time > b - size: those of windows that end after b. The slide does not matter,
  nor does a timeout: it depends on the tuples of its own window only. Where windows are counted in tuples it needs
  everything, since the count goes on for ever.
- a join needs tuples with time > b - within, of either side: the other one of the pair is new, so not before b, and the
  two are less than `within` apart. Before, after: both sides alike.
- a resample emits a tuple of its first stream one window late, so those count with time > b - window; and for these,
  tuples of the second stream that are less than a window older: time > b - 2 windows, and a little less. `previous`
  does not wait: with it the second stream counts with time > b - window.
- a bsort may hold a tuple for ever: it needs everything.
- filter, map, drop and union keep nothing, and do not change times.
- boxes in a row add up. A box built anew may emit wrong results for old windows, made of what is no longer there. They
  do not matter: whoever reads them further down could use them only for what ended at or before b.

Late tuples come without boundaries, so state that is made of them is never let go, before the input ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from borealis.diagram.cut import Piece
from borealis.diagram.spec import LATE, Spec
from borealis.tuples import LAST_TIME

Reach = int | None  # microseconds; None: without bound


def retention_of(spec: Spec, piece: Piece) -> dict[str, Reach]:
    """For each arrow that a unit reads, how far behind the unit's least boundary lies what its state depends on.

    With b that boundary: whatever the unit will ever emit depends, of all it has read, only on tuples with
    time > b - reach. 0: it depends on nothing that was read, whatever the boundary; there is no state on the way.
    None: on everything.
    """
    return _reaches(spec, piece, piece.gives)


def retention_horizon(spec: Spec, piece: Piece, bounds: Mapping[str, int]) -> dict[str, Reach]:
    """The same as times, given the boundary of each outlet: tuples at or before that time are never needed again.

    LAST_TIME: nothing that was read is needed. None: everything is. Finer than `retention_of` where outlets differ.
    """
    found: dict[str, Reach] = dict.fromkeys(piece.reads, LAST_TIME)
    for outlet in piece.gives:
        for arrow, reach in _reaches(spec, piece, (outlet,)).items():
            before = found[arrow]
            if reach is None or before is None:
                found[arrow] = None
            elif reach > 0:
                found[arrow] = min(before, bounds[outlet] - reach)
    return found


def _reaches(spec: Spec, piece: Piece, outlets: tuple[str, ...]) -> dict[str, Reach]:
    """The longest way from each arrow that comes in to any of the outlets; 0 also where there is none."""
    mine = set(piece.boxes)
    # late tuples come without boundaries, so what is made of them has none before the input ends
    boundless = {box.name for box in spec.downstream(i.name + LATE for i in spec.inputs)}
    behind: dict[str, Reach] = dict.fromkeys(outlets, 0)  # of the arrows that lead to an outlet
    for box in reversed([box for box in spec.topological() if box.name in mine]):
        ahead = [behind[arrow] for arrow in box.arrows if arrow in behind]
        if not ahead:
            continue
        own = None if box.stateful and box.name in boundless else box.holds_us
        further = _sum(own, reduce(_longer, ahead))
        for source in box.sources:
            behind[source] = _longer(behind.get(source, 0), further)
    return {arrow: behind.get(arrow, 0) for arrow in piece.reads}


def _sum(a: Reach, b: Reach) -> Reach:
    return None if a is None or b is None else a + b


def _longer(a: Reach, b: Reach) -> Reach:
    return None if a is None or b is None else max(a, b)
