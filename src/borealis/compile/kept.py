"""What boxes keep because their input may be corrected: how long (Borealis 3.3), and about how many rows and bytes.

How long is exact. The rest is an estimate, of state that has grown as far as it will: filters let all rows pass, each
row of a join finds one partner, and a text is short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, gcd

import pyarrow as pa

from borealis.compile.unit import Compiled
from borealis.diagram.boxes import Box
from borealis.diagram.boxes.aggregate import Aggregate
from borealis.diagram.boxes.revisions import Revisions
from borealis.diagram.durations import UNITS_US
from borealis.diagram.passes.revisions import kept_by
from borealis.diagram.spec import Spec
from borealis.kernels.aggregate import PANES
from borealis.kernels.groups import GROUPS
from borealis.kernels.program import MAKERS
from borealis.kernels.replaying_history import FORMER

SECOND_US = UNITS_US["second"]
ROWS_A_SECOND, GROUPS_MOST = 1_000, 1_000  # where nothing is known
TEXT_BYTES, ELEMENTS = 16, 4  # of a text, and of an array
CORRECTED = 0.01  # of all rows: "less than 1%" (Borealis 3.1)


@dataclass(frozen=True)
class Load:
    """What is expected: rows a second of each input, and groups of an aggregate that are there at a time."""

    rates: Mapping[str, float] = field(default_factory=dict)
    rate: float = ROWS_A_SECOND  # of inputs that are not named
    groups: int = GROUPS_MOST


@dataclass(frozen=True)
class Kept:
    """Of a box: how long it keeps what it knows, and about how much that is; None: without bound."""

    for_us: int | None
    rows: int | None
    bytes: int | None


def kept(spec: Spec, compiled: Compiled, load: Load) -> dict[str, Kept]:
    """Of each box that keeps something because rows before it may be corrected."""
    rates, found = _rates(spec, load), {}
    for name, us in kept_by(spec).items():
        box, many, size = spec.box(name), 0.0, 0.0
        tables, each = list(_tables(compiled, name)), [rates[source] for source in _counted(box)]
        for i, (table, schema) in enumerate(tables):
            rate = each[i] if len(tables) == len(each) else sum(each)  # a table for each side, or for all
            rows = 0 if us is None else _rows(box, table, us, rate, load.groups)
            many += rows if table != GROUPS.name else 0
            size += rows * sum(_width(column.type) for column in schema)
        found[name] = Kept(us, *((None, None) if us is None else (ceil(many), ceil(size))))
    return found


def _rates(spec: Spec, load: Load) -> dict[str, float]:
    """Rows a second on every arrow."""
    found = {arrow: load.rates.get(i.name, load.rate) for i in spec.inputs for arrow in (i.name, *i.sides)}
    for box in spec.topological():
        rate = sum(found[source] for source in _counted(box))
        if isinstance(box, Aggregate):
            if box.count is None:
                rate = _groups(box, rate, load.groups) * SECOND_US / box.slide_us
            else:
                rate /= box.every or box.count
        found |= dict.fromkeys(box.arrows, rate)
    return found


def _counted(box: Box) -> tuple[str, ...]:
    """The arrows by which rows come to it; what comes again is not kept."""
    return box.sources[:1] if isinstance(box, Aggregate) else box.sources


def _groups(box: Aggregate, rate: float, most: int) -> float:
    """Groups in a window: no more than it has rows."""
    return min(most, max(1.0, rate * box.size_us / SECOND_US)) if box.by else 1


def _rows(box: Box, table: str, us: int, rate: float, groups: int) -> float:
    """Of one of its tables."""
    if (isinstance(box, Revisions) and box.important is not None) or table == FORMER.name:
        rate *= CORRECTED
    if isinstance(box, Aggregate) and box.count is None:
        some = _groups(box, rate, groups)
        if table == GROUPS.name:
            return some
        if table == PANES.name:
            return min(some * ceil(us / gcd(box.size_us, box.slide_us)), rate * us / SECOND_US)
    return groups if table == GROUPS.name else rate * us / SECOND_US


def _tables(compiled: Compiled, box: str) -> Iterator[tuple[str, pa.Schema]]:
    for level in compiled.program.levels:
        for step in level.steps:
            if step.box == box and step.op in MAKERS:
                yield from ((name, table.schema) for name, table in MAKERS[step.op](step).tables_now().items())


def _width(kind: pa.DataType) -> float:
    """About how many bytes a value takes.

    >>> _width(pa.int64()), _width(pa.bool_()), _width(pa.string()), _width(pa.list_(pa.int8()))
    (8.0, 0.125, 20, 8.0)
    """
    if pa.types.is_struct(kind):
        return sum(_width(one.type) for one in kind)
    if pa.types.is_map(kind):
        return 4 + ELEMENTS * (_width(kind.key_type) + _width(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return 4 + ELEMENTS * _width(kind.value_type)
    try:
        return float(kind.bit_width / 8)
    except ValueError:
        return 4 + TEXT_BYTES
