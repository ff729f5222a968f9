"""What a unit changed since the last train that all its copies are known to have: deltas of trains, in stretches.

A message may have arrived although no answer came, and a base in storage may be as of any train. So another copy stands
at the train of the last answer, or at one of these: stretches end there. What came and went within a stretch is known
to no copy, and need not be told to any.

Laws, for every order of events:
1. Whatever copy takes the stretches in, at whichever train it stands, has the state of the last of them then.
2. No more is kept than behind the last answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from borealis.state.delta import TableSpec, merge_deltas, pack, unpack
from borealis.state.log import Key

Deltas = Mapping[Key, bytes]  # of a train


class Unsent:
    """The deltas of trains behind the last answer. Not thread-safe."""

    def __init__(self) -> None:
        self.bytes = 0
        self._trains: list[tuple[int, Deltas]] = []
        self._told: set[int] = set()  # trains as of which something may have come to another copy

    def add(self, train: int, deltas: Deltas) -> int:
        """A train was committed; how many bytes it changed."""
        size = sum(map(len, deltas.values()))
        self._trains.append((train, deltas))
        self.bytes += size
        return size

    def tell(self, train: int) -> None:
        """Another copy is about to be told all up to this train: it may stand there from now on."""
        self._told.add(train)

    def since(self, train: int) -> list[list[Deltas]]:
        """What changed behind a train, in stretches at whose ends another copy may stand."""
        stretches: list[list[Deltas]] = [[]]
        for number, deltas in self._trains:
            if number > train:
                stretches[-1].append(deltas)
            if number in self._told:
                stretches.append([])
        return [stretch for stretch in stretches if stretch]

    def answered(self, train: int) -> None:
        """No copy is to be told of what is up to this train."""
        self._trains = [one for one in self._trains if one[0] > train]
        self.bytes = sum(len(data) for _, deltas in self._trains for data in deltas.values())
        self._told = {number for number in self._told if number > train}


def merged(tables: Mapping[str, Sequence[TableSpec]], stretches: Sequence[Sequence[Deltas]]) -> dict[Key, bytes]:
    """What changed in all of them, of each box and bucket as one delta. `tables` are those of each box."""
    found: dict[Key, list[list[bytes]]] = {}
    for number, stretch in enumerate(stretches):
        for deltas in stretch:
            for key, data in deltas.items():
                found.setdefault(key, [[] for _ in stretches])[number].append(data)
    return {key: _merged(tables[key[0]], [parts for parts in several if parts]) for key, several in found.items()}


def _merged(specs: Sequence[TableSpec], stretches: Sequence[Sequence[bytes]]) -> bytes:
    if sum(map(len, stretches)) == 1:
        return stretches[0][0]
    closed = [merge_deltas(specs, [unpack(part) for part in parts], closed=True) for parts in stretches]
    return pack(merge_deltas(specs, closed))
