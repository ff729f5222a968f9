"""Streams written down event by event, the plain twin of sections: tuples and the boundaries between them, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from borealis.streams.section import Section
from borealis.tuples import FIRST_TIME

SCHEMA = pa.schema([("v", pa.int64()), ("s", pa.string())])


@dataclass(frozen=True)
class Tuple:
    """A tuple: its id is also its value; its text has this length."""

    id: int
    text: int = 1

    @property
    def time(self) -> int:
        return 1000 + 7 * self.id


@dataclass(frozen=True)
class Boundary:
    """A boundary before the tuple with id `at`."""

    at: int
    time: int


Events = list[Tuple | Boundary]


def events(shape: Sequence[int], first: int = 0, standing: int = FIRST_TIME) -> Events:
    """Zero is a boundary, anything else a tuple with a text of that length, less one."""
    out: Events = []
    time = max(standing, 0)
    for kind in shape:
        if kind:
            out.append(Tuple(first, kind - 1))
            first += 1
        else:
            time += 3
            out.append(Boundary(first, time))
    return out


def section_of(some: Events, first: int, standing: int) -> Section:
    """These events as a section."""
    tuples = [e for e in some if isinstance(e, Tuple)]
    bounds = [e for e in some if isinstance(e, Boundary)]
    columns = [pa.array([t.id for t in tuples], pa.int64()), pa.array(["x" * t.text for t in tuples], pa.string())]
    return Section(
        first,
        pa.record_batch(columns, schema=SCHEMA),
        np.array([t.time for t in tuples], np.int64),
        np.array([b.at for b in bounds], np.int64),
        np.array([b.time for b in bounds], np.int64),
        standing,
    )


def events_of(section: Section) -> Events:
    """What a section says, one after the other; the section must be sound."""
    assert len(section.time) == section.rows.num_rows
    assert len(section.at) == len(section.bound)
    out: Events = []
    bounds = [Boundary(int(a), int(b)) for a, b in zip(section.at, section.bound, strict=True)]
    assert all(section.first <= b.at <= section.stop and b.time > section.standing for b in bounds)
    assert bounds == sorted(bounds, key=lambda b: (b.at, b.time))
    for i, row in enumerate(section.rows.to_pylist()):
        one = Tuple(section.first + i, len(row["s"]))
        assert (row["v"], int(section.time[i])) == (one.id, one.time)
        while bounds and bounds[0].at == one.id:
            out.append(bounds.pop(0))
        out.append(one)
    return out + bounds


def since(some: Events, start: int, boundary: int = FIRST_TIME) -> Events:
    """What follows an id, for someone who knows of a boundary."""
    return [e for e in some if (e.id >= start if isinstance(e, Tuple) else e.at >= start and e.time > boundary)]


def standing_at(some: Events, start: int) -> int:
    """The boundary in force before an id, without those at it."""
    return max((e.time for e in some if isinstance(e, Boundary) and e.at < start), default=FIRST_TIME)
