"""What a committed train leaves behind: where its unit stands after it. Protection is made of these. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from borealis.entry.admission import Cursor
from borealis.streams.section import Place
from borealis.trains.merge_order import Determinant
from borealis.trains.train import cursors_from_json, cursors_to_json


@dataclass(frozen=True)
class CommitPoint:
    """A committed train: where inputs and outputs stand after it, and in which order its inputs were merged."""

    train: int
    next_cause: int
    inputs: Mapping[str, Cursor]
    outputs: Mapping[str, Place]
    order: tuple[Determinant, ...] = ()
    at: float = 0.0  # when it was committed, on the node's own clock
    silent: bool = False  # it only built state again: what it gave had been given before
    writer_id: str = ""  # of the run; empty: a unit that goes on from here begins a new one
    rows: int = 0  # tuples in all trains up to this one; nothing but a figure

    def to_json(self) -> dict[str, Any]:
        """For a message; its time means nothing elsewhere."""
        return {
            "train": self.train,
            "next_cause": self.next_cause,
            "inputs": cursors_to_json(self.inputs),
            "outputs": {name: list(place) for name, place in self.outputs.items()},
            "order": [list(passed) for passed in self.order],
            "silent": self.silent,
            "writer_id": self.writer_id,
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CommitPoint:
        """From a message; KeyError, TypeError or ValueError if it is none."""
        return cls(
            int(data["train"]),
            int(data["next_cause"]),
            cursors_from_json(data["inputs"]),
            {name: (int(place[0]), int(place[1])) for name, place in data["outputs"].items()},
            tuple((str(name), int(at), int(bound)) for name, at, bound in data["order"]),
            silent=bool(data["silent"]),
            writer_id=str(data["writer_id"]),
            rows=int(data["rows"]),
        )

    def positions(self) -> dict[str, int]:
        """Which tuple of each input is next."""
        return {name: cursor.position for name, cursor in self.inputs.items()}
