"""A train as bytes, rows and all: what was handed out once can be handed out again, whatever the sources say now.

As bytes: a mark with the version, the length of a JSON head, the head, then the rows it lists, one behind the other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from borealis.entry.admission import Cursor
from borealis.errors import StateError
from borealis.trains.input_manager import PAYLOADS, Train

_MAGIC = b"BPT2"
_HEAD = struct.Struct("<4sQ")


def pack(train: Train, header: dict[str, Any]) -> bytes:
    """The train, its header and the rows of its inputs."""
    inputs: dict[str, Any] = {}
    blobs: list[bytes] = []
    for name, one in header["inputs"].items():
        places: dict[str, int | None] = {}
        for which in PAYLOADS:
            there = one[which] is not None
            places[which] = len(blobs) if there else None
            if there:
                blobs.append(Path(one[which]).read_bytes() if isinstance(one[which], str) else one[which].to_pybytes())
        inputs[name] = one | places
    head = {
        "number": train.number,
        "cursors": {name: asdict(cursor) for name, cursor in train.cursors.items()},
        "next_cause": train.next_cause,
        "rows": train.rows,
        "final": train.final,
        "header": header | {"inputs": inputs},
        "sizes": [len(blob) for blob in blobs],
    }
    text = json.dumps(head).encode()
    return b"".join([_HEAD.pack(_MAGIC, len(text)), text, *blobs])


def unpack(data: bytes) -> tuple[Train, dict[str, Any]]:
    """The train and its header."""
    if data[:4] != _MAGIC:
        raise StateError(
            "a train that was begun is not of this version", hint="finish it with the version that began it"
        )
    _, size = _HEAD.unpack_from(data)
    at = _HEAD.size + size
    head = json.loads(data[_HEAD.size : at])
    blobs = []
    for length in head["sizes"]:
        blobs.append(pa.py_buffer(data[at : at + length]))
        at += length
    header: dict[str, Any] = head["header"]
    for one in header["inputs"].values():
        one |= {which: blobs[one[which]] for which in PAYLOADS if one[which] is not None}
    cursors = {name: Cursor(**cursor) for name, cursor in head["cursors"].items()}
    return Train(head["number"], cursors, head["next_cause"], head["rows"], head["final"]), header
