"""What protection is made of: what each committed train left behind, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from borealis.ingest.causes import Passed
from borealis.ingest.entry import Cursor

Place = tuple[int, int]  # in a stream: the id of the next tuple, and the boundary in force


@dataclass(frozen=True)
class Step:
    """A committed train: where inputs and outputs stand after it, and in which order its inputs were merged."""

    train: int
    next_cause: int
    inputs: Mapping[str, Cursor]
    outputs: Mapping[str, Place]
    order: tuple[Passed, ...] = ()
    at: float = 0.0  # when it was committed, on the node's own clock
    silent: bool = False  # it only built state again: what it gave had been given before
    life: str = ""  # of the run; empty: whoever goes on from here begins a new one
    rows: int = 0  # tuples in all trains up to this one; nothing but a figure

    def to_json(self) -> dict[str, Any]:
        """For a message; time and silence mean nothing elsewhere."""
        return {
            "train": self.train,
            "next_cause": self.next_cause,
            "inputs": {name: asdict(cursor) for name, cursor in self.inputs.items()},
            "outputs": {name: list(place) for name, place in self.outputs.items()},
            "order": [list(passed) for passed in self.order],
            "life": self.life,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        """From a message; KeyError, TypeError or ValueError if it is none."""
        return cls(
            int(data["train"]),
            int(data["next_cause"]),
            {name: Cursor(**cursor) for name, cursor in data["inputs"].items()},
            {name: (int(place[0]), int(place[1])) for name, place in data["outputs"].items()},
            tuple((str(name), int(at), int(bound)) for name, at, bound in data["order"]),
            life=str(data["life"]),
            rows=int(data["rows"]),
        )

    def positions(self) -> dict[str, int]:
        """Which tuple of each input is next."""
        return {name: cursor.position for name, cursor in self.inputs.items()}


@dataclass(frozen=True)
class Effects:
    """What is to be done now: acknowledge inputs (level 1) up to a tuple, let readers see outputs up to a place."""

    ack: Mapping[str, int] = field(default_factory=dict)
    release: Mapping[str, Place] | None = None
    open: bool = False  # outputs are not held back any more


NONE = Effects()


def active_reader(name: str, incarnation: int) -> str:
    """Under which name a unit with an active standby reads; the standby reads under that of the next incarnation."""
    return f"{name}.{incarnation}"
