"""How far a named reader of a stream is, and what two copies of the stream make of it that each know something."""

from __future__ import annotations

from typing import NamedTuple


class ReaderPlace(NamedTuple):
    """What a reader has acknowledged; and how often it went back, since what it acknowledged before means nothing then.

    >>> ReaderPlace(9, 7).joined(ReaderPlace(8, 8))
    ReaderPlace(received=9, done=8, back=0)
    >>> ReaderPlace(9, 7).joined(ReaderPlace(3, 3, back=1))
    ReaderPlace(received=3, done=3, back=1)
    """

    received: int  # all before this one
    done: int  # and needs no more what is before this one
    back: int = 0  # times

    def joined(self, other: ReaderPlace) -> ReaderPlace:
        """Where a reader is of which two copies know."""
        if self.back != other.back:
            return max(self, other, key=lambda place: place.back)
        return ReaderPlace(max(self.received, other.received), max(self.done, other.done), self.back)
