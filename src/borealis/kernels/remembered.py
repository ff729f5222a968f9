"""What a database said to each row that can still be taken back: a row leaves with the answer that it came with.

Of a row it holds its time, a fingerprint of its columns, and the answer. Whether a row is still known hangs on the
boundary at the change that takes it back: none lies further behind it than the history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from borealis.kernels.columns import Columns, concat, take, to_table
from borealis.kernels.flow import NOTHING, Bounds, Flow, behind
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import WHOLE, HeldRows, fingerprints, taken_back
from borealis.kernels.kinds import Bools, adds, mended, signs
from borealis.state.delta import Delta, TableSpec
from borealis.tuples import CAUSE, KIND, SUB, TIME, Int64s

ANSWERS = TableSpec("answers", (CAUSE, SUB), floor=TIME)


@dataclass(frozen=True)
class Taken:
    """Which row each row of a train takes back that does so, in order."""

    adds: Bools  # of each row of the train: whether it comes
    held: Int64s  # places of held rows that are candidates
    row: Int64s  # the taken one: a place in `held`, or behind those the number of a row that comes

    @property
    def gone(self) -> Int64s:
        """The places of held rows that are taken back."""
        return self.held[self.row[self.row < len(self.held)]]

    @property
    def stays(self) -> Bools:
        """Of each row that comes, whether it outlives the train."""
        stays: Bools = np.ones(int(self.adds.sum()), np.bool_)
        stays[self.row[self.row >= len(self.held)] - len(self.held)] = False
        return stays


class Remembered:
    """Rows with their answers, which have the columns of `answer`; they are found by their group."""

    def __init__(self, answer: Columns, history: int) -> None:
        head: Columns = dict.fromkeys((CAUSE, SUB, TIME, GROUP, WHOLE), NOTHING)
        self.rows, self.history = HeldRows(head | answer), history

    def arrived(self, flow: Flow, group: Int64s | None = None) -> Columns:
        """The rows of a train as they are held, without answers; the group of a row is itself, unless one is given."""
        names = [name for name in flow.rows.column_names if name != KIND]
        whole = fingerprints([flow.rows[name] for name in names], len(flow))
        columns = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time}
        return columns | {GROUP: whole if group is None else group, WHOLE: whole}

    def taken(self, flow: Flow, rows: Columns) -> tuple[Flow, Columns, Taken]:
        """Which of those that are held, or come in the same train, are taken back by which; without rows that take back
        what never came: what is lost in a gap leaves them."""
        come = adds(signs(flow))
        if come.all():
            return flow, rows, Taken(come, NOTHING, NOTHING)
        gone, came = take(rows, np.flatnonzero(~come)), take(rows, np.flatnonzero(come))
        held = np.unique(self.rows.find(gone[GROUP], gone[TIME], gone[TIME])[1])
        known = self.rows.at(held)
        row = taken_back(concat([{name: known[name] for name in gone}, came]), gone)
        if np.any(row < 0):
            fits = np.delete(np.arange(len(flow)), np.flatnonzero(~come)[row < 0])
            flow, rows, come, row = mended(flow.take(fits)), take(rows, fits), come[fits], row[row >= 0]
        return flow, rows, Taken(come, held, row)

    def settle(self, rows: Columns, taken: Taken, bounds: Bounds) -> Delta:
        """Forget what a train took back and what lies behind the history, and hold the rows that came, with answers."""
        went = self.rows.at(taken.gone)
        self.rows.remove(taken.gone)
        before, floor = (behind(one, self.history) for one in (bounds.standing, bounds.final))
        stays = taken.stays & (rows[TIME] >= floor)
        put = rows if stays.all() else take(rows, np.flatnonzero(stays))
        self.rows.add(put)
        change = self.rows.change(put, went, before, floor)
        return {} if change is None else {ANSWERS.name: change}

    def apply(self, delta: Delta) -> None:
        """Catch up with what another copy did."""
        if (change := delta.get(ANSWERS.name)) is not None:
            self.rows.apply(change)

    def tables_now(self) -> dict[str, pa.Table]:
        return {ANSWERS.name: to_table(self.rows.all())}
