"""Streams that keep the promises of arrows with revisions, by chance: rows come, go and come late."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from borealis.kernels.flow import Bounds, Flow
from borealis.kernels.step import Kernel
from borealis.state.delta import merge_deltas, pack, unpack
from borealis.tuples import FIRST_TIME, KIND, KIND_NAMES, LAST_TIME, Kind

USER = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
SIGN = pa.field(KIND, pa.int8(), nullable=False)
KEYS: list[Any] = [0, 0, 1, None]
VALUES: list[Any] = [None, 0.0, -0.0, float("nan"), 1.5]
ADD, D, UB, UA = Kind.INSERTION, Kind.DELETION, Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER


@dataclass(frozen=True)
class Row:
    """A row as an input has it: what it does, when it is, what it says."""

    kind: Kind
    time: int
    key: int | None
    x: float | None = None
    s: str = ""

    def of(self, kind: Kind) -> Row:
        return Row(kind, self.time, self.key, self.x, self.s)

    @property
    def image(self) -> tuple[str, ...]:
        """What makes two rows the same row, -0.0 being no 0.0."""
        return tuple(map(repr, (self.time, self.key, self.x, self.s)))


@dataclass
class Event:
    """What one cause brings to each of two streams: rows, then perhaps a boundary."""

    rows: tuple[list[Row], list[Row]] = field(default_factory=lambda: ([], []))
    bound: list[int | None] = field(default_factory=lambda: [None, None])


@dataclass
class Streams:
    """Two streams, of which some carry revisions."""

    signed: tuple[bool, bool]
    history: int
    events: list[Event]

    def flow(self, side: int, start: int, end: int) -> Flow:
        found = [(i, sub, row) for i in range(start, end) for sub, row in enumerate(self.events[i].rows[side])]
        raised = [(i, b) for i in range(start, end) if (b := self.events[i].bound[side]) is not None]
        bounds = Bounds(self.boundary(side, start), ints(i for i, _ in raised), ints(b for _, b in raised))
        return flow_of(found, bounds, signed=self.signed[side])

    def boundary(self, side: int, end: int) -> int:
        return max((b for e in self.events[:end] if (b := e.bound[side]) is not None), default=FIRST_TIME)

    def live(self, side: int, end: int) -> list[Row]:
        """The rows that are there after so many events."""
        rows: list[Row] = []
        for event in self.events[:end]:
            for row in event.rows[side]:
                if row.kind in (ADD, UA):
                    rows.append(row)
                else:
                    del rows[max(i for i, other in enumerate(rows) if other.image == row.image)]
        return rows

    def cuts(self, data: st.DataObject) -> list[int]:
        n = len(self.events)
        inner = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
        return [0, *(i for i in range(1, n) if inner[i]), n]


def flow_of(found: list[tuple[int, int, Row]], bounds: Bounds, *, signed: bool) -> Flow:
    """Rows, each behind its cause and sub."""
    rows = [row for _, _, row in found]
    columns = [[row.key for row in rows], [row.x for row in rows], [row.s for row in rows]]
    table = pa.table([pa.array(c, f.type) for c, f in zip(columns, USER, strict=True)], schema=USER)
    if signed:
        table = table.append_column(SIGN, pa.array([row.kind for row in rows], pa.int8()))
    if len(rows) > 2:  # rows come in pieces
        table = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    return Flow(table, ints(r.time for r in rows), ints(i for i, _, _ in found), ints(n for _, n, _ in found), bounds)


def ints(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(list(values), np.int64)


def random_streams(
    dice: Random, size: int, signed: tuple[bool, bool], history: int, values: list[Any] = VALUES
) -> Streams:
    """So many events. By chance alone, as cases that are rich in meetings are rare among simple ones."""
    made = Streams(signed, history, [])
    live: tuple[list[Row], list[Row]] = ([], [])
    now = 0
    for at in range(size):
        event = Event()
        now += dice.randint(0, 2)
        for side in dice.choice([(0,), (1,), (0, 1)]):
            least = max(made.boundary(side, at), -2) - (history if signed[side] else 0)
            for _ in range(dice.randint(0, 3)):
                new = Row(ADD, dice.randint(least, max(least, now) + 2), *map(dice.choice, (KEYS, values, "ab")))
                old = [row for row in live[side] if row.time >= least] if signed[side] else []
                what = dice.choice("++-uu") if old else "+"
                if what != "+":
                    gone = dice.choice(old)
                    event.rows[side].append(gone.of(D if what == "-" else UB))
                    del live[side][next(i for i, row in enumerate(live[side]) if row is gone)]
                    if dice.random() < 0.6:  # most corrections change little
                        new = Row(ADD, gone.time, gone.key, new.x, gone.s)
                if what != "-":
                    event.rows[side].append(new.of(UA if what == "u" else ADD))
                    live[side].append(new)
            rise = dice.choice([None, None, None, now - 3, now - 1, now])
            if at == size - 1 and dice.random() < 0.3:
                rise = LAST_TIME
            if rise is not None and rise > made.boundary(side, at):
                event.bound[side] = rise
        made.events.append(event)
    return made


Change = tuple[int, int, str, tuple[str, ...]]  # cause, sub, kind, what a row shows


def told(flow: Flow) -> list[Change]:
    """What comes out, its time in front of its columns."""
    assert flow.rows.schema.names[-1] == KIND
    *columns, kinds = (column.to_pylist() for column in flow.rows.columns)
    images = [tuple(map(repr, row)) for row in zip(flow.time.tolist(), *columns, strict=True)]
    names = [KIND_NAMES[kind] for kind in kinds]
    return list(zip(flow.cause.tolist(), flow.sub.tolist(), names, images, strict=True))


def state(kernel: Kernel) -> dict[str, str]:
    """All that is held, one NaN being like another."""
    return {name: repr(table.to_pydict()) for name, table in kernel.tables_now().items()}


def check_copies(make: Callable[[], Kernel], trains: Sequence[Sequence[Flow]], data: st.DataObject) -> None:
    """Copies that apply deltas, one by one or merged, go on as the kernel that made them."""
    turn = data.draw(st.integers(0, len(trains)))
    kernel, one_by_one, at_once = make(), make(), make()
    deltas = []
    for train in trains[:turn]:
        deltas.append(unpack(pack(kernel.step(*train)[1])))
        one_by_one.apply(deltas[-1])
        assert state(one_by_one) == state(kernel)
    at_once.apply(merge_deltas(kernel.tables, deltas, whole=data.draw(st.booleans())))
    assert state(at_once) == state(kernel)
    for train in trains[turn:]:
        out, delta = kernel.step(*train)
        for copy in (one_by_one, at_once):
            own, own_delta = copy.step(*train)
            assert told(own) == told(out)
            assert pack(own_delta) == pack(delta)
