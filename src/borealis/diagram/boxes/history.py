"""History: where rows that correct earlier ones enter a diagram (Borealis 3.2's connection point).

It remembers the rows of an input by their key. A deletion or replacement, which need not say more than the key, leaves
it with the whole row that goes; so no box behind it has to look anything up.
"""

from __future__ import annotations

from typing import ClassVar

from borealis.diagram.boxes.base import Box, Names
from borealis.diagram.durations import Duration, parse

EXPIRED = ".expired"  # changes of what is behind the history
CONFLICT = ".conflict"  # changes that do not fit what is there
CHANGE, REASON = "change", "reason"  # columns of these


def history_of(name: str) -> str:
    """The box that is made for an input."""
    return f"{name}~history"


def again_for(name: str) -> str:
    """What is made so that rows reach an aggregate again ends with this: an arrow, and copies of boxes on the way."""
    return f"again~{name}"


def is_again_for(name: str, arrow: str) -> bool:
    """Whether an arrow is made so that rows reach this aggregate again."""
    return any(part.endswith(again_for(name)) for part in arrow.split("."))


class History(Box):
    """Rows as they come, with a kind, to changes that say which row goes and which comes.

    A row that is older than the history goes to `<name>.expired`; a second insertion of a key, or a change of what is
    not there, to `<name>.conflict`. No user draws it: a diagram gets one for each input that has a history.
    """

    kind: ClassVar[str] = "history"
    stateful: ClassVar[bool] = True
    span_fields: ClassVar[tuple[str, ...]] = ("history",)

    key: Names = ()
    history: Duration
    panes: dict[str, Duration] | None = None  # of aggregates that are given rows again: the length of a pane
    groups: dict[str, Names] | None = None  # and the columns here by which they group

    @property
    def history_us(self) -> int:
        """How far behind the boundary a row can still be corrected."""
        return parse(self.history)

    @property
    def operator_class(self) -> str:  # type: ignore[override]
        return "deterministic" if self.key else "repeatable"

    @property
    def class_reason(self) -> str:  # type: ignore[override]
        """A replacement fits only where its key is there, which may be so since the very first tuple."""
        if self.key:
            return "whether a key is there hangs on all that came of it, back to its first tuple"
        return "each tuple is looked at alone, and the boundary before it"

    @property
    def holds_us(self) -> int | None:
        return None if self.key else 0

    @property
    def replays(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """The arrows on which rows are given again: of the pane of a row that goes, so long, and of its group."""
        panes, groups = self.panes or {}, self.groups or {}
        return {f"{self.name}.{again_for(name)}": (parse(pane), groups[name]) for name, pane in panes.items()}

    @property
    def holds_more_us(self) -> int:
        """How much longer than the history rows are kept: a pane may have begun before it."""
        return max((pane for pane, _ in self.replays.values()), default=0)

    @property
    def ports(self) -> tuple[str, ...]:
        return ("", EXPIRED, CONFLICT, *(arrow.removeprefix(self.name) for arrow in self.replays))

    def arrow_columns(self, inputs: list[list[str]]) -> dict[str, list[str]]:
        aside = [*inputs[0], CHANGE, REASON]
        again = {arrow: list(inputs[0]) for arrow in self.replays}
        return {self.name: list(inputs[0]), self.name + EXPIRED: aside, self.name + CONFLICT: aside} | again

    def describe(self) -> str:
        by = f" by {', '.join(self.key)}" if self.key else ""
        again = f", again for {', '.join(self.panes)}" if self.panes else ""
        return f"history of {self.history}{by}{again}"
