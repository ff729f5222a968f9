"""Aggregate: one tuple per group and window, emitted when the boundary shows that the window is complete.

A window is a span of time, or so many tuples in order of time. With a timeout it is closed so long after its first
tuple at the latest, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from borealis.diagram import sql
from borealis.diagram.boxes.base import Box, Names, flat
from borealis.diagram.boxes.history import is_again_for
from borealis.diagram.durations import CountWindow, Duration, Window, parse
from borealis.diagram.names import require_columns, require_distinct, require_free
from borealis.errors import DiagramError

START = "window_start"
END = "window_end"
TIMED_OUT = "timed_out"  # only with a timeout
REPLAYED = 2  # arrows into it, where one brings rows again


class AggregatingBox(Box):
    """What boxes share that compute aggregates over several tuples."""

    stateful: ClassVar[bool] = True
    expression_fields: ClassVar[tuple[str, ...]] = ("exprs",)

    if TYPE_CHECKING:  # a field of each, in its own place: that of the YAML form
        exprs: Mapping[str, str] | None

    @property
    def calls(self) -> list[sql.CallText]:
        """The distinct aggregates over all expressions."""
        return self._split()[0]

    @property
    def finals(self) -> dict[str, str]:
        """Each output as an expression over `__a<i>`, i counting `calls`, and over nothing else but `by` columns."""
        return self._split()[1]

    def _split(self) -> tuple[list[sql.CallText], dict[str, str]]:
        return sql.split_all(self.exprs or {})


class Aggregate(AggregatingBox):
    """Computes aggregates per group and window; without a slide the windows tumble.

    `size` and `slide` are spans of time; `count` and `every` are numbers of tuples, and exclude them.
    """

    kind: ClassVar[str] = "aggregate"
    span_fields: ClassVar[tuple[str, ...]] = ("size", "slide", "timeout")

    by: Names = ()
    size: Duration | None = None
    slide: Duration | None = None
    count: int | None = Field(default=None, description="write a number of tuples, such as count: 100")
    every: int | None = Field(default=None, description="write a number of tuples, such as every: 10")
    timeout: Duration | None = None
    history_at: str | None = None  # the input that gives rows again when one goes, so that they are not kept here
    exprs: dict[str, str] = Field(description="name each aggregate, such as exprs: {n: count(*)}")

    @model_validator(mode="before")
    @classmethod
    def _tumble(cls, fields: Any) -> Any:
        if isinstance(fields, dict):
            fields = dict(fields)
            for step, size in (("slide", "size"), ("every", "count")):
                if fields.get(step) is None and fields.get(size) is not None:
                    fields[step] = fields[size]
        return fields

    @model_validator(mode="after")
    def _one_kind_of_window(self) -> Aggregate:
        time = [key for key in ("size", "slide") if getattr(self, key) is not None]
        tuples = [key for key in ("count", "every") if getattr(self, key) is not None]
        if time and tuples:
            hint = "a window is a span of time (size, slide) or so many tuples (count, every)"
            raise DiagramError(f"'{time[0]}' and '{tuples[0]}': a window cannot be both", hint=hint)
        if "size" not in time and "count" not in tuples:
            hint = "an aggregate needs a window, such as size: 10 seconds, or count: 100"
            raise DiagramError(f"'{'count' if tuples else 'size'}' is missing", hint=hint)
        if self.count is not None and self.every is not None:
            CountWindow(self.count, self.every)  # refuses numbers that cannot be
        return self

    def check_arity(self) -> None:
        """With `history_at` a second arrow brings the rows that are given again; a pass draws it."""
        if self.history_at is None or self.replay is None or len(self.sources) > REPLAYED:
            super().check_arity()

    @property
    def replay(self) -> str | None:
        """The arrow on which rows come again."""
        made = self.sources[1:REPLAYED]
        return made[0] if made and is_again_for(self.name, made[0]) else None

    @property
    def over(self) -> Window | CountWindow:
        timeout = None if self.timeout is None else parse(self.timeout)
        if self.count is not None:
            return CountWindow(self.count, self.every or self.count, timeout)
        return Window(self.size_us, self.slide_us, timeout)

    @property
    def size_us(self) -> int:
        """The length of a window; 0 if windows are counted in tuples."""
        return 0 if self.size is None else parse(self.size)

    @property
    def slide_us(self) -> int:
        """The distance from one window's start to the next one's; 0 if windows are counted in tuples."""
        return 0 if self.slide is None else parse(self.slide)

    @property
    def operator_class(self) -> str:  # type: ignore[override]
        """Windows of time begin on the clock, counted ones with the first tuple."""
        return "convergent-capable" if self.count is None else "deterministic"

    @property
    def class_reason(self) -> str:  # type: ignore[override]
        """Windows of time begin on the clock, so that a restart soon has the same ones. Counted ones never do.

        A timeout changes neither: when a window of time is closed depends only on the tuples within that window.
        """
        if self.count is not None:
            return "several tuples make one result, in windows counted from the first tuple of each group"
        if self.timeout is not None:
            return "several tuples make one result, in windows aligned to the clock; a timeout counts within one window"
        return "several tuples make one result, in windows aligned to the clock"

    @property
    def grid_us(self) -> int:
        return gcd(self.size_us, self.slide_us)

    @property
    def reach_us(self) -> int:
        return 0 if self.timeout is None else parse(self.timeout)  # boundaries at least as often as windows time out

    @property
    def holds_us(self) -> int | None:
        return self.size_us if self.count is None else None  # a count goes on for ever

    def columns(self, inputs: list[list[str]]) -> list[str]:
        return [*self.by, *self.window_columns, *self.exprs]

    @property
    def window_columns(self) -> tuple[str, ...]:
        """The columns that tell of the window itself."""
        return (START, END) if self.timeout is None else (START, END, TIMED_OUT)

    def examine(self, inputs: list[list[str]]) -> None:
        require_columns(self.by, inputs[0])
        if not self.exprs:
            raise DiagramError("an aggregate without expressions", hint='name at least one, such as n="count(*)"')
        grouped = {name.lower() for name in self.by}
        for name in (*self.by, *self.exprs):
            if name.lower() in self.window_columns:
                hint = f"it has {', '.join(self.window_columns)} already: rename yours"
                raise DiagramError(f"column '{name}' is the window's own", hint=hint)
        for name in self.exprs:
            require_free(name)
            if name.lower() in grouped:
                raise DiagramError(f"'{name}' is both a group column and an aggregate", hint="rename the aggregate")
        require_distinct(self.exprs)
        self._split()

    def describe(self) -> str:
        tumbles = self.size == self.slide and self.count == self.every
        size, slide = (self.size, self.slide) if self.count is None else (f"{self.count} tuples", self.every)
        window = f"{size}" if tumbles else f"{size} every {slide}"
        window += "" if self.timeout is None else f", timeout {self.timeout}"
        window += "" if self.history_at is None else f", history at {self.history_at}"
        groups = f" by {', '.join(self.by)}" if self.by else ""
        return f"aggregate{groups} over {window}: " + ", ".join(f"{name} = {flat(e)}" for name, e in self.exprs.items())
