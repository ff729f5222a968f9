"""Variances, standard deviations, covariances and corr, from sums around each accumulator's own first values.

So nothing cancels out, however far the values lie from zero.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from borealis.kernels.columns import Columns, to_numpy
from borealis.kernels.folding import CallRows, Floats, add_counts, add_floats, sum_counts
from borealis.tuples import Int64s


class Moments:
    """A function of one number or two. Its columns: for each number the first value and the sum of what is off it, the
    sums of products of two such, and the count."""

    def __init__(self, function: str, arguments: int) -> None:
        self.function = function
        self.centres = {"k": "s", "l": "r"} if arguments == 2 else {"k": "s"}  # to the sum around it
        both = {"p": ("s", "r"), "q": ("s", "s"), "w": ("r", "r")}
        self.products = both if arguments == 2 else {"q": ("s", "s")}  # to what is multiplied
        self.sums = [*self.centres.values(), *self.products]

    def start(self, n: int) -> Columns:
        return {name: np.zeros(n, np.float64) for name in (*self.centres, *self.sums)} | {"c": np.zeros(n, np.int64)}

    def fold(self, stored: Columns, rows: CallRows) -> Columns:
        count, values = stored["c"], [_floats(column) for column in (rows.values, *rows.others)]
        centres = {
            name: _firsts(stored[name], count, rows.slot, some) for name, some in zip(self.centres, values, strict=True)
        }
        with np.errstate(all="ignore"):
            off = {
                total: some - centres[name][rows.slot]
                for (name, total), some in zip(self.centres.items(), values, strict=True)
            }
            more = off | {name: off[a] * off[b] for name, (a, b) in self.products.items()}
        added = {name: add_floats(stored[name], rows.slot, more[name]) for name in self.sums}
        return centres | added | {"c": add_counts(count, rows.slot, rows.slots)}

    def combine(self, panes: Columns, slot: Int64s, slots: int) -> Columns:
        filled = panes["c"] > 0
        some, slot = {name: column[filled] for name, column in panes.items()}, slot[filled]
        c, none = some["c"], np.zeros(slots, np.int64)
        centres = {name: _firsts(np.zeros(slots), none, slot, some[name]) for name in self.centres}
        with np.errstate(all="ignore"):
            moved = {total: some[name] - centres[name][slot] for name, total in self.centres.items()}
            more = {total: some[total] + c * move for total, move in moved.items()}
            for name, (a, b) in self.products.items():
                cross = some[name] + (2 * moved[a] * some[a] if a == b else moved[a] * some[b])
                more[name] = (cross if a == b else cross + moved[b] * some[a]) + c * moved[a] * moved[b]
        added = {name: add_floats(np.zeros(slots), slot, more[name]) for name in self.sums}
        return centres | added | {"c": sum_counts(slot, c, slots)}

    def result(self, stored: Columns) -> pa.Array:
        count = stored["c"]
        with np.errstate(all="ignore"):
            around = {  # sums of products around the means
                name: stored[name] - stored[a] * stored[b] / np.maximum(count, 1)
                for name, (a, b) in self.products.items()
            }
            if self.function == "corr":
                alone = np.sqrt(np.maximum(around["q"], 0.0) * np.maximum(around["w"], 0.0))
                return pa.array(around["p"] / alone, mask=(count < 2) | (alone == 0))  # with what varies at all
            sample = not self.function.endswith("_pop")
            found = around[next(iter(self.products))] / np.maximum(count - sample, 1)
            if "p" not in around:
                found = np.maximum(found, 0.0)
            return pa.array(np.sqrt(found) if self.function.startswith("stddev") else found, mask=count <= sample)


def _floats(column: pa.Array) -> Floats:
    wide = column.cast(pa.float64()) if pa.types.is_decimal(column.type) or pa.types.is_null(column.type) else column
    return to_numpy(wide).astype(np.float64, copy=False)


def _firsts(stored: Floats, count: Int64s, slot: Int64s, values: Floats) -> Floats:
    """Each accumulator's own first value: the one it has, or the first of these."""
    first = stored.copy()
    first[slot[::-1]] = values[::-1]
    return np.where(count == 0, first, stored)
