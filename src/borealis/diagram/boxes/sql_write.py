"""SQL-write: changes a table of a database once for each tuple, and passes the tuple on (Hwang 2.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from borealis.diagram.boxes.base import Box, Names, flat
from borealis.diagram.durations import Duration, parse
from borealis.diagram.names import require_columns
from borealis.diagram.statements import DATABASE, GIVE_UP, check_database, check_statement, check_table
from borealis.errors import DiagramError

BAD = ".bad"
REASON = "reason"


class DatabaseBox(Box):
    """What boxes that ask or change a database share; what it refuses goes to `<name>.bad`, with the reason."""

    span_fields: ClassVar[tuple[str, ...]] = ("give_up",)
    holds_revised: ClassVar[bool] = True

    if TYPE_CHECKING:  # fields of each, in its own order: that of the YAML form
        database: str
        give_up: str

    @property
    def give_up_us(self) -> int:
        """How long it waits for a database before the train fails."""
        return parse(self.give_up)

    @property
    def ports(self) -> tuple[str, ...]:
        return ("", BAD)

    def arrow_columns(self, inputs: list[list[str]]) -> dict[str, list[str]]:
        return {self.name: self.columns(inputs), self.name + BAD: [*inputs[0], REASON]}

    def examine(self, inputs: list[list[str]]) -> None:
        check_database(self.database)
        taken = [name for name in inputs[0] if name.lower() == REASON]
        if taken:
            hint = f"the arrow {BAD} has a {REASON} of its own: rename yours with a map"
            raise DiagramError(f"there is a column '{taken[0]}' already", hint=hint)


class SqlWrite(DatabaseBox):
    """Runs a statement for each tuple, exactly once; what the database refuses goes to `<name>.bad` with the reason.

    Parameters are columns: `INSERT INTO alerts (src, n) VALUES (:src, :n)`. In place of a statement, a table with a
    key: a tuple replaces the row of the table that has its key, and one that takes it back deletes that row.
    """

    kind: ClassVar[str] = "sql_write"
    operator_class: ClassVar[str] = "repeatable"
    class_reason: ClassVar[str] = "it passes its tuples on; the database remembers what was written"
    outside: ClassVar[bool] = True

    statement: str | None = Field(default=None, description="write SQL, such as INSERT INTO alerts (src) VALUES (:src)")
    table: str | None = Field(default=None, description="name a table, such as alerts or public.alerts")
    key: Names | None = Field(default=None, description="name the columns by which a row of the table is found")
    database: str = DATABASE
    give_up: Duration = GIVE_UP

    @model_validator(mode="after")
    def _one_way_to_write(self) -> SqlWrite:
        if (self.statement is None) == (self.table is None):
            what = "neither a statement nor a table" if self.table is None else "both a statement and a table"
            raise DiagramError(what, hint="write a statement=, or name the table= to keep, and its key=")
        if (self.table is None) != (not self.key):
            what = "a key without a table" if self.key else "a table without a key"
            raise DiagramError(what, hint="say table='bills', key='id': the key finds the row that a tuple replaces")
        return self

    @property
    def unrevised(self) -> str:  # type: ignore[override]
        """A table is kept by its key; what any other statement did is not known."""
        return "" if self.table is not None else "no statement can be taken back; say table= and key= in its place"

    def examine(self, inputs: list[list[str]]) -> None:
        super().examine(inputs)
        if self.statement is not None:
            check_statement(self.statement, inputs[0], reads=False)
        if self.table is not None:
            check_table(self.table, self.database)
            require_columns(self.key or (), inputs[0])

    def describe(self) -> str:
        by = f"table {self.table} by {', '.join(self.key or ())}"
        return f"sql_write to {self.database}: {by if self.statement is None else flat(self.statement)}"
