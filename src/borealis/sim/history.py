"""What happened to one output, and whether that was right: valid, invalid or unknown, never "no exception, so fine".

Real kills and simulated ones write the same history, and one `check` judges both. What holds of nodes and publishers
rather than of an output is in `invariants.py`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.streams.id_gaps import HOP
from borealis.tuples import Kind

SHOWN = 5  # examples of each fault
TAKE_BACK = (Kind.DELETION, Kind.UPDATE_BEFORE)

Row = tuple[Any, ...]  # plain values that can be compared and counted: see `plain`
Counts = Mapping[str, int]  # rows published to each input


@dataclass(frozen=True)
class Shape:
    """What is true of one output."""

    truth: Callable[[Counts], list[Row]]
    columns: tuple[str, ...]
    order: int | None = None  # the column by which results come in order, if anything is known of it
    windows: bool = False  # the last column counts what is in a window, which the others name
    stateless: bool = False
    arbitrary: bool = False  # behind a unit that merges streams as they arrive
    plausible: Callable[[Row], bool] | None = None  # what holds of a row behind a gap, where the truth does not
    known: bool = True  # False: rows depend on how streams were merged, on the clock or on chance
    kinds: bool = False  # rows may correct earlier ones: their last column is their kind
    alone: bool = False  # it comes from one unit that reads one stream: what one row changes is one change everywhere
    diverges: bool = False  # what comes again behind an arbitrary unit makes other rows here, not the same ones again


@dataclass(frozen=True)
class Received:
    """A tuple as a client got it."""

    id: int
    time: int  # of the tuple, microseconds
    row: Row


@dataclass
class History:
    """One output in one case. `events` are for people: publications, kills, looks at the status, each with a moment."""

    case: str
    output: str
    shape: Shape
    approach: str
    guarantee: str
    struck: bool = False  # whether a unit that merges streams was taken over: its ids may jump
    both_died: bool = False  # primary and backup at about the same time: more than was promised may be lost
    given_up: str = ""  # what the diagram said when that was so, and it did not go on
    resent: bool = False  # a publisher without a receipt may have sent again what an entry point had passed on
    gaps: int = 0  # that the reader heard of
    published: dict[str, int] = field(default_factory=dict)  # rows of each input
    moment: int | None = None  # rows of this time and later were published behind the last failure; None: not known
    received: list[Received] = field(default_factory=list)
    ended: bool = False  # the output, behind everything
    trouble: list[str] = field(default_factory=list)  # what a client or the cluster said that should not be
    events: list[dict[str, Any]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """As JSON lines."""
        apart = ("shape", "events", "received")
        facts = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in apart}
        with path.open("w") as file:
            for line in (facts, *self.events, *map(asdict, self.received)):
                file.write(json.dumps(line, default=str) + "\n")


def plain(rows: pa.RecordBatch | pa.Table, columns: Sequence[str] | None = None) -> list[Row]:
    """The rows as tuples of plain values: times are microseconds, and what is nested is a tuple.

    >>> plain(pa.table({"a": [[1, 2], []], "b": [0.5, float("nan")]}))
    [((1, 2), 0.5), ((), 'NaN')]
    """
    names = rows.schema.names if columns is None else columns
    found = [_values(rows.column(name)) for name in names]
    return list(zip(*found, strict=True)) if found else [()] * rows.num_rows


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return list(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist())
    values = column.to_pylist()
    if pa.types.is_nested(kind) or pa.types.is_floating(kind):
        return [_plain(value) for value in values]
    return list(values)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _plain(one)) for key, one in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def check(history: History) -> list[str]:
    """What is wrong; nothing, if it is valid. What cannot be known is wrong, too, and begins with `unknown`."""
    shape, got = history.shape, [one.row for one in history.received]
    if history.both_died and (history.given_up or history.gaps):
        return history.trouble + _possible(history, got)
    gaps = history.gaps if history.guarantee != "gap" else 0
    trouble = [*history.trouble, *([f"{gaps} gaps"] if gaps else [])]
    if not history.ended:
        return [*trouble, f"unknown: the output did not end; {len(history.received)} rows came"]
    faults = [*trouble, *_flows_on(history)]
    if history.guarantee == "gap":
        return faults + _possible(history, got)
    strict = history.guarantee == "precise" or not shape.arbitrary or not history.struck
    if strict:
        faults += _holes(history.received) + _disorder(got, shape.order)
    if not shape.known or (shape.diverges and not strict):
        return faults
    truth = shape.truth(history.published)
    if shape.kinds:
        return faults + (_changes(shape, truth, got) if strict else [])
    faults += _missing(truth, got) + _foreign(truth, got)
    # where rows may come again, they come behind a jump, also where that was passed on
    return faults + _twice(truth, got if strict else [one.row for one in history.received if one.id < HOP])


def _changes(shape: Shape, truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    """One after the other they leave the right rows; in one unit, they come as they must, one by one."""
    stands, due = _standing(got), _standing(truth)
    faults = _shown("wrong", {row for row in got if row[-1] not in set(Kind)}) + _halves(got)
    faults += _shown("missing", due - stands) + _shown("too much", stands - due)
    if shape.alone and not faults and list(truth) != list(got):
        at = next((n for n, pair in enumerate(zip(truth, got, strict=False)) if pair[0] != pair[1]), None)
        faults.append(f"other changes, from {at} on: {got[at:][:SHOWN]} for {list(truth)[at:][:SHOWN]}")
    return faults


def _standing(rows: Iterable[Row]) -> Counter[Row]:
    """What is left of changes; whatever is taken back without being there is owed."""
    found: Counter[Row] = Counter()
    for *row, kind in rows:
        found[tuple(row)] += -1 if kind in TAKE_BACK else 1
    return Counter({row: times for row, times in found.items() if times})


def _halves(got: Sequence[Row]) -> list[str]:
    """Of pairs whose halves do not follow each other."""
    pairs = pairwise([*got, (Kind.INSERTION,)])
    return _shown("cut pairs", (a for a, b in pairs if a[-1] == Kind.UPDATE_BEFORE and b[-1] != Kind.UPDATE_AFTER))


def _flows_on(history: History) -> list[str]:
    """Rows must come that were published after the failure."""
    if history.moment is None:
        return []
    newest = max((one.time for one in history.received), default=0)
    behind = f"{newest} <= {history.moment}"
    return [] if newest > history.moment else [f"nothing that was published after the failure came ({behind})"]


def _missing(truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    return _shown("missing", Counter(truth) - Counter(got))


def _foreign(truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    return _shown("wrong", set(got) - set(truth))


def _twice(truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    due = Counter(truth)
    return _shown("too often", (row for row, times in Counter(got).items() if times > max(1, due[row])))


def _holes(received: Sequence[Received]) -> list[str]:
    steps = pairwise([-1, *(one.id for one in received)])
    return _shown("ids that do not follow each other", ((a, b) for a, b in steps if b != a + 1))


def _disorder(got: Sequence[Row], column: int | None) -> list[str]:
    if column is None:
        return []
    return _shown("out of order", ((a, b) for a, b in pairwise(got) if b[column] < a[column]))


def _possible(history: History, got: Sequence[Row]) -> list[str]:
    """Nothing that could not be; a window may have less than it should, and never more."""
    shape = history.shape
    if not shape.known:
        return []
    if (plausible := shape.plausible) is not None:
        return _shown("wrong", (row for row in got if not plausible(row)))
    truth = shape.truth(history.published)
    if not shape.windows:
        once = shape.stateless and history.approach == "amnesia" and not history.resent
        return _foreign(truth, got) + (_twice(truth, got) if once else [])
    most = {row[:-1]: row[-1] for row in truth}
    return _shown("wrong", (row for row in set(got) if row[-1] > most.get(row[:-1], -1)))


def _shown(what: str, found: Iterable[Any]) -> list[str]:
    some = list(found)
    try:
        some.sort()
    except TypeError:  # nulls among values
        some.sort(key=repr)
    return [f"{len(some)} {what}: {some[:SHOWN]}"] if some else []
