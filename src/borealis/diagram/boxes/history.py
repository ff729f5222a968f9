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


class History(Box):
    """Rows as they come, with a kind, to changes that say which row goes and which comes.

    A row that is older than the history goes to `<name>.expired`; a second insertion of a key, or a change of what is
    not there, to `<name>.conflict`. No user draws it: a diagram gets one for each input that has a history.
    """

    kind: ClassVar[str] = "history"
    stateful: ClassVar[bool] = True
    operator_class: ClassVar[str] = "convergent-capable"
    class_reason: ClassVar[str] = "what it knows of a row is forgotten when the history has passed"
    span_fields: ClassVar[tuple[str, ...]] = ("history",)

    key: Names = ()
    history: Duration

    @property
    def history_us(self) -> int:
        """How far behind the boundary a row can still be corrected."""
        return parse(self.history)

    @property
    def holds_us(self) -> int:
        return self.history_us

    @property
    def ports(self) -> tuple[str, ...]:
        return ("", EXPIRED, CONFLICT)

    def arrow_columns(self, inputs: list[list[str]]) -> dict[str, list[str]]:
        aside = [*inputs[0], CHANGE, REASON]
        return {self.name: list(inputs[0]), self.name + EXPIRED: aside, self.name + CONFLICT: aside}

    def describe(self) -> str:
        by = f" by {', '.join(self.key)}" if self.key else ""
        return f"history of {self.history}{by}"
