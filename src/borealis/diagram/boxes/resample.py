"""Resample: for each tuple of one stream a value of another, interpolated at the tuple's time (Hwang 2.2.2)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from borealis.diagram.boxes.aggregate import AggregatingBox
from borealis.diagram.boxes.base import Names, flat
from borealis.diagram.boxes.join import SUFFIX
from borealis.diagram.durations import Duration, parse
from borealis.diagram.names import no_column, require_columns, require_distinct, require_free
from borealis.errors import DiagramError


class Resample(AggregatingBox):
    """Gives each tuple of the first stream what the second has near its time t: tuples with |t - t2| < window count.

    `how` is previous (the last at or before t), nearest (the earlier of two that are equally near) or linear (between
    the last before and the first after, null without both); nulls do not count, and of several values at one time the
    greatest does. Or `exprs` are aggregates over all that count. A result leaves when the boundary says that no more
    can come: its time is the last instant of the window, t + window - 1 us, and for `previous` t itself.
    """

    kind: ClassVar[str] = "resample"
    operator_class: ClassVar[str] = "convergent-capable"
    class_reason: ClassVar[str] = "several tuples make one result, in windows around the tuples of the first stream"
    sources_min: ClassVar[int] = 2
    sources_max: ClassVar[int | None] = 2
    span_fields: ClassVar[tuple[str, ...]] = ("window",)

    value: str | None = None
    how: Literal["previous", "nearest", "linear"] | None = Field(None, description="say previous, nearest or linear")
    exprs: dict[str, str] | None = None
    window: Duration = Field(description="a resample needs a window, such as window: 10 seconds")
    by: Names = ()

    @model_validator(mode="before")
    @classmethod
    def _linear(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and fields.get("value") is not None and fields.get("how") is None:
            return {**fields, "how": "linear"}
        return fields

    @property
    def window_us(self) -> int:
        """Tuples of the second stream that are as far away as this, or further, do not count."""
        return parse(self.window)

    @property
    def waits_us(self) -> int:
        """How far behind its own time the result of a tuple of the first stream is."""
        return 0 if self.how == "previous" else self.window_us - 1

    @property
    def reach_us(self) -> int:
        return self.window_us

    @property
    def holds_us(self) -> int:
        # a tuple of the first stream waits, and one of the second counts for it that is less than a window older
        return self.waits_us + self.window_us

    def added(self, first: list[str]) -> list[str]:
        """The names of the columns that come behind those of the first stream."""
        if self.value is None:
            return list(self.exprs or {})
        taken = {name.lower() for name in first}
        return [self.value + SUFFIX if self.value.lower() in taken else self.value]

    def columns(self, inputs: list[list[str]]) -> list[str]:
        return [*inputs[0], *self.added(inputs[0])]

    def examine(self, inputs: list[list[str]]) -> None:
        second = inputs[1]
        if (self.value is None) == (not self.exprs):
            hint = 'say value="price", or name aggregates: mean="avg(price)"'
            raise DiagramError("give either a value to interpolate or aggregates", hint=hint)
        if self.exprs and self.how is not None:
            raise DiagramError(f"aggregates are not interpolated, so there is no how='{self.how}'", hint="leave it out")
        if self.value is not None and self.value not in second:
            raise no_column(self.value, second)
        for columns in inputs:
            require_columns(self.by, columns)
        for name in self.exprs or {}:
            require_free(name)
        try:
            require_distinct(self.columns(inputs))
        except DiagramError as e:
            raise DiagramError(e.message, hint="rename it with a map before the resample") from None
        self._split()

    def describe(self) -> str:
        what = ", ".join(f"{name} = {flat(e)}" for name, e in (self.exprs or {}).items()) or f"{self.how} {self.value}"
        groups = f" by {', '.join(self.by)}" if self.by else ""
        return f"resample {self.sources[-1]} at {self.sources[0]}{groups} within {self.window}: {what}"
