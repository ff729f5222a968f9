"""Route: a filter with several predicates; each tuple goes to the branch of the first one that is true."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, flat
from borealis.diagram.names import require_identifier
from borealis.errors import DiagramError


class Route(Box):
    """Sends each tuple along the arrow `<name>.<branch>` of the first predicate that is true; null is not true.

    What no predicate wants goes to the branch named by `otherwise`, or nowhere.
    """

    kind: ClassVar[str] = "route"
    operator_class: ClassVar[str] = "repeatable"
    class_reason: ClassVar[str] = "each tuple is looked at alone"
    expression_fields: ClassVar[tuple[str, ...]] = ("branches",)

    branches: dict[str, str] = Field(description="name each branch, such as branches: {urgent: severity > 7}")
    otherwise: str | None = None

    @property
    def branch_names(self) -> list[str]:
        """The names of all branches, that for the rest last."""
        return [*self.branches, *([] if self.otherwise is None else [self.otherwise])]

    @property
    def ports(self) -> tuple[str, ...]:
        return tuple(f".{name}" for name in self.branch_names)

    def examine(self, inputs: list[list[str]]) -> None:
        if not self.branches:
            raise DiagramError("a route without branches", hint='name at least one, such as urgent="severity > 7"')
        for name, predicate in self.branches.items():
            if sql.is_empty(predicate):
                raise DiagramError(f"the predicate of '{name}' is empty", hint="give a condition, such as bytes > 100")
        for name in self.branch_names:
            require_identifier("branch", name)
        if self.otherwise in self.branches:
            raise DiagramError(f"two branches are called '{self.otherwise}'", hint="rename that for the rest")

    def describe(self) -> str:
        parts = [f"{name} where {flat(predicate)}" for name, predicate in self.branches.items()]
        return "route " + ", else ".join([*parts, *([] if self.otherwise is None else [self.otherwise])])
