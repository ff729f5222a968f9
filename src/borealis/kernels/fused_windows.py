"""`undone_windows` in one compiled pass over a train (`loops.fold`), where that is made and can do it.

It has the same tables, so that each train is run in the one form or the other. A pane is an array of entries by group
for as long as the train runs, and so is a window that closes, or of which a pane changes when it was closed. A row is
added to its pane, and to the closed windows that have it, which then show what they were before its cause and are now.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import Count, ExactSum
from borealis.kernels.aggregate import FIRST_CAUSE, FIRST_SUB, PANE, oldest_needed
from borealis.kernels.columns import Columns, concat, decimal_words, piece, room, to_numpy, whole
from borealis.kernels.compiled import loops
from borealis.kernels.flow import Flow, behind_one, empty_flow
from borealis.kernels.groups import END, GROUP, START
from borealis.kernels.kinds import signs
from borealis.kernels.revised_panes import ROWS
from borealis.kernels.undone_windows import UndoneWindows
from borealis.tuples import LAST_TIME, TIME, Int64s

Bools = NDArray[np.bool_]

PANES_MOST = 1 << 18  # from the first that a train may need to the last
CELLS_LEAST = 1 << 16
CELLS_MOST = 8  # for each row and each entry: where most would be empty, columns are better
NO_NULLS: Bools = np.empty((0, 0), np.bool_)


@dataclass(frozen=True)
class _Needed:
    """Panes and windows by number, from the lowest on, that a train needs."""

    lowest: int
    panes: Bools
    window: int  # the lowest
    windows: Bools
    results: int  # what closed windows change gives at most
    most: int  # windows that one cause changes, at most


class FusedWindows(UndoneWindows):
    """The same, of counts and sums."""

    def _fold_and_tell(self, flow: Flow, group: Int64s) -> tuple[Flow, tuple[Columns, Columns]]:
        compiled, many = loops(), self.groups.capacity
        needed = None if compiled is None or self._summed is None else self._needed(compiled, flow, group)
        if compiled is None or needed is None:
            return super()._fold_and_tell(flow, group)
        self._thaw((np.flatnonzero(needed.panes) + needed.lowest) * self.width)
        edges = np.array([needed.lowest, needed.lowest + len(needed.panes)]) * self.width
        low, high = np.searchsorted(self.open[PANE], edges).tolist()
        stored = piece(self.open, low, high)
        number = np.floor_divide(stored[PANE], self.width) - needed.lowest
        needed.panes[number] = True
        used = (np.count_nonzero(needed.panes) + np.count_nonzero(needed.windows)) * many
        if used > max(CELLS_LEAST, CELLS_MOST * (len(flow) + len(number))):
            return super()._fold_and_tell(flow, group)
        place = _places(needed.panes, many)
        cells = np.zeros((np.count_nonzero(needed.panes) * many, compiled.SUMS + 3 * len(self._summed or ())), np.int64)
        at = place[number] + stored[GROUP]
        for name, word in self._words.items():
            cells[at, word] = stored[name]
        stirred = np.zeros(len(cells), np.bool_)
        out = self._told(compiled, needed, place, cells, stirred, flow, group)
        filled = cells[:, compiled.ROWS] > 0
        mine, put, cut = (
            self._entries(cells, needed, np.flatnonzero(some)) for some in (filled, stirred & filled, stirred & ~filled)
        )
        self.open = concat([piece(self.open, 0, low), mine, piece(self.open, high, len(self.open[PANE]))])
        self._note_entries(stored[GROUP], mine[GROUP])
        return out, (put, cut)

    def _told(
        self,
        compiled: ModuleType,
        needed: _Needed,
        place: Int64s,
        cells: Int64s,
        stirred: Bools,
        flow: Flow,
        group: Int64s,
    ) -> Flow:
        """Bring panes up to date, and give what closed windows change, and windows that close."""
        bounds, many = flow.bounds, self.groups.capacity
        slots = np.count_nonzero(needed.windows)
        windows = np.zeros((slots * many + needed.most, cells.shape[1] - 2), np.int64)
        most = 2 * needed.results + len(windows)  # none of which takes memory before it is written
        columns, kind = [room(most, np.int32), *(room(most) for _ in range(3))], room(most, np.int8)
        values = room(windows.shape[1] * most).reshape(windows.shape[1], most)
        made = compiled.fold(
            *(flow.time, flow.cause, flow.sub, signs(flow), group, *self._arguments(flow), self.counted is not None),
            *(bounds.cause, bounds.time, bounds.standing, self.width, self.size, self.slide),
            *(needed.lowest, place, cells, stirred),
            *(needed.window, _places(needed.windows, 1), slots, windows, many, needed.most),
            *(*columns, kind, values),
        )
        if not made:
            return empty_flow(self.signed, bounds)
        groups, end, cause, sub = (column[:made] for column in columns)
        start, time = np.subtract(end, self.size, out=room(made)), np.subtract(end, 1, out=room(made))
        closed: Columns = {GROUP: groups, START: start, END: end, TIME: time}
        closed |= {name: values[max(word - 2, 0), :made] for name, word in self._words.items()}
        rows = self._with_kind(self.result_rows(closed, self.groups.keys(groups)), kind[:made])
        return Flow(rows, closed[TIME], cause, sub, bounds)

    @cached_property
    def _summed(self) -> list[int] | None:
        """The calls that need words of their own; None if one cannot be added up here."""
        for acc in self.accumulators:
            if not isinstance(acc, Count) and not (isinstance(acc, ExactSum) and not acc.long and not acc.average):
                return None
        return [i for i, call in enumerate(self.calls) if call.columns]

    @cached_property
    def _words(self) -> dict[str, int]:
        """Which word of a cell each column of an entry is."""
        summed = self._summed or []
        found = {ROWS: 0, FIRST_CAUSE: 1, FIRST_SUB: 2} | {
            f"c{i}": 0 for i in range(len(self.calls)) if i not in summed
        }
        for place, i in enumerate(summed):
            found |= {f"{name}{i}": 3 + 3 * place + "shc".index(name) for name in self._state[i]}
        return found

    def _arguments(self, flow: Flow) -> tuple[Int64s, Bools, Bools]:
        """Of each call that needs words: a number for each row, whether it is no null, and whether it adds them up."""
        columns = [(whole(flow.rows[self.calls[i].columns[0]]), self.accumulators[i]) for i in self._summed or ()]
        adds = np.array([isinstance(acc, ExactSum) for _, acc in columns], np.bool_)
        numbers = [_numbers(column, acc) if isinstance(acc, ExactSum) else flow.sub for column, acc in columns]
        table = np.ascontiguousarray(numbers[0]).reshape(1, -1) if len(numbers) == 1 else np.array(numbers, np.int64)
        valid = NO_NULLS
        if any(column.null_count for column, _ in columns):
            valid = np.array([column.is_valid().to_numpy(zero_copy_only=False) for column, _ in columns])
        return table.reshape(len(columns), len(flow)), valid, adds

    def _entries(self, cells: Int64s, needed: _Needed, which: Int64s) -> Columns:
        """Cells as the entries of panes."""
        many = self.groups.capacity
        panes = (np.flatnonzero(needed.panes) + needed.lowest) * self.width
        found = {PANE: panes[which // many], GROUP: which % many}
        return {name: found[name] if name in found else cells[which, self._words[name]] for name in self.open}

    def _note_entries(self, before: Int64s, now: Int64s) -> None:
        """Count the entries that each group has."""
        self.entries_of = self.groups.grown(self.entries_of, 0)
        more = np.bincount(now, minlength=len(self.entries_of)) - np.bincount(before, minlength=len(self.entries_of))
        self.entries_of += more
        self.left.append(np.flatnonzero(more < 0))

    def _needed(self, compiled: ModuleType, flow: Flow, group: Int64s) -> _Needed | None:
        """None where there is nothing to do, or too much between the first pane and the last."""
        bounds, step, per = flow.bounds, self.slide // self.width, self.size // self.width
        oldest = oldest_needed(bounds.standing, self.size, self.slide)
        closes = oldest_needed(bounds.final, self.size, self.slide) > oldest
        parts = self._between(oldest, bounds.final) if closes else []
        times = [*(int(part[PANE][place]) for part in parts for place in (0, -1))]
        times += [int(flow.time.min()), int(flow.time.max())] if len(flow) else []
        if not times or max(map(abs, times)) > LAST_TIME // 2:
            return None
        lowest, highest = min(times) // self.width - per, max(times) // self.width + per
        if highest - lowest > PANES_MOST:
            return None
        touched = np.zeros(highest - lowest + 1, np.uint8)
        given = (flow.time, flow.cause, group, bounds.cause, bounds.time, bounds.standing)
        found = compiled.panes_touched(*given, self.width, self.size, self.slide, lowest, touched)
        filled = touched > 0
        for part in parts:
            filled[np.floor_divide(part[PANE], self.width) - lowest] = True
        first = -(-lowest // step)
        start = np.arange(first * step - lowest, len(touched) - per + 1, step)
        end = (start + lowest + per) * self.width
        revised, some = (behind_one(0, np.cumsum(one)) for one in ((touched & compiled.REVISED) > 0, filled))
        windows = (end <= bounds.final) & (revised[start + per] > revised[start])
        if closes:
            windows |= (end > bounds.standing) & (end <= bounds.final) & (some[start + per] > some[start])
        edges = np.zeros(len(touched) + 1, np.int64)
        edges[start[windows]] += 1
        edges[start[windows] + per] -= 1
        panes = (touched > 0) | (np.cumsum(edges)[:-1] > 0)
        return _Needed(lowest, panes, first, windows, *found)


def _places(needed: Bools, many: int) -> Int64s:
    """Where each that is needed begins, all having so many rows; -1 for others."""
    return np.where(needed, (np.cumsum(needed) - 1) * many, -1)


def _numbers(column: pa.Array, acc: ExactSum) -> Int64s:
    """What is added up."""
    if acc.whole:
        return to_numpy(column).astype(np.int64, copy=False)
    return decimal_words(column.cast(pa.decimal128(38, acc.of.scale)))[:, 0]
