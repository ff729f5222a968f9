"""A train as bytes, rows and all: what was handed out once can be handed out again, whatever the sources say now."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.errors import StateError
from borealis.state import frame
from borealis.state.lines import ANEW
from borealis.trains.input_manager import PAYLOADS, Train

MARK = b"BPT3"


def pack(train: Train, header: dict[str, Any]) -> bytes:
    """The train, its header and the rows of its inputs."""
    inputs: dict[str, Any] = {}
    blobs: list[bytes | pa.Buffer] = []
    for name, one in header["inputs"].items():
        places: dict[str, int | None] = {}
        for which in PAYLOADS:
            there = one[which] is not None
            places[which] = len(blobs) if there else None
            if there:
                blobs.append(Path(one[which]).read_bytes() if isinstance(one[which], str) else one[which])
        inputs[name] = one | places
    head = {
        "number": train.number,
        "cursors": {name: asdict(cursor) for name, cursor in train.cursors.items()},
        "next_cause": train.next_cause,
        "rows": train.rows,
        "final": train.final,
        "header": header | {"inputs": inputs},
    }
    return frame.pack(MARK, head, blobs)


def unpack(data: bytes) -> tuple[Train, dict[str, Any]]:
    """The train and its header."""
    try:
        head, blobs = frame.unpack(MARK, data)
    except frame.DamagedFrameError as error:
        raise StateError(f"a train that was begun is damaged: {error}", hint=ANEW) from error
    except frame.FrameError as error:
        hint = "finish it with the version that began it"
        raise StateError(f"a train that was begun is not of this version: {error}", hint=hint) from error
    header: dict[str, Any] = head["header"]
    for one in header["inputs"].values():
        one |= {which: blobs[one[which]] for which in PAYLOADS if one[which] is not None}
    cursors = {name: Cursor(**cursor) for name, cursor in head["cursors"].items()}
    return Train(head["number"], cursors, head["next_cause"], head["rows"], head["final"]), header
