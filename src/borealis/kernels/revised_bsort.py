"""BSort of an arrow that carries revisions: a row that is taken back is taken out of its buffer or, if it has left,
given back with the time at which it left.

So the output stands for the corrected input without what is in the buffers, and a correction costs no more than it
says. But when a row leaves, and at what time, hangs on all that came before it, also on what was taken back since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.bsort import BSortKernel, Moved
from borealis.kernels.columns import Columns, column_numbers, concat, take, to_table
from borealis.kernels.flow import HEAD, NOTHING, Flow, behind, empty_flow, rank_within
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import HeldRows, fingerprints, takes_among
from borealis.kernels.kinds import adds, mended, pairs, signs
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta, TableSpec
from borealis.tuples import CAUSE, KIND, SUB, TIME, Int8s, Int64s, Kind

LEFT = TableSpec("left", (CAUSE, SUB), floor=TIME)
OUT = "out"  # the time at which a row left


@dataclass(frozen=True)
class _Plan:
    """What the rows of a train do."""

    running: Int64s  # those that come to the buffers, in their order
    takes: dict[int, int]  # those of them that take a row out, and its place
    past: dict[int, int]  # those that take back what left in an earlier train, and its place among that


class RevisedBSort(BSortKernel):
    """State: `held`, the rows in the buffers, and `left`: of each row that left and can still be taken back its place
    in the output, its own time, that at which it left, and a fingerprint of its columns.
    """

    tables = (*BSortKernel.tables, LEFT)

    def __init__(
        self, schema: pa.Schema, value: str, by: list[str], buffer: int, names: list[str], history: int
    ) -> None:
        plain = pa.schema([field for field in schema if field.name != KIND])
        super().__init__(plain, value, by, buffer, [name for name in names if name != KIND])
        self.history = history
        self.signed = self.out.append(pa.field(KIND, pa.int8()))
        self.left = HeldRows(dict.fromkeys((*HEAD, GROUP, OUT), NOTHING))

    # -- one train

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """Take rows in and back. What one cause takes back goes before any of its rows comes."""
        kind, base = signs(flow), len(self.held)
        plan = self._plan(flow, adds(kind))
        moved = self._push(flow, plan.running, plan.takes)
        if plan.past:  # what takes back a row that left leaves in its place
            pusher = np.append(moved.pusher, np.array(list(plan.past)))
            order = np.argsort(pusher)
            left = np.append(moved.left, base + np.array(list(plan.past)))[order]
            moved = replace(moved, left=left, pusher=pusher[order])
        rows, time, cause, delta = self._settle(flow, moved)
        back = np.zeros(len(time), np.bool_)
        back[: len(moved.left)] = ~adds(kind)[moved.pusher]
        stays = self._times_back(plan, moved, base, time, back)
        head = {CAUSE: cause, SUB: rank_within(cause), TIME: column_numbers(rows, TIME)}
        put = take(head | {GROUP: self._fingerprints(rows), OUT: time}, stays)
        gone = np.array(sorted(plan.past.values()), np.int64)
        cut = self.left.at(gone)
        self.left.remove(gone)
        self.left.add(put)
        floors = (behind(boundary, self.history) for boundary in (flow.bounds.standing, flow.bounds.final))
        if (change := self.left.change(put, cut, *floors)) is not None:
            delta[LEFT.name] = change
        if not len(time):
            return empty_flow(self.signed, flow.bounds), delta
        kinds = pa.array(_kinds(flow, kind, moved, base, back))
        signed = pa.Table.from_arrays([*rows.select(self.out.names).columns, kinds], schema=self.signed)
        out = mended(Flow(signed, time, cause, cause, flow.bounds))
        return replace(out, sub=rank_within(out.cause)), delta

    def _plan(self, flow: Flow, come: NDArray[np.bool_]) -> _Plan:
        if come.all():
            return _Plan(np.arange(len(flow)), {}, {})
        rows: Columns = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time, GROUP: self._fingerprints(flow.rows)}
        gone = take(rows, np.flatnonzero(~come))
        past = np.unique(self.left.find(gone[GROUP], gone[TIME], gone[TIME])[1])
        inside = self._alive()
        inside = inside[np.isin(column_numbers(self.held, TIME)[inside], gone[TIME])]
        held = self.held.take(pa.array(inside))
        buffered: Columns = {name: column_numbers(held, name) for name in HEAD} | {GROUP: self._fingerprints(held)}
        # of equal rows the older leaves first
        known = concat([{name: column for name, column in self.left.at(past).items() if name != OUT}, buffered])
        takes = takes_among(known, rows, come)
        place = np.concatenate([past, inside, len(self.held) + np.arange(len(flow))])[takes.place]
        left = takes.place < len(past)
        does = come.copy()  # what takes back a row that is not there, lost in a gap, does nothing
        does[takes.idle] = False
        does[takes.taker[~left]] = True
        running = np.lexsort((come, flow.cause))
        return _Plan(
            running[does[running]],
            dict(zip(takes.taker[~left].tolist(), place[~left].tolist(), strict=True)),
            dict(zip(takes.taker[left].tolist(), place[left].tolist(), strict=True)),
        )

    def _times_back(self, plan: _Plan, moved: Moved, base: int, time: Int64s, back: NDArray[np.bool_]) -> Int64s:
        """Give what is taken back the times at which it left; where those stand that leave and are not taken back."""
        stay = ~back
        if back.any():
            at = {place: i for i, place in enumerate(moved.left.tolist())}
            for i in np.flatnonzero(back).tolist():
                taker = int(moved.pusher[i])
                if taker not in plan.past:
                    stay[at[plan.takes[taker]]] = False
                    time[i] = time[at[plan.takes[taker]]]
            earlier = np.isin(moved.pusher, np.array(list(plan.past), np.int64))
            places = np.array([plan.past[taker] for taker in moved.pusher[earlier].tolist()], np.int64)
            time[np.flatnonzero(earlier)] = self.left.at(places)[OUT]
        return np.flatnonzero(stay)

    def _fingerprints(self, rows: pa.Table) -> Int64s:
        return fingerprints([rows[name] for name in self.schema.names[len(HEAD) :]], len(rows))

    # -- what is held

    def apply(self, delta: Delta) -> None:
        super().apply(delta)
        if (change := delta.get(LEFT.name)) is not None:
            self.left.apply(change)

    def tables_now(self) -> dict[str, pa.Table]:
        return super().tables_now() | {LEFT.name: to_table(self.left.all())}


def _kinds(flow: Flow, kind: Int8s, moved: Moved, base: int, back: NDArray[np.bool_]) -> Int8s:
    """The kinds of what leaves: a pair, if a row leaves at once that comes for one that left."""
    found = np.where(back, Kind.DELETION, Kind.INSERTION).astype(np.int8)
    halves = np.isin(moved.pusher, pairs(flow, kind)) & back[: len(moved.pusher)]
    itself = (moved.left == base + moved.pusher) & ~back[: len(moved.pusher)]
    first = np.flatnonzero(halves[:-1] & itself[1:] & (moved.pusher[1:] == moved.pusher[:-1] + 1))
    found[first], found[first + 1] = Kind.UPDATE_BEFORE, Kind.UPDATE_AFTER
    return found


def make(step: Step) -> RevisedBSort:
    o = step.options
    names = schema_of(step.schema).names
    return RevisedBSort(schema_of(o["schema"]), o["value"], o["by"], o["buffer"], names, o["history"])
