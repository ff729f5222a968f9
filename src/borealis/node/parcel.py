"""What a primary sends to its backup: facts, and for some approaches state tables and output queues; in one frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from borealis.errors import WireError
from borealis.ha.primary import Want
from borealis.state import frame
from borealis.state.log import Key
from borealis.streams.reader_place import ReaderPlace
from borealis.streams.status import StreamState

MARK = b"BGP5"
Acks = Mapping[str, Mapping[str, ReaderPlace]]  # of each output, by reader


class DamagedError(WireError):
    """A parcel whose checksum is wrong: what was sent is not what came. `of` is its unit, if its head can be read."""

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
    condition: StreamState = "stable"  # of what the primary gives

    def encode(self) -> bytes:
        """For the wire; put together once."""
        return self._data

    @cached_property
    def _data(self) -> bytes:
        return frame.pack(MARK, *self.parts)

    @property
    def parts(self) -> tuple[dict[str, Any], list[bytes]]:
        """The head and the blobs of its frame, for one who has a frame around them."""
        head = _HEAD.dump_python(self, mode="json", exclude=_NO_FACTS, exclude_defaults=True)
        head |= {"state": list(self.state), "queues": list(self.queues)}
        return head, [*self.state.values(), *self.queues.values()]

    @property
    def nbytes(self) -> int:
        """Of state and queues."""
        return sum(map(len, self.state.values())) + sum(map(len, self.queues.values()))

    @classmethod
    def decode(cls, data: bytes) -> Parcel:
        """From the wire; a DamagedError if it is not what was sent, a WireError if it is none."""
        try:
            return cls.of(*frame.unpack(MARK, data))
        except frame.DamagedFrameError as error:
            unit = None if error.head is None else (str(error.head["diagram"]), str(error.head["unit"]))
            whose = "a parcel" if unit is None else f"a parcel of unit {unit[1]}"
            raise DamagedError(f"{whose} is damaged: {error}", hint="it is sent again", of=unit) from error
        except frame.FrameError as error:
            hint = "use the same version on all nodes"
            raise WireError(f"this is no parcel of this version: {error}", hint=hint) from error

    @classmethod
    def of(cls, head: dict[str, Any], blobs: Sequence[pa.Buffer]) -> Parcel:
        """From its parts; a WireError if they are none of a parcel."""
        try:
            return cls._of(head, [blob.to_pybytes() for blob in blobs])
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise WireError(f"a bad parcel: {type(error).__name__}: {error}") from error

    @classmethod
    def _of(cls, head: dict[str, Any], blobs: list[bytes]) -> Parcel:
        state = dict(zip(map(tuple, head["state"]), blobs[: len(head["state"])], strict=True))
        queues = dict(zip(head["queues"], blobs[len(state) :], strict=True))
        return _HEAD.validate_python(head | {"state": state, "queues": queues})


_HEAD = TypeAdapter(Parcel)
_HERE = {"at", "silent"}  # of a train: they mean nothing elsewhere
_NO_FACTS: Any = {"state": True, "queues": True, "want": {"step": _HERE, "start": _HERE, "done": _HERE}}
