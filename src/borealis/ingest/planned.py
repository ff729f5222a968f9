"""A train as bytes, rows and all: what was handed out once can be handed out again, whatever the sources say now.

As bytes: a mark with the version, the length of a JSON head, the head, then the files it lists, one behind the other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

from borealis.errors import StateError
from borealis.ingest.entry import Cursor
from borealis.ingest.input_manager import Train

_MAGIC = b"BPT1"
_HEAD = struct.Struct("<4sQ")
_FILES = ("rows", "late")


def pack(train: Train, header: dict[str, Any]) -> bytes:
    """The train, its header and the files of its inputs."""
    files = [Path(one[which]) for one in header["inputs"].values() for which in _FILES if one[which] is not None]
    blobs = [path.read_bytes() for path in files]
    head = {
        "number": train.number,
        "cursors": {name: asdict(cursor) for name, cursor in train.cursors.items()},
        "next_cause": train.next_cause,
        "rows": train.rows,
        "final": train.final,
        "header": header,
        "files": [path.name for path in files],
        "sizes": [len(blob) for blob in blobs],
    }
    text = json.dumps(head).encode()
    return b"".join([_HEAD.pack(_MAGIC, len(text)), text, *blobs])


def unpack(data: bytes, depot: Path) -> tuple[Train, dict[str, Any]]:
    """The train and its header, with its files in this directory."""
    if data[:4] != _MAGIC:
        raise StateError(
            "a train that was begun is not of this version", hint="finish it with the version that began it"
        )
    _, size = _HEAD.unpack_from(data)
    at = _HEAD.size + size
    head = json.loads(data[_HEAD.size : at])
    depot.mkdir(parents=True, exist_ok=True)
    for name, length in zip(head["files"], head["sizes"], strict=True):
        (depot / name).write_bytes(data[at : at + length])
        at += length
    header: dict[str, Any] = head["header"]
    for one in header["inputs"].values():
        one |= {which: str(depot / Path(one[which]).name) for which in _FILES if one[which] is not None}
    cursors = {name: Cursor(**cursor) for name, cursor in head["cursors"].items()}
    return Train(head["number"], cursors, head["next_cause"], head["rows"], head["final"]), header
