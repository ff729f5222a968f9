"""What a primary sends to its backup: facts, and for some approaches state tables and output queues; in one frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from borealis.errors import WireError
from borealis.ha.primary import Want
from borealis.state import frame
from borealis.state.log import Key
from borealis.trains.commit_point import CommitPoint

MARK = b"BGP2"
Acks = Mapping[str, Mapping[str, tuple[int, int]]]  # of each output, by reader: received, no longer needed


class DamagedError(WireError):
    """A parcel whose checksum is wrong: what was sent is not what came. `of` is its unit, if that can be told."""

    def __init__(self, message: str, *, hint: str = "", of: tuple[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.of = of


@dataclass(frozen=True)
class Parcel:
    """One message from a primary to its backup."""

    diagram: str
    unit: str
    incarnation: int
    want: Want
    acks: Acks = field(default_factory=dict)
    epochs: Mapping[str, str | None] = field(default_factory=dict)  # of the inputs, as the primary reads them
    state: Mapping[Key, bytes] = field(default_factory=dict)  # whole tables, or merged deltas
    queues: Mapping[str, bytes] = field(default_factory=dict)  # snapshots, whole or since the last parcel

    def encode(self) -> bytes:
        """For the wire."""
        want = self.want
        head = {
            "diagram": self.diagram,
            "unit": self.unit,
            "incarnation": self.incarnation,
            "kind": want.kind,
            "number": want.number,
            "since": want.since,
            "step": want.step.to_json(),
            "start": want.start.to_json() if want.start else None,
            "done": want.done.to_json() if want.done else None,
            "orders": [[train, [list(p) for p in order]] for train, order in want.orders],
            "acks": {arrow: {r: list(a) for r, a in readers.items()} for arrow, readers in self.acks.items()},
            "epochs": dict(self.epochs),
            "state": list(self.state),
            "queues": list(self.queues),
        }
        return frame.pack(MARK, head, [*self.state.values(), *self.queues.values()])

    @classmethod
    def decode(cls, data: bytes) -> Parcel:
        """From the wire; a DamagedError if it is not what was sent, a WireError if it is none."""
        try:
            head, blobs = frame.unpack(MARK, data)
            return cls._of(head, [blob.to_pybytes() for blob in blobs])
        except frame.DamagedFrameError as error:
            unit = None if error.head is None else (str(error.head["diagram"]), str(error.head["unit"]))
            whose = "a parcel" if unit is None else f"a parcel of unit {unit[1]}"
            raise DamagedError(f"{whose} is damaged: {error}", hint="it is sent again", of=unit) from error
        except frame.FrameError as error:
            hint = "use the same version on all nodes"
            raise WireError(f"this is no parcel of this version: {error}", hint=hint) from error
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise WireError(f"a bad parcel: {type(error).__name__}: {error}") from error

    @classmethod
    def _of(cls, head: dict[str, Any], blobs: list[bytes]) -> Parcel:
        keys: list[Key] = [(str(box), int(bucket)) for box, bucket in head["state"]]
        want = Want(
            head["kind"],
            int(head["number"]),
            int(head["since"]),
            CommitPoint.from_json(head["step"]),
            CommitPoint.from_json(head["start"]) if head["start"] else None,
            CommitPoint.from_json(head["done"]) if head["done"] else None,
            tuple((int(t), tuple((str(n), int(a), int(b)) for n, a, b in order)) for t, order in head["orders"]),
        )
        return cls(
            str(head["diagram"]),
            str(head["unit"]),
            int(head["incarnation"]),
            want,
            {a: {r: (int(x), int(y)) for r, (x, y) in readers.items()} for a, readers in head["acks"].items()},
            head["epochs"],
            dict(zip(keys, blobs[: len(keys)], strict=True)),
            dict(zip(head["queues"], blobs[len(keys) :], strict=True)),
        )
