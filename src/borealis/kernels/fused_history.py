"""`history` with compiled passes over a train (`loops`), where these are made and keys are single numbers.

Rows that are insertions, on time and with keys that rise above all others, are not looked at. The few others are judged
one by one, in order. Each column is then copied once, with what leaves in the place of the few.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from borealis.kernels.columns import Columns, places_in, room, whole
from borealis.kernels.compiled import loops
from borealis.kernels.flow import HEAD, NOTHING, Flow, empty_flow
from borealis.kernels.groups import GROUP
from borealis.kernels.history import NONE, WHYS, HistoryKernel
from borealis.kernels.kinds import kinds_of
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta
from borealis.tuples import KIND, KIND_NAMES, TIME, Int8s, Int64s

INTEGERS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True)
class _Leaving:
    """What leaves in the place of the few rows of a train."""

    source: Int64s  # its place in the train, and behind its rows among those that were held
    row: Int64s  # because of which row
    sign: Int8s
    why: Int64s  # or why that changes nothing, a place in WHYS


class _Places:
    """Where a train's rows stay, and where others come in the place of the few: of each those from `first` on."""

    def __init__(self, compiled: ModuleType, few: Int64s, first: Int64s, rows: int) -> None:
        self.compiled, self.few, self.first = compiled, few, first
        self.rows = rows - len(few) + int(first[-1])

    def numbers(self, column: NDArray[Any], source: Int64s, old: NDArray[Any] = NOTHING) -> NDArray[Any]:
        out = room(self.rows, column.dtype)
        self.compiled.SPREAD[8 * column.itemsize](column, self.few, self.first, source, old, out)
        return out

    def column(self, column: pa.Array, source: Int64s, old: pa.Array) -> pa.Array:
        own, others = _bits(column), _bits(old)
        if own is not None and others is not None:
            return pa.array(self.numbers(own, source, others)).view(column.type)
        index = self.numbers(np.arange(len(column)), source, len(column) + np.arange(len(old)))
        return pc.take(pa.concat_arrays([column, old]), pa.array(index), boundscheck=False)


class FusedHistory(HistoryKernel):
    """The same."""

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Each row as the change it makes; what changes nothing says why."""
        compiled = loops()
        if compiled is None or not self._has_numbers(flow):
            return super().step(flow)
        rows, kind, bounds = self._with_words(flow.held(self.schema)), kinds_of(flow.rows), flow.bounds
        word, n = rows[GROUP], len(flow)
        tops, few, oldest = (room(n) for _ in range(3))
        head = word, kind, flow.time, flow.cause, bounds.cause, bounds.time, bounds.standing
        many = compiled.apart(*head, self.history, self.held.groups[1], tops, few, oldest)
        if not many:
            return self._unchanged(flow), self._remember(rows, NOTHING, self.held.empty, bounds)
        few, oldest = few[:many], oldest[:many]
        near, near_time = self.held.last_of(compiled, word[few])
        first, used, stays = np.empty(many + 1, np.int64), np.empty(many, np.int64), np.ones(n, np.bool_)
        source, row, why = (np.empty(2 * many, np.int64) for _ in range(3))
        sign = np.empty(2 * many, np.int8)
        given = few, oldest, word, kind, flow.time, tops, near, near_time
        keys = np.full(1 << many.bit_length() + 1, -1), np.empty(many, np.int64), np.empty(many, np.int64)
        gone = near[used[: compiled.judge(*given, *keys, first, source, row, sign, why, used, stays)]]
        order = np.argsort(gone)
        gone, place = gone[order], places_in(order)
        old = self.held.at(gone)
        leaving = _Leaving(*(one[: first[-1]] for one in (source, row, sign, why)))
        was_held = leaving.source >= n
        leaving.source[was_held] = n + place[leaving.source[was_held] - n]
        out = self._told(_Places(compiled, few, first, n), flow, rows | {KIND: kind}, old, leaving)
        delta = self._remember(rows, gone, {name: old[name] for name in HEAD}, bounds, stays)
        self.held.note_tops(word, tops)
        return out, delta

    def _has_numbers(self, flow: Flow) -> bool:
        """Whether keys are numbers, and none is null."""
        if not len(flow) or len(self.key) != 1:
            return False
        kind, name = self.columns.field(self.key[0]).type, self.key[0]
        plain = pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind)
        return plain and not flow.rows[name].null_count and not any(c.rows[name].null_count for c in self.held.chunks)

    def _told(self, places: _Places, flow: Flow, rows: Columns, old: Columns, leaving: _Leaving) -> Flow:
        """What leaves of these rows, and of those that were held."""
        if not places.rows:
            return empty_flow(self.out, flow.bounds)
        n, behind = len(flow), len(flow) + np.arange(len(leaving.row))
        blank = self._blank(pa.string(), places.rows)
        aside, change, reason = bool(np.any(leaving.why != NONE)), blank, blank
        if aside:
            why, own = places.numbers(np.full(n, NONE), behind, leaving.why), places.numbers(np.arange(n), leaving.row)
            reason = pa.array(WHYS).take(pa.array(why, mask=why == NONE))
            change = pa.array(KIND_NAMES).take(pa.array(rows[KIND][own], mask=why == NONE))
        columns = []
        for name in self.every:
            if name in self.columns.names:
                columns.append(places.column(rows[name], leaving.source, old[name]))
            elif aside:
                columns.append(whole(flow.rows[name]).take(pa.array(own, mask=why == NONE)))
            else:
                columns.append(self._blank(self.out.field(name).type, places.rows))
        sign = pa.array(places.numbers(np.zeros(n, np.int8), behind, leaving.sign))
        cause, time = places.numbers(flow.cause, leaving.row), places.numbers(flow.time, leaving.source, old[TIME])
        sub = room(len(cause))
        places.compiled.ranks(cause, sub)
        return Flow(pa.table([*columns, sign, change, reason], schema=self.out), time, cause, sub, flow.bounds)


def _bits(column: pa.Array) -> NDArray[Any] | None:
    """Values without nulls as integers of their width."""
    kind = column.type
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)
    if not plain or column.null_count:
        return None
    found: NDArray[Any] = column.view(INTEGERS[kind.bit_width]).to_numpy()
    return found


def make(step: Step) -> FusedHistory:
    o = step.options
    return FusedHistory(schema_of(o["schema"]), o["key"], o["history"], o["read"])
