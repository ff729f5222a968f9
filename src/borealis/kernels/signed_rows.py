"""What aggregates have in common whose input carries revisions: signed rows in, differences of results out."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from borealis.kernels.accumulators import AggregateCall
from borealis.kernels.columns import Columns, room, take, to_table, whole
from borealis.kernels.compiled import loops
from borealis.kernels.flow import NOTHING, Bounds, Flow, behind, differs, rank_within
from borealis.kernels.groups import GROUP, Groups
from borealis.kernels.held_rows import WHOLE, HeldRows, fingerprints
from borealis.kernels.kinds import adds, keep_equal, signs
from borealis.state.delta import Change, Delta, TableSpec
from borealis.tuples import CAUSE, FIRST_TIME, KIND, SUB, TIME, Int8s, Int64s, Kind

GROUPS_MOST = 1 << 12  # in a train, that are told apart in one pass
ADDS = "adds"  # of a row: its sign
AT = "at"  # the boundary at it


class SignedRows:
    """An aggregate over signed rows, up to what it keeps and how results come about."""

    kept: ClassVar[TableSpec]  # beside the groups and the windows
    by: list[str]
    groups: Groups
    others: Sequence[str] = ()  # columns that only tell rows apart
    held: HeldRows

    def _sign(self, results: pa.Schema, calls: list[AggregateCall], history: int) -> None:
        """Begin, with the schema of results without signs."""
        self.history = history
        self.signed = results.append(pa.field(KIND, pa.int8()))
        names = dict.fromkeys(name for call in calls for name in call.columns)
        self.arguments = {name: f"x{i}" for i, name in enumerate(names)}  # to the name in a table

    def _hold(self, schema: pa.Schema) -> None:
        """Begin to hold rows: of each what the functions need, and a fingerprint of the rest. Which of two rows is
        taken back matters even where they differ in nothing that is added up, for one may be the first."""
        self.others = [name for name in schema.names if name not in self.arguments and name not in self.by]
        empty: Columns = {CAUSE: NOTHING, SUB: NOTHING, TIME: NOTHING, GROUP: NOTHING}
        empty |= {x: pa.nulls(0, schema.field(name).type) for name, x in self.arguments.items()}
        self.held = HeldRows(empty | ({WHOLE: NOTHING} if self.others else {}))

    # -- rows in

    def _grouped(self, flow: Flow) -> tuple[Int64s, list[int]]:
        """The numbers of the rows' groups, and those that are new."""
        if not len(flow):
            return NOTHING, []
        columns = [flow.rows[name] for name in self.by]
        told_apart = _told_apart(whole(columns[0])) if len(columns) == 1 else None
        if told_apart is None:
            return self.groups.encode(columns, len(flow))
        compiled, first, codes = told_apart
        numbers, fresh = self.groups.encode([whole(columns[0]).take(pa.array(first))], len(first))
        group = room(len(codes))
        compiled.GATHER[32](codes, numbers, group)
        return group, fresh

    def _recent(self, flow: Flow) -> Flow:
        """Without rows that are behind the history: such come only behind a jump, when a unit is built again."""
        if flow.on_time or flow.time.min() >= behind(flow.bounds.final, self.history):
            return flow
        at = flow.bounds.at(flow.cause)
        recent = flow.time >= np.maximum(at, FIRST_TIME + self.history) - self.history
        return flow if recent.all() else flow.take(np.flatnonzero(recent))

    def _arrived(self, flow: Flow, group: Int64s) -> Columns:
        """The rows with their groups and signs."""
        at = flow.bounds.at(flow.cause)
        return self._as_columns(flow, group) | {ADDS: adds(signs(flow)), AT: at}

    def _as_columns(self, flow: Flow, group: Int64s) -> Columns:
        rows: Columns = {CAUSE: flow.cause, SUB: flow.sub, TIME: flow.time, GROUP: group.astype(np.int64, copy=False)}
        rows |= {x: whole(flow.rows[name]) for name, x in self.arguments.items()}
        if self.others:
            rows[WHOLE] = fingerprints([flow.rows[name] for name in self.others], len(flow))
        return rows

    def _oldest(self, boundary: int) -> int:
        """The time before which no row comes or goes any more once this boundary stands."""
        return behind(boundary, self.history)

    # -- differences out

    def _leading(
        self, results: pa.Table, time: Int64s, old: Int64s, new: Int64s, cause: Int64s, bounds: Bounds
    ) -> Flow:
        """The rows that lead from old results to new ones, each given as a place or -1 if there is none, in this order;
        nothing where both are equal in what is beside the group."""
        pair = (old >= 0) & (new >= 0)
        one, other = (old, new) if pair.all() else (old[pair], new[pair])
        same = np.ones(len(one), np.bool_)
        for name in reversed(results.schema.names[len(self.by) :]):
            keep_equal(same, results[name], one, other)
        same[same] = time[one[same]] == time[other[same]]
        stays = np.zeros(len(old), np.bool_)
        stays[pair] = same
        source, kind, causes = np.column_stack([old, new]).ravel(), np.empty(2 * len(old), np.int8), np.repeat(cause, 2)
        kind[0::2] = np.where(pair, np.int8(Kind.UPDATE_BEFORE), np.int8(Kind.DELETION))
        kind[1::2] = np.where(pair, np.int8(Kind.UPDATE_AFTER), np.int8(Kind.INSERTION))
        if not pair.all() or stays.any():
            given = (source >= 0) & ~np.repeat(stays, 2)
            source, kind, causes = source[given], kind[given], causes[given]
        rows = results.take(pa.array(source))
        return Flow(self._with_kind(rows, kind), time[source], causes, rank_within(causes), bounds)

    def _with_kind(self, rows: pa.Table, kind: Int8s) -> pa.Table:
        return pa.table([*rows.columns, pa.array(kind)], schema=self.signed)

    def _in_order(self, revised: Flow | None, closed: Flow) -> Flow:
        """All results by cause; the rows of a cause come before its boundary."""
        n = len(closed)
        closed = closed.with_rows(self._with_kind(closed.rows, np.full(n, Kind.INSERTION, np.int8)))
        if revised is None or not len(revised):
            return closed
        if not n:
            return revised
        starts = np.append(np.flatnonzero(differs(closed.cause)), n)
        ends = np.append(np.searchsorted(revised.cause, closed.cause[starts[:-1]], "right"), len(revised))
        runs = [
            part
            for low, high, start, end in zip(
                np.append(0, ends[:-1]), ends, starts, np.append(starts[1:], n), strict=True
            )
            for part in ((revised, slice(low, high)), (closed, slice(start, end)))
        ]
        rows = pa.concat_tables([flow.rows[run] for flow, run in runs]).combine_chunks()
        time, cause, sub = (
            np.concatenate([getattr(flow, name)[run] for flow, run in runs]) for name in ("time", "cause", "sub")
        )
        meet = np.any(revised.cause[ends[:-1] - 1] == closed.cause[starts[:-1]])  # one cause has rows of both
        return Flow(rows, time, cause, rank_within(cause) if meet else sub, closed.bounds)

    # -- tables

    def _delta_of(self, put: Columns, cut: Columns, floor: int | None) -> Delta:
        """What changed in the table that is kept beside that of the groups."""
        by = self.kept.floor
        assert by is not None
        if floor is not None:
            put, cut = (
                some if np.all(above := some[by] >= floor) else take(some, np.flatnonzero(above)) for some in (put, cut)
            )
        if floor is None and not len(put[by]) and not len(cut[by]):
            return {}
        keys = to_table({name: cut[name] for name in self.kept.key}) if len(cut[by]) else None
        return {self.kept.name: Change(to_table(put), cut=keys, floor=floor)}


def _told_apart(column: pa.Array) -> tuple[ModuleType, Int64s, NDArray[np.int32]] | None:
    """The compiled loops, where distinct integers stand first, and of each row which of them it has: in one pass, where
    loops are made and the integers are not too many."""
    compiled, kind = loops(), column.type
    if (
        compiled is None
        or column.null_count
        or not pa.types.is_integer(kind)
        or kind.bit_width not in compiled.DISTINCT
    ):
        return None
    values = column.to_numpy().view(np.dtype(f"i{kind.bit_width // 8}"))
    codes, first = room(len(values), np.int32), np.empty(GROUPS_MOST, np.int64)
    many = compiled.DISTINCT[kind.bit_width](values, np.full(4 * GROUPS_MOST, -1), codes, first)
    return None if many < 0 else (compiled, first[:many], codes)
