"""A train as it was cut, and as bytes, rows and all: a train that was handed out once can be handed out again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from borealis.disk import START_OVER
from borealis.entry.admission import Cursor
from borealis.errors import StateError
from borealis.state import frame
from borealis.trains.header import TrainInputs, rows_apart, rows_together
from borealis.trains.merge_order import Determinant

MARK = b"BPT3"


@dataclass(frozen=True)
class Train:
    """A train as it was cut: where every input stands after it, and whether it is the last."""

    number: int
    cursors: dict[str, Cursor]
    next_cause: int
    rows: int
    final: bool
    order: tuple[Determinant, ...] = ()  # the order in which its inputs were merged
    silent: bool = False  # what comes of it is known downstream already
    free: bool = True  # merged as tuples arrived, not as a replay says
    leaps: bool = False  # ids of an input were left out in it, or tuples lost
    jumps: bool = False  # it begins where ids of an input were left out, in a recovery


def cursors_to_json(cursors: Mapping[str, Cursor]) -> dict[str, Any]:
    """Cursors as they stand in a commit record, and in messages."""
    return {name: dict(vars(c)) for name, c in cursors.items()}


def cursors_from_json(data: Mapping[str, Any]) -> dict[str, Cursor]:
    return {name: Cursor(**c) for name, c in data.items()}


def pack(train: Train, header: TrainInputs) -> bytes:
    """The train, its header and the rows of its inputs."""
    inputs, blobs = rows_apart(header["inputs"], files=True)
    head = {
        "number": train.number,
        "cursors": cursors_to_json(train.cursors),
        "next_cause": train.next_cause,
        "rows": train.rows,
        "final": train.final,
        "header": {**header, "inputs": inputs},
    }
    return frame.pack(MARK, head, blobs)


def unpack(data: bytes) -> tuple[Train, TrainInputs]:
    try:
        head, blobs = frame.unpack(MARK, data)
    except frame.DamagedFrameError as error:
        raise StateError(f"a train that was begun is damaged: {error}", hint=START_OVER) from error
    except frame.FrameError as error:
        hint = "finish it with the version that began it"
        raise StateError(f"a train that was begun is not of this version: {error}", hint=hint) from error
    header: TrainInputs = head["header"]
    rows_together(header["inputs"], blobs)
    cursors = cursors_from_json(head["cursors"])
    return Train(head["number"], cursors, head["next_cause"], head["rows"], head["final"]), header
