"""Small diagrams for simulated runs. Few are named here, since Spark types each once; a seed draws how one is run.

Their inputs are those of `shapes.py`, fed with its rows. What must come of them: `oracle.py`. A diagram of a user is
known by the text of its file, wherever one of these is by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any

from borealis.diagram import passes
from borealis.diagram.cut import cut
from borealis.diagram.protection import APPROACHES, GUARANTEES, Protection
from borealis.diagram.spec import Spec
from borealis.errors import DiagramError
from borealis.ha.classes import classify
from borealis.ha.guarantees import check_guarantee
from borealis.sim.shapes import FIRST, FIXED, GROUPS, OTHERS, ROWS, TARDY, Group, text

UNITS_MAX = 3

Way = tuple[str, str]  # approach, guarantee


def _group(inputs: dict[str, str], boxes: Sequence[str], outputs: dict[str, str]) -> Group:
    names = tuple(box.partition(":")[0] for box in boxes)
    return Group(inputs, tuple(boxes), (names,), outputs)


DIAGRAMS: dict[str, Group] = GROUPS | {
    "routed": _group(
        {"left": ROWS},
        (
            "ways: {route: {from: left, branches: {even: n % 2 = 0, third: n % 3 = 0}, otherwise: rest}}",
            "fewer: {drop: {from: ways.rest, rate: 0.5, seed: 7, key: [n]}}",
            "again: {union: {from: [ways.even, fewer]}}",
            "shown: {map: {from: again, exprs: {n: n, twice: 2 * n}}}",
        ),
        {"third": "ways.third", "shown": "shown"},
    ),
    "sorted": _group(
        {"left": ROWS},
        (
            FIRST,
            "sorted: {bsort: {from: first, value: 0 - n % 8, buffer: 20}}",
            "small: {filter: {from: sorted, predicate: k < 3}}",
        ),
        {"sorted": "sorted", "small": "small"},
    ),
    "sampled": _group(
        {"left": ROWS, "other": OTHERS},
        (
            FIRST,
            "near: {resample: {from: [first, other], value: m, how: previous, window: 20 ms}}",
            "shown: {map: {from: near, exprs: {n: n, m: 'coalesce(m, -1L)'}}}",
        ),
        {"shown": "shown"},
    ),
    "counted": _group(
        {"left": ROWS, "right": ROWS},
        (
            "both: {union: {from: [left, right]}}",
            "counted: {aggregate: {from: both, by: [k], size: 100 ms, slide: 50 ms, exprs: {n: count(*)}}}",
            "totals: {aggregate: {from: counted, size: 200 ms, exprs: {n: sum(n), most: max(n)}}}",
        ),
        {"counted": "counted", "totals": "totals"},
    ),
    "paired": _group(
        {"left": ROWS, "other": OTHERS},
        (
            FIRST,
            "paired: {join: {from: [first, other], 'on': left.k = right.g, within: 10 ms}}",
            "pairs: {aggregate: {from: paired, by: [k], size: 100 ms, exprs: {pairs: count(*)}}}",
        ),
        {"paired": "paired", "pairs": "pairs"},
    ),
    "tens": _group(
        {"left": ROWS},
        (
            FIRST,
            "tens: {aggregate: {from: first, by: [k], count: 10, exprs: {least: min(n), n: count(*)}}}",
            "hundreds: {aggregate: {from: tens, size: 400 ms, exprs: {tens: count(*), n: sum(n)}}}",
        ),
        {"tens": "tens", "hundreds": "hundreds"},
    ),
    "corrected": _group(
        {"fixed": FIXED.replace("late: revise", "late: keep")},
        (
            "first: {filter: {from: fixed, predicate: k <> 4}}",
            "counted: {aggregate: {from: first, by: [k], size: 100 ms, slide: 50 ms, exprs: {n: count(*)}}}",
            "totals: {aggregate: {from: counted, size: 200 ms, exprs: {n: sum(n), most: max(n)}}}",
            "tardy: {map: {from: fixed.late, exprs: {n: n}}}",
        ),
        {"first": "first", "counted": "counted", "totals": "totals", "conflict": "fixed.conflict", "tardy": "tardy"}
        | {"settled": "{from: counted, revisions: final}", "many": "{from: counted, important: n > 8}"},
    ),
    "tardy": _group(
        {"tardy": TARDY},
        (
            "first: {filter: {from: tardy, predicate: k <> 4}}",
            "counted: {aggregate: {from: first, by: [k], size: 100 ms, slide: 50 ms, exprs: {n: count(*), m: max(n)}}}",
            "totals: {aggregate: {from: counted, size: 200 ms, exprs: {n: sum(n), most: max(n)}}}",
        ),
        {"first": "first", "counted": "counted", "totals": "totals"},
    ),
    "replayed": _group(
        {"fixed": FIXED},
        (
            "few: {filter: {from: fixed, predicate: k <> 4}}",
            "top: {aggregate: {from: few, by: [k], size: 80 ms, slide: 40 ms, history_at: fixed, exprs: {n: max(n)}}}",
            "totals: {aggregate: {from: top, size: 200 ms, exprs: {windows: count(*), n: max(n)}}}",
            "shown: {map: {from: totals, exprs: {windows: windows, n: 2 * n}}}",
        ),
        {"top": "top", "shown": "shown"},
    ),
    "rematched": _group(
        {"fixed": FIXED, "other": OTHERS},
        (
            "paired: {join: {from: [fixed, other], 'on': left.k = right.g, within: 10 ms}}",
            "pairs: {aggregate: {from: paired, by: [k], size: 100 ms, exprs: {pairs: count(*)}}}",
        ),
        {"paired": "paired", "pairs": "pairs"},
    ),
}


def is_named(diagram: str) -> bool:
    """Whether it is one of these; else it is the text of a file, which has more than one line."""
    return "\n" not in diagram


def yaml_of(diagram: str) -> str:
    """The file of a diagram."""
    return text(DIAGRAMS[diagram], diagram) if is_named(diagram) else diagram


@cache
def spec_of(diagram: str, durable: bool = False) -> Spec:
    """A diagram, checked; without protection, which goes with the deployment. `durable`: all its inputs are."""
    spec = passes.checked(Spec.from_yaml(yaml_of(diagram)))
    inputs = tuple(one.model_copy(update={"durable": one.durable or durable}) for one in spec.inputs)
    return spec.model_copy(update={"protection": (), "inputs": inputs})


@cache
def cuts_of(diagram: str) -> list[tuple[str, ...]]:
    """All ways to cut a diagram into one to three units, each once; in how many it falls apart by itself counts on top.

    A diagram of parts that have nothing to do with each other has a unit for each.
    """
    spec, found = spec_of(diagram), dict[tuple[tuple[str, ...], ...], tuple[str, ...]]()
    most = max(UNITS_MAX, len(cut(spec)))
    for count in range(UNITS_MAX):
        for some in combinations([box.name for box in spec.topological()], count):
            try:
                units = tuple(piece.boxes for piece in cut(spec, some))
            except DiagramError:  # what must stay together
                continue
            if len(units) <= most:
                found.setdefault(units, some)
    return list(found.values())


def allowed(spec: Spec, cuts: Sequence[str]) -> list[Way]:
    """The approaches and guarantees that no unit of a diagram refuses, when it is cut like this."""
    return [
        (approach, guarantee)
        for approach in APPROACHES
        for guarantee in GUARANTEES
        if is_allowed(spec, cuts, ha=approach, guarantee=guarantee)
    ]


def is_allowed(spec: Spec, cuts: Sequence[str], **how: Any) -> bool:
    """Whether no unit of a diagram refuses a protection."""
    try:
        protection = Protection(**how)
        for piece in cut(spec, cuts):
            check_guarantee(protection, classify(spec, piece, protection))
    except DiagramError:
        return False
    return True


@cache
def ways_of(diagram: str) -> list[tuple[tuple[str, ...], str, str]]:
    """All ways to run a diagram: cuts, approach, guarantee.

    Replicas are drawn among active standbys, and what is in storage among passive ones (`plan.py`).
    """
    spec, drawn = spec_of(diagram), ("replicas", "storage")
    return [(cuts, *way) for cuts in cuts_of(diagram) for way in allowed(spec, cuts) if way[0] not in drawn]
