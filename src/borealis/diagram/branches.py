"""What a route returns: its streams, by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from borealis.errors import DiagramError, did_you_mean

if TYPE_CHECKING:
    from borealis.diagram.model import Stream


@dataclass(frozen=True)
class Branches:
    """The streams of a route, in order: `branches.urgent`, `branches["urgent"]`, or unpacked."""

    streams: Mapping[str, Stream]

    def __iter__(self) -> Iterator[Stream]:
        return iter(self.streams.values())

    def __getitem__(self, name: str) -> Stream:
        if name not in self.streams:
            raise DiagramError(
                f"no branch '{name}' (has: {', '.join(self.streams)})", hint=did_you_mean(name, self.streams)
            )
        return self.streams[name]

    def __getattr__(self, name: str) -> Stream:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]
