"""What becomes of tuples that come again after a takeover, in boxes that remember: they count twice.

`no-loss` is a promise about a unit's own output. A reader that is a client sees where ids jump, and what comes again
behind that. A box with state in a unit behind it cannot know which tuples it has had, and puts them into its windows
once more; its own unit passes the jump on, so that readers hear that something may be wrong from there on. State in the
same unit is safe: it is taken over together with the place up to which its input was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from borealis.diagram.cut import Piece
from borealis.diagram.protection import Protection
from borealis.diagram.spec import Spec
from borealis.ha.classes import classify
from borealis.ha.guarantees import recovery_of

DIVERGENT = "divergent"


def warnings(spec: Spec, pieces: Sequence[Piece], protected: Mapping[str, Protection | None]) -> list[str]:
    """A sentence for each unit that may give tuples again to state behind it; nothing where all is well."""
    found = []
    for piece in pieces:
        protection = protected.get(piece.name)
        if protection is None or recovery_of(protection, classify(spec, piece, protection)).kind != DIVERGENT:
            continue
        behind = [box for box in spec.downstream(piece.gives) if box.name not in piece.boxes]
        if boxes := [box.name for box in behind if box.stateful or box.outside]:
            names, counts = ", ".join(f"'{name}'" for name in boxes), "counts" if len(boxes) == 1 else "count"
            found.append(
                f"under '{protection.guarantee}' unit '{piece.name}' may give tuples again after a takeover, and "
                f"{names} behind it {counts} them twice; with the guarantee 'precise' nothing comes again"
            )
    return found
