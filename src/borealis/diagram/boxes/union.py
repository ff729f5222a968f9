"""Union: several streams of one schema as one, in the order in which tuples arrive."""

from __future__ import annotations

from typing import ClassVar

from borealis.diagram.boxes.base import Box
from borealis.errors import DiagramError


class Union(Box):
    """Merges streams as they arrive; two replicas may therefore merge differently."""

    kind: ClassVar[str] = "union"
    operator_class: ClassVar[str] = "arbitrary"
    class_reason: ClassVar[str] = "it merges streams as they arrive"
    sources_min: ClassVar[int] = 2
    sources_max: ClassVar[int | None] = None

    def examine(self, inputs: list[list[str]]) -> None:
        for source, columns in zip(self.sources[1:], inputs[1:], strict=True):
            if columns != inputs[0]:
                same = sorted(columns) == sorted(inputs[0])
                what = "the same columns in another order" if same else "other columns"
                here, there = ", ".join(columns), ", ".join(inputs[0])
                raise DiagramError(
                    f"'{source}' has {what} ({here}) than '{self.sources[0]}' ({there})",
                    hint="bring one into the form of the other with a map",
                )

    def describe(self) -> str:
        return f"union of {', '.join(self.sources)}"
