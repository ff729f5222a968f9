"""Filter: lets the tuples through for which a predicate is true; null is not true."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, flat
from borealis.errors import DiagramError


class Filter(Box):
    """Lets the tuples through for which the predicate is true."""

    kind: ClassVar[str] = "filter"
    operator_class: ClassVar[str] = "repeatable"
    class_reason: ClassVar[str] = "each tuple is looked at alone"
    expression_fields: ClassVar[tuple[str, ...]] = ("predicate",)

    predicate: str = Field(description="give a condition, such as predicate: bytes > 100")

    def examine(self, inputs: list[list[str]]) -> None:
        if sql.is_empty(self.predicate):
            raise DiagramError("the predicate is empty", hint="give a condition, such as bytes > 100")

    def describe(self) -> str:
        return f"filter where {flat(self.predicate)}"
