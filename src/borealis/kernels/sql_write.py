"""SQL-write: a train's rows in one transaction of a database, exactly once, together with how far the box has come."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from borealis.errors import TrainError
from borealis.kernels.flow import Flow
from borealis.kernels.step import Step
from borealis.state.delta import Delta, TableSpec

if TYPE_CHECKING:
    from sqlalchemy import TextClause
    from sqlalchemy.engine import Connection

    from borealis.databases.database import Database, OutageReport
    from borealis.databases.ledger import RowPosition

REASON = "__reason"  # why the database refused a row; null where it did not


log = logging.getLogger("borealis.databases")


def log_refused(box: str, reasons: Sequence[str | None]) -> None:
    """A line in the log for a train of which something was refused: its stream `.bad` may lead nowhere."""
    bad = [why for why in reasons if why is not None]
    if bad:
        log.warning("box '%s': %d of %d rows of a train are bad, the first: %s", box, len(bad), len(reasons), bad[0])


class NoState:
    """A kernel that has nothing to catch up with."""

    tables: ClassVar[tuple[TableSpec, ...]] = ()

    def apply(self, delta: Delta) -> None: ...

    def tables_now(self) -> dict[str, pa.Table]:
        return {}


class SqlWriteKernel(NoState):
    """Writes rows in their order. All that it remembers is in the database: see `databases/ledger.py`."""

    def __init__(self, box: str, statement: str, database: Database) -> None:
        from borealis.databases.copying import Copying
        from borealis.diagram.statements import parameters

        self.box, self.database = box, database
        self.names = {name: name for name in parameters(statement)}  # parameters to columns
        self.statement = database.statement(statement)
        self._copying = Copying.of(statement) if database.url.drivername == "postgresql+psycopg" else None
        self._copying_suits: bool | None = None  # not known yet
        self._created = False
        self._writer: str | None = None
        self._tentative = False

    def begin(self, train: Mapping[str, Any], bucket: int, report: OutageReport) -> None:
        """Learn in whose name the next train writes: a unit that goes on from its state goes on under the same."""
        self._writer = f"{train['diagram']}/{self.box}/{bucket}/{train['writer_id']}"
        self._tentative = "fork" in train
        self.database.begin(report)

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """The same rows, each with why it was refused; afterwards the others are in the database."""
        refused = self._write(flow, lambda connection, _: Writing(self, connection, flow.rows))
        return self._judged(flow, refused), {}

    def _judged(self, flow: Flow, refused: Mapping[int, str]) -> Flow:
        reasons = [refused.get(at) for at in range(len(flow))]
        log_refused(self.box, reasons)
        return flow.with_rows(flow.rows.append_column(REASON, pa.array(reasons, pa.string())))

    # -- one transaction

    def _write(self, flow: Flow, writing: MakeWriting) -> dict[int, str]:
        """The places of rows that are refused, and why; the others are in the database."""
        from borealis.databases import ledger

        if not len(flow) or self._tentative:  # what is not stable is not written
            return {}
        if self._writer is None:
            raise TrainError(f"box '{self.box}' does not know which train it writes", hint="a defect of Borealis")
        if not self._created:
            self.database.transact(ledger.create, writes=True)
            self._created = True
        return self.database.transact(lambda connection: self._once(connection, flow, writing), writes=True)

    def _once(self, connection: Connection, flow: Flow, writing: MakeWriting) -> dict[int, str]:
        from borealis.databases import ledger

        assert self._writer is not None
        known = ledger.lock(connection, self._writer)
        done = int(np.count_nonzero((flow.cause < known[0]) | ((flow.cause == known[0]) & (flow.sub <= known[1]))))
        refused: dict[int, str] = {}
        if done:  # a replay
            before = ledger.refused(connection, self._writer, _position(flow, 0), _position(flow, done - 1))
            refused = {at: before[_position(flow, at)] for at in range(done) if _position(flow, at) in before}
        if done < len(flow):
            news = writing(connection, refused).send(done, len(flow))
            reasons = {_position(flow, at): why for at, why in news.items()}
            ledger.record(connection, self._writer, _position(flow, -1), reasons)
            refused |= news
        return refused

    def copying(self, connection: Connection, rows: pa.Table) -> Any:
        """The fast way in, if there is one."""
        if self._copying is not None and self._copying_suits is None:
            self._copying_suits = self._copying.suits(connection, rows.schema)
        return self._copying if self._copying_suits else None


def _position(flow: Flow, at: int) -> RowPosition:
    return int(flow.cause[at]), int(flow.sub[at])


class Writing:
    """A train's rows on their way into a database, as many at once as it takes."""

    def __init__(self, kernel: SqlWriteKernel, connection: Connection, rows: pa.Table) -> None:
        self._kernel, self._connection, self._rows = kernel, connection, rows
        self._columns: dict[str, list[Any]] = {}

    def send(self, start: int, stop: int) -> dict[int, str]:
        """Run the statement for each row, in their order; those that are refused, by their places, and why.

        Whether a row is refused depends only on the rows before it: all at once are taken only if each is.
        """
        from borealis.databases.troubles import verdict_on_row

        if stop - start > 1 and self._copied(start, stop):
            return {}
        try:
            with self._connection.begin_nested():
                self._run(start, stop)
            return {}
        except Exception as error:
            row = {name: self._values(column)[start] for name, column in self._kernel.names.items()}
            if verdict_on_row(error, self._connection, self._kernel.statement, row) != "refused":
                raise
            if stop - start == 1:
                return {start: self._refused(start, error)}
        middle = (start + stop) // 2
        return self.send(start, middle) | self.send(middle, stop)

    def _copied(self, start: int, stop: int) -> bool:
        from borealis.databases.copying import ROWS_LEAST
        from borealis.databases.troubles import verdict

        if stop - start < ROWS_LEAST:
            return False
        copying = self._kernel.copying(self._connection, self._rows)
        if copying is None:
            return False
        try:
            with self._connection.begin_nested():
                copying.run(self._connection, self._rows.slice(start, stop - start))
            return True
        except Exception as error:
            if verdict(error) == "passing":
                raise
            return False  # single rows say what is wrong

    def _refused(self, at: int, error: Exception) -> str:
        """Why a row is not in the database."""
        from borealis.databases.troubles import reason

        return reason(error)

    def _run(self, start: int, stop: int) -> None:
        self._execute(self._kernel.statement, self._kernel.names, range(start, stop))

    def _execute(self, statement: TextClause, names: Mapping[str, str], places: Sequence[int]) -> None:
        """A statement for each of these rows; `names` has the columns of its parameters."""
        from borealis.databases.troubles import UnfitError

        columns = [list(map(self._values(column).__getitem__, places)) for column in names.values()]
        for values in columns:
            for value in values:
                if isinstance(value, UnfitError):
                    raise value
        if not columns:
            for _ in places:
                self._connection.execute(statement)
            return
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        self._connection.execute(statement, rows)

    def _values(self, column: str) -> list[Any]:
        if column not in self._columns:
            self._columns[column] = self._kernel.database.values(self._rows[column])
        return self._columns[column]


MakeWriting: TypeAlias = "Callable[[Connection, Mapping[int, str]], Writing]"  # of what was refused in an earlier run


def make(step: Step) -> SqlWriteKernel:
    from borealis.databases.database import Database

    options = step.options
    database = Database(step.box, options["database"], options["give_up"])
    return SqlWriteKernel(step.box, options["statement"], database)
