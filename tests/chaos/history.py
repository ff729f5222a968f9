"""What happened in a case, and whether that was right: valid, invalid or unknown, never "no exception, so fine"."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from shapes import SHAPES, START_US, STEP_US, Row

from borealis.streams.id_gaps import HOP

SHOWN = 5  # examples of each fault


@dataclass(frozen=True)
class Received:
    """A tuple as a client got it."""

    id: int
    time: int  # of the tuple, microseconds
    row: Row


@dataclass
class History:
    """One case. `events` are for people: publications, kills, looks at the status, each with a moment."""

    case: str
    shape: str
    approach: str
    guarantee: str
    struck: bool = False  # whether a unit that merges streams was taken over: its ids may jump
    both_died: bool = False  # primary and backup at about the same time: more than was promised may be lost
    given_up: str = ""  # what the diagram said when that was so, and it did not go on
    gaps: int = 0  # of which the reader was told
    published: dict[str, int] = field(default_factory=dict)  # rows of each input
    published_then: int = 0  # rows of each input when the last failure came
    received: list[Received] = field(default_factory=list)
    ended: bool = False  # the output, behind everything
    trouble: list[str] = field(default_factory=list)  # what a client or the cluster said that should not be
    events: list[dict[str, Any]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """As JSON lines."""
        facts = asdict(self)
        events, received = facts.pop("events"), facts.pop("received")
        with path.open("w") as file:
            for line in (facts, *events, *received):
                file.write(json.dumps(line) + "\n")


def check(history: History) -> list[str]:
    """What is wrong; nothing, if it is valid. What cannot be known is wrong, too, and begins with `unknown`."""
    if history.both_died and (history.given_up or history.gaps):
        shape = SHAPES[history.shape]
        return history.trouble + _possible(history, shape.truth(history.published), [r.row for r in history.received])
    if history.gaps:
        history.trouble.append(f"{history.gaps} gaps")
    if not history.ended:
        return [*history.trouble, f"unknown: the output did not end; {len(history.received)} rows came"]
    shape = SHAPES[history.shape]
    truth = shape.truth(history.published)
    got = [one.row for one in history.received]
    faults = [*history.trouble, *_flows_on(history)]
    if history.guarantee == "gap":
        return faults + _possible(history, truth, got)
    faults += _missing(truth, got) + _foreign(truth, got)
    if history.guarantee == "precise" or not shape.arbitrary or not history.struck:
        faults += _twice(got) + _holes(history.received)
        faults += _disorder(got, shape.order)
    else:  # what comes again comes behind a jump, also where it was passed on
        faults += _twice([one.row for one in history.received if one.id < HOP])
    return faults


def _flows_on(history: History) -> list[str]:
    """Rows must come that were published after the failure."""
    moment = START_US + history.published_then * STEP_US
    newest = max((one.time for one in history.received), default=0)
    return [] if newest > moment else [f"nothing that was published after the failure came ({newest} <= {moment})"]


def _missing(truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    return _told("missing", set(truth) - set(got))


def _foreign(truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    return _told("wrong", set(got) - set(truth))


def _twice(got: Sequence[Row]) -> list[str]:
    return _told("more than once", (row for row, times in Counter(got).items() if times > 1))


def _holes(received: Sequence[Received]) -> list[str]:
    steps = pairwise([-1, *(one.id for one in received)])
    return _told("ids that do not follow each other", ((a, b) for a, b in steps if b != a + 1))


def _disorder(got: Sequence[Row], column: int | None) -> list[str]:
    if column is None:
        return []
    return _told("out of order", ((a, b) for a, b in pairwise(got) if b[column] < a[column]))


def _possible(history: History, truth: Sequence[Row], got: Sequence[Row]) -> list[str]:
    """Nothing that could not be; a window may have less than it should, and never more."""
    shape = SHAPES[history.shape]
    if shape.plausible is not None:
        return _told("wrong", (row for row in got if not shape.plausible(row)))
    if not shape.windows:
        forgets = shape.stateless and history.approach == "amnesia"
        return _foreign(truth, got) + (_twice(got) if forgets else [])
    most = {row[:-1]: row[-1] for row in truth}
    return _told("wrong", (row for row in set(got) if row[-1] > most.get(row[:-1], -1)))


def _told(what: str, found: Iterable[Any]) -> list[str]:
    some = sorted(found)
    return [f"{len(some)} {what}: {some[:SHOWN]}"] if some else []
