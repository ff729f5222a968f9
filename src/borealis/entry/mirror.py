"""An entry point and its peer on another node, which holds all that the entry point holds and goes on when it dies.

The protocol:

1. The peer gets one whole record first: both queues, how far the input and each publisher has come.
2. Then every step goes to it before it is in the log, before a reader can see it and before the publisher is answered.
3. Records are numbered. The peer takes the one that follows, ignores one that it has, and refuses any other with a
   StateError, as it does a damaged one; then comes a whole record again. So it does after anything that went wrong.
4. A whole record takes the place of everything: also of a step that the entry point itself gave up after it was sent.
5. Readers' acknowledgements come along, so that the peer holds what readers still need, and no more.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from borealis.entry.log import Facts, Step
from borealis.errors import FullError, StateError
from borealis.state import frame
from borealis.streams.queue import OutputQueue
from borealis.streams.snapshot import QueueSnapshot

MARK = b"BEM3"
Send = Callable[[bytes], None]


@dataclass
class Mirrored:
    """How much went to a peer, or came from one."""

    records: int = 0
    wholes: int = 0  # of those
    bytes: int = 0
    discarded: int = 0  # those that came damaged, or did not follow

    def count(self, whole: bool, size: int) -> None:
        """One more."""
        self.records += 1
        self.wholes += whole
        self.bytes += size


@dataclass(frozen=True)
class Sides:
    """What a record says beside tuples and facts: how readers of both queues stand, where what is held begins."""

    incarnation: int
    silent: float  # seconds since the last batch
    acks: tuple[Mapping[str, tuple[int, int]], Mapping[str, tuple[int, int]]]
    first: tuple[int, int]

    @classmethod
    def of(cls, queue: OutputQueue, late: OutputQueue, silent: float) -> Sides:
        """As they stand now."""
        return cls(queue.incarnation, silent, (queue.acks(), late.acks()), (queue.first_id, late.first_id))


@dataclass(frozen=True)
class Whole:
    """Everything that an entry point holds."""

    queues: tuple[QueueSnapshot, QueueSnapshot]
    facts: Facts

    @property
    def record(self) -> tuple[dict[str, Any], list[Any]]:
        """As the head and the blobs of a record."""
        return {"facts": self.facts}, [q.to_bytes() for q in self.queues]

    @classmethod
    def of(cls, head: Mapping[str, Any], blobs: list[Any]) -> Whole:
        """From a record."""
        on_time, late = map(QueueSnapshot.from_bytes, blobs)
        return cls((on_time, late), head["facts"])


@dataclass(frozen=True)
class Record:
    """What goes to the peer: a step, or everything."""

    source: str  # whose numbers these are
    serial: int
    sides: Sides
    news: Step | Whole

    def to_bytes(self) -> bytes:
        """For the wire."""
        head, blobs = self.news.record
        said = {
            "whole": isinstance(self.news, Whole),
            "source": self.source,
            "serial": self.serial,
            "incarnation": self.sides.incarnation,
            "silent": self.sides.silent,
            "acks": self.sides.acks,
            "first": self.sides.first,
            "head": head,
        }
        return frame.pack(MARK, said, blobs)

    @classmethod
    def from_bytes(cls, data: bytes | pa.Buffer, schema: pa.Schema) -> Record:
        """Checked; a StateError if it is something else or damaged."""
        try:
            return cls._parse(data, schema)
        except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
            what = " ".join(str(error).split())
            raise StateError(f"this is no record of an entry point of this version, or damaged: {what}") from error

    @classmethod
    def _parse(cls, data: bytes | pa.Buffer, schema: pa.Schema) -> Record:
        said, blobs = frame.unpack(MARK, data)
        on_time, late = ({name: (int(r), int(d)) for name, (r, d) in one.items()} for one in said["acks"])
        sides = Sides(said["incarnation"], said["silent"], (on_time, late), (said["first"][0], said["first"][1]))
        news = Whole.of(said["head"], blobs) if said["whole"] else Step.of(said["head"], blobs, schema)
        return cls(said["source"], said["serial"], sides, news)


class Mirror:
    """The way to a peer. Not thread-safe: the entry point's lock is held around all of it."""

    def __init__(self, send: Send, counted: Mirrored) -> None:
        self._send, self._counted = send, counted
        self._source, self._serial = uuid.uuid4().hex, 0
        self._sound = False  # the peer has all that was sent, and nothing else

    def begin(self, whole: Whole, sides: Sides) -> None:
        """Give it everything."""
        self._give(sides, whole)

    def give(self, step: Step, sides: Sides, whole: Callable[[], Whole]) -> None:
        """Give it a step; everything before that if need be."""
        if self._sound:
            try:
                self._give(sides, step)
                return
            except FullError:  # it needs no whole, but room
                raise
            except StateError:  # it does not follow there, or was damaged on its way
                pass
        self._give(sides, whole())
        self._give(sides, step)

    def invalidate(self) -> None:
        """What was sent last did not come to be."""
        self._sound = False

    def _give(self, sides: Sides, news: Step | Whole) -> None:
        self._sound = False
        self._serial += 1
        data = Record(self._source, self._serial, sides, news).to_bytes()
        self._send(data)
        self._sound = True
        self._counted.count(isinstance(news, Whole), len(data))


class Following:
    """Which records a peer may take."""

    def __init__(self) -> None:
        self.source = ""  # empty: none came yet
        self._serial = 0

    def is_old(self, record: Record) -> bool:
        """Whether it was taken already, or lies before one that was."""
        return record.source == self.source and record.serial <= self._serial

    def check(self, record: Record, ends: Sequence[tuple[int, int]], epochs: Sequence[str]) -> None:
        """A StateError if a step is not the one behind the last record, or does not fit these ends of the queues."""
        step = record.news
        if isinstance(step, Whole):
            return
        begins = [(s.first, s.standing) for s in step.sections]
        in_turn = (record.source, record.serial) == (self.source, self._serial + 1)
        if not in_turn or begins != list(ends) or step.facts["epochs"] != list(epochs):
            raise StateError(
                f"record {record.serial} at tuple {begins[0][0]} does not follow record {self._serial} "
                f"at tuple {ends[0][0]}",
                hint="send a whole one",
            )

    def lose(self) -> None:
        """Only a whole record can follow."""
        self.source = ""

    def took(self, record: Record) -> None:
        """It was taken."""
        self.source, self._serial = record.source, record.serial
