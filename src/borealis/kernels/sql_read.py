"""SQL-read: a train's distinct questions to a database, each asked once, and the answers behind the rows that asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from borealis.errors import TrainError
from borealis.kernels.aside import failing
from borealis.kernels.columns import take
from borealis.kernels.flow import NOTHING, Flow, rank_within
from borealis.kernels.kinds import pairs, signs
from borealis.kernels.remembered import ANSWERS, Remembered
from borealis.kernels.sql_write import REASON, NoState, log_refused
from borealis.kernels.step import Step, schema_of
from borealis.state.delta import Delta
from borealis.tuples import Int64s

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from borealis.databases.database import Database, OutageReport

VALUE_SHOWN_MOST = 80  # characters of a value that does not fit
ANSWER = "answer"  # of a row that is remembered
Question = tuple[Any, ...]  # values of the parameters


@dataclass(frozen=True)
class _Answer:
    """The rows that came for one question, or why none did."""

    rows: Sequence[Sequence[Any]] = ()
    refused: str | None = None


class SqlReadKernel(NoState):
    """Looks up each row's answer. It remembers nothing: the next train asks again."""

    def __init__(
        self, box: str, statement: str, database: Database, source: pa.Schema, given: pa.Schema, *, nulls: bool
    ) -> None:
        from borealis.diagram.statements import parameters

        self.box, self.database, self.given, self.nulls = box, database, given, nulls
        self._names = parameters(statement)
        self._statement = database.statement(statement)
        self._all_at_once: Any = None
        if database.kind == "postgresql" and self._names:
            self._all_at_once = database.statement(_lateral(statement, self._names, source))

    def begin(self, train: Mapping[str, Any], bucket: int, report: OutageReport) -> None:
        """Learn where to report a trouble."""
        self.database.begin(report)

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """A row for each row of its answer, in the order the database gave them."""
        index, columns = self._asked(flow)
        return self._out(flow, index, columns), {}

    def _asked(self, flow: Flow) -> tuple[Int64s, list[pa.Array]]:
        """The rows of all answers, in order: which row each is for, and their columns, the last one why it is bad."""
        if not len(flow):
            return NOTHING, [*(pa.array([], field.type) for field in self.given), pa.array([], pa.string())]
        columns = [self.database.values(flow.rows[name]) for name in self._names]
        asked = list(zip(*columns, strict=True)) if columns else [()] * len(flow)
        places: dict[Question, int] = {}
        which = np.array([places.setdefault(question, len(places)) for question in asked], np.int64)
        rows, reasons, count = self._fitted(self._answers(list(places)))
        starts = np.cumsum(count) - count
        index = np.repeat(np.arange(len(flow)), count[which])
        places_of = pa.array(np.repeat(starts[which], count[which]) + rank_within(index))
        why = reasons.take(places_of)
        log_refused(self.box, why.to_pylist() if why.null_count < len(why) else ())
        return index, [*(column.take(places_of) for column in rows), why]

    def _out(self, flow: Flow, index: Int64s, columns: Sequence[pa.Array]) -> Flow:
        asking = flow.take(index)
        table = self._behind(asking.rows, columns[:-1], columns[-1])
        return Flow(table, asking.time, asking.cause, rank_within(asking.cause), flow.bounds)

    def _behind(self, rows: pa.Table, columns: Sequence[pa.Array], reasons: pa.Array) -> pa.Table:
        for field, column in zip(self.given, columns, strict=True):
            rows = rows.append_column(field.name, column)
        return rows.append_column(REASON, reasons)

    # -- asking

    def _answers(self, questions: list[Question]) -> list[_Answer]:
        from borealis.databases.troubles import UnfitError, verdict

        unfit = {q: str(v) for q in questions for v in q if isinstance(v, UnfitError)}
        fit = [q for q in questions if q not in unfit]

        def ask(connection: Connection) -> list[_Answer]:
            if self._all_at_once is not None:  # also for one: types must not depend on the cut
                try:
                    with connection.begin_nested():
                        return self._ask_all(connection, fit)
                except Exception as error:
                    if (trouble := verdict(error)) == "passing":
                        raise
                    if trouble == "wrong":  # as a column a parameter has a type, and the statement may not like it
                        self._all_at_once = None
            return [self._ask_one(connection, question) for question in fit]

        answered = dict(zip(fit, self.database.transact(ask, writes=False), strict=True)) if fit else {}
        return [_Answer(refused=unfit[q]) if q in unfit else answered[q] for q in questions]

    def _ask_one(self, connection: Connection, question: Question) -> _Answer:
        from borealis.databases.troubles import reason, verdict_on_row

        row = dict(zip(self._names, question, strict=True))
        try:
            with connection.begin_nested():
                if self._all_at_once is not None:
                    return self._ask_all(connection, [question])[0]
                result = connection.execute(self._statement, row)
                self._check_width(len(result.keys()))
                return _Answer(result.fetchall())
        except TrainError:
            raise
        except Exception as error:
            if verdict_on_row(error, connection, self._statement, row) != "refused":
                raise
            return _Answer(refused=reason(error))

    def _ask_all(self, connection: Connection, questions: list[Question]) -> list[_Answer]:
        lists = {name: [q[i] for q in questions] for i, name in enumerate(self._names)}
        result = connection.execute(self._all_at_once, lists)
        self._check_width(len(result.keys()) - 2)
        found: list[list[Sequence[Any]]] = [[] for _ in questions]
        for number, _, *row in result:
            found[number - 1].append(row)
        return [_Answer(rows) for rows in found]

    def _check_width(self, columns: int) -> None:
        if columns != len(self.given):
            seen = f"box '{self.box}': the database answers with {columns} columns, and gives= names {len(self.given)}"
            raise TrainError(seen, hint="name in gives= each column of the SELECT, in its order")

    # -- answers as columns

    def _fitted(self, answers: list[_Answer]) -> tuple[list[pa.Array], pa.Array, np.ndarray[Any, np.dtype[np.int64]]]:
        """All rows of all answers as columns, why a row does not fit, and how many rows each answer has."""
        none = (None,) * len(self.given)
        rows: list[Sequence[Any]] = []
        reasons: list[str | None] = []
        count = []
        for answer in answers:
            mine = [none] if answer.refused is not None or (self.nulls and not answer.rows) else answer.rows
            rows += mine
            reasons += [answer.refused] * len(mine)
            count.append(len(mine))
        columns = []
        for i, field in enumerate(self.given):
            values, misfits = _fit([row[i] for row in rows], field)
            columns.append(values)
            for at, why in misfits.items():
                reasons[at] = reasons[at] or why
        return columns, pa.array(reasons, pa.string()), np.array(count, np.int64)


class RememberingSqlRead(SqlReadKernel):
    """As it, over rows that can be taken back: each leaves with the answer that it got when it came."""

    tables = (ANSWERS,)

    def __init__(
        self,
        box: str,
        statement: str,
        database: Database,
        source: pa.Schema,
        given: pa.Schema,
        *,
        nulls: bool,
        history: int,
    ) -> None:
        super().__init__(box, statement, database, source, given, nulls=nulls)
        self._answer = pa.struct([*given, pa.field(REASON, pa.string())])
        self.remembered = Remembered({ANSWER: pa.array([], pa.list_(self._answer))}, history)

    def step(self, flow: Flow) -> tuple[Flow, Delta]:
        """A row for each row of its answer; where a row replaces another, so do the rows of their answers, in order."""
        flow, rows, taken = self.remembered.taken(flow, self.remembered.arrived(flow))
        come = np.flatnonzero(taken.adds)
        index, columns = self._asked(flow.take(come))
        ends = np.concatenate([[0], np.cumsum(np.bincount(index, minlength=len(come)))]).astype(np.int32)
        found = pa.StructArray.from_arrays(columns, fields=list(self._answer))
        answers = pa.ListArray.from_arrays(pa.array(ends), found, type=pa.list_(self._answer))
        place = np.empty(len(flow), np.int64)
        place[~taken.adds], place[come] = taken.row, len(taken.held) + np.arange(len(come))
        known = self.remembered.rows.at(taken.held)[ANSWER]
        said = pa.concat_arrays([known, answers]).take(pa.array(place))
        row, order = self._in_order(flow, said.value_lengths().to_numpy())
        out = self._out(flow, row, said.flatten().take(pa.array(order)).flatten())
        return out, self.remembered.settle(take(rows, come) | {ANSWER: answers}, taken, flow.bounds)

    def _in_order(self, flow: Flow, count: Int64s) -> tuple[Int64s, Int64s]:
        """For each row that comes out, the row it is of, and its place among all rows of all answers."""
        row = np.repeat(np.arange(len(flow)), count)
        first = pairs(flow, signs(flow))
        if not len(first):
            return row, np.arange(len(row))
        head = np.arange(len(flow))
        head[first + 1] = first
        order = np.lexsort((row, rank_within(row), head[row]))
        return row[order], order

    def apply(self, delta: Delta) -> None:
        self.remembered.apply(delta)

    def tables_now(self) -> dict[str, pa.Table]:
        return self.remembered.tables_now()


def _fit(values: list[Any], field: pa.Field) -> tuple[pa.Array, dict[int, str]]:
    """Values as their declared type, and why some cannot be; SQLite has no truth values, no times and no decimals."""
    from borealis.values.python import FAILURES, normal

    def fitted(value: Any) -> Any:
        if pa.types.is_boolean(field.type) and type(value) is int and value in (0, 1):
            return bool(value)
        return normal(value, field.type)

    def column(some: list[Any]) -> pa.Array:
        return pa.array([fitted(value) for value in some], field.type)

    bad = {one.row for one in failing(len(values), lambda start, stop: column(values[start:stop]), FAILURES)}
    if not bad:
        return column(values), {}
    seen = f"column '{field.name}' is {field.type}, and the database gave "
    misfits = {at: seen + repr(values[at])[:VALUE_SHOWN_MOST] for at in bad}
    return column([None if at in bad else value for at, value in enumerate(values)]), misfits


def _lateral(statement: str, names: list[str], source: pa.Schema) -> str:
    """The statement over a table of questions, for PostgreSQL: each answer with the number of its question."""
    from borealis.diagram.statements import filled

    inner = filled(statement, lambda name: f"__asked.c{names.index(name)}")
    lists = ", ".join(f"CAST(:{name} AS {_postgresql_type(source.field(name).type)}[])" for name in names)
    columns = ", ".join(f"c{i}" for i in range(len(names)))
    return (
        f"SELECT __asked.n, __found.* FROM unnest({lists}) WITH ORDINALITY AS __asked({columns}, n)\n"
        f"CROSS JOIN LATERAL (SELECT row_number() OVER () AS __k, __rows.* FROM ({inner}\n) AS __rows) AS __found\n"
        f"ORDER BY 1, 2"
    )


def _postgresql_type(kind: pa.DataType) -> str:
    types = pa.types
    if types.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    pairs = (
        (types.is_boolean, "boolean"),
        (types.is_integer, "bigint"),
        (types.is_floating, "float8"),
        (types.is_decimal, "numeric"),
        (types.is_date, "date"),
        (types.is_binary, "bytea"),
    )
    return next((name for is_a, name in pairs if is_a(kind)), "text")


def make(step: Step) -> SqlReadKernel:
    from borealis.databases.database import Database

    options = step.options
    database = Database(step.box, options["database"], options["give_up"])
    source, given = schema_of(options["schema"]), schema_of(options["given"])
    nulls, history = options["missing"] == "null", options["history"]
    if history is None:
        return SqlReadKernel(step.box, options["statement"], database, source, given, nulls=nulls)
    return RememberingSqlRead(step.box, options["statement"], database, source, given, nulls=nulls, history=history)
