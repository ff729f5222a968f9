"""From the diagram that a user draws to the one that is compiled, cut and deployed, one pass a file, in order.

A pass refuses what cannot be, or returns another diagram that gives the same tuples under the same outputs. What it
makes it names after the user's box that it is for, since errors, metrics and `explain` show that name. Done twice it
changes nothing: coordinator and nodes each start from the user's text, and a diagram that was rewritten may come again.
"""

from __future__ import annotations

from collections.abc import Callable

from borealis.diagram.passes import arrows, columns, cycles, ends, expressions, names, replays, revisions, windows
from borealis.diagram.spec import Spec

Pass = Callable[[Spec], Spec]

# Checks that hold of every diagram, also of one that is still being drawn.
SOUND: tuple[Pass, ...] = (
    names.check,
    arrows.check,
    cycles.check,
    windows.check,
    columns.check,
    expressions.check,
    revisions.check,
    replays.check,
)

PASSES: tuple[Pass, ...] = (*SOUND, ends.check, revisions.rewrite, replays.rewrite)


def checked(spec: Spec, passes: tuple[Pass, ...] | None = None) -> Spec:
    """The diagram as the passes leave it; raises the first DiagramError that one finds."""
    for one in PASSES if passes is None else passes:
        spec = one(spec)
    return spec
