"""PostgreSQL's fast path: COPY, for statements and tables where it does what the statement would do."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from sqlalchemy import text
from sqlalchemy.engine import Connection

ROWS_LEAST = 16  # fewer are as fast one by one
_IDENTIFIER = r'(?:"(?:[^"]|"")+"|[A-Za-z_]\w*)'
_PLAIN = re.compile(
    rf"\s*INSERT\s+INTO\s+(?P<table>{_IDENTIFIER}(?:\.{_IDENTIFIER})?)\s*"
    rf"\(\s*(?P<columns>{_IDENTIFIER}(?:\s*,\s*{_IDENTIFIER})*)\s*\)\s*"
    r"VALUES\s*\(\s*(?P<values>:\w+(?:\s*,\s*:\w+)*)\s*\)[\s;]*",
    re.IGNORECASE,
)

# a table with triggers, rules or row security may do something else with a COPY than with single rows
_SIMPLE = text(
    """SELECT c.relkind IN ('r', 'p') AND NOT c.relhasrules AND NOT c.relrowsecurity
        AND NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
    FROM pg_class c WHERE c.oid = to_regclass(:name)"""
)

# types of PostgreSQL, by their numbers, that read our text as they would take our value
_TIMESTAMP, _TIMESTAMPTZ = 1114, 1184
_READ_BY = (
    (pa.types.is_integer, (20, 21, 23, 1700)),  # int8, int2, int4, numeric
    (pa.types.is_boolean, (16,)),
    (pa.types.is_float32, (700,)),
    (pa.types.is_float64, (701,)),
    (pa.types.is_decimal, (1700,)),
    (pa.types.is_date, (1082,)),
    (pa.types.is_binary, (17,)),
)


class Copying:
    """A plain INSERT as a COPY. It may refuse what single rows would not, so a refusal means: try those."""

    def __init__(self, table: str, columns: list[str], names: list[str]) -> None:
        self.table, self.columns, self.names = table, columns, names
        self._sql = f"COPY {table} ({', '.join(columns)}) FROM STDIN WITH (FORMAT csv, ENCODING 'UTF8')"

    @classmethod
    def of(cls, statement: str) -> Copying | None:
        """The same as a COPY, if there is one: `INSERT INTO t (a, b) VALUES (:x, :y)`, and nothing else in it."""
        found = _PLAIN.fullmatch(statement)
        if found is None:
            return None
        columns = re.findall(_IDENTIFIER, found["columns"])
        names = re.findall(r":(\w+)", found["values"])
        return cls(found["table"], columns, names) if len(columns) == len(names) else None

    def suits(self, connection: Connection, rows: pa.Schema) -> bool:
        """Whether the table and its types are such that it comes to the same."""
        if not connection.execute(_SIMPLE, {"name": self.table}).scalar():
            return False
        with _cursor(connection) as cursor:
            cursor.execute(f"SELECT {', '.join(self.columns)} FROM {self.table} LIMIT 0")
            theirs = [column.type_code for column in cursor.description]
        return all(_same(rows.field(name).type, kind) for name, kind in zip(self.names, theirs, strict=True))

    def run(self, connection: Connection, rows: pa.Table) -> None:
        """Send the rows, in their order."""
        out = BytesIO()
        made = pa.table([_readable(rows[name]) for name in self.names], [f"c{i}" for i in range(len(self.names))])
        csv.write_csv(made, out, csv.WriteOptions(include_header=False))
        with _cursor(connection) as cursor, cursor.copy(self._sql) as copy:
            copy.write(out.getbuffer())


def _cursor(connection: Connection) -> Any:
    driver: Any = connection.connection.driver_connection
    return driver.cursor()


def _same(ours: pa.DataType, theirs: int) -> bool:
    if pa.types.is_string(ours):
        return True  # both ways it is text that the column's type reads
    if pa.types.is_timestamp(ours):
        return theirs == (_TIMESTAMP if ours.tz is None else _TIMESTAMPTZ)
    return any(is_a(ours) and theirs in kinds for is_a, kinds in _READ_BY)


def _readable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What Arrow writes as PostgreSQL reads it."""
    if pa.types.is_binary(column.type):
        return pa.chunked_array([pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()])])
    if pa.types.is_decimal(column.type):
        return pc.cast(column, pa.string())
    return column
