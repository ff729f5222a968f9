"""A unit on its way from one node to another: where it stood, its state tables, and its output queues.

As bytes: a version, a checksum of all that follows, the length of a JSON head, the head, then the blobs it lists, one
behind the other.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

from borealis.errors import WireError
from borealis.state.log import Key
from borealis.streams.snapshot import QueueSnapshot

_MAGIC = b"BHO2"
_BEGIN = struct.Struct("<4sI")  # mark with the version, checksum of what follows
_SIZE = struct.Struct("<Q")  # of the JSON head


@dataclass(frozen=True)
class Handover:
    """All that makes a unit, at a train boundary."""

    header: dict[str, Any]  # train, cursors, next_cause, ids
    state: dict[Key, bytes]  # the whole tables of each box and bucket
    queues: dict[str, QueueSnapshot]

    def to_bytes(self) -> bytes:
        """For the wire."""
        blobs = [*self.state.values(), *(q.to_bytes() for q in self.queues.values())]
        head = {
            "header": self.header,
            "state": [list(key) for key in self.state],
            "queues": list(self.queues),
            "sizes": [len(b) for b in blobs],
        }
        text = json.dumps(head).encode()
        parts = [_SIZE.pack(len(text)), text, *blobs]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        return b"".join([_BEGIN.pack(_MAGIC, checksum), *parts])

    @classmethod
    def from_bytes(cls, data: bytes) -> Handover:
        """From the wire; a WireError if it is none, or not whole."""
        start = _BEGIN.size + _SIZE.size
        if len(data) < start or data[:4] != _MAGIC:
            raise WireError("this is not a unit's state of this version", hint="use the same version on all nodes")
        _, checksum = _BEGIN.unpack_from(data)
        if zlib.crc32(memoryview(data)[_BEGIN.size :]) != checksum:
            raise WireError("a unit's state came with a wrong checksum", hint="move the unit again")
        (size,) = _SIZE.unpack_from(data, _BEGIN.size)
        at = start + size
        try:
            head = json.loads(data[start:at])
            sizes: list[int] = head["sizes"]
            blobs = []
            for length in sizes:
                blobs.append(data[at : at + length])
                at += length
            if at != len(data):
                raise WireError(f"a unit's state came with {len(data)} bytes instead of {at}")
            keys: list[Key] = [(box, int(bucket)) for box, bucket in head["state"]]
            state = dict(zip(keys, blobs[: len(keys)], strict=True))
            rest = zip(head["queues"], blobs[len(keys) :], strict=True)
            return cls(head["header"], state, {name: QueueSnapshot.from_bytes(b) for name, b in rest})
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(f"a unit's state is damaged: {error}") from error
