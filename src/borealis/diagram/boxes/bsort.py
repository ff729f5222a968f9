"""BSort: an approximate sort in a buffer of bounded size (Hwang 2.2.2)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, Names, flat
from borealis.diagram.names import require_columns
from borealis.errors import DiagramError

BUFFER_MOST = 10_000_000  # tuples: a buffer is held in memory


class BSort(Box):
    """Puts each tuple into a buffer of `buffer` places and, when that is full, emits the one with the least value.

    The output is that of `buffer` - 1 passes of bubble sort. Of equal values the one that came first goes first; null
    is least, NaN is greatest. A tuple that was pushed out by a later one has the time of that one: its own time may lie
    before a boundary that has passed. What is left goes out when the stream ends.
    """

    kind: ClassVar[str] = "bsort"
    operator_class: ClassVar[str] = "deterministic"
    stateful: ClassVar[bool] = True
    expression_fields: ClassVar[tuple[str, ...]] = ("value",)
    class_reason: ClassVar[str] = "a great value may stay in the buffer for ever, and one that is filled again lacks it"

    value: str = Field(description="say what to sort by, such as value: price")
    buffer: int = Field(description="say how many tuples to hold, such as buffer: 100")
    by: Names = ()

    def examine(self, inputs: list[list[str]]) -> None:
        if sql.is_empty(self.value):
            raise DiagramError("nothing to sort by", hint="give a column or an expression, such as price")
        if not 1 <= self.buffer <= BUFFER_MOST:
            hint = f"give a buffer of 1 (which sorts nothing) to {BUFFER_MOST:,} tuples"
            raise DiagramError(f"a buffer of {self.buffer} tuples", hint=hint)
        require_columns(self.by, inputs[0])

    def describe(self) -> str:
        groups = f", one for each {', '.join(self.by)}" if self.by else ""
        return f"sort by {flat(self.value)} in a buffer of {self.buffer}{groups}"
