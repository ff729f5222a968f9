"""SQL-write: changes a table of a database once for each tuple, and passes the tuple on (Hwang 2.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from borealis.diagram.boxes.base import Box, flat
from borealis.diagram.durations import Duration, parse
from borealis.diagram.statements import DATABASE, GIVE_UP, check_database, check_statement
from borealis.errors import DiagramError

BAD = ".bad"
REASON = "reason"


class DatabaseBox(Box):
    """What boxes that ask or change a database share; what it refuses goes to `<name>.bad`, with the reason."""

    span_fields: ClassVar[tuple[str, ...]] = ("give_up",)
    unrevised: ClassVar[str] = "it cannot take rows back yet"

    if TYPE_CHECKING:  # fields of each, in its own order: that of the YAML form
        statement: str
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
        check_statement(self.statement, inputs[0], reads=not self.outside)
        taken = [name for name in inputs[0] if name.lower() == REASON]
        if taken:
            hint = f"the arrow {BAD} has a {REASON} of its own: rename yours with a map"
            raise DiagramError(f"there is a column '{taken[0]}' already", hint=hint)


class SqlWrite(DatabaseBox):
    """Runs a statement for each tuple, exactly once; what the database refuses goes to `<name>.bad` with the reason.

    Parameters are columns: `INSERT INTO alerts (src, n) VALUES (:src, :n)`.
    """

    kind: ClassVar[str] = "sql_write"
    operator_class: ClassVar[str] = "repeatable"
    class_reason: ClassVar[str] = "it passes its tuples on; the database remembers what was written"
    outside: ClassVar[bool] = True

    statement: str = Field(description="write SQL, such as INSERT INTO alerts (src) VALUES (:src)")
    database: str = DATABASE
    give_up: Duration = GIVE_UP

    def describe(self) -> str:
        return f"sql_write to {self.database}: {flat(self.statement)}"
