"""A train as bytes, rows and all: what was handed out once can be handed out again, whatever the sources say now."""

from __future__ import annotations

from dataclasses import asdict

from borealis.entry.admission import Cursor
from borealis.errors import StateError
from borealis.state import frame
from borealis.state.disk import ANEW
from borealis.trains.header import TrainInputs, rows_apart, rows_together
from borealis.trains.train import Train

MARK = b"BPT3"


def pack(train: Train, header: TrainInputs) -> bytes:
    """The train, its header and the rows of its inputs."""
    inputs, blobs = rows_apart(header["inputs"], files=True)
    head = {
        "number": train.number,
        "cursors": {name: asdict(cursor) for name, cursor in train.cursors.items()},
        "next_cause": train.next_cause,
        "rows": train.rows,
        "final": train.final,
        "header": {**header, "inputs": inputs},
    }
    return frame.pack(MARK, head, blobs)


def unpack(data: bytes) -> tuple[Train, TrainInputs]:
    """The train and its header."""
    try:
        head, blobs = frame.unpack(MARK, data)
    except frame.DamagedFrameError as error:
        raise StateError(f"a train that was begun is damaged: {error}", hint=ANEW) from error
    except frame.FrameError as error:
        hint = "finish it with the version that began it"
        raise StateError(f"a train that was begun is not of this version: {error}", hint=hint) from error
    header: TrainInputs = head["header"]
    rows_together(header["inputs"], blobs)
    cursors = {name: Cursor(**cursor) for name, cursor in head["cursors"].items()}
    return Train(head["number"], cursors, head["next_cause"], head["rows"], head["final"]), header
