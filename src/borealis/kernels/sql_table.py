"""SQL-write by key: a table of a database has the newest row of each key, and none that was taken back.

A row that comes is put in place of the one with its key; one that goes deletes it, unless another stands there by then.
Of one cause, what comes for a key covers what goes: a replacement is one statement, in whatever order its halves are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from borealis.errors import TrainError
from borealis.kernels.columns import Columns, take, whole
from borealis.kernels.flow import NOTHING, Flow
from borealis.kernels.groups import GROUP
from borealis.kernels.held_rows import WHOLE, fingerprints
from borealis.kernels.kinds import Bools
from borealis.kernels.remembered import ANSWERS, Remembered, Taken
from borealis.kernels.sql_write import REASON, SqlWriteKernel, Writing
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta
from borealis.tuples import CAUSE, FIRST_TIME, KIND, LAST_TIME, Int64s

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from borealis.databases.database import Database


class Act(IntEnum):
    """What a row does to the table."""

    NOTHING = 0
    PUT = 1
    CUT = 2


class SqlTableKernel(SqlWriteKernel):
    """Keeps a table by its key. Where rows can be taken back, it remembers which were refused, and their order."""

    tables = (ANSWERS,)

    def __init__(
        self, box: str, table: str, key: list[str], schema: pa.Schema, database: Database, history: int | None
    ) -> None:
        """`history`: how long rows can be taken back; None: never."""
        from borealis.databases import keeping
        from borealis.diagram.statements import keeps_tables

        if not keeps_tables(database.kind):
            what = f"box '{box}': no table can be kept by a key in {database.kind}"
            raise TrainError(what, hint="SQLite and PostgreSQL are known; write a statement= for any other")
        columns = [name for name in schema.names if name != KIND]
        super().__init__(box, keeping.put(database.url, table, columns, key), database)
        self.names = dict(zip(self.names, columns, strict=True))
        self.key = key
        self.cut = database.statement(keeping.cut(database.url, table, key))
        self.cut_names = dict(zip(keeping.parameters(key), key, strict=True))
        self.remembered = None if history is None else Remembered({REASON: pa.array([], pa.string())}, history)

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """The same rows, each with why it was refused: one that goes for the reason of the one that came."""
        key = fingerprints([flow.rows[name] for name in self.key], len(flow))
        taken = Taken(np.ones(len(flow), np.bool_), NOTHING, NOTHING)
        rows: Columns = {}
        if self.remembered is not None:
            flow, rows, taken = self.remembered.taken(flow, self.remembered.arrived(flow, key))
            key = rows[GROUP]
        changes = _Changes(key, rows, taken, self.remembered)

        def writing(connection: Connection, refused: Mapping[int, str]) -> _Keeping:
            return _Keeping(self, connection, flow.rows, _Plan(changes, refused))

        refused = self._write(flow, writing)
        refused |= {row: why for row, took in changes.took.items() if (why := changes.reason(took, refused))}
        if self.remembered is None:
            return self._judged(flow, refused), {}
        out, come = self._judged(flow, refused), np.flatnonzero(taken.adds)
        answers = whole(out.rows[REASON]).take(pa.array(come))
        return out, self.remembered.settle(take(rows, come) | {REASON: answers}, taken, flow.bounds)

    def apply(self, delta: Delta) -> None:
        if self.remembered is not None:
            self.remembered.apply(delta)

    def tables_now(self) -> dict[str, pa.Table]:
        return {} if self.remembered is None else self.remembered.tables_now()


class _Changes:
    """The rows of a train by their keys, as far as any of a key goes: which rows they take, and what stood before.

    A row is known by its place in the train; one that came before the train by a negative number.
    """

    def __init__(self, key: Int64s, rows: Columns, taken: Taken, remembered: Remembered | None) -> None:
        self.comes: Bools = taken.adds
        self.key = key
        self.took: dict[int, int] = {}  # row that goes, to the one that it takes back
        self.idle: set[int] = set()  # rows that come and go by one cause, and those that take them
        self.rows_of: dict[int, list[int]] = {}
        self.stood: dict[int, list[int]] = {}  # the rows of a key that came before, in their order
        self.known: dict[int, str | None] = {}  # why these were refused
        self.whole: dict[int, int] = {}  # what all columns of a row come to
        goes = np.flatnonzero(~taken.adds)
        if not len(goes) or remembered is None:
            return
        self.cause = cause = rows[CAUSE]
        names = np.concatenate([-1 - taken.held, np.flatnonzero(taken.adds)])
        self.took = dict(zip(goes.tolist(), names[taken.row].tolist(), strict=True))
        self.idle = {
            one for both in self.took.items() if both[1] >= 0 and cause[both[0]] == cause[both[1]] for one in both
        }
        keys = np.unique(key[goes])
        for row in np.flatnonzero(np.isin(key, keys)).tolist():
            self.rows_of.setdefault(int(key[row]), []).append(row)
            self.whole[row] = int(rows[WHOLE][row])
        ends = (np.full(len(keys), time) for time in (FIRST_TIME, LAST_TIME))
        _, places = remembered.rows.find(keys, *ends)
        held = remembered.rows.at(places)
        names = -1 - places
        self.known = dict(zip(names.tolist(), held[REASON].to_pylist(), strict=True))
        self.whole |= dict(zip(names.tolist(), held[WHOLE].tolist(), strict=True))
        for name, owner in zip(names.tolist(), held[GROUP].tolist(), strict=True):
            self.stood.setdefault(owner, []).append(name)

    def reason(self, row: int, refused: Mapping[int, str]) -> str | None:
        """Why a row that came was refused, if it was."""
        return self.known[row] if row < 0 else refused.get(row)


class _Plan:
    """What each row of a train does to the table, as far as it is known which rows are refused."""

    def __init__(self, changes: _Changes, refused: Mapping[int, str]) -> None:
        self.changes, self.refused = changes, set(refused)
        self.acts: list[int] = np.where(changes.comes, Act.PUT, Act.NOTHING).tolist()
        for row in changes.idle:
            self.acts[row] = Act.NOTHING
        for key in changes.rows_of:
            self._draw(key)

    def refuse(self, row: int) -> Sequence[int]:
        """A row was refused: the rows of its cause that it would have covered, and which must now go by themselves."""
        self.refused.add(row)
        rows = self.changes.rows_of.get(int(self.changes.key[row]), [])
        before = {one for one in rows if self.acts[one] == Act.CUT}
        self._draw(int(self.changes.key[row]))
        return [one for one in rows if one < row and self.acts[one] == Act.CUT and one not in before]

    def _draw(self, key: int) -> None:
        changes = self.changes
        stands = [row for row in changes.stood.get(key, []) if changes.known[row] is None]
        rows = [row for row in changes.rows_of.get(key, []) if row not in changes.idle]
        covering = {int(changes.cause[row]) for row in rows if changes.comes[row] and row not in self.refused}
        for row in rows:
            if changes.comes[row]:
                if row not in self.refused:
                    stands.append(row)
                continue
            took = changes.took[row]
            shown = stands[-1:] == [took]
            if took in stands:
                stands.remove(took)
            same = [changes.whole[one] for one in stands[-1:]] == [changes.whole[took]]
            shown &= not same and int(changes.cause[row]) not in covering
            self.acts[row] = Act.CUT if shown else Act.NOTHING


class _Keeping(Writing):
    """A train's changes on their way into a table."""

    def __init__(self, kernel: SqlTableKernel, connection: Connection, rows: pa.Table, plan: _Plan) -> None:
        super().__init__(kernel, connection, rows)
        self._table, self._plan = kernel, plan
        self._nameless = {name: rows[name].is_null().to_numpy() for name in kernel.key if rows[name].null_count}

    def _run(self, start: int, stop: int) -> None:
        acts = self._plan.acts
        for act, some in groupby((row for row in range(start, stop) if acts[row] != Act.NOTHING), acts.__getitem__):
            places = list(some)
            if act == Act.PUT:
                self._require_key(places)
                self._execute(self._table.statement, self._table.names, places)
            else:
                self._execute(self._table.cut, self._table.cut_names, places)

    def _require_key(self, places: list[int]) -> None:
        """A key that is null finds no row, and SQLite would take one after the other of them."""
        from borealis.databases.troubles import UnfitError

        for name, null in self._nameless.items():
            if null[places].any():
                raise UnfitError(f"column '{name}' of its key is null")

    def _refused(self, at: int, error: Exception) -> str:
        if self._plan.acts[at] != Act.PUT:
            raise error  # what was written cannot be taken back: the table is wrong
        for row in self._plan.refuse(at):
            self._run(row, row + 1)
        return super()._refused(at, error)


def make(step: Step) -> SqlTableKernel:
    from borealis.databases.database import Database

    o = step.options
    database = Database(step.box, o["database"], o["give_up"])
    return SqlTableKernel(step.box, o["table"], o["key"], schema_of(o["schema"]), database, o["history"])
