"""What must hold of a whole diagram, one pass a file, in the order in which they build on each other."""

from __future__ import annotations

from collections.abc import Callable

from borealis.diagram.passes import arrows, columns, cycles, ends, expressions, names, windows
from borealis.diagram.spec import Spec

Pass = Callable[[Spec], None]

# Holds of every diagram, also of one that is still being drawn.
SOUND: tuple[Pass, ...] = (names.check, arrows.check, cycles.check, windows.check, columns.check, expressions.check)

PASSES: tuple[Pass, ...] = (*SOUND, ends.check)


def check(spec: Spec, passes: tuple[Pass, ...] = PASSES) -> None:
    """Raise the first DiagramError that a pass finds."""
    for one in passes:
        one(spec)
