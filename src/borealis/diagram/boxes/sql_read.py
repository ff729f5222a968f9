"""SQL-read: asks a database for each tuple, and appends what it answers (Hwang 2.2.2)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from borealis.diagram import sql
from borealis.diagram.boxes.base import flat
from borealis.diagram.boxes.sql_write import DatabaseBox
from borealis.diagram.durations import Duration
from borealis.diagram.names import require_distinct
from borealis.diagram.statements import DATABASE, GIVE_UP, check_statement


class SqlRead(DatabaseBox):
    """Asks a question for each tuple; a tuple comes out for each row of the answer, with its columns behind.

    The columns of the answer are `gives`, in that order; an answer that does not fit them goes to `<name>.bad` with the
    reason. Without `stable` the table may change: a backup that asks again may get another answer. A tuple that is
    taken back leaves with the answer that it got when it came.
    """

    kind: ClassVar[str] = "sql_read"

    statement: str = Field(description="write SQL, such as SELECT name FROM customers WHERE id = :customer")
    gives: str = Field(description='say what the answer holds, as in "name STRING, tier INT"')
    database: str = DATABASE
    missing: Literal["drop", "null"] = Field(default="drop", description='say "drop" or "null"')
    stable: bool = Field(default=False, description="say true if the same question always has the same answer")
    give_up: Duration = GIVE_UP

    @property
    def operator_class(self) -> str:  # type: ignore[override]
        """As good as the promise that the table is stable."""
        return "arbitrary" if self.nondeterminism else "repeatable"

    @property
    def class_reason(self) -> str:  # type: ignore[override]
        return self.nondeterminism or "the user promises that the same question always has the same answer"

    @property
    def nondeterminism(self) -> str:
        return "" if self.stable else "the table it reads may have changed the next time"

    @property
    def given(self) -> list[str]:
        """The names of the columns that it appends."""
        return [name for name, _ in sql.columns_of_ddl(self.gives)]

    def columns(self, inputs: list[list[str]]) -> list[str]:
        return [*inputs[0], *self.given]

    def examine(self, inputs: list[list[str]]) -> None:
        super().examine(inputs)
        check_statement(self.statement, inputs[0], reads=True)
        require_distinct(self.columns(inputs))

    def plain(self) -> dict[str, Any]:
        body = super().plain()
        body[self.kind]["stable"] = "true" if self.stable else "false"
        return body

    def describe(self) -> str:
        return f"sql_read from {self.database}: {flat(self.statement)} gives {flat(self.gives)}"
