"""Which trains can wait for company: those of which nothing can come yet, whatever is in their rows.

A window's result comes when the boundary reaches the window's end. Where every way through a unit leads through such
windows, rows that arrive before that change state and no more; it is all the same for its readers whether they are
taken in one by one or together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from borealis.diagram.spec import LATE
from borealis.kernels.aggregate import oldest_needed
from borealis.kernels.program import Program

STATELESS = ("filter", "map", "union")
GivesNothing = Callable[[Mapping[str, int], Mapping[str, int]], bool]  # of inputs' boundaries: as they stand, and then


def gives_nothing(program: Program) -> GivesNothing | None:
    """Tells whether nothing comes of a train that is known by its inputs' boundaries; None: of any train may.

    Late tuples are the asker's business: whatever they pass through, they are not asked about.
    """
    if len(program.levels) != 1:
        return None
    inputs = {name: frozenset((name.removesuffix(LATE),)) for name in program.inputs}
    behind = {name: name.endswith(LATE) for name in program.inputs}  # flows that have nothing before a window ends
    windows: list[tuple[frozenset[str], int, int]] = []  # the inputs whose boundaries reach them, size and slide
    for step in program.levels[0].steps:
        inputs[step.out] = frozenset().union(*(inputs[source] for source in step.sources))
        if step.op == "aggregate":
            windows.append((inputs[step.out], step.options["size"], step.options["slide"]))
        elif step.op not in STATELESS:
            return None
        behind[step.out] = step.op == "aggregate" or all(behind[source] for source in step.sources)
    if not windows or not all(behind[port.flow] for port in program.levels[0].leave):
        return None

    def oldest(boundaries: Mapping[str, int]) -> list[int]:
        return [oldest_needed(min(boundaries[name] for name in names), size, slide) for names, size, slide in windows]

    return lambda before, after: oldest(before) == oldest(after)
