"""Where a process writes a stream that it follows, such as `borealis tail --to`: stable rows exactly once across its
restarts, and tentative ones, if they are wanted, to a place of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from borealis.connectors.addresses import is_topic, shown
from borealis.errors import OutputError


@dataclass(frozen=True)
class Position:
    """Where a writer stands, as it is kept with what is written: how far, and a word of the writer's own."""

    upto: int
    note: str = ""


class PlacedSink(Protocol):
    """Takes rows with the position behind them, and has both or none of them."""

    reader: str  # whose name a stream is read under, if no other is given
    anew: str  # what to do where the stream is another by now

    def open(self, stream: str, reader: str) -> Position | None:
        """What an earlier life has written, or None; one at a time has it open."""

    def begin(self, schema: pa.Schema, position: Position) -> None:
        """Rows of these columns come, from there."""

    def publish(self, rows: pa.Table, position: Position) -> None:
        """When this returns, both survive."""

    def close(self, complete: bool) -> None: ...


class TentativeSink(Protocol):
    """Takes rows that become void."""

    def open(self, schema: pa.Schema, next_id: int) -> None:
        """Begin; what an earlier life has left is void."""

    def write(self, rows: pa.Table, fork: str) -> None:
        """Rows of a fork; after a crash they may be there, or not."""

    def undo(self, next_id: int) -> None:
        """All that was written is void; stable rows go on at this id, once this has returned."""

    def done(self, next_id: int) -> None:
        """All that was void is corrected by the stable rows before this id."""

    def close(self) -> None: ...


def placed_at(place: str) -> PlacedSink:
    """A topic, a file or a directory, by its address."""
    if is_topic(place):
        from borealis.connectors.kafka.placed import PlacedTopic

        return PlacedTopic(place)
    from borealis.connectors.files.placed import PlacedFile

    return PlacedFile(place)


def tentative_at(place: str, stable: str) -> TentativeSink:
    """A topic or a file beside the place of the stable rows."""
    if _name(place) == _name(stable):
        hint = "give tentative rows a place of their own: they become void"
        raise OutputError(f"stable and tentative rows go to one place, {shown(place)}", hint=hint)
    if is_topic(place):
        from borealis.connectors.kafka.tentative import TentativeTopic

        return TentativeTopic(place)
    from borealis.connectors.files.tentative import TentativeFile

    return TentativeFile(place)


def _name(place: str) -> str:
    return shown(place) if is_topic(place) else str(Path(place).absolute())
