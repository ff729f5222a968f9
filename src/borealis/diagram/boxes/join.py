"""Join: pairs of tuples of two streams that lie near in time and fulfil a condition."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from borealis.diagram import join_columns, sql
from borealis.diagram.boxes.base import Box, flat
from borealis.diagram.durations import Duration, parse
from borealis.diagram.names import no_column
from borealis.errors import DiagramError

SUFFIX = "_right"


class Join(Box):
    """Pairs tuples with |t1 - t2| < within for which the condition is true; in it, columns are `left.x`, `right.y`."""

    kind: ClassVar[str] = "join"
    operator_class: ClassVar[str] = "repeatable"  # no timeout, and windows move with the tuples
    stateful: ClassVar[bool] = True
    class_reason: ClassVar[str] = "one tuple of each side makes a result, in windows that move with the tuples"
    sources_min: ClassVar[int] = 2
    sources_max: ClassVar[int | None] = 2
    expression_fields: ClassVar[tuple[str, ...]] = ("on",)
    span_fields: ClassVar[tuple[str, ...]] = ("within",)

    on: str = Field(description="give a condition, such as on: left.k = right.k")
    within: Duration = Field(description="a join needs a window, such as within: 10 seconds")

    @property
    def within_us(self) -> int:
        """Tuples further apart than this, or just this, never meet."""
        return parse(self.within)

    @property
    def keys(self) -> list[tuple[str, str]]:
        """The equalities in the condition, as (left expression, right expression)."""
        return join_columns.split_join(self.on)[0]

    @property
    def residual(self) -> str | None:
        """What the condition asks beyond the equalities."""
        return join_columns.split_join(self.on)[1]

    @property
    def reach_us(self) -> int:
        return self.within_us

    def output_names(self, left: list[str], right: list[str]) -> list[tuple[str, str, str]]:
        """Where each output column comes from: (`left` or `right`, column there, name here)."""
        taken = {name.lower() for name in left}
        out = [("left", name, name) for name in left]
        for name in right:
            here = name + SUFFIX if name.lower() in {column.lower() for column in left} else name
            if here.lower() in taken:
                hint = "rename one of them with a map before the join"
                raise self.wrong(f"two output columns would be called '{here}'", hint)
            taken.add(here.lower())
            out.append(("right", name, here))
        return out

    @property
    def holds_us(self) -> int:
        return self.within_us

    def columns(self, inputs: list[list[str]]) -> list[str]:
        return [here for _, _, here in self.output_names(inputs[0], inputs[1])]

    def examine(self, inputs: list[list[str]]) -> None:
        if sql.is_empty(self.on):
            raise DiagramError("the condition is empty", hint="give one, such as on: left.k = right.k")
        join_columns.split_join(self.on)
        for side, column in join_columns.mentioned(self.on):
            known = inputs[join_columns.SIDES.index(side)]
            if column.lower() not in {name.lower() for name in known}:
                e = no_column(column, known)
                raise DiagramError(f"{side} side: {e.message}", hint=e.hint)

    def check(self, inputs: list[list[str]]) -> None:
        super().check(inputs)
        self.output_names(inputs[0], inputs[1])

    def describe(self) -> str:
        return f"join {self.sources[0]} with {self.sources[-1]} on {flat(self.on)} within {self.within}"
