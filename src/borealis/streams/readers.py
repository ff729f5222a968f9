"""How far the readers of a stream are: what each has, and what each needs no more.

Named readers acknowledge, and are kept for until they are forgotten. Those that pass (`~...`) acknowledge nothing: what
was pushed to them counts. Not thread-safe: a queue asks under its lock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from borealis.streams.id_gaps import Jumps
from borealis.streams.reader_place import ReaderPlace

PASSING_S = 1.0  # what a passing reader was pushed may be under way for so long; it acknowledges nothing

Facts = tuple[int, int, int, int]  # of a reader, in a snapshot: received, done, lost, back


@dataclass
class Reader:
    """A reader's acknowledgements, and how many tuples were dropped before it had them."""

    received: int  # level 0
    done: int  # level 1
    lost: int = 0
    back: int = 0  # how often it went back to an earlier tuple
    start: int = 0  # of one that passes
    came_at: float = -math.inf

    @property
    def place(self) -> ReaderPlace:
        return ReaderPlace(self.received, self.done, self.back)


def passes(name: str) -> bool:
    """Whether a reader of this name acknowledges nothing."""
    return name.startswith("~")


class Readers:
    """All readers of one stream, by name."""

    def __init__(self, names: Collection[str], first: int) -> None:
        self._all = {name: Reader(first, first) for name in names}
        self._mirrored = set(self._all)  # those that an increment may take away

    def get(self, name: str) -> Reader | None:
        return self._all.get(name)

    def come(self, name: str, start: int, now: float) -> None:
        """There is a new one, that begins there."""
        self._all[name] = Reader(start, start, start=start, came_at=now)

    def forget(self, name: str) -> bool:
        """Whether there was one."""
        return self._all.pop(name, None) is not None

    # -- how far they are; `none` where there are none

    def done(self) -> dict[str, int]:
        return {name: reader.done for name, reader in self._all.items()}

    def low(self, none: int) -> int:
        """All have acknowledged the tuples before this one."""
        return min((reader.done for reader in self._all.values()), default=none)

    def received(self, none: int) -> int:
        """All have the tuples before this one."""
        return min((reader.received for reader in self._all.values()), default=none)

    def wanted(self, none: int) -> int:
        """The greatest id that one asks for next."""
        return max((reader.received for reader in self._all.values()), default=none)

    def pushed(self, none: int) -> int:
        """The least id that one may still ask for: of a named one the first it needs yet, since what it only has in
        memory dies with it; of one that passes the first that was not pushed to it."""
        ids = (reader.received if passes(name) else reader.done for name, reader in self._all.items())
        return min(ids, default=none)

    def acknowledged(self, none: int) -> int:
        """The least id that a named one needs yet."""
        return min((reader.done for name, reader in self._all.items() if not passes(name)), default=none)

    def passing(self, now: float) -> int | None:
        """The first tuple that was not pushed to one that passes; what was pushed to a new one is under way."""
        since = now - PASSING_S
        ids = (r.received if r.came_at < since else r.start for name, r in self._all.items() if passes(name))
        return min(ids, default=None)

    # -- elsewhere

    def places(self) -> dict[str, ReaderPlace]:
        """How far each named one is."""
        return {name: reader.place for name, reader in self._all.items() if not passes(name)}

    def facts(self) -> dict[str, Facts]:
        """The named ones, for a snapshot."""
        return {n: (r.received, r.done, r.lost, r.back) for n, r in self._all.items() if not passes(n)}

    def raise_to(self, places: Mapping[str, ReaderPlace], told: Collection[str] | None) -> None:
        """Take over what they acknowledged at another queue of the same stream, or that they went back there.

        Those that are gone there since are gone here, too. With `told`, it is the answer of a copy that was told of
        these: of them none comes back that is gone here since, and others are the copy's own, which may come here.
        """
        if told is None:
            self._leave(set(places))
        for name, place in places.items():
            if told is not None and name in told and name not in self._all:
                continue
            known = self._all.setdefault(name, Reader(place.received, place.done, back=place.back))
            known.received, known.done, known.back = known.place.joined(place)

    def become(self, facts: Mapping[str, Facts]) -> None:
        """Those of a snapshot, and any that it does not know."""
        self._leave(set(facts))
        self._all |= {name: Reader(*one) for name, one in facts.items()}

    def _leave(self, mirrored: set[str]) -> None:
        for name in self._mirrored - mirrored:
            self._all.pop(name, None)
        self._mirrored = mirrored

    def lose(self, first: int, then: int, jumps: Jumps) -> None:
        """What is held begins at `then`, no more at `first`: count for each what it had not acknowledged."""
        for reader in self._all.values():
            reader.lost += jumps.tuples(max(first, reader.done), then)
