"""What a sink is: where an output's rows go, and how much of them a crash leaves."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa


@runtime_checkable
class Sink(Protocol):
    """Where an output's rows go. Only what `flush` has answered for may be called committed."""

    durable: bool  # can truncate to a position after a crash

    def open(self, schema: pa.Schema, resume: int | None) -> None:
        """Start afresh (None), or keep exactly what `flush` said at the last commit and drop what came after."""
        ...

    def write(self, rows: pa.Table) -> None:
        """Take rows of the schema given to `open`."""
        ...

    def flush(self, sync: bool) -> int:
        """All written rows handed to the operating system (fsync if `sync`); returns the position."""
        ...

    def close(self, complete: bool) -> None:
        """Make the result whole and visible. After an error (`complete=False`) every whole write is still there."""
        ...


@runtime_checkable
class FollowingSink(Sink, Protocol):
    """A sink that shows rows only when they can no longer be taken back."""

    def committed(self, position: int) -> None:
        """The train whose `flush` answered with this position is committed, and so are all before it."""
        ...
