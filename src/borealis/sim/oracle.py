"""What must come of any diagram: computed here, as one unit, in one train, with the real entry points and kernels.

Nothing can fail on the way, and nothing is a thread: each input is admitted whole, the inputs are merged by time as
files are, and the kernels of the unit's program are called one after the other. Spark types a diagram once, when it is
compiled; a box that is left to Catalyst cannot be computed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from borealis.compile.unit import Compiled
from borealis.diagram.boxes import Box
from borealis.diagram.boxes.aggregate import Aggregate, AggregatingBox
from borealis.diagram.boxes.bsort import BSort
from borealis.diagram.boxes.join import Join
from borealis.diagram.cut import Piece
from borealis.diagram.passes.revisions import revised_arrows
from borealis.diagram.protection import Protection
from borealis.diagram.spec import LATE, Spec
from borealis.diagram.sql import PLACEHOLDER
from borealis.entry.admission import Admitted, Cursor, EntryPoint
from borealis.errors import DiagramError
from borealis.ha.classes import ARBITRARY, classify
from borealis.kernels.aside import ERRORS
from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.program import Packet, Program, all_bounds, run_level
from borealis.kernels.step import Kernel, schema_of
from borealis.sim.history import Counts, Row, Shape, plain
from borealis.trains.intake import InputSlice
from borealis.trains.merge_order import bounds as bounds_of
from borealis.trains.merge_order import numbered
from borealis.trains.results import Arrived
from borealis.tuples import FIRST_TIME, KIND, LAST_TIME, Int64s

Rows = Callable[[str, int, int], pa.RecordBatch]  # of an input, from one row to before another

# aggregates that give the same in whatever order rows come, as long as sums are exact
UNORDERED = frozenset({"count", "count_distinct", "count_if", "sum", "avg", "min", "max", "bool_and", "bool_or"})


# -- the truth


def truth_of(spec: Spec, compiled: Compiled, inputs: Mapping[str, pa.Table | pa.RecordBatch]) -> dict[str, list[Row]]:
    """All rows of every output, and of `<input>.late`, in the order of one unit. `compiled` is the whole diagram.

    What a box cannot take is left out if the diagram is compiled with a stream for it, and raised if not.
    """
    refuse_unknowable(spec, compiled)
    flows, known = _entered(spec, compiled, inputs)
    program = compiled.program
    bounds = all_bounds(program, known)
    arrived = Arrived(packets=_packets(program, flows, bounds))
    outlets = {name: outlet for name, outlet in compiled.outlets.items() if outlet.flow != ERRORS}
    return {
        name: plain(arrived.flow(outlet.tag, outlet.schema, bounds[outlet.flow]).rows)
        for name, outlet in outlets.items()
    }


def refuse_unknowable(spec: Spec, compiled: Compiled) -> None:
    """A DiagramError for a diagram that cannot be computed in this process alone."""
    left = [step.box for steps, _ in compiled.catalyst.values() for step in steps]
    if left:
        hint = "write its expressions so that `borealis explain` shows Arrow for it"
        raise DiagramError(f"box '{left[0]}' runs in Spark's Catalyst, which is no part of a simulation", hint=hint)
    for box in spec.boxes:
        if hasattr(box, "database"):
            raise box.wrong("a database is no part of a simulation", "leave the box out")


def _entered(
    spec: Spec, compiled: Compiled, inputs: Mapping[str, pa.Table | pa.RecordBatch]
) -> tuple[dict[str, Flow], dict[str, Bounds]]:
    """What the entry points make of the rows: flows of those on time and of those late, and their boundaries."""
    parts: list[Admitted] = []
    for one in spec.inputs:
        entry = EntryPoint(one, spec.paces()[one.name], Cursor(), compiled.times.get(one.name))
        admitted = entry.admit(pa.table(inputs[one.name]).cast(compiled.inputs[one.name]))
        if entry.refused is not None:
            raise entry.refused
        parts.append(admitted)
    pieces = [InputSlice(one.name, rows, (LAST_TIME,)) for one, rows in zip(spec.inputs, parts, strict=True)]
    reached = np.concatenate([np.append(rows.reached, rows.reached.max(initial=FIRST_TIME)) for rows in parts])
    which = np.repeat(np.arange(len(parts)), [len(piece) for piece in pieces])
    causes = numbered(pieces, np.lexsort((which, reached)), 0)
    flows, bounds = {}, {}
    for piece, rows, cause in zip(pieces, parts, causes, strict=True):
        stands = bounds_of(piece, cause)
        at, times = (np.array([one[i] for one in stands], np.int64) for i in (0, 1))
        bounds[piece.name] = Bounds(FIRST_TIME, at, times)
        bounds[piece.name + LATE] = Bounds(FIRST_TIME, at[-1:], times[-1:])  # late tuples come with no promise
        for name, there in ((piece.name, ~rows.late), (piece.name + LATE, rows.late)):
            flows[name] = _flow(rows, cause[rows.row_events], np.flatnonzero(there), bounds[name])
    return flows, bounds


def _flow(part: Admitted, cause: Int64s, index: Int64s, bounds: Bounds) -> Flow:
    rows = part.rows.take(pa.array(index))
    return Flow(rows, part.time[index], cause[index], np.zeros(len(index), np.int64), bounds)


def _packets(program: Program, flows: dict[str, Flow], bounds: Mapping[str, Bounds]) -> list[Packet]:
    """What all levels of a program give; its kernels begin with nothing."""
    kernels: dict[str, Kernel] = {}

    def keep(box: str, make: Callable[[], Kernel]) -> Kernel:
        return kernels.setdefault(box, make())

    found: list[Packet] = []
    for number, level in enumerate(program.levels):
        if number:
            arrived = Arrived(packets=found)
            flows = {flow: arrived.flow(tag, schema_of(text), bounds[flow]) for tag, flow, text in level.arrive}
        found += [one.written() for one in run_level(program, number, 0, flows, keep) if isinstance(one, Packet)]
    return found


# -- what is true of an output


@dataclass
class Oracle:
    """The truth of a diagram for rows that are known beforehand, by how many of each input were published."""

    spec: Spec
    compiled: Compiled  # the whole diagram
    rows: Rows
    _last: tuple[dict[str, int], dict[str, list[Row]]] | None = field(default=None, repr=False)

    def truth(self, counts: Counts) -> dict[str, list[Row]]:
        """All outputs; the last answer is kept, since histories of all outputs ask for the same."""
        wanted = {one.name: counts.get(one.name, 0) for one in self.spec.inputs}
        if self._last is None or self._last[0] != wanted:
            inputs = {name: self.rows(name, 0, count) for name, count in wanted.items()}
            self._last = wanted, truth_of(self.spec, self.compiled, inputs)
        return self._last[1]


def shape_of(oracle: Oracle, pieces: Sequence[Piece], output: str, protection: Protection | None = None) -> Shape:
    """What is true of an output when the diagram runs in these pieces. Nothing right is called wrong:

    - Rows are `known` if no order in which streams are merged changes them: not behind a merge if windows count tuples
      or time out, or if an aggregate looks at the order (UNORDERED has those that do not, of exact sums); not where the
      clock or chance decide, which is so behind an input with `idle`, and not where the oldest go when a queue is full.
    - Where tuples may be lost, filters, joins and the like give less, never something else. A window that only counts
      tuples counts less. Of anything else that has state nothing is known then, and its rows are not judged.
    - Where tuples may come again, an aggregate or resample in a later unit makes something else of them (`diverges`).
    """
    one = next(found for found in oracle.spec.outputs if found.name == output)
    traits = _traits(oracle.spec, pieces, protection)[one.source]
    kinds = one.source in revised_arrows(oracle.spec)
    return Shape(
        lambda counts: oracle.truth(counts)[output],
        (*oracle.spec.columns(one.source), *([KIND] if kinds else [])),
        windows=traits.counts and not traits.arbitrary,
        stateless=traits.stateless,
        arbitrary=traits.arbitrary,
        plausible=None if not kinds and (traits.monotone or (traits.counts and not traits.arbitrary)) else _anything,
        known=traits.known and one.full == "wait",
        kinds=kinds,
        alone=len(pieces) == 1 and not traits.arbitrary,
        diverges=traits.diverges,
    )


def _anything(_: Row) -> bool:
    return True


@dataclass(frozen=True)
class _Traits:
    """What is known of the tuples on an arrow."""

    known: bool = True  # the same rows, however streams are merged
    merged: bool = False  # their order depends on what arrived first
    retimed: bool = False  # their times depend on their order
    arbitrary: bool = False  # their ids may jump
    diverges: bool = False
    stateless: bool = True
    monotone: bool = True  # of fewer tuples at the inputs come fewer here, and no others
    counts: bool = False  # each counts tuples of a window, which may be fewer


def _traits(spec: Spec, pieces: Sequence[Piece], protection: Protection | None) -> dict[str, _Traits]:
    found: dict[str, _Traits] = {}
    for one in spec.inputs:
        found |= dict.fromkeys((one.name, one.name + LATE), _Traits(one.idle_us is None and one.full == "wait"))
    for piece in pieces:
        classified, protected = classify(spec, piece), classify(spec, piece, protection)
        behind = any(found[arrow].arbitrary for arrow in piece.reads)
        for box in (box for box in spec.topological() if box.name in piece.boxes):
            sources = [found[arrow] for arrow in box.sources]
            merged = classified.why[box.name][0] == ARBITRARY or any(one.merged for one in sources)
            retimed = any(one.retimed for one in sources)
            unsure = merged and (_looks_at_order(box) or (retimed and box.stateful))
            monotone = all(one.monotone for one in sources)
            traits = _Traits(
                known=all(one.known for one in sources) and box.name not in classified.random_boxes and not unsure,
                merged=merged,
                retimed=retimed or isinstance(box, BSort),
                arbitrary=behind or protected.nondeterministic,
                diverges=any(one.diverges for one in sources) or (behind and not _passes_on(box)),
                stateless=not box.stateful and all(one.stateless for one in sources),
                monotone=monotone and _passes_on(box) and not (retimed and box.stateful),
                counts=monotone and not retimed and _only_counts(box),
            )
            found |= dict.fromkeys(box.arrows, traits)
    return found


def _passes_on(box: Box) -> bool:
    """Whether each result is made of one tuple, or of one of each side, whatever else there is."""
    return not box.stateful or isinstance(box, Join | BSort)


def _looks_at_order(box: Box) -> bool:
    """Whether its rows, taken together, depend on the order of tuples that it reads."""
    if isinstance(box, Aggregate) and (box.count is not None or box.timeout is not None):
        return True
    if isinstance(box, AggregatingBox):
        return any(call.function not in UNORDERED for call in box.calls)
    return not _passes_on(box)


def _only_counts(box: Box) -> bool:
    """Whether it has one `count(*)` of windows of time, and it is the last column."""
    if not isinstance(box, Aggregate) or box.count is not None or box.timeout is not None or len(box.exprs) != 1:
        return False
    bare = box.finals[next(iter(box.exprs))].strip() == f"{PLACEHOLDER}0"
    return bare and [(call.function, call.arguments) for call in box.calls] == [("count", ())]
