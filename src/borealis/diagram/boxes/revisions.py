"""Revisions: how much of what corrects earlier results an output gives (Borealis 3.4)."""

from __future__ import annotations

from typing import ClassVar, Literal

from borealis.diagram.boxes.base import Box, flat
from borealis.diagram.durations import Duration, parse

Given = Literal["all", "final", "drop"]


def revisions_of(output: str) -> str:
    """The box that is made for an output."""
    return f"{output}~revisions"


class Revisions(Box):
    """Changes to what readers want of them: each result as it first came (`drop`), each result once, when nothing can
    change it any more (`final`), or all changes, or those of rows that are important.

    What comes of the first two are plain rows, which take nothing back. No user draws it: a diagram gets one for each
    output that asks for less than all.
    """

    kind: ClassVar[str] = "revisions"
    expression_fields: ClassVar[tuple[str, ...]] = ("important",)
    span_fields: ClassVar[tuple[str, ...]] = ("history",)

    revisions: Given = "all"
    important: str | None = None  # what is true of a row whose changes are given
    history: Duration  # how far behind the boundary its rows can still be corrected

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        return self.revisions != "drop"

    @property
    def operator_class(self) -> str:  # type: ignore[override]
        if self.important is not None:
            return "deterministic"
        return "convergent-capable" if self.stateful else "repeatable"

    @property
    def class_reason(self) -> str:  # type: ignore[override]
        if self.important is not None:
            return "which row readers have in place of another hangs on all changes that were held back"
        return "what it knows of a row is forgotten when the history has passed" if self.stateful else ""

    @property
    def history_us(self) -> int:
        return parse(self.history)

    @property
    def behind_us(self) -> int:
        """How far its boundary stays behind that of its input."""
        return self.history_us if self.revisions == "final" else 0

    @property
    def holds_us(self) -> int | None:
        if self.important is not None:
            return None
        return self.history_us if self.stateful else 0

    def describe(self) -> str:
        match self.revisions:
            case "drop":
                return "results as they first come"
            case "final":
                return f"results when they are final, {self.history} later"
        return f"corrections of rows with {flat(self.important or 'true')}"
