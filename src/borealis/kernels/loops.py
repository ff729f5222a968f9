"""Loops over rows that are compiled, for what would take dozens of passes over columns.

Each goes through a train once, in order of causes. None knows Arrow, or what a table is called: they get arrays of
numbers, and write into arrays. This file is imported only where what it compiles to is there (`compiled`).

Sums are kept as `folding.add_ints` writes them, in two words; beside them is how many numbers were added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

from borealis.tuples import Int8s, Int64s

F = TypeVar("F", bound=Callable[..., Any])
Word = numba.int64
Seen = numba.types.Array(Word, 1, "C", readonly=True)  # what is only read may be Arrow's
SeenBytes = numba.types.Array(numba.int8, 1, "C", readonly=True)
SeenTable = numba.types.Array(Word, 2, "C", readonly=True)
Flags, FlagTable = numba.boolean[::1], numba.boolean[:, ::1]
Words, Table = Word[::1], Word[:, ::1]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

ROWS, FIRST_CAUSE, FIRST_SUB, SUMS = 0, 1, 2, 3  # where in a pane's entry what stands; sums take three words each
OF_WINDOW = 1  # where in a window's entry the sums begin, behind the number of its rows
TOUCHED, REVISED = 1, 2  # of a pane: by a row; by one for which a window was closed
LEAST = np.iinfo(np.int64).min
MOST = np.iinfo(np.int64).max


def compiled(*kinds: Any, allocates: bool = False) -> Callable[[F], F]:
    """A function of these kinds of arguments as machine code, kept on disk. References to arrays are counted only where
    it `allocates` some: counting takes more than many of these loops do."""

    def made(function: F) -> F:
        machine: F = numba.njit([kinds], cache=True, error_model="numpy", nogil=True, _nrt=allocates)(function)
        return machine

    return made


# -- windows


@compiled(Seen, Seen, Seen, Seen, Seen, Word, Word, Word, Word, Word, numba.uint8[::1])
def panes_touched(
    time: Int64s,
    cause: Int64s,
    group: Int64s,
    bound_cause: Int64s,
    bound_time: Int64s,
    standing: int,
    width: int,
    size: int,
    slide: int,
    lowest: int,
    touched: Bytes,
) -> tuple[int, int]:
    """Mark the panes of all rows, `lowest` being the number of the first. Returns how many times a row changes a closed
    window, at most: in all, and by one cause."""
    at, bound, begin, end = standing, 0, 1, 0
    pane, first, last = 0, 0, 0
    every, most, here, before = 0, 0, 0, LEAST
    change_begin, change_group = MOST, -1
    for i in range(len(time)):
        if cause[i] != before:
            before = cause[i]
            most, here, change_begin = max(most, here), 0, MOST
            while bound < len(bound_cause) and bound_cause[bound] < before:
                at = bound_time[bound]
                bound += 1
        if time[i] < begin or time[i] >= end:
            number = time[i] // width
            begin = number * width
            end, pane = begin + width, number - lowest
            first, last = (begin - size) // slide + 1, begin // slide
        if first * slide + size > at:
            touched[pane] |= TOUCHED
            continue
        touched[pane] |= TOUCHED | REVISED
        if begin == change_begin and group[i] == change_group:
            continue
        change_begin, change_group = begin, group[i]
        many = min(last, (at - size) // slide) - first + 1
        every += many
        here += many
    return every, max(most, here)


@compiled(Seen, Seen, Word, Word, Word, Words, Words)
def codes_of(time: Int64s, group: Int64s, width: int, least: int, many: int, first: Int64s, code: Int64s) -> None:
    """Write of each row the number of its pane and group, from the pane of number `least` on; and of each such number,
    which stands at -1, the first row."""
    begin, end, base = 1, 0, 0
    for i in range(len(time)):
        if time[i] < begin or time[i] >= end:
            number = time[i] // width
            begin = number * width
            end, base = begin + width, (number - least) * many
        at = base + group[i]
        code[i] = at
        if first[at] < 0:
            first[at] = i


@compiled(Word, Word, Word)
def _carry(had: int, more: int, total: int) -> int:
    """What the sum of two words carries into the next one."""
    if more >= 0:
        return 1 if total < had else 0
    return -1 if total > had else 0


@compiled(Word, Word, Word)
def _last_closed(boundary: int, size: int, slide: int) -> int:
    """The number of the last window that ends by a boundary."""
    return LEAST if boundary <= LEAST + size else (boundary - size) // slide


@compiled(Word, Word, SeenTable, FlagTable, Table)
def _note_moves(goes: int, comes: int, values: Int64s, valid: Bools, moves: Int64s) -> None:
    """Write what one row that goes and one that comes, or -1 for none, do to each sum: two words, and how many."""
    for call in range(len(values)):
        low, high, many = 0, 0, 0
        if goes >= 0 and (len(valid) == 0 or valid[call, goes]):
            low, many = -values[call, goes], -1
            high = 1 if low == LEAST else 0
        if comes >= 0 and (len(valid) == 0 or valid[call, comes]):
            value = values[call, comes]
            high += _carry(low, value, low + value)
            low, many = low + value, many + 1
        moves[call, 0], moves[call, 1], moves[call, 2] = low, high, many


@compiled(Table, Word, Word, Word, Table)
def _move(table: Int64s, row: int, rows: int, own: int, moves: Int64s) -> None:
    """Change a number of rows, and the sums from a place on."""
    table[row, ROWS] += rows
    for call in range(len(moves)):
        to, had, low = own + 3 * call, table[row, own + 3 * call], moves[call, 0]
        table[row, to] = had + low
        table[row, to + 1] += moves[call, 1] + _carry(had, low, had + low)
        table[row, to + 2] += moves[call, 2]


@compiled(Word, Word, Word, Word, Word, Word, Seen, Table, Table, Word)
def _put_together(
    window: int,
    slot: int,
    slots: int,
    step: int,
    panes: int,
    lowest: int,
    place: Int64s,
    cells: Int64s,
    windows: Int64s,
    many: int,
) -> None:
    """One window of all groups from its panes, into its row of each group. Windows are `step` panes apart and have
    `panes` each; `place` says where a pane begins in `cells`, or -1."""
    calls = (cells.shape[1] - SUMS) // 3
    for group in range(many):
        windows[group * slots + slot] = 0
    for number in range(window * step - lowest, window * step - lowest + panes):
        if number < 0 or number >= len(place) or place[number] < 0:
            continue
        for group in range(many):
            cell, row = place[number] + group, group * slots + slot
            if cells[cell, ROWS] == 0:
                continue
            windows[row, ROWS] += cells[cell, ROWS]
            for call in range(calls):
                own = SUMS + 3 * call
                to, low = OF_WINDOW + 3 * call, cells[cell, own]
                had = windows[row, to]
                windows[row, to] = had + low
                windows[row, to + 1] += cells[cell, own + 1] + _carry(had, low, had + low)
                windows[row, to + 2] += cells[cell, own + 2]


@compiled(Word, Word, Word, Word, Seen, Table, Word, allocates=True)
def _in_order_of_first(
    window: int, step: int, panes: int, lowest: int, place: Int64s, cells: Int64s, many: int
) -> Int64s:
    """The groups that a window has, in order of their first rows in it."""
    cause, sub = np.full(many, MOST), np.full(many, MOST)
    for number in range(window * step - lowest, window * step - lowest + panes):
        if number < 0 or number >= len(place) or place[number] < 0:
            continue
        for group in range(many):
            cell = place[number] + group
            if cells[cell, ROWS] == 0:
                continue
            other, rank = cells[cell, FIRST_CAUSE], cells[cell, FIRST_SUB]
            if other < cause[group] or (other == cause[group] and rank < sub[group]):
                cause[group], sub[group] = other, rank
    found = np.flatnonzero(cause < MOST)
    found = found[np.argsort(sub[found], kind="mergesort")]
    return found[np.argsort(cause[found], kind="mergesort")]


@compiled(Words, Word, Table)
def _in_order_of_end(ends: Int64s, many: int, orders: Int64s) -> int:
    """Write the order of the first so many ends, those that are equal as they come. Returns in which of two rows."""
    now, width = 0, 1
    for i in range(many):
        orders[0, i] = i
    while width < many:
        for low in range(0, many, 2 * width):
            middle, high = min(low + width, many), min(low + 2 * width, many)
            one, other = low, middle
            for to in range(low, high):
                if one < middle and (other >= high or ends[orders[now, one]] <= ends[orders[now, other]]):
                    orders[1 - now, to] = orders[now, one]
                    one += 1
                else:
                    orders[1 - now, to] = orders[now, other]
                    other += 1
        now, width = 1 - now, 2 * width
    return now


@compiled(Table, Word, Word, Flags, numba.boolean)
def _same(windows: Int64s, one: int, other: int, sums: Bools, counted: bool) -> bool:
    """Whether two rows of windows, which have something in them, show the same."""
    if counted and windows[one, ROWS] != windows[other, ROWS]:
        return False
    for call in range(len(sums)):
        own = OF_WINDOW + 3 * call
        if not sums[call]:
            if windows[one, own + 2] != windows[other, own + 2]:
                return False
            continue
        if (windows[one, own + 2] == 0) != (windows[other, own + 2] == 0):
            return False
        if windows[one, own] != windows[other, own] or windows[one, own + 1] != windows[other, own + 1]:
            return False
    return True


@compiled(
    *(Word, Word, Word, Seen, Seen, Words, Words, Words, Table, Word, Flags, numba.boolean),
    *(numba.int32[::1], Words, Words, Words, numba.int8[::1], Table),
)
def _tell_changed(
    made: int,
    told: int,
    changed: int,
    order: Int64s,
    group: Int64s,
    which: Int64s,
    whose: Int64s,
    ends: Int64s,
    windows: Int64s,
    old: int,
    sums: Bools,
    counted: bool,
    out_group: NDArray[np.int32],
    out_end: Int64s,
    out_cause: Int64s,
    out_sub: Int64s,
    out_kind: Int8s,
    out_values: Int64s,
) -> int:
    """Give the windows that a cause has changed, as they were and as they are."""
    rank = 0
    for k in range(changed):
        j = order[k]
        before, now = old + j, which[j]
        goes, comes = windows[before, ROWS], windows[now, ROWS]
        if goes and comes and _same(windows, before, now, sums, counted):
            continue
        for half in range(2):
            row = now if half else before
            if windows[row, ROWS] == 0:
                continue
            out_group[made], out_end[made] = group[whose[j]], ends[j]
            out_cause[made], out_sub[made] = told, rank
            out_kind[made] = half + (2 if goes and comes else 1 - 2 * half)
            for field in range(windows.shape[1]):
                out_values[field, made] = windows[row, field]
            made += 1
            rank += 1
    return made


@compiled(Word, Table, Flags, numba.boolean)
def _shows(rows: int, moves: Int64s, sums: Bools, counted: bool) -> bool:
    """Whether this changes what a window shows, whatever is in it."""
    shows = counted and rows != 0
    for call in range(len(sums)):
        shows |= moves[call, 0] != 0 if sums[call] else moves[call, 2] != 0
    return shows


@compiled(
    *(Word, Word, Word, Word, Word, Word, Word, Word, Table, Table),
    *(numba.int32[::1], Words, Words, Words, numba.int8[::1], Table),
)
def _tell_moved(
    made: int,
    told: int,
    group: int,
    row: int,
    many: int,
    end: int,
    slide: int,
    rows: int,
    moves: Int64s,
    windows: Int64s,
    out_group: NDArray[np.int32],
    out_end: Int64s,
    out_cause: Int64s,
    out_sub: Int64s,
    out_kind: Int8s,
    out_values: Int64s,
) -> int:
    """Change so many windows of a group, from a row on, by all that a cause does, which shows in each of them; and give
    them as they were and as they are. The first ends at `end`. An end that is not there is written over."""
    old, rank = np.uint64(made), 0  # what is never below 0 is quicker to look for
    for now in range(np.uint64(row), np.uint64(row + many)):
        goes = windows[now, ROWS]
        comes = goes + rows
        new = old + np.uint64(goes != 0)
        out_group[old], out_end[old], out_cause[old], out_sub[old] = group, end, told, rank
        out_kind[old], out_values[ROWS, old] = 1 + (comes != 0), goes
        rank += goes != 0
        out_group[new], out_end[new], out_cause[new], out_sub[new] = group, end, told, rank
        out_kind[new], out_values[ROWS, new] = 3 * (goes != 0), comes
        rank += comes != 0
        windows[now, ROWS] = comes
        for call in range(np.uint64(len(moves))):
            low = np.uint64(OF_WINDOW) + np.uint64(3) * call
            high, many_of = low + np.uint64(1), low + np.uint64(2)
            had, upper, numbers = windows[now, low], windows[now, high], windows[now, many_of]
            out_values[low, old], out_values[high, old], out_values[many_of, old] = had, upper, numbers
            total = had + moves[call, 0]
            upper += moves[call, 1] + _carry(had, moves[call, 0], total)
            numbers += moves[call, 2]
            out_values[low, new], out_values[high, new], out_values[many_of, new] = total, upper, numbers
            windows[now, low], windows[now, high], windows[now, many_of] = total, upper, numbers
        end += slide
        old = new + np.uint64(comes != 0)
    return int(np.int64(old))


@compiled(Word, Word, Seen, Seen, Seen, SeenBytes, Seen, SeenTable, Word, Word, Word, Table, Flags)
def _add_insertions(
    i: int,
    limit: int,
    time: Int64s,
    cause: Int64s,
    sub: Int64s,
    kind: Int8s,
    group: Int64s,
    values: Int64s,
    begin: int,
    end: int,
    pane: int,
    cells: Int64s,
    stirred: Bools,
) -> int:
    """Add insertions into a pane, from a row on up to the first that is something else. Returns that one."""
    calls = len(values)
    while i < limit and kind[i] == 0 and begin <= time[i] < end:
        cell = pane + group[i]
        if cells[cell, ROWS] == 0:
            cells[cell, FIRST_CAUSE], cells[cell, FIRST_SUB] = cause[i], sub[i]
        cells[cell, ROWS] += 1
        stirred[cell] = True
        for call in range(calls):
            own, value = SUMS + 3 * call, values[call, i]
            had = cells[cell, own]
            cells[cell, own] = had + value
            cells[cell, own + 1] += _carry(had, value, had + value)
            cells[cell, own + 2] += 1
        i += 1
    return i


@compiled(
    *(Word, Word, Word, Word, Seen, Seen, Seen, SeenBytes, Seen, SeenTable, FlagTable, Flags, numba.boolean),
    *(Word, Word, Word, Word, Word, Word, Seen, Table, Flags, Word, Seen, Word, Table, Word),
    *(Words, Words, Words, Words, Table, Table),
    *(numba.int32[::1], Words, Words, Words, numba.int8[::1], Table),
)
def _fold_until(
    i: int,
    limit: int,
    closed: int,
    made: int,
    time: Int64s,
    cause: Int64s,
    sub: Int64s,
    kind: Int8s,
    group: Int64s,
    values: Int64s,
    valid: Bools,
    sums: Bools,
    counted: bool,
    width: int,
    step: int,
    panes: int,
    size: int,
    slide: int,
    lowest: int,
    place: Int64s,
    cells: Int64s,
    stirred: Bools,
    first_window: int,
    slot_of: Int64s,
    slots: int,
    windows: Int64s,
    old: int,
    mark: Int64s,
    which: Int64s,
    whose: Int64s,
    ends: Int64s,
    orders: Int64s,
    moves: Int64s,
    out_group: NDArray[np.int32],
    out_end: Int64s,
    out_cause: Int64s,
    out_sub: Int64s,
    out_kind: Int8s,
    out_values: Int64s,
) -> int:
    """Fold rows up to a limit while no window closes, and give what changes by them: those that are `closed`. Returns
    how many rows were given by then."""
    nulls, fields, begin, end, pane = len(valid) > 0, windows.shape[1], 1, 0, 0
    first, last, revises = 0, 0, False
    changed, rising, stamp = 0, True, i + 1
    while i < limit:
        if time[i] < begin or time[i] >= end:
            number = time[i] // width
            begin = number * width
            end, pane = begin + width, place[number - lowest]
            first, last = number - panes + 1, number
            if step > 1:
                first, last = (number - panes) // step + 1, number // step
            revises, last = first <= closed, min(last, closed)
        if changed == 0 and not revises and not nulls and kind[i] == 0:
            i = _add_insertions(i, limit, time, cause, sub, kind, group, values, begin, end, pane, cells, stirred)
            stamp, rising = i + 1, True
            continue
        cell, goes, comes = pane + group[i], i, -1
        if kind[i] == 0 or kind[i] == 3:
            goes, comes = -1, i
        elif (
            kind[i] == 2
            and cells[cell, ROWS] > 0
            and i + 1 < limit
            and kind[i + 1] == 3
            and cause[i + 1] == cause[i]
            and group[i + 1] == group[i]
            and begin <= time[i + 1] < end
        ):
            comes = i = i + 1  # a pair of which both change the same
        if comes >= 0 or cells[cell, ROWS] > 0:
            rows = (comes >= 0) - (goes >= 0)
            if comes >= 0 and cells[cell, ROWS] + rows == 1:
                cells[cell, FIRST_CAUSE], cells[cell, FIRST_SUB] = cause[i], sub[i]
            _note_moves(goes, comes, values, valid, moves)
            _move(cells, cell, rows, SUMS, moves)
            stirred[cell] = True
            begins = group[i] * slots + slot_of[first - first_window] if revises else 0
            alone = changed == 0 and (i + 1 == limit or cause[i + 1] != cause[i])
            if revises and alone and _shows(rows, moves, sums, counted):
                made = _tell_moved(
                    *(made, cause[i], group[i], begins, last - first + 1, first * slide + size, slide, rows, moves),
                    *(windows, out_group, out_end, out_cause, out_sub, out_kind, out_values),
                )
            elif revises:
                for row in range(begins, begins + last - first + 1):
                    if mark[row] != stamp:
                        mark[row] = stamp
                        which[changed], whose[changed] = row, i
                        ends[changed] = (first + row - begins) * slide + size
                        rising = rising and (changed == 0 or ends[changed - 1] <= ends[changed])
                        for field in range(fields):
                            windows[old + changed, field] = windows[row, field]
                        changed += 1
                    _move(windows, row, rows, OF_WINDOW, moves)
        i += 1
        if changed and (i == limit or cause[i] != cause[i - 1]):
            order = orders[2] if rising else orders[_in_order_of_end(ends, changed, orders)]
            made = _tell_changed(
                *(made, cause[i - 1], changed, order, group, which, whose, ends, windows, old, sums, counted),
                *(out_group, out_end, out_cause, out_sub, out_kind, out_values),
            )
            changed = 0
        if changed == 0:
            stamp, rising = i + 1, True
    return made


@compiled(
    *(Seen, Seen, Seen, SeenBytes, Seen, SeenTable, FlagTable, Flags, numba.boolean),
    *(Seen, Seen, Word, Word, Word, Word, Word, Seen, Table, Flags, Word, Seen, Word, Table, Word, Word),
    *(numba.int32[::1], Words, Words, Words, numba.int8[::1], Table),
    allocates=True,
)
def fold(
    time: Int64s,
    cause: Int64s,
    sub: Int64s,
    kind: Int8s,
    group: Int64s,
    values: Int64s,  # of each call, one for each row
    valid: Bools,  # whether it is no null; empty if none is
    sums: Bools,  # of each call: whether it adds up, and not only counts
    counted: bool,  # whether the number of rows shows
    bound_cause: Int64s,
    bound_time: Int64s,
    standing: int,
    width: int,
    size: int,
    slide: int,
    lowest: int,  # the number of the first pane
    place: Int64s,  # of each pane its first cell, or -1
    cells: Int64s,  # pane by pane, of each group
    stirred: Bools,  # cells that rows changed
    first_window: int,
    slot_of: Int64s,  # of each window its slot, or -1: those that one row changes are in a row
    slots: int,  # of windows
    windows: Int64s,  # of each group its slots, and behind all as many rows as one cause changes
    many: int,  # groups
    most: int,  # windows that one cause changes
    out_group: NDArray[np.int32],
    out_end: Int64s,
    out_cause: Int64s,
    out_sub: Int64s,
    out_kind: Int8s,
    out_values: Int64s,  # of windows' entries, each in a row
) -> int:
    """Fold rows into panes, and give closed windows that change, and those that close, in order. Returns how many rows
    that gives. What takes back a row where none is does nothing."""
    n, last_bound, step, panes = len(time), len(bound_cause), slide // width, size // width
    old = len(windows) - most  # the first row behind those of windows: there stands what they were before a cause
    which, whose, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    orders = np.empty((3, most), np.int64)  # two to sort in, and as it is
    orders[2] = np.arange(most)
    moves = np.empty((len(values), 3), np.int64)  # what a row does to each sum
    mark = np.zeros(old, np.int64)  # the last row of whose cause it was that changed a window
    closing, closed = first_window, _last_closed(standing, size, slide)  # the next that may close; those that have
    while closing - first_window < len(slot_of) and closing <= closed:
        slot = slot_of[closing - first_window]
        if slot >= 0:
            _put_together(closing, slot, slots, step, panes, lowest, place, cells, windows, many)
        closing += 1
    i, made = 0, 0
    for bound in range(last_bound + 1):
        limit = n
        if bound < last_bound:
            limit = i + int(np.searchsorted(cause[i:], bound_cause[bound], side="right"))
        made = _fold_until(
            i,
            limit,
            closed,
            made,
            time,
            cause,
            sub,
            kind,
            group,
            values,
            valid,
            sums,
            counted,
            width,
            step,
            panes,
            size,
            slide,
            lowest,
            place,
            cells,
            stirred,
            first_window,
            slot_of,
            slots,
            windows,
            old,
            mark,
            which,
            whose,
            ends,
            orders,
            moves,
            out_group,
            out_end,
            out_cause,
            out_sub,
            out_kind,
            out_values,
        )
        i = limit
        if bound == last_bound:
            break
        told, closed = bound_cause[bound], _last_closed(bound_time[bound], size, slide)
        rank = out_sub[made - 1] + 1 if made and out_cause[made - 1] == told else 0
        while closing - first_window < len(slot_of) and closing <= closed:
            slot = slot_of[closing - first_window]
            if slot >= 0:
                _put_together(closing, slot, slots, step, panes, lowest, place, cells, windows, many)
                for one in _in_order_of_first(closing, step, panes, lowest, place, cells, many):
                    out_group[made], out_end[made] = one, closing * slide + size
                    out_cause[made], out_sub[made], out_kind[made] = told, rank, 0
                    for field in range(windows.shape[1]):
                        out_values[field, made] = windows[one * slots + slot, field]
                    made += 1
                    rank += 1
            closing += 1
    return made


# -- histories


@compiled(Word, Word)
def _since(boundary: int, history: int) -> int:
    """The time before which nothing can be corrected any more."""
    if boundary <= LEAST + history:
        return LEAST
    return boundary if boundary == MOST else boundary - history


@compiled(Seen, SeenBytes, Seen, Seen, Seen, Seen, Word, Word, Word, Words, Words, Words)
def apart(
    word: Int64s,
    kind: Int8s,
    time: Int64s,
    cause: Int64s,
    bound_cause: Int64s,
    bound_time: Int64s,
    standing: int,
    history: int,
    most: int,
    tops: Int64s,
    few: Int64s,
    oldest: Int64s,
) -> int:
    """Rows that are not simply held: of a kind, late, or with a key that does not rise above `most` and all before it.
    Writes which, and the time before which nothing is known at each; returns how many. `tops` are the greatest keys so
    far."""
    found, bound, top = 0, 0, LEAST
    since = _since(standing, history)
    for i in range(len(word)):
        while bound < len(bound_cause) and bound_cause[bound] < cause[i]:
            since = _since(bound_time[bound], history)
            bound += 1
        if kind[i] != 0 or time[i] < since or word[i] <= most or (i > 0 and word[i] <= top):
            few[found], oldest[found] = i, since
            found += 1
        top = max(top, word[i])
        tops[i] = top
    return found


@compiled(Word, Word)
def _slot(word: int, slots: int) -> int:
    """Where in a table of so many slots, a power of two, to look for a key first."""
    mixed = np.uint64(word) * np.uint64(0x9E3779B97F4A7C15)
    return int(np.int64((mixed >> np.uint64(32)) & np.uint64(slots - 1)))


@compiled(Seen, Words)
def greatest_so_far(word: Int64s, tops: Int64s) -> None:
    """Write the greatest so far of each."""
    top = LEAST
    for i in range(len(word)):
        top = max(top, word[i])
        tops[i] = top


@compiled(Seen, Seen, Table, numba.uint8[::1])
def note_others(word: Int64s, tops: Int64s, slots: Int64s, marks: Bytes) -> None:
    """Put those that do not rise into a table of words and places, in which a place of -1 is nothing; and mark them in
    one that is small enough to be near."""
    last = len(slots) - 1
    for i in range(1, len(word)):
        if word[i] <= tops[i - 1]:
            mark = _slot(word[i], 8 * len(marks))
            marks[mark >> 3] |= 1 << (mark & 7)
            at = _slot(word[i], last + 1)
            while slots[at, 1] >= 0:
                at = (at + 1) & last
            slots[at, 0], slots[at, 1] = word[i], i


@compiled(Seen)
def _density(tops: Int64s) -> float:
    """How many rows there are for each number that they rise by."""
    return (len(tops) - 1) / (np.float64(tops[-1]) - np.float64(tops[0]) + 1)


@compiled(Seen, Word, Word, numba.float64)
def _risen_to(tops: Int64s, key: int, near: int, density: float) -> int:
    """The first place that is not below a key, of which there is one. Guesses from a place as if all rose evenly, and
    looks on from there by steps that double."""
    low, high, step = 0, len(tops) - 1, 1
    guess = near + int((np.float64(key) - np.float64(tops[near])) * density)
    guess = min(max(guess, 0), high)
    if tops[guess] >= key:
        high = guess
        while high - step >= 0 and tops[high - step] >= key:
            high -= step
            step *= 2
        low = max(high - step, 0)
    else:
        low = guess
        while low + step < len(tops) and tops[low + step] < key:
            low += step
            step *= 2
        high = min(low + step, high)
    while low < high:
        middle = (low + high) // 2
        if tops[middle] >= key:
            high = middle
        else:
            low = middle + 1
    return low


@compiled(Seen, Seen, Seen, SeenTable, numba.uint8[::1], Seen, Flags, Word, Word, Words, Words)
def look_up(
    wanted: Int64s,
    word: Int64s,
    tops: Int64s,
    slots: Int64s,
    marks: Bytes,
    time: Int64s,
    alive: Bools,
    floor: int,
    base: int,
    place: Int64s,
    place_time: Int64s,
) -> None:
    """Write of each key that is wanted, in rising order, the last row that has it, if any does: its place, from `base`
    on, and time."""
    last, near, density = len(slots) - 1, 0, _density(tops)
    for k in range(len(wanted)):
        key, found = wanted[k], -1
        if tops[0] <= key <= tops[-1]:
            near = at = _risen_to(tops, key, near, density)
            if tops[at] == key and alive[at] and time[at] >= floor:
                found = at
        mark = _slot(key, 8 * len(marks))
        if len(marks) and marks[mark >> 3] & (1 << (mark & 7)):
            at = _slot(key, last + 1)
            while slots[at, 1] >= 0:
                other = slots[at, 1]
                if slots[at, 0] == key and other > found and alive[other] and time[other] >= floor:
                    found = other
                at = (at + 1) & last
        if found >= 0:
            place[k], place_time[k] = base + found, time[found]


@compiled(
    *(Seen, Seen, Seen, SeenBytes, Seen, Seen, Seen, Seen),
    *(Words, Words, Words, Words, Words, Words, numba.int8[::1], Words, Words, Flags),
)
def judge(
    few: Int64s,
    oldest: Int64s,
    word: Int64s,
    kind: Int8s,
    time: Int64s,
    tops: Int64s,
    held: Int64s,  # of each of the few the place of a held row with its key, or -1
    held_time: Int64s,
    known_as: Int64s,  # a row of the few whose key it is, or -1; by key, a power of two and twice as many as the few
    place: Int64s,  # by that row: the one that has the key
    since: Int64s,
    first: Int64s,  # of each the first of what leaves
    source: Int64s,  # of what leaves: its place in the train, and behind its rows among the old ones
    row: Int64s,  # because of which row
    sign: Int8s,
    why: Int64s,  # or why nothing changes
    used: Int64s,  # which of the held rows go
    stays: Bools,  # of each row of the train
) -> int:
    """Make changes one by one. Returns how many held rows go."""
    n, made, old, slots, density = len(word), 0, 0, len(known_as), _density(tops)
    for k in range(len(few)):
        i = few[k]
        first[k] = made
        stays[i] = False
        if kind[i] == 2:
            continue
        key, at = word[i], _slot(word[i], slots)
        while known_as[at] >= 0 and word[few[known_as[at]]] != key:
            at = (at + 1) & (slots - 1)
        if known_as[at] < 0:
            known_as[at] = k
            place[k], since[k] = (n + k, held_time[k]) if held[k] >= 0 else (-1, 0)
            if tops[0] <= key <= tops[-1]:
                other = _risen_to(tops, key, 0, density)
                if other < i and word[other] == key and stays[other]:
                    place[k], since[k] = other, time[other]
        has = known_as[at]
        known = place[has] >= 0 and since[has] >= oldest[k]
        inserts, adds = kind[i] == 0, kind[i] != 1
        if (adds and time[i] < oldest[k]) or inserts == known:
            source[made], row[made], sign[made] = i, i, 0
            why[made] = 0 if adds and time[i] < oldest[k] else (1 if known else 2)
            made += 1
            continue
        if known:
            was = place[has]
            if was >= n:
                used[old] = was - n
                was = n + old
                old += 1
            else:
                stays[was] = False
            source[made], row[made], sign[made], why[made] = was, i, 2 if adds else 1, -1
            made += 1
        if adds:
            source[made], row[made], sign[made], why[made] = i, i, kind[i], -1
            made += 1
            stays[i] = True
        place[has], since[has] = i if adds else -1, time[i]
    first[len(few)] = made
    return old


@compiled(Seen, Words)
def ranks(cause: Int64s, rank: Int64s) -> None:
    """Write 0, 1, 2 ... within each run of equal causes."""
    for i in range(len(cause)):
        rank[i] = rank[i - 1] + 1 if i > 0 and cause[i] == cause[i - 1] else 0


def _distinct(values: Any, slots: Int64s, codes: NDArray[np.int32], first: Int64s) -> int:
    """Write which of the distinct values each is, by where they first stand. Returns how many there are, or -1 if that
    is more than there is room for. In `slots` -1 is nothing."""
    found, many = 0, len(slots)
    for i in range(len(values)):
        at = _slot(values[i], many)
        while slots[at] >= 0 and values[first[slots[at]]] != values[i]:
            at = (at + 1) & (many - 1)
        if slots[at] < 0:
            if found == len(first):
                return -1
            slots[at], first[found] = found, i
            found += 1
        codes[i] = slots[at]
    return found


def _gather(places: Any, values: Int64s, out: Int64s) -> None:
    """Write the value at each place, none of which is below 0; `out` may be the places."""
    for i in range(len(places)):
        out[i] = values[np.uint64(places[i])]


def _spread(column: Any, few: Int64s, first: Int64s, source: Int64s, old: Any, out: Any) -> None:
    """A column with others in the place of the few: of each those from `first` on, which are in the column, or behind
    it in `old`."""
    n, done, at = len(column), np.uint64(0), np.uint64(0)  # what is never below 0 is quicker to look for
    for k in range(len(few)):
        until = np.uint64(few[k])
        for i in range(until - done):
            out[at + i] = column[done + i]
        at += until - done
        done = until + np.uint64(1)
        for one in range(first[k], first[k + 1]):
            out[at] = column[source[one]] if source[one] < n else old[source[one] - n]
            at += np.uint64(1)
    for i in range(np.uint64(n) - done):
        out[at + i] = column[done + i]


def _for(function: Any, kind: Any, *more: Any) -> Any:
    """A function of columns of this kind."""
    seen = numba.types.Array(kind, 1, "C", readonly=True)
    return compiled(seen, *more)(function)


def _spread_of(kind: Any) -> Any:
    return _for(_spread, kind, Seen, Seen, Seen, numba.types.Array(kind, 1, "C", readonly=True), kind[::1])


WIDTHS = {8: numba.int8, 16: numba.int16, 32: numba.int32, 64: Word}
SPREAD = {bits: _spread_of(kind) for bits, kind in WIDTHS.items()}
GATHER = {bits: _for(_gather, WIDTHS[bits], Seen, Words) for bits in (32, 64)}
DISTINCT = {bits: _for(_distinct, WIDTHS[bits], Words, numba.int32[::1], Words) for bits in (32, 64)}
