"""A unit on its way from one node to another: where it stood, its state tables, and its output queues; in one frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from borealis.errors import WireError
from borealis.state import frame
from borealis.state.log import Key
from borealis.streams.snapshot import QueueSnapshot

MARK = b"BHO3"


@dataclass(frozen=True)
class Handover:
    """All that makes a unit, at a train boundary."""

    header: dict[str, Any]  # train, cursors, next_cause, ids
    state: dict[Key, bytes]  # the whole tables of each box and bucket
    queues: dict[str, QueueSnapshot]

    def to_bytes(self) -> bytes:
        head = {"header": self.header, "state": list(self.state), "queues": list(self.queues)}
        return frame.pack(MARK, head, [*self.state.values(), *(q.to_bytes() for q in self.queues.values())])

    @classmethod
    def from_bytes(cls, data: bytes) -> Handover:
        """From the wire; a WireError if it is none, or not whole."""
        try:
            head, blobs = frame.unpack(MARK, data)
            keys: list[Key] = [(box, int(bucket)) for box, bucket in head["state"]]
            state = {key: blob.to_pybytes() for key, blob in zip(keys, blobs[: len(keys)], strict=True)}
            rest = zip(head["queues"], blobs[len(keys) :], strict=True)
            return cls(head["header"], state, {name: QueueSnapshot.from_bytes(b) for name, b in rest})
        except frame.DamagedFrameError as error:
            raise WireError(f"a unit's state is damaged: {error}", hint="move the unit again") from error
        except frame.FrameError as error:
            hint = "use the same version on all nodes"
            raise WireError(f"this is not a unit's state of this version: {error}", hint=hint) from error
        except (ValueError, KeyError, TypeError) as error:
            raise WireError(f"a unit's state is damaged: {error}") from error
