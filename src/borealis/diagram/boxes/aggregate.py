"""Aggregate: one tuple per group and time window, emitted when the boundary reaches the window's end."""

from __future__ import annotations

from math import gcd
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, flat
from borealis.diagram.durations import Duration, parse
from borealis.diagram.names import no_column, require_distinct, require_free
from borealis.errors import DiagramError

START = "window_start"
END = "window_end"


class Aggregate(Box):
    """Computes aggregates per group and time window; without a slide the windows tumble."""

    kind: ClassVar[str] = "aggregate"
    stateful: ClassVar[bool] = True
    class_reason: ClassVar[str] = "several tuples make one result, in windows aligned to the clock"

    by: tuple[str, ...] = ()
    size: Duration = Field(description="an aggregate needs a window, such as size: 10 seconds")
    slide: Duration
    exprs: dict[str, str] = Field(description="name each aggregate, such as exprs: {n: count(*)}")

    @field_validator("by", mode="before")
    @classmethod
    def _one_column(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _tumble(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("slide") is None and "size" in fields:
            return {**fields, "slide": fields["size"]}
        return fields

    @property
    def size_us(self) -> int:
        """The length of a window."""
        return parse(self.size)

    @property
    def slide_us(self) -> int:
        """The distance from one window's start to the next one's."""
        return parse(self.slide)

    @property
    def calls(self) -> list[tuple[str, str]]:
        """The distinct aggregates over all expressions, as (function, argument)."""
        return self._split()[0]

    @property
    def finals(self) -> dict[str, str]:
        """Each output as an expression over `__a<i>`, i counting `calls`, and over nothing else but `by` columns."""
        return self._split()[1]

    def _split(self) -> tuple[list[tuple[str, str]], dict[str, str]]:
        calls: list[tuple[str, str]] = []
        finals = {}
        for name, expression in self.exprs.items():
            try:
                finals[name], calls = sql.split_aggregates(expression, calls)
            except DiagramError as e:
                raise DiagramError(f"'{name}': {e.message}", hint=e.hint) from None
        return calls, finals

    @property
    def operator_class(self) -> str:
        return "convergent-capable"  # aligned time windows, no timeout; several tuples make one result

    @property
    def spans(self) -> dict[str, int]:
        return {"size": self.size_us, "slide": self.slide_us}

    @property
    def grid_us(self) -> int:
        return gcd(self.size_us, self.slide_us)

    @property
    def holds_us(self) -> int:
        return self.size_us

    @property
    def expressions(self) -> list[str]:
        return list(self.exprs.values())

    def columns(self, inputs: list[list[str]]) -> list[str]:
        return [*self.by, START, END, *self.exprs]

    def examine(self, inputs: list[list[str]]) -> None:
        for name in self.by:
            if name not in inputs[0]:
                raise no_column(name, inputs[0])
        require_distinct(self.by)
        if not self.exprs:
            raise DiagramError("an aggregate without expressions", hint='name at least one, such as n="count(*)"')
        grouped = {name.lower() for name in self.by}
        for name in (*self.by, *self.exprs):
            if name.lower() in (START, END):
                hint = "every aggregate has window_start and window_end already: rename yours"
                raise DiagramError(f"column '{name}' is the window's own", hint=hint)
        for name in self.exprs:
            require_free(name)
            if name.lower() in grouped:
                raise DiagramError(f"'{name}' is both a group column and an aggregate", hint="rename the aggregate")
        require_distinct(self.exprs)
        self._split()

    def describe(self) -> str:
        window = self.size if self.size == self.slide else f"{self.size} every {self.slide}"
        groups = f" by {', '.join(self.by)}" if self.by else ""
        return f"aggregate{groups} over {window}: " + ", ".join(f"{name} = {flat(e)}" for name, e in self.exprs.items())
