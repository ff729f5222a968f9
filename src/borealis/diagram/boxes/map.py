"""Map: computes new columns from each tuple; columns it does not name are gone."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, flat
from borealis.diagram.names import require_distinct, require_free
from borealis.errors import DiagramError


class Map(Box):
    """Computes each output column as an expression over one tuple."""

    kind: ClassVar[str] = "map"
    operator_class: ClassVar[str] = "repeatable"
    class_reason: ClassVar[str] = "each tuple is computed alone"
    expression_fields: ClassVar[tuple[str, ...]] = ("exprs",)

    exprs: dict[str, str] = Field(description="name each output column, such as exprs: {kb: bytes / 1024.0}")

    def columns(self, inputs: list[list[str]]) -> list[str]:
        return list(self.exprs)

    def examine(self, inputs: list[list[str]]) -> None:
        if not self.exprs:
            raise DiagramError("a map without columns", hint='name at least one, such as kb="bytes / 1024.0"')
        for name, expression in self.exprs.items():
            require_free(name)
            if sql.is_empty(expression):
                raise DiagramError(f"the expression of '{name}' is empty", hint="give a Spark SQL expression")
        require_distinct(self.exprs)

    def describe(self) -> str:
        return "map " + ", ".join(f"{name} = {flat(e)}" for name, e in self.exprs.items())
